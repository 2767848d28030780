/* load.c: reads what was found from its tiers, several chunks at a time, proves them, and delivers
 * them in order: as a cache, as bytes, or decoded into a program's memory. Spec: STORE.md,
 * "Reading". Not for caches that are one object (whole.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"

#include <stdlib.h>
#include <string.h>

/* --- reading a range of chunks --- */

#define AHEAD (UINT64_C(128) << 20) /* bytes that are read before they are used */
#define PART 32                     /* chunks of a remote call, at most */

/* Uses a chunk, and owns its file and bytes then, of which `size` are without the signature. 1: no
 * more is wanted. */
typedef int use_chunk(void *state, size_t i, struct kvc_file *f, struct kvc_bytes *bytes,
                      size_t size, struct kvc_error *e);

/* A request for a range of chunks. */
struct fetch {
    struct kvc_store_hit *hit;
    const struct kvc_store_load_options *options;
    int hashes;
    use_chunk *use;
    void *state;
    kvc_instant began, deadline;
    size_t first, end, asked;      /* chunks; those before `asked` are asked for */
    size_t used;                   /* from the first one on */
    int stopped;                   /* by the caller: the others are not wanted */
    uint64_t bytes;                /* of chunks that were used, without signatures */
    uint64_t done, total;          /* stored bytes, of progress; total 0: unknown */
    unsigned calls;                /* under way */
    uint64_t ahead;                /* bytes that are asked for and not used */
    struct kvc_call *call, **last; /* each of consecutive chunks of one tier */
};

/* Finds the chunks of the range of positions that the options name. */
static int take_range(struct fetch *f, struct kvc_error *e) {
    const struct kvc_store_load_options *o = f->options;
    const struct kvc_store_hit *hit = f->hit;
    const uint64_t chunk = hit->ns->chunk, tokens = hit->chunks * chunk;
    const uint64_t end = o->end && o->end < tokens ? o->end : tokens;
    if (o->end && o->first >= o->end)
        return kvc_fail(e, KVC_ERR_USAGE, "the range of positions is empty");
    f->began = kvc_now();
    f->deadline = kvc_load_until(hit->ns->store, o->timeout_us);
    f->first = (size_t)(o->first / chunk);
    f->end = (size_t)((end + chunk - 1) / chunk);
    if (f->first > f->end) f->first = f->end;
    f->asked = f->first;
    return 0;
}

/* Asks for more, until each thread that reads has a call, and the chunks of one are used: what
 * arrived long before it is used has left the CPU's caches by then. */
static void ask_more(struct fetch *f) {
    const struct kvc_store_hit *hit = f->hit;
    const unsigned threads = hit->ns->store->options.threads;
    while (f->asked < f->end && (!f->call || (f->calls <= threads && f->ahead < AHEAD))) {
        const unsigned tier = hit->tier[f->asked];
        const size_t most = hit->ns->store->tier[tier].ops->remote ? PART : 1;
        uint64_t bytes = 0;
        size_t n = 0;
        while (n < most && f->asked + n < f->end && hit->tier[f->asked + n] == tier &&
               (!n || bytes < AHEAD / 4))
            bytes += hit->bytes[f->asked + n++];
        struct kvc_call *c = kvc_call_ask(hit->ns->store, tier, KVC_OP_GET, &hit->object[f->asked],
                                          n, f->deadline);
        f->asked = c ? f->asked + n : f->end;
        if (!c) return;
        c->value = (int64_t)bytes;
        f->calls++;
        f->ahead += bytes;
        *f->last = c;
        f->last = &c->next;
    }
}

/* Hands a chunk over, and reports progress to the caller. */
static int use_and_report(struct fetch *f, size_t i, struct kvc_file *file, struct kvc_bytes *bytes,
                          size_t size, struct kvc_error *e) {
    const struct kvc_store_load_options *o = f->options;
    const int status = f->use(f->state, i, file, bytes, size, e);
    f->bytes += size;
    f->done += f->hit->bytes[i];
    if (status || !o->progress || !o->progress(o->progress_state, f->done, f->total)) return status;
    kvc_fail(e, KVC_ERR_IO, "cancelled by the caller");
    return 1;
}

