/* join_check.c: compares the operands of a join, and merges their metadata. */
#include "formats/cache/join_check.h"

#include "formats/cache/keys.h"
#include "formats/cache/scales.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- metadata --- */

/* How the keys begin that describe a file, or how it was read or packed. */
static const char *const of_a_file[] = {KVC_KEY_PRODUCER,
                                        "source.",
                                        "profile.",
                                        KVC_KEY_RECIPE,
                                        KVC_KEY_ROPE_ASSUMED,
                                        KVC_KEY_PAGE_SIZE,
                                        KVC_KEY_HEADS_KNOWN,
                                        KVC_KEY_LAYERS_KNOWN,
                                        "prefix.",
                                        KVC_KEY_LLAMA_TOKEN_FORM,
                                        KVC_KEY_SHARD_SET,
                                        "values."};

static int is_of_a_file(const char *key) {
    for (size_t i = 0; i < sizeof of_a_file / sizeof of_a_file[0]; i++)
        if (strncmp(key, of_a_file[i], strlen(of_a_file[i])) == 0) return 1;
    return 0;
}

static int equal(const struct kvc_meta_entry *a, const struct kvc_meta_entry *b) {
    return a && b && a->type == b->type && a->size == b->size &&
           memcmp(a->value, b->value, (size_t)a->size) == 0;
}

static int in_all(const struct kvc_meta_entry *x, const struct kvc_join_operand *from, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!equal(x, kvc_meta_find(&from[i].cache->meta, x->key))) return 0;
    return 1;
}

static int join_check_refuse(const struct kvc_meta_entry *x, const char *of_x,
                             const struct kvc_meta_entry *y, const char *of_y,
                             struct kvc_error *e) {
    char text[2][96];
    kvc_meta_print(x, text[0], sizeof text[0]);
    kvc_meta_print(y, text[1], sizeof text[1]);
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s and %s cannot be joined: %s is %s in the first and %s in the second", of_x,
                    of_y, x->key, text[0], text[1]);
}

/* Refuses operands of values of 8 bits where one tells scales and another does not: theirs may be
 * others. */
static int check_scales(const struct kvc_meta_entry *x, const struct kvc_join_operand *from,
                        size_t n, size_t of, struct kvc_error *e) {
    if (strncmp(x->key, "scale.", 6) != 0) return 0;
    for (size_t i = 0; i < n; i++)
        if (kvc_cache_is_scaled(from[i].cache) && !kvc_meta_find(&from[i].cache->meta, x->key))
            return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_SCALES,
                                 "%s and %s cannot be joined: only the first tells %s",
                                 from[of].name, from[i].name, x->key);
    return 0;
}

/* Adds the facts of operand `of`, the first that has them. */
static int join_check_take(struct kvc_meta *to, const struct kvc_join_operand *from, size_t n,
                           size_t of, const char *own, struct kvc_error *e) {
    const struct kvc_meta *meta = &from[of].cache->meta;
    for (size_t i = 0; i < meta->n; i++) {
        const struct kvc_meta_entry *x = &meta->entry[i];
        if (kvc_meta_find(to, x->key) || strncmp(x->key, own, strlen(own)) == 0) continue;
        if (is_of_a_file(x->key) && !in_all(x, from, n)) continue;
        if (check_scales(x, from, n, of, e)) return -1;
        for (size_t k = of + 1; k < n; k++) {
            const struct kvc_meta_entry *y = kvc_meta_find(&from[k].cache->meta, x->key);
            if (y && !equal(x, y)) return join_check_refuse(x, from[of].name, y, from[k].name, e);
        }
        if (kvc_meta_set_entry(to, x, e)) return -1;
    }
    return 0;
}

int kvc_join_meta(struct kvc_meta *to, const struct kvc_join_operand *from, size_t n,
                  const char *own, struct kvc_error *e) {
    uint64_t bytes = 0, known = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t size = kvc_meta_u64(&from[i].cache->meta, KVC_KEY_SOURCE_BYTES, 0);
        if (join_check_take(to, from, n, i, own, e)) return -1;
        known += size && !__builtin_add_overflow(bytes, size, &bytes);
    }
    kvc_meta_remove(to, KVC_KEY_SOURCE_BYTES);
    return known == n ? kvc_meta_set_u64(to, KVC_KEY_SOURCE_BYTES, bytes, e) : 0;
}

/* --- parts and layers --- */

/* Returns the role of the first tensor of a part; K if it has none. */
static enum kvc_role role_of(const struct kvc_cache *c, uint32_t part) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_tensor_layer(c, t)->part == part) return c->tensor[t].role;
    return KVC_ROLE_K;
}

