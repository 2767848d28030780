/* mutate.c: changes .kvc files for libFuzzer as records and sections: a section's bytes, under zstd
 * too, with the sizes that say how many there are; a field; the order of records. The target mends
 * checks and the index (mend.h). Not for what becomes of such a file. */
#include "tests/fuzz/mend.h"

#include <zstd.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

enum { MAX_RECORDS = 256, MAX_SECTION = 1 << 14 };

/* A file, in room for `max` bytes, and where its records are. */
struct changing {
    uint8_t *p;
    size_t size, max, n;
    struct {
        size_t at, size;
    } record[MAX_RECORDS];
    uint32_t random;
};

static uint32_t draw(struct changing *f, size_t below) {
    f->random = f->random * 1664525 + 1013904223;
    return (uint32_t)((f->random >> 8) % below);
}

static void find_records(struct changing *f) {
    size_t at = KVC_HEADER_SIZE;
    for (f->n = 0; f->n < MAX_RECORDS && f->size >= at + KVC_RECORD_HEADER; f->n++) {
        const size_t size = size_at(f->p + at);
        if (f->p[at] == KVC_RECORD_INDEX || size < KVC_RECORD_HEADER || size > f->size - at) return;
        f->record[f->n].at = at;
        f->record[f->n].size = size;
        at += size;
    }
}

/* Puts `n` bytes in the place of `old` bytes at `at`. Returns 0 when there is no room. */
static int splice(struct changing *f, size_t at, size_t old, const uint8_t *bytes, size_t n) {
    if (f->size - old + n > f->max) return 0;
    memmove(f->p + at + n, f->p + at + old, f->size - at - old);
    if (n) memcpy(f->p + at, bytes, n);
    f->size += n - old;
    return 1;
}

/* Returns where the bytes of section `j` of a record are, from the record's start, or 0. */
static size_t find_section(const uint8_t *record, size_t size, unsigned j) {
    size_t at = KVC_RECORD_HEADER + (size_t)get_u16(record + 2) * KVC_DIRECTORY_ENTRY;
    if (at > size) return 0;
    for (unsigned i = 0;; i++) {
        const uint8_t *entry = record + KVC_RECORD_HEADER + i * KVC_DIRECTORY_ENTRY;
        const size_t padded = (size_t)kvc_round_up(get_u32(entry + 4), KVC_UNIT);
        if (padded > size - at) return 0;
        if (i == j) return at;
        at += padded;
    }
}

/* Changes the bytes of one section. Of a block, rows need no digest any more. */
static int change_section(struct changing *f, size_t r) {
    static uint8_t bytes[MAX_SECTION], packed[2 * MAX_SECTION];
    uint8_t *record = f->p + f->record[r].at, *to = bytes;
    const unsigned count = get_u16(record + 2), j = count ? draw(f, count) : 0;
    const size_t at = count ? find_section(record, f->record[r].size, j) : 0;
    if (!at) return 0;
    uint8_t *entry = record + KVC_RECORD_HEADER + j * KVC_DIRECTORY_ENTRY;
    const size_t stored = get_u32(entry + 4);
    const int zstd = (entry[1] & ~KVC_SECTION_OPTIONAL) == KVC_CODER_ZSTD;
    size_t n = stored;
    if (stored > MAX_SECTION) return 0;
    if (zstd) n = ZSTD_decompress(bytes, MAX_SECTION, record + at, stored);
    else memcpy(bytes, record + at, stored);
    if (ZSTD_isError(n)) return 0;
    const size_t raw = n = LLVMFuzzerMutate(bytes, n, MAX_SECTION);
    if (zstd) {
        n = ZSTD_compress(packed, sizeof packed - KVC_UNIT, bytes, n, 1);
        to = packed;
    }
    const size_t old = (size_t)kvc_round_up(stored, KVC_UNIT),
                 padded = (size_t)kvc_round_up(n, KVC_UNIT);
    if (padded > MAX_SECTION) return 0;
    memset(to + n, 0, padded - n);
    if (!splice(f, f->record[r].at + at, old, to, padded)) return 0;
    put_u32(entry + 4, (uint32_t)n);
    put_u64(entry + 8, raw);
    put_u32(record + 4, (uint32_t)((f->record[r].size - old + padded) / KVC_UNIT));
    if (record[0] == KVC_RECORD_BLOCK && draw(f, 2)) {
        record[1] |= KVC_RECORD_NO_DIGEST;
        put_u64(record + 16, 0);
    }
    return 1;
}

/* Changes a field of a record's header or of an entry of its directory: by a little, by a bit, or
 * to that of another record. */
static int change_field(struct changing *f, size_t r) {
    static const uint8_t field[][2] = {{0, 1}, {1, 1}, {2, 1}, {8, 1}, {12, 1}, {16, 1}};
    static const uint8_t entry[][2] = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 2}, {8, 4}};
    uint8_t *record = f->p + f->record[r].at, *other = f->p + f->record[draw(f, f->n)].at;
    const unsigned count = get_u16(record + 2), which = draw(f, 6);
    size_t at = field[which][0], width = field[which][1];
    if (count && draw(f, 3)) {
        at = KVC_RECORD_HEADER + draw(f, count) * (size_t)KVC_DIRECTORY_ENTRY + entry[which][0];
        width = entry[which][1];
    }
    at += draw(f, width);
    if (at >= f->record[r].size) return 0;
    switch (draw(f, 3)) {
    case 0: record[at] = (uint8_t)(record[at] + 1 + 254 * draw(f, 2)); break;
    case 1: record[at] ^= (uint8_t)(1 << draw(f, 8)); break;
    default: record[at] = other[at < KVC_RECORD_HEADER ? at : KVC_RECORD_HEADER - 1]; break;
    }
    return 1;
}

/* Removes a record, or puts a copy of it before another one. */
static int move_record(struct changing *f, size_t r) {
    static uint8_t copy[MAX_SECTION];
    const size_t at = f->record[r].at, size = f->record[r].size, to = f->record[draw(f, f->n)].at;
    if (size > MAX_SECTION) return 0;
    memcpy(copy, f->p + at, size);
    switch (draw(f, 3)) {
    case 0: return splice(f, at, size, NULL, 0);
    case 1: return splice(f, to, 0, copy, size);
    default:
        splice(f, at, size, NULL, 0);
        return splice(f, to > at ? to - size : to, 0, copy, size);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    static struct changing f;
    f.random = seed;
    f.p = data + 1;
    f.size = size ? size - 1 : 0;
    f.max = max - 1;
    find_records(&f);
    if (!f.n || !draw(&f, 4)) return LLVMFuzzerMutate(data, size, max);
    const size_t r = draw(&f, f.n);
    const uint32_t what = draw(&f, 8);
    if (what == 0 ? !move_record(&f, r) : what == 1 ? !change_field(&f, r) : !change_section(&f, r))
        return LLVMFuzzerMutate(data, size, max);
    data[0] = (uint8_t)((data[0] & ~3u) | INDEX);
    return f.size + 1;
}
