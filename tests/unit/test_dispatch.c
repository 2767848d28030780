/* test_dispatch.c: the choice of kernels: rANS gives the reference's bytes before, during and after
 * the trial, and the trial finds what is much faster. Not for the kernels (test_kernels.c,
 * test_rans.c). */
#include "codecs/rans.h"
#include "kernels/kernels.h"
#include "kernels/trial.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 4096, SYMBOLS = 40, BITS = 11, THREADS = 4 };

static uint16_t symbols[N], base[N];
static struct kvc_rans_symbol encoding[SYMBOLS];
static uint32_t decoding[(1 << BITS) + KVC_RANS_SLACK];

static int set_up(void **state) {
    uint32_t count[SYMBOLS], random = 1;
    uint16_t frequency[SYMBOLS];
    (void)state;
    for (uint32_t i = 0; i < SYMBOLS; i++) count[i] = 1 + i * i;
    kvc_rans_normalise(frequency, count, SYMBOLS, BITS);
    kvc_rans_encoding_table(encoding, frequency, SYMBOLS);
    kvc_rans_decoding_table(decoding, frequency, SYMBOLS);
    for (unsigned i = 0; i < N; i++) {
        random = random * 1664525 + 1013904223;
        symbols[i] = (uint16_t)((random >> 8) % SYMBOLS);
    }
    return 0;
}

struct stream {
    uint8_t bytes[KVC_RANS_BOUND(N)];
    size_t first;
    uint32_t x[KVC_RANS_LANES];
};

static void encode(const struct kvc_kernels *k, struct stream *s) {
    struct kvc_rans_encoder r;
    memset(s, 0, sizeof *s);
    kvc_rans_encode_begin(&r, KVC_RANS_LANES, s->bytes + sizeof s->bytes);
    k->rans_encode(&r, symbols, N, encoding, BITS);
    s->first = (size_t)(r.next - s->bytes);
    memset(s->bytes, 0, s->first); /* below it twins leave what they like */
    memcpy(s->x, r.x, sizeof s->x);
}

static void decode(const struct kvc_kernels *k, const struct stream *s, uint16_t *out) {
    struct kvc_rans_decoder r = {.lanes = KVC_RANS_LANES,
                                 .next = s->bytes + s->first,
                                 .end = s->bytes + sizeof s->bytes};
    memcpy(r.x, s->x, sizeof r.x);
    k->rans_decode(&r, out, base, N, decoding, BITS);
    assert_int_equal(r.missing, 0);
}

static void *code_there_and_back(void *failed) {
    struct stream *mine = malloc(sizeof *mine), *wanted = malloc(sizeof *wanted);
    uint16_t *out = malloc(sizeof symbols);
    for (int times = 0; times < 3; times++) {
        const struct kvc_kernels *k = kvc_kernels_get();
        encode(k, mine);
        encode(&kvc_kernels_ref, wanted);
        *(int *)failed |= memcmp(mine, wanted, sizeof *mine) != 0;
        decode(k, mine, out);
        *(int *)failed |= memcmp(out, symbols, sizeof symbols) != 0;
    }
    free(mine);
    free(wanted);
    free(out);
    return NULL;
}

/* Threads that all come first: each sees the same bytes, of whichever kernels. */
static void first_calls(void **state) {
    pthread_t thread[THREADS];
    int failed[THREADS] = {0};
    (void)state;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, code_there_and_back, &failed[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++) assert_int_equal(failed[i], 0);
}

/* After the trial the functions are those of the tables that are named, and no others. */
static void named_as_chosen(void **state) {
    (void)state;
    const struct kvc_kernels_choice choice = kvc_kernels_choice();
    const struct kvc_kernels *k = kvc_kernels_get();
    assert_int_equal(choice.by_trial, 1);
    assert_string_equal(choice.name, k->name);
    assert_ptr_equal(k->rans_encode, kvc_kernels_find(choice.rans_encode)->rans_encode);
    assert_ptr_equal(k->rans_decode, kvc_kernels_find(choice.rans_decode)->rans_decode);
    assert_non_null(kvc_kernels_find(choice.dot_rows));
    int found = !k->rans_decode_two;
    for (const char *const *name = kvc_kernels_names(); *name; name++)
        found |= kvc_kernels_find(*name) &&
                 k->rans_decode_two == kvc_kernels_find(*name)->rans_decode_two;
    assert_true(found);
    assert_ptr_equal(k->split_planes, kvc_kernels_find(choice.name)->split_planes);
    assert_ptr_equal(kvc_kernels_get(), k);
}

/* --- tables of which some are slow --- */