uint32_t kvc_join_find_part(const struct kvc_cache *c, enum kvc_part_kind kind,
                            enum kvc_role role) {
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == kind && (kind != KVC_PART_COMPANION || role_of(c, i) == role))
            return i;
    return KVC_NONE;
}

int kvc_join_check_operand(const struct kvc_join_operand *x, struct kvc_error *e) {
    unsigned live = 0;
    for (uint32_t i = 0; i < x->cache->n_parts; i++) {
        const struct kvc_part *part = &x->cache->part[i];
        if (part->kind == KVC_PART_STATE)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "recurrent states of %s cannot be joined or divided", x->name);
        if (part->kind == KVC_PART_SNAPSHOT)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "snapshots of %s cannot be joined or divided",
                            x->name);
        live += part->kind == KVC_PART_LIVE;
    }
    if (live == 1) return 0;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "%s has %u streams: only a cache of one stream can be joined or divided",
                    x->name, live);
}

int kvc_join_check_alone(const struct kvc_join_operand *x, struct kvc_error *e) {
    const struct kvc_cache *c = x->cache;
    char label[64];
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind != KVC_PART_COMPANION &&
            kvc_join_find_part(c, c->part[i].kind, KVC_ROLE_K) != i)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "%s has several parts of %s layers: it cannot be joined", x->name,
                            kvc_part_kind_name(c->part[i].kind));
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_layer *layer = kvc_tensor_layer(c, t);
        const uint32_t first = kvc_cache_find_tensor(c, layer->part, layer->index,
                                                     c->tensor[t].role);
        if (c->part[layer->part].kind == KVC_PART_COMPANION || first == t || first == KVC_NONE)
            continue;
        kvc_tensor_label(c, t, label, sizeof label);
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s has %s twice: it cannot be joined", x->name,
                        label);
    }
    return 0;
}

int kvc_join_check_part(const struct kvc_join_operand *a, uint32_t part,
                        const struct kvc_join_operand *b, struct kvc_error *e) {
    const enum kvc_part_kind kind = a->cache->part[part].kind;
    if (kvc_join_find_part(b->cache, kind, KVC_ROLE_K) != KVC_NONE) return 0;
    return kvc_fail(
        e, KVC_ERR_USAGE,
        "%s and %s cannot be joined: only the first has %s layers in a cache of their own", a->name,
        b->name, kvc_part_kind_name(kind));
}

static uint32_t count_tensors(const struct kvc_cache *c, uint32_t part) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) n += kvc_tensor_layer(c, t)->part == part;
    return n;
}

/* Writes "f16 [2 heads x 64]". */
static void shape_text(const struct kvc_shape *s, char *text, size_t size) {
    snprintf(text, size, "%s [%" PRIu64 " %s x %" PRIu64 "]", kvc_dtype_info(s->dtype)->name,
             s->heads, s->heads == 1 ? "head" : "heads", s->dim);
}

int kvc_join_check_layers(const struct kvc_join_operand *a, uint32_t part_a,
                          const struct kvc_join_operand *b, uint32_t part_b, int other_heads,
                          struct kvc_error *e) {
    const uint32_t n[2] = {count_tensors(a->cache, part_a), count_tensors(b->cache, part_b)};
    for (uint32_t t = 0; t < a->cache->n_tensors; t++) {
        const struct kvc_tensor *x = &a->cache->tensor[t];
        const struct kvc_layer *layer = &a->cache->layer[x->layer];
        char label[64], text[2][64];
        if (layer->part != part_a) continue;
        const uint32_t u = kvc_cache_find_tensor(b->cache, part_b, layer->index, x->role);
        kvc_tensor_label(a->cache, t, label, sizeof label);
        if (u == KVC_NONE)
            return kvc_fail(e, KVC_ERR_USAGE, "%s and %s cannot be joined: the second has no %s",
                            a->name, b->name, label);
        const struct kvc_shape *s = &x->shape, *r = &b->cache->tensor[u].shape;
        if (s->dtype == r->dtype && s->dim == r->dim && (other_heads || s->heads == r->heads))
            continue;
        shape_text(s, text[0], sizeof text[0]);
        shape_text(r, text[1], sizeof text[1]);
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s and %s cannot be joined: %s is %s in the first and %s in the second",
                        a->name, b->name, label, text[0], text[1]);
    }
    if (n[0] == n[1]) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s and %s cannot be joined: the first has %" PRIu32
                    " tensors and the second %" PRIu32,
                    a->name, b->name, n[0], n[1]);
}
