/* put.c: packs the chunks of a cache that the levels lack, and writes them. Spec: STORE.md, "Writing". Not for facts and profiles
 * (object_io.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"
#include "formats/cache/keys.h"
#include "formats/cache/meta.h"

#include <stdlib.h>
#include <string.h>

#define DEADLINE 60000000 /* of an object on a level */

/* A cache that is to be put. */
struct put_job {
    struct kvc_task task;
    struct kvc_store_space *space;
    struct kvc_file *file;
    struct kvc_file *given; /* `file` with the caller's extras; NULL: it has its own */
    struct kvc_store_put_options options;
    uint8_t *keys;
    struct kvc_object *object;
    size_t n;       /* chunks */
    uint64_t whole; /* tokens of a cache that cannot be cut; 0: it is cut into chunks */
    uint64_t bytes; /* that it counts in the queue */
    struct kvc_error error;
    int status, waits;
    size_t part, parts; /* number of the object that is being packed, of those that are packed */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* of what follows, which is under `lock` */
    int done, cancelled;
    uint64_t packed, total; /* bytes of K and V; total 0: unknown yet */
};

/* Takes the progress of an object. The thread that waits tells it to the caller. */
static int hear(void *state, uint64_t done, uint64_t total) {
    struct put_job *job = state;
    pthread_mutex_lock(&job->lock);
    job->packed = job->part * total + done; /* chunks of a cache have the same size */
    job->total = job->parts * total;
    pthread_cond_signal(&job->changed);
    const int cancelled = job->cancelled;
    pthread_mutex_unlock(&job->lock);
    return cancelled;
}

/* Packs chunk i. */
static int pack(struct put_job *job, size_t i, void **data, size_t *size, struct kvc_error *e) {
    const struct kvc_store_space *space = job->space;
    const struct kvc_part_options part = {.size = sizeof part,
                                          .first = i * space->chunk,
                                          .end = (i + 1) * space->chunk,
                                          .no_companions = 1};
    const struct kvc_write_options how = {.size = sizeof how,
                                          .threads = job->options.wait ? 0 : 1,
                                          .progress = job->options.progress ? hear : NULL,
                                          .progress_state = job,
                                          .recipe = space->recipe,
                                          .shared_profile = space->packs_with};
    struct kvc_file *f = kvc_file_select(job->file, &part, e);
    const int status = f ? kvc_file_pack_memory(f, &how, data, size, e) : -1;
    kvc_file_close(f);
    return status;
}

/* Proves that what was packed will be found: the same checks as after reading. */
static int prove(struct put_job *job, size_t i, const void *data, size_t size, struct kvc_error *e) {
    uint64_t n;
    const struct kvc_chunk chunk = {.space = job->space, .i = i, .tokens = kvc_file_tokens(job->file, &n), .keys = job->keys};
    struct kvc_file *f = kvc_chunk_open(&chunk, data, &size, 0, e);
    kvc_file_close(f);
    return f ? 0 : -1;
}

/* Writes chunk i to the levels that lack it. Returns 1 if any level has it now. missing[l] is the first chunk that level l lacks;
 * SIZE_MAX after a failure. */
static int write_levels(struct put_job *job, size_t i, const void *data, size_t size, size_t *missing, struct kvc_error *e) {
    struct kvc_store *s = job->space->store;
    const struct kvc_level_put how = {.parent = i ? &job->object[i - 1] : NULL,
                                      .seconds = job->options.seconds,
                                      .pin = job->options.pin,
                                      .cost = job->options.cost};
    int any = 0;
    for (unsigned l = 0; l < s->n_levels; l++) {
        int there = 0;
        struct kvc_error why;
        if (i < missing[l]) {
            any |= missing[l] != SIZE_MAX;
            continue;
        }
        if (kvc_store_put_level(s, l, &job->object[i], data, size, &how, kvc_now() + DEADLINE, &there, &why)) {
            missing[l] = SIZE_MAX;
            kvc_count(s, KVC_COUNT_FAILED, 1);
            if (e) *e = why;
            continue;
        }
        if (there == KVC_PUT_REFUSED) { /* what follows has no parent then */
            missing[l] = SIZE_MAX;
            kvc_count(s, KVC_COUNT_REFUSED, 1);
            kvc_store_tell(s, l, KVC_MISSED, &job->object[i + 1], job->n - i - 1, (int64_t)size);
            continue;
        }
        any = 1;
        kvc_count(s, there ? KVC_COUNT_SHARED : KVC_COUNT_PUT, 1);
        if (!there) kvc_count(s, KVC_COUNT_PUT_BYTES, size);
    }
    return any;
}

