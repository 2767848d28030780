/* dump_summary.c: prints the summary of a file as text on one screen, and as facts of a page. Not
 * for JSON and TSV (dump_facts.c). */
#include "cli/dump/dump.h"

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

static void say_hex(struct line *l, const struct kvc_meta_value *v) {
    for (uint64_t b = 0; b < v->n_bytes && b < 32; b++) say(l, "%02x", v->bytes[b]);
}

static void end(struct dump_out *o, struct line *l, const char *label) {
    dump_key_text(o, label, l->n ? l->text : "unknown");
    *l = (struct line){.n = 0};
}

static void print_format(struct dump_out *o, const struct dump_file *f, struct line *l) {
    const char *source = dump_meta_text(f, "source.format", NULL);
    say(l, "%s", dump_format_name(f));
    if (f->source.packed) say(l, ", version %u", f->facts.write_version);
    if (f->source.packed && source) say(l, ", made from %s", source);
    if (source && dump_has(f, "source.version"))
        say(l, ", version %" PRIu64, dump_meta(f, "source.version").u64);
    if (f->source.packed && source)
        say(l, !f->source.has_bytes ? " (cannot be given back)"
               : f->facts.lossless  ? " (can be given back)"
                                    : " (can be given back with lossy values)");
    end(o, l, "format");
    if (f->source.packed) {
        say(l, "%s", dump_meta_text(f, "producer", ""));
        end(o, l, "producer");
    }
}

static void print_model(struct dump_out *o, const struct dump_file *f, struct line *l) {
    const char *name = dump_meta_text(f, "model.name", NULL);
    const char *arch = dump_meta_text(f, "model.architecture", NULL);
    const char *adapters = dump_meta_text(f, "model.adapters", NULL);
    struct kvc_meta_value v;
    if (name) say(l, "%s", name);
    if (arch) say(l, "%sarchitecture %s", l->n ? ", " : "name unknown, ", arch);
    if (adapters) say(l, ", adapters %s", adapters);
    end(o, l, "model");
    for (size_t i = 0; (name = dump_fingerprint(f, &i, &v)) != NULL;) {
        say(l, "%s ", name);
        say_hex(l, &v);
        end(o, l, "fingerprint");
    }
}

static void say_shared(struct line *l, const char *what, const struct dump_shared *s) {
    if (dump_is_one(s)) say(l, ", %s %" PRIu64, what, s->value);
    else if (s->mixed) say(l, ", %s varies by layer", what);
}

static void print_geometry(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    char text[64];
    say(l, "%" PRIu32 " layer%s", x->layers, cli_s(x->layers));
    if (!x->f->facts.heads_unknown) {
        say_shared(l, "KV heads", &x->heads);
        say_shared(l, "head dim K", &x->k_dim);
        say_shared(l, "V", &x->v_dim);
    } else {
        say(l, ", KV heads unknown, all heads together: K %" PRIu64, x->k_dim.value);
        if (x->v.n) say(l, ", V %" PRIu64, x->v_dim.value);
        if (x->k_dim.mixed || x->v_dim.mixed) say(l, " (varies by layer)");
    }
    end(o, l, "geometry");
    if (dump_dtypes_text(&x->k, text, sizeof text)) say(l, "K %s", text);
    if (dump_dtypes_text(&x->v, text, sizeof text)) say(l, "%sV %s", l->n ? ", " : "", text);
    if (dump_dtypes_text(&x->others, text, sizeof text))
        say(l, "%sothers %s", l->n ? ", " : "", text);
    if (dump_meta(x->f, "llama.transposed-v").u64) say(l, ", V transposed");
    end(o, l, "dtypes");
}

static void print_tokens(struct dump_out *o, const struct dump_file *f, struct line *l) {
    const char *form = dump_meta_text(f, "llama.token-form", NULL);
    char text[800];
    uint64_t n;
    const int32_t *id = kvc_file_tokens(f->cache, &n);
    if (id) {
        say(l, "%" PRIu64, n);
        if (form)
            say(l, " (%s)", strcmp(form, "server") == 0 ? "in a server's slot" : "a plain list");
        for (uint64_t i = 0; i < n && i < SHOWN_TOKENS; i++)
            say(l, "%s %" PRId32, i ? "" : ":", id[i]);
        if (n > SHOWN_TOKENS) say(l, " ...");
    }
    end(o, l, "tokens");
    if (!*kvc_file_doubts(f->cache, "kvc-pack ", text, sizeof text)) return;
    say(l, "%s", text);
    end(o, l, "rows");
}

