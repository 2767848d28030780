/* lowrank.h: arguments of the stage `lowrank` for another stage, which makes no text of them. Not
 * for the stage (lowrank.c). */
#ifndef KVC_LOWRANK_H
#define KVC_LOWRANK_H

#include "codecs/args.h"

/* Returns the arguments of "lowrank:r=RANK:layer". The rank must be from 1 to 256. */
struct kvc_stage_args kvc_lowrank_args(unsigned rank);

#endif
