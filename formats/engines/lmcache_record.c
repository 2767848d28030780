/* lmcache_record.c: compressed records of LMCache (LMCR): a chunk of K and V in pieces that are deflated apart. Not for the array
 * (lmcache_chunk.h).
 *
 *   0  "LMCR", u8 version 1, u8 codec 1 (deflate), u8 framing (1 raw, 2 gzip), u8 transform 0
 *   8  u32 header bytes, u64 record bytes, u64 uncompressed bytes, u32 pieces
 *  32  u32 CRC-32 of the header (this field 0), u32 CRC-32 of the uncompressed bytes, u32 flags 0
 *  44  per piece: u64 offset, u32 compressed bytes, u32 uncompressed bytes, u32 CRC-32 of these, u32 flags 0
 *
 * Pieces begin at multiples of 16, with zeros between them. The record does not say what its bytes are: a chunk with the header of
 * lmcache.c, or an array whose geometry options give. Every checksum is compared. The pieces are inflated into a temporary file;
 * an export makes a record of equal values, not the same one. Source: the draft of the record in LMCache's discussion of lossless
 * compression. */
#include "formats/engines/lmcache.h"

#include "codecs/memory.h"
#include "formats/cache/mapped.h"
#include "formats/io/bytes.h"
#include "formats/io/temporary.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

static const char magic[] = "LMCR";

enum { HEADER = 44, ENTRY = 24, MAX_TABLE = 1 << 20, ALIGN = 16, STRETCH = 1 << 18 };
enum { RAW_FRAMING = 1, GZIP_FRAMING = 2 };

/* Deflate compresses by at most a factor of 1032, plus a few bytes at the ends. */
#define MAX_RATIO 1032

struct record {
    struct kvc_window bytes;
    unsigned framing;
    uint64_t table, size, uncompressed; /* bytes */
    uint32_t pieces, payload_crc;
};

struct piece {
    uint64_t at;
    uint32_t size, uncompressed, crc;
};

/* --- the header --- */

static int read_header(struct record *r, struct kvc_error *e) {
    const struct kvc_input *in = r->bytes.in;
    static const uint8_t zeros[4];
    if (in->size < HEADER) return kvc_fail(e, KVC_ERR_DAMAGED, "cut short: a record has a header of 44 bytes");
    const uint8_t *p = kvc_window_at(&r->bytes, 0, HEADER, e);
    if (!p) return -1;
    if (memcmp(p, magic, 4) != 0) return kvc_fail(e, KVC_ERR_UNKNOWN, "no LMCR at the start");
    r->framing = p[6];
    r->table = get_u32(p + 8);
    r->size = get_u64(p + 12);
    r->uncompressed = get_u64(p + 20);
    r->pieces = get_u32(p + 28);
    r->payload_crc = get_u32(p + 36);
    const uint32_t crc = get_u32(p + 32), flags = get_u32(p + 40);
    if (p[4] != 1 || p[5] != 1 || (r->framing != RAW_FRAMING && r->framing != GZIP_FRAMING) || p[7] || flags)
        return kvc_fail_at(e, KVC_ERR_UNSUPPORTED, 4,
                           "version %u, codec %u, framing %u, transform %u, flags %" PRIu32
                           ": kvc reads version 1 with deflate, raw or in gzip, without transform and flags",
                           p[4], p[5], p[6], p[7], flags);
    if (r->table > MAX_TABLE || r->table != HEADER + (uint64_t)ENTRY * r->pieces || r->table > in->size)
        return kvc_fail_at(e, KVC_ERR_DAMAGED, 8, "a header of %" PRIu64 " bytes does not fit %" PRIu32 " pieces, or the file",
                           r->table, r->pieces);
    if (r->size != in->size)
        return kvc_fail_at(e, KVC_ERR_DAMAGED, 12,
                           "the record has %" PRIu64 " bytes, but the file %" PRIu64 " (cut short or appended to)", r->size,
                           in->size);
    if (!(p = kvc_window_at(&r->bytes, 0, r->table, e))) return -1;
    uLong sum = crc32_z(crc32_z(0, NULL, 0), p, 32);
    sum = crc32_z(crc32_z(sum, zeros, 4), p + 36, r->table - 36);
    if (sum != crc) return kvc_fail_at(e, KVC_ERR_DAMAGED, 32, "the header's checksum is wrong");
    return 0;
}

