/* torch.c: finds the tensors of files of torch.save() by their pickles, without running them.
 * Not for opcodes (pickle.c) or for the meaning of names (arrays_names.c).
 *
 *   NAME/data.pkl   the pickle; a tensor is a call of a function of torch._utils: storage, offset,
 * size, stride NAME/data/KEY   the bytes of a storage, which several tensors may view
 *   NAME/byteorder  "little" or "big"; absent: little
 *
 * The name of a tensor is the path to it: keys of dicts and numbers of items, joined by dots. */
#include "formats/engines/torch.h"

#include "codecs/dtype.h"
#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/engines/arrays_list.h"
#include "formats/engines/arrays_read.h"
#include "formats/engines/import.h"
#include "formats/engines/pickle.h"
#include "formats/io/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_VISITS = 1 << 20, MAX_ARRAYS = 1 << 18, MAX_PATH = 256, MAX_RANK = 64 };

#define CACHE_CLASS "transformers.cache_utils.DynamicCache"
#define SLIDING_CLASS "transformers.cache_utils.DynamicSlidingWindowLayer"

/* Reads one file. */
struct reader {
    struct kvc_zip_members *zip;
    size_t member; /* the file among the members of the bundle */
    char *folder;  /* NAME/ */
    struct kvc_pickle pickle;
    struct kvc_array_list *list; /* gets the tensors */
    uint64_t visits;
    uint64_t layer_end;    /* tokens that the layer has seen that is walked; 0: unknown */
    uint32_t layer_window; /* of the layer that is walked; 0: unknown */
    char path[MAX_PATH];
};

/* --- what a pickle may name --- */

/* Returns 1 for classes of layers that have states in place of K and V. */
static int is_state_class(const char *name) {
    return strstr(name, "Linear") || strstr(name, "Mamba") || strstr(name, "Recurrent");
}

