/* mlx.c: prompt caches of mlx-lm (save_prompt_cache): a safetensors file whose metadata name the
 * class of each layer's cache. Not for the layout of the header (safetensors_file.h) or for other
 * safetensors files (safetensors.c).
 *
 * mlx-lm flattens Python lists into names: entry j of the state of layer i is "i.j". Entries 0 and
 * 1 are K and V. Two layouts: until 0.31: metadata "0.i" facts of layer i (or "0.i.j"), "1.KEY" the
 * user's texts, "2.i" classes; K and V without unused rows from 0.32:  metadata "0.KEY" the user's
 * texts, "1.i" classes, "2.0" empty; facts are scalar arrays "i.2", "i.3", ...; K and V may have
 * unused rows at the end */
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/engines/arrays_list.h"
#include "formats/engines/arrays_write.h"
#include "formats/engines/import.h"
#include "formats/io/bytes.h"
#include "formats/io/safetensors_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* bytes; larger headers are not searched for class names: those of real caches have some tens of
 * kilobytes */
#define MAX_PROBED (UINT64_C(4) << 20)
#define MAX_LAYERS 65536

enum layout { LAYOUT_NONE, LAYOUT_031, LAYOUT_032 };

/* --- reading --- */

/* Returns text "GROUP.i" of the metadata, or NULL. */
static const char *text_at(const struct kvc_safetensors *h, unsigned group, uint32_t i) {
    char key[32];
    snprintf(key, sizeof key, "%u.%" PRIu32, group, i);
    return kvc_safetensors_text(h, key);
}

static enum layout layout_of(const struct kvc_safetensors *h) {
    const char *first = text_at(h, 2, 0);
    if (first && !*first) first = text_at(h, 1, 0);
    const size_t n = first ? strlen(first) : 0;
    if (n < 5 || (strcmp(first + n - 5, "Cache") && strcmp(first, "CacheList"))) return LAYOUT_NONE;
    return *text_at(h, 2, 0) ? LAYOUT_031 : LAYOUT_032;
}

static const char *class_of(const struct kvc_safetensors *h, enum layout layout, uint32_t layer) {
    return text_at(h, layout == LAYOUT_031 ? 2 : 1, layer);
}

static int is_cache(const struct kvc_input *in) {
    /* so that headers of other files are not parsed twice */
    static const char *const ends[] = {"Cache\"", "CacheList\"", NULL};
    struct kvc_safetensors h;
    uint64_t n;
    if (!kvc_member_header(in, MAX_PROBED, ends, &n) ||
        kvc_safetensors_read_input(&h, in, KVC_SAFETENSORS_COVERED, NULL))
        return 0;
    const enum layout layout = layout_of(&h);
    kvc_safetensors_free(&h);
    return layout != LAYOUT_NONE;
}

/* Returns the number of prompt caches among the members; *at gets the first. */
static size_t count_caches(const struct kvc_bundle *b, size_t *at) {
    static const char *const suffixes[] = {".safetensors", NULL};
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) {
        if (!kvc_member_is_read(b, i, suffixes)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, NULL);
        if (in && is_cache(in) && !n++) *at = i;
    }
    return n;
}

static int mlx_probe(const struct kvc_bundle *b, char *why, size_t size) {
    size_t at;
    if (count_caches(b, &at)) return 1; /* several are refused by name */
    snprintf(why, size, "no metadata of an mlx-lm cache");
    return 0;
}

/* The rows of a layer's K and V. Row r < keep has position r. The rows from `keep` on are a ring of
 * the last of `end` positions; the oldest of them is row `oldest`. */
struct ring {
    uint64_t n, end, keep, oldest;
    /* rows that the ring has room for, where it keeps no first rows; 0: it is no window */
    uint64_t window;
};

struct reader {
    const struct kvc_bundle *b;
    size_t member; /* of the bundle: the cache */
    const struct kvc_input *in;
    struct kvc_safetensors header;
    enum layout layout;
    uint32_t n_layers;
    struct ring *ring;       /* by layer */
    struct kvc_array *array; /* in the order of the header's tensors */
};

static const struct kvc_safetensors_tensor *find_array(const struct reader *r, uint32_t layer,
                                                       unsigned entry) {
    char name[32];
    snprintf(name, sizeof name, "%" PRIu32 ".%u", layer, entry);
    return kvc_safetensors_find(&r->header, name);
}

