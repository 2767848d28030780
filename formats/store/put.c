/* put.c: puts caches: what a request needs, its turn in the queue, and what is written to each
 * tier: the chunks that it lacks, in the order that it wants, or one object. Spec: STORE.md,
 * "Objects". Not for facts and profiles (namespace.c). */
#include "formats/store/store.h"

#include "formats/api/kvc_inspect.h"
#include "formats/api/sized.h"

#include <inttypes.h>
#include <stdlib.h>

#define PUT_TIME 60000000 /* microseconds, of an object on a tier */
/* Seconds that an object lives at most, some 31 000 years: sums with the time of day do not
 * overflow, in any tier. */
#define MOST_SECONDS INT64_C(1000000000000)

static int take_options(struct kvc_store_put_options *o,
                        const struct kvc_store_put_options *callers, struct kvc_error *e) {
    if (kvc_sized_take(o, sizeof *o, callers, "kvc_store_put_options", e)) return -1;
    if (o->seconds < 0)
        return kvc_fail(e, KVC_ERR_USAGE, "an object cannot live for %" PRId64 " seconds",
                        o->seconds);
    if (o->seconds > MOST_SECONDS) o->seconds = MOST_SECONDS;
    return 0;
}

/* A cache that is to be put. */
struct put_job {
    struct kvc_task task;
    struct kvc_store_namespace *asked; /* of the caller */
    struct kvc_store_namespace *ns;    /* that it is put to: `asked`, or what that learnt */
    const struct kvc_file *file;
    struct kvc_file *given; /* `file` with the caller's extras; NULL: it has its own */
    struct kvc_store_put_options options;
    const int32_t *tokens;
    uint8_t *keys;
    struct kvc_object *object;
    size_t n;        /* chunks */
    uint64_t taught; /* tokens that were put losslessly, for a profile to be learnt from */
    uint64_t whole;  /* tokens of a cache that cannot be cut; 0: it is cut into chunks */
    uint64_t bytes;  /* that it counts in the queue */
    struct kvc_error error;
    int status, waits;
    size_t missing[KVC_MAX_TIERS]; /* the first chunk that a tier lacks, or LOST */
    int proved;                    /* a chunk that was packed will be found */
    size_t made, parts;            /* objects that were packed, of those that will be */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* of what follows, which is under `lock` */
    int done, cancelled;
    uint64_t packed, total; /* bytes of K and V; total 0: unknown yet */
};

/* in place of the first chunk that a tier lacks: it has failed or refused a chunk */
#define LOST SIZE_MAX
#define ROUNDS 3 /* for a tier that evicted chunks while the others were put */

/* --- packing --- */

/* Takes the progress of an object. The thread that waits reports it to the caller. */
static int hear(void *state, uint64_t done, uint64_t total) {
    struct put_job *job = state;
    pthread_mutex_lock(&job->lock);
    job->packed = (job->made - 1) * total + done; /* chunks of a cache have the same size */
    job->total = job->parts * total;
    pthread_cond_signal(&job->changed);
    const int cancelled = job->cancelled;
    pthread_mutex_unlock(&job->lock);
    return cancelled;
}

/* Packs an object of a cache: a chunk, all of it, or with its name. `job` NULL: no progress. */
static int pack(const struct kvc_chunk *chunk, const struct kvc_file *f, unsigned threads,
                struct put_job *job, void **data, size_t *size, struct kvc_error *e) {
    const struct kvc_store_namespace *ns = chunk->ns;
    const int cut = !chunk->whole && !chunk->name;
    const struct kvc_select_options part = {.size = sizeof part,
                                            .first = cut ? chunk->i * ns->chunk : 0,
                                            .end = cut ? (chunk->i + 1) * ns->chunk : 0,
                                            .no_companions = 1,
                                            .store_name = chunk->name ? chunk->name->bytes : NULL,
                                            .store_name_bytes = chunk->name ? chunk->name->size
                                                                            : 0};
    const struct kvc_write_options how = {.size = sizeof how,
                                          .threads = threads,
                                          .progress = job && job->options.progress ? hear : NULL,
                                          .progress_state = job,
                                          .recipe = ns->learn ? NULL : ns->recipe,
                                          .shared_profile = ns->packs_with,
                                          .no_companions = 1};
    struct kvc_file *own = chunk->whole ? NULL : kvc_file_select(f, &part, e);
    if (!own && !chunk->whole) return -1;
    const int status = kvc_file_pack_memory(own ? own : f, &how, data, size, e);
    kvc_file_close(own);
    return status;
}