/* Proves a chunk that has arrived, and hands it over. */
static int use_one(struct fetch *f, size_t i, struct kvc_got *got, struct kvc_error *e) {
    struct kvc_store_hit *hit = f->hit;
    struct kvc_store *s = hit->ns->store;
    const struct kvc_chunk chunk = {.ns = hit->ns,
                                    .i = i,
                                    .tokens = hit->tokens,
                                    .keys = hit->keys};
    if (!got->bytes && got->why.code == KVC_OK) {
        kvc_count(s, KVC_COUNT_GONE, 1);
        return -1;
    }
    struct kvc_error why = got->why;
    if (got->bytes) {
        struct kvc_bytes *bytes = got->bytes;
        size_t size = hit->bytes[i] = bytes->size;
        got->bytes = NULL;
        struct kvc_file *file = kvc_chunk_open(&chunk, bytes->data, &size, f->hashes, &why);
        if (file) return use_and_report(f, i, file, bytes, size, e);
        kvc_bytes_release(bytes);
    }
    kvc_store_mark_bad(s, hit->tier[i], &hit->object[i], &why);
    if (e) *e = why;
    return -1;
}

/* Ends the first call, whether it is done or not. */
static void end_first(struct fetch *f) {
    struct kvc_call *c = f->call;
    if (!(f->call = c->next)) f->last = &f->call;
    f->calls--;
    f->ahead -= (uint64_t)c->value;
    pthread_mutex_lock(&c->lock);
    c->stop = 1;
    pthread_mutex_unlock(&c->lock);
    kvc_call_release(c);
}

/* Returns 1 if the chunks that were read came from a tier, or were copied to it. Directories learn
 * of all that is read. */
static int was_used(const struct fetch *f, unsigned tier) {
    int any = !f->hit->ns->store->tier[tier].ops->remote;
    for (size_t i = f->first; i < f->first + f->used && !any; i++) any = f->hit->tier[i] >= tier;
    return any;
}

/* Counts what was loaded, and tells the tiers. */
static void finish(const struct fetch *f) {
    struct kvc_store_hit *hit = f->hit;
    struct kvc_store *s = hit->ns->store;
    const uint64_t chunk = hit->ns->chunk;
    const size_t end = f->first + f->used, lacks = f->stopped ? 0 : f->end - end;
    kvc_count(s, KVC_COUNT_LOADED, f->used * chunk);
    kvc_count(s, KVC_COUNT_LOADED_BYTES, f->bytes);
    kvc_count(s, KVC_COUNT_LOAD_US, (uint64_t)(kvc_now() - f->began));
    kvc_count(s, KVC_COUNT_SHORT, lacks * chunk);
    for (unsigned i = 0; i < s->n_tiers; i++) {
        if (!f->used || !was_used(f, i)) continue;
        kvc_store_notify(s, i, KVC_OP_TOUCH, hit->object, end, 0);
        if (s->tier[i].ops->last_first) kvc_namespace_touch(hit->ns, i);
    }
    if (!lacks) return;
    hit->chunks = end;
    kvc_hit_list_tiers(hit);
}

/* Reads the chunks one after the other, proves them, and gives each to f->use. *e is filled if a
 * chunk was bad or a tier failed. */
static void fetch_chunks(struct fetch *f, struct kvc_error *e) {
    int status = 0, known = 1;
    for (size_t i = f->first; i < f->end; i++) {
        f->total += f->hit->bytes[i];
        known &= f->hit->bytes[i] != 0;
    }
    if (!known) f->total = 0;
    f->last = &f->call;
    for (ask_more(f); f->call && !status; ask_more(f)) {
        struct kvc_call *c = f->call;
        for (size_t i = 0; i < c->n && !status; i++) {
            if (kvc_call_arrives(c, i)) {
                status = use_one(f, f->first + f->used, &c->got[i], e);
                f->used += !status;
            } else { /* it failed, or it is late, which this counts */
                kvc_call_wait(c, e);
                status = -1;
            }
        }
        end_first(f);
        if (status) break;
    }
    while (f->call) end_first(f);
    f->stopped = status > 0;
    finish(f);
}

/* Copies a chunk that came from a slower tier to the faster ones. */
static void keep(struct kvc_store_hit *hit, size_t i, struct kvc_bytes *bytes) {
    const struct kvc_object *o = &hit->object[i];
    if (!hit->tier[i]) return;
    kvc_namespace_copy_facts(hit->ns, hit->tier[i]);
    kvc_store_backfill(hit->ns->store, hit->tier[i], o, i ? o - 1 : NULL, bytes);
}

/* --- bytes --- */

struct giving {
    struct kvc_store_hit *hit;
    kvc_store_chunk_fn *take;
    void *state;
};

