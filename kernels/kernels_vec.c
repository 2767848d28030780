/* kernels_vec.c: vector twins of kernels_ref.c, same bytes for every input; the tables for AVX2 and
 * for NEON, each also with dot products of bytes. */
#include "kernels/past.h"
#include "kernels/twins.h"

#if defined(KVC_VECTORS)

#include "kernels/vec.h"

void kvc_split_planes_vec(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    bits256 plane[4];
    size_t i = 0;
    for (; size == 2 && i + 32 <= n; i += 32) {
        split_8x2(src + 2 * i, plane);
        store_256(dst + i, plane[0]);
        store_256(dst + n + i, plane[1]);
    }
    for (; size == 4 && i + 32 <= n; i += 32) {
        split_8x4(src + 4 * i, plane);
        store_256(dst + i, plane[0]);
        store_256(dst + n + i, plane[1]);
        store_256(dst + 2 * n + i, plane[2]);
        store_256(dst + 3 * n + i, plane[3]);
    }
    for (; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[b * n + i] = src[i * size + b];
}

void kvc_merge_planes_vec(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    size_t i = 0;
    for (; size == 2 && i + 32 <= n; i += 32) {
        const bits256 plane[2] = {load_256(src + i), load_256(src + n + i)};
        join_8x2(dst + 2 * i, plane);
    }
    for (; size == 4 && i + 32 <= n; i += 32) {
        const uint8_t *from = src + i;
        const bits256 plane[4] = {load_256(from), load_256(from + n), load_256(from + 2 * n),
                                  load_256(from + 3 * n)};
        join_8x4(dst + 4 * i, plane);
    }
    for (; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[i * size + b] = src[b * n + i];
}

/* Eight rows of eight values: pairs of rows, of pairs, of these pairs. */
static inline void transpose_eight(uint8_t *dst, size_t to, const uint8_t *src, size_t from) {
    bits128 a[8], b[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) a[i] = load_128(src + i * from);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        b[i] = zip_low_16(a[2 * i], a[2 * i + 1]); /* columns 0 to 3 of rows 2 i and 2 i + 1 */
        b[i + 4] = zip_high_16(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < 2; i++) {
#pragma GCC unroll 2
        for (size_t half = 0; half < 2; half++) {
            const bits128 *two = b + 4 * half + 2 * i;
            a[4 * half + i] = zip_low_32(two[0], two[1]); /* two columns of four rows */
            a[4 * half + i + 2] = zip_high_32(two[0], two[1]);
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        store_128(dst + 2 * i * to, zip_low_64(a[2 * i], a[2 * i + 1]));
        store_128(dst + (2 * i + 1) * to, zip_high_64(a[2 * i], a[2 * i + 1]));
    }
}

void kvc_transpose_2_vec(uint8_t *dst, size_t to, const uint8_t *src, size_t from, size_t rows,
                         size_t columns) {
    const size_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
    for (size_t c = 0; c < whole_columns; c += 8)
        for (size_t r = 0; r < whole_rows; r += 8)
            transpose_eight(dst + c * to + r * 2, to, src + r * from + c * 2, from);
    kvc_transpose_2_ref(dst + whole_columns * to, to, src + whole_columns * 2, from, whole_rows,
                        columns - whole_columns);
    kvc_transpose_2_ref(dst + whole_rows * 2, to, src + whole_rows * from, from, rows - whole_rows,
                        columns);
}

void kvc_bf16_to_f32_vec(float *dst, const uint8_t *src, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        store_256(dst + i, left_32(widen_16_to_32(load_128(src + 2 * i)), 16));
    kvc_bf16_to_f32_ref(dst + i, src + 2 * i, n - i);
}

/* The CPU makes signalling NaNs quiet, the reference keeps their bits: eight values with an
 * exponent of ones among them are converted by the reference. */
void kvc_f16_to_f32_vec(float *dst, const uint8_t *src, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const bits128 h = load_128(src + 2 * i);
        if (all_ones_16(h, 0x7c00)) kvc_f16_to_f32_ref(dst + i, src + 2 * i, 8);
        else store_f32(dst + i, f32_of_f16(h));
    }
    kvc_f16_to_f32_ref(dst + i, src + 2 * i, n - i);
}

/* Copies pieces of 16-byte vectors past the caches, to addresses of such vectors; 32 bytes at once
 * where all fits, as the wider store is faster. */
static void copy_past(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step, size_t n,
                      size_t size) {
    const int wide = ((uintptr_t)dst | to_step | size) % 32 == 0;
    for (size_t i = 0; i < n; i++, dst += to_step, src += from_step) {
        size_t b = 0;
        for (; wide && b < size; b += 32) store_past_256(dst + b, load_256(src + b));
        for (; b < size; b += 16) store_past_128(dst + b, load_128(src + b));
    }
    end_past();
}

/* Copies a run past the caches, whole lines of it. */
static void copy_run_past(uint8_t *dst, const uint8_t *src, size_t size) {
    const size_t head = (size_t)(-(uintptr_t)dst % 64), lines = (size - head) / 64 * 64;
    memcpy(dst, src, head);
    copy_past(dst + head, 0, src + head, 0, 1, lines);
    memcpy(dst + head + lines, src + head + lines, size - head - lines);
}

/* Bytes from what is copied to what is prefetched: more than a page, at whose end the CPU's own
 * prefetching stops. */
enum { AHEAD = 6144, NO_CALL = 1024 };

/* Heads are whole vectors, mostly a few: no call for each. They mostly lie side by side: `later` is
 * of heads, too. */
static void copy_cached(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step,
                        size_t n, size_t size) {
    const uint8_t *later = src + AHEAD;
    for (size_t i = 0; i < n; i++, dst += to_step, src += from_step, later += from_step) {
        size_t b = 0;
        for (size_t p = 0; size < NO_CALL && p < size; p += 64) __builtin_prefetch(later + p);
        for (; size < NO_CALL && b + 32 <= size; b += 32) store_256(dst + b, load_256(src + b));
        if (b < size) memcpy(dst + b, src + b, size - b);
    }
}

void kvc_copy_pieces_vec(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step,
                         size_t n, size_t size, int past) {
    if (past && n == 1 && size >= KVC_PAST_RUN) copy_run_past(dst, src, size);
    else if (past && kvc_fills_lines(dst, to_step, n, size))
        copy_past(dst, to_step, src, from_step, n, size);
    else copy_cached(dst, to_step, src, from_step, n, size);
}

/* All kernels but dot_rows. */
#define SHARED                          \
    KVC_KERNELS_RANS(KVC_ROW, vec)      \
    KVC_KERNELS_MODEL(KVC_ROW, vec)     \
    KVC_KERNELS_TRANSFORM(KVC_ROW, vec) \
    KVC_KERNELS_HASH(KVC_ROW, vec) KVC_KERNELS_WIDE(KVC_ROW, vec) KVC_KERNELS_REST(KVC_ROW, vec)
#if defined(__x86_64__)
const struct kvc_kernels kvc_kernels_avx2 = {.name = "avx2", SHARED KVC_KERNELS_DOT(KVC_ROW, vec)};
#if defined(KVC_AVXVNNI)
const struct kvc_kernels kvc_kernels_avxvnni = {.name = "avxvnni",
                                                SHARED KVC_KERNELS_DOT(KVC_ROW, avxvnni)};
#endif
#else
const struct kvc_kernels kvc_kernels_neon = {.name = "neon", SHARED KVC_KERNELS_DOT(KVC_ROW, vec)};
const struct kvc_kernels kvc_kernels_neondot = {.name = "neondot",
                                                SHARED KVC_KERNELS_DOT(KVC_ROW, neondot)};
#endif

#else
typedef int kvc_no_kernels_vec; /* ISO C wants one declaration in a file */
#endif