static int put_chunks(struct put_job *job, struct kvc_error *e) {
    struct kvc_store *s = job->space->store;
    size_t missing[KVC_MAX_LEVELS], first = job->n;
    for (unsigned l = 0; l < s->n_levels; l++) {
        if (kvc_store_count(s, l, job->object, job->n, kvc_now() + DEADLINE, &missing[l], e)) missing[l] = SIZE_MAX;
        if (missing[l] < first) first = missing[l];
    }
    int status = 0;
    job->parts = job->n - first;
    for (size_t i = first; i < job->n && !status; i++) {
        void *data = NULL;
        size_t size;
        job->part = i - first;
        status = pack(job, i, &data, &size, e) || kvc_chunk_sign(s, &job->object[i], &data, &size, e);
        if (!status && i == first) status = prove(job, i, data, size, e);
        const int any = !status && write_levels(job, i, data, size, missing, e);
        free(data);
        if (s->closing || !any) break;
    }
    if (status) kvc_count(s, KVC_COUNT_FAILED, 1); /* nobody may wait for the error */
    return status ? -1 : 0;
}

/* Puts a cache that cannot be cut. It takes the place of an earlier one with the same last key. */
static int put_whole(struct put_job *job, struct kvc_error *e) {
    struct kvc_store *s = job->space->store;
    const struct kvc_level_put put = {.seconds = job->options.seconds,
                                      .pin = job->options.pin,
                                      .cost = job->options.cost,
                                      .replace = 1};
    const struct kvc_write_options how = {.size = sizeof how,
                                          .progress = job->options.progress ? hear : NULL,
                                          .progress_state = job,
                                          .recipe = job->space->recipe,
                                          .shared_profile = job->space->packs_with,
                                          .no_companions = 1};
    uint64_t n;
    const struct kvc_chunk chunk = {.space = job->space,
                                    .i = (size_t)(job->whole / KVC_PREFIX_TOKENS),
                                    .tokens = kvc_file_tokens(job->file, &n),
                                    .keys = job->keys,
                                    .whole = job->whole};
    struct kvc_object o;
    void *data = NULL;
    size_t size = 0;
    int there, stored = 0;
    job->parts = 1;
    int status = kvc_whole_object(job->space, job->keys, chunk.i, &o, e) ||
                 kvc_file_pack_memory(job->file, &how, &data, &size, e) || kvc_chunk_sign(s, &o, &data, &size, e);
    size_t bare = size;
    struct kvc_file *proof = status ? NULL : kvc_chunk_open(&chunk, data, &bare, 0, e);
    kvc_file_close(proof);
    if (!proof) kvc_count(s, KVC_COUNT_FAILED, 1);
    for (unsigned l = 0; l < s->n_levels && proof; l++) {
        const int failed = kvc_store_put_level(s, l, &o, data, size, &put, kvc_now() + DEADLINE, &there, e);
        kvc_count(s, failed ? KVC_COUNT_FAILED : KVC_COUNT_PUT, 1);
        stored += !failed;
    }
    free(data);
    return stored ? 0 : -1;
}

static int run_put(struct put_job *job, struct kvc_error *e) {
    if (job->whole) return kvc_space_store(job->space, e) || put_whole(job, e) ? -1 : 0;
    if (!job->n) return 0;
    if (!(job->object = calloc(job->n, sizeof *job->object))) return kvc_fail_memory(e, "what is put");
    for (size_t i = 0; i < job->n; i++)
        if (kvc_chunk_object(job->space, job->keys, i, &job->object[i], e)) return -1;
    return kvc_space_store(job->space, e) || put_chunks(job, e) ? -1 : 0;
}

static void drop_job(struct put_job *job) {
    kvc_file_close(job->given);
    kvc_store_space_close(job->space);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
    free(job->keys);
    free(job->object);
    free(job);
}

static void free_job(struct put_job *job) {
    kvc_store_leave(job->space->store, job->bytes);
    drop_job(job);
}

