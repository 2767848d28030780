/* args.h: a stage's arguments as recipes spell them, `key=number` with `:` between. Not for the grammar around them
 * (recipe.h). */
#ifndef KVC_ARGS_H
#define KVC_ARGS_H

#include "codecs/stage.h"

#include <stddef.h>
#include <stdint.h>

/* One number that a stage takes; values[i] of a table of them is kept in kvc_stage_args.i[i]. */
struct kvc_arg {
    const char *key;
    int64_t min, max, fallback; /* fallback: what it is when it is not given; not printed then */
};

/* Fills args from text; refuses unknown keys, keys given twice, and numbers out of range, naming the stage. n <= 8. */
int kvc_args_parse(const char *stage, const struct kvc_arg *table, size_t n, const char *text,
                   struct kvc_stage_args *args, struct kvc_error *e);
/* The canonical text: what differs from the fallbacks, in the order of the table. */
void kvc_args_print(const struct kvc_arg *table, size_t n, const struct kvc_stage_args *args, char *text, size_t size);

#endif
