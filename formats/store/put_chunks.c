/* put_chunks.c: packs the chunks of a cache that tiers lack, and writes them, in the order that
 * each tier wants. Spec: STORE.md, "Writing". Not for facts and profiles (object_io.c), nor for
 * requests (put.c). */
#include "formats/store/put.h"

#include "formats/cache/keys.h"

#include <stdlib.h>
#include <string.h>

/* in place of the first chunk that a tier lacks: it has failed or refused a chunk */
#define LOST SIZE_MAX
#define ROUNDS 3 /* for a tier that evicted chunks while the others were put */

/* A cache on its way to the tiers. */
struct spread {
    struct kvc_put_job *job;
    size_t missing[KVC_MAX_TIERS]; /* the first chunk that a tier lacks, or LOST */
    int proved;                    /* a chunk that was packed will be found */
    size_t made;                   /* chunks that were packed */
};

/* Takes the progress of an object. The thread that waits tells it to the caller. */
static int hear(void *state, uint64_t done, uint64_t total) {
    struct kvc_put_job *job = state;
    pthread_mutex_lock(&job->lock);
    job->packed = job->part * total + done; /* chunks of a cache have the same size */
    job->total = job->parts * total;
    pthread_cond_signal(&job->changed);
    const int cancelled = job->cancelled;
    pthread_mutex_unlock(&job->lock);
    return cancelled;
}

/* Packs chunk i. */
static int pack(struct kvc_put_job *job, size_t i, void **data, size_t *size, struct kvc_error *e) {
    const struct kvc_store_namespace *ns = job->ns;
    const struct kvc_part_options part = {.size = sizeof part,
                                          .first = i * ns->chunk,
                                          .end = (i + 1) * ns->chunk,
                                          .no_companions = 1};
    const struct kvc_write_options how = {.size = sizeof how,
                                          .threads = job->options.wait ? 0 : 1,
                                          .progress = job->options.progress ? hear : NULL,
                                          .progress_state = job,
                                          .recipe = ns->recipe,
                                          .shared_profile = ns->packs_with};
    struct kvc_file *f = kvc_file_select(job->file, &part, e);
    const int status = f ? kvc_file_pack_memory(f, &how, data, size, e) : -1;
    kvc_file_close(f);
    return status;
}

/* Proves that a chunk will be found: the same checks as after reading. */
static int prove(const struct kvc_put_job *job, size_t i, const void *data, size_t size, int hashes,
                 struct kvc_error *e) {
    uint64_t n;
    const struct kvc_chunk chunk = {.ns = job->ns,
                                    .i = i,
                                    .tokens = kvc_file_tokens(job->file, &n),
                                    .keys = job->keys};
    struct kvc_file *f = kvc_chunk_open(&chunk, data, &size, hashes, e);
    kvc_file_close(f);
    return f ? 0 : -1;
}

/* Packs and signs chunk i. */
static int make(struct spread *x, size_t i, void **data, size_t *size, struct kvc_error *e) {
    struct kvc_put_job *job = x->job;
    job->part = x->made++;
    if (job->parts < x->made) job->parts = x->made;
    int status = pack(job, i, data, size, e) ||
                 kvc_chunk_sign(job->ns->store, &job->object[i], data, size, e);
    if (!status && !x->proved) status = prove(job, i, *data, *size, 0, e);
    x->proved = 1;
    if (!status) status = kvc_namespace_store(job->ns, e);
    return status ? -1 : 0;
}

/* --- from the first chunk on --- */

/* Writes chunk i to the tiers that lack it, of those that take the first chunk first. Returns 1 if
 * any of these has it now. */
static int write_tiers(struct spread *x, size_t i, const void *data, size_t size,
                       struct kvc_error *e) {
    struct kvc_put_job *job = x->job;
    struct kvc_store *s = job->ns->store;
    size_t *missing = x->missing;
    const struct kvc_tier_put how = {.parent = i ? &job->object[i - 1] : NULL,
                                     .seconds = job->options.seconds,
                                     .pin = job->options.pin,
                                     .cost = job->options.cost};
    int any = 0;
    for (unsigned l = 0; l < s->n_tiers; l++) {
        int there = 0;
        struct kvc_error why;
        if (s->tier[l].ops->last_first) continue;
        if (i < missing[l]) {
            any |= missing[l] != LOST;
            continue;
        }
        if (kvc_store_put_tier(s, l, &job->object[i], data, size, &how, kvc_now() + KVC_PUT_TIME,
                               &there, &why)) {
            missing[l] = LOST;
            kvc_count(s, KVC_COUNT_FAILED, 1);
            if (e) *e = why;
            continue;
        }
        if (there == KVC_PUT_REFUSED) { /* what follows has no parent then */
            missing[l] = LOST;
            kvc_count(s, KVC_COUNT_REFUSED, 1);
            kvc_store_notify(s, l, KVC_MISSED, &job->object[i + 1], job->n - i - 1, (int64_t)size);
            continue;
        }
        any = 1;
        kvc_count(s, there ? KVC_COUNT_SHARED : KVC_COUNT_PUT, 1);
        if (!there) kvc_count(s, KVC_COUNT_PUT_BYTES, size);
    }
    return any;
}

