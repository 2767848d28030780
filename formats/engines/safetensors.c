/* safetensors.c: KV caches as named tensors in safetensors files, whose tensors cover the data
 * without holes. Not for the layout of the header (safetensors_file.h) or the meaning of names
 * (arrays_names.c). */
#include "formats/engines/arrays_write.h"
#include "codecs/memory.h"
#include "codecs/number.h"
#include "formats/cache/rope_names.h"
#include "formats/io/bytes.h"
#include "formats/io/hash.h"
#include "formats/io/json_text.h"
#include "formats/io/safetensors_file.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/cache/scales.h"
#include "formats/cache/values.h"
#include "formats/cache/mapped.h"
#include "formats/engines/arrays_list.h"
#include "formats/engines/import.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Entries of "__metadata__", for both directions, of the types that facts have (facts.h). Files of
 * other programs hold them as text, if at all; an entry that cannot be parsed counts as not
 * recorded. */
static const struct fact {
    const char *name, *key;
} facts[] = {
    {"model", KVC_KEY_MODEL_NAME},
    {"architecture", KVC_KEY_MODEL_ARCH},
    {"n_layers", KVC_KEY_MODEL_LAYERS},
    {"n_heads", KVC_KEY_MODEL_HEADS},
    {"n_kv_heads", KVC_KEY_MODEL_KV_HEADS},
    {"head_dim", KVC_KEY_MODEL_HEAD_DIM},
    {"hidden", KVC_KEY_HIDDEN_STATES},
    {"k_rope", KVC_KEY_ROPE_K},
    {"rope_type", KVC_KEY_ROPE_TYPE},
    {"rope_theta", KVC_KEY_ROPE_THETA},
    {"rope_dim", KVC_KEY_ROPE_DIM},
    {"rope_factor", KVC_KEY_ROPE_FACTOR},
    {"rope_original_context", KVC_KEY_ROPE_ORIGINAL},
    {"rope_source", KVC_KEY_ROPE_SOURCE},
    {"rope_sections", KVC_KEY_ROPE_SECTIONS}, /* a JSON list */
    {"rope_scaling", KVC_KEY_ROPE_SCALING},   /* read_scaling() reads it */
    {"tokens_first", KVC_KEY_TOKENS_FIRST},
    {"hadamard_k", KVC_KEY_HADAMARD_K}, /* "unknown", or written unless 0 */
    {"hadamard_v", KVC_KEY_HADAMARD_V},
    {"heads_known", KVC_KEY_HEADS_KNOWN}, /* written only as "false" */
    {"layers_known", KVC_KEY_LAYERS_KNOWN},
    {"head_dim_v", KVC_KEY_MODEL_HEAD_DIM_V},
    {"sliding_window", KVC_KEY_WINDOW},
    {"adapters", KVC_KEY_MODEL_ADAPTERS},
    {"scale_k", KVC_KEY_SCALE_K},
    {"scale_v", KVC_KEY_SCALE_V},
    {"scale_source", KVC_KEY_SCALE_SOURCE},
    {"shard_rank", KVC_KEY_SHARD_RANK},
    {"shard_ranks", KVC_KEY_SHARD_RANKS},
    {"shard_set", KVC_KEY_SHARD_SET},
    {"tokenizer_sha256", KVC_KEY_TOKENIZER},
    {"values_recipe", KVC_KEY_VALUES_RECIPE},
    {"values_profile", KVC_KEY_VALUES_PROFILE},
    {"values_content", KVC_KEY_VALUES_CONTENT},
    {"fingerprint_gguf_sampled", KVC_KEY_FINGERPRINT "gguf.sampled"},
    {"fingerprint_gguf_pieces", KVC_KEY_FINGERPRINT "gguf.pieces"},
    {"fingerprint_safetensors_sampled", KVC_KEY_FINGERPRINT "safetensors.sampled"},
    {"fingerprint_safetensors_pieces", KVC_KEY_FINGERPRINT "safetensors.pieces"},
};

/* --- reading --- */

static const char *const suffixes[] = {".safetensors", NULL};

static int safetensors_probe_file(const struct kvc_bundle *b, size_t i, const struct kvc_input *in,
                                  char *why, size_t size) {
    uint8_t head[9];
    const uint64_t have = in->size < sizeof head ? in->size : sizeof head;
    (void)b;
    (void)i;
    if (!kvc_input_copy(in, 0, head, have, NULL))
        return kvc_safetensors_begins(head, have, why, size) != 0;
    snprintf(why, size, "the file cannot be read");
    return 0;
}

static int safetensors_probe(const struct kvc_bundle *b, char *why, size_t size) {
    return kvc_members_probe(b, suffixes, "no file is named *.safetensors", safetensors_probe_file,
                             why, size);
}

