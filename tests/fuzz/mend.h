/* mend.h: .kvc files out of any bytes, so far mended that they get past the hashes. Not for other
 * tests, nor for what becomes of such a file. */
#ifndef MEND_H
#define MEND_H

#include "tests/fuzz/fuzz.h"

#include "formats/container/content_id.h"
#include "formats/container/offsets.h"

/* How far: not at all; every check, as the records stand; the index and the footer as well. */
enum { RAW, CHECKS, INDEX, MODES };

struct file {
    uint8_t *data;
    size_t size;
};

/* Mends the checks of the records that stand in [32, end) one after another by their own sizes;
 * returns where the first stands that does not fit, or the INDEX record. *n: how many there are. */
static inline size_t mend_records(uint8_t *p, size_t end, size_t *n) {
    size_t at = KVC_HEADER_SIZE;
    for (*n = 0; end - at >= KVC_RECORD_HEADER && p[at] != KVC_RECORD_INDEX; ++*n) {
        uint64_t size = (uint64_t)get_u32(p + at + 4) * KVC_UNIT;
        if (size < KVC_RECORD_HEADER || size > end - at) break;
        put_u64(p + at + 24, kvc_record_check(p + at, size));
        at += (size_t)size;
    }
    return at;
}

/* Returns the size of the record at p, of one that mend_records() stepped over. */
static inline size_t size_at(const uint8_t *p) {
    return (size_t)get_u32(p + 4) * KVC_UNIT;
}

/* Gives the section INDEX of the record at `at`, if it is stored, the checks of the n records
 * before it. */
static inline void mend_checks(uint8_t *file, size_t at, size_t n) {
    uint8_t *p = file + at;
    const uint8_t *entry = p + KVC_RECORD_HEADER;
    const size_t begin = KVC_RECORD_HEADER + (size_t)get_u16(p + 2) * KVC_DIRECTORY_ENTRY;
    if (size_at(p) < KVC_RECORD_HEADER + KVC_DIRECTORY_ENTRY || begin > size_at(p)) return;
    if (entry[1] != KVC_CODER_STORE || get_u32(entry + 4) > size_at(p) - begin) return;
    if (get_u32(entry + 4) < 4 * n) return;
    uint8_t *check = p + begin + get_u32(entry + 4) - 4 * n;
    for (size_t i = 0, record = KVC_HEADER_SIZE; i < n; i++, record += size_at(file + record))
        put_u32(check + 4 * i, get_u32(file + record + 24));
}

/* Writes the INDEX record of the n records before `at` there; returns its size. */
static inline size_t put_index(uint8_t *file, size_t at, size_t n) {
    uint8_t *p = file + at, *to = p + KVC_RECORD_HEADER + KVC_DIRECTORY_ENTRY, *const begin = to;
    to += put_varint(to, n);
    for (int column = 0; column < 5; column++)
        for (size_t i = 0, r = KVC_HEADER_SIZE; i < n; i++, r += size_at(file + r)) {
            const uint32_t subject = get_u32(file + r + 8);
            switch (column) {
            case 0: *to++ = file[r]; break;
            case 1: to += put_varint(to, size_at(file + r) / KVC_UNIT); break;
            case 2: to += put_varint(to, subject == UINT32_MAX ? 0 : (uint64_t)subject + 1); break;
            case 3: to += put_varint(to, get_u32(file + r + 12)); break;
            default: put_u32(to, get_u32(file + r + 24)); to += 4;
            }
        }
    const size_t bytes = (size_t)(to - begin), size = KVC_RECORD_HEADER + KVC_DIRECTORY_ENTRY +
                                                      (size_t)kvc_round_up(bytes, KVC_UNIT);
    memset(to, 0, (size_t)(p + size - to));
    memset(p, 0, (size_t)(begin - p));
    p[0] = KVC_RECORD_INDEX;
    p[1] = KVC_RECORD_CRITICAL;
    put_u16(p + 2, 1);
    put_u32(p + 4, (uint32_t)(size / KVC_UNIT));
    put_u32(p + 8, UINT32_MAX);
    p[KVC_RECORD_HEADER] = KVC_SECTION_INDEX;
    p[KVC_RECORD_HEADER + 2] = KVC_NO_STAGE;
    put_u32(p + KVC_RECORD_HEADER + 4, (uint32_t)bytes);
    put_u64(p + KVC_RECORD_HEADER + 8, bytes);
    return size;
}

/* Writes the footer of a file whose INDEX record, after n others, is at `at`. */
static inline void put_footer(uint8_t *file, size_t size, size_t at, size_t n) {
    uint8_t *p = file + size - KVC_FOOTER_SIZE;
    struct kvc_sha256 hash;
    kvc_content_begin(&hash);
    for (size_t i = 0, r = KVC_HEADER_SIZE; i < n; i++, r += size_at(file + r))
        if (file[r + 1] & KVC_RECORD_CRITICAL)
            kvc_content_add(&hash, file[r], get_u32(file + r + 8), get_u32(file + r + 12),
                            get_u64(file + r + 24));
    if (kvc_sha256_final(&hash, p + 16, NULL)) abort();
    put_u64(p, at);
    put_u64(p + 8, size);
    memcpy(p + 48, KVC_MAGIC_END, 8);
    put_u64(p + 56, XXH3_64bits_withSeed(p, 56, get_u64(file + at + 24)));
}

static inline struct file mend(const uint8_t *data, size_t size, unsigned mode) {
    /* an entry of the index takes at most 20 bytes, a record at least 32 */
    struct file f = {fuzz_alloc(2 * size + 192), size};
    memcpy(f.data, data, size);
    if (mode != RAW && size >= KVC_HEADER_SIZE + KVC_FOOTER_SIZE + KVC_RECORD_HEADER) {
        const size_t end = size - KVC_FOOTER_SIZE;
        size_t n;
        memcpy(f.data, KVC_MAGIC, 8);
        put_u64(f.data + 24, XXH3_64bits(f.data, 24));
        const size_t at = mend_records(f.data, end, &n);
        if (mode == INDEX) {
            const size_t index = put_index(f.data, at, n);
            f.size = at + index + KVC_FOOTER_SIZE;
            put_u64(f.data + at + 24, kvc_record_check(f.data + at, index));
        } else if (end - at >= KVC_RECORD_HEADER && size_at(f.data + at) == end - at) {
            mend_checks(f.data, at, n);
            put_u64(f.data + at + 24, kvc_record_check(f.data + at, end - at));
        }
        if (f.size - KVC_FOOTER_SIZE - at >= KVC_RECORD_HEADER) put_footer(f.data, f.size, at, n);
    }
    /* exactly as large as the file, so that reading one byte too far shows */
    uint8_t *exact = fuzz_alloc(f.size);
    memcpy(exact, f.data, f.size);
    free(f.data);
    f.data = exact;
    return f;
}

#endif
