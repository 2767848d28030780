/* decode_memory.c: the memory that decoding a container may take. */
#include "formats/container/decode_memory.h"

#include "formats/container/container.h"
#include "formats/container/records.h"
#include "formats/io/parallel.h"

#include <inttypes.h>
#include <unistd.h>

enum { THREAD_BLOCKS = 8 }; /* that a thread holds */

uint64_t kvc_decode_memory_default(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 4 : UINT64_C(1) << 30;
}

/* Returns the bytes of a tensor's largest block, as it is or as binary32. */
static uint64_t block_bytes(const struct kvc_shape *s) {
    const uint64_t rows = s->tokens < KVC_BLOCK ? s->tokens : KVC_BLOCK;
    const uint64_t own = kvc_row_bytes(s), floats = s->heads * s->dim * sizeof(float);
    return rows * (own > floats ? own : floats);
}

/* Returns the bytes of inputs that are held for a block that is predicted: one for each value of
 * the tensors before it. */
static uint64_t input_bytes(const struct kvc_cache *c, uint32_t tensor) {
    const struct kvc_records *k = kvc_records_of(c);
    uint64_t values = 0;
    if (!kvc_pipeline_has(kvc_records_pipeline(k, tensor), KVC_STAGE_AHEAD)) return 0;
    for (uint32_t t = 0; t < tensor; t++)
        if (kvc_tensor_part(c, t) == kvc_tensor_part(c, tensor))
            values += k->shape[t].heads * k->shape[t].dim;
    return values * KVC_BLOCK;
}

static uint64_t thread_bytes(const struct kvc_cache *c, uint32_t tensor) {
    return THREAD_BLOCKS * block_bytes(&kvc_records_of(c)->shape[tensor]) + input_bytes(c, tensor);
}

static uint64_t for_threads(const struct kvc_cache *c) {
    const uint64_t all = kvc_records_of(c)->max_memory;
    return all - all / 4;
}

int kvc_decode_memory_check(const struct kvc_cache *c, uint32_t tensor, struct kvc_error *e) {
    const uint64_t needs = thread_bytes(c, tensor), allowed = kvc_records_of(c)->max_memory;
    char label[64];
    if (needs <= for_threads(c)) return 0;
    kvc_tensor_label(c, tensor, label, sizeof label);
    return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_MEMORY,
                         "decoding %s may take %" PRIu64 " MiB of memory, and %" PRIu64
                         " MiB are allowed",
                         label, (needs + needs / 3) / (1 << 20) + 1, allowed >> 20);
}

unsigned kvc_decode_memory_threads(const struct kvc_cache *c, unsigned threads) {
    uint64_t most = 1;
    threads = kvc_parallel_threads(threads);
    if (!kvc_records_of(c)) return threads; /* rows that are read back from a device */
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const uint64_t needs = thread_bytes(c, t);
        if (needs > most) most = needs;
    }
    const uint64_t fit = for_threads(c) / most;
    return fit >= threads ? threads : fit ? (unsigned)fit : 1;
}

int kvc_container_may_hold(const struct kvc_cache *c, uint64_t bytes, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!k || bytes <= k->max_memory) return 0;
    return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_MEMORY,
                         "the source's order of rows takes %" PRIu64 " MiB of memory, and %" PRIu64
                         " MiB are allowed",
                         (bytes >> 20) + 1, k->max_memory >> 20);
}

uint64_t kvc_decode_memory_kept(const struct kvc_cache *c) {
    return kvc_records_of(c)->max_memory / 8;
}
