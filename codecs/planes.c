/* planes.c: byte planes in and out of blocks, and whether they are worth compressing. Not for
 * stages. */
#include "codecs/planes.h"

#include "kernels/kernels.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { SAMPLE = 4096, RUN = 64, LEVEL = 1 };
#define NOISE 7.8 /* bits a byte of a sample that zstd is not worth its time for */

void kvc_plane_out(uint8_t *plane, const uint8_t *blocks, size_t n, size_t size, size_t at,
                   size_t group) {
    for (size_t i = 0; i < n; i++) memcpy(plane + i * group, blocks + i * size + at, group);
}

void kvc_plane_in(uint8_t *blocks, const uint8_t *plane, size_t n, size_t size, size_t at,
                  size_t group) {
    for (size_t i = 0; i < n; i++) memcpy(blocks + i * size + at, plane + i * group, group);
}

/* n log2(n) / SAMPLE of the counts that are common in noise, which libm would take most of the time
 * for. */
enum { COMMON = 64 };
static double common[COMMON];
static pthread_once_t common_once = PTHREAD_ONCE_INIT;

static double planes_bits_of(unsigned count) {
    return count * log2(count) / SAMPLE;
}

static void fill_common(void) {
    for (unsigned n = 1; n < COMMON; n++) common[n] = planes_bits_of(n);
}

/* Whether the bytes are so evenly spread that only repetition could shrink them; runs from all over
 * are counted. */
static int looks_like_noise(const uint8_t *p, size_t n) {
    if (n < SAMPLE) return 0;
    unsigned count[256] = {0};
    for (size_t i = 0; i < SAMPLE / RUN; i++)
        for (size_t j = 0, at = (n - RUN) / (SAMPLE / RUN) * i; j < RUN; j++) count[p[at + j]]++;
    double entropy = log2(SAMPLE);
    pthread_once(&common_once, fill_common);
    for (unsigned b = 0; b < 256; b++)
        if (count[b]) entropy -= count[b] < COMMON ? common[count[b]] : planes_bits_of(count[b]);
    return entropy > NOISE;
}

int kvc_plane_add(struct kvc_sections *out, uint8_t stage, uint8_t index, const uint8_t *plane,
                  size_t n, struct kvc_error *e) {
    return kvc_sections_add(out, KVC_SECTION_PLANE, stage, index, plane, n,
                            looks_like_noise(plane, n) ? 0 : LEVEL, e);
}

size_t kvc_packed_rows(size_t n) {
    const size_t odd = n & -n; /* the power of two in n */
    return odd >= 32 ? 1 : 32 / odd;
}

int kvc_packed_check(const uint8_t *packed, size_t n, unsigned width, struct kvc_error *e) {
    uint8_t group[32];
    if (n % 32 == 0) return 0;
    kvc_kernels_get()->unpack_bits(group, packed + KVC_PACKED(n - n % 32, width), 32, width);
    for (size_t i = n % 32; i < 32; i++)
        if (group[i])
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "the last packed group is not filled up with zeros");
    return 0;
}

size_t kvc_packed_bytes(size_t n, unsigned width) {
    return width == 8 ? n : KVC_PACKED(n, width);
}

uint8_t *kvc_packed_write(uint8_t *to, const uint8_t *values, size_t n, unsigned width) {
    if (width == 8) memcpy(to, values, n);
    else if (width) kvc_kernels_get()->pack_bits(to, values, n, width);
    return to + kvc_packed_bytes(n, width);
}

int kvc_packed_read(uint8_t *values, const uint8_t *bytes, size_t n, unsigned width,
                    struct kvc_error *e) {
    if (width == 8) memcpy(values, bytes, n);
    else if (!width) memset(values, 0, n);
    else if (kvc_packed_check(bytes, n, width, e)) return -1;
    else kvc_kernels_get()->unpack_bits(values, bytes, n, width);
    return 0;
}
