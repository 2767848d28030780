/* gguf.c: reading a GGUF header. Not for the weights.
 *
 * magic "GGUF", u32 version, u64 tensors, u64 keys; keys {string, u32 type, value}; tensor infos
 * {string name, u32 rank, u64 dim[rank], u32 type, u64 offset}; zeros up to a multiple of
 * general.alignment; tensor data. */
#include "formats/model/gguf.h"

#include "codecs/memory.h"
#include "formats/io/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 8192 /* real files have about 50; keeps the search for a key short */
#define MAX_KEY 65535    /* the format's own bound */
#define MIN_ENTRY 13     /* bytes of the smallest entry: empty key, type, one byte */
#define MIN_TENSOR 24    /* empty name, rank 0, type, offset */
#define PIN_STEP (UINT64_C(1) << 18) /* bytes that are pinned at once */

/* The bytes that are left to read. The first `pinned` bytes of the input are pinned. */
struct reader {
    const struct kvc_input *in;
    uint64_t at, pinned;
};

static uint64_t left(const struct reader *r) {
    return r->in->size - r->at;
}

/* Pins the first n bytes, and no others. */
static int pin_first(struct reader *r, uint64_t n, struct kvc_error *e) {
    if (kvc_input_pin(r->in, 0, n, e)) return -1;
    kvc_input_unpin(r->in, 0, r->pinned);
    r->pinned = n;
    return 0;
}

/* Pins the next n bytes, which the input has, and some more: the size of a header is known at its
 * end only. */
static int reach(struct reader *r, uint64_t n, struct kvc_error *e) {
    const uint64_t end = r->at + n;
    uint64_t wide = r->pinned + PIN_STEP;
    if (end <= r->pinned) return 0;
    if (end > KVC_GGUF_HEADER)
        return kvc_fail_at(e, KVC_ERR_UNSUPPORTED, r->at,
                           "GGUF header: larger than %" PRIu64 " bytes", KVC_GGUF_HEADER);
    if (wide < end) wide = end;
    return pin_first(r, wide < r->in->size ? wide : r->in->size, e);
}

/* Returns the next n bytes, or NULL when fewer are left. */
static const uint8_t *gguf_take(struct reader *r, uint64_t n, const char *what,
                                struct kvc_error *e) {
    if (n > left(r)) {
        kvc_fail_at(e, KVC_ERR_DAMAGED, r->at,
                    "GGUF header: %s needs %" PRIu64 " bytes, %" PRIu64 " are left", what, n,
                    left(r));
        return NULL;
    }
    if (reach(r, n, e)) return NULL;
    const uint8_t *p = r->in->data + r->at;
    r->at += n;
    return p;
}

static int take_u32(struct reader *r, uint32_t *v, const char *what, struct kvc_error *e) {
    const uint8_t *p = gguf_take(r, 4, what, e);
    if (!p) return -1;
    *v = get_u32(p);
    return 0;
}

static int take_u64(struct reader *r, uint64_t *v, const char *what, struct kvc_error *e) {
    const uint8_t *p = gguf_take(r, 8, what, e);
    if (!p) return -1;
    *v = get_u64(p);
    return 0;
}

static const char *take_string(struct reader *r, uint64_t *size, const char *what,
                               struct kvc_error *e) {
    if (take_u64(r, size, what, e)) return NULL;
    return (const char *)gguf_take(r, *size, what, e);
}

/* Bytes of one item, 0 of strings, arrays and unknown types; 1 of whole numbers, 2 of those with a
 * sign. */
static const struct {
    uint8_t size, whole;
} types[] = {
    [KVC_GGUF_U8] = {1, 1},  [KVC_GGUF_I8] = {1, 2},   [KVC_GGUF_U16] = {2, 1},
    [KVC_GGUF_I16] = {2, 2}, [KVC_GGUF_U32] = {4, 1},  [KVC_GGUF_I32] = {4, 2},
    [KVC_GGUF_F32] = {4, 0}, [KVC_GGUF_BOOL] = {1, 1}, [KVC_GGUF_U64] = {8, 1},
    [KVC_GGUF_I64] = {8, 2}, [KVC_GGUF_F64] = {8, 0},
};
enum { TYPES = sizeof types / sizeof types[0] };

static int read_items(struct reader *r, struct kvc_gguf_entry *entry, struct kvc_error *e) {
    unsigned width = entry->type < TYPES ? types[entry->type].size : 0;
    if (entry->type == KVC_GGUF_STRING) {
        entry->items = r->in->data + r->at;
        for (uint64_t i = 0; i < entry->count; i++) {
            uint64_t size;
            if (!take_string(r, &size, "a string", e)) return -1;
        }
        return 0;
    }
    if (!width)
        return kvc_fail_at(e, KVC_ERR_DAMAGED, r->at,
                           "GGUF header: unknown value type %" PRIu32 " (or an array of arrays)",
                           entry->type);
    if (entry->count > left(r) / width)
        return kvc_fail_at(e, KVC_ERR_DAMAGED, r->at,
                           "GGUF header: an array of %" PRIu64 " items does not fit in the file",
                           entry->count);
    entry->items = gguf_take(r, entry->count * width, "a value", e);
    return entry->items ? 0 : -1;
}