/* _codecs.encode makes bytes in protocol 2; its result is not kept. */
static int allows(const char *name, struct kvc_error *e) {
    static const char *const names[] = {
        "collections.OrderedDict",
        /* empty, of hooks of a torch.nn.Module, as a DynamicCache was in transformers 4.44 to 4.48
         */
        "__builtin__.set",
        "builtins.set",
        "_codecs.encode",
        "torch.Size",
        "torch.device",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter",
        KVC_TORCH_UNTYPED,
        CACHE_CLASS,
        SLIDING_CLASS,
        "transformers.cache_utils.DynamicLayer",
    };
    static const char cache_room[] = "transformers.";
    char shown[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return 0;
    for (const struct kvc_torch_type *t = kvc_torch_types; t->dtype; t++)
        if (strcmp(name, t->storage) == 0 || strcmp(name, t->dtype) == 0) return 0;
    kvc_name_show(name, shown, sizeof shown);
    if (strncmp(name, cache_room, sizeof cache_room - 1) == 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the file holds an object of class %s, which kvc does not read (only a "
                        "DynamicCache of plain and sliding-window layers); save K and V of each "
                        "layer in a dict of tensors: layers.{i}.keys and layers.{i}.values%s",
                        shown,
                        is_state_class(name) ? ", without the states, for which kvc has no place"
                                             : "");
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "the pickle wants to call or use %s, which kvc never does; save a dict of "
                    "tensors: layers.{i}.keys and layers.{i}.values",
                    shown);
}

/* --- tensors --- */

static const struct kvc_pickle_value *value_at(const struct reader *r, uint32_t number) {
    return &r->pickle.value[number];
}

static const struct kvc_pickle_value *item_at(const struct reader *r,
                                              const struct kvc_pickle_value *v, uint64_t i) {
    return value_at(r, v->item[i]);
}

/* Returns the name of the function of a call or of a class; "" of other values. */
static const char *global_of(const struct reader *r, const struct kvc_pickle_value *v) {
    if (v->kind == KVC_PICKLE_CALL) v = value_at(r, v->function);
    return v->kind == KVC_PICKLE_GLOBAL ? v->text : "";
}

static int is_text(const struct kvc_pickle_value *v, const char *text) {
    return v->kind == KVC_PICKLE_TEXT && v->n == strlen(text) && memcmp(v->text, text, v->n) == 0;
}

static int fail_tensor(const struct reader *r, const char *what, struct kvc_error *e) {
    char shown[96];
    return kvc_fail(e, KVC_ERR_DAMAGED, "tensor '%s': %s",
                    kvc_name_show(r->path, shown, sizeof shown), what);
}

/* Finds a member of the archive's folder: SIZE_MAX if there is none. */
static int find_member(const struct reader *r, const char *below, const char *name, uint64_t n,
                       size_t *member, struct kvc_error *e) {
    char *path;
    *member = SIZE_MAX;
    if (n > MAX_PATH || memchr(name, 0, n)) return 0;
    if (asprintf(&path, "%s%s%.*s", r->folder, below, (int)n, name) < 0)
        return kvc_fail_memory(e, "a name");
    *member = kvc_zip_find(r->zip, path);
    free(path);
    return 0;
}

/* Finds the member of a storage, and its element type. `dtype` names the type where the storage is
 * untyped; NULL: nothing does. */
static int find_storage(const struct reader *r, const struct kvc_pickle_value *v, const char *dtype,
                        const struct kvc_torch_type **type, size_t *member, struct kvc_error *e) {
    const struct kvc_pickle_value *id = v->kind == KVC_PICKLE_PERSISTENT ? value_at(r, v->arguments)
                                                                         : NULL;
    if (!id || id->kind != KVC_PICKLE_TUPLE || id->n != 5 ||
        !is_text(item_at(r, id, 0), "storage") || item_at(r, id, 2)->kind != KVC_PICKLE_TEXT ||
        item_at(r, id, 4)->kind != KVC_PICKLE_INT)
        return fail_tensor(r, "its storage is not described as torch.save() does", e);
    const char *class = global_of(r, item_at(r, id, 1));
    const struct kvc_pickle_value *key = item_at(r, id, 2);
    const int64_t count = item_at(r, id, 4)->integer;
    const int untyped = strcmp(class, KVC_TORCH_UNTYPED) == 0;
    for (*type = kvc_torch_types; (*type)->dtype; ++*type)
        if (untyped ? dtype && strcmp(dtype, (*type)->dtype) == 0
                    : strcmp(class, (*type)->storage) == 0)
            break;
    if (!(*type)->dtype) return fail_tensor(r, "its storage has a type that kvc does not know", e);
    if (find_member(r, "data/", key->text, key->n, member, e)) return -1;
    if (*member == SIZE_MAX) return fail_tensor(r, "the file does not contain its storage", e);
    const uint64_t size = r->zip->member[*member].size;
    const unsigned unit = untyped ? 1 : (*type)->size;
    if (count < 0 || size / unit != (uint64_t)count || size % unit)
        return fail_tensor(r, "its storage has another size than the pickle says", e);
    return 0;
}

/* Returns the tuple of a tuple or of a torch.Size; NULL where a value is neither, or holds
 * something other than counts. */
static const struct kvc_pickle_value *counts_of(const struct reader *r,
                                                const struct kvc_pickle_value *v) {
    if (v->kind == KVC_PICKLE_CALL && strcmp(global_of(r, v), "torch.Size") == 0) {
        const struct kvc_pickle_value *arguments = value_at(r, v->arguments);
        v = arguments->n == 1 ? item_at(r, arguments, 0) : v;
    }
    if (v->kind != KVC_PICKLE_TUPLE || v->n > MAX_RANK) return NULL;
    for (uint64_t i = 0; i < v->n; i++)
        if (item_at(r, v, i)->kind != KVC_PICKLE_INT || item_at(r, v, i)->integer < 0) return NULL;
    return v;
}

/* Sets the geometry of an array from sizes and strides in elements. Fails where it overflows; *span
 * gets the elements from the first to the last. */
static int take_geometry(const struct reader *r, struct kvc_array *a,
                         const struct kvc_pickle_value *size, const struct kvc_pickle_value *stride,
                         unsigned element, uint64_t *span) {
    uint64_t row_major = 1, reach;
    *span = 1;
    a->rank = size->n;
    for (uint64_t i = size->n; i-- > 0;) {
        const uint64_t dim = (uint64_t)item_at(r, size, i)->integer;
        uint64_t step = (uint64_t)item_at(r, stride, i)->integer;
        if (dim <= 1) step = row_major; /* of one element, the stride means nothing */
        if (step != row_major) a->strided = 1;
        if (__builtin_mul_overflow(row_major, dim, &row_major) || row_major > KVC_MAX_TENSOR_BYTES)
            return -1;
        if (i < KVC_ARRAY_RANK) a->dim[i] = dim;
        if (i < KVC_ARRAY_RANK && __builtin_mul_overflow(step, element, &a->stride[i])) return -1;
        if (!dim) continue;
        if (__builtin_mul_overflow(dim - 1, step, &reach) ||
            __builtin_add_overflow(*span, reach, span))
            return -1;
    }
    if (!row_major) *span = 0;
    return 0;
}

/* Makes the array of a call of _rebuild_tensor_v2 or _v3, whose arguments are: storage, offset,
 * size, stride, requires_grad, hooks; of v3 also dtype; then a dict that is empty, or missing,
 * unless values are to be negated or conjugated. */
static int take_tensor(struct reader *r, const struct kvc_pickle_value *call, struct kvc_error *e) {
    const struct kvc_pickle_value *args = value_at(r, call->arguments);
    const int v3 = strcmp(global_of(r, call), "torch._utils._rebuild_tensor_v3") == 0;
    const uint64_t usual = v3 ? 7 : 6;
    if (args->n < usual || args->n > usual + 1 || item_at(r, args, 1)->kind != KVC_PICKLE_INT)
        return fail_tensor(r, "it is not described as torch.save() does", e);
    if (args->n > usual &&
        (item_at(r, args, usual)->kind != KVC_PICKLE_DICT || item_at(r, args, usual)->n))
        return fail_tensor(
            r, "it is a view that negates or conjugates; save tensor.resolve_neg().resolve_conj()",
            e);
    const struct kvc_pickle_value *size = counts_of(r, item_at(r, args, 2)),
                                  *stride = counts_of(r, item_at(r, args, 3));
    const struct kvc_torch_type *type = NULL;
    size_t member = 0;
    if (find_storage(r, item_at(r, args, 0), v3 ? global_of(r, item_at(r, args, 6)) : NULL, &type,
                     &member, e))
        return -1;
    struct kvc_array a = {.type = type->name,
                          .in = kvc_zip_member_input(r->zip, member),
                          .tensor = KVC_NONE};
    const int64_t offset = item_at(r, args, 1)->integer;
    const uint64_t room = r->zip->member[member].size / type->size;
    uint64_t span;
    if (!size || !stride || size->n != stride->n || offset < 0 ||
        take_geometry(r, &a, size, stride, type->size, &span) || (uint64_t)offset > room ||
        span > room - (uint64_t)offset)
        return fail_tensor(r, "its size, strides and offset do not fit into its storage", e);
    a.info = type->kvc < 0 ? NULL : kvc_dtype_info((unsigned)type->kvc);
    a.int_size = type->is_int ? type->size : 0;
    a.raw_size = type->is_raw ? type->size : 0;
    a.at = r->zip->member[member].at + (uint64_t)offset * type->size;
    a.size = span * type->size;
    a.end = r->layer_end;
    a.window = r->layer_window;
    a.name = r->path;
    a.member = r->member;
    if (r->list->n == MAX_ARRAYS)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "there are more than %d tensors", MAX_ARRAYS);
    return kvc_arrays_add(r->list, &a, e);
}