/* Prints the place of a file that is a piece of a sequence, and what its prefix keys take beside
 * token ids. */
static void print_prefix(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    const struct kvc_meta_value parent = dump_meta(x->f, "prefix.parent"),
                                space = dump_meta(x->f, "prefix.space");
    if (parent.type) {
        say(l, "from position %" PRIu64 " on, after key ", dump_meta(x->f, "tokens.first").u64);
        say_hex(l, &parent);
    }
    if (x->extras) say(l, "%sextras %" PRIu64, l->n ? ", " : "", x->extras);
    if (l->n) end(o, l, "prefix");
    if (!space.type) return;
    say_hex(l, &space);
    end(o, l, "namespace");
}

/* Says ", NAME VALUE" of metadata that are there. */
static void say_meta(struct line *l, const struct dump_file *f, const char *name, const char *key) {
    const struct kvc_meta_value v = dump_meta(f, key);
    char text[128];
    if (!v.type) return;
    if (strcmp(v.type, "f64") == 0) cli_double_text(v.f64, text);
    else if (!v.text) kvc_file_meta(f->cache, key, text, sizeof text);
    say(l, ", %s %.400s", name, v.text ? v.text : text);
}

static void print_rope(struct dump_out *o, const struct dump_file *f, struct line *l) {
    const char *k = dump_meta_text(f, "rope.k", "");
    if (strcmp(k, "post") == 0) say(l, "K after RoPE");
    else if (strcmp(k, "pre") == 0) say(l, "K before RoPE");
    else say(l, "K before or after RoPE unknown");
    say(l, ", pairing %s%s", dump_meta_text(f, "rope.pairing", "unknown"),
        dump_meta(f, "rope.pairing-assumed").u64 ? " (assumed)" : "");
    say_meta(l, f, "type", "rope.type");
    say_meta(l, f, "theta", "rope.theta");
    if (!dump_has(f, "rope.theta")) say(l, ", theta unknown");
    say_meta(l, f, "dim", "rope.dim");
    say_meta(l, f, "factor", "rope.factor");
    say_meta(l, f, "original context", "rope.original-context");
    say_meta(l, f, "sections", "rope.sections");
    say_meta(l, f, "scaling", "rope.scaling");
    end(o, l, "RoPE");
}

static void say_tile(struct line *l, const struct dump_file *f, const char *role, const char *key) {
    const struct kvc_meta_value v = dump_meta(f, key);
    if (!v.type) say(l, "%s unknown", role);
    else if (v.u64) say(l, "%s tile %" PRIu64, role, v.u64);
    else say(l, "%s none", role);
}

/* Prints the profile, and how the transform codec coded K and V of its first layer. */
static int print_profile(struct dump_out *o, const struct dump_file *f, struct line *l,
                         struct kvc_error *e) {
    const char *place = f->facts.profile, *fit = dump_meta_text(f, "profile.fit", NULL);
    char text[128];
    if (place) {
        const char *model = dump_meta_text(f, "profile.model", "");
        say(l, "%s%ssha256 ", model, *model ? ", " : "");
        const struct kvc_meta_value hash = dump_meta(f, "profile.sha256");
        say_hex(l, &hash);
        say(l, ", %s",
            strcmp(place, "inside") == 0  ? "carried inside"
            : strcmp(place, "found") == 0 ? "found"
                                          : "not found: give --profile=FILE or $KVC_PROFILE_PATH");
        end(o, l, "profile");
    }
    if (place && fit) {
        say(l, "%s", fit);
        if (dump_has(f, "profile.fit-k"))
            say(l, "; mean square of coefficients to the profile's: K %.3g, V %.3g",
                dump_meta(f, "profile.fit-k").f64, dump_meta(f, "profile.fit-v").f64);
        end(o, l, "profile's fit");
    }
    for (unsigned role = 0; role < 2; role++) {
        if (dump_transform(f, dump_roles[role], text, sizeof text, e)) return -1;
        if (*text) say(l, "%s%s", l->n ? "; " : "", text);
    }
    if (l->n) end(o, l, "transform");
    return 0;
}

