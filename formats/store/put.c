/* put.c: requests to put a cache: what they need, their turn in the queue, and their end. Spec:
 * STORE.md, "Writing". Not for packing and writing (put_chunks.c). */
#include "formats/store/put.h"

#include "formats/api/sized.h"
#include "formats/cache/keys.h"
#include "formats/cache/meta.h"
#include "formats/cache/rows.h"

#include <stdlib.h>

static int run_put(struct kvc_put_job *job, struct kvc_error *e) {
    if (job->whole) return kvc_put_whole(job, e);
    if (!job->n) return 0;
    if (!(job->object = calloc(job->n, sizeof *job->object)))
        return kvc_fail_memory(e, "what is put");
    for (size_t i = 0; i < job->n; i++)
        if (kvc_chunk_object(job->ns, job->keys, i, &job->object[i], e)) return -1;
    return kvc_put_chunks(job, e);
}

static void drop_job(struct kvc_put_job *job) {
    kvc_file_close(job->given);
    kvc_store_namespace_close(job->ns);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
    free(job->keys);
    free(job->object);
    free(job);
}

static void free_job(struct kvc_put_job *job) {
    kvc_queue_remove(job->ns->store, job->bytes);
    drop_job(job);
}

static void put_run(struct kvc_task *task) {
    struct kvc_put_job *job = (struct kvc_put_job *)task;
    const int status = job->ns->store->closing
                           ? kvc_fail(&job->error, KVC_ERR_IO, "the store is being closed")
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
static int take_extras(struct kvc_put_job *job, struct kvc_error *e) {
    const struct kvc_part_options all = {.size = sizeof all};
    if (!job->options.n_extras) return 0;
    if (!(job->given = kvc_file_select(job->file, &all, e))) return -1;
    job->file = job->given;
    return kvc_namespace_extras(&job->given->opened.cache->meta, job->options.extras,
                                job->options.n_extras, e);
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

int kvc_put_check(const struct kvc_store_namespace *ns, const struct kvc_file *f, size_t *chunks,
                  uint64_t *whole, struct kvc_error *e) {
    const struct kvc_cache *c = f->cache;
    struct kvc_rows rows;
    uint64_t n;
    if (!kvc_file_tokens(f, &n))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: it has no token ids, by which it could be found",
                        f->name);
    if (kvc_meta_u64(&c->meta, KVC_KEY_TOKENS_FIRST, 0))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: it does not begin at position 0", f->name);
    if (kvc_rows_look(&rows, c, e) || kvc_rows_refuse(&rows, e))
        return kvc_error_prefix(e, f->name);
    int cut = 1;
    for (uint32_t p = 0; p < c->n_parts; p++)
        cut &= c->part[p].kind != KVC_PART_SLIDING && c->part[p].kind != KVC_PART_RECURRENT;
    if (!cut && n < end_of(c))
        return kvc_fail(
            e, KVC_ERR_USAGE,
            "%s: it has rows of tokens whose ids it does not have, and cannot be cut before them",
            f->name);
    if (cut && end_of(c) < n) n = end_of(c); /* the last token may have no row yet */
    *chunks = cut ? (size_t)(n / ns->chunk) : 0;
    *whole = cut ? 0 : n;
    return 0;
}

static int check_file(struct kvc_put_job *job, struct kvc_error *e) {
    const struct kvc_cache *c = job->file->cache;
    uint64_t n;
    const int32_t *tokens = kvc_file_tokens(job->file, &n);
    if (kvc_put_check(job->ns, job->file, &job->n, &job->whole, e)) return -1;
    n = job->whole ? job->whole : job->n * job->ns->chunk;
    if (kvc_namespace_keys_of(job->ns, tokens, n, &c->meta, &job->keys, e)) return -1;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        job->bytes += c->tensor[t].shape.tokens * kvc_row_bytes(&c->tensor[t].shape);
    return 0;
}

/* Tells the caller what is new, if anything is. The lock is held, but not during the caller's
 * function. Returns 1 if it was called. */
static int tell(struct kvc_put_job *job, uint64_t *told) {
    const uint64_t total = job->total;
    if (!job->options.progress || job->cancelled || job->packed == *told) return 0;
    *told = job->packed;
    pthread_mutex_unlock(&job->lock);
    const int cancelled = job->options.progress(job->options.progress_state, *told, total) != 0;
    pthread_mutex_lock(&job->lock);
    job->cancelled = cancelled;
    return 1;
}

static int wait_for(struct kvc_put_job *job, struct kvc_error *e) {
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

int kvc_store_put(struct kvc_store_namespace *ns, struct kvc_file *f,
                  const struct kvc_store_put_options *options, struct kvc_error *e) {
    struct kvc_store_put_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_put_options", e)) return -1;
    struct kvc_put_job *job = calloc(1, sizeof *job);
    if (!job) return kvc_fail_memory(e, "what is put");
    *job = (struct kvc_put_job){
        .task.run = put_run, .ns = ns, .file = f, .options = o, .waits = o.wait || !o.done};
    job->error.code = KVC_OK;
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->changed, NULL);
    kvc_namespace_hold(ns);
    int status = take_extras(job, e) || check_file(job, e) ? -1 : 0;
    if (!status && kvc_queue_add(ns->store, job->bytes)) {
        kvc_count(ns->store, KVC_COUNT_DROPPED, 1);
        status = 1;
    }
    if (status) {
        drop_job(job);
        return status;
    }
    kvc_workers_add(ns->store->jobs, &job->task);
    return job->waits ? wait_for(job, e) : 0;
}