/* --- the walk --- */

static int walk(struct reader *r, uint32_t number, unsigned depth, struct kvc_error *e);

/* Appends a part to the path. Returns the length of the path before, to which the caller cuts it
 * again; SIZE_MAX and the error where the path is too long. */
static size_t enter(struct reader *r, const char *part, uint64_t n, struct kvc_error *e) {
    const size_t before = strlen(r->path);
    if (n > MAX_PATH || memchr(part, 0, n) || before + n + 2 > MAX_PATH) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED,
                 "a tensor's path of keys is longer than %d bytes, or contains a NUL", MAX_PATH);
        return SIZE_MAX;
    }
    snprintf(r->path + before, MAX_PATH - before, "%s%.*s", before ? "." : "", (int)n, part);
    return before;
}

static int walk_item(struct reader *r, const char *part, uint64_t n, uint32_t item, unsigned depth,
                     struct kvc_error *e) {
    const size_t before = enter(r, part, n, e);
    if (before == SIZE_MAX || walk(r, item, depth + 1, e)) return -1;
    r->path[before] = '\0';
    return 0;
}

static int walk_list(struct reader *r, const struct kvc_pickle_value *v, unsigned depth,
                     struct kvc_error *e) {
    char part[24];
    for (uint64_t i = 0; i < v->n; i++) {
        const int n = snprintf(part, sizeof part, "%" PRIu64, i);
        if (walk_item(r, part, (uint64_t)n, v->item[i], depth, e)) return -1;
    }
    return 0;
}

