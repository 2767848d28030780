/* load.c: reads what was found from its tiers, several chunks at a time, proves them, and delivers
 * them in order: as a cache, as bytes, or decoded into a program's memory. Spec: STORE.md,
 * "Reading". Not for caches that are one object (whole.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"

#include <stdlib.h>
#include <string.h>

/* --- reading --- */

#define AHEAD (UINT64_C(128) << 20) /* bytes that are read before they are used */
#define PART 32                     /* chunks of a remote call, at most */

/* Uses a chunk, and owns its file and bytes then, of which `size` are without the signature. */
typedef int use_chunk(void *state, size_t i, struct kvc_file *f, struct kvc_bytes *bytes,
                      size_t size, struct kvc_error *e);

struct fetch {
    struct kvc_store_hit *hit;
    kvc_instant deadline;
    int hashes;
    use_chunk *use;
    void *state;
    size_t asked, end;              /* chunks that are asked for, to be asked for */
    unsigned calls;                 /* under way */
    uint64_t ahead;                 /* bytes that are asked for and not used */
    struct kvc_call *first, **last; /* calls, each of consecutive chunks of one tier */
};

/* Asks for more, until each thread that reads has a call, and the chunks of one are used: what
 * arrived long before it is used has left the CPU's caches by then. */
static void ask_more(struct fetch *f) {
    const struct kvc_store_hit *hit = f->hit;
    const unsigned threads = hit->ns->store->options.threads;
    while (f->asked < f->end && (!f->first || (f->calls <= threads && f->ahead < AHEAD))) {
        const unsigned tier = hit->tier[f->asked];
        const size_t most = hit->ns->store->tier[tier].ops->remote ? PART : 1;
        uint64_t bytes = 0;
        size_t n = 0;
        while (n < most && f->asked + n < f->end && hit->tier[f->asked + n] == tier &&
               (!n || bytes < AHEAD / 4))
            bytes += hit->bytes[f->asked + n++];
        struct kvc_call *c = kvc_call_ask(hit->ns->store, tier, KVC_OP_GET, &hit->object[f->asked],
                                          n, f->deadline);
        if (!c) {
            f->end = f->asked;
            return;
        }
        c->value = (int64_t)bytes;
        f->asked += n;
        f->calls++;
        f->ahead += bytes;
        *f->last = c;
        f->last = &c->next;
    }
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
        if (file) return f->use(f->state, i, file, bytes, size, e);
        kvc_bytes_release(bytes);
    }
    kvc_store_mark_bad(s, hit->tier[i], &hit->object[i], &why);
    if (e) *e = why;
    return -1;
}

/* Ends the first call, whether it is done or not. */
static void end_first(struct fetch *f) {
    struct kvc_call *c = f->first;
    if (!(f->first = c->next)) f->last = &f->first;
    f->calls--;
    f->ahead -= (uint64_t)c->value;
    pthread_mutex_lock(&c->lock);
    c->stop = 1;
    pthread_mutex_unlock(&c->lock);
    kvc_call_release(c);
}

/* Reads chunks one after the other, from f->asked to f->end, proves them, and gives each to f->use.
 * Returns how many were used. *e is filled if a chunk was bad or a tier failed. */
static size_t fetch_chunks(struct fetch *f, struct kvc_error *e) {
    size_t used = 0;
    const size_t first = f->asked;
    int status = 0;
    f->last = &f->first;
    for (ask_more(f); f->first && !status; ask_more(f)) {
        struct kvc_call *c = f->first;
        for (size_t i = 0; i < c->n && !status; i++) {
            if (kvc_call_arrives(c, i)) {
                status = use_one(f, first + used, &c->got[i], e);
                used += !status;
            } else { /* it failed, or it is late, which this counts */
                kvc_call_wait(c, e);
                status = -1;
            }
        }
        end_first(f);
        if (status) break;
    }
    while (f->first) end_first(f);
    return used;
}

/* --- ranges and progress --- */

/* The chunks that a request takes. */
struct range {
    size_t first, end;
    kvc_instant deadline, began;
    int cancelled; /* by the caller: the chunks from `end` on are not asked for */
};

