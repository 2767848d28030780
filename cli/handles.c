/* handles.c: reads the file of --into. Not for opening the memory (gpu_share.c). */
#include "cli/handles.h"

#include "codecs/dtype.h"
#include "codecs/memory.h"
#include "formats/io/input.h"
#include "formats/io/json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Bounds that keep the cost of a hostile file small. Offsets and strides may have any value of a memory address. */
#define MAX_FILE (UINT64_C(16) << 20)
#define MAX_LAYERS 4096
#define MAX_SIZE UINT32_MAX
#define MAX_STRIDE (INT64_C(1) << 48)

/* An object of the file and its name in messages: "" or "pool." */
struct object {
    json_t *json;
    const char *where;
};

static int fail(struct kvc_error *e, const struct object *o, const char *key, const char *what) {
    return kvc_fail(e, KVC_ERR_USAGE, "%s%s %s", o->where, key, what);
}

/* Checks that a value is an object without other keys than these. */
static int take_object(struct object *o, const char *const *keys, struct kvc_error *e) {
    const char *key;
    json_t *value;
    if (!json_is_object(o->json))
        return kvc_fail(e, KVC_ERR_USAGE, "%s is missing, or is no object", *o->where ? o->where : "it");
    json_object_foreach(o->json, key, value) {
        const char *const *known = keys;
        while (*known && strcmp(*known, key) != 0) known++;
        if (!*known) return fail(e, o, key, "is no known key");
    }
    return 0;
}

static json_t *get(const struct object *o, const char *key) {
    json_t *v = json_object_get(o->json, key);
    return json_is_null(v) ? NULL : v;
}

/* Reads a number that must exist. */
static int take_number(const struct object *o, const char *key, int64_t least, int64_t most, int64_t *v, struct kvc_error *e) {
    const json_t *number = get(o, key);
    *v = json_integer_value(number);
    if (json_is_integer(number) && *v >= least && *v <= most) return 0;
    char what[96];
    snprintf(what, sizeof what, "is not a number from %" PRId64 " to %" PRId64, least, most);
    return fail(e, o, key, what);
}

static int take_size(const struct object *o, const char *key, uint64_t most, uint64_t *v, struct kvc_error *e) {
    int64_t number;
    if (take_number(o, key, 1, (int64_t)most, &number, e)) return -1;
    *v = (uint64_t)number;
    return 0;
}

/* Reads a number that is 0 if missing. */
static int take_count(const struct object *o, const char *key, uint64_t below, uint64_t *v, struct kvc_error *e) {
    int64_t number = 0;
    if (get(o, key) && take_number(o, key, 0, (int64_t)below - 1, &number, e)) return -1;
    *v = (uint64_t)number;
    return 0;
}

static int take_dtype(struct kvc_cuda_destination *d, const struct object *o, struct kvc_error *e) {
    const char *name = json_string_value(get(o, "dtype"));
    const struct kvc_dtype_info *info = name ? kvc_dtype_by_name(name) : NULL;
    if (!info || !info->floating || info->block != 1) return fail(e, o, "dtype", "is none of f16, bf16, f32, f8e4m3, f8e5m2");
    d->dtype = info->name;
    d->pool.value_bytes = info->size;
    return 0;
}

static int take_pool(struct kvc_pool *p, const struct object *o, struct kvc_error *e) {
    static const char *const keys[] = {"layers", "pages", "page_size", "heads", "dim", NULL};
    struct object pool = {get(o, "pool"), "pool."};
    uint64_t *const values[] = {&p->layers, &p->pages, &p->page_size, &p->heads, &p->dim};
    if (take_object(&pool, keys, e)) return -1;
    for (size_t i = 0; keys[i]; i++)
        if (take_size(&pool, keys[i], i ? MAX_SIZE : MAX_LAYERS, values[i], e)) return -1;
    return 0;
}

static int take_strides(struct kvc_pool_strides *s, const struct object *o, struct kvc_error *e) {
    static const char *const keys[] = {"layer", "kv", "page", "token", "head", "dim", NULL};
    int64_t *const values[] = {&s->layer, &s->kv, &s->page, &s->token, &s->head, &s->dim};
    struct object strides = {get(o, "strides"), "strides."};
    if (take_object(&strides, keys, e)) return -1;
    for (size_t i = 0; keys[i]; i++)
        if (take_number(&strides, keys[i], -MAX_STRIDE, MAX_STRIDE, values[i], e)) return -1;
    return 0;
}

/* Reads the layout, or strides instead. *bases: number of allocations; 0: 1, layers or 2 * layers. */
static int take_layout(struct kvc_cuda_destination *d, const struct object *o, uint64_t *bases, struct kvc_error *e) {
    const json_t *named = get(o, "layout");
    *bases = 0;
    if (!named) return take_strides(&d->strides, o, e);
    const struct kvc_pool_layout *layout = json_is_string(named) ? kvc_pool_layout_find(json_string_value(named)) : NULL;
    struct kvc_pool_strides of_v;
    if (!layout) return fail(e, o, "layout", "is no layout that kvc knows");
    if (layout->k_axes) return fail(e, o, "layout", "is a layout of memory of CPUs");
    if (get(o, "strides")) return fail(e, o, "strides", "come with a layout: leave one of the two out");
    int64_t n = kvc_pool_layout_strides(layout, &d->pool, &d->strides, &of_v);
    if (n < 0) return fail(e, o, "pool", "does not fit its layout, or no memory");
    d->layout = layout->name;
    *bases = (uint64_t)n;
    return 0;
}