/* Returns the first chunk that a tier lacks, of those with this order. */
static size_t first_missing(const struct spread *x, int last_first) {
    const struct kvc_store *s = x->job->ns->store;
    size_t first = x->job->n;
    for (unsigned l = 0; l < s->n_tiers; l++)
        if (s->tier[l].ops->last_first == last_first && x->missing[l] < first)
            first = x->missing[l];
    return first;
}

static int put_forward(struct spread *x, struct kvc_error *e) {
    const struct kvc_put_job *job = x->job;
    int status = 0, any = 1;
    for (size_t i = first_missing(x, 0); i < job->n && !status && any && !job->ns->store->closing;
         i++) {
        void *data = NULL;
        size_t size;
        status = make(x, i, &data, &size, e);
        any = !status && write_tiers(x, i, data, size, e);
        free(data);
    }
    return status;
}

/* --- from the last chunk on --- */

/* Reads chunk i from a directory that has it: that is faster than packing it once more. */
static void *read_back(struct spread *x, size_t i, size_t *size) {
    const struct kvc_put_job *job = x->job;
    struct kvc_store *s = job->ns->store;
    struct kvc_error why;
    for (unsigned l = 0; l < s->n_tiers; l++) {
        if (s->tier[l].ops->remote || x->missing[l] == LOST) continue;
        void *data = kvc_store_read_tier(s, l, &job->object[i], kvc_now() + KVC_PUT_TIME, size,
                                         &why);
        if (data && !prove(job, i, data, *size, 1, &why)) return data;
        if (data) kvc_store_mark_bad(s, l, &job->object[i], &why);
        free(data);
    }
    return NULL;
}

/* Returns 1 if a tier has chunk i. */
static int is_there(const struct spread *x, unsigned l, size_t i) {
    size_t found = 0;
    const struct kvc_put_job *job = x->job;
    return !kvc_store_count(job->ns->store, l, &job->object[i], 1, kvc_now() + KVC_PUT_TIME, &found,
                            NULL) &&
           found;
}

/* Writes chunk i to a tier. Sets *mine to 1 if it was not there. -1: the chunk cannot be packed.
 */
static int put_back(struct spread *x, unsigned l, size_t i, uint8_t *mine, struct kvc_error *e) {
    struct kvc_put_job *job = x->job;
    struct kvc_store *s = job->ns->store;
    const struct kvc_tier_put how = {.parent = i ? &job->object[i - 1] : NULL,
                                     .seconds = job->options.seconds,
                                     .pin = job->options.pin,
                                     .cost = job->options.cost};
    struct kvc_error why;
    size_t size;
    int there;
    void *data = read_back(x, i, &size);
    int status = data ? kvc_namespace_store(job->ns, e) : make(x, i, &data, &size, e);
    if (!status && kvc_store_put_tier(s, l, &job->object[i], data, size, &how,
                                      kvc_now() + KVC_PUT_TIME, &there, &why)) {
        x->missing[l] = LOST;
        kvc_count(s, KVC_COUNT_FAILED, 1);
        if (e) *e = why;
    } else if (!status) {
        *mine |= !there;
        kvc_count(s, there ? KVC_COUNT_SHARED : KVC_COUNT_PUT, 1);
        if (!there) kvc_count(s, KVC_COUNT_PUT_BYTES, size);
    }
    free(data);
    return status;
}

/* Removes the chunks that were written to a tier of which the first ones are missing: nobody can
 * find them. */
static void take_back(const struct spread *x, unsigned l, const uint8_t *mine) {
    const struct kvc_put_job *job = x->job;
    struct kvc_object *o = calloc(job->n, sizeof *o);
    size_t n = 0;
    for (size_t i = 0; o && i < job->n; i++)
        if (mine[i]) o[n++] = job->object[i];
    kvc_store_notify(job->ns->store, l, KVC_DROP, o, n, 0);
    free(o);
}

/* Puts what a tier lacks from chunk `from` on, the last one first. With `holes` only what is
 * missing before one that is there. */
static int put_range(struct spread *x, unsigned l, size_t from, int holes, uint8_t *mine,
                     struct kvc_error *e) {
    int status = 0;
    for (size_t i = x->job->n;
         i-- > from && !status && x->missing[l] != LOST && !x->job->ns->store->closing;) {
        if (is_there(x, l, i)) holes = 0;
        else if (!holes) status = put_back(x, l, i, &mine[i], e);
    }
    return status;
}

