/* dump_facts.c: collects the facts of the summary, and prints them as JSON and TSV. Not for text
 * (dump_summary.c). */
#include "cli/dump/dump.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_TOKENS 8

static void note(struct dump_shared *s, uint64_t v) {
    s->mixed |= s->seen && s->value != v;
    s->value = v;
    s->seen = 1;
}

int dump_is_one(const struct dump_shared *s) {
    return s->seen && !s->mixed;
}

static void note_dtype(struct dump_dtypes *d, const char *name) {
    for (unsigned i = 0; i < d->n; i++) {
        if (strcmp(d->name[i], name) == 0) return;
    }
    if (d->n < sizeof d->name / sizeof d->name[0]) d->name[d->n++] = name;
}

const char *dump_dtypes_text(const struct dump_dtypes *d, char *text, size_t size) {
    *text = '\0';
    for (unsigned i = 0; i < d->n; i++) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", i ? "," : "", d->name[i]);
    }
    return d->n ? text : NULL;
}

static void gather_tensor(struct dump_facts *x, const struct dump_tensor *t) {
    struct dump_part_facts *part = &x->part[t->more.part];
    const struct kvc_tensor_info *info = &t->info;
    part->bytes += t->more.bytes;
    x->tensor_bytes += t->more.bytes;
    if (strcmp(info->role, "K") == 0 || strcmp(info->role, "latent") == 0) {
        note(&x->heads, info->heads);
        note(&x->k_dim, info->dim);
        note(&part->k_row, info->row_bytes);
        note_dtype(&part->k, info->dtype);
        note_dtype(&x->k, info->dtype);
        x->has_k = 1;
    } else if (strcmp(info->role, "V") == 0) {
        note(&x->v_dim, info->dim);
        note(&part->v_row, info->row_bytes);
        note_dtype(&part->v, info->dtype);
        note_dtype(&x->v, info->dtype);
    } else {
        note_dtype(&x->others, info->dtype);
    }
}

/* Returns 1 for a part whose layers count: neither a further stream, nor a snapshot, which have
 * the same layers. */
static int counts(const struct dump_file *f, uint32_t p) {
    uint32_t first = 0;
    while (strcmp(f->part[first].kind, f->part[p].kind) != 0) first++;
    return strcmp(f->part[p].kind, "snapshot") != 0 && f->part[first].stream == f->part[p].stream;
}

static void gather_layers(struct dump_facts *x) {
    const struct dump_file *f = x->f;
    for (uint32_t i = 0; i < f->facts.layers; i++) {
        const struct kvc_layer_info *layer = &f->layer[i];
        for (unsigned j = 0; j < 2; j++)
            if (layer->tensor[j] != KVC_NO_NUMBER) gather_tensor(x, &f->tensor[layer->tensor[j]]);
        x->part[layer->part].layers++;
        if (strcmp(layer->kind, "window") == 0) {
            x->has_window = 1;
            x->window_known |= layer->window != 0;
        }
        x->layers += strcmp(layer->kind, "companion") != 0 && counts(f, layer->part);
    }
    for (uint32_t p = 0; p < f->facts.parts; p++) {
        const struct kvc_part_info *part = &f->part[p];
        int is_new = !p || strcmp(part[-1].kind, "snapshot") != 0 ||
                     part[-1].snapshot != part->snapshot;
        x->snapshots += strcmp(part->kind, "snapshot") == 0 && is_new;
    }
}

static void missing(struct dump_facts *x, int is_missing, const char *fact, const char *option) {
    if (is_missing) x->unknown[x->n_unknown++] = (struct dump_unknown){fact, option};
}

const char *dump_fingerprint(const struct dump_file *f, size_t *i, struct kvc_meta_value *v) {
    static const char prefix[] = "model.fingerprint.";
    for (const char *key; (key = kvc_file_meta_key(f->cache, (*i)++)) != NULL;) {
        if (strncmp(key, prefix, sizeof prefix - 1) != 0) continue;
        *v = dump_meta(f, key);
        return key + sizeof prefix - 1;
    }
    return NULL;
}

static int absent(const struct dump_facts *x, const char *key) {
    return !dump_has(x->f, key);
}

/* Lists what the type of RoPE needs to rotate K back, and is not there. */
static void gather_unknown_scaling(struct dump_facts *x, const char *model) {
    /* from which on: the scaling factor, the original context, sections */
    static const struct {
        const char *type;
        int factor, original, sections;
    } needs[] = {{"linear", 1, 0, 0},  {"yarn", 1, 1, 0},  {"dynamic", 1, 1, 0},
                 {"llama3", 1, 1, 0},  {"mrope", 0, 0, 1}, {"imrope", 0, 0, 1},
                 {"longrope", 0, 1, 0}};
    const char *type = dump_meta_text(x->f, "rope.type", "");
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        if (strcmp(type, needs[i].type) != 0) continue;
        missing(x, needs[i].factor && absent(x, "rope.factor"), "RoPE factor", model);
        missing(x, needs[i].original && absent(x, "rope.original-context"), "RoPE original context",
                model);
        missing(x, needs[i].sections && absent(x, "rope.sections"), "RoPE sections", model);
    }
}