static int give(void *state, size_t i, struct kvc_file *f, struct kvc_bytes *bytes, size_t size,
                struct kvc_error *e) {
    const struct giving *g = state;
    const uint64_t chunk = g->hit->ns->chunk;
    (void)e;
    const int stop = g->take(g->state, i * chunk, chunk, bytes->data, size) != 0;
    kvc_file_close(f);
    keep(g->hit, i, bytes);
    kvc_bytes_release(bytes);
    return stop;
}

int64_t kvc_store_chunks(struct kvc_store_hit *hit, const struct kvc_store_load_options *options,
                         kvc_store_chunk_fn *take, void *state, struct kvc_error *e) {
    if (KVC_NULL(e, hit)) return -1;
    if (!take) return kvc_null_function(e, __func__, "take");
    struct kvc_store_load_options o;
    struct giving g = {.hit = hit, .take = take, .state = state};
    struct fetch f = {.hit = hit, .options = &o, .hashes = 1, .use = give, .state = &g};
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", e) || take_range(&f, e))
        return -1;
    fetch_chunks(&f, e);
    return (int64_t)(f.used * hit->ns->chunk);
}

/* --- a cache --- */

/* The chunks of a cache, which live as long as the joined file. */
struct pieces {
    struct kvc_store_hit *hit;
    struct kvc_file **file;
    struct kvc_bytes **bytes;
    size_t n;
};

static int load_collect(void *state, size_t i, struct kvc_file *f, struct kvc_bytes *bytes,
                        size_t size, struct kvc_error *e) {
    struct pieces *p = state;
    (void)size, (void)e;
    keep(p->hit, i, bytes);
    p->file[p->n] = f;
    p->bytes[p->n++] = bytes;
    return 0;
}

static void free_pieces(void *state) {
    struct pieces *p = state;
    for (size_t i = 0; i < p->n; i++) {
        kvc_file_close(p->file[i]);
        kvc_bytes_release(p->bytes[i]);
    }
    free(p->file);
    free(p->bytes);
    free(p);
}

struct kvc_file *kvc_store_get(struct kvc_store_hit *hit,
                               const struct kvc_store_load_options *options, struct kvc_error *e) {
    if (KVC_NULL(e, hit)) return NULL;
    /* the pieces have no names for messages */
    static const struct kvc_join_options join = {.size = sizeof join, .name = "the prefix"};
    struct kvc_store_load_options o;
    struct fetch all = {.hit = hit, .options = &o, .hashes = 1, .use = load_collect};
    struct kvc_file *f = NULL;
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", e) || take_range(&all, e))
        return NULL;
    struct pieces *p = calloc(1, sizeof *p);
    if (p) {
        p->hit = hit;
        p->file = calloc(all.end - all.first + 1, sizeof *p->file);
        p->bytes = calloc(all.end - all.first + 1, sizeof *p->bytes);
    }
    if (!p || !p->file || !p->bytes) {
        if (p) free_pieces(p);
        kvc_fail_memory(e, "chunks");
        return NULL;
    }
    all.state = p;
    fetch_chunks(&all, e);
    if (p->n && !all.stopped)
        f = kvc_file_join_by((const struct kvc_file *const *)p->file, p->n, &join, e);
    if (f) kvc_file_own(f, p, free_pieces);
    else free_pieces(p);
    return f;
}

/* --- memory --- */

struct loading {
    struct kvc_store_hit *hit;
    struct kvc_memory m; /* with arrays of this library's size */
    struct kvc_store_load_options o;
    struct kvc_memory_array *array; /* moved to the chunk */
};

/* Decodes the positions that a chunk and the memory share. */
static int load_decode(struct loading *l, size_t i, const struct kvc_file *f, struct kvc_error *e) {
    const uint64_t chunk = l->hit->ns->chunk, begins = i * chunk;
    const uint64_t first = (uint64_t)l->m.first_position, end = first + l->m.tokens;
    const uint64_t from = begins > first ? begins : first,
                   to = begins + chunk < end ? begins + chunk : end;
    struct kvc_memory m = l->m;
    const struct kvc_load_how how = {.size = sizeof how,
                                     .threads = l->o.threads,
                                     .convert = l->o.convert,
                                     .pairing = l->o.pairing};
    if (from >= to) return 0;
    m.first_position = (int64_t)from;
    m.tokens = to - from;
    if (m.page_size) {
        m.first_slot += from - first;
        return kvc_file_load(f, &m, &how, e);
    }
    for (size_t k = 0; k < m.n_arrays; k++) {
        l->array[k] = m.arrays[k];
        l->array[k].data = (uint8_t *)m.arrays[k].data +
                           (from - first) * (uint64_t)m.arrays[k].token;
    }
    m.arrays = l->array;
    return kvc_file_load(f, &m, &how, e);
}