static void slow_encode(struct kvc_rans_encoder *r, const uint16_t *s, size_t n,
                        const struct kvc_rans_symbol *table, unsigned bits) {
    const struct kvc_rans_encoder begin = *r;
    for (int i = 0; i < 20; i++) {
        *r = begin;
        kvc_kernels_ref.rans_encode(r, s, n, table, bits);
    }
}

static void slow_decode(struct kvc_rans_decoder *r, uint16_t *s, const uint16_t *from, size_t n,
                        const uint32_t *table, unsigned bits) {
    const struct kvc_rans_decoder begin = *r;
    for (int i = 0; i < 20; i++) {
        *r = begin;
        kvc_kernels_ref.rans_decode(r, s, from, n, table, bits);
    }
}

static void two_slowly(const struct kvc_rans_row *a, const struct kvc_rans_row *b, size_t n) {
    slow_decode(a->r, a->symbols, a->base, n, a->table, a->bits);
    slow_decode(b->r, b->symbols, b->base, n, b->table, b->bits);
}

static void two_at_once(const struct kvc_rans_row *a, const struct kvc_rans_row *b, size_t n) {
    kvc_kernels_ref.rans_decode(a->r, a->symbols, a->base, n, a->table, a->bits);
    kvc_kernels_ref.rans_decode(b->r, b->symbols, b->base, n, b->table, b->bits);
}

/* Whichever comes first, and for encoding and decoding apart. */
static void slow_ones_lose(void **state) {
    const struct kvc_kernels slow_encoder = {.rans_encode = slow_encode,
                                             .rans_decode = kvc_kernels_ref.rans_decode};
    const struct kvc_kernels slow_decoder = {.rans_encode = kvc_kernels_ref.rans_encode,
                                             .rans_decode = slow_decode};
    const struct kvc_kernels *both[2][2] = {{&slow_encoder, &slow_decoder},
                                            {&slow_decoder, &slow_encoder}};
    const struct kvc_kernels *alone[] = {&slow_encoder}, *of_encode, *of_decode, *of_two;
    (void)state;
    for (int order = 0; order < 2; order++) {
        kvc_trial_rans(both[order], 2, &of_encode, &of_decode, &of_two);
        assert_ptr_equal(of_encode, &slow_decoder);
        assert_ptr_equal(of_decode, &slow_encoder);
        assert_ptr_equal(of_two, &slow_encoder);
    }
    kvc_trial_rans(alone, 1, &of_encode, &of_decode, &of_two);
    assert_ptr_equal(of_encode, &slow_encoder);
    assert_ptr_equal(of_decode, &slow_encoder);
}

/* Two streams are timed apart from one: a table may be the fastest with either. */
static void two_streams_are_timed(void **state) {
    const struct kvc_kernels *of_encode, *of_decode, *of_two;
    const struct kvc_kernels none = {.rans_encode = kvc_kernels_ref.rans_encode,
                                     .rans_decode = kvc_kernels_ref.rans_decode};
    const struct kvc_kernels slow_decoder = {.rans_encode = kvc_kernels_ref.rans_encode,
                                             .rans_decode = slow_decode};
    const struct kvc_kernels at_once = {.rans_encode = slow_encode,
                                        .rans_decode = slow_decode,
                                        .rans_decode_two = two_at_once};
    const struct kvc_kernels slow = {.rans_encode = slow_encode,
                                     .rans_decode = kvc_kernels_ref.rans_decode,
                                     .rans_decode_two = two_slowly};
    (void)state;
    const struct kvc_kernels *const first[] = {&slow, &none}, *const second[] = {&slow_decoder,
                                                                                 &at_once};
    kvc_trial_rans(first, 2, &of_encode, &of_decode, &of_two);
    assert_ptr_equal(of_two, &none);
    kvc_trial_rans(second, 2, &of_encode, &of_decode, &of_two);
    assert_ptr_equal(of_two, &at_once);
}

/* A table that leaves out a list of kernels has no function for them, and no compiler says so. */
static void tables_are_whole(void **state) {
    (void)state;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
#define WHOLE(kernel, isa) \
    if (!k->kernel) fail_msg("%s has no " #kernel, *name);
        KVC_KERNELS(WHOLE, )
#undef WHOLE
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_calls), /* first: nothing before it may have made the trial */
        cmocka_unit_test(named_as_chosen),       cmocka_unit_test(slow_ones_lose),
        cmocka_unit_test(two_streams_are_timed), cmocka_unit_test(tables_are_whole),
    };
    unsetenv("KVC_KERNEL");
    return cmocka_run_group_tests(tests, set_up, NULL);
}