static void gather_unknown(struct dump_facts *x) {
    const struct kvc_file_facts *facts = &x->f->facts;
    const int given = facts->has_model; /* no advice to give it again */
    const char *model = given ? NULL : "--model=FILE";
    const char *pairing = dump_meta_text(x->f, "rope.pairing", NULL);
    const int rope = x->has_k && !(pairing && strcmp(pairing, "none") == 0);
    struct kvc_meta_value v;
    uint64_t ids;
    size_t i = 0;
    missing(x, absent(x, "model.name") && !dump_fingerprint(x->f, &i, &v), "model", model);
    missing(x, x->has_k && facts->heads_unknown, "number of KV heads",
            given ? "--kv-heads=N" : "--kv-heads=N or --model=FILE");
    missing(x, facts->layers_unknown,
            "layer numbers (each cache of the file counts its own from 0)", NULL);
    missing(x, rope && absent(x, "rope.pairing"), "RoPE pairing",
            given ? "--pairing=P" : "--pairing=P or --model=FILE");
    missing(x, rope && absent(x, "rope.theta"), "RoPE theta", model);
    if (rope) gather_unknown_scaling(x, model);
    missing(x, rope && absent(x, "rope.k"), "whether K is before or after RoPE", NULL);
    missing(x, x->has_k && absent(x, "hadamard.k"), "Hadamard rotation of K", NULL);
    missing(x, x->v.n && absent(x, "hadamard.v"), "Hadamard rotation of V", NULL);
    missing(x, facts->scaled && !facts->scales_known, "scales of values of 8 bits",
            "--scale=K:S,V:S");
    missing(x, x->has_window && !x->window_known && absent(x, "sliding.window"), "sliding window",
            model);
    missing(x, !kvc_file_tokens(x->f->cache, &ids), "token ids", NULL);
}

int dump_facts_gather(struct dump_facts *x, const struct dump_file *f, struct kvc_error *e) {
    *x = (struct dump_facts){.f = f};
    if (kvc_file_extras(f->cache, &x->extras, e)) return -1;
    x->part = calloc((size_t)f->facts.parts + 1, sizeof *x->part);
    if (!x->part) return cli_no_memory(e, "a summary");
    gather_layers(x);
    gather_unknown(x);
    return 0;
}

const char *dump_format_name(const struct dump_file *f) {
    return f->source.packed ? "kvc" : dump_meta_text(f, "source.format", kvc_file_format(f->cache));
}

const char *dump_positions_text(const struct kvc_part_info *part, char *text, size_t size) {
    if (!part->cells) return NULL;
    snprintf(text, size, "%" PRId64 ":%" PRId64, part->first,
             part->last < INT64_MAX ? part->last + 1 : part->last);
    return text;
}

double dump_ratio(const struct dump_facts *x) {
    return x->f->source.bytes ? (double)x->tensor_bytes / (double)x->f->source.bytes : 0;
}

int dump_transform(const struct dump_file *f, const char *role, char *text, size_t size,
                   struct kvc_error *e) {
    *text = '\0';
    for (uint32_t t = 0; t < f->facts.tensors && !*text; t++)
        if (strcmp(f->tensor[t].info.role, role) == 0 &&
            kvc_file_transform(f->cache, t, text, size, e))
            return -1;
    return 0;
}

/* --- JSON and TSV --- */

/* Prints metadata as a fact; lists of numbers as text: "16 24 24". */
static void meta_fact(struct dump_out *o, const struct dump_file *f, const char *name,
                      const char *key) {
    const struct kvc_meta_value v = dump_meta(f, key);
    char text[128];
    if (!v.type || v.text) dump_key_text(o, name, v.text);
    else if (strcmp(v.type, "u64") == 0) dump_key_u64(o, name, v.u64);
    else if (strcmp(v.type, "f64") == 0) dump_key_f64(o, name, v.f64);
    else if (strcmp(v.type, "bool") == 0) dump_key_bool(o, name, (int)v.u64);
    else if (strcmp(v.type, "bytes") == 0) dump_key_hex(o, name, v.bytes, v.n_bytes);
    else dump_key_text(o, name, kvc_file_meta(f->cache, key, text, sizeof text));
}