static int take_table(struct cli_handles *h, const struct object *o, struct kvc_error *e) {
    json_t *table = get(o, "table"), *item;
    size_t n = json_array_size(table), i;
    if (!table) return 0;
    if (!json_is_array(table) || !n || n > h->destination.pool.pages) return fail(e, o, "table", "is no list of pages");
    h->table = kvc_alloc(n, sizeof *h->table);
    if (!h->table) return kvc_fail_memory(e, "a table of pages");
    json_array_foreach(table, i, item) {
        json_int_t page = json_integer_value(item);
        if (!json_is_integer(item) || page < 0 || (uint64_t)page >= h->destination.pool.pages)
            return fail(e, o, "table", "has a number that is no page of the pool");
        h->table[i] = (uint32_t)page;
    }
    h->destination.table = h->table;
    h->destination.n_table = n;
    return 0;
}

static int take_handle(uint8_t *handle, const json_t *text) {
    static const char digits[] = "0123456789abcdef";
    const char *hex = json_string_value(text);
    if (!hex || strlen(hex) != 2 * KVC_CUDA_HANDLE || strspn(hex, digits) != 2 * KVC_CUDA_HANDLE) return -1;
    for (size_t i = 0; i < KVC_CUDA_HANDLE; i++)
        handle[i] = (uint8_t)((strchr(digits, hex[2 * i]) - digits) << 4 | (strchr(digits, hex[2 * i + 1]) - digits));
    return 0;
}

static int take_bases(struct cli_handles *h, const struct object *o, uint64_t want, struct kvc_error *e) {
    static const char *const keys[] = {"handle", "offset", NULL};
    json_t *bases = get(o, "bases"), *item;
    const uint64_t n = json_array_size(bases), layers = h->destination.pool.layers;
    const char *const wrong = want ? "are not as many as the layout has allocations" : "are neither 1, nor 1 or 2 a layer";
    size_t i;
    if (!json_is_array(bases)) return fail(e, o, "bases", "are missing, or no list");
    if (want ? n != want : n != 1 && n != layers && n != 2 * layers) return fail(e, o, "bases", wrong);
    h->base = calloc((size_t)n, sizeof *h->base);
    if (!h->base) return kvc_fail_memory(e, "handles");
    h->n_bases = n;
    json_array_foreach(bases, i, item) {
        struct object base = {item, "bases."};
        if (take_object(&base, keys, e) || take_count(&base, "offset", MAX_STRIDE, &h->base[i].offset, e)) return -1;
        if (take_handle(h->base[i].handle, get(&base, "handle")))
            return fail(e, &base, "handle", "is not 128 hexadecimal digits");
    }
    return 0;
}

static int take_all(struct cli_handles *h, json_t *root, struct kvc_error *e) {
    static const char *const keys[] = {"layout", "pool", "dtype", "table", "first", "first_layer", "strides", "bases", NULL};
    struct kvc_cuda_destination *d = &h->destination;
    struct object o = {root, ""};
    uint64_t bases, first_layer;
    d->size = sizeof *d;
    if (take_object(&o, keys, e) || take_dtype(d, &o, e) || take_pool(&d->pool, &o, e) || take_layout(d, &o, &bases, e) ||
        take_table(h, &o, e) || take_count(&o, "first", d->pool.page_size, &d->first, e) ||
        take_count(&o, "first_layer", MAX_SIZE, &first_layer, e) || take_bases(h, &o, bases, e))
        return -1;
    d->first_layer = (uint32_t)first_layer;
    return 0;
}

static int read_all(struct cli_handles *h, const struct kvc_input *in, struct kvc_error *e) {
    json_error_t error;
    if (in->size > MAX_FILE) return kvc_fail(e, KVC_ERR_USAGE, "more than 16 MiB is no list of handles");
    json_t *root = kvc_json_load(in->data, (size_t)in->size, JSON_REJECT_DUPLICATES, &error);
    if (!root) return kvc_fail(e, KVC_ERR_USAGE, "is no JSON: line %d: %s", error.line, error.text);
    int status = take_all(h, root, e);
    json_decref(root);
    return status;
}

int cli_handles_read(struct cli_handles *h, const char *path, struct kvc_error *e) {
    struct kvc_input in;
    memset(h, 0, sizeof *h);
    if (kvc_input_open_how(&in, path, &(struct kvc_input_how){.read = 0}, e)) return -1;
    int status = read_all(h, &in, e);
    kvc_input_close(&in);
    if (!status) return 0;
    cli_handles_free(h);
    return kvc_error_prefix(e, path);
}

void cli_handles_free(struct cli_handles *h) {
    free(h->table);
    free(h->base);
    memset(h, 0, sizeof *h);
}
