/* encode.h: the records of a run of blocks of one tensor: rows in, stages, checks, sections out. Not for the plan (plan.h)
 * or the file (writer.c). */
#ifndef KVC_ENCODE_H
#define KVC_ENCODE_H

#include "codecs/shared.h"
#include "formats/container/plan.h"
#include "formats/model/profile.h"
#include "formats/model/rebuild_source.h"
#include "formats/io/sink.h"

/* What all runs of one cache need. Read by several threads. */
struct kvc_encode {
    const struct kvc_cache *cache;
    const struct kvc_plan *plan;
    const struct kvc_cache *queries; /* as binary32, channels as K's; NULL: none */
    struct kvc_shared *shared;       /* by layer */
    struct kvc_projections *projections;
    struct kvc_profile *profile; /* NULL: none */
    int no_verify, measure;
};

/* Encoded records of consecutive blocks of one tensor. */
struct kvc_run {
    struct kvc_buffer buffer; /* finished records; the owner frees .data */
    uint64_t bytes, same_rows;
    double source_squares, error_squares; /* over lossy rows, where measured */
};

/* How many blocks of a tensor are encoded at once: a segment where a stage looks, else a few. */
uint64_t kvc_encode_run_blocks(const struct kvc_encode *x, uint32_t tensor);
/* Encodes blocks [block, end) of a tensor, which such a run begins or ends with. */
int kvc_encode_run(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end, struct kvc_run *run,
                   struct kvc_error *e);

#endif