static void shared_key(struct dump_out *o, const char *name, const struct dump_shared *s,
                       int known) {
    if (known && dump_is_one(s)) dump_key_u64(o, name, s->value);
    else dump_key_none(o, name);
}

static void shared_cell(struct dump_out *o, const struct dump_shared *s) {
    if (dump_is_one(s)) dump_u64(o, s->value);
    else dump_none(o);
}

static void print_format(struct dump_out *o, const struct dump_file *f) {
    dump_key_text(o, "format", dump_format_name(f));
    const uint8_t *id = f->facts.content_id;
    if (f->source.packed) dump_key_u64(o, "version", f->facts.write_version);
    if (f->source.packed) dump_key_hex(o, "content_id", id, sizeof f->facts.content_id);
    else meta_fact(o, f, "version", "source.version");
    meta_fact(o, f, "producer", "producer");
    dump_group(o, "source");
    meta_fact(o, f, "format", "source.format");
    meta_fact(o, f, "version", "source.version");
    meta_fact(o, f, "bytes", "source.bytes");
    dump_key_bool(o, "restorable", f->source.has_bytes);
    dump_group_end(o);
}

static void print_model(struct dump_out *o, const struct dump_file *f) {
    struct kvc_meta_value v;
    const char *name;
    dump_group(o, "model");
    meta_fact(o, f, "name", "model.name");
    meta_fact(o, f, "architecture", "model.architecture");
    meta_fact(o, f, "layers", "model.layers");
    meta_fact(o, f, "heads", "model.heads");
    meta_fact(o, f, "kv_heads", "model.kv-heads");
    meta_fact(o, f, "adapters", "model.adapters");
    dump_group_end(o);
    dump_group(o, "fingerprint");
    for (size_t i = 0; (name = dump_fingerprint(f, &i, &v)) != NULL;)
        dump_key_hex(o, name, v.bytes, v.n_bytes);
    dump_group_end(o);
}

static void print_rope(struct dump_out *o, const struct dump_file *f) {
    dump_group(o, "rope");
    meta_fact(o, f, "k", "rope.k");
    meta_fact(o, f, "pairing", "rope.pairing");
    dump_key_bool(o, "pairing_assumed", (int)dump_meta(f, "rope.pairing-assumed").u64);
    meta_fact(o, f, "type", "rope.type");
    meta_fact(o, f, "theta", "rope.theta");
    meta_fact(o, f, "dim", "rope.dim");
    meta_fact(o, f, "factor", "rope.factor");
    meta_fact(o, f, "original_context", "rope.original-context");
    meta_fact(o, f, "sections", "rope.sections");
    if (dump_has(f, "rope.scaling")) meta_fact(o, f, "scaling", "rope.scaling");
    dump_group_end(o);
    dump_group(o, "hadamard");
    meta_fact(o, f, "k", "hadamard.k");
    meta_fact(o, f, "v", "hadamard.v");
    dump_group_end(o);
    if (!f->facts.scaled) return;
    dump_group(o, "scale");
    meta_fact(o, f, "k", "scale.k");
    meta_fact(o, f, "v", "scale.v");
    meta_fact(o, f, "source", "scale.source");
    dump_group_end(o);
}

static void print_tokens(struct dump_out *o, const struct dump_facts *x) {
    const struct dump_file *f = x->f;
    uint64_t n;
    const int32_t *id = kvc_file_tokens(f->cache, &n);
    dump_group(o, "tokens");
    if (id) dump_key_u64(o, "count", n);
    else dump_key_none(o, "count");
    dump_key_i32s(o, "first", id, !id ? 0 : n < SHOWN_TOKENS ? n : SHOWN_TOKENS);
    dump_group_end(o);
    dump_group(o, "prefix");
    meta_fact(o, f, "identity", "prefix.identity");
    dump_key_u64(o, "keys", f->facts.prefix_keys);
    meta_fact(o, f, "first", "tokens.first");
    meta_fact(o, f, "parent", "prefix.parent");
    dump_key_u64(o, "extras", x->extras);
    meta_fact(o, f, "space", "prefix.space");
    dump_group_end(o);
}

/* Prints the profile that decoding needs, its place, and how the transform codec coded its first K
 * and its first V. */
static int print_profile(struct dump_out *o, const struct dump_file *f, struct kvc_error *e) {
    char k[128], v[128];
    dump_group(o, "profile");
    meta_fact(o, f, "model", "profile.model");
    meta_fact(o, f, "sha256", "profile.sha256");
    dump_key_text(o, "place", f->facts.profile);
    meta_fact(o, f, "fit", "profile.fit");
    meta_fact(o, f, "fit_k", "profile.fit-k");
    meta_fact(o, f, "fit_v", "profile.fit-v");
    dump_group_end(o);
    if (dump_transform(f, "K", k, sizeof k, e) || dump_transform(f, "V", v, sizeof v, e)) return -1;
    dump_group(o, "transform");
    dump_key_text(o, "k", *k ? k : NULL);
    dump_key_text(o, "v", *v ? v : NULL);
    dump_group_end(o);
    return 0;
}

