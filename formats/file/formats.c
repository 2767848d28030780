/* formats.c: the table of file formats, and the choice of a format for an input. Contains no knowledge of any format. */
#include "formats/cache/format.h"

#include "formats/engines/foreign.h"
#include "formats/file/format_options.h"
#include "formats/cache/keys.h"
#include "formats/cache/view.h"

#include <stdio.h>
#include <string.h>

/* In the order in which input is probed; one line each. */
static const struct kvc_format *const table[] = {
    &kvc_format_kvc,         &kvc_format_llama,       &kvc_format_vllm,  &kvc_format_vllm_blocks, &kvc_format_mlx,
    &kvc_format_lmcache_gds, &kvc_format_safetensors, &kvc_format_torch, &kvc_format_npz,         &kvc_format_lmcr,
    &kvc_format_lmcache,     &kvc_format_hicache,     &kvc_format_raw,
};

#define N (sizeof table / sizeof table[0])

const struct kvc_format *kvc_format_find(const char *name) {
    const size_t n = strcspn(name, ":");
    for (size_t i = 0; i < N; i++)
        if (strlen(table[i]->name) == n && memcmp(table[i]->name, name, n) == 0) return table[i];
    return NULL;
}

/* Returns the options after a format's name and a colon, or NULL. */
static const char *options_of(const char *name) {
    const char *colon = name ? strchr(name, ':') : NULL;
    return colon ? colon + 1 : NULL;
}

const struct kvc_format *kvc_format_at(size_t i) {
    return i < N ? table[i] : NULL;
}

static const struct kvc_format *choose(const struct kvc_bundle *b, const struct kvc_import_options *o, struct kvc_error *e) {
    const struct kvc_input *in = b->is_file ? b->one.in : NULL;
    char tried[1200] = "", why[512];
    if (o->format) {
        const struct kvc_format *f = kvc_format_find(o->format);
        if (!f) kvc_fail(e, KVC_ERR_USAGE, "there is no format '%s'", o->format);
        if (!f || f->takes_members || in) return f;
        kvc_fail(e, KVC_ERR_USAGE, "a cache of format '%s' is one file, not several", f->name);
        return NULL;
    }
    if (in && !in->size) {
        kvc_fail(e, KVC_ERR_UNKNOWN, "is empty");
        return NULL;
    }
    if (in && kvc_foreign(in, why, sizeof why)) {
        kvc_fail(e, KVC_ERR_UNKNOWN, "kvc does not read this: %s", why);
        return NULL;
    }
    for (size_t i = 0; i < N; i++) {
        *why = '\0';
        if (!in && !table[i]->takes_members) snprintf(why, sizeof why, "is one file, not several");
        else if (table[i]->probe(b, why, sizeof why)) return table[i];
        size_t used = strlen(tried);
        snprintf(tried + used, sizeof tried - used, "%s%s: %s", i ? "; " : "", table[i]->name, why);
    }
    kvc_fail(e, KVC_ERR_UNKNOWN, "not a cache file that kvc knows (%s)", tried);
    return NULL;
}

int kvc_format_sniff(const struct kvc_input *head, const void *state, struct kvc_error *e) {
    const struct kvc_import_options *o = state, nothing = {.format = NULL};
    struct kvc_bundle b;
    kvc_bundle_file(&b, head);
    return (o && o->format) || kvc_input_is_archive(head) || choose(&b, &nothing, e) ? 0 : -1;
}

int kvc_bundle_of(struct kvc_bundle *b, const struct kvc_input *in, const struct kvc_import_options *o, struct kvc_error *e) {
    const struct kvc_format *f = o && o->format ? kvc_format_find(o->format) : NULL;
    if (kvc_input_is_archive(in) && (!f || f->takes_members)) return kvc_bundle_archive(b, in, e);
    kvc_bundle_file(b, in);
    return 0;
}