/* Reads number `entry` of the state of a layer, which is a scalar array. */
static int read_scalar(const struct reader *r, uint32_t layer, unsigned entry, uint64_t *value,
                       struct kvc_error *e) {
    const struct kvc_safetensors_tensor *t = find_array(r, layer, entry);
    const uint64_t n = t ? t->end - t->begin : 0;
    uint8_t bytes[8] = {0};
    if (!t || (strcmp(t->dtype, "I32") && strcmp(t->dtype, "I64")) || (n != 4 && n != 8))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "array '%" PRIu32
                        ".%u' must be one integer: it counts rows of layer %" PRIu32,
                        layer, entry, layer);
    if (kvc_input_copy(r->in, r->header.data_at + t->begin, bytes, n, e)) return -1;
    *value = get_u64(bytes);
    return *value <= INT32_MAX
               ? 0
               : kvc_fail(e, KVC_ERR_DAMAGED, "array '%" PRIu32 ".%u' is no number of rows", layer,
                          entry);
}

static int read_fact(const struct reader *r, uint32_t layer, unsigned j, uint64_t *value,
                     struct kvc_error *e) {
    char key[48], *end = NULL;
    snprintf(key, sizeof key, "0.%" PRIu32 ".%u", layer, j);
    const char *text = kvc_safetensors_text(&r->header, key);
    if (text && *text >= '0' && *text <= '9' && strlen(text) < 11)
        *value = strtoull(text, &end, 10);
    return end && !*end && *value <= INT32_MAX
               ? 0
               : kvc_fail(e, KVC_ERR_DAMAGED,
                          "metadata '%s' must be a number of rows of layer %" PRIu32, key, layer);
}

/* Finds the rows of a RotatingKVCache, whose state has `rows` rows. */
static int read_rotating(const struct reader *r, uint32_t layer, uint64_t rows, struct ring *ring,
                         struct kvc_error *e) {
    uint64_t end = 0, keep = 0, next = 0, most = 0;
    char key[48];
    snprintf(key, sizeof key, "0.%" PRIu32 ".4", layer);
    /* old versions have one fact more, before these */
    const unsigned later = kvc_safetensors_text(&r->header, key) != NULL;
    const int status = r->layout == LAYOUT_031
                           ? read_fact(r, layer, 0, &keep, e) || read_fact(r, layer, 1, &most, e) ||
                                 read_fact(r, layer, 2 + later, &end, e) ||
                                 read_fact(r, layer, 3 + later, &next, e)
                           : read_scalar(r, layer, 2, &end, e) ||
                                 read_scalar(r, layer, 3, &keep, e) ||
                                 read_scalar(r, layer, 4, &most, e) ||
                                 read_scalar(r, layer, 5, &next, e);
    if (status) return -1;
    if (end <= rows ? next != end : keep > next || next > rows)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "layer %" PRIu32 " has %" PRIu64 " rows after %" PRIu64 " tokens (%" PRIu64
                        " kept), and the next row is said to be %" PRIu64
                        ": these numbers do not agree",
                        layer, rows, end, keep, next);
    *ring = end <= rows ? (struct ring){.n = end, .end = end}
                        : (struct ring){.n = rows,
                                        .end = end,
                                        .keep = keep,
                                        .oldest = next == rows ? keep : next};
    ring->window = keep ? 0 : most;
    return 0;
}

static int refuse_class(const char *class, uint32_t layer, struct kvc_error *e) {
    char shown[64];
    if (strcmp(class, "QuantizedKVCache") == 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "layer %" PRIu32 " is a QuantizedKVCache: kvc has no dtype for MLX's "
                        "packed groups; save the cache without quantisation",
                        layer);
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "layer %" PRIu32
                    " is a cache of class '%s'; kvc reads KVCache, ConcatenateKVCache and "
                    "RotatingKVCache; save K and V of each layer, if it has them, as arrays [1, "
                    "heads, tokens, head dim]: layers.{i}.keys and layers.{i}.values",
                    layer, kvc_name_show(class, shown, sizeof shown));
}