static void print_sizes(struct dump_out *o, const struct dump_facts *x) {
    const struct kvc_source_info *source = &x->f->source;
    dump_group(o, "bytes");
    dump_key_u64(o, "file", source->bytes);
    dump_key_text(o, "filter", *source->filter ? source->filter : NULL);
    dump_key_u64(o, "tensors", x->tensor_bytes);
    if (source->packed) dump_key_f64(o, "ratio", dump_ratio(x));
    else dump_key_none(o, "ratio"); /* the file was not packed */
    dump_group_end(o);
}

static void part_row(struct dump_out *o, const struct dump_facts *x, uint32_t p) {
    const struct kvc_part_info *part = &x->f->part[p];
    const struct dump_part_facts *facts = &x->part[p];
    char text[64];
    dump_row(o);
    dump_u64(o, p);
    dump_text(o, part->kind);
    dump_u64(o, part->stream);
    if (strcmp(part->kind, "snapshot") == 0) dump_u64(o, part->snapshot);
    else dump_none(o);
    dump_u64(o, part->cells);
    for (unsigned i = 0; i < 2; i++) {
        if (part->cells) dump_i64(o, i ? part->last : part->first);
        else dump_none(o);
    }
    dump_bool(o, part->ascending);
    dump_u64(o, facts->layers);
    dump_text(o, dump_dtypes_text(&facts->k, text, sizeof text));
    dump_text(o, dump_dtypes_text(&facts->v, text, sizeof text));
    shared_cell(o, &facts->k_row);
    shared_cell(o, &facts->v_row);
    dump_u64(o, facts->bytes);
    dump_row_end(o);
}

static void print_parts(struct dump_out *o, const struct dump_facts *x) {
    static const struct dump_column columns[] = {
        {"part", 0},    {"kind", 0},        {"stream", 0},        {"snapshot", 0}, {"cells", 0},
        {"pos_min", 0}, {"pos_max", 0},     {"pos_ascending", 0}, {"layers", 0},   {"k_dtype", 0},
        {"v_dtype", 0}, {"k_row_bytes", 0}, {"v_row_bytes", 0},   {"bytes", 0},    {NULL, 0}};
    dump_table(o, "parts", "part", columns);
    for (uint32_t p = 0; p < x->f->facts.parts; p++) part_row(o, x, p);
    dump_table_end(o);
}

static void print_unknown(struct dump_out *o, const struct dump_facts *x) {
    static const struct dump_column columns[] = {{"fact", 0}, {"option", 0}, {NULL, 0}};
    dump_table(o, "unknown", "unknown", columns);
    for (unsigned i = 0; i < x->n_unknown; i++) {
        dump_row(o);
        dump_text(o, x->unknown[i].fact);
        dump_text(o, x->unknown[i].option);
        dump_row_end(o);
    }
    dump_table_end(o);
}

int dump_facts(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
               struct kvc_error *e) {
    struct dump_facts x;
    (void)options;
    if (dump_facts_gather(&x, f, e)) return -1;
    dump_begin(o, f->source.name);
    const int known = !f->facts.heads_unknown;
    print_format(o, f);
    print_model(o, f);
    dump_key_u64(o, "layers", x.layers);
    shared_key(o, "kv_heads", &x.heads, known);
    shared_key(o, "head_dim", &x.k_dim, known);
    shared_key(o, "head_dim_v", &x.v_dim, known);
    print_parts(o, &x);
    dump_key_u64(o, "snapshots", x.snapshots);
    print_tokens(o, &x);
    meta_fact(o, f, "token_form", "llama.token-form");
    meta_fact(o, f, "transposed_v", "llama.transposed-v");
    print_rope(o, f);
    meta_fact(o, f, "sliding_window", "sliding.window");
    meta_fact(o, f, "page_size", "page.size");
    meta_fact(o, f, "shard_rank", "shard.rank");
    meta_fact(o, f, "shard_ranks", "shard.ranks");
    meta_fact(o, f, "shard_set", "shard.set");
    meta_fact(o, f, "recipe", "recipe");
    meta_fact(o, f, "values_recipe", "values.recipe");
    meta_fact(o, f, "values_content", "values.content");
    const int status = print_profile(o, f, e);
    print_sizes(o, &x);
    print_unknown(o, &x);
    free(x.part);
    return status;
}