/* Walks the values of a dict; keys are texts or integers. */
static int walk_dict(struct reader *r, const struct kvc_pickle_value *v, unsigned depth,
                     struct kvc_error *e) {
    char part[24];
    for (uint64_t i = 0; i + 1 < v->n; i += 2) {
        const struct kvc_pickle_value *key = item_at(r, v, i);
        const uint64_t n = (uint64_t)snprintf(part, sizeof part, "%" PRId64, key->integer);
        const int is_int = key->kind == KVC_PICKLE_INT;
        if (!is_int && key->kind != KVC_PICKLE_TEXT) continue;
        if (walk_item(r, is_int ? part : key->text, is_int ? n : key->n, v->item[i + 1], depth, e))
            return -1;
    }
    return 0;
}

/* Returns an attribute of an object that is a number above 0; 0: it has none. */
static uint64_t attribute(const struct reader *r, const struct kvc_pickle_value *state,
                          const char *name) {
    for (uint64_t i = 0; i + 1 < state->n; i += 2) {
        const struct kvc_pickle_value *v = item_at(r, state, i + 1);
        if (is_text(item_at(r, state, i), name) && v->kind == KVC_PICKLE_INT && v->integer > 0)
            return (uint64_t)v->integer;
    }
    return 0;
}

static int walk_call(struct reader *r, const struct kvc_pickle_value *v, unsigned depth,
                     struct kvc_error *e) {
    const char *name = global_of(r, v);
    const struct kvc_pickle_value *args = value_at(r, v->arguments), *state = value_at(r, v->state);
    if (strncmp(name, "torch._utils._rebuild_tensor", 28) == 0) return take_tensor(r, v, e);
    if (strcmp(name, "torch._utils._rebuild_parameter") == 0)
        return args->n ? walk(r, args->item[0], depth + 1, e) : 0;
    if (strcmp(name, "collections.OrderedDict") == 0) return walk_dict(r, v, depth, e);
    if (strncmp(name, "transformers.", 13) || state->kind != KVC_PICKLE_DICT) return 0;
    const int slides = strcmp(name, SLIDING_CLASS) == 0;
    const uint64_t window = slides ? attribute(r, state, "sliding_window") : 0;
    r->layer_end = slides ? attribute(r, state, "cumulative_length") : 0;
    r->layer_window = window <= KVC_MAX_CELLS ? (uint32_t)window : 0;
    const int status = walk_dict(r, state, depth, e);
    r->layer_end = r->layer_window = 0;
    return status;
}

/* Lists all tensors of a value. A pickle may describe endless structures, because values may
 * contain themselves. */
static int walk(struct reader *r, uint32_t number, unsigned depth, struct kvc_error *e) {
    const struct kvc_pickle_value *v = value_at(r, number);
    if (depth > MAX_DEPTH || ++r->visits > MAX_VISITS)
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "the pickle's lists and dicts are deeper or have more items than kvc reads");
    switch (v->kind) {
    case KVC_PICKLE_LIST:
    case KVC_PICKLE_TUPLE: return walk_list(r, v, depth, e);
    case KVC_PICKLE_DICT: return walk_dict(r, v, depth, e);
    case KVC_PICKLE_CALL: return walk_call(r, v, depth, e);
    default: return 0;
    }
}

/* --- the file --- */

static const char *const suffixes[] = {".pt", ".pth", NULL};

static int wants(const void *state, const char *name) {
    (void)state;
    const size_t n = strlen(name);
    return n && name[n - 1] != '/';
}

/* Finds the folder of the archive: of the first member that is named data.pkl. */
static int find_folder(struct reader *r, size_t *pickle, struct kvc_error *e) {
    for (*pickle = 0; *pickle < r->zip->n; ++*pickle) {
        const char *name = r->zip->member[*pickle].name, *slash = strchr(name, '/');
        if (!slash || strcmp(slash + 1, "data.pkl")) continue;
        return (r->folder = strndup(name, (size_t)(slash + 1 - name)))
                   ? 0
                   : kvc_fail_memory(e, "a name");
    }
    return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                    "no file of torch.save(): the zip has no member NAME/data.pkl");
}

static int check_byte_order(const struct reader *r, struct kvc_error *e) {
    char text[8] = "";
    size_t i;
    if (find_member(r, "", "byteorder", 9, &i, e)) return -1;
    if (i == SIZE_MAX) return 0;
    const struct kvc_zip_member *m = &r->zip->member[i];
    const uint64_t n = m->size < sizeof text ? m->size : sizeof text - 1;
    if (n && kvc_input_copy(kvc_zip_member_input(r->zip, i), m->at, text, n, e)) return -1;
    return strcmp(text, "little") == 0 ? 0
                                       : kvc_fail(e, KVC_ERR_UNSUPPORTED,
                                                  "the byte order of the tensors is not "
                                                  "\"little\"; save the file on another machine");
}