static int read_entry(struct reader *r, struct kvc_gguf_entry *entry, struct kvc_error *e) {
    entry->key = take_string(r, &entry->key_size, "a key", e);
    if (!entry->key) return -1;
    if (!entry->key_size || entry->key_size > MAX_KEY)
        return kvc_fail_at(e, KVC_ERR_DAMAGED, r->at, "GGUF header: a key of %" PRIu64 " bytes",
                           entry->key_size);
    if (take_u32(r, &entry->type, "a value type", e)) return -1;
    entry->count = 1;
    entry->array = entry->type == KVC_GGUF_ARRAY;
    if (entry->array && (take_u32(r, &entry->type, "an item type", e) ||
                         take_u64(r, &entry->count, "an item count", e)))
        return -1;
    return read_items(r, entry, e);
}

static int same_key(const struct kvc_gguf_entry *entry, const char *key, uint64_t size) {
    return entry->key_size == size && memcmp(entry->key, key, size) == 0;
}

/* Orders names by their size, then by their bytes. */
static int compare_names(const char *a, uint64_t a_size, const char *b, uint64_t b_size) {
    if (a_size != b_size) return a_size < b_size ? -1 : 1;
    return memcmp(a, b, (size_t)a_size);
}

static int by_key(const void *pa, const void *pb) {
    const struct kvc_gguf_entry *a = *(const struct kvc_gguf_entry *const *)pa,
                                *b = *(const struct kvc_gguf_entry *const *)pb;
    const int order = compare_names(a->key, a->key_size, b->key, b->key_size);
    return order ? order : a < b ? -1 : 1;
}

/* Refuses a key that occurs twice: the first of those that repeat one before them. */
static int check_keys(const struct kvc_gguf *g, const struct reader *r, struct kvc_error *e) {
    const struct kvc_gguf_entry **sorted = kvc_alloc(g->n_entries, sizeof *sorted), *twice = NULL;
    if (!sorted) return kvc_fail_memory(e, "the keys of a GGUF file");
    for (uint64_t i = 0; i < g->n_entries; i++) sorted[i] = &g->entry[i];
    qsort(sorted, (size_t)g->n_entries, sizeof *sorted, by_key);
    for (uint64_t i = 1; i < g->n_entries; i++)
        if (same_key(sorted[i], sorted[i - 1]->key, sorted[i - 1]->key_size) &&
            (!twice || sorted[i] < twice))
            twice = sorted[i];
    free(sorted);
    if (!twice) return 0;
    return kvc_fail_at(e, KVC_ERR_DAMAGED,
                       (uint64_t)((const uint8_t *)twice->key - r->in->data) - 8,
                       "GGUF header: a key occurs twice");
}

static int read_entries(struct kvc_gguf *g, uint64_t n, struct reader *r, struct kvc_error *e) {
    if (n > MAX_ENTRIES || n > left(r) / MIN_ENTRY)
        return kvc_fail_at(e, KVC_ERR_DAMAGED, 16,
                           "GGUF header: %" PRIu64 " keys are more than the file can hold", n);
    g->entry = calloc(n ? n : 1, sizeof *g->entry);
    if (!g->entry) return kvc_fail_memory(e, "the keys of a GGUF file");
    for (; g->n_entries < n; g->n_entries++)
        if (read_entry(r, &g->entry[g->n_entries], e)) return -1;
    return check_keys(g, r, e);
}

/* Checks the tensor infos; *last gets the largest data offset among them. */
static int read_tensors(struct kvc_gguf *g, uint64_t alignment, struct reader *r, uint64_t *last,
                        struct kvc_error *e) {
    if (g->n_tensors > left(r) / MIN_TENSOR)
        return kvc_fail_at(e, KVC_ERR_DAMAGED, 8,
                           "GGUF header: %" PRIu64 " tensors are more than the file can hold",
                           g->n_tensors);
    g->tensors = r->in->data + r->at;
    *last = 0;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        uint64_t at = r->at, name_size, values = 1, offset;
        uint32_t rank, type;
        if (!take_string(r, &name_size, "a tensor's name", e) ||
            take_u32(r, &rank, "a tensor's rank", e))
            return -1;
        if (rank > KVC_GGUF_RANK)
            return kvc_fail_at(e, KVC_ERR_DAMAGED, at,
                               "GGUF header: a tensor of %" PRIu32 " dimensions", rank);
        for (uint32_t d = 0; d < rank; d++) {
            uint64_t n;
            if (take_u64(r, &n, "a tensor's dimensions", e)) return -1;
            if (!n || n > INT64_MAX / values)
                return kvc_fail_at(e, KVC_ERR_DAMAGED, at,
                                   "GGUF header: a tensor's dimensions make no sense");
            values *= n;
        }
        if (take_u32(r, &type, "a tensor's type", e) ||
            take_u64(r, &offset, "a tensor's offset", e))
            return -1;
        if (offset % alignment)
            return kvc_fail_at(e, KVC_ERR_DAMAGED, at,
                               "GGUF header: a tensor's offset is not aligned");
        if (offset > *last) *last = offset;
    }
    return 0;
}