static int prove(const struct kvc_chunk *chunk, const void *data, size_t size, int hashes,
                 struct kvc_error *e) {
    struct kvc_file *f = kvc_chunk_open(chunk, data, &size, hashes, e);
    kvc_file_close(f);
    return f ? 0 : -1;
}

/* Packs and signs an object; proves that it will be found, by the same checks as after reading; and
 * stores the facts of its namespace. */
static struct kvc_bytes *make_object(const struct kvc_chunk *chunk, const struct kvc_object *o,
                                     const struct kvc_file *f, unsigned threads,
                                     struct put_job *job, int proved, struct kvc_error *e) {
    void *data;
    size_t size;
    if (pack(chunk, f, threads, job, &data, &size, e)) return NULL;
    struct kvc_bytes *bytes = kvc_chunk_sign(chunk->ns->store, o, data, size, e);
    if (!bytes || proved || !prove(chunk, bytes->data, bytes->size, 0, e)) return bytes;
    kvc_bytes_release(bytes);
    return NULL;
}

static struct kvc_chunk chunk_of(const struct put_job *job, size_t i) {
    return (struct kvc_chunk){
        .ns = job->ns, .i = i, .tokens = job->tokens, .keys = job->keys, .whole = job->whole};
}

/* Packs chunk i. NULL: it cannot be packed. */
static struct kvc_bytes *make_chunk(struct put_job *job, size_t i, struct kvc_error *e) {
    const struct kvc_chunk chunk = chunk_of(job, i);
    if (job->parts < ++job->made) job->parts = job->made;
    struct kvc_bytes *bytes = make_object(&chunk, &job->object[i], job->file,
                                          job->options.wait ? 0 : 1, job, job->proved, e);
    job->proved = 1;
    if (!bytes || !kvc_namespace_store(job->ns, e)) return bytes;
    kvc_bytes_release(bytes);
    return NULL;
}

static int put_chunk(struct put_job *job, unsigned tier, size_t i, struct kvc_bytes *bytes,
                     struct kvc_error *e) {
    const struct kvc_tier_put how = {.parent = i ? &job->object[i - 1] : NULL,
                                     .seconds = job->options.seconds,
                                     .pin = job->options.pin,
                                     .cost = job->options.cost};
    struct kvc_error why;
    const int put = kvc_store_put_counted(job->ns->store, tier, &job->object[i], bytes, &how,
                                          kvc_now() + PUT_TIME, &why);
    if (put < 0 && e) *e = why;
    if (put < 0 || put == KVC_PUT_REFUSED) job->missing[tier] = LOST;
    return put;
}

/* --- from the first chunk on --- */

/* Writes chunk i to the tiers that lack it, of those that take the first chunk first. Returns 1 if
 * any of these has it now. */
static int write_tiers(struct put_job *job, size_t i, struct kvc_bytes *bytes,
                       struct kvc_error *e) {
    struct kvc_store *s = job->ns->store;
    int any = 0;
    for (unsigned l = 0; l < s->n_tiers; l++) {
        if (s->tier[l].ops->last_first) continue;
        if (i < job->missing[l]) {
            any |= job->missing[l] != LOST;
            continue;
        }
        const int put = put_chunk(job, l, i, bytes, e);
        if (put == KVC_PUT_REFUSED) /* what follows has no parent then */
            kvc_store_notify(s, l, KVC_OP_MISSED, &job->object[i + 1], job->n - i - 1,
                             (int64_t)bytes->size);
        any |= put == KVC_PUT_STORED || put == KVC_PUT_SHARED;
    }
    return any;
}

/* Returns the first chunk that a tier lacks, of those with this order. */
static size_t first_missing(const struct put_job *job, int last_first) {
    const struct kvc_store *s = job->ns->store;
    size_t first = job->n;
    for (unsigned l = 0; l < s->n_tiers; l++)
        if (s->tier[l].ops->last_first == last_first && job->missing[l] < first)
            first = job->missing[l];
    return first;
}

