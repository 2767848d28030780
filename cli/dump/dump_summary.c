/* dump_summary.c: prints the summary of a file as text on one screen, and as facts of a page. Not
 * for JSON and TSV (dump_facts.c). */
#include "cli/dump/dump_facts.h"
#include "formats/container/container.h"
#include "formats/cache/keys.h"
#include "formats/cache/rows.h"
#include "formats/cache/scales.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_TOKENS 8
#define SHOWN_PARTS 24

/* Collects the words of one line. */
struct line {
    char text[1024];
    size_t n;
};

static void say(struct line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct line *l, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(l->text + l->n, sizeof l->text - l->n, format, ap);
    va_end(ap);
    if (n > 0) l->n = (size_t)n < sizeof l->text - l->n ? l->n + (size_t)n : sizeof l->text - 1;
}

static void say_hex(struct line *l, const struct kvc_meta_entry *m) {
    for (uint64_t b = 0; b < m->size && b < 32; b++) say(l, "%02x", m->value[b]);
}

static void end(struct dump_out *o, struct line *l, const char *label) {
    dump_key_text(o, label, l->n ? l->text : "unknown");
    *l = (struct line){.n = 0};
}

static void print_format(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    const char *source = kvc_meta_text(x->meta, KVC_KEY_SOURCE_FORMAT, NULL);
    const struct kvc_meta_entry *version = kvc_meta_find(x->meta, KVC_KEY_SOURCE_VERSION);
    say(l, "%s", dump_format_name(x));
    if (x->is_container) say(l, ", version %u", kvc_container_header(x->c).write_version);
    if (x->is_container && source) say(l, ", made from %s", source);
    if (source && version)
        say(l, ", version %" PRIu64, kvc_meta_u64(x->meta, KVC_KEY_SOURCE_VERSION, 0));
    if (x->is_container && source)
        say(l, !x->c->n_extents               ? " (cannot be given back)"
               : kvc_container_lossless(x->c) ? " (can be given back)"
                                              : " (can be given back with lossy values)");
    end(o, l, "format");
    if (x->is_container) {
        say(l, "%s", kvc_meta_text(x->meta, KVC_KEY_PRODUCER, ""));
        end(o, l, "producer");
    }
}

static void print_model(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    const char *name = kvc_meta_text(x->meta, KVC_KEY_MODEL_NAME, NULL);
    const char *arch = kvc_meta_text(x->meta, KVC_KEY_MODEL_ARCH, NULL);
    const char *adapters = kvc_meta_text(x->meta, KVC_KEY_MODEL_ADAPTERS, NULL);
    if (name) say(l, "%s", name);
    if (arch) say(l, "%sarchitecture %s", l->n ? ", " : "name unknown, ", arch);
    if (adapters) say(l, ", adapters %s", adapters);
    end(o, l, "model");
    for (size_t i = 0; i < x->meta->n; i++) {
        const struct kvc_meta_entry *m = &x->meta->entry[i];
        size_t prefix = strlen(KVC_KEY_FINGERPRINT);
        if (strncmp(m->key, KVC_KEY_FINGERPRINT, prefix) != 0) continue;
        say(l, "%s ", m->key + prefix);
        say_hex(l, m);
        end(o, l, "fingerprint");
    }
}

static void say_shared(struct line *l, const char *what, const struct dump_shared *s) {
    if (dump_is_one(s)) say(l, ", %s %" PRIu64, what, s->value);
    else if (s->mixed) say(l, ", %s varies by layer", what);
}

static void print_geometry(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    char text[64];
    say(l, "%" PRIu32 " layer%s", x->layers, x->layers == 1 ? "" : "s");
    if (!x->heads_known) say(l, ", KV heads unknown, all heads together:");
    else say_shared(l, "KV heads", &x->heads);
    if (x->heads_known) {
        say_shared(l, "head dim K", &x->k_dim);
        say_shared(l, "V", &x->v_dim);
    } else {
        say(l, " K %" PRIu64, x->k_dim.value);
        if (x->v.n) say(l, ", V %" PRIu64, x->v_dim.value);
        if (x->k_dim.mixed || x->v_dim.mixed) say(l, " (varies by layer)");
    }
    end(o, l, "geometry");
    if (dump_dtypes_text(&x->k, text, sizeof text)) say(l, "K %s", text);
    if (dump_dtypes_text(&x->v, text, sizeof text)) say(l, "%sV %s", l->n ? ", " : "", text);
    if (dump_dtypes_text(&x->others, text, sizeof text))
        say(l, "%sothers %s", l->n ? ", " : "", text);
    if (kvc_meta_bool(x->meta, KVC_KEY_LLAMA_TRANSPOSED_V, 0)) say(l, ", V transposed");
    end(o, l, "dtypes");
}