static int read_layer(const struct reader *r, uint32_t layer, struct ring *ring,
                      struct kvc_error *e) {
    const char *class = class_of(&r->header, r->layout, layer);
    const int rotating = strcmp(class, "RotatingKVCache") == 0,
              plain = strcmp(class, "KVCache") == 0;
    if (!rotating && !plain && strcmp(class, "ConcatenateKVCache"))
        return refuse_class(class, layer, e);
    const struct kvc_safetensors_tensor *t = find_array(r, layer, 0);
    if (!t || !find_array(r, layer, 1) || t->rank != 4)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "layer %" PRIu32 " (%s) has no K and V, arrays '%" PRIu32
                        ".0' and '%" PRIu32 ".1' of shape [1, heads, tokens, head dim]",
                        layer, class, layer, layer);
    const uint64_t rows = t->dim[2];
    *ring = (struct ring){.n = rows, .end = rows};
    if (rotating) return read_rotating(r, layer, rows, ring, e);
    if (r->layout == LAYOUT_031 || !plain) return 0;
    if (read_scalar(r, layer, 2, &ring->end, e)) return -1;
    ring->n = ring->end;
    return ring->n <= rows ? 0
                           : kvc_fail(e, KVC_ERR_DAMAGED,
                                      "layer %" PRIu32 " has %" PRIu64
                                      " rows, but its number of tokens is said to be %" PRIu64,
                                      layer, rows, ring->n);
}

/* Splits the name "LAYER.ENTRY" of K or V. */
static int is_k_or_v(const struct reader *r, const char *name, uint32_t *layer, unsigned *entry) {
    for (*entry = 0; *entry < 2; ++*entry) {
        char *end;
        if (*name < '0' || *name > '9' || strlen(name) > 12) return 0;
        *layer = (uint32_t)strtoul(name, &end, 10);
        const struct kvc_safetensors_tensor *t = *layer < r->n_layers
                                                     ? find_array(r, *layer, *entry)
                                                     : NULL;
        if (t && t->name == name) return 1;
    }
    return 0;
}

/* Says of an array that it is K or V of a layer, and leaves out the unused rows at its end. */
static void take_rows(struct kvc_array *a, uint32_t layer, unsigned entry, uint64_t n) {
    a->known = (struct kvc_name){.kind = KVC_NAME_TENSOR,
                                 .role = entry ? KVC_ROLE_V : KVC_ROLE_K,
                                 .layer = layer};
    /* the product of the dimensions is the size, so it fits 64 bits */
    if (a->rank != 4 || !a->info || n >= a->dim[2]) return;
    uint64_t stride = a->info->size;
    a->strided = 1;
    for (unsigned i = 4; i-- > 0; stride *= a->dim[i]) a->stride[i] = stride;
    a->dim[2] = n;
    a->size = a->dim[1] && a->dim[3] && n ? (a->dim[1] - 1) * a->stride[1] + n * a->stride[2] : 0;
}

static int read_arrays(struct reader *r, struct kvc_error *e) {
    while (r->n_layers < MAX_LAYERS && class_of(&r->header, r->layout, r->n_layers)) r->n_layers++;
    r->ring = kvc_alloc(r->n_layers, sizeof *r->ring);
    r->array = kvc_alloc(r->header.n, sizeof *r->array);
    if (!r->ring || !r->array) return kvc_fail_memory(e, "arrays");
    for (uint32_t i = 0; i < r->n_layers; i++)
        if (read_layer(r, i, &r->ring[i], e)) return -1;
    for (size_t i = 0; i < r->header.n; i++) {
        char shown[64];
        uint32_t layer;
        unsigned entry;
        if (kvc_array_of_safetensors(&r->array[i], &r->header.tensor[i], &r->header, r->in, e))
            return -1;
        const char *name = r->array[i].name;
        r->array[i].member = r->member;
        if (*name >= '0' && *name <= '9' && strtoull(name, NULL, 10) >= r->n_layers)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "array '%s' is of a layer whose class the metadata do not name",
                            kvc_name_show(name, shown, sizeof shown));
        if (*name >= '0' && *name <= '9') r->array[i].known.kind = KVC_NAME_FACT;
        if (is_k_or_v(r, name, &layer, &entry))
            take_rows(&r->array[i], layer, entry, r->ring[layer].n);
    }
    return 0;
}

/* Returns 1 if the rows of two layers have the same positions. Until a window is full, its rows are
 * those of layers without one. */