/* Reads entry i of the table; `end` is where the piece before it ends. */
static int read_piece(struct record *r, uint32_t i, uint64_t end, struct piece *piece, struct kvc_error *e) {
    const uint8_t *p = kvc_window_at(&r->bytes, HEADER + (uint64_t)ENTRY * i, ENTRY, e);
    if (!p) return -1;
    *piece = (struct piece){get_u64(p), get_u32(p + 8), get_u32(p + 12), get_u32(p + 16)};
    if (get_u32(p + 20)) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "piece %" PRIu32 " has flags", i);
    if (piece->at % ALIGN || piece->at < end || piece->at - end >= ALIGN || piece->at > r->size ||
        piece->size > r->size - piece->at)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "piece %" PRIu32 " begins at byte %" PRIu64 " and does not follow the piece before it", i, piece->at);
    if (piece->uncompressed / MAX_RATIO > piece->size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "piece %" PRIu32 " claims %" PRIu32 " bytes, which %" PRIu32 " cannot hold", i,
                        piece->uncompressed, piece->size);
    const uint64_t gap = piece->at - end;
    if (gap && !(p = kvc_window_at(&r->bytes, end, gap, e))) return -1;
    for (uint64_t k = 0; k < gap; k++)
        if (p[k]) return kvc_fail_at(e, KVC_ERR_DAMAGED, end + k, "a byte between pieces is not 0");
    return 0;
}

/* --- inflating --- */

/* Inflates a piece to the spool. */
static int inflate_piece(struct record *r, z_stream *z, const struct piece *piece, int spool, uint8_t *out, uLong *payload,
                         struct kvc_error *e) {
    uint64_t at = piece->at, end = at + piece->size, done = 0;
    uLong crc = crc32_z(0, NULL, 0);
    int code = Z_OK;
    while (code == Z_OK) { /* without input, inflate() reports that it makes no progress */
        if (!z->avail_in && at < end) {
            const uint64_t n = end - at < STRETCH ? end - at : STRETCH;
            const uint8_t *p = kvc_window_at(&r->bytes, at, n, e);
            if (!p) return -1;
            z->next_in = (Bytef *)(uintptr_t)p;
            z->avail_in = (unsigned)n;
            at += n;
        }
        z->next_out = out;
        z->avail_out = STRETCH;
        code = inflate(z, Z_NO_FLUSH);
        const size_t n = STRETCH - z->avail_out;
        if ((code != Z_OK && code != Z_STREAM_END) || n > piece->uncompressed - done) break;
        crc = crc32_z(crc, out, n);
        *payload = crc32_z(*payload, out, n);
        if (kvc_spool_write(spool, out, n, e)) return -1;
        done += n;
    }
    if (code != Z_STREAM_END || z->avail_in || at < end || done != piece->uncompressed || crc != piece->crc)
        return kvc_fail_at(e, KVC_ERR_DAMAGED, piece->at, "a piece is damaged: %s",
                           code != Z_STREAM_END || done != piece->uncompressed || z->avail_in || at < end
                               ? "its deflate data are broken, or have another size"
                               : "its checksum is wrong");
    return 0;
}

static int inflate_pieces(struct record *r, int spool, struct kvc_error *e) {
    uint8_t *out = kvc_alloc(STRETCH, 1);
    z_stream z = {0};
    uint64_t end = r->table, sum = 0;
    uLong payload = crc32_z(0, NULL, 0);
    if (!out || inflateInit2(&z, r->framing == GZIP_FRAMING ? 15 + 16 : -15) != Z_OK) {
        free(out);
        return kvc_fail_memory(e, "decompression");
    }
    int status = 0;
    for (uint32_t i = 0; i < r->pieces && !status; i++) {
        struct piece piece;
        status = read_piece(r, i, end, &piece, e);
        if (!status) status = inflateReset(&z) == Z_OK ? 0 : kvc_fail_memory(e, "decompression");
        z.avail_in = 0;
        if (!status) status = inflate_piece(r, &z, &piece, spool, out, &payload, e);
        if (status) break;
        end = piece.at + piece.size;
        sum += piece.uncompressed;
    }
    inflateEnd(&z);
    free(out);
    if (!status && (end != r->size || sum != r->uncompressed))
        status = kvc_fail(e, KVC_ERR_DAMAGED,
                          "the pieces hold %" PRIu64 " bytes and end at %" PRIu64 "; the header states %" PRIu64 " and %" PRIu64,
                          sum, end, r->uncompressed, r->size);
    if (!status && payload != r->payload_crc) status = kvc_fail(e, KVC_ERR_DAMAGED, "the checksum of all pieces is wrong");
    return status;
}

/* The inflated bytes, which the cache owns. */
struct spool {
    void *map;
    uint64_t size;
    struct kvc_input in;
};

