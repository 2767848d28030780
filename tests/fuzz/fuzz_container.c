/* fuzz_container.c: .kvc files from any bytes. The first byte says how far they are mended, to get past the
 * hashes: 0 not at all; 1 every check, as the records stand; 2 the index and the footer as well. */
#include "tests/fuzz/fuzz.h"

#include "formats/layout.h"

enum { RAW, CHECKS, INDEX, MODES };

struct file {
    uint8_t *data;
    size_t size;
};

/* Mends the checks of the records that stand in [32, end) one after another by their own sizes; returns where
 * the first stands that does not fit, or the INDEX record. `index` gets an entry for each. */
static size_t mend_records(uint8_t *p, size_t end, uint8_t *index, size_t *n_index) {
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

/* Writes an INDEX record of these bytes at p; returns its size. */
static size_t put_index(uint8_t *p, const uint8_t *index, size_t n) {
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

static void put_footer(uint8_t *p, uint64_t index, uint64_t size) {
    put_u64(p, index);
    put_u64(p + 8, size);
    memcpy(p + 16, KVC_MAGIC_END, 8);
    put_u64(p + 24, XXH3_64bits(p, 24));
}

static struct file mend(const uint8_t *data, size_t size, unsigned mode) {
    /* an entry of the index takes at most 20 bytes, a record at least 32 */
    struct file f = {fuzz_alloc(2 * size + 128), size};
    uint8_t *index = fuzz_alloc(size + 64);
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
            put_u64(f.data + at + 24, kvc_record_check(f.data + at, end - at));
        }
        put_footer(f.data + f.size - KVC_FOOTER_SIZE, at, f.size);
    }
    free(index);
    /* exactly as large as the file, so that reading one byte too far shows */
    uint8_t *exact = fuzz_alloc(f.size);
    memcpy(exact, f.data, f.size);
    free(f.data);
    f.data = exact;
    return f;
}

static void walk(const struct kvc_cache *c, size_t choice) {
    struct kvc_error e;
    struct kvc_record_info info;
    struct kvc_section section[8];
    uint64_t digest, n;
    for (uint64_t i = 0; i < kvc_container_records(c); i++) kvc_container_record(c, i, &info, section, 8, &e);
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (!kvc_container_stored(c, t) != !kvc_tensor_part(c, t)->cells.n || !*kvc_container_pipeline(c, t))
            fuzz_die("a tensor without records or pipeline", NULL);
    kvc_container_keys(c, &n);
    if (!fuzz_is_small(c)) return;
    int readable = fuzz_read(c, &digest, &e) == 0, rest = kvc_container_check_rest(c, &e) == 0;
    if (kvc_container_check(c, 1, &e)) return;
    if (!readable || !rest) fuzz_die("a checked file cannot be read", &e);
    fuzz_round_trip(c, digest, NULL, 0, choice);
    fuzz_export(c, choice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_input in;
    struct kvc_error e;
    if (!size) return 0;
    struct file f = mend(data + 1, size - 1, data[0] % MODES);
    kvc_input_memory(&in, "input", f.data, f.size);
    struct kvc_cache *c = kvc_container_open(&in, &e);
    if (c) walk(c, size);
    else if (!*e.message) fuzz_die("refused without a word", NULL);
    kvc_cache_free(c);
    kvc_input_close(&in);
    free(f.data);
    return 0;
}
