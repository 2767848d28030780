/* dump_facts.c: collects the facts of the summary, and prints them as JSON and TSV. Not for text
 * (dump_summary.c). */
#include "cli/dump/dump_facts.h"
#include "formats/container/container.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix_extras.h"
#include "formats/cache/scales.h"

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

static void gather_tensor(struct dump_facts *x, struct dump_part_facts *part,
                          const struct kvc_tensor *t) {
    const struct kvc_shape *shape = &t->shape;
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    uint64_t row = kvc_row_bytes(shape);
    part->bytes += shape->tokens * row;
    x->tensor_bytes += shape->tokens * row;
    switch (t->role) {
    case KVC_ROLE_K:
    case KVC_ROLE_LATENT:
        note(&x->heads, shape->heads);
        note(&x->k_dim, shape->dim);
        note(&part->k_row, row);
        note_dtype(&part->k, info->name);
        note_dtype(&x->k, info->name);
        x->has_k = 1;
        break;
    case KVC_ROLE_V:
        note(&x->v_dim, shape->dim);
        note(&part->v_row, row);
        note_dtype(&part->v, info->name);
        note_dtype(&x->v, info->name);
        break;
    default: note_dtype(&x->others, info->name);
    }
}

static void gather_layers(struct dump_facts *x) {
    const struct kvc_cache *c = x->c;
    uint32_t stream[KVC_PART_COMPANION + 1] = {0};
    /* the first part of each kind */
    for (uint32_t p = c->n_parts; p-- > 0;) stream[c->part[p].kind] = c->part[p].stream;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_layer *layer = &c->layer[i];
        const struct kvc_part *part = &c->part[layer->part];
        for (unsigned j = 0; j < 2; j++) {
            if (layer->tensor[j] != KVC_NONE)
                gather_tensor(x, &x->part[layer->part], &c->tensor[layer->tensor[j]]);
        }
        x->part[layer->part].layers++;
        if (layer->kind == KVC_LAYER_WINDOW) {
            x->has_window = 1;
            x->window_known |= layer->window != 0;
        }
        /* Skips further streams and snapshots, which have the same layers. */
        x->layers += layer->kind != KVC_LAYER_COMPANION && part->kind != KVC_PART_SNAPSHOT &&
                     part->stream == stream[part->kind];
    }
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const struct kvc_part *part = &c->part[p];
        int is_new = !p || part[-1].kind != KVC_PART_SNAPSHOT ||
                     part[-1].snapshot != part->snapshot;
        x->snapshots += part->kind == KVC_PART_SNAPSHOT && is_new;
    }
}

static void missing(struct dump_facts *x, int is_missing, const char *fact, const char *option) {
    if (is_missing) x->unknown[x->n_unknown++] = (struct dump_unknown){fact, option};
}

static int has_fingerprint(const struct kvc_meta *meta) {
    for (size_t i = 0; i < meta->n; i++) {
        if (strncmp(meta->entry[i].key, KVC_KEY_FINGERPRINT, strlen(KVC_KEY_FINGERPRINT)) == 0)
            return 1;
    }
    return 0;
}

static int absent(const struct dump_facts *x, const char *key) {
    return !kvc_meta_find(x->meta, key);
}

static int scales_known(const struct kvc_cache *c) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_scales_need(c, t, NULL)) return 0;
    return 1;
}

/* Lists what the type of RoPE needs to rotate K back, and is not there. */
static void gather_unknown_scaling(struct dump_facts *x, const char *model) {
    const enum kvc_rope_type type = x->meta->facts.rope.type;
    const int dynamic = strcmp(kvc_meta_text(x->meta, KVC_KEY_ROPE_TYPE, ""), "dynamic") == 0;
    const int yarn = type == KVC_ROPE_TYPE_YARN,
              several = type == KVC_ROPE_TYPE_MROPE || type == KVC_ROPE_TYPE_IMROPE;
    const int of_context = yarn || dynamic || type == KVC_ROPE_TYPE_LLAMA3;
    missing(x, (of_context || type == KVC_ROPE_TYPE_LINEAR) && absent(x, KVC_KEY_ROPE_FACTOR),
            "RoPE factor", model);
    missing(x, (of_context || type == KVC_ROPE_TYPE_LONGROPE) && absent(x, KVC_KEY_ROPE_ORIGINAL),
            "RoPE original context", model);
    missing(x, several && absent(x, KVC_KEY_ROPE_SECTIONS), "RoPE sections", model);
}

