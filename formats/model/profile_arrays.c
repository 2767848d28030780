/* profile_arrays.c: finds the tensors of an open profile by name. Not for what they are for
 * (profile.c, predictor.c). */
#include "formats/model/profile_state.h"

#include "formats/io/bytes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SIZE = 1 << 20 };

int kvc_profile_array(const struct kvc_profile *p, uint32_t layer, const char *what,
                      const char *dtype, unsigned rank, struct kvc_profile_array *a,
                      struct kvc_error *e) {
    char name[64];
    snprintf(name, sizeof name, "layers.%" PRIu32 ".%s", layer, what);
    const struct kvc_safetensors_tensor *t = kvc_safetensors_find(&p->header, name);
    if (!t) return 0;
    if (strcmp(t->dtype, dtype) != 0 || t->rank != rank)
        return kvc_fail(e, KVC_ERR_DAMAGED, "'%s' is not %u dimensions of %s", name, rank, dtype);
    for (unsigned i = 0; i < rank; i++) {
        a->dim[i] = t->dim[i];
        if (!a->dim[i] || a->dim[i] > MAX_SIZE)
            return kvc_fail(e, KVC_ERR_DAMAGED, "'%s' has dimensions out of range", name);
    }
    a->data = p->data + p->header.data_at + t->begin;
    a->rank = rank;
    return 1;
}

int kvc_profile_finite(const struct kvc_profile_array *a, float minimum, const char *what,
                       uint32_t layer, struct kvc_error *e) {
    uint64_t n = 1;
    for (unsigned i = 0; i < a->rank; i++) n *= a->dim[i];
    for (uint64_t i = 0; i < n; i++)
        if (!(fabsf(get_f32(a->data + 4 * i)) < 0x1p100f) || get_f32(a->data + 4 * i) < minimum)
            return kvc_fail(e, KVC_ERR_DAMAGED, "'layers.%" PRIu32 ".%s' has a value out of range",
                            layer, what);
    return 0;
}

int kvc_profile_numbers(const struct kvc_profile *p, uint32_t layer, int is_v, const char *name,
                        float minimum, struct kvc_profile_array *a, struct kvc_error *e) {
    char what[32];
    snprintf(what, sizeof what, "%c.%s", is_v ? 'v' : 'k', name);
    const int found = kvc_profile_array(p, layer, what, "F32", 2, a, e);
    return found > 0 && kvc_profile_finite(a, minimum, what, layer, e) ? -1 : found;
}

size_t kvc_profile_place(size_t d, size_t half, int interleaved) {
    if (!interleaved || d >= 2 * half) return d;
    return d < half ? 2 * d : 2 * (d - half) + 1;
}