/* Adds the facts that only the caller knows. */
static int complete(struct kvc_cache *c, const struct kvc_import_options *o, struct kvc_error *e) {
    if (o->kv_heads && !kvc_cache_heads_known(c) && kvc_cache_set_heads(c, o->kv_heads, e)) return -1;
    if (o->pairing == KVC_PAIRING_UNKNOWN || kvc_meta_find(&c->meta, KVC_KEY_ROPE_PAIRING)) return 0;
    return kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, kvc_pairing_name(o->pairing), e);
}

/* Parses the options of a row and imports by it. */
static struct kvc_cache *import_with(const struct kvc_format *f, const struct kvc_bundle *b, const struct kvc_import_options *o,
                                     struct kvc_error *e) {
    struct kvc_option_values values;
    struct kvc_import_options with = *o;
    if (kvc_options_read(&values, f->import_options, f->name, options_of(o->format), o->set, e)) return NULL;
    with.value = values.value;
    struct kvc_cache *c = f->import(b, &with, e);
    kvc_options_free(&values);
    return c;
}

struct kvc_cache *kvc_import(const struct kvc_bundle *b, const struct kvc_import_options *o, const struct kvc_format **format,
                             struct kvc_error *e) {
    static const struct kvc_import_options nothing;
    const struct kvc_format *f = choose(b, o ? o : &nothing, e);
    struct kvc_cache *c = f ? import_with(f, b, o ? o : &nothing, e) : NULL;
    if (c && o && complete(c, o, e)) {
        kvc_cache_free(c);
        c = NULL;
    }
    if (!c) {
        kvc_error_prefix(e, b->name);
        return NULL;
    }
    if (format) *format = f;
    return c;
}

struct kvc_cache *kvc_import_file(const struct kvc_input *in, const struct kvc_import_options *o,
                                  const struct kvc_format **format, struct kvc_error *e) {
    struct kvc_bundle b;
    kvc_bundle_file(&b, in);
    return kvc_import(&b, o, format, e);
}

struct kvc_cache *kvc_format_import(const struct kvc_format *f, const struct kvc_input *in, const struct kvc_import_options *o,
                                    struct kvc_error *e) {
    static const struct kvc_import_options nothing;
    struct kvc_bundle b;
    kvc_bundle_file(&b, in);
    return import_with(f, &b, o ? o : &nothing, e);
}

const struct kvc_format *kvc_format_of_source(const struct kvc_cache *c) {
    const enum kvc_source source = kvc_facts_of(&c->meta).source;
    for (size_t i = 0; source != KVC_SOURCE_OTHER && kvc_format_at(i); i++)
        if (kvc_format_at(i)->source == source) return kvc_format_at(i);
    return NULL;
}

int kvc_format_probe(const struct kvc_format *f, const struct kvc_input *in, char *why, size_t size) {
    struct kvc_bundle b;
    kvc_bundle_file(&b, in);
    return f->probe(&b, why, size);
}

int kvc_format_is_written(const struct kvc_format *f) {
    return f->export || f->export_members;
}

int kvc_export_members(const struct kvc_format *f, const struct kvc_cache *c, const struct kvc_export_options *o,
                       const struct kvc_member_sink *out, struct kvc_error *e) {
    struct kvc_export_options with = o ? *o : (struct kvc_export_options){.set = NULL};
    struct kvc_option_values values;
    if (kvc_options_read(&values, f->export_options, f->name, with.own, with.set, e)) return -1;
    with.value = values.value;
    const int status = f->export_members ? f->export_members(c, &with, out, e) : f->export(c, &with, out->out, e);
    kvc_options_free(&values);
    return status;
}

int kvc_export(const struct kvc_format *f, const struct kvc_cache *c, const struct kvc_export_options *o, struct kvc_sink *out,
               struct kvc_error *e) {
    struct kvc_member_sink to = {.out = out};
    if (!f->export_members) return kvc_export_members(f, c, o, &to, e);
    struct kvc_tar *tar = kvc_tar_open(out, &to, e);
    return tar ? kvc_tar_close(tar, kvc_export_members(f, c, o, &to, e), e) : -1;
}