static void print_tokens(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    const char *form = kvc_meta_text(x->meta, KVC_KEY_LLAMA_TOKEN_FORM, NULL);
    if (x->c->tokens) {
        say(l, "%" PRIu64, x->c->n_tokens);
        if (form)
            say(l, " (%s)", strcmp(form, "server") == 0 ? "in a server's slot" : "a plain list");
        for (uint64_t i = 0; i < x->c->n_tokens && i < SHOWN_TOKENS; i++)
            say(l, "%s %" PRId32, i ? "" : ":", x->c->tokens[i]);
        if (x->c->n_tokens > SHOWN_TOKENS) say(l, " ...");
    }
    end(o, l, "tokens");
}

/* Prints the place of a file that is a piece of a sequence, and what its prefix keys take beside
 * token ids. */
static void print_prefix(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    const struct kvc_meta_entry *parent = kvc_meta_find(x->meta, KVC_KEY_PREFIX_PARENT);
    const struct kvc_meta_entry *space = kvc_meta_find(x->meta, KVC_KEY_PREFIX_SPACE);
    if (parent) {
        say(l, "from position %" PRIu64 " on, after key ",
            kvc_meta_u64(x->meta, KVC_KEY_TOKENS_FIRST, 0));
        say_hex(l, parent);
    }
    if (x->extras) say(l, "%sextras %zu", l->n ? ", " : "", x->extras);
    if (l->n) end(o, l, "prefix");
    if (!space) return;
    say_hex(l, space);
    end(o, l, "namespace");
}

/* Prints what is doubtful about the rows. Decodes at most the last rows, and says nothing where
 * they cannot be decoded. */
static void print_rows(struct dump_out *o, const struct kvc_cache *c, struct line *l) {
    struct kvc_rows rows;
    char text[800];
    if (kvc_rows_look(&rows, c, NULL)) return;
    kvc_rows_say(&rows, "kvc-pack ", text, sizeof text);
    if (!*text) return;
    say(l, "%s", text);
    end(o, l, "rows");
}

static void print_rope(struct dump_out *o, const struct kvc_meta *m, struct line *l) {
    char number[32];
    const char *k = kvc_meta_text(m, KVC_KEY_ROPE_K, NULL),
               *type = kvc_meta_text(m, KVC_KEY_ROPE_TYPE, NULL);
    if (k && strcmp(k, "post") == 0) say(l, "K after RoPE");
    else if (k && strcmp(k, "pre") == 0) say(l, "K before RoPE");
    else say(l, "K before or after RoPE unknown");
    say(l, ", pairing %s%s", kvc_meta_text(m, KVC_KEY_ROPE_PAIRING, "unknown"),
        kvc_meta_bool(m, KVC_KEY_ROPE_ASSUMED, 0) ? " (assumed)" : "");
    if (type) say(l, ", type %s", type);
    if (kvc_meta_find(m, KVC_KEY_ROPE_THETA)) {
        cli_double_text(kvc_meta_f64(m, KVC_KEY_ROPE_THETA, 0), number);
        say(l, ", theta %s", number);
    } else {
        say(l, ", theta unknown");
    }
    if (kvc_meta_find(m, KVC_KEY_ROPE_DIM))
        say(l, ", dim %" PRIu64, kvc_meta_u64(m, KVC_KEY_ROPE_DIM, 0));
    if (kvc_meta_find(m, KVC_KEY_ROPE_FACTOR)) {
        cli_double_text(kvc_meta_f64(m, KVC_KEY_ROPE_FACTOR, 0), number);
        say(l, ", factor %s", number);
    }
    if (kvc_meta_find(m, KVC_KEY_ROPE_ORIGINAL))
        say(l, ", original context %" PRIu64, kvc_meta_u64(m, KVC_KEY_ROPE_ORIGINAL, 0));
    const struct kvc_meta_entry *sections = kvc_meta_find(m, KVC_KEY_ROPE_SECTIONS);
    if (sections) {
        char text[128];
        kvc_meta_print(sections, text, sizeof text);
        say(l, ", sections %s", text);
    }
    if (kvc_meta_find(m, KVC_KEY_ROPE_SCALING))
        say(l, ", scaling %.400s", kvc_meta_text(m, KVC_KEY_ROPE_SCALING, ""));
    end(o, l, "RoPE");
}