static int take_range(struct range *r, const struct kvc_store_hit *hit,
                      const struct kvc_store_load_options *o, struct kvc_error *e) {
    const uint64_t chunk = hit->ns->chunk, tokens = hit->chunks * chunk;
    const uint64_t end = o->end && o->end < tokens ? o->end : tokens;
    if (o->end && o->first >= o->end)
        return kvc_fail(e, KVC_ERR_USAGE, "the range of positions is empty");
    r->cancelled = 0;
    r->began = kvc_now();
    r->deadline = kvc_load_until(hit->ns->store, o->timeout_us);
    r->first = (size_t)(o->first / chunk);
    r->end = (size_t)((end + chunk - 1) / chunk);
    if (r->first > r->end) r->first = r->end;
    return 0;
}

/* A use of chunks that reports progress to the caller. */
struct reporting {
    const struct kvc_store_hit *hit;
    const struct kvc_store_load_options *options;
    use_chunk *use;
    void *state;
    uint64_t done, total; /* stored bytes; total 0: unknown */
    int cancelled;
};

static int use_and_report(void *state, size_t i, struct kvc_file *f, struct kvc_bytes *bytes,
                          size_t size, struct kvc_error *e) {
    struct reporting *t = state;
    const int status = t->use(t->state, i, f, bytes, size, e);
    t->done += t->hit->bytes[i];
    if (status || !t->options->progress ||
        !t->options->progress(t->options->progress_state, t->done, t->total))
        return status;
    t->cancelled = 1;
    return kvc_fail(e, KVC_ERR_IO, "cancelled by the caller");
}

/* Reads the chunks of a range with progress. */
static size_t fetch_range(struct kvc_store_hit *hit, struct range *r,
                          const struct kvc_store_load_options *o, int hashes, use_chunk *use,
                          void *state, struct kvc_error *e) {
    struct reporting t = {.hit = hit, .options = o, .use = use, .state = state};
    struct fetch f = {.hit = hit,
                      .deadline = r->deadline,
                      .hashes = hashes,
                      .use = use_and_report,
                      .state = &t,
                      .asked = r->first,
                      .end = r->end};
    int known = 1;
    for (size_t i = r->first; i < r->end; i++) {
        t.total += hit->bytes[i];
        known &= hit->bytes[i] != 0;
    }
    if (!known) t.total = 0;
    const size_t used = fetch_chunks(&f, e);
    if ((r->cancelled = t.cancelled)) r->end = r->first + used;
    return used;
}

/* Returns 1 if the chunks that were read came from a tier, or were copied to it. Directories learn
 * of all that is read. */
static int was_used(const struct kvc_store_hit *hit, const struct range *r, size_t used,
                    unsigned tier) {
    int any = !hit->ns->store->tier[tier].ops->remote;
    for (size_t i = r->first; i < r->first + used && !any; i++) any = hit->tier[i] >= tier;
    return any;
}

/* Counts what was loaded, and tells the tiers. */
static void finish(struct kvc_store_hit *hit, const struct range *r, size_t used, uint64_t bytes) {
    struct kvc_store *s = hit->ns->store;
    const uint64_t chunk = hit->ns->chunk;
    kvc_count(s, KVC_COUNT_LOADED, used * chunk);
    kvc_count(s, KVC_COUNT_LOADED_BYTES, bytes);
    kvc_count(s, KVC_COUNT_LOAD_US, (uint64_t)(kvc_now() - r->began));
    kvc_count(s, KVC_COUNT_SHORT, (r->end - r->first - used) * chunk);
    for (unsigned i = 0; i < s->n_tiers; i++) {
        if (!used || !was_used(hit, r, used, i)) continue;
        kvc_store_notify(s, i, KVC_OP_TOUCH, hit->object, r->first + used, 0);
        if (s->tier[i].ops->last_first) kvc_namespace_touch(hit->ns, i);
    }
    if (r->first + used < hit->chunks && used < r->end - r->first) { /* the rest is not there */
        hit->chunks = r->first + used;
        kvc_hit_list_tiers(hit);
    }
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
    uint64_t bytes;
    int stopped;
};

