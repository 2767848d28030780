/* encode.h: encodes the records of a run of blocks of one tensor: rows in, stages, checks, sections
 * out. Not for the plan (plan.h) or the file (writer.c). */
#ifndef KVC_ENCODE_H
#define KVC_ENCODE_H

#include "formats/container/coder.h"
#include "formats/io/sink.h"

/* The encoded records of consecutive blocks of one tensor. */
struct kvc_run {
    struct kvc_buffer buffer; /* finished records; the owner frees .data */
    uint64_t bytes, same_rows;
    double source_squares, error_squares; /* over lossy rows, where measured */
};

/* Returns how many blocks of a tensor are encoded at once: a segment where a stage looks ahead,
 * else a few. */
uint64_t kvc_encode_run_blocks(const struct kvc_encode *x, uint32_t tensor);
/* Encodes blocks [block, end) of a tensor. `block` must be a multiple of kvc_encode_run_blocks()
 * where a stage looks ahead. */
int kvc_encode_run(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end,
                   struct kvc_run *run, struct kvc_error *e);

#endif