/* Reads a whole number; the text must hold nothing else. */
static int parse_count(const char *text, uint64_t *count) {
    char *end;
    if (*text < '0' || *text > '9' || strlen(text) > 18) return -1;
    *count = strtoull(text, &end, 10);
    return *end ? -1 : 0;
}

static size_t hash_bytes(const struct fact *fact) {
    return strcmp(fact->key, KVC_KEY_SHARD_SET) ? KVC_SHA256_BYTES : KVC_SHARD_SET_BYTES;
}

static int is_tile(const struct fact *fact) {
    return strcmp(fact->key, KVC_KEY_HADAMARD_K) == 0 || strcmp(fact->key, KVC_KEY_HADAMARD_V) == 0;
}

/* Reads n bytes as hexadecimal digits. */
static int parse_hash(const char *text, uint8_t *hash, size_t n) {
    if (strlen(text) != 2 * n) return -1;
    for (size_t i = 0; i < n; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};
        if (strspn(digits, "0123456789abcdef") != 2) return -1;
        hash[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return 0;
}

/* Reads a number; 0 when the text is none. */
static double parse_number(const char *text) {
    double number;
    return kvc_number_read(text, &number) ? 0 : number;
}

static int read_counts(struct kvc_meta *meta, const char *key, const char *text,
                       struct kvc_error *e) {
    uint64_t counts[16];
    json_t *list = kvc_json_load(text, strlen(text), 0, NULL);
    const size_t n = json_array_size(list);
    int good = n && n <= sizeof counts / sizeof counts[0];
    for (size_t i = 0; good && i < n; i++) {
        const json_int_t v = json_integer_value(json_array_get(list, i));
        good = json_is_integer(json_array_get(list, i)) && v >= 0;
        counts[i] = (uint64_t)v;
    }
    json_decref(list);
    return good ? kvc_meta_set_u64s(meta, key, counts, n, e) : 0;
}

/* Reads the text "rope_scaling", which is config.json's object. Entries of their own come after it
 * and count more. */
static int read_scaling(struct kvc_meta *meta, const char *text, struct kvc_error *e) {
    json_t *object = text ? kvc_json_load(text, strlen(text), 0, NULL) : NULL;
    struct kvc_rope_scaling s;
    kvc_rope_scaling_read(&s, object);
    int status = s.type && *s.type ? kvc_meta_set_text(meta, KVC_KEY_ROPE_TYPE, s.type, e) : 0;
    if (!status && s.factor > 0) status = kvc_meta_set_f64(meta, KVC_KEY_ROPE_FACTOR, s.factor, e);
    if (!status && s.original)
        status = kvc_meta_set_u64(meta, KVC_KEY_ROPE_ORIGINAL, s.original, e);
    if (!status && s.n_sections)
        status = kvc_meta_set_u64s(meta, KVC_KEY_ROPE_SECTIONS, s.section, s.n_sections, e);
    if (!status && *s.more) status = kvc_meta_set_text(meta, KVC_KEY_ROPE_SCALING, s.more, e);
    json_decref(object);
    return status;
}

static int read_fact(struct kvc_meta *meta, const struct fact *fact, const char *text,
                     struct kvc_error *e) {
    uint64_t count;
    double number;
    uint8_t hash[KVC_SHA256_BYTES];
    switch (kvc_fact_type(fact->key)) {
    case KVC_META_BOOL: return strcmp(text, "false") ? 0 : kvc_meta_set_bool(meta, fact->key, 0, e);
    case KVC_META_U64:
        if (is_tile(fact) && strcmp(text, "unknown") == 0) kvc_meta_remove(meta, fact->key);
        return parse_count(text, &count) ? 0 : kvc_meta_set_u64(meta, fact->key, count, e);
    case KVC_META_U64S: return read_counts(meta, fact->key, text, e);
    case KVC_META_F64:
        number = parse_number(text);
        return number > 0 ? kvc_meta_set_f64(meta, fact->key, number, e) : 0;
    case KVC_META_BYTES:
        return parse_hash(text, hash, hash_bytes(fact))
                   ? 0
                   : kvc_meta_set_bytes(meta, fact->key, hash, hash_bytes(fact), e);
    default: /* read_scaling() has read the object */
        if (strcmp(fact->key, KVC_KEY_ROPE_SCALING) == 0 ||
            kvc_fact_value_check(fact->key, text, NULL))
            return 0;
        return kvc_meta_set_text(meta, fact->key, text, e);
    }
}

/* The headers of the members that are read, and all their arrays. */
struct headers {
    struct kvc_safetensors *of; /* by member; empty where a member is not read */
    size_t n;
    struct kvc_array_list list;
};

static void headers_free(struct headers *h) {
    for (size_t i = 0; i < h->n; i++) kvc_safetensors_free(&h->of[i]);
    free(h->of);
    kvc_arrays_clear(&h->list);
}

/* Returns a text of the metadata of the first member that has any metadata; NULL where it has no
 * such text. */
static const char *text_of(const struct headers *h, const char *key) {
    for (size_t i = 0; i < h->n; i++)
        if (kvc_safetensors_has_metadata(&h->of[i])) return kvc_safetensors_text(&h->of[i], key);
    return NULL;
}

static int add_arrays(struct headers *h, size_t member, const struct kvc_input *in,
                      struct kvc_error *e) {
    struct kvc_array a;
    for (size_t t = 0; t < h->of[member].n; t++) {
        if (kvc_array_of_safetensors(&a, &h->of[member].tensor[t], &h->of[member], in, e))
            return -1;
        a.member = member;
        if (kvc_arrays_add(&h->list, &a, e)) return -1;
    }
    return 0;
}

static int read_headers(struct headers *h, const struct kvc_bundle *b,
                        const struct kvc_import_options *o, struct kvc_error *e) {
    memset(h, 0, sizeof *h);
    if (!(h->of = kvc_alloc_zeros(b->n, sizeof *h->of))) return kvc_fail_memory(e, "headers");
    for (; h->n < b->n; h->n++) {
        if (!kvc_member_is_read(b, h->n, suffixes)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, h->n, e);
        if (!in) return -1;
        if (kvc_safetensors_read_input(&h->of[h->n], in, KVC_SAFETENSORS_COVERED, e))
            return kvc_member_failed(b, h->n, e);
    }
    for (size_t i = 0; i < h->n; i++)
        if (add_arrays(h, i, b->member[i].in, e)) return kvc_member_failed(b, i, e);
    if (kvc_arrays_name_members(&h->list, b, o, e)) return -1;
    return kvc_arrays_split(&h->list, o, e);
}

/* Returns the pairing that a file records, which may be "unknown", or else the one that
 * transformers keeps K in. *assumed is 1 where nothing in the file says so. */
static enum kvc_pairing pairing_of(const struct headers *h, int *assumed) {
    const char *text = text_of(h, "rope_pairing"), *arch = text_of(h, "architecture");
    *assumed = !text && !arch;
    return text ? kvc_pairing_parse_tensor(text) : kvc_pairing_of_transformers(arch);
}

static int read_metadata(struct kvc_cache *c, const struct headers *h, const struct kvc_bundle *b,
                         const struct kvc_import_options *o, struct kvc_error *e) {
    int assumed;
    enum kvc_pairing pairing = pairing_of(h, &assumed);
    if (kvc_import_meta(c, "safetensors", b, o, pairing, assumed, e)) return -1;
    if (read_scaling(&c->meta, text_of(h, "rope_scaling"), e)) return -1;
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        const char *text = text_of(h, facts[i].name);
        if (text && read_fact(&c->meta, &facts[i], text, e)) return -1;
    }
    return 0;
}

