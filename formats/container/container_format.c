/* container_format.c: what a caller gives to an open container, its weights and profile; and the
 * row of .kvc files in the table of formats, which opens a file, whole or damaged, with them. Not
 * for reading it (reader.c, salvage.c). */
#include "formats/container/container.h"

#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/container/offsets.h"
#include "formats/container/records.h"
#include "formats/container/salvage.h"
#include "formats/model/profile_folders.h"

#include <stdio.h>
#include <string.h>

void kvc_container_set_weights(struct kvc_cache *c, const struct kvc_weights *weights) {
    struct kvc_records *k = kvc_records_of(c);
    if (k) k->projections.weights = weights;
}

/* --- the profile --- */

/* Opens the profile that the file contains, which must be the one that the metadata name. */
static struct kvc_profile *open_embedded(const struct kvc_records *k, const uint8_t *sha256,
                                         struct kvc_error *e) {
    uint8_t *bytes;
    size_t n;
    struct kvc_profile *p = NULL;
    if (kvc_records_single(k, k->profile_record, KVC_SECTION_PROFILE, &bytes, &n, e)) return NULL;
    if (!(p = kvc_profile_open_memory(bytes, n, e))) {
        kvc_record_context(e, k->profile_record, "PROFILE");
    } else if (memcmp(kvc_profile_sha256(p), sha256, KVC_SHA256_BYTES) != 0) {
        kvc_fail(e, KVC_ERR_DAMAGED,
                 "the profile in the file is not the one that the metadata name");
        kvc_profile_free(p);
        p = NULL;
    }
    free(bytes);
    return p;
}

/* Takes the angles of rotations from the profile: of layers that it knows, with as many pairs. */
static void find_angles(const struct kvc_cache *c, struct kvc_records *k) {
    for (uint32_t t = 0; t < c->n_tensors && k->turn; t++) {
        struct kvc_rope_facts *r = &k->turn[t];
        size_t half = 0;
        if (!r->of_profile) continue;
        r->angle = k->profile ? kvc_profile_angles(k->profile, kvc_tensor_layer(c, t)->index, &half)
                              : NULL;
        if (half != r->half) r->angle = NULL;
    }
}

void kvc_container_set_profile(struct kvc_cache *c, const struct kvc_profile_places *places) {
    static const struct kvc_profile_places nowhere = {.folders = ""};
    struct kvc_records *k = kvc_records_of(c);
    const uint8_t *hash = c->meta.facts.profile;
    if (!k) return;
    k->profile_record = 0;
    for (uint64_t i = 0; i < k->n_records && !k->profile_record; i++)
        if (k->record[i].type == KVC_RECORD_PROFILE) k->profile_record = i;
    kvc_profile_free(k->profile);
    k->profile = NULL;
    kvc_fail(&k->no_profile, KVC_ERR_DAMAGED,
             "the metadata name no profile, and rows of this file need one");
    if (!hash) return;
    const char *model = kvc_meta_text(&c->meta, KVC_KEY_PROFILE_MODEL, "");
    if (k->profile_record) k->profile = open_embedded(k, hash, &k->no_profile);
    else k->profile = kvc_profile_find(hash, model, places ? places : &nowhere, &k->no_profile);
    /* the profile in the file is damaged; there may be another copy */
    if (k->survey && k->profile_record && !k->profile)
        k->profile = kvc_profile_find(hash, model, places ? places : &nowhere, NULL);
    find_angles(c, k);
}

struct kvc_profile *kvc_container_profile(const struct kvc_cache *c, int *embedded) {
    const struct kvc_records *k = kvc_records_of(c);
    *embedded = k && k->profile_record;
    return k ? k->profile : NULL;
}

/* --- the row of the table of formats --- */

static int container_format_probe(const struct kvc_bundle *b, char *why, size_t size) {
    uint8_t magic[8];
    const uint64_t n = b->one.in->size < 8 ? b->one.in->size : 8;
    if (n >= 4 && !kvc_input_copy(b->one.in, 0, magic, n, NULL) &&
        memcmp(magic, KVC_MAGIC, (size_t)n) == 0)
        return 1;
    snprintf(why, size, "no .kvc magic at the start");
    return 0;
}

/* Gives the caller's weights, places of profiles and wishes to the cache. */
static void equip(struct kvc_cache *c, const struct kvc_input *in,
                  const struct kvc_import_options *o) {
    if (o) kvc_container_set_weights(c, o->weights);
    kvc_records_of(c)->verify = !o || !o->no_verify;
    kvc_container_set_memory(c, o ? o->max_memory : 0);
    char folder[KVC_PROFILE_PATH];
    const struct kvc_profile_places places = {.given = o ? o->profile : NULL,
                                              .folder = kvc_profile_folder_of(in->path, folder),
                                              .folders = o ? o->profile_folders : NULL,
                                              .open = o ? o->open_profile : NULL};
    kvc_container_set_profile(c, &places);
}

struct kvc_cache *kvc_import_damaged(const struct kvc_input *in, const struct kvc_import_options *o,
                                     struct kvc_error *e) {
    struct kvc_cache *c = kvc_salvage_open(in, e);
    if (c && !kvc_salvage_refusal(c)) equip(c, in, o);
    return c;
}

static struct kvc_cache *container_format_import(const struct kvc_bundle *b,
                                                 const struct kvc_import_options *o,
                                                 struct kvc_error *e) {
    const struct kvc_input *in = b->one.in;
    struct kvc_cache *c = o && o->salvage ? kvc_import_damaged(in, o, e)
                                          : kvc_container_open(in, e);
    if (c && kvc_salvage_refusal(c)) {
        if (e) *e = *kvc_salvage_refusal(c);
        kvc_cache_free(c);
        return NULL;
    }
    if (c && !(o && o->salvage)) equip(c, in, o);
    return c;
}

const struct kvc_format kvc_format_kvc = {
    .name = "kvc",
    .summary = "kvc's own container",
    .suffix = ".kvc",
    .probe = container_format_probe,
    .import = container_format_import,
};