static void print_storage(struct dump_out *o, const struct dump_facts *x, struct line *l) {
    const struct dump_file *f = x->f;
    const char *recipe = dump_meta_text(f, "recipe", NULL),
               *past = dump_meta_text(f, "values.recipe", NULL),
               *scales = dump_meta_text(f, "scale.source", NULL);
    char size[32];
    say_tile(l, f, "K", "hadamard.k");
    say(l, ", ");
    say_tile(l, f, "V", "hadamard.v");
    end(o, l, "Hadamard");
    if (f->facts.scaled) {
        say(l, "K %.200s, V %.200s", dump_meta_text(f, "scale.k", "unknown"),
            dump_meta_text(f, "scale.v", "unknown"));
        if (scales) say(l, ", of %.100s", scales);
        end(o, l, "scales");
    }
    if (dump_has(f, "sliding.window")) {
        say(l, "%" PRIu64 " tokens", dump_meta(f, "sliding.window").u64);
        end(o, l, "window");
    }
    if (dump_has(f, "source.arrays")) {
        say(l, "of unknown meaning, kept as bytes: %s", dump_meta_text(f, "source.arrays", ""));
        end(o, l, "arrays");
    }
    if (recipe) {
        say(l, "%s%s%s", recipe, past ? ", of values that went through " : "", past ? past : "");
        end(o, l, "recipe");
    }
    const uint64_t bytes = f->source.bytes;
    cli_size_text(bytes, size);
    say(l, "file %s (%" PRIu64 " bytes)", size, bytes);
    if (*f->source.filter) say(l, " after undoing %s", f->source.filter);
    cli_size_text(x->tensor_bytes, size);
    say(l, ", tensors %s", size);
    if (f->source.packed) say(l, ", ratio %.3f", dump_ratio(x));
    if (x->snapshots) say(l, ", %" PRIu64 " snapshot%s", x->snapshots, cli_s(x->snapshots));
    end(o, l, "size");
}

/* This table is narrower than that of TSV. */
static void print_parts(struct dump_out *o, const struct dump_facts *x) {
    static const struct dump_column columns[] = {{"part", 4},   {"kind", -10}, {"stream", 6},
                                                 {"snap", 4},   {"cells", 7},  {"positions", -14},
                                                 {"layers", 6}, {"K", -8},     {"V", -8},
                                                 {"bytes", 11}, {NULL, 0}};
    const uint32_t all = x->f->facts.parts, n = all < SHOWN_PARTS ? all : SHOWN_PARTS;
    char text[64];
    dump_table(o, "parts", "part", columns);
    for (uint32_t p = 0; p < n; p++) {
        const struct kvc_part_info *part = &x->f->part[p];
        dump_row(o);
        dump_u64(o, p);
        dump_text(o, part->kind);
        dump_u64(o, part->stream);
        if (strcmp(part->kind, "snapshot") == 0) dump_u64(o, part->snapshot);
        else dump_none(o);
        dump_u64(o, part->cells);
        if (dump_positions_text(part, text, sizeof text) && !part->ascending)
            strncat(text, " mixed", sizeof text - strlen(text) - 1);
        dump_text(o, part->cells ? text : NULL);
        dump_u64(o, x->part[p].layers);
        dump_text(o, dump_dtypes_text(&x->part[p].k, text, sizeof text));
        dump_text(o, dump_dtypes_text(&x->part[p].v, text, sizeof text));
        dump_u64(o, x->part[p].bytes);
        dump_row_end(o);
    }
    dump_table_end(o);
    if (n == all) return;
    snprintf(text, sizeof text, "... %" PRIu32 " more parts (--json shows all)", all - n);
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

int dump_summary(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
                 struct kvc_error *e) {
    struct dump_facts x;
    struct line l = {.n = 0};
    if (o->style == DUMP_JSON || o->style == DUMP_TSV) return dump_facts(o, f, options, e);
    if (dump_facts_gather(&x, f, e)) return -1;
    dump_begin(o, f->source.name);
    print_format(o, f, &l);
    print_model(o, f, &l);
    print_geometry(o, &x, &l);
    print_tokens(o, f, &l);
    print_prefix(o, &x, &l);
    if (x.has_k) print_rope(o, f, &l);
    print_storage(o, &x, &l);
    const int status = print_profile(o, f, &l, e);
    if (o->style == DUMP_HTML) html_unknown(o, &x, &l);
    print_parts(o, &x);
    dump_draw_layers(o, f, options);
    if (o->style != DUMP_HTML) print_unknown(o, &x);
    free(x.part);
    return status;
}
