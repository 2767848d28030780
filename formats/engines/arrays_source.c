/* arrays_source.c: the source of a cache that is a collection of arrays: extents of the file,
 * metadata that all such files share, arrays of a safetensors header. Not for the meaning of names
 * (arrays_read.c). */
#include "formats/engines/arrays_read.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/io/safetensors_file.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *kvc_array_describe(const struct kvc_array *a, char *text, size_t size) {
    char name[96];
    int n = snprintf(text, size, "array '%s' (%s [", kvc_name_show(a->name, name, sizeof name),
                     a->type);
    for (uint64_t i = 0; i < a->rank && i < KVC_ARRAY_RANK && n >= 0 && (size_t)n < size; i++)
        n += snprintf(text + n, size - (size_t)n, "%s%" PRIu64, i ? "," : "", a->dim[i]);
    if (n >= 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, "%s])", a->rank > KVC_ARRAY_RANK ? ",..." : "");
    return text;
}

int kvc_array_fail(const struct kvc_array *a, struct kvc_error *e, enum kvc_code code,
                   const char *format, ...) {
    char what[320], text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return kvc_fail(e, code, "%s: %s", kvc_array_describe(a, what, sizeof what), text);
}

int kvc_array_fail_batch(const struct kvc_array *a, uint64_t n, struct kvc_error *e) {
    return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED,
                          "holds %" PRIu64
                          " sequences (batch); kvc takes one, save each to its own file",
                          n);
}

int kvc_array_of_safetensors(struct kvc_array *a, const struct kvc_safetensors_tensor *t,
                             const struct kvc_safetensors *header, const struct kvc_input *in,
                             struct kvc_error *e) {
    char shown[96];
    if (t->type->bits < 8)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "header: '%s' has dtype %s; types below a byte are not supported",
                        kvc_name_show(t->name, shown, sizeof shown), t->dtype);
    *a = (struct kvc_array){.name = t->name, .type = t->dtype, .rank = t->rank, .in = in};
    a->info = t->type->dtype < 0 ? NULL : kvc_dtype_info((unsigned)t->type->dtype);
    a->int_size = strcmp(t->dtype, "I32") == 0 ? 4 : strcmp(t->dtype, "I64") == 0 ? 8 : 0;
    if ((*t->dtype == 'I' || *t->dtype == 'U') && t->type->bits <= 16)
        a->raw_size = t->type->bits / 8;
    for (uint64_t i = 0; i < t->rank && i < KVC_ARRAY_RANK; i++) a->dim[i] = t->dim[i];
    a->at = header->data_at + t->begin;
    a->size = t->end - t->begin;
    return 0;
}

/* --- extents --- */

/* Adds the region of several arrays that lie between each other, or of one with gaps: bytes [begin,
 * end) of the input. */
static int add_region(struct kvc_cache *c, const struct kvc_array *const *group, size_t n,
                      const struct kvc_input *in, uint64_t end, struct kvc_error *e) {
    const uint64_t begin = group[0]->at;
    struct kvc_place *place = kvc_alloc(n, sizeof *place);
    if (!place) return kvc_fail_memory(e, "places");
    for (size_t i = 0; i < n; i++) {
        struct kvc_tensor *tensor = &c->tensor[group[i]->tensor];
        place[i] = (struct kvc_place){.tensor = group[i]->tensor,
                                      .n = tensor->shape.tokens,
                                      .offset = group[i]->at - begin,
                                      .strides = tensor->source};
        /* the region says where the tensor lies */
        tensor->source = kvc_strides_canonical(&tensor->shape);
        tensor->source_size = kvc_tensor_bytes(tensor);
    }
    const int status = kvc_cache_extent_region(c, in, begin, end - begin, place, n, e);
    free(place);
    if (!status || n == 1 || (e && e->code != KVC_ERR_DAMAGED)) return status;
    char one[320], other[320];
    return kvc_fail_at(e, KVC_ERR_UNSUPPORTED, begin,
                       "%s and %s, or arrays between them, share bytes of the file; save a copy of "
                       "each, without sharing",
                       kvc_array_describe(group[0], one, sizeof one),
                       kvc_array_describe(group[n - 1], other, sizeof other));
}

/* Lists in `group` the arrays from number *i on that lie between each other. Returns their number,
 * sets *end to the end of their bytes and *i to the next array. */
static size_t next_group(const struct kvc_array *array, size_t n, size_t *i,
                         const struct kvc_input *in, const struct kvc_array **group,
                         uint64_t *end) {
    size_t members = 0;
    for (; *i < n; ++*i) {
        const struct kvc_array *a = &array[*i];
        if (a->tensor == KVC_NONE || a->in != in) continue;
        if (members && a->at >= *end) break;
        if (!members || a->at + a->size > *end) *end = a->at + a->size;
        group[members++] = a;
    }
    return members;
}

int kvc_names_extents(struct kvc_cache *c, const struct kvc_array *array, size_t n,
                      const struct kvc_input *in, struct kvc_error *e) {
    const struct kvc_array **group = kvc_alloc(n, sizeof *group);
    uint64_t at = 0, end = 0;
    int status = group ? 0 : kvc_fail_memory(e, "arrays");
    for (size_t i = 0, members; !status && (members = next_group(array, n, &i, in, group, &end));
         at = end) {
        status = kvc_cache_extent_literal(c, in, at, group[0]->at - at, e);
        if (status) break;
        if (members == 1 && (!group[0]->strided || !group[0]->size))
            status = kvc_extents_tensor(c, group[0]->tensor, e);
        else status = add_region(c, group, members, in, end, e);
    }
    free(group);
    return status ? -1 : kvc_cache_extent_literal(c, in, at, in->size - at, e);
}

/* --- metadata --- */

int kvc_names_first_token(struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_cells *cells = &c->part[0].cells;
    if (!c->n_tokens || c->n_tokens != cells->n || cells->pos[0] <= 0) return 0;
    for (uint64_t i = 1; i < cells->n; i++)
        if (cells->pos[i] != cells->pos[i - 1] + 1) return 0;
    return kvc_meta_set_u64(&c->meta, KVC_KEY_TOKENS_FIRST, (uint64_t)cells->pos[0], e);
}