static struct kvc_cache *safetensors_import(const struct kvc_bundle *b,
                                            const struct kvc_import_options *o,
                                            struct kvc_error *e) {
    struct headers h;
    struct kvc_cache *c = NULL;
    if (kvc_name_check_map(o, e)) return NULL;
    int status = read_headers(&h, b, o, e);
    if (!status) status = (c = kvc_import_begin(e)) ? 0 : -1;
    if (!status) status = kvc_names_build(c, h.list.array, h.list.n, o, e);
    if (!status) status = kvc_arrays_source(c, &h.list, b, e);
    if (!status) status = read_metadata(c, &h, b, o, e);
    if (!status) status = kvc_cache_finish(c, e);
    headers_free(&h);
    return kvc_import_end(c, status);
}

/* --- writing --- */

static int safetensors_keeps(enum kvc_dtype dtype) {
    return kvc_safetensors_type_of((int)dtype) != NULL;
}

/* Writes a finite number as JSON does; empty where it is not finite. The caller frees. */
static char *print_number(double v) {
    if (!isfinite(v)) return strdup("");
    json_t *real = json_real(v);
    char *text = kvc_json_dump(real, JSON_ENCODE_ANY);
    json_decref(real);
    return text;
}

/* Writes numbers as a JSON list. The caller frees. */
static char *print_counts(const struct kvc_meta_entry *entry) {
    json_t *list = json_array();
    for (uint64_t i = 0; list && entry->type == KVC_META_U64S && i < entry->size / 8; i++)
        json_array_append_new(list, json_integer((json_int_t)get_u64(entry->value + 8 * i)));
    char *text = list ? kvc_json_dump(list, 0) : NULL;
    json_decref(list);
    return text;
}