static int put_forward(struct put_job *job, struct kvc_error *e) {
    int any = 1;
    for (size_t i = first_missing(job, 0); i < job->n && any && !job->ns->store->closing; i++) {
        struct kvc_bytes *bytes = make_chunk(job, i, e);
        if (!bytes) return -1;
        any = write_tiers(job, i, bytes, e);
        kvc_bytes_release(bytes);
    }
    return 0;
}

/* --- from the last chunk on --- */

/* Reads chunk i from a directory that has it: that is faster than packing it once more. */
static struct kvc_bytes *read_back(struct put_job *job, size_t i) {
    struct kvc_store *s = job->ns->store;
    const struct kvc_chunk chunk = chunk_of(job, i);
    struct kvc_error why;
    for (unsigned l = 0; l < s->n_tiers; l++) {
        if (s->tier[l].ops->remote || job->missing[l] == LOST) continue;
        struct kvc_bytes *bytes = kvc_store_read_tier(s, l, &job->object[i], kvc_now() + PUT_TIME,
                                                      &why);
        if (!bytes) continue;
        if (!prove(&chunk, bytes->data, bytes->size, 1, &why)) return bytes;
        kvc_store_mark_bad(s, l, &job->object[i], &why);
        kvc_bytes_release(bytes);
    }
    return NULL;
}

/* Writes chunk i to a tier. Sets *mine to 1 if it was not there. -1: the chunk cannot be packed. */
static int put_back(struct put_job *job, unsigned l, size_t i, uint8_t *mine, struct kvc_error *e) {
    struct kvc_bytes *bytes = read_back(job, i);
    if (bytes && kvc_namespace_store(job->ns, e)) {
        kvc_bytes_release(bytes);
        return -1;
    }
    if (!bytes && !(bytes = make_chunk(job, i, e))) return -1;
    if (put_chunk(job, l, i, bytes, e) == KVC_PUT_STORED) *mine = 1;
    kvc_bytes_release(bytes);
    return 0;
}

/* Removes the chunks that were written to a tier of which the first ones are missing: nobody can
 * find them. */
static void take_back(const struct put_job *job, unsigned l, const uint8_t *mine) {
    struct kvc_object *o = calloc(job->n, sizeof *o);
    size_t n = 0;
    for (size_t i = 0; o && i < job->n; i++)
        if (mine[i]) o[n++] = job->object[i];
    kvc_store_notify(job->ns->store, l, KVC_OP_DROP, o, n, 0);
    free(o);
}

/* Puts what a tier lacks from chunk `from` on, the last one first. With `holes` only what is
 * missing before one that is there. */
static int put_range(struct put_job *job, unsigned l, size_t from, int holes, uint8_t *mine,
                     struct kvc_error *e) {
    int status = 0;
    for (size_t i = job->n;
         i-- > from && !status && job->missing[l] != LOST && !job->ns->store->closing;) {
        if (kvc_store_has(job->ns->store, l, &job->object[i], kvc_now() + PUT_TIME)) holes = 0;
        else if (!holes) status = put_back(job, l, i, &mine[i], e);
    }
    return status;
}

/* Puts a cache from its last chunk on, so that the first ones are the last to be evicted. Chunks
 * may be evicted while others are put: holes are filled then, but not the end of what is too much
 * for the tier. */
static int put_backward(struct put_job *job, unsigned l, struct kvc_error *e) {
    struct kvc_store *s = job->ns->store;
    uint8_t *mine = calloc(job->n, 1);
    int status = mine ? 0 : kvc_fail_memory(e, "what is put");
    for (int round = 0; round < ROUNDS && !status && job->missing[l] < job->n && !s->closing;
         round++) {
        status = put_range(job, l, job->missing[l], round, mine, e);
        if (!status && job->missing[l] != LOST &&
            kvc_store_count(s, l, job->object, job->n, kvc_now() + PUT_TIME, &job->missing[l], e))
            job->missing[l] = LOST;
    }
    if (mine && (status || s->closing || job->missing[l] == LOST)) {
        take_back(job, l, mine);
    } else if (mine) {
        kvc_store_notify(s, l, KVC_OP_TOUCH, job->object, job->n, 0);
        kvc_namespace_keep(job->ns, l);
    }
    free(mine);
    return status;
}

