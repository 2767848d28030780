/* container_format.c: the row of .kvc files in the table of formats: opens a file, whole or
 * damaged, with the caller's facts. Not for reading it (reader.c, salvage.c). */
#include "formats/container/container.h"

#include "formats/cache/format.h"
#include "formats/container/offsets.h"
#include "formats/container/salvage.h"

#include <stdio.h>
#include <string.h>

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
    kvc_container_set_verify(c, !o || !o->no_verify);
    kvc_container_set_memory(c, o ? o->max_memory : 0);
    char folder[4096] = "";
    const char *slash = in->path ? strrchr(in->path, '/') : NULL;
    const size_t n = slash ? (size_t)(slash - in->path) + (slash == in->path) : 0;
    if (slash && n < sizeof folder) memcpy(folder, in->path, n);
    else if (in->path && !slash) memcpy(folder, ".", 2);
    const struct kvc_profile_places places = {.given = o ? o->profile : NULL,
                                              .folder = *folder ? folder : NULL,
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