static int same_positions(const struct ring *a, const struct ring *b) {
    return a->n == b->n && a->end == b->end && a->keep == b->keep && a->oldest == b->oldest;
}

static int set_positions(struct kvc_cache *c, const struct reader *r, struct kvc_error *e) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const uint32_t part = c->layer[i].part;
        const struct ring *ring = &r->ring[c->layer[i].index];
        struct kvc_cells *cells = &c->part[part].cells;
        c->layer[i].window = (uint32_t)ring->window;
        if (ring->window) {
            c->layer[i].kind = KVC_LAYER_WINDOW;
            if (kvc_meta_set_u64(&c->meta, KVC_KEY_WINDOW, ring->window, e)) return -1;
        }
        if (i && c->layer[i - 1].part == part) {
            if (same_positions(ring, &r->ring[c->layer[i - 1].index])) continue;
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "layers %" PRIu32 " and %" PRIu32
                            " hold as many tokens, but of other positions",
                            c->layer[i - 1].index, c->layer[i].index);
        }
        const uint64_t turning = cells->n - ring->keep;
        for (uint64_t row = 0; row < cells->n; row++)
            cells->pos[row] = (int64_t)(row < ring->keep
                                            ? row
                                            : ring->end - turning +
                                                  (row + turning - ring->oldest) % turning);
    }
    return 0;
}

static int set_meta(struct kvc_cache *c, const struct reader *r, const struct kvc_import_options *o,
                    struct kvc_error *e) {
    const char *model = kvc_safetensors_text(&r->header,
                                             r->layout == LAYOUT_031 ? "1.model" : "0.model");
    kvc_meta_remove(&c->meta, KVC_KEY_WINDOW_ASSUMED); /* the layers' classes say it */
    if (kvc_import_meta_assumed(c, "mlx", r->b, o, 0, e)) return -1;
    return model && *model ? kvc_meta_set_text(&c->meta, KVC_KEY_MODEL_NAME, model, e) : 0;
}

/* --- token ids, which vllm-mlx keeps beside a cache: NAME_tokens.bin, 32-bit numbers --- */

/* Gives the cache the ids of a file, if it holds as many as the cache has tokens, or one more;
 * others are not of this cache. */
static int take_ids(struct kvc_cache *c, const struct reader *r, const struct kvc_input *in,
                    struct kvc_error *e) {
    const uint64_t n = in->size / 4;
    uint64_t end = 0;
    int good = n && in->size % 4 == 0;
    for (uint32_t i = 0; i < r->n_layers; i++)
        if (r->ring[i].end > end) end = r->ring[i].end;
    if (!good || (n != end && n != end + 1)) return 0;
    int32_t *ids = kvc_alloc(n, sizeof *ids);
    if (!ids) return kvc_fail_memory(e, "tokens");
    int status = kvc_input_pin(in, 0, in->size, e);
    const int pinned = !status;
    for (uint64_t i = 0; i < n && !status; i++)
        good &= (ids[i] = (int32_t)get_u32(in->data + 4 * i)) >= 0;
    if (pinned) kvc_input_unpin(in, 0, in->size);
    if (!status && good) status = kvc_cache_set_tokens(c, ids, n, e);
    free(ids);
    return status;
}

static int take_ids_beside(struct kvc_cache *c, const struct reader *r, struct kvc_error *e) {
    const char *name = kvc_member_path(r->b, r->member), *dot = name ? strrchr(name, '.') : NULL;
    struct kvc_input own;
    char *beside;
    if (!dot) return 0;
    if (asprintf(&beside, "%.*s_tokens.bin", (int)(dot - name), name) < 0)
        return kvc_fail_memory(e, "a name");
    const struct kvc_input *in = kvc_member_beside(r->b, beside, &own);
    const int status = in ? take_ids(c, r, in, e) : 0;
    if (in == &own) kvc_input_close(&own);
    free(beside);
    return status;
}

static int mlx_build(struct kvc_cache *c, struct reader *r, const struct kvc_import_options *o,
                     struct kvc_error *e) {
    const struct kvc_array_list list = {.array = r->array, .n = r->header.n};
    if (kvc_names_build(c, r->array, r->header.n, NULL, e)) return -1;
    if (set_positions(c, r, e)) return -1;
    if (kvc_arrays_source(c, &list, r->b, e)) return -1;
    if (take_ids_beside(c, r, e)) return -1;
    if (set_meta(c, r, o, e)) return -1;
    return kvc_cache_finish(c, e);
}