static int put_chunks(struct put_job *job, struct kvc_error *e) {
    struct kvc_store *s = job->ns->store;
    for (unsigned l = 0; l < s->n_tiers; l++) {
        if (!kvc_store_count(s, l, job->object, job->n, kvc_now() + PUT_TIME, &job->missing[l], e))
            continue;
        job->missing[l] = LOST;
        kvc_count(s, KVC_COUNT_FAILED, 1);
    }
    for (unsigned l = 0; l < s->n_tiers && job->options.pin; l++)
        if (job->missing[l] != LOST) /* what is there stays from now on, too */
            kvc_store_notify(s, l, KVC_OP_PIN, job->object, job->missing[l], INT64_MAX);
    const size_t forward = first_missing(job, 0), backward = first_missing(job, 1);
    job->parts = job->n - (forward < job->n ? forward : backward);
    int status = put_forward(job, e);
    for (unsigned l = 0; l < s->n_tiers && !status; l++)
        if (s->tier[l].ops->last_first) status = put_backward(job, l, e);
    if (!status) status = kvc_namespace_store(job->ns, e); /* it may have lost its facts */
    if (status) kvc_count(s, KVC_COUNT_FAILED, 1);         /* nobody may wait for the error */
    return status ? -1 : 0;
}

/* --- caches that are one object --- */

/* Writes an object to every tier. Returns how many have it now. */
static unsigned write_all(struct kvc_store *s, const struct kvc_object *o, struct kvc_bytes *bytes,
                          const struct kvc_store_put_options *p, int replace, struct kvc_error *e) {
    const struct kvc_tier_put how = {.seconds = p->seconds,
                                     .pin = p->pin,
                                     .cost = p->cost,
                                     .replace = replace};
    unsigned stored = 0;
    for (unsigned l = 0; l < s->n_tiers; l++) {
        const int put = kvc_store_put_counted(s, l, o, bytes, &how, kvc_now() + PUT_TIME, e);
        stored += put == KVC_PUT_STORED || put == KVC_PUT_SHARED;
    }
    return stored;
}

/* Puts a cache that cannot be cut. It takes the place of an earlier one with the same last key. */
static int put_whole(struct put_job *job, struct kvc_error *e) {
    struct kvc_store *s = job->ns->store;
    const struct kvc_chunk chunk = chunk_of(job, (size_t)(job->whole / KVC_PREFIX_TOKENS));
    struct kvc_object o;
    struct kvc_bytes *bytes = NULL;
    job->parts = job->made = 1;
    if (!kvc_whole_object(job->ns, job->keys, chunk.i, &o, e))
        bytes = make_object(&chunk, &o, job->file, 0, job, 0, e);
    if (!bytes) kvc_count(s, KVC_COUNT_FAILED, 1);
    const int stored = bytes && !kvc_namespace_store(job->ns, e) &&
                       write_all(s, &o, bytes, &job->options, 1, e);
    kvc_bytes_release(bytes);
    return stored ? 0 : -1;
}

/* Returns 1 if the first tier has the object already, and its bytes; slower tiers were given it by
 * whoever put it there. */
static int has_first(struct kvc_store *s, const struct kvc_object *o, uint64_t *size) {
    if (kvc_store_is_bad(s, o->key)) return 0;
    struct kvc_call *c = kvc_call_ask(s, 0, KVC_OP_EACH, o, 1, kvc_now() + KVC_OBJECT_TIME);
    const int there = !kvc_call_wait(c, NULL) && c->is_there[0];
    if (there) *size = c->size[0];
    kvc_call_release(c);
    if (there) kvc_count(s, KVC_COUNT_SHARED, 1);
    return there;
}

/* Puts a cache under a name to a namespace. -1: it cannot be packed. */
static int put_name(struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                    const struct kvc_file *f, const struct kvc_store_put_options *o,
                    struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    const struct kvc_chunk chunk = {.ns = ns, .name = name};
    struct kvc_object object;
    struct kvc_error why = {.code = KVC_OK};
    if (kvc_named_object(ns, name, &object, e)) return -1;
    if (!o->pin && !o->seconds && has_first(s, &object, o->stored_bytes)) return 0;
    /* one thread: programs put from several */
    struct kvc_bytes *bytes = make_object(&chunk, &object, f, 1, NULL, 0, e);
    if (!bytes) return -1;
    const int stored = !kvc_namespace_store(ns, &why) &&
                       write_all(s, &object, bytes, o, kvc_store_is_bad(s, object.key), &why);
    if (stored) kvc_store_clear_bad(s, object.key);
    *o->stored_bytes = stored ? bytes->size : 0;
    kvc_bytes_release(bytes);
    if (e) *e = why;
    return stored ? 0 : 1;
}