static void gather_unknown(struct dump_facts *x) {
    const int given = x->file->has_model; /* no advice to give it again */
    const char *model = given ? NULL : "--model=FILE";
    int pairing = !absent(x, KVC_KEY_ROPE_PAIRING);
    int unrotated = pairing &&
                    strcmp(kvc_meta_text(x->meta, KVC_KEY_ROPE_PAIRING, ""), "none") == 0;
    int rope = x->has_k && !unrotated;
    missing(x, absent(x, KVC_KEY_MODEL_NAME) && !has_fingerprint(x->meta), "model", model);
    missing(x, x->has_k && !x->heads_known, "number of KV heads",
            given ? "--kv-heads=N" : "--kv-heads=N or --model=FILE");
    missing(x, x->meta->facts.layers_unknown,
            "layer numbers (each cache of the file counts its own from 0)", NULL);
    missing(x, rope && !pairing, "RoPE pairing",
            given ? "--pairing=P" : "--pairing=P or --model=FILE");
    missing(x, rope && absent(x, KVC_KEY_ROPE_THETA), "RoPE theta", model);
    if (rope) gather_unknown_scaling(x, model);
    missing(x, rope && absent(x, KVC_KEY_ROPE_K), "whether K is before or after RoPE", NULL);
    missing(x, x->has_k && absent(x, KVC_KEY_HADAMARD_K), "Hadamard rotation of K", NULL);
    missing(x, x->v.n && absent(x, KVC_KEY_HADAMARD_V), "Hadamard rotation of V", NULL);
    missing(x, kvc_cache_is_scaled(x->c) && !scales_known(x->c), "scales of values of 8 bits",
            "--scale=K:S,V:S");
    missing(x, x->has_window && !x->window_known && absent(x, KVC_KEY_WINDOW), "sliding window",
            model);
    missing(x, !x->c->tokens, "token ids", NULL);
}

int dump_facts_gather(struct dump_facts *x, const struct kvc_opened *f, struct kvc_error *e) {
    struct kvc_extra *extra;
    *x = (struct dump_facts){.file = f, .c = f->cache, .meta = &f->cache->meta};
    if (kvc_extras_list(x->meta, &extra, &x->extras, e)) return -1;
    free(extra);
    x->is_container = kvc_cache_is_container(f->cache);
    x->heads_known = !f->cache->meta.facts.heads_unknown;
    x->part = calloc((size_t)f->cache->n_parts + 1, sizeof *x->part);
    if (!x->part) return kvc_fail_memory(e, "a summary");
    gather_layers(x);
    gather_unknown(x);
    return 0;
}

const char *dump_format_name(const struct dump_facts *x) {
    return x->is_container ? "kvc"
                           : kvc_meta_text(x->meta, KVC_KEY_SOURCE_FORMAT, x->file->format->name);
}

int dump_is_ascending(const struct kvc_cells *cells) {
    for (uint64_t i = 1; i < cells->n; i++) {
        if (cells->pos[i] <= cells->pos[i - 1]) return 0;
    }
    return 1;
}

const char *dump_positions_text(const struct kvc_cells *cells, char *text, size_t size) {
    if (!cells->n) return NULL;
    const int64_t last = kvc_cells_position(cells, cells->n - 1);
    snprintf(text, size, "%" PRId64 ":%" PRId64, kvc_cells_position(cells, 0),
             last < INT64_MAX ? last + 1 : last);
    return text;
}

double dump_ratio(const struct dump_facts *x) {
    const uint64_t size = kvc_opened_size(x->file);
    return size ? (double)x->tensor_bytes / (double)size : 0;
}