static void run(struct kvc_task *task) {
    struct put_job *job = (struct put_job *)task;
    const int status = job->space->store->closing ? kvc_fail(&job->error, KVC_ERR_IO, "the store is being closed")
                                                  : run_put(job, &job->error);
    kvc_file_close(job->given); /* it reads from what the caller may close then */
    job->given = NULL;
    if (job->options.done) job->options.done(job->options.state, !status);
    if (!job->waits) {
        free_job(job);
        return;
    }
    pthread_mutex_lock(&job->lock);
    job->status = status;
    job->done = 1;
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

/* Gives the cache the caller's extras: chunks carry what their keys take. */
static int take_extras(struct put_job *job, struct kvc_error *e) {
    const struct kvc_part_options all = {.size = sizeof all};
    if (!job->options.n_extras) return 0;
    if (!(job->given = kvc_file_select(job->file, &all, e))) return -1;
    job->file = job->given;
    return kvc_space_extras(&job->given->cache->meta, job->options.extras, job->options.n_extras, e);
}

/* Returns the position after the last row of any part. */
static uint64_t end_of(const struct kvc_cache *c) {
    uint64_t end = 0;
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const struct kvc_cells *cells = &c->part[p].cells;
        if (c->part[p].kind > KVC_PART_RECURRENT || !cells->n) continue;
        const uint64_t own = (uint64_t)kvc_cells_position(cells, cells->n - 1) + 1;
        if (own > end) end = own;
    }
    return end;
}

int kvc_put_check(const struct kvc_store_space *space, const struct kvc_file *f, size_t *chunks, uint64_t *whole,
                  struct kvc_error *e) {
    const struct kvc_cache *c = f->cache;
    uint64_t n;
    if (!kvc_file_tokens(f, &n))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: it has no token ids, by which it could be found", f->name);
    if (kvc_meta_u64(&c->meta, KVC_KEY_TOKENS_FIRST, 0))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: it does not begin at position 0", f->name);
    int cut = 1;
    for (uint32_t p = 0; p < c->n_parts; p++) cut &= c->part[p].kind != KVC_PART_SLIDING && c->part[p].kind != KVC_PART_RECURRENT;
    if (!cut && n < end_of(c))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: it has rows of tokens whose ids it does not have, and cannot be cut before them",
                        f->name);
    if (cut && end_of(c) < n) n = end_of(c); /* the last token may have no row yet */
    *chunks = cut ? (size_t)(n / space->chunk) : 0;
    *whole = cut ? 0 : n;
    return 0;
}

static int check_file(struct put_job *job, struct kvc_error *e) {
    const struct kvc_cache *c = job->file->cache;
    uint64_t n;
    const int32_t *tokens = kvc_file_tokens(job->file, &n);
    if (kvc_put_check(job->space, job->file, &job->n, &job->whole, e)) return -1;
    n = job->whole ? job->whole : job->n * job->space->chunk;
    if (kvc_space_keys_of(job->space, tokens, n, &c->meta, &job->keys, e)) return -1;
    for (uint32_t t = 0; t < c->n_tensors; t++) job->bytes += c->tensor[t].shape.tokens * kvc_row_bytes(&c->tensor[t].shape);
    return 0;
}

/* Tells the caller what is new, if anything is. The lock is held, but not during the caller's function. Returns 1 if it was called. */
static int tell(struct put_job *job, uint64_t *told) {
    const uint64_t total = job->total;
    if (!job->options.progress || job->cancelled || job->packed == *told) return 0;
    *told = job->packed;
    pthread_mutex_unlock(&job->lock);
    const int cancelled = job->options.progress(job->options.progress_state, *told, total) != 0;
    pthread_mutex_lock(&job->lock);
    job->cancelled = cancelled;
    return 1;
}

static int wait_for(struct put_job *job, struct kvc_error *e) {
    uint64_t told = 0;
    pthread_mutex_lock(&job->lock);
    for (;;) {
        if (tell(job, &told)) continue; /* the job went on meanwhile */
        if (job->done) break;
        pthread_cond_wait(&job->changed, &job->lock);
    }
    pthread_mutex_unlock(&job->lock);
    const int status = job->status;
    if (e) *e = job->error;
    free_job(job);
    return status;
}

int kvc_store_put(struct kvc_store_space *space, struct kvc_file *f, const struct kvc_store_put_options *options,
                  struct kvc_error *e) {
    struct kvc_store_put_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_put_options", e)) return -1;
    struct put_job *job = calloc(1, sizeof *job);
    if (!job) return kvc_fail_memory(e, "what is put");
    *job = (struct put_job){.task.run = run, .space = space, .file = f, .options = o, .waits = o.wait || !o.done};
    job->error.code = KVC_OK;
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->changed, NULL);
    kvc_space_hold(space);
    int status = take_extras(job, e) || check_file(job, e) ? -1 : 0;
    if (!status && kvc_store_enter(space->store, job->bytes)) {
        kvc_count(space->store, KVC_COUNT_DROPPED, 1);
        status = 1;
    }
    if (status) {
        drop_job(job);
        return status;
    }
    kvc_workers_add(space->store->jobs, &job->task);
    return job->waits ? wait_for(job, e) : 0;
}