int kvc_store_put_name(struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                       const struct kvc_file *f, const struct kvc_store_put_options *options,
                       struct kvc_error *e) {
    if (KVC_NULL(e, ns, name, f)) return -1;
    struct kvc_store_put_options o;
    struct kvc_file_facts facts = {.size = sizeof facts};
    struct kvc_error why = {.code = KVC_OK};
    uint64_t unasked;
    if (take_options(&o, options, e)) return -1;
    if (!o.stored_bytes) o.stored_bytes = &unasked;
    *o.stored_bytes = 0;
    kvc_learn_look(ns, f, 1);
    struct kvc_store_namespace *packed = kvc_learnt_namespace(ns);
    int status = put_name(packed ? packed : ns, name, f, &o, &why);
    if (packed && status < 0 && why.code == KVC_ERR_OTHER_MODEL) {
        kvc_learn_refused(ns);
        status = put_name(ns, name, f, &o, &why);
    }
    kvc_file_describe(f, &facts);
    if (!status) kvc_learn_note(ns, packed ? 0 : facts.tokens, 0);
    kvc_store_namespace_close(packed);
    if (e) *e = why;
    return status;
}

/* --- requests --- */

static int put_to_namespace(struct put_job *job, struct kvc_error *e) {
    if (job->whole) return put_whole(job, e);
    if (!job->n) return 0;
    if (!(job->object = calloc(job->n, sizeof *job->object)))
        return kvc_fail_memory(e, "what is put");
    for (size_t i = 0; i < job->n; i++)
        if (kvc_chunk_object(job->ns, job->keys, i, &job->object[i], e)) return -1;
    return put_chunks(job, e);
}

static uint64_t tokens_of(const struct put_job *job) {
    return job->whole ? job->whole : job->n * job->asked->chunk;
}

/* Puts a cache to the namespace of the caller. */
static int put_as_asked(struct put_job *job, struct kvc_error *e) {
    kvc_store_namespace_close(job->ns);
    free(job->object);
    job->object = NULL;
    job->proved = 0;
    job->made = 0;
    job->ns = job->asked;
    kvc_namespace_hold(job->ns);
    return put_to_namespace(job, e);
}

/* Puts a cache to the namespace of a profile that was learnt, which has the same keys and chunks;
 * where there is none, or the cache does not fit it, to that of the caller. */
static int run_put(struct put_job *job, struct kvc_error *e) {
    kvc_learn_look(job->asked, job->file, 1);
    if (!(job->ns = kvc_learnt_namespace(job->asked))) {
        job->taught = tokens_of(job);
        return put_as_asked(job, e);
    }
    const int status = put_to_namespace(job, e);
    if (!status || e->code != KVC_ERR_OTHER_MODEL) return status;
    kvc_learn_refused(job->asked);
    return put_as_asked(job, e);
}

static void drop_job(struct put_job *job) {
    kvc_file_close(job->given);
    kvc_store_namespace_close(job->ns);
    kvc_store_namespace_close(job->asked);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
    free(job->keys);
    free(job->object);
    free(job);
}

static void free_job(struct put_job *job) {
    kvc_queue_remove(job->asked->store, job->bytes);
    drop_job(job);
}

static void put_run(struct kvc_task *task) {
    struct put_job *job = (struct put_job *)task;
    const int status = job->asked->store->closing
                           ? kvc_fail(&job->error, KVC_ERR_IO, "the store is being closed")
                           : run_put(job, &job->error);
    if (!status) kvc_learn_note(job->asked, job->taught, job->options.wait);
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
    const struct kvc_select_options all = {.size = sizeof all,
                                           .extras = job->options.extras,
                                           .n_extras = job->options.n_extras};
    if (!all.n_extras) return 0;
    if (!(job->given = kvc_file_select(job->file, &all, e))) return -1;
    job->file = job->given;
    return 0;
}

static int refuse(const struct kvc_file *f, const char *why, struct kvc_error *e) {
    struct kvc_source_info source = {.size = sizeof source};
    kvc_file_source(f, &source);
    return kvc_fail(e, KVC_ERR_USAGE, "%s: %s", source.name, why);
}