static void spool_close(void *owner) {
    struct spool *s = owner;
    if (s->map) munmap(s->map, (size_t)s->size);
    free(s);
}

static struct spool *inflate_record(const struct kvc_input *in, struct kvc_error *e) {
    struct record r = {.bytes = {.in = in}};
    struct spool *s = calloc(1, sizeof *s);
    int spool = -1, status = s ? read_header(&r, e) : kvc_fail_memory(e, "a record");
    if (!status) status = (spool = kvc_spool_open(e)) < 0 ? -1 : inflate_pieces(&r, spool, e);
    kvc_window_close(&r.bytes);
    if (!status) status = kvc_spool_map(spool, &s->map, &s->size, e);
    else if (spool >= 0) close(spool);
    if (!status) {
        kvc_input_memory(&s->in, in->name, s->map ? s->map : (const void *)"", (size_t)s->size);
        return s;
    }
    free(s);
    return NULL;
}

/* --- the chunk --- */

/* Finds what the inflated bytes are. */
static int read_chunk(struct kvc_lmcache_file *f, const struct kvc_import_options *o, struct kvc_error *e) {
    char why[160];
    const uint8_t *head = f->in->data;
    const uint64_t size = f->in->size;
    if (kvc_lmcache_has_geometry(o)) return kvc_lmcache_of_options(&f->chunk, "lmcr", size, NULL, o, e);
    if (kvc_lmcache_begins(head, size, size, why, sizeof why) <= 0)
        return kvc_fail_need(e, KVC_ERR_UNKNOWN, KVC_NEED_INPUT,
                             "the record holds %" PRIu64
                             " bytes without a header, so their geometry is needed: lmcr:dtype=bf16,layers=L,heads=H,dim=D",
                             size);
    f->at = KVC_LMCACHE_HEADER;
    return kvc_lmcache_read_header(&f->chunk, head, size, o, e);
}

static struct kvc_cache *import(const struct kvc_bundle *b, const struct kvc_import_options *o, struct kvc_error *e) {
    struct spool *s = inflate_record(b->one.in, e);
    struct kvc_lmcache_file file = {.in = s ? &s->in : NULL};
    struct kvc_cache *c = s && !read_chunk(&file, o, e) ? kvc_cache_new(e) : NULL;
    int status = c ? kvc_cache_map(c, spool_close, s, e) : -1;
    if (status && s) spool_close(s);
    if (!status) status = kvc_lmcache_build(c, "lmcr", b, &file, 1, b->one.in->path, 1, o, e);
    if (!status) return c;
    kvc_cache_free(c);
    return NULL;
}

static int probe(const struct kvc_bundle *b, char *why, size_t size) {
    uint8_t head[4];
    if (b->one.in->size >= 4 && !kvc_input_copy(b->one.in, 0, head, 4, NULL) && memcmp(head, magic, 4) == 0) return 1;
    snprintf(why, size, "no LMCR at the start");
    return 0;
}

/* --- writing --- */

enum { PIECE = 1 << 16 };

/* Deflates the bytes of the array piece by piece to a temporary file, and lists the pieces. */
struct packer {
    struct kvc_temporary to;
    z_stream z;
    uint8_t *piece, *out; /* PIECE bytes of input; of output as many as deflateBound() says */
    uint64_t filled, room;
    uint64_t at; /* of the next piece among all */
    uint32_t n;
    uint8_t *table;
    uLong crc;
};

static int pack_piece(struct packer *p, struct kvc_error *e) {
    static const uint8_t zeros[ALIGN];
    uint8_t *grown = kvc_room_for_one(p->table, p->n, ENTRY);
    if (!p->filled) return 0;
    if (!grown) return kvc_fail_memory(e, "the table");
    p->table = grown;
    if (deflateReset(&p->z) != Z_OK) return kvc_fail_memory(e, "compression");
    p->z.next_in = p->piece;
    p->z.avail_in = (unsigned)p->filled;
    p->z.next_out = p->out;
    p->z.avail_out = (unsigned)p->room;
    if (deflate(&p->z, Z_FINISH) != Z_STREAM_END) return kvc_fail_memory(e, "compression");
    const uint32_t size = (uint32_t)(p->room - p->z.avail_out);
    const uint64_t gap = -p->at % ALIGN;
    uint8_t *entry = p->table + (size_t)ENTRY * p->n++;
    p->at += gap;
    put_u64(entry, p->at);
    put_u32(entry + 8, size);
    put_u32(entry + 12, (uint32_t)p->filled);
    put_u32(entry + 16, (uint32_t)crc32_z(0, p->piece, p->filled));
    put_u32(entry + 20, 0);
    p->crc = crc32_z(p->crc, p->piece, p->filled);
    p->filled = 0;
    p->at += size;
    return kvc_temporary_append(&p->to, zeros, (size_t)gap, e) || kvc_temporary_append(&p->to, p->out, size, e) ? -1 : 0;
}

