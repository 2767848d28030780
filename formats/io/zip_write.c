/* zip_write.c: writes a zip of stored members. */
#include "formats/io/zip_write.h"

#include "formats/io/bytes.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* Bytes of the records without their names and extra fields. */
enum { LOCAL = 30, ENTRY = 46, END = 22, LOCATOR = 20, END64 = 56, FAR_SIZES = 20, FAR_ENTRY = 28 };
enum {
    VERSION = 20,
    VERSION_64 = 45,
    UTF8 = 0x800,
    FIRST_DAY = 0x21 /* 1980-01-01 */,
    PADDING = 0x4246
};

void kvc_zip_writer_init(struct kvc_zip_writer *w, struct kvc_sink *out) {
    *w = (struct kvc_zip_writer){.out = out, .start = out->offset};
}

static int is_far(uint64_t n) {
    return n >= UINT32_MAX;
}

static uint32_t near_or_far(uint64_t n) {
    return is_far(n) ? UINT32_MAX : (uint32_t)n;
}

/* Writes what local headers and entries of the directory have in common: version needed to sizes of
 * the name and extra fields. */
static void put_common(uint8_t *p, const char *name, uint32_t crc, uint64_t size, int far,
                       uint64_t extra) {
    put_u16(p, far ? VERSION_64 : VERSION);
    put_u16(p + 2, UTF8);
    put_u16(p + 4, 0); /* stored */
    put_u16(p + 6, 0);
    put_u16(p + 8, FIRST_DAY);
    put_u32(p + 10, crc);
    put_u32(p + 14, far ? UINT32_MAX : (uint32_t)size);
    put_u32(p + 18, far ? UINT32_MAX : (uint32_t)size);
    put_u16(p + 22, (uint16_t)strlen(name));
    put_u16(p + 24, (uint16_t)extra);
}

static int write_local(struct kvc_zip_writer *w, const char *name, uint32_t crc, uint64_t size,
                       unsigned align, struct kvc_error *e) {
    uint8_t h[LOCAL] = {0}, sizes[FAR_SIZES], padding[4];
    const int far = is_far(size);
    const uint64_t before = w->out->offset - w->start + LOCAL + strlen(name) +
                            (far ? FAR_SIZES : 0);
    const uint64_t pad = before % align
                             ? sizeof padding + (align - (before + sizeof padding) % align) % align
                             : 0;
    put_u32(h, 0x04034b50);
    put_common(h + 4, name, crc, size, far, pad + (far ? FAR_SIZES : 0));
    put_u16(sizes, 1);
    put_u16(sizes + 2, 16);
    put_u64(sizes + 4, size);
    put_u64(sizes + 12, size);
    put_u16(padding, PADDING);
    put_u16(padding + 2, (uint16_t)(pad - sizeof padding));
    if (kvc_sink_write(w->out, h, sizeof h, e) || kvc_sink_write(w->out, name, strlen(name), e) ||
        (far && kvc_sink_write(w->out, sizes, sizeof sizes, e)) ||
        (pad && kvc_sink_write(w->out, padding, sizeof padding, e)))
        return -1;
    return pad ? kvc_sink_zeros(w->out, pad - sizeof padding, e) : 0;
}

/* Adds an entry to the central directory. */
static int add_entry(struct kvc_zip_writer *w, const char *name, uint32_t crc, uint64_t size,
                     uint64_t local, struct kvc_error *e) {
    uint8_t h[ENTRY] = {0}, extra[FAR_ENTRY];
    const int far = is_far(size) || is_far(local);
    struct kvc_sink to = kvc_sink_buffer(&w->directory);
    put_u32(h, 0x02014b50);
    put_u16(h + 4, VERSION_64);
    put_common(h + 6, name, crc, size, far, far ? FAR_ENTRY : 0);
    put_u32(h + 42, far ? UINT32_MAX : (uint32_t)local);
    put_u16(extra, 1);
    put_u16(extra + 2, FAR_ENTRY - 4);
    put_u64(extra + 4, size);
    put_u64(extra + 12, size);
    put_u64(extra + 20, local);
    if (kvc_sink_write(&to, h, sizeof h, e) || kvc_sink_write(&to, name, strlen(name), e))
        return -1;
    return far ? kvc_sink_write(&to, extra, sizeof extra, e) : 0;
}

int kvc_zip_add(struct kvc_zip_writer *w, const char *name, const void *bytes, uint64_t size,
                unsigned align, struct kvc_error *e) {
    const uint32_t crc = (uint32_t)crc32_z(0, bytes, (size_t)size);
    const uint64_t local = w->out->offset - w->start;
    if (add_entry(w, name, crc, size, local, e) || write_local(w, name, crc, size, align, e))
        return -1;
    w->n++;
    return kvc_sink_write(w->out, bytes, (size_t)size, e);
}

int kvc_zip_finish(struct kvc_zip_writer *w, struct kvc_error *e) {
    uint8_t end[END] = {0}, far[END64 + LOCATOR] = {0};
    const uint64_t at = w->out->offset - w->start, size = w->directory.n;
    const int is_64 = is_far(at) || is_far(size) || w->n >= UINT16_MAX;
    if (size && kvc_sink_write(w->out, w->directory.data, (size_t)size, e)) return -1;
    put_u32(far, 0x06064b50);
    put_u64(far + 4, END64 - 12);
    put_u16(far + 12, VERSION_64);
    put_u16(far + 14, VERSION_64);
    put_u64(far + 24, w->n);
    put_u64(far + 32, w->n);
    put_u64(far + 40, size);
    put_u64(far + 48, at);
    put_u32(far + END64, 0x07064b50);
    put_u64(far + END64 + 8, at + size);
    put_u32(far + END64 + 16, 1);
    if (is_64 && kvc_sink_write(w->out, far, sizeof far, e)) return -1;
    put_u32(end, 0x06054b50);
    put_u16(end + 8, w->n >= UINT16_MAX ? UINT16_MAX : (uint16_t)w->n);
    put_u16(end + 10, w->n >= UINT16_MAX ? UINT16_MAX : (uint16_t)w->n);
    put_u32(end + 12, near_or_far(size));
    put_u32(end + 16, near_or_far(at));
    return kvc_sink_write(w->out, end, sizeof end, e);
}

void kvc_zip_writer_free(struct kvc_zip_writer *w) {
    free(w->directory.data);
}
