/* fuzz_profile.c: profile files from any bytes: what opens has parts of sane shapes and finite
 * numbers, for decoders and encoders, the same each time, and predictors that can be prepared. */
#include "tests/fuzz/fuzz.h"

#include "formats/model/predictor.h"
#include "formats/model/profile.h"

#include <math.h>

/* that are looked at: an inverse takes the cube of the channels */
enum { MOST_LAYERS = 16, MOST_DIM = 128 };

static void must_be_finite(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) fuzz_die("a number of a part is none", NULL);
}

static void check_part(const struct kvc_profile_part *part, int encoder) {
    const size_t width = part->heads * part->dim;
    if (!part->heads || !part->dim || 2 * part->half > part->dim || !part->angle != !part->half)
        fuzz_die("a part of no sane shape", NULL);
    must_be_finite(part->mean, width);
    must_be_finite(part->basis, width * part->dim);
    for (size_t i = 0; i < part->half; i++)
        if (!(part->angle[i] >= 0 && part->angle[i] <= 1)) fuzz_die("an angle out of range", NULL);
    if (!encoder) return;
    if (!part->inverse) fuzz_die("an encoder's part without an inverse", NULL);
    /* all there, if not all finite */
    const size_t bytes = width * part->dim * sizeof *part->inverse;
    free(memcpy(fuzz_alloc(bytes), part->inverse, bytes));
    if (part->n_queries && part->query_heads % part->heads)
        fuzz_die("heads that do not share queries evenly", NULL);
    must_be_finite(part->query, part->n_queries * part->query_heads);
}

/* Prepares the predictor of a part, and inputs that are computed from its rows. */
static void check_predictor(struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                            enum kvc_pairing pairing) {
    const struct kvc_predictor *x;
    const struct kvc_small *s;
    struct kvc_error e;
    if (kvc_profile_predictor(p, layer, role, pairing, &x, &e) ||
        kvc_profile_small(p, layer, role, pairing, &s, &e))
        fuzz_die("a predictor that was checked is refused", &e);
    if (s) must_be_finite(s->mean, s->width);
    if (s) must_be_finite(s->gain, s->width);
}

static void check_layer(struct kvc_profile *p, uint32_t layer) {
    for (unsigned i = 0; i < 16; i++) {
        const enum kvc_role role = i & 1 ? KVC_ROLE_V : KVC_ROLE_K;
        const enum kvc_pairing pairing = i & 2 ? KVC_PAIRING_INTERLEAVED : KVC_PAIRING_HALVES;
        const int encoder = (i >> 2 & 1) != 0;
        const struct kvc_profile_part *part, *again;
        struct kvc_error e;
        check_predictor(p, layer, role, pairing);
        if (kvc_profile_part(p, layer, role, pairing, 0, &part, &e))
            fuzz_die("a part that was checked is refused", &e);
        if (part) check_part(part, 0);
        if (!part || !encoder || part->dim > MOST_DIM) continue;
        if (kvc_profile_part(p, layer, role, pairing, 1, &again, &e)) {
            if (again || !*e.message || e.code != KVC_ERR_DAMAGED)
                fuzz_die("refused without a word, or for a wrong reason", &e);
            continue; /* a matrix without an inverse */
        }
        if (again != part) fuzz_die("another part the second time", NULL);
        check_part(part, 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_error e = {.code = KVC_OK};
    size_t n;
    struct kvc_profile *p = kvc_profile_open_memory(data, size, &e);
    if (!p) {
        if (!*e.message || (e.code != KVC_ERR_DAMAGED && e.code != KVC_ERR_UNSUPPORTED &&
                            e.code != KVC_ERR_UNKNOWN_FORMAT))
            fuzz_die("refused without a word, or for a wrong reason", &e);
        return 0;
    }
    const uint32_t layers = kvc_profile_layers(p);
    if (!layers || memcmp(kvc_profile_bytes(p, &n), data, size) != 0 || n != size)
        fuzz_die("other bytes than it was opened of", NULL);
    for (uint32_t i = 0; i < layers && i < MOST_LAYERS; i++) check_layer(p, i);
    check_layer(p, layers - 1);
    check_layer(p, layers);
    kvc_profile_free(p);
    return 0;
}
