/* import.c: what importers share. Not for the bytes of any format. */
#include "formats/engines/import.h"

#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/io/bytes.h"
#include "formats/io/member_name.h"

#include <stdio.h>
#include <string.h>

/* --- members --- */

int kvc_member_is_beside(const char *name) {
    const char *last = kvc_base_name(name);
    return strncmp(last, "._", 2) == 0 || strcmp(last, ".DS_Store") == 0;
}

int kvc_member_is_read(const struct kvc_bundle *b, size_t i, const char *const *suffixes) {
    if (b->is_file) return 1;
    if (kvc_member_is_beside(b->member[i].name)) return 0;
    for (; *suffixes; suffixes++)
        if (kvc_name_ends_in(b->member[i].name, *suffixes)) return 1;
    return 0;
}

const char *kvc_member_path(const struct kvc_bundle *b, size_t i) {
    return b->is_file ? b->one.in->path : b->member[i].name;
}

int kvc_member_failed(const struct kvc_bundle *b, size_t i, struct kvc_error *e) {
    return b->is_file ? -1 : kvc_error_prefix(e, b->member[i].name);
}

int kvc_members_probe(const struct kvc_bundle *b, const char *const *suffixes, const char *none,
                      int (*probe)(const struct kvc_bundle *b, size_t i, const struct kvc_input *in,
                                   char *why, size_t size),
                      char *why, size_t size) {
    int found = 0;
    snprintf(why, size, "%s", none);
    for (size_t i = 0; i < b->n && found <= 0; i++) {
        if (!kvc_member_is_read(b, i, suffixes)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, NULL);
        if (in) found = probe(b, i, in, why, size);
        else snprintf(why, size, "a file cannot be opened");
    }
    return found;
}

const struct kvc_input *kvc_member_begin(struct kvc_cache *c, const struct kvc_bundle *b, size_t i,
                                         struct kvc_error *e) {
    const struct kvc_input *in = kvc_bundle_open(b, i, e);
    return in && !b->is_file && kvc_extents_member(c, b->member[i].name, e) ? NULL : in;
}

int kvc_member_literal(struct kvc_cache *c, const struct kvc_bundle *b, size_t i,
                       struct kvc_error *e) {
    const struct kvc_input *in = kvc_member_begin(c, b, i, e);
    return in ? kvc_cache_extent_literal(c, in, 0, in->size, e) : -1;
}

int kvc_member_header(const struct kvc_input *in, uint64_t most, const char *const *words,
                      uint64_t *n) {
    uint8_t head[9];
    int found = !words;
    if (in->size < sizeof head || kvc_input_copy(in, 0, head, sizeof head, NULL)) return 0;
    *n = get_u64(head);
    if (head[8] != '{' || !*n || *n > most || *n > in->size - 8) return 0;
    if (!words || kvc_input_pin(in, 8, *n, NULL)) return found;
    for (; *words && !found; words++)
        found = memmem(in->data + 8, (size_t)*n, *words, strlen(*words)) != NULL;
    kvc_input_unpin(in, 8, *n);
    return found;
}

const struct kvc_input *kvc_member_beside(const struct kvc_bundle *b, const char *name,
                                          struct kvc_input *own) {
    if (b->is_file) return kvc_input_open(own, name, NULL) ? NULL : own;
    for (size_t i = 0; i < b->n; i++)
        if (strcmp(b->member[i].name, name) == 0) return kvc_bundle_open(b, i, NULL);
    return NULL;
}

/* --- the cache --- */

struct kvc_cache *kvc_import_begin(struct kvc_error *e) {
    struct kvc_cache *c = kvc_cache_new(e);
    return c ? kvc_import_end(c, kvc_cache_map(c, NULL, NULL, e)) : NULL;
}

struct kvc_cache *kvc_import_end(struct kvc_cache *c, int status) {
    if (!status) return c;
    kvc_cache_free(c);
    return NULL;
}

int kvc_import_cells(struct kvc_cache *c, uint64_t tokens, uint64_t first, struct kvc_error *e) {
    const uint32_t part = kvc_cache_add_part(c, KVC_PART_LIVE, tokens, e);
    if (part == KVC_NONE) return -1;
    for (uint64_t i = 0; i < tokens; i++) c->part[part].cells.pos[i] += (int64_t)first;
    return 0;
}

int kvc_import_layers(struct kvc_cache *c, uint32_t first, uint64_t n, int latent,
                      struct kvc_error *e) {
    const enum kvc_layer_kind kind = latent ? KVC_LAYER_LATENT : KVC_LAYER_FULL;
    for (uint32_t i = 0; i < n; i++)
        if (kvc_cache_add_layer(c, c->n_parts - 1, first + i, kind, e) == KVC_NONE) return -1;
    return 0;
}

/* The name that vLLM writes is the first one of a dtype. */
static const struct {
    const char *name;
    enum kvc_dtype dtype;
} dtypes[] = {{"bfloat16", KVC_BF16},   {"float16", KVC_F16},
              {"half", KVC_F16},        {"float32", KVC_F32},
              {"float", KVC_F32},       {"fp8", KVC_F8E4M3},
              {"fp8_e4m3", KVC_F8E4M3}, {"float8_e4m3fn", KVC_F8E4M3},
              {"fp8_e5m2", KVC_F8E5M2}, {"float8_e5m2", KVC_F8E5M2},
              {"uint8", KVC_U8},        {"int8", KVC_I8}};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

const struct kvc_dtype_info *kvc_import_dtype(const char *name) {
    static const char room[] = "torch.";
    if (strncmp(name, room, sizeof room - 1) == 0) name += sizeof room - 1;
    for (size_t i = 0; i < DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0) return kvc_dtype_info((unsigned)dtypes[i].dtype);
    return NULL;
}

const char *kvc_import_dtype_name(enum kvc_dtype dtype) {
    if (dtype == KVC_U8 || dtype == KVC_I8) return NULL;
    for (size_t i = 0; i < DTYPES; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return NULL;
}

int kvc_import_meta(struct kvc_cache *c, const char *format, const struct kvc_bundle *b,
                    const struct kvc_import_options *o, enum kvc_pairing pairing, int assumed,
                    struct kvc_error *e) {
    struct kvc_meta *m = &c->meta;
    if (o->pairing) {
        pairing = o->pairing;
        assumed = 0;
    }
    if (kvc_meta_set_text(m, KVC_KEY_SOURCE_FORMAT, format, e) ||
        kvc_meta_set_u64(m, KVC_KEY_SOURCE_BYTES, kvc_bundle_size(b), e) ||
        kvc_meta_set_bool(m, KVC_KEY_HEADS_KNOWN, 1, e) ||
        kvc_meta_set_bool(m, KVC_KEY_LAYERS_KNOWN, 1, e) ||
        kvc_meta_set_u64(m, KVC_KEY_HADAMARD_K, 0, e) ||
        kvc_meta_set_u64(m, KVC_KEY_HADAMARD_V, 0, e) ||
        (pairing && kvc_meta_set_pairing(m, pairing, e)))
        return -1;
    return assumed ? kvc_meta_set_bool(m, KVC_KEY_ROPE_ASSUMED, 1, e) : 0;
}

int kvc_import_meta_assumed(struct kvc_cache *c, const char *format, const struct kvc_bundle *b,
                            const struct kvc_import_options *o, int latent, struct kvc_error *e) {
    const enum kvc_pairing pairing = latent ? KVC_PAIRING_UNKNOWN : KVC_PAIRING_HALVES;
    return kvc_import_meta(c, format, b, o, pairing, !latent, e);
}