static int pack_bytes(void *state, const void *data, size_t n, struct kvc_error *e) {
    struct packer *p = state;
    const uint8_t *from = data;
    while (n) {
        const size_t part = n < PIECE - p->filled ? n : (size_t)(PIECE - p->filled);
        memcpy(p->piece + p->filled, from, part);
        p->filled += part;
        from += part;
        n -= part;
        if (p->filled == PIECE && pack_piece(p, e)) return -1;
    }
    return 0;
}

/* Writes the header, the table, whose offsets count from the end of the header so far, and the pieces. */
static int write_record(struct packer *p, uint64_t bytes, struct kvc_sink *out, struct kvc_error *e) {
    const uint64_t table = HEADER + (uint64_t)ENTRY * p->n, begin = (table + ALIGN - 1) / ALIGN * ALIGN;
    uint8_t head[HEADER] = {0};
    if (table > MAX_TABLE)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "lmcr: a record has at most 43689 pieces of 64 KiB: select tokens");
    for (uint32_t i = 0; i < p->n; i++) put_u64(p->table + (size_t)ENTRY * i, get_u64(p->table + (size_t)ENTRY * i) + begin);
    memcpy(head, magic, 4);
    head[4] = head[5] = 1;
    head[6] = RAW_FRAMING;
    put_u32(head + 8, (uint32_t)table);
    put_u64(head + 12, begin + p->at);
    put_u64(head + 20, bytes);
    put_u32(head + 28, p->n);
    put_u32(head + 36, (uint32_t)p->crc);
    put_u32(head + 32, (uint32_t)crc32_z(crc32_z(0, head, HEADER), p->table, table - HEADER));
    if (kvc_sink_write(out, head, HEADER, e) || kvc_sink_write(out, p->table, (size_t)(table - HEADER), e) ||
        kvc_sink_zeros(out, begin - table, e))
        return -1;
    for (uint64_t at = 0; at < p->at;) {
        const size_t n = p->at - at < PIECE ? (size_t)(p->at - at) : PIECE;
        if (kvc_temporary_read(&p->to, at, p->piece, n, e) || kvc_sink_write(out, p->piece, n, e)) return -1;
        at += n;
    }
    return 0;
}

static int write_pieces(const struct kvc_lmcache_export *x, struct kvc_sink *out, struct kvc_error *e) {
    struct packer p = {.to = {.fd = -1}, .piece = malloc(PIECE), .crc = crc32_z(0, NULL, 0)};
    if (!p.piece || deflateInit2(&p.z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
        free(p.piece);
        return kvc_fail_memory(e, "compression");
    }
    p.room = deflateBound(&p.z, PIECE);
    p.out = malloc(p.room);
    struct kvc_sink to = {.write = pack_bytes, .state = &p};
    int status = p.out ? kvc_temporary_open(&p.to, e) : kvc_fail_memory(e, "compression");
    if (!status) status = kvc_lmcache_export_data(x, &to, e);
    if (!status) status = pack_piece(&p, e);
    if (!status) status = write_record(&p, x->chunk.bytes, out, e);
    deflateEnd(&p.z);
    kvc_temporary_close(&p.to);
    free(p.table);
    free(p.out);
    free(p.piece);
    return status;
}

static int keeps(enum kvc_dtype dtype) {
    return kvc_dtype_info(dtype)->block == 1;
}

static int export(const struct kvc_cache *c, const struct kvc_export_options *o, struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_lmcache_export x;
    if (kvc_lmcache_export_open(&x, c, o, keeps, "lmcr", e)) return -1;
    const int status = write_pieces(&x, out, e);
    kvc_lmcache_export_close(&x);
    return status;
}

const struct kvc_format kvc_format_lmcr = {
    .name = "lmcr",
    .summary = "compressed records of LMCache",
    .suffix = ".lmcr",
    .import_options = kvc_lmcache_options,
    .export_options = kvc_lmcache_export_options,
    .source = KVC_SOURCE_LMCR,
    .lacks = KVC_LMCACHE_LACKS,
    .keeps = keeps,
    .no_source = "a record's own compressed bytes are not recorded",
    .probe = probe,
    .import = import,
    .export = export,
};
