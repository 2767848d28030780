/* formats.c: the table of file formats, and the choice of a format for an input. Contains no
 * knowledge of any format. */
#include "formats/cache/format.h"

#include "formats/engines/foreign.h"
#include "formats/file/format_options.h"
#include "formats/cache/keys.h"
#include "formats/cache/view.h"

#include <stdio.h>
#include <string.h>

#define POINTER(NAME) &kvc_format_##NAME,
static const struct kvc_format *const table[] = {KVC_FORMATS(POINTER)};

#define N (sizeof table / sizeof table[0])

/* Returns the row whose name are the first n bytes of a text, or NULL. */
static const struct kvc_format *find(const char *name, size_t n) {
    for (size_t i = 0; i < N; i++)
        if (strlen(table[i]->name) == n && memcmp(table[i]->name, name, n) == 0) return table[i];
    return NULL;
}

const struct kvc_format *kvc_format_find(const char *name) {
    return find(name, strcspn(name, ":"));
}

/* Returns the options after a format's name and a colon, or NULL. */
static const char *options_of(const char *name) {
    const char *colon = name ? strchr(name, ':') : NULL;
    return colon ? colon + 1 : NULL;
}

const struct kvc_format *kvc_format_at(size_t i) {
    return i < N ? table[i] : NULL;
}

/* Writes the first bytes of a file, in hexadecimal and, if all are printable, as text. */
static void show_begin(const struct kvc_input *in, char *text, size_t size) {
    char head[9] = "";
    const size_t n = in->size < 8 ? (size_t)in->size : 8;
    int printable = 1;
    *text = '\0';
    if (kvc_input_copy(in, 0, head, n, NULL)) return;
    for (size_t i = 0; i < n; i++) {
        snprintf(text + strlen(text), size - strlen(text), "%s%02x", i ? " " : "",
                 (unsigned char)head[i]);
        printable &= head[i] >= ' ' && head[i] <= '~';
    }
    if (printable) snprintf(text + strlen(text), size - strlen(text), " (\"%s\")", head);
}

/* Returns the number of members that are named as containers. */
static size_t count_containers(const struct kvc_bundle *b) {
    size_t found = 0;
    for (size_t i = 0; i < b->n; i++) {
        const char *suffix = strrchr(b->member[i].name, '.');
        found += suffix && strcmp(suffix, kvc_format_kvc.suffix) == 0;
    }
    return found;
}

/* Says why several files are no cache. */
static void refuse_members(const struct kvc_bundle *b, const char *reasons, struct kvc_error *e) {
    const size_t containers = count_containers(b);
    const enum kvc_need need = b->folder ? KVC_NEED_EACH : KVC_NEED_NOTHING;
    if (!containers)
        kvc_fail_need(e, KVC_ERR_UNKNOWN_FORMAT, need,
                      "not a cache of several files that kvc knows%s", reasons);
    else
        kvc_fail_need(e, KVC_ERR_UNKNOWN_FORMAT, need,
                      "no cache of several files: it has .kvc files (%zu)", containers);
}

static void fail_foreign(int foreign, const char *why, struct kvc_error *e) {
    kvc_fail_need(e, KVC_ERR_UNKNOWN_FORMAT,
                  foreign == KVC_FOREIGN_BESIDE ? KVC_NEED_MAIN_FILE : KVC_NEED_NOTHING,
                  "kvc does not read this: %s", why);
}

/* Says that no format takes an input; `reasons` are those of formats that it resembles. */
static void formats_refuse(const struct kvc_bundle *b, const char *reasons, struct kvc_error *e) {
    char begin[64], names[256] = "", why[512];
    const int foreign = b->is_file ? kvc_foreign_unknown(b->one.in, why, sizeof why)
                                   : kvc_foreign_unknown_members(b, why, sizeof why);
    if (foreign) {
        fail_foreign(foreign, why, e);
        return;
    }
    if (!b->is_file) {
        refuse_members(b, reasons, e);
        return;
    }
    show_begin(b->one.in, begin, sizeof begin);
    for (size_t i = 0; i < N; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                 table[i]->name);
    kvc_fail_need(e, KVC_ERR_UNKNOWN_FORMAT, KVC_NEED_INPUT,
                  "not a cache file that kvc recognises: it begins with %s%s; formats: %s", begin,
                  reasons, names);
}

/* Finds the format by probing. */
static const struct kvc_format *probe_all(const struct kvc_bundle *b, struct kvc_error *e) {
    char reasons[800] = "", why[512];
    for (size_t i = 0; i < N; i++) {
        if (!b->is_file && !table[i]->takes_members) continue;
        *why = '\0';
        const int found = table[i]->probe(b, why, sizeof why);
        const size_t used = strlen(reasons);
        if (found > 0) return table[i];
        if (found || !b->is_file)
            snprintf(reasons + used, sizeof reasons - used, "; %s: %s", table[i]->name, why);
    }
    formats_refuse(b, reasons, e);
    return NULL;
}