static struct kvc_cache *mlx_import(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                    struct kvc_error *e) {
    struct reader r = {.b = b};
    struct kvc_cache *c = NULL;
    const size_t caches = b->is_file ? 1 : count_caches(b, &r.member);
    if (caches > 1)
        kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_EACH,
                      "%zu prompt caches of mlx-lm, each a cache of its own", caches);
    else if (!caches)
        kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "no prompt cache of mlx-lm among the files");
    if (caches != 1 || !(r.in = kvc_bundle_open(b, r.member, e))) return NULL;
    if (kvc_safetensors_read_input(&r.header, r.in, KVC_SAFETENSORS_COVERED, e)) return NULL;
    if ((r.layout = layout_of(&r.header)) == LAYOUT_NONE)
        kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                 "no prompt cache of mlx-lm: the metadata name no class of a cache");
    else if (!read_arrays(&r, e) && (c = kvc_import_begin(e)))
        c = kvc_import_end(c, mlx_build(c, &r, o, e));
    kvc_safetensors_free(&r.header);
    free(r.ring);
    free(r.array);
    return c;
}

/* --- writing --- */

/* Options, by position. */
enum { LAYOUT, MODEL };

static const struct kvc_format_option export_options[] = {
    [LAYOUT] = {.key = "layout",
                .kind = KVC_OPTION_TEXT,
                .value = "VERSION",
                .help =
                    "0.32 (default): for mlx-lm 0.32 and later; 0.31: for mlx-lm 0.31 and earlier"},
    [MODEL] = {.key = "model",
               .kind = KVC_OPTION_TEXT,
               .value = "NAME",
               .help = "the model's path, as mlx_lm.generate will be given it"},
    {.key = NULL},
};

/* The arrays that are written. */
struct writer {
    struct kvc_arrays list;
    enum layout layout;
    uint32_t n_layers;
    uint64_t n; /* tokens */
};

/* Keeps K and V of the list, and checks that they are those of layers 0, 1, ..., all of one length.
 */
static int choose_items(struct writer *w, struct kvc_error *e) {
    const struct kvc_cache *c = w->list.cache;
    size_t kept = 0;
    for (size_t i = 0; i < w->list.n; i++) {
        const struct kvc_arrays_item *item = &w->list.item[i];
        const struct kvc_part *part = item->kind == KVC_NAME_TENSOR
                                          ? kvc_tensor_part(c, item->number)
                                          : NULL;
        if (!part || part->kind == KVC_PART_COMPANION) continue;
        if (part->kind == KVC_PART_WINDOW)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "the cache has sliding-window layers, whose state in mlx-lm depends on "
                            "how the prompt was processed; use safetensors");
        const uint32_t layer = kvc_tensor_layer(c, item->number)->index;
        if (layer >= w->n_layers) w->n_layers = layer + 1;
        w->n = part->cells.n;
        w->list.item[kept++] = *item;
    }
    w->list.n = kept;
    if (kept != 2 * (uint64_t)w->n_layers) /* items have different names */
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "mlx-lm needs K and V of every layer from 0 on, and the cache lacks some");
    return w->n <= INT32_MAX
               ? 0
               : kvc_fail(e, KVC_ERR_UNSUPPORTED, "the cache has more tokens than mlx-lm counts");
}

static int add_text(struct kvc_safetensors_writer *to, unsigned group, uint32_t i, const char *text,
                    struct kvc_error *e) {
    char key[32];
    snprintf(key, sizeof key, "%u.%" PRIu32, group, i);
    return kvc_safetensors_add_text(to, key, text, e);
}

