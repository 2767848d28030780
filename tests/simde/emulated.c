/* emulated.c: AVX-512's encoder of rANS as the only table of kernels, emulated; the reference
 * decodes. Linked before libkvc.a in the place of kernels/dispatch.c and kernels/rans_avx512.c, so
 * that tests/unit/test_rans.c tests it as it does the CPU's own. */
#include "kernels/rans_avx512.c"

#include <string.h>

static const struct kvc_kernels emulated = {
    .name = "avx512 by SIMDe",
    .rans_decode = kvc_rans_decode_ref,
    .rans_encode = kvc_rans_encode_avx512,
};

const char *const *kvc_kernels_names(void) {
    static const char *const names[] = {"avx512 by SIMDe", NULL};
    return names;
}

const struct kvc_kernels *kvc_kernels_find(const char *name) {
    return strcmp(name, emulated.name) == 0 ? &emulated : NULL;
}