/* Puts a cache from its last chunk on, so that the first ones are the last to be evicted. Chunks
 * may be evicted while others are put: holes are filled then, but not the end of what is too much
 * for the tier. */
static int put_backward(struct spread *x, unsigned l, struct kvc_error *e) {
    struct kvc_put_job *job = x->job;
    struct kvc_store *s = job->ns->store;
    uint8_t *mine = calloc(job->n, 1);
    int status = mine ? 0 : kvc_fail_memory(e, "what is put");
    for (int round = 0; round < ROUNDS && !status && x->missing[l] < job->n && !s->closing;
         round++) {
        status = put_range(x, l, x->missing[l], round, mine, e);
        if (!status && x->missing[l] != LOST &&
            kvc_store_count(s, l, job->object, job->n, kvc_now() + KVC_PUT_TIME, &x->missing[l], e))
            x->missing[l] = LOST;
    }
    if (mine && (status || s->closing || x->missing[l] == LOST)) {
        take_back(x, l, mine);
    } else if (mine) {
        kvc_store_notify(s, l, KVC_TOUCH, job->object, job->n, 0);
        kvc_namespace_keep(job->ns, l);
    }
    free(mine);
    return status;
}

int kvc_put_chunks(struct kvc_put_job *job, struct kvc_error *e) {
    struct kvc_store *s = job->ns->store;
    struct spread x = {.job = job};
    for (unsigned l = 0; l < s->n_tiers; l++)
        if (kvc_store_count(s, l, job->object, job->n, kvc_now() + KVC_PUT_TIME, &x.missing[l], e))
            x.missing[l] = LOST;
    const size_t forward = first_missing(&x, 0), backward = first_missing(&x, 1);
    job->parts = job->n - (forward < job->n ? forward : backward);
    int status = put_forward(&x, e);
    for (unsigned l = 0; l < s->n_tiers && !status; l++)
        if (s->tier[l].ops->last_first) status = put_backward(&x, l, e);
    if (!status) status = kvc_namespace_store(job->ns, e); /* it may have lost its facts */
    if (status) kvc_count(s, KVC_COUNT_FAILED, 1);         /* nobody may wait for the error */
    return status ? -1 : 0;
}

/* --- caches that cannot be cut --- */

static int pack_whole(struct kvc_put_job *job, void **data, size_t *size, struct kvc_error *e) {
    const struct kvc_write_options how = {.size = sizeof how,
                                          .progress = job->options.progress ? hear : NULL,
                                          .progress_state = job,
                                          .recipe = job->ns->recipe,
                                          .shared_profile = job->ns->packs_with,
                                          .no_companions = 1};
    return kvc_file_pack_memory(job->file, &how, data, size, e);
}

/* Such a cache takes the place of an earlier one with the same last key. */
int kvc_put_whole(struct kvc_put_job *job, struct kvc_error *e) {
    struct kvc_store *s = job->ns->store;
    const struct kvc_tier_put put = {.seconds = job->options.seconds,
                                     .pin = job->options.pin,
                                     .cost = job->options.cost,
                                     .replace = 1};
    uint64_t n;
    const struct kvc_chunk chunk = {.ns = job->ns,
                                    .i = (size_t)(job->whole / KVC_PREFIX_TOKENS),
                                    .tokens = kvc_file_tokens(job->file, &n),
                                    .keys = job->keys,
                                    .whole = job->whole};
    struct kvc_object o;
    void *data = NULL;
    size_t size = 0;
    int there, stored = 0;
    job->parts = 1;
    const int status = kvc_whole_object(job->ns, job->keys, chunk.i, &o, e) ||
                       pack_whole(job, &data, &size, e) || kvc_chunk_sign(s, &o, &data, &size, e);
    size_t bare = size;
    struct kvc_file *proof = status ? NULL : kvc_chunk_open(&chunk, data, &bare, 0, e);
    kvc_file_close(proof);
    if (!proof) kvc_count(s, KVC_COUNT_FAILED, 1);
    const int can = proof && !kvc_namespace_store(job->ns, e);
    for (unsigned l = 0; l < s->n_tiers && can; l++) {
        const int failed = kvc_store_put_tier(s, l, &o, data, size, &put, kvc_now() + KVC_PUT_TIME,
                                              &there, e);
        kvc_count(s, failed ? KVC_COUNT_FAILED : KVC_COUNT_PUT, 1);
        stored += !failed;
    }
    free(data);
    return stored ? 0 : -1;
}


int kvc_put_try(struct kvc_store_namespace *ns, struct kvc_file *f, uint64_t whole,
                struct kvc_error *e) {
    struct kvc_put_job job = {.ns = ns, .file = f, .whole = whole, .options.wait = 1};
    void *data = NULL;
    size_t size;
    const int status = whole ? pack_whole(&job, &data, &size, e) : pack(&job, 0, &data, &size, e);
    free(data);
    return status;
}