static int load_one(void *state, size_t i, struct kvc_file *f, struct kvc_bytes *bytes, size_t size,
                    struct kvc_error *e) {
    struct loading *l = state;
    struct kvc_error why;
    const int status = load_decode(l, i, f, &why);
    (void)size;
    kvc_file_close(f);
    if (!status) keep(l->hit, i, bytes);
    kvc_bytes_release(bytes);
    if (!status) return 0;
    if (why.code == KVC_ERR_DAMAGED)
        kvc_store_mark_bad(l->hit->ns->store, l->hit->tier[i], &l->hit->object[i], &why);
    if (e) *e = why;
    return -1;
}

/* Takes the caller's memory. The caller of this function frees *own. */
static int take_memory(struct loading *l, const struct kvc_memory *callers,
                       struct kvc_memory_array **own, struct kvc_error *e) {
    struct kvc_memory *m = &l->m;
    if (kvc_sized_take(m, sizeof *m, callers, "kvc_memory", e)) return -1;
    if (m->n_arrays && (!m->arrays || !m->array_size))
        return kvc_fail(e, KVC_ERR_USAGE, "kvc_memory: arrays or array_size is not set");
    if (!(*own = calloc(m->n_arrays + 1, 2 * sizeof **own))) return kvc_fail_memory(e, "arrays");
    for (size_t k = 0; k < m->n_arrays; k++)
        if (kvc_sized_take_at(*own + k, sizeof **own, m->arrays, m->array_size, k,
                              "kvc_memory_array", e))
            return -1;
    for (size_t k = 0; k < m->n_arrays; k++) /* all of them, as where nothing is told */
        if ((*own)[k].tokens == m->tokens) (*own)[k].tokens = 0;
    m->arrays = *own;
    m->array_size = sizeof **own;
    l->array = *own + m->n_arrays;
    return 0;
}

static int check_memory(const struct kvc_memory *m, const struct kvc_store_hit *hit,
                        struct kvc_error *e) {
    if (m->first_position < 0 || (uint64_t)m->first_position > hit->asked)
        return kvc_fail(e, KVC_ERR_USAGE, "memory begins behind what was looked for");
    for (size_t k = 0; k < m->n_arrays; k++)
        if (m->arrays[k].tokens)
            return kvc_fail(
                e, KVC_ERR_NOT_SLICEABLE,
                "chunks hold all layers in full: an array of the last tokens cannot be loaded");
    /* what is loaded chunk by chunk may have one page each time */
    for (size_t k = 0; m->page_size && k < m->n_arrays; k++)
        if (!m->arrays[k].page && m->tokens > m->page_size - m->first_slot % m->page_size)
            return kvc_fail(e, KVC_ERR_USAGE, "array %zu has several pages of stride 0", k);
    return 0;
}

/* Loads the positions of the memory. Returns where they end, or -1. */
static int64_t load_range(struct loading *l, const struct kvc_store_load_options *options,
                          struct kvc_error *e) {
    struct kvc_store_load_options *o = &l->o;
    struct fetch f = {.hit = l->hit, .options = o, .use = load_one, .state = l};
    struct kvc_error why = {.code = KVC_OK};
    const uint64_t first = l->m.first_position > 0 ? (uint64_t)l->m.first_position : 0;
    if (kvc_sized_take(o, sizeof *o, options, "kvc_store_load_options", e)) return -1;
    if (check_memory(&l->m, l->hit, e)) return -1;
    o->first = first;
    o->end = first + l->m.tokens;
    if (!l->m.tokens) return (int64_t)first;
    if (take_range(&f, e)) return -1;
    fetch_chunks(&f, &why);
    if (e) *e = why;
    /* memory of another type or shape than the cache's: no chunk will fit */
    if (!f.used && (why.code == KVC_ERR_USAGE || why.code == KVC_ERR_NOT_SLICEABLE)) return -1;
    const uint64_t end = (f.first + f.used) * l->hit->ns->chunk;
    if (!f.used || end < first) return (int64_t)first;
    return (int64_t)(end < o->end ? end : o->end);
}

int64_t kvc_store_load(struct kvc_store_hit *hit, const struct kvc_memory *m,
                       const struct kvc_store_load_options *options, struct kvc_error *e) {
    if (KVC_NULL(e, hit, m)) return -1;
    struct loading l = {.hit = hit};
    struct kvc_memory_array *own = NULL;
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    const int64_t end = take_memory(&l, m, &own, e) ? -1 : load_range(&l, options, e);
    free(own);
    return end;
}