/* Adds the metadata. mlx_lm.generate needs the user's texts "model" and "tokenizer_config". */
static int add_metadata(struct kvc_safetensors_writer *to, const struct writer *w,
                        const char *model, struct kvc_error *e) {
    const int old = w->layout == LAYOUT_031;
    if (kvc_safetensors_add_text(to, old ? "1.tokenizer_config" : "0.tokenizer_config", "{}", e) ||
        (model && *model && kvc_safetensors_add_text(to, old ? "1.model" : "0.model", model, e)) ||
        (!old && kvc_safetensors_add_text(to, "2.0", "", e)))
        return -1;
    for (uint32_t i = 0; i < w->n_layers; i++) {
        if (add_text(to, old ? 2 : 1, i, "KVCache", e)) return -1;
        if (old && add_text(to, 0, i, "", e)) return -1;
        if (old) continue;
        char key[32], name[32];
        snprintf(key, sizeof key, "2.%" PRIu32 ".0", i + 1);
        snprintf(name, sizeof name, "%" PRIu32 ".2", i);
        if (kvc_safetensors_add_text(to, key, name, e)) return -1;
        key[strlen(key) - 1] = '1';
        if (kvc_safetensors_add_text(to, key, "scalar", e)) return -1;
    }
    return 0;
}

static int add_arrays(struct kvc_safetensors_writer *to, const struct writer *w,
                      struct kvc_error *e) {
    const struct kvc_cache *c = w->list.cache;
    char name[32];
    for (size_t i = 0; i < w->list.n; i++) {
        const struct kvc_arrays_item *item = &w->list.item[i];
        const struct kvc_tensor *tensor = &c->tensor[item->number];
        snprintf(name, sizeof name, "%" PRIu32 ".%d", c->layer[tensor->layer].index,
                 tensor->role == KVC_ROLE_V);
        if (kvc_safetensors_add(to, name, kvc_safetensors_type_of((int)item->dtype)->name,
                                item->dim, item->rank, e))
            return -1;
    }
    for (uint32_t i = 0; w->layout == LAYOUT_032 && i < w->n_layers; i++) {
        snprintf(name, sizeof name, "%" PRIu32 ".2", i);
        if (kvc_safetensors_add(to, name, "I32", NULL, 0, e)) return -1;
    }
    return 0;
}

static int mlx_write_file(const struct writer *w, const char *model, struct kvc_sink *out,
                          struct kvc_error *e) {
    struct kvc_safetensors_writer header;
    uint8_t count[4];
    if (kvc_safetensors_writer_init(&header, e)) return -1;
    int status = add_metadata(&header, w, model, e);
    if (!status) status = add_arrays(&header, w, e);
    if (!status) status = kvc_safetensors_write(&header, out, e);
    kvc_safetensors_writer_free(&header);
    if (!status) status = kvc_arrays_write(&w->list, out, e);
    put_u32(count, (uint32_t)w->n);
    for (uint32_t i = 0; w->layout == LAYOUT_032 && i < w->n_layers && !status; i++)
        status = kvc_sink_write(out, count, sizeof count, e);
    return status;
}

/* Writes each layer as a KVCache without unused rows. Tokens, positions and companions are not
 * written. */
static int mlx_export(const struct kvc_cache *c, const struct kvc_export_options *o,
                      struct kvc_sink *out, struct kvc_error *e) {
    const char *layout = o->value[LAYOUT].text, *model = o->value[MODEL].text;
    struct writer w = {.layout = layout && strcmp(layout, "0.31") == 0 ? LAYOUT_031 : LAYOUT_032};
    if (layout && w.layout == LAYOUT_032 && strcmp(layout, "0.32"))
        return kvc_fail(e, KVC_ERR_USAGE, "mlx: layout=%s must be 0.32 or 0.31", layout);
    if (kvc_arrays_list(&w.list, c, o, kvc_is_float, KVC_IDS_NONE, e)) return -1;
    int status = choose_items(&w, e);
    if (!status) status = mlx_write_file(&w, model ? model : c->meta.facts.model, out, e);
    kvc_arrays_free(&w.list);
    return status;
}

const struct kvc_format kvc_format_mlx = {
    .name = "mlx",
    .summary = "prompt caches of mlx-lm",
    .suffix = ".safetensors",
    .takes_members = 1,
    .export_options = export_options,
    .lacks = KVC_LACKS_TOKENS | KVC_LACKS_POSITIONS | KVC_LACKS_COORDINATES | KVC_LACKS_WINDOWS |
             KVC_LACKS_COMPANIONS | KVC_LACKS_SNAPSHOTS | KVC_LACKS_FACTS | KVC_LACKS_SCALES |
             KVC_LACKS_PAIRING | KVC_LACKS_UNKNOWNS,
    .keeps = kvc_is_float,
    .probe = mlx_probe,
    .import = mlx_import,
    .export = mlx_export,
};