/* Refuses a cache that cannot be put, and tells into how many chunks it is cut; *whole is its
 * tokens if it cannot be cut, else 0. */
static int check_cache(const struct kvc_store_namespace *ns, const struct kvc_file *f,
                       size_t *chunks, uint64_t *whole, struct kvc_error *e) {
    struct kvc_prefix_info prefix = {.size = sizeof prefix};
    uint64_t n;
    kvc_file_prefix(f, &prefix);
    if (!kvc_file_tokens(f, &n))
        return refuse(f, "it has no token ids, by which it could be found", e);
    if (prefix.first) return refuse(f, "it does not begin at position 0", e);
    if (kvc_file_check_rows(f, e)) return -1;
    if (!prefix.can_be_cut && n < prefix.end)
        return refuse(f,
                      "it has rows of tokens whose ids it does not have, and cannot be cut before "
                      "them",
                      e);
    /* the last token may have no row yet */
    if (prefix.can_be_cut && prefix.end < n) n = prefix.end;
    *chunks = prefix.can_be_cut ? (size_t)(n / ns->chunk) : 0;
    *whole = prefix.can_be_cut ? 0 : n;
    return 0;
}

static int check_file(struct put_job *job, struct kvc_error *e) {
    struct kvc_tensor_info tensor = {.size = sizeof tensor};
    uint64_t n;
    job->tokens = kvc_file_tokens(job->file, &n);
    if (check_cache(job->asked, job->file, &job->n, &job->whole, e)) return -1;
    n = tokens_of(job);
    if (kvc_namespace_keys_of(job->asked, job->file, n, &job->keys, e)) return -1;
    for (uint32_t t = 0; !kvc_file_tensor(job->file, t, &tensor); t++)
        job->bytes += tensor.rows * tensor.row_bytes;
    return 0;
}

/* Reports progress to the caller, if there is any. The lock is held, but not during the caller's
 * function. Returns 1 if it was called. */
static int report(struct put_job *job, uint64_t *reported) {
    const uint64_t total = job->total;
    if (!job->options.progress || job->cancelled || job->packed == *reported) return 0;
    *reported = job->packed;
    pthread_mutex_unlock(&job->lock);
    const int cancelled = job->options.progress(job->options.progress_state, *reported, total) != 0;
    pthread_mutex_lock(&job->lock);
    job->cancelled = cancelled;
    return 1;
}

static int wait_for(struct put_job *job, struct kvc_error *e) {
    uint64_t reported = 0;
    pthread_mutex_lock(&job->lock);
    for (;;) {
        if (report(job, &reported)) continue; /* the job went on meanwhile */
        if (job->done) break;
        pthread_cond_wait(&job->changed, &job->lock);
    }
    pthread_mutex_unlock(&job->lock);
    const int status = job->status;
    if (e) *e = job->error;
    free_job(job);
    return status;
}

int kvc_store_put(struct kvc_store_namespace *ns, const struct kvc_file *f,
                  const struct kvc_store_put_options *options, struct kvc_error *e) {
    if (KVC_NULL(e, ns, f)) return -1;
    struct kvc_store_put_options o;
    if (take_options(&o, options, e)) return -1;
    struct put_job *job = calloc(1, sizeof *job);
    if (!job) return kvc_fail_memory(e, "what is put");
    *job = (struct put_job){
        .task.run = put_run, .asked = ns, .file = f, .options = o, .waits = o.wait || !o.done};
    job->error.code = KVC_OK;
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->changed, NULL);
    kvc_namespace_hold(ns);
    int status = take_extras(job, e);
    if (!status) status = check_file(job, e);
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

int kvc_store_put_check(struct kvc_store_namespace *ns, const struct kvc_file *f, int try_recipe,
                        uint64_t *tokens, struct kvc_error *e) {
    if (KVC_NULL(e, ns, f, tokens)) return -1;
    struct kvc_chunk chunk = {.ns = ns};
    size_t chunks, size;
    void *data = NULL;
    if (check_cache(ns, f, &chunks, &chunk.whole, e)) return -1;
    *tokens = chunk.whole ? chunk.whole : chunks * ns->chunk;
    const int status = try_recipe && *tokens ? pack(&chunk, f, 0, NULL, &data, &size, e) : 0;
    free(data);
    return status;
}