static int by_name(const void *pa, const void *pb) {
    const uint8_t *a = *(const uint8_t *const *)pa, *b = *(const uint8_t *const *)pb;
    const int order = compare_names((const char *)a + 8, get_u64(a), (const char *)b + 8,
                                    get_u64(b));
    return order ? order : a < b ? -1 : 1;
}

static int sort_tensors(struct kvc_gguf *g, struct kvc_error *e) {
    const uint8_t *at = g->tensors;
    g->by_name = kvc_alloc(g->n_tensors, sizeof *g->by_name);
    if (!g->by_name) return kvc_fail_memory(e, "the tensors of a GGUF file");
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        uint64_t size;
        uint32_t rank;
        g->by_name[i] = at;
        kvc_gguf_next_tensor(&at, &size, &rank);
    }
    qsort(g->by_name, (size_t)g->n_tensors, sizeof *g->by_name, by_name);
    return 0;
}

static int read_alignment(const struct kvc_gguf *g, uint64_t *alignment, struct kvc_error *e) {
    *alignment = 32;
    const struct kvc_gguf_entry *entry = kvc_gguf_find(g, "general.alignment");
    if (!entry) return 0;
    *alignment = entry->type == KVC_GGUF_U32 && !entry->array ? get_u32(entry->items) : 0;
    if (!*alignment || (*alignment & (*alignment - 1)))
        return kvc_fail(e, KVC_ERR_DAMAGED, "GGUF header: general.alignment is no power of two");
    return 0;
}

static int gguf_read_header(struct kvc_gguf *g, struct reader *r, struct kvc_error *e) {
    const uint8_t *magic = gguf_take(r, 4, "the magic", e);
    if (!magic) return -1;
    if (memcmp(magic, "GGUF", 4) != 0)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "not a GGUF file");
    uint64_t n_entries = 0, alignment = 0, last = 0;
    if (take_u32(r, &g->version, "the version", e)) return -1;
    if (g->version && !(g->version & 0xffff))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "a big-endian GGUF file; convert it to little-endian");
    if (g->version != 2 && g->version != 3)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "GGUF version %" PRIu32 "; kvc reads versions 2 and 3", g->version);
    if (take_u64(r, &g->n_tensors, "the tensor count", e) ||
        take_u64(r, &n_entries, "the key count", e) || read_entries(g, n_entries, r, e) ||
        read_alignment(g, &alignment, e) || read_tensors(g, alignment, r, &last, e))
        return -1;

    uint64_t padding = (alignment - r->at % alignment) % alignment;
    /* a vocabulary alone may end without padding */
    if (!g->n_tensors && padding > left(r)) padding = left(r);
    if (!gguf_take(r, padding, "the padding before the tensors", e)) return -1;
    if (g->n_tensors && last >= left(r))
        return kvc_fail_at(e, KVC_ERR_DAMAGED, r->at,
                           "GGUF header: a tensor starts beyond the end of the file");
    g->data_offset = r->at;
    return 0;
}

int kvc_gguf_open(struct kvc_gguf *g, const struct kvc_input *in, struct kvc_error *e) {
    struct reader r = {.in = in};
    memset(g, 0, sizeof *g);
    if (!gguf_read_header(g, &r, e) && !sort_tensors(g, e) && !pin_first(&r, g->data_offset, e))
        return 0;
    kvc_input_unpin(in, 0, r.pinned);
    kvc_gguf_close(g);
    return -1;
}

void kvc_gguf_close(struct kvc_gguf *g) {
    free(g->entry);
    free(g->by_name);
    memset(g, 0, sizeof *g);
}

const struct kvc_gguf_entry *kvc_gguf_find(const struct kvc_gguf *g, const char *key) {
    size_t size = strlen(key);
    for (uint64_t i = 0; i < g->n_entries; i++)
        if (same_key(&g->entry[i], key, size)) return &g->entry[i];
    return NULL;
}

int kvc_gguf_item(const struct kvc_gguf_entry *entry, uint64_t i, uint64_t *v) {
    const unsigned width = types[entry->type].size, whole = types[entry->type].whole;
    if (!whole) return 0;
    const uint8_t *p = entry->items + i * width;
    *v = 0;
    for (unsigned b = 0; b < width; b++) *v |= (uint64_t)p[b] << 8 * b;
    return !(whole == 2 && (p[width - 1] & 0x80));
}