static const struct kvc_format *formats_choose(const struct kvc_bundle *b,
                                               const struct kvc_import_options *o,
                                               struct kvc_error *e) {
    const struct kvc_input *in = b->is_file ? b->one.in : NULL;
    char why[512];
    if (o->format) {
        const struct kvc_format *f = kvc_format_find(o->format);
        if (!f) kvc_fail(e, KVC_ERR_USAGE, "there is no format '%s'", o->format);
        if (!f || f->takes_members || in) return f;
        kvc_fail(e, KVC_ERR_USAGE, "a cache of format '%s' is one file, not several", f->name);
        return NULL;
    }
    if (in && !in->size) {
        kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "is empty");
        return NULL;
    }
    const int foreign = in ? kvc_foreign(in, why, sizeof why) : 0;
    if (foreign) {
        fail_foreign(foreign, why, e);
        return NULL;
    }
    return probe_all(b, e);
}

int kvc_format_sniff(const struct kvc_input *head, const void *state, struct kvc_error *e) {
    const struct kvc_import_options *o = state, nothing = {.format = NULL};
    struct kvc_bundle b;
    kvc_bundle_file(&b, head);
    return (o && o->format) || kvc_input_is_archive(head) || formats_choose(&b, &nothing, e) ? 0
                                                                                             : -1;
}

int kvc_bundle_of(struct kvc_bundle *b, const struct kvc_input *in,
                  const struct kvc_import_options *o, struct kvc_error *e) {
    const struct kvc_format *f = o && o->format ? kvc_format_find(o->format) : NULL;
    if (kvc_input_is_archive(in) && (!f || f->takes_members)) return kvc_bundle_archive(b, in, e);
    kvc_bundle_file(b, in);
    return 0;
}

/* Adds the facts that only the caller knows. */
static int complete(struct kvc_cache *c, const struct kvc_import_options *o, struct kvc_error *e) {
    if (o->kv_heads && c->meta.facts.heads_unknown && kvc_cache_set_heads(c, o->kv_heads, e))
        return -1;
    if (o->pairing == KVC_PAIRING_UNKNOWN || kvc_meta_find(&c->meta, KVC_KEY_ROPE_PAIRING))
        return 0;
    return kvc_meta_set_pairing(&c->meta, o->pairing, e);
}

/* Parses the options of a row and imports by it. */
static struct kvc_cache *import_with(const struct kvc_format *f, const struct kvc_bundle *b,
                                     const struct kvc_import_options *o, struct kvc_error *e) {
    struct kvc_option_values values;
    struct kvc_import_options with = *o;
    if (kvc_options_read(&values, f->import_options, f->name, options_of(o->format), o->set, e))
        return NULL;
    with.value = values.value;
    struct kvc_cache *c = f->import(b, &with, e);
    kvc_options_free(&values);
    return c;
}

struct kvc_cache *kvc_import(const struct kvc_bundle *b, const struct kvc_import_options *o,
                             const struct kvc_format **format, struct kvc_error *e) {
    static const struct kvc_import_options nothing;
    const struct kvc_format *f = formats_choose(b, o ? o : &nothing, e);
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

struct kvc_cache *kvc_format_import(const struct kvc_format *f, const struct kvc_input *in,
                                    const struct kvc_import_options *o, struct kvc_error *e) {
    static const struct kvc_import_options nothing;
    struct kvc_bundle b;
    kvc_bundle_file(&b, in);
    return import_with(f, &b, o ? o : &nothing, e);
}

const struct kvc_format *kvc_format_of_source(const struct kvc_cache *c) {
    const char *source = kvc_meta_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "");
    return find(source, strcspn(source, " .")); /* "llama.cpp GGSQ" */
}

int kvc_format_probe(const struct kvc_format *f, const struct kvc_input *in, char *why,
                     size_t size) {
    struct kvc_bundle b;
    kvc_bundle_file(&b, in);
    return f->probe(&b, why, size) > 0;
}

int kvc_format_is_written(const struct kvc_format *f) {
    return f->export || f->export_members;
}

int kvc_export_members(const struct kvc_format *f, const struct kvc_cache *c,
                       const struct kvc_export_options *o, const struct kvc_member_sink *out,
                       struct kvc_error *e) {
    struct kvc_export_options with = o ? *o : (struct kvc_export_options){.set = NULL};
    struct kvc_option_values values;
    if (kvc_options_read(&values, f->export_options, f->name, with.own, with.set, e)) return -1;
    with.value = values.value;
    const int status = f->export_members ? f->export_members(c, &with, out, e)
                                         : f->export(c, &with, out->out, e);
    kvc_options_free(&values);
    return status;
}

int kvc_export(const struct kvc_format *f, const struct kvc_cache *c,
               const struct kvc_export_options *o, struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_member_sink to = {.out = out};
    if (!f->export_members) return kvc_export_members(f, c, o, &to, e);
    struct kvc_tar *tar = kvc_tar_open(out, &to, e);
    return tar ? kvc_tar_close(tar, kvc_export_members(f, c, o, &to, e), e) : -1;
}
