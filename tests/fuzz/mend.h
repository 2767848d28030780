/* mend.h: .kvc files out of any bytes, so far mended that they get past the hashes. Not for other
 * tests, nor for what becomes of such a file. */
#ifndef MEND_H
#define MEND_H

#include "tests/fuzz/fuzz.h"

#include "formats/container/offsets.h"

/* How far: not at all; every check, as the records stand; the index and the footer as well. */
enum { RAW, CHECKS, INDEX, MODES };

struct file {
    uint8_t *data;
    size_t size;
};

/* Mends the checks of the records that stand in [32, end) one after another by their own sizes;
 * returns where the first stands that does not fit, or the INDEX record. `index` gets an entry for
 * each. */
static inline size_t mend_records(uint8_t *p, size_t end, uint8_t *index, size_t *n_index) {
    size_t at = KVC_HEADER_SIZE;
    *n_index = 0;
    while (end - at >= KVC_RECORD_HEADER && p[at] != KVC_RECORD_INDEX) {
        uint64_t size = (uint64_t)get_u32(p + at + 4) * KVC_UNIT;
        uint32_t subject = get_u32(p + at + 8);
        if (size < KVC_RECORD_HEADER || size > end - at) break;
        put_u64(p + at + 24, kvc_record_check(p + at, size));
        *n_index += put_varint(index + *n_index, p[at]);
        *n_index += put_varint(index + *n_index, size / KVC_UNIT);
        *n_index += put_varint(index + *n_index, subject == UINT32_MAX ? 0 : (uint64_t)subject + 1);
        *n_index += put_varint(index + *n_index, get_u32(p + at + 12));
        at += (size_t)size;
    }
    return at;
}

/* Gives the CHECKS of the INDEX record at `at` the checks of the records before it. Returns 0 if it
 * has none. */
static inline int mend_checks(uint8_t *file, size_t at) {
    uint8_t *p = file + at, *checks = NULL;
    int has_checks = 0;
    const size_t size = (size_t)get_u32(p + 4) * KVC_UNIT;
    uint64_t begin = KVC_RECORD_HEADER + (uint64_t)get_u16(p + 2) * KVC_DIRECTORY_ENTRY;
    size_t n = 0;
    for (unsigned i = 0; i < get_u16(p + 2) && begin < size; i++) {
        const uint8_t *entry = p + KVC_RECORD_HEADER + i * KVC_DIRECTORY_ENTRY;
        has_checks |= entry[0] == KVC_SECTION_CHECKS;
        if (entry[0] == KVC_SECTION_CHECKS && entry[1] == KVC_CODER_STORE &&
            get_u32(entry + 4) <= size - begin) {
            checks = p + begin;
            n = get_u32(entry + 4) / 4;
        }
        begin += kvc_round_up(get_u32(entry + 4), KVC_UNIT);
    }
    for (size_t i = 0, record = KVC_HEADER_SIZE; i < n && record < at; i++) {
        put_u32(checks + 4 * i, get_u32(file + record + 24));
        record += (size_t)get_u32(file + record + 4) * KVC_UNIT;
    }
    return has_checks;
}

/* Writes an INDEX record of these bytes at p; returns its size. */
static inline size_t put_index(uint8_t *p, const uint8_t *index, size_t n) {
    size_t size = KVC_RECORD_HEADER + KVC_DIRECTORY_ENTRY + (size_t)kvc_round_up(n, KVC_UNIT);
    memset(p, 0, size);
    p[0] = KVC_RECORD_INDEX;
    p[1] = KVC_RECORD_CRITICAL;
    put_u16(p + 2, 1);
    put_u32(p + 4, (uint32_t)(size / KVC_UNIT));
    put_u32(p + 8, UINT32_MAX);
    p[KVC_RECORD_HEADER] = KVC_SECTION_INDEX;
    p[KVC_RECORD_HEADER + 2] = KVC_NO_STAGE;
    put_u32(p + KVC_RECORD_HEADER + 4, (uint32_t)n);
    put_u64(p + KVC_RECORD_HEADER + 8, n);
    memcpy(p + KVC_RECORD_HEADER + KVC_DIRECTORY_ENTRY, index, n);
    return size;
}

/* `seed`: the check of an INDEX record with CHECKS; 0 of another. */
static inline void put_footer(uint8_t *p, uint64_t index, uint64_t size, uint64_t seed) {
    put_u64(p, index);
    put_u64(p + 8, size);
    memcpy(p + 16, KVC_MAGIC_END, 8);
    put_u64(p + 24, XXH3_64bits_withSeed(p, 24, seed));
}

static inline struct file mend(const uint8_t *data, size_t size, unsigned mode) {
    /* an entry of the index takes at most 20 bytes, a record at least 32 */
    struct file f = {fuzz_alloc(2 * size + 128), size};
    uint8_t *index = fuzz_alloc(size + 64);
    uint64_t seed = 0;
    memcpy(f.data, data, size);
    if (mode != RAW && size >= KVC_HEADER_SIZE + KVC_FOOTER_SIZE + KVC_RECORD_HEADER) {
        size_t n_index, end = size - KVC_FOOTER_SIZE;
        memcpy(f.data, KVC_MAGIC, 8);
        put_u64(f.data + 24, XXH3_64bits(f.data, 24));
        size_t at = mend_records(f.data, end, index, &n_index);
        if (mode == INDEX) {
            size_t n = put_index(f.data + at, index, n_index);
            f.size = at + n + KVC_FOOTER_SIZE;
            put_u64(f.data + at + 24, kvc_record_check(f.data + at, n));
        } else if (end - at >= KVC_RECORD_HEADER &&
                   (uint64_t)get_u32(f.data + at + 4) * KVC_UNIT == end - at) {
            const int has_checks = mend_checks(f.data, at);
            put_u64(f.data + at + 24, kvc_record_check(f.data + at, end - at));
            if (has_checks) seed = get_u64(f.data + at + 24);
        }
        put_footer(f.data + f.size - KVC_FOOTER_SIZE, at, f.size, seed);
    }
    free(index);
    /* exactly as large as the file, so that reading one byte too far shows */
    uint8_t *exact = fuzz_alloc(f.size);
    memcpy(exact, f.data, f.size);
    free(f.data);
    f.data = exact;
    return f;
}

#endif