uint64_t kvc_gguf_u64(const struct kvc_gguf *g, const char *key, uint64_t otherwise, int *differ) {
    if (differ) *differ = 0;
    const struct kvc_gguf_entry *entry = kvc_gguf_find(g, key);
    uint64_t first, next;
    if (!entry || !entry->count || entry->type == KVC_GGUF_BOOL || !kvc_gguf_item(entry, 0, &first))
        return otherwise;
    for (uint64_t i = 1; i < entry->count; i++)
        if (!kvc_gguf_item(entry, i, &next) || next != first) {
            if (differ) *differ = 1;
            return otherwise;
        }
    return first;
}

double kvc_gguf_f64(const struct kvc_gguf *g, const char *key, double otherwise) {
    const struct kvc_gguf_entry *entry = kvc_gguf_find(g, key);
    if (!entry || entry->array) return otherwise;
    if (entry->type == KVC_GGUF_F32) return (double)get_f32(entry->items);
    return entry->type == KVC_GGUF_F64 ? get_f64(entry->items) : otherwise;
}

const char *kvc_gguf_text(const struct kvc_gguf *g, const char *key, uint64_t *size) {
    const struct kvc_gguf_entry *entry = kvc_gguf_find(g, key);
    if (!entry || entry->array || entry->type != KVC_GGUF_STRING) return NULL;
    const uint8_t *at = entry->items;
    return kvc_gguf_next_string(&at, size);
}

const char *kvc_gguf_next_string(const uint8_t **at, uint64_t *size) {
    *size = get_u64(*at);
    const char *text = (const char *)*at + 8;
    *at += 8 + *size;
    return text;
}

const char *kvc_gguf_next_tensor(const uint8_t **at, uint64_t *size, uint32_t *rank) {
    const char *name = kvc_gguf_next_string(at, size);
    *rank = get_u32(*at);
    *at += 4 + 8 * (uint64_t)*rank + 4 + 8; /* dimensions, type, offset */
    return name;
}

int kvc_gguf_tensor(const struct kvc_gguf *g, const char *name, struct kvc_gguf_tensor *t) {
    const size_t wanted = strlen(name);
    uint64_t low = 0, high = g->n_tensors, size;
    while (low < high) { /* for the first of this name */
        const uint64_t middle = low + (high - low) / 2;
        const uint8_t *at = g->by_name[middle];
        const char *text = kvc_gguf_next_string(&at, &size);
        if (compare_names(text, size, name, wanted) < 0) low = middle + 1;
        else high = middle;
    }
    if (low == g->n_tensors) return 0;
    const uint8_t *at = g->by_name[low];
    const char *text = kvc_gguf_next_tensor(&at, &size, &t->rank);
    if (compare_names(text, size, name, wanted) != 0) return 0;
    const uint8_t *dims = (const uint8_t *)text + size + 4, *rest = dims + 8 * (uint64_t)t->rank;
    for (uint32_t d = 0; d < KVC_GGUF_RANK; d++)
        t->dim[d] = d < t->rank ? get_u64(dims + 8 * (size_t)d) : 1;
    t->type = get_u32(rest);
    t->offset = g->data_offset + get_u64(rest + 4);
    return 1;
}

int kvc_gguf_has_tensor(const struct kvc_gguf *g, const char *name) {
    struct kvc_gguf_tensor t;
    return kvc_gguf_tensor(g, name, &t);
}

const char *kvc_gguf_type_name(uint32_t type) {
    static const char *const names[] = {
        /* enum ggml_type of ggml/include/ggml.h; the holes were types once */
        [0] = "f32",     [1] = "f16",      [2] = "q4_0",   [3] = "q4_1",    [6] = "q5_0",
        [7] = "q5_1",    [8] = "q8_0",     [9] = "q8_1",   [10] = "q2_K",   [11] = "q3_K",
        [12] = "q4_K",   [13] = "q5_K",    [14] = "q6_K",  [15] = "q8_K",   [16] = "iq2_xxs",
        [17] = "iq2_xs", [18] = "iq3_xxs", [19] = "iq1_s", [20] = "iq4_nl", [21] = "iq3_s",
        [22] = "iq2_s",  [23] = "iq4_xs",  [24] = "i8",    [25] = "i16",    [26] = "i32",
        [27] = "i64",    [28] = "f64",     [29] = "iq1_m", [30] = "bf16",   [34] = "tq1_0",
        [35] = "tq2_0",  [39] = "mxfp4",   [40] = "nvfp4", [41] = "q1_0",
    };
    return type < sizeof names / sizeof names[0] ? names[type] : NULL;
}
