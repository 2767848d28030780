/* diff_facts.c: token ids, metadata and private bytes that differ. Not for parts and tensors
 * (diff_geometry.c). */
#include "cli/diff/diff.h"
#include "formats/cache/keys.h"
#include "formats/compare/meta_differ.h"

#include <inttypes.h>
#include <string.h>

/* Prints the first of several differences of one kind. */
static void fact_first(struct diff_comparison *d, const char *unit, uint64_t at, uint64_t differ,
                       const char *what, const char *a, const char *b) {
    char where[48], note[64];
    snprintf(where, sizeof where, "%s %" PRIu64, unit, at);
    snprintf(note, sizeof note, "first of %" PRIu64 " that differ", differ);
    diff_fact(d, where, what, a, b, note);
}

/* --- token ids --- */

/* Token ids of positions first to end - 1. */
struct ids {
    const int32_t *id; /* NULL: unknown */
    uint64_t first, end;
};

/* Returns the ids of a cache at the selected positions. */
static struct ids selected_ids(const struct diff_comparison *d, const struct kvc_cache *c) {
    uint64_t base = kvc_meta_u64(&c->meta, KVC_KEY_TOKENS_FIRST, 0);
    if (base > INT64_MAX) base = INT64_MAX; /* no position is higher */
    uint64_t from = d->pairs.first < 0 ? 0 : (uint64_t)d->pairs.first,
             to = (uint64_t)d->pairs.last + 1;
    uint64_t end = base + c->n_tokens;
    struct ids ids = {NULL, from > base ? from : base, end < to ? end : to};
    if (ids.end < ids.first) ids.end = ids.first;
    uint64_t skip = ids.first - base;
    if (c->tokens) ids.id = c->tokens + (skip < c->n_tokens ? skip : c->n_tokens);
    return ids;
}

static void compare_tokens(struct diff_comparison *d) {
    struct ids a = selected_ids(d, d->cache[0]), b = selected_ids(d, d->cache[1]);
    if (!a.id || !b.id) {
        if (d->all && (a.id || b.id))
            diff_fact_presence(d, "", "tokens", a.id != NULL, b.id != NULL);
        return;
    }
    uint64_t from = a.first > b.first ? a.first : b.first, to = a.end < b.end ? a.end : b.end;
    uint64_t differ = 0, at = 0;
    for (uint64_t i = from; i < to; i++)
        if (a.id[i - a.first] != b.id[i - b.first] && !differ++) at = i;
    if (differ) {
        char text[2][16];
        snprintf(text[0], sizeof text[0], "%" PRId32, a.id[at - a.first]);
        snprintf(text[1], sizeof text[1], "%" PRId32, b.id[at - b.first]);
        fact_first(d, "token", at, differ, "id", text[0], text[1]);
    }
    if (a.first != b.first) diff_fact_u64(d, "", "first token", a.first, b.first);
    uint64_t n[2] = {a.end - a.first, b.end - b.first};
    if (n[0] != n[1]) diff_fact_u64(d, "", "number of tokens", n[0], n[1]);
}

/* --- metadata --- */

static void meta_differs(void *state, const struct kvc_meta_entry *a,
                         const struct kvc_meta_entry *b) {
    char text[2][600];
    if (a) kvc_meta_print(a, text[0], sizeof text[0]);
    if (b) kvc_meta_print(b, text[1], sizeof text[1]);
    diff_fact(state, "", a ? a->key : b->key, a ? text[0] : NULL, b ? text[1] : NULL, NULL);
}

/* --- private bytes --- */

static int read_private(const struct diff_comparison *d, int side, uint64_t offset, uint64_t n,
                        uint8_t *to, struct kvc_error *e) {
    const struct kvc_cache *c = d->cache[side];
    return c->read_literal(c, offset, n, to, e) ? kvc_error_prefix(e, d->compare.name[side]) : 0;
}

static int compare_private(struct diff_comparison *d, struct kvc_error *e) {
    const struct kvc_cache *a = d->cache[0], *b = d->cache[1];
    uint64_t size = a->literal_size, differ = 0, at = 0;
    uint8_t x[4096], y[4096], byte[2] = {0, 0};
    if (!a->n_extents || !b->n_extents) {
        if (a->n_extents || b->n_extents)
            diff_fact_presence(d, "", "private bytes", a->n_extents > 0, b->n_extents > 0);
        return 0;
    }
    if (size != b->literal_size) {
        diff_fact_u64(d, "", "private bytes", size, b->literal_size);
        return 0;
    }
    for (uint64_t done = 0, n; done < size; done += n) {
        n = size - done < sizeof x ? size - done : sizeof x;
        if (read_private(d, 0, done, n, x, e) || read_private(d, 1, done, n, y, e)) return -1;
        for (uint64_t i = 0; i < n; i++) {
            if (x[i] == y[i] || differ++) continue;
            at = done + i;
            byte[0] = x[i];
            byte[1] = y[i];
        }
    }
    if (differ) {
        char text[2][8];
        for (int s = 0; s < 2; s++) snprintf(text[s], sizeof text[s], "0x%02x", byte[s]);
        fact_first(d, "private byte", at, differ, "value", text[0], text[1]);
    }
    return 0;
}

int diff_facts(struct diff_comparison *d, struct kvc_error *e) {
    compare_tokens(d);
    /* With a tolerance, storage such as the dtype is no difference. */
    kvc_meta_differ(d->cache,
                    d->all             ? KVC_META_EVERY_ENTRY
                    : d->compare.exact ? KVC_META_EXACT
                                       : KVC_META_MEANING,
                    meta_differs, d);
    return d->all ? compare_private(d, e) : 0;
}