static int read_pickle(struct reader *r, size_t i, struct kvc_error *e) {
    const struct kvc_zip_member *m = &r->zip->member[i];
    const struct kvc_input *in = kvc_zip_member_input(r->zip, i);
    if (m->size > KVC_PICKLE_MAX) return kvc_pickle_read(&r->pickle, in->data, m->size, allows, e);
    if (kvc_input_pin(in, m->at, m->size, e)) return -1;
    int status = kvc_pickle_read(&r->pickle, in->data + m->at, m->size, allows, e);
    if (!status) status = walk(r, r->pickle.root, 0, e);
    kvc_pickle_free(&r->pickle);
    kvc_input_unpin(in, m->at, m->size);
    return status ? kvc_error_prefix(e, "data.pkl") : 0;
}

/* --- the cache --- */

static int torch_by_place(const void *pa, const void *pb) {
    const struct kvc_array *a = pa, *b = pb;
    if (a->member != b->member) return a->member < b->member ? -1 : 1;
    if (a->in != b->in) return a->in < b->in ? -1 : 1;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Finds the meaning of names that are not those of arrays_read.h: of a tuple of (key, value) pairs,
 * as transformers kept caches before it had classes for them, and of all names below
 * "past_key_values". */
static struct kvc_name meaning_of(const char *name) {
    static const char above[] = "past_key_values.";
    struct kvc_name known = {.kind = KVC_NAME_OTHER};
    const int below = strncmp(name, above, sizeof above - 1) == 0;
    if (below) name += sizeof above - 1;
    const size_t n = strlen(name), digits = strspn(name, "0123456789");
    if (digits && digits <= KVC_NAME_DIGITS && n == digits + 2 && name[digits] == '.' &&
        (name[n - 1] == '0' || name[n - 1] == '1'))
        return (struct kvc_name){.kind = KVC_NAME_TENSOR,
                                 .role = name[n - 1] == '1' ? KVC_ROLE_V : KVC_ROLE_K,
                                 .layer = (uint32_t)strtoul(name, NULL, 10)};
    if (below) known = kvc_name_of(name, NULL);
    return known;
}

/* Names of the option `map` go before those of torch.save(). */
static void take_meanings(struct kvc_array_list *list, const struct kvc_import_options *o) {
    const int mapped = kvc_name_maps_attention(o);
    for (size_t i = 0; i < list->n; i++) {
        struct kvc_array *a = &list->array[i];
        if (!mapped && kvc_name_of(a->name, o).kind == KVC_NAME_OTHER)
            a->known = meaning_of(a->name);
        /* the attribute sliding_window again */
        if (strstr(a->name, "._sliding_window_tensor")) a->known.kind = KVC_NAME_FACT;
    }
}

/* Sets the positions of sliding-window layers, whose classes say how many tokens they have seen. */
static int set_positions(struct kvc_cache *c, const struct kvc_array_list *list,
                         struct kvc_error *e) {
    for (size_t i = 0; i < list->n; i++) {
        const struct kvc_array *a = &list->array[i];
        if (a->tensor == KVC_NONE || !a->end) continue;
        struct kvc_cells *cells = &c->part[kvc_tensor_layer(c, a->tensor)->part].cells;
        kvc_meta_remove(&c->meta, KVC_KEY_WINDOW_ASSUMED); /* the layers' classes say it */
        if (a->end < cells->n || a->end > KVC_MAX_CELLS)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "the number of tokens that layer %" PRIu32
                            " has seen does not fit its rows",
                            kvc_tensor_layer(c, a->tensor)->index);
        if (cells->order) continue; /* an array says them */
        for (uint64_t row = 0; row < cells->n; row++)
            cells->pos[row] = (int64_t)(a->end - cells->n + row);
    }
    for (size_t i = 0; i < list->n; i++) {
        const struct kvc_array *a = &list->array[i];
        if (a->tensor == KVC_NONE || !a->end) continue;
        const struct kvc_cells *cells = kvc_tensor_cells(c, a->tensor);
        if (cells->n && !cells->order && cells->pos[cells->n - 1] != (int64_t)a->end - 1)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "two layers hold as many tokens, but of other positions");
    }
    return 0;
}