static void say_tile(struct line *l, const struct kvc_meta *m, const char *role, const char *key) {
    uint64_t tile = kvc_meta_u64(m, key, 0);
    if (!kvc_meta_find(m, key)) say(l, "%s unknown", role);
    else if (tile) say(l, "%s tile %" PRIu64, role, tile);
    else say(l, "%s none", role);
}

/* Prints the profile, and how the transform codec coded K and V of its first layer. */
static int print_profile(struct dump_out *o, const struct dump_facts *x, struct line *l,
                         struct kvc_error *e) {
    const struct kvc_meta_entry *m = kvc_meta_find(x->meta, KVC_KEY_PROFILE);
    int embedded, shown[2] = {0, 0};
    char text[128];
    if (!kvc_cache_is_container(x->c)) return 0;
    if (m) {
        const struct kvc_profile *p = kvc_container_profile(x->c, &embedded);
        const char *model = kvc_meta_text(x->meta, KVC_KEY_PROFILE_MODEL, "");
        kvc_meta_print(m, text, sizeof text);
        say(l, "%s%ssha256 %s, %s", model, *model ? ", " : "", text,
            embedded ? "carried inside"
            : p      ? "found"
                     : "not found: give --profile=FILE or $KVC_PROFILE_PATH");
        end(o, l, "profile");
        if (kvc_meta_find(x->meta, KVC_KEY_PROFILE_FIT)) {
            say(l, "%s", kvc_meta_text(x->meta, KVC_KEY_PROFILE_FIT, ""));
            if (kvc_meta_find(x->meta, KVC_KEY_PROFILE_FIT_K))
                say(l, "; mean square of coefficients to the profile's: K %.3g, V %.3g",
                    kvc_meta_f64(x->meta, KVC_KEY_PROFILE_FIT_K, 0),
                    kvc_meta_f64(x->meta, KVC_KEY_PROFILE_FIT_V, 0));
            end(o, l, "profile's fit");
        }
    }
    for (uint32_t t = 0; t < x->c->n_tensors; t++) {
        const unsigned role = x->c->tensor[t].role;
        if (role > KVC_ROLE_V || shown[role]) continue;
        if (kvc_container_transform(x->c, t, text, sizeof text, e)) return -1;
        if (!*text) continue;
        say(l, "%s%s", l->n ? "; " : "", text);
        shown[role] = 1;
    }
    if (l->n) end(o, l, "transform");
    return 0;
}

/* Says by what the stored numbers of K and V are multiplied. */
static void print_scales(struct dump_out *o, const struct kvc_cache *c, struct line *l) {
    const char *source = kvc_meta_text(&c->meta, KVC_KEY_SCALE_SOURCE, NULL);
    if (!kvc_cache_is_scaled(c)) return;
    say(l, "K %.200s, V %.200s", kvc_meta_text(&c->meta, KVC_KEY_SCALE_K, "unknown"),
        kvc_meta_text(&c->meta, KVC_KEY_SCALE_V, "unknown"));
    if (source) say(l, ", of %.100s", source);
    end(o, l, "scales");
}

static void print_storage(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    const char *recipe = kvc_meta_text(x->meta, KVC_KEY_RECIPE, NULL);
    char size[32];
    say_tile(l, x->meta, "K", KVC_KEY_HADAMARD_K);
    say(l, ", ");
    say_tile(l, x->meta, "V", KVC_KEY_HADAMARD_V);
    end(o, l, "Hadamard");
    print_scales(o, x->c, l);
    if (kvc_meta_find(x->meta, KVC_KEY_WINDOW)) {
        say(l, "%" PRIu64 " tokens", kvc_meta_u64(x->meta, KVC_KEY_WINDOW, 0));
        end(o, l, "window");
    }
    if (kvc_meta_find(x->meta, KVC_KEY_OTHER_ARRAYS)) {
        say(l, "of unknown meaning, kept as bytes: %s",
            kvc_meta_text(x->meta, KVC_KEY_OTHER_ARRAYS, ""));
        end(o, l, "arrays");
    }
    if (recipe) {
        const char *past = kvc_meta_text(x->meta, KVC_KEY_VALUES_RECIPE, NULL);
        say(l, "%s%s%s", recipe, past ? ", of values that went through " : "", past ? past : "");
        end(o, l, "recipe");
    }
    const uint64_t bytes = kvc_opened_size(x->file);
    cli_size_text(bytes, size);
    say(l, "file %s (%" PRIu64 " bytes)", size, bytes);
    if (*x->file->input.filter) say(l, " after undoing %s", x->file->input.filter);
    cli_size_text(x->tensor_bytes, size);
    say(l, ", tensors %s", size);
    if (x->is_container) say(l, ", ratio %.3f", dump_ratio(x));
    if (x->snapshots)
        say(l, ", %" PRIu64 " snapshot%s", x->snapshots, x->snapshots == 1 ? "" : "s");
    end(o, l, "size");
}

