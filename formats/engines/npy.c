/* npy.c: one array as a .npy file: magic, version, the text of a Python dictionary, data. Not for
 * the zip around it (npz.c). */
#include "formats/engines/npy.h"

#include "formats/io/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* numpy has no bfloat16: arrays of the ml_dtypes extension are saved as two-byte voids, which are
 * read here as bf16. Eight-bit floats are saved as one-byte voids, which do not record their type,
 * and are not read. */
static const struct {
    const char *descr;
    unsigned size;
    int dtype; /* enum kvc_dtype, or -1 */
    unsigned int_size, raw_size;
} elements[] = {
    {"<f4", 4, KVC_F32, 0, 0},  {"<f2", 2, KVC_F16, 0, 0}, {"|V2", 2, KVC_BF16, 0, 0},
    {"<V2", 2, KVC_BF16, 0, 0}, {"|u1", 1, KVC_U8, 0, 1},  {"|i1", 1, KVC_I8, 0, 1},
    {"<i4", 4, -1, 4, 0},       {"<i8", 8, -1, 8, 0},      {"<u2", 2, -1, 0, 2},
    {"<i2", 2, -1, 0, 2},
};

/* A cursor over the text of a .npy header: a Python literal. */
struct text {
    const uint8_t *at, *end;
};

static void skip_spaces(struct text *t) {
    while (t->at < t->end && *t->at == ' ') t->at++;
}

static int npy_take(struct text *t, char c) {
    skip_spaces(t);
    if (t->at == t->end || *t->at != (uint8_t)c) return 0;
    t->at++;
    return 1;
}

static int take_word(struct text *t, const char *word) {
    size_t n = strlen(word);
    skip_spaces(t);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n)) return 0;
    t->at += n;
    return 1;
}

static int take_string(struct text *t, char *string, size_t size) {
    skip_spaces(t);
    if (t->at == t->end || (*t->at != '\'' && *t->at != '"')) return 0;
    uint8_t quote = *t->at++;
    size_t n = 0;
    for (; t->at < t->end && *t->at != quote; t->at++) {
        if (*t->at < ' ' || *t->at > '~' || *t->at == '\\' || n + 1 >= size) return 0;
        string[n++] = (char)*t->at;
    }
    string[n] = 0;
    return npy_take(t, (char)quote);
}

static int take_count(struct text *t, uint64_t *count) {
    skip_spaces(t);
    const uint8_t *first = t->at;
    *count = 0;
    for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
        if (__builtin_mul_overflow(*count, 10, count) ||
            __builtin_add_overflow(*count, *t->at - '0', count))
            return 0;
    return t->at > first && (*first != '0' || t->at == first + 1);
}

/* Reads a tuple, "()", "(5,)" or "(1, 2)". Sets rank and the first dimensions, and the product of
 * all. */
static int npy_take_shape(struct text *t, struct kvc_array *a, uint64_t *values) {
    int comma = 0;
    *values = 1;
    a->rank = 0;
    if (!npy_take(t, '(')) return 0;
    while (!npy_take(t, ')')) {
        uint64_t dim;
        if ((a->rank && !comma) || !take_count(t, &dim) ||
            __builtin_mul_overflow(*values, dim, values))
            return 0;
        if (a->rank < KVC_ARRAY_RANK) a->dim[a->rank] = dim;
        a->rank++;
        comma = npy_take(t, ',');
    }
    return a->rank != 1 || comma; /* "(5)" is a number in brackets, not a tuple */
}

static int take_header(struct text *t, char *descr, size_t size, int *fortran, struct kvc_array *a,
                       uint64_t *values) {
    unsigned seen = 0, bit;
    char key[32];
    if (!npy_take(t, '{')) return 0;
    while (!npy_take(t, '}')) {
        if (!take_string(t, key, sizeof key) || !npy_take(t, ':')) return 0;
        if (strcmp(key, "descr") == 0) {
            bit = 1;
            if (!take_string(t, descr, size)) return 0;
        } else if (strcmp(key, "fortran_order") == 0) {
            bit = 2;
            *fortran = take_word(t, "True");
            if (!*fortran && !take_word(t, "False")) return 0;
        } else if (strcmp(key, "shape") == 0) {
            bit = 4;
            if (!npy_take_shape(t, a, values)) return 0;
        } else {
            return 0;
        }
        if (seen & bit) return 0;
        seen |= bit;
        if (!npy_take(t, ',') && (t->at == t->end || *t->at != '}')) return 0;
    }
    skip_spaces(t);
    return seen == 7 && t->end - t->at == 1 && *t->at == '\n';
}