static int write_fact(struct kvc_safetensors_writer *to, const struct kvc_meta *meta,
                      const struct fact *fact, struct kvc_error *e) {
    const struct kvc_meta_entry *entry = kvc_meta_find(meta, fact->key);
    const enum kvc_meta_type type = kvc_fact_type(fact->key);
    const uint64_t count = kvc_meta_u64(meta, fact->key, 0);
    char text[2 * KVC_SHA256_BYTES + 1] = "", *made = NULL;
    if (!entry) return is_tile(fact) ? kvc_safetensors_add_text(to, fact->name, "unknown", e) : 0;
    switch (type) {
    case KVC_META_BOOL:
        if (!kvc_meta_bool(meta, fact->key, 1)) snprintf(text, sizeof text, "false");
        break;
    case KVC_META_U64:
        if (count || !is_tile(fact)) snprintf(text, sizeof text, "%" PRIu64, count);
        break;
    case KVC_META_BYTES:
        if (entry->size == hash_bytes(fact)) kvc_hex(entry->value, hash_bytes(fact), text);
        break;
    case KVC_META_U64S:
    case KVC_META_F64:
        made = type == KVC_META_F64 ? print_number(kvc_meta_f64(meta, fact->key, 0))
                                    : print_counts(entry);
        if (!made) return kvc_fail_memory(e, "the header");
        break;
    default: return kvc_safetensors_add_text(to, fact->name, kvc_meta_text(meta, fact->key, ""), e);
    }
    const char *value = made ? made : text;
    const int status = *value ? kvc_safetensors_add_text(to, fact->name, value, e) : 0;
    free(made);
    return status;
}

static int write_facts(struct kvc_safetensors_writer *to, const struct kvc_cache *c,
                       struct kvc_error *e) {
    struct kvc_meta meta = {0};
    int status = kvc_meta_copy(&meta, &c->meta, e);
    if (!status) status = kvc_values_pass(&meta, e);
    for (size_t i = 0; i < sizeof facts / sizeof facts[0] && !status; i++)
        status = write_fact(to, &meta, &facts[i], e);
    kvc_meta_free(&meta);
    return status;
}

static int write_metadata(struct kvc_safetensors_writer *to, const struct kvc_cache *c,
                          struct kvc_error *e) {
    const struct kvc_rope_facts *rope = &c->meta.facts.rope;
    if (kvc_safetensors_add_text(to, "format", "kvc", e) || write_facts(to, c, e)) return -1;
    /* a pairing that was only assumed does not become a record */
    if (rope->pairing == KVC_PAIRING_HALVES && rope->assumed) return 0;
    return kvc_safetensors_add_text(to, "rope_pairing", kvc_pairing_tensor_name(rope->pairing), e);
}

static int add_item(struct kvc_safetensors_writer *to, const struct kvc_arrays_item *item,
                    struct kvc_error *e) {
    const char *type = item->kind == KVC_NAME_TOKENS ? "I32"
                       : item->kind == KVC_NAME_POSITIONS
                           ? "I64"
                           : kvc_safetensors_type_of((int)item->dtype)->name;
    return kvc_safetensors_add(to, item->name, type, item->dim, item->rank, e);
}

static int write_header(const struct kvc_arrays *list, struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_safetensors_writer header;
    if (kvc_safetensors_writer_init(&header, e)) return -1;
    int status = write_metadata(&header, list->cache, e);
    for (size_t i = 0; i < list->n && !status; i++) status = add_item(&header, &list->item[i], e);
    if (!status) status = kvc_safetensors_write(&header, out, e);
    kvc_safetensors_writer_free(&header);
    return status;
}

static int safetensors_export(const struct kvc_cache *c, const struct kvc_export_options *o,
                              struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_arrays list;
    if (kvc_arrays_list(&list, c, o, safetensors_keeps, KVC_IDS_FROM_ANY, e)) return -1;
    int status = write_header(&list, out, e);
    if (!status) status = kvc_arrays_write(&list, out, e);
    kvc_arrays_free(&list);
    return status;
}

const struct kvc_format kvc_format_safetensors = {
    .name = "safetensors",
    .summary = "named tensors, as transformers users keep caches",
    .suffix = ".safetensors",
    .takes_members = 1,
    .import_options = kvc_arrays_options,
    .lacks = KVC_LACKS_COORDINATES | KVC_LACKS_WINDOWS | KVC_LACKS_SNAPSHOTS | KVC_LACKS_UNKNOWNS,
    .keeps = safetensors_keeps,
    .probe = safetensors_probe,
    .import = safetensors_import,
    .export = safetensors_export,
};