static int set_windows(struct kvc_cache *c, const struct kvc_array_list *list,
                       struct kvc_error *e) {
    for (size_t i = 0; i < list->n; i++) {
        if (list->array[i].tensor == KVC_NONE || !list->array[i].window) continue;
        struct kvc_layer *layer = &c->layer[c->tensor[list->array[i].tensor].layer];
        layer->kind = KVC_LAYER_WINDOW;
        layer->window = list->array[i].window;
        if (kvc_meta_set_u64(&c->meta, KVC_KEY_WINDOW, layer->window, e)) return -1;
    }
    return 0;
}

static int torch_build(struct kvc_cache *c, struct kvc_array_list *list, const struct kvc_bundle *b,
                       const struct kvc_import_options *o, struct kvc_error *e) {
    take_meanings(list, o);
    if (kvc_arrays_name_members(list, b, o, e)) return -1;
    if (kvc_arrays_split(list, o, e)) return -1;
    if (list->n) qsort(list->array, list->n, sizeof *list->array, torch_by_place);
    if (kvc_names_build(c, list->array, list->n, o, e)) return -1;
    if (set_positions(c, list, e)) return -1;
    if (kvc_arrays_source(c, list, b, e)) return -1;
    if (kvc_import_meta_assumed(c, "torch", b, o, 0, e)) return -1;
    if (kvc_names_first_token(c, e)) return -1;
    if (set_windows(c, list, e)) return -1;
    return kvc_cache_finish(c, e);
}

static int torch_read_file(struct kvc_array_list *list, struct kvc_zip_members *zip, size_t member,
                           const struct kvc_input *in, struct kvc_error *e) {
    struct reader r = {.zip = zip, .member = member, .list = list};
    size_t pickle;
    if (kvc_zip_read(zip, in, wants, NULL, e)) return -1;
    int status = find_folder(&r, &pickle, e);
    if (!status) status = check_byte_order(&r, e);
    if (!status) status = read_pickle(&r, pickle, e);
    free(r.folder);
    return status;
}

static int read_files(struct kvc_array_list *list, struct kvc_zip_members *zip,
                      const struct kvc_bundle *b, const struct kvc_import_options *o,
                      struct kvc_error *e) {
    size_t n = 0;
    (void)o;
    for (size_t i = 0; i < b->n; i++) {
        if (!kvc_member_is_read(b, i, suffixes)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, e);
        if (!in) return -1;
        if (torch_read_file(list, &zip[i], i, in, e)) return kvc_member_failed(b, i, e);
        n++;
    }
    return n ? 0 : kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "no file is named *.pt or *.pth");
}

static struct kvc_cache *torch_import(const struct kvc_bundle *b,
                                      const struct kvc_import_options *o, struct kvc_error *e) {
    return kvc_arrays_of_zips(b, o, read_files, torch_build, e);
}

/* --- the format --- */

/* Recognises a zip whose first member is NAME/data.pkl. */
static int torch_probe_file(const struct kvc_bundle *b, size_t i, const struct kvc_input *in,
                            char *why, size_t size) {
    static const char member[] = "/data.pkl";
    const size_t n = sizeof member - 1;
    uint8_t head[30], end[sizeof member];
    (void)i;
    snprintf(why, size, "%s",
             b->is_file ? "no zip that begins with data.pkl"
                        : "a file is no zip that begins with data.pkl");
    if (in->size < sizeof head || kvc_input_copy(in, 0, head, sizeof head, NULL)) return 0;
    const size_t name = get_u16(head + 26);
    return memcmp(head, "PK\3\4", 4) == 0 && name >= n && in->size >= 30 + name &&
           !kvc_input_copy(in, 30 + name - n, end, n, NULL) && memcmp(end, member, n) == 0;
}

static int torch_probe(const struct kvc_bundle *b, char *why, size_t size) {
    return kvc_members_probe(b, suffixes, "no file is named *.pt or *.pth", torch_probe_file, why,
                             size);
}

const struct kvc_format kvc_format_torch = {
    .name = "torch",
    .summary = "tensors of torch.save()",
    .suffix = ".pt",
    .takes_members = 1,
    .import_options = kvc_arrays_options,
    .lacks = KVC_LACKS_COORDINATES | KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA | KVC_LACKS_PAIRING |
             KVC_LACKS_UNKNOWNS,
    .keeps = kvc_torch_keeps,
    .no_source = "the bytes of a PyTorch file with compressed members are not recorded",
    .probe = torch_probe,
    .import = torch_import,
    .export = kvc_torch_write,
};