/* Reads the header. The first `size` bytes of the member, or fewer where it is shorter, are at p.
 */
static int npy_read_header(struct kvc_array *a, const uint8_t *p, uint64_t size,
                           struct kvc_error *e) {
    char shown[96], descr[32];
    int fortran = 0;
    uint64_t values = 0, bytes;
    kvc_name_show(a->name, shown, sizeof shown);
    if (size < 12 || memcmp(p, "\x93NUMPY", 6))
        return kvc_fail(e, KVC_ERR_DAMAGED, "member '%s.npy' is no .npy file", shown);
    if (p[6] < 1 || p[6] > 3 || p[7] != 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "member '%s.npy': .npy version %u.%u is not known",
                        shown, p[6], p[7]);
    uint64_t start = p[6] == 1 ? 10 : 12, length = p[6] == 1 ? get_u16(p + 8) : get_u32(p + 8);
    if (length > size - start)
        return kvc_fail(e, KVC_ERR_DAMAGED, "member '%s.npy': the header reaches beyond the member",
                        shown);
    struct text t = {p + start, p + start + length};
    if (!take_header(&t, descr, sizeof descr, &fortran, a, &values))
        return kvc_fail(
            e, KVC_ERR_DAMAGED,
            "member '%s.npy': the header is not {descr, fortran_order, shape} of one plain type",
            shown);
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++) {
        if (strcmp(elements[i].descr, descr)) continue;
        if (fortran)
            return kvc_fail(
                e, KVC_ERR_UNSUPPORTED,
                "member '%s.npy' is in Fortran order; save it with numpy.ascontiguousarray()",
                shown);
        a->type = elements[i].descr;
        a->info = elements[i].dtype < 0 ? NULL : kvc_dtype_info((unsigned)elements[i].dtype);
        a->int_size = elements[i].int_size;
        a->raw_size = elements[i].raw_size;
        a->at += start + length;
        a->size = size - start - length;
        if (__builtin_mul_overflow(values, elements[i].size, &bytes) || bytes != a->size)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "member '%s.npy' holds %" PRIu64
                            " bytes of data, not what its shape and type need",
                            shown, a->size);
        return 0;
    }
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "member '%s.npy' has type '%s'; kvc takes <f4, <f2, |V2 (bf16), |u1, |i1, <i2, "
                    "<u2 (with map=dtype=bf16), and <i4, <i8 for tokens and positions",
                    shown, descr);
}

int kvc_npy_read(struct kvc_array *a, const struct kvc_input *in, uint64_t at, uint64_t size,
                 struct kvc_error *e) {
    uint8_t head[12];
    uint64_t n = size;
    if (size >= sizeof head) {
        if (kvc_input_copy(in, at, head, sizeof head, e)) return -1;
        const uint64_t due = head[6] == 1 ? 10 + (uint64_t)get_u16(head + 8)
                                          : 12 + (uint64_t)get_u32(head + 8);
        n = due < size ? due : size;
    }
    if (kvc_input_pin(in, at, n, e)) return -1;
    a->in = in;
    a->at = at;
    const int status = npy_read_header(a, in->data + at, size, e);
    kvc_input_unpin(in, at, n);
    return status;
}

static const char *descr_of(const struct kvc_arrays_item *item) {
    if (item->kind == KVC_NAME_TOKENS) return "<i4";
    if (item->kind == KVC_NAME_POSITIONS) return "<i8";
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
        if (elements[i].dtype == (int)item->dtype) return elements[i].descr;
    return "";
}

size_t kvc_npy_print(const struct kvc_arrays_item *item, char *text, size_t size) {
    enum { PREFIX = 10, ALIGN = 64 };
    char shape[96] = "";
    for (unsigned i = 0; i < item->rank; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%" PRIu64 "%s",
                 i ? " " : "", item->dim[i], i + 1 < item->rank || item->rank == 1 ? "," : "");
    snprintf(text + PREFIX, size - PREFIX,
             "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr_of(item), shape);
    size_t used = PREFIX + strlen(text + PREFIX), total = (used + 1 + ALIGN - 1) / ALIGN * ALIGN;
    memset(text + used, ' ', total - used);
    text[total - 1] = '\n';
    memcpy(text, "\x93NUMPY\x01\x00", 8);
    put_u16((uint8_t *)text + 8, (uint16_t)(total - PREFIX));
    return total;
}