/* This table is narrower than that of TSV. */
static void print_parts(struct dump_out *o, const struct dump_facts *x) {
    static const struct dump_column columns[] = {{"part", 4},   {"kind", -10}, {"stream", 6},
                                                 {"snap", 4},   {"cells", 7},  {"positions", -14},
                                                 {"layers", 6}, {"K", -8},     {"V", -8},
                                                 {"bytes", 11}, {NULL, 0}};
    uint32_t n = x->c->n_parts < SHOWN_PARTS ? x->c->n_parts : SHOWN_PARTS;
    char text[64];
    dump_table(o, "parts", "part", columns);
    for (uint32_t p = 0; p < n; p++) {
        const struct kvc_part *part = &x->c->part[p];
        const struct kvc_cells *cells = &part->cells;
        dump_row(o);
        dump_u64(o, p);
        dump_text(o, kvc_part_kind_name(part->kind));
        dump_u64(o, part->stream);
        if (part->kind == KVC_PART_SNAPSHOT) dump_u64(o, part->snapshot);
        else dump_none(o);
        dump_u64(o, cells->n);
        if (dump_positions_text(cells, text, sizeof text) && !dump_is_ascending(cells))
            strncat(text, " mixed", sizeof text - strlen(text) - 1);
        dump_text(o, cells->n ? text : NULL);
        dump_u64(o, x->part[p].layers);
        dump_text(o, dump_dtypes_text(&x->part[p].k, text, sizeof text));
        dump_text(o, dump_dtypes_text(&x->part[p].v, text, sizeof text));
        dump_u64(o, x->part[p].bytes);
        dump_row_end(o);
    }
    dump_table_end(o);
    if (n == x->c->n_parts) return;
    snprintf(text, sizeof text, "... %" PRIu32 " more parts (--json shows all)", x->c->n_parts - n);
    dump_line(o, text);
}

/* The same as facts of a page. */
static void html_unknown(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    for (unsigned i = 0; i < x->n_unknown; i++) {
        const struct dump_unknown *u = &x->unknown[i];
        say(l, "%s", u->fact);
        if (u->option) say(l, "; %s tells it", u->option);
        end(o, l, "unknown");
    }
}

static void print_unknown(struct dump_out *o, const struct dump_facts *x) {
    fputs(x->n_unknown ? "unknown:\n" : "unknown: nothing\n", o->out);
    for (unsigned i = 0; i < x->n_unknown; i++) {
        const struct dump_unknown *u = &x->unknown[i];
        if (u->option) fprintf(o->out, "  %-38s %s\n", u->fact, u->option);
        else fprintf(o->out, "  %s\n", u->fact);
    }
}

int dump_summary(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
                 struct kvc_error *e) {
    struct dump_facts x;
    struct line l = {.n = 0};
    if (o->style == DUMP_JSON || o->style == DUMP_TSV) return dump_facts(o, f, options, e);
    if (dump_facts_gather(&x, f, e)) return -1;
    dump_begin(o, f->input.name);
    print_format(o, &x, &l);
    print_model(o, &x, &l);
    print_geometry(o, &x, &l);
    print_tokens(o, &x, &l);
    print_rows(o, x.c, &l);
    print_prefix(o, &x, &l);
    if (x.has_k) print_rope(o, x.meta, &l);
    print_storage(o, &x, &l);
    const int status = print_profile(o, &x, &l, e);
    if (o->style == DUMP_HTML) html_unknown(o, &x, &l);
    print_parts(o, &x);
    dump_draw_layers(o, x.c);
    if (o->style != DUMP_HTML) print_unknown(o, &x);
    free(x.part);
    return status;
}