static int give(void *state, size_t i, struct kvc_file *f, struct kvc_bytes *bytes, size_t size,
                struct kvc_error *e) {
    struct giving *g = state;
    const uint64_t chunk = g->hit->ns->chunk;
    (void)e;
    g->stopped = g->take(g->state, i * chunk, chunk, bytes->data, size) != 0;
    g->bytes += size;
    kvc_file_close(f);
    keep(g->hit, i, bytes);
    kvc_bytes_release(bytes);
    return g->stopped;
}

int64_t kvc_store_chunks(struct kvc_store_hit *hit, const struct kvc_store_load_options *options,
                         kvc_store_chunk_fn *take, void *state, struct kvc_error *e) {
    if (KVC_NULL(e, hit)) return -1;
    if (!take) return kvc_null_function(e, __func__, "take");
    struct kvc_store_load_options o;
    struct range r;
    struct giving g = {.hit = hit, .take = take, .state = state};
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", e) ||
        take_range(&r, hit, &o, e))
        return -1;
    const size_t used = fetch_range(hit, &r, &o, 1, give, &g, e);
    if (g.stopped) r.end = r.first + used; /* the rest is not asked for */
    finish(hit, &r, used, g.bytes);
    return (int64_t)(used * hit->ns->chunk);
}

/* --- a cache --- */

/* The chunks of a cache, which live as long as the joined file. */
struct pieces {
    struct kvc_store_hit *hit;
    struct kvc_file **file;
    struct kvc_bytes **bytes;
    size_t n;
    uint64_t total; /* bytes */
};

static int load_collect(void *state, size_t i, struct kvc_file *f, struct kvc_bytes *bytes,
                        size_t size, struct kvc_error *e) {
    struct pieces *p = state;
    (void)e;
    keep(p->hit, i, bytes);
    p->file[p->n] = f;
    p->bytes[p->n++] = bytes;
    p->total += size;
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
    struct range r;
    struct kvc_file *f = NULL;
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", e) ||
        take_range(&r, hit, &o, e))
        return NULL;
    struct pieces *p = calloc(1, sizeof *p);
    if (p) {
        p->hit = hit;
        p->file = calloc(r.end - r.first + 1, sizeof *p->file);
        p->bytes = calloc(r.end - r.first + 1, sizeof *p->bytes);
    }
    if (!p || !p->file || !p->bytes) {
        if (p) free_pieces(p);
        kvc_fail_memory(e, "chunks");
        return NULL;
    }
    const size_t used = fetch_range(hit, &r, &o, 1, load_collect, p, e);
    finish(hit, &r, used, p->total);
    if (p->n && !r.cancelled)
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
    uint64_t bytes;
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
    kvc_file_close(f);
    l->bytes += size;
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
    return 0;
}

/* Loads the positions of the memory. Returns where they end, or -1. */
static int64_t load_range(struct loading *l, const struct kvc_store_load_options *options,
                          struct kvc_error *e) {
    struct kvc_store_load_options *o = &l->o;
    struct range r;
    struct kvc_error why = {.code = KVC_OK};
    const uint64_t first = l->m.first_position > 0 ? (uint64_t)l->m.first_position : 0;
    if (kvc_sized_take(o, sizeof *o, options, "kvc_store_load_options", e)) return -1;
    if (check_memory(&l->m, l->hit, e)) return -1;
    o->first = first;
    o->end = first + l->m.tokens;
    if (!l->m.tokens) return (int64_t)first;
    if (take_range(&r, l->hit, o, e)) return -1;
    const size_t used = fetch_range(l->hit, &r, o, 0, load_one, l, &why);
    if (e) *e = why;
    finish(l->hit, &r, used, l->bytes);
    /* memory of another type or shape than the cache's: no chunk will fit */
    if (!used && (why.code == KVC_ERR_USAGE || why.code == KVC_ERR_NOT_SLICEABLE)) return -1;
    const uint64_t end = (r.first + used) * l->hit->ns->chunk;
    if (!used || end < first) return (int64_t)first;
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