/* --- JSON and TSV --- */

static void meta_text(struct dump_out *o, const char *name, const struct kvc_meta *m,
                      const char *key) {
    dump_key_text(o, name, kvc_meta_text(m, key, NULL));
}

static void meta_u64(struct dump_out *o, const char *name, const struct kvc_meta *m,
                     const char *key) {
    if (kvc_meta_find(m, key)) dump_key_u64(o, name, kvc_meta_u64(m, key, 0));
    else dump_key_none(o, name);
}

static void meta_f64(struct dump_out *o, const char *name, const struct kvc_meta *m,
                     const char *key) {
    if (kvc_meta_find(m, key)) dump_key_f64(o, name, kvc_meta_f64(m, key, 0));
    else dump_key_none(o, name);
}

static void meta_bool(struct dump_out *o, const char *name, const struct kvc_meta *m,
                      const char *key) {
    if (kvc_meta_find(m, key)) dump_key_bool(o, name, kvc_meta_bool(m, key, 0));
    else dump_key_none(o, name);
}

/* Prints a list of numbers as text: "16 24 24". */
static void meta_counts(struct dump_out *o, const char *name, const struct kvc_meta *m,
                        const char *key) {
    const struct kvc_meta_entry *entry = kvc_meta_find(m, key);
    char text[128];
    if (entry) kvc_meta_print(entry, text, sizeof text);
    dump_key_text(o, name, entry ? text : NULL);
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

static void print_format(struct dump_out *o, const struct dump_facts *x) {
    const struct kvc_meta *m = x->meta;
    dump_key_text(o, "format", dump_format_name(x));
    if (x->is_container) {
        dump_key_u64(o, "version", kvc_container_header(x->c).write_version);
    } else {
        meta_u64(o, "version", m, KVC_KEY_SOURCE_VERSION);
    }
    meta_text(o, "producer", m, KVC_KEY_PRODUCER);
    dump_group(o, "source");
    meta_text(o, "format", m, KVC_KEY_SOURCE_FORMAT);
    meta_u64(o, "version", m, KVC_KEY_SOURCE_VERSION);
    meta_u64(o, "bytes", m, KVC_KEY_SOURCE_BYTES);
    dump_key_bool(o, "restorable", x->c->n_extents != 0);
    dump_group_end(o);
}

static void print_model(struct dump_out *o, const struct dump_facts *x) {
    const struct kvc_meta *m = x->meta;
    dump_group(o, "model");
    meta_text(o, "name", m, KVC_KEY_MODEL_NAME);
    meta_text(o, "architecture", m, KVC_KEY_MODEL_ARCH);
    meta_u64(o, "layers", m, KVC_KEY_MODEL_LAYERS);
    meta_u64(o, "heads", m, KVC_KEY_MODEL_HEADS);
    meta_u64(o, "kv_heads", m, KVC_KEY_MODEL_KV_HEADS);
    meta_text(o, "adapters", m, KVC_KEY_MODEL_ADAPTERS);
    dump_group_end(o);
    dump_group(o, "fingerprint");
    for (size_t i = 0; i < m->n; i++) {
        const struct kvc_meta_entry *entry = &m->entry[i];
        size_t prefix = strlen(KVC_KEY_FINGERPRINT);
        if (strncmp(entry->key, KVC_KEY_FINGERPRINT, prefix) == 0)
            dump_key_hex(o, entry->key + prefix, entry->value, entry->size);
    }
    dump_group_end(o);
}

static void print_rope(struct dump_out *o, const struct kvc_meta *m) {
    dump_group(o, "rope");
    meta_text(o, "k", m, KVC_KEY_ROPE_K);
    meta_text(o, "pairing", m, KVC_KEY_ROPE_PAIRING);
    dump_key_bool(o, "pairing_assumed", kvc_meta_bool(m, KVC_KEY_ROPE_ASSUMED, 0));
    meta_text(o, "type", m, KVC_KEY_ROPE_TYPE);
    meta_f64(o, "theta", m, KVC_KEY_ROPE_THETA);
    meta_u64(o, "dim", m, KVC_KEY_ROPE_DIM);
    meta_f64(o, "factor", m, KVC_KEY_ROPE_FACTOR);
    meta_u64(o, "original_context", m, KVC_KEY_ROPE_ORIGINAL);
    meta_counts(o, "sections", m, KVC_KEY_ROPE_SECTIONS);
    if (kvc_meta_find(m, KVC_KEY_ROPE_SCALING)) meta_text(o, "scaling", m, KVC_KEY_ROPE_SCALING);
    dump_group_end(o);
    dump_group(o, "hadamard");
    meta_u64(o, "k", m, KVC_KEY_HADAMARD_K);
    meta_u64(o, "v", m, KVC_KEY_HADAMARD_V);
    dump_group_end(o);
}

static void print_scales(struct dump_out *o, const struct kvc_cache *c) {
    if (!kvc_cache_is_scaled(c)) return;
    dump_group(o, "scale");
    meta_text(o, "k", &c->meta, KVC_KEY_SCALE_K);
    meta_text(o, "v", &c->meta, KVC_KEY_SCALE_V);
    meta_text(o, "source", &c->meta, KVC_KEY_SCALE_SOURCE);
    dump_group_end(o);
}

static void print_tokens(struct dump_out *o, const struct kvc_cache *c) {
    uint64_t shown = c->n_tokens < SHOWN_TOKENS ? c->n_tokens : SHOWN_TOKENS;
    dump_group(o, "tokens");
    if (c->tokens) dump_key_u64(o, "count", c->n_tokens);
    else dump_key_none(o, "count");
    dump_key_i32s(o, "first", c->tokens, c->tokens ? shown : 0);
    dump_group_end(o);
}

static void meta_hex(struct dump_out *o, const char *name, const struct kvc_meta *m,
                     const char *key) {
    const struct kvc_meta_entry *entry = kvc_meta_find(m, key);
    if (entry) dump_key_hex(o, name, entry->value, entry->size);
    else dump_key_none(o, name);
}

static void print_prefix(struct dump_out *o, const struct dump_facts *x) {
    dump_group(o, "prefix");
    meta_text(o, "identity", x->meta, KVC_KEY_PREFIX_IDENTITY);
    dump_key_u64(o, "keys", x->c->n_prefix_keys);
    meta_u64(o, "first", x->meta, KVC_KEY_TOKENS_FIRST);
    meta_hex(o, "parent", x->meta, KVC_KEY_PREFIX_PARENT);
    dump_key_u64(o, "extras", x->extras);
    meta_hex(o, "space", x->meta, KVC_KEY_PREFIX_SPACE);
    dump_group_end(o);
}

/* Prints the profile that decoding needs, its place, and how the transform codec coded its first K
 * and its first V. */
static int print_profile(struct dump_out *o, const struct dump_facts *x, struct kvc_error *e) {
    const struct kvc_meta_entry *hash = kvc_meta_find(x->meta, KVC_KEY_PROFILE);
    const int container = kvc_cache_is_container(x->c);
    int embedded = 0;
    const struct kvc_profile *p = container && hash ? kvc_container_profile(x->c, &embedded) : NULL;
    char text[2][128] = {"", ""};
    dump_group(o, "profile");
    meta_text(o, "model", x->meta, KVC_KEY_PROFILE_MODEL);
    if (hash) dump_key_hex(o, "sha256", hash->value, hash->size);
    else dump_key_none(o, "sha256");
    dump_key_text(o, "place",
                  !hash || !container ? NULL
                  : embedded          ? "inside"
                  : p                 ? "found"
                                      : "missing");
    meta_text(o, "fit", x->meta, KVC_KEY_PROFILE_FIT);
    meta_f64(o, "fit_k", x->meta, KVC_KEY_PROFILE_FIT_K);
    meta_f64(o, "fit_v", x->meta, KVC_KEY_PROFILE_FIT_V);
    dump_group_end(o);
    for (uint32_t t = 0; t < x->c->n_tensors && container; t++) {
        const unsigned role = x->c->tensor[t].role;
        if (role <= KVC_ROLE_V && !*text[role] &&
            kvc_container_transform(x->c, t, text[role], sizeof text[role], e))
            return -1;
    }
    dump_group(o, "transform");
    dump_key_text(o, "k", *text[KVC_ROLE_K] ? text[KVC_ROLE_K] : NULL);
    dump_key_text(o, "v", *text[KVC_ROLE_V] ? text[KVC_ROLE_V] : NULL);
    dump_group_end(o);
    return 0;
}

static void print_sizes(struct dump_out *o, const struct dump_facts *x) {
    const char *filter = x->file->input.filter;
    dump_group(o, "bytes");
    dump_key_u64(o, "file", kvc_opened_size(x->file));
    dump_key_text(o, "filter", *filter ? filter : NULL);
    dump_key_u64(o, "tensors", x->tensor_bytes);
    if (x->is_container) dump_key_f64(o, "ratio", dump_ratio(x));
    else dump_key_none(o, "ratio"); /* the file was not packed */
    dump_group_end(o);
}

static void part_row(struct dump_out *o, const struct dump_facts *x, uint32_t p) {
    const struct kvc_part *part = &x->c->part[p];
    const struct dump_part_facts *facts = &x->part[p];
    const struct kvc_cells *cells = &part->cells;
    char text[64];
    dump_row(o);
    dump_u64(o, p);
    dump_text(o, kvc_part_kind_name(part->kind));
    dump_u64(o, part->stream);
    if (part->kind == KVC_PART_SNAPSHOT) dump_u64(o, part->snapshot);
    else dump_none(o);
    dump_u64(o, cells->n);
    for (unsigned i = 0; i < 2; i++) {
        if (cells->n) dump_i64(o, kvc_cells_position(cells, i ? cells->n - 1 : 0));
        else dump_none(o);
    }
    dump_bool(o, dump_is_ascending(cells));
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
    for (uint32_t p = 0; p < x->c->n_parts; p++) part_row(o, x, p);
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

int dump_facts(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
               struct kvc_error *e) {
    struct dump_facts x;
    (void)options;
    if (dump_facts_gather(&x, f, e)) return -1;
    dump_begin(o, f->input.name);
    print_format(o, &x);
    print_model(o, &x);
    dump_key_u64(o, "layers", x.layers);
    shared_key(o, "kv_heads", &x.heads, x.heads_known);
    shared_key(o, "head_dim", &x.k_dim, x.heads_known);
    shared_key(o, "head_dim_v", &x.v_dim, x.heads_known);
    print_parts(o, &x);
    dump_key_u64(o, "snapshots", x.snapshots);
    print_tokens(o, x.c);
    print_prefix(o, &x);
    meta_text(o, "token_form", x.meta, KVC_KEY_LLAMA_TOKEN_FORM);
    meta_bool(o, "transposed_v", x.meta, KVC_KEY_LLAMA_TRANSPOSED_V);
    print_rope(o, x.meta);
    print_scales(o, x.c);
    meta_u64(o, "sliding_window", x.meta, KVC_KEY_WINDOW);
    meta_u64(o, "page_size", x.meta, KVC_KEY_PAGE_SIZE);
    meta_u64(o, "shard_rank", x.meta, KVC_KEY_SHARD_RANK);
    meta_u64(o, "shard_ranks", x.meta, KVC_KEY_SHARD_RANKS);
    meta_hex(o, "shard_set", x.meta, KVC_KEY_SHARD_SET);
    meta_text(o, "recipe", x.meta, KVC_KEY_RECIPE);
    meta_text(o, "values_recipe", x.meta, KVC_KEY_VALUES_RECIPE);
    const int status = print_profile(o, &x, e);
    print_sizes(o, &x);
    print_unknown(o, &x);
    free(x.part);
    return status;
}
