/* lmcache.c: chunks of K and V that LMCache's FSConnector stores: a header and an array, or the
 * array alone. Not for the array itself (lmcache_chunk.h).
 *
 * The header has 7 words of 32 bits: bytes of data, memory format, dtype, four sizes, of which
 * unused ones are 0. Several groups of layers have 5 words each: dtype and sizes. Source: LMCache
 * lmcache/v1/protocol.py, lmcache/v1/storage_backend/connector/ fs_connector.py. */
#include "formats/engines/lmcache_chunk.h"

#include "codecs/memory.h"
#include "formats/engines/import.h"
#include "formats/io/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER = 28, GROUP_WORDS = 5, MAX_GROUPS = 16 };
enum { LENGTH, FORMAT, TYPE, SIZES, MAX_FORMAT = 8 };

/* By the number in a header. Both 1 and 2 are torch.float16, and writers use 2. */
static const int dtypes[] = {-1, KVC_F16, KVC_F16,    KVC_BF16,  KVC_F32,
                             -1, KVC_U8,  KVC_F8E4M3, KVC_F8E5M2};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0], F64 = 5 };

/* --- the header --- */

/* Returns the bytes of an array of one group, whose dtype and sizes are at `words`; 0 where they
 * make no sense. */
static uint64_t group_bytes(const uint8_t *words) {
    const uint32_t type = get_u32(words);
    if (!type || type >= DTYPES) return 0;
    uint64_t bytes = type == F64 ? 8 : kvc_dtype_info((unsigned)dtypes[type])->size;
    for (int i = 1, end = 0; i < GROUP_WORDS; i++) {
        const uint32_t size = get_u32(words + 4 * i);
        if (size > INT32_MAX || (end && size) || (i == 1 && !size)) return 0;
        end |= !size;
        if (size && __builtin_mul_overflow(bytes, size, &bytes)) return 0;
    }
    return bytes;
}

/* Returns the number of groups of layers of a file with a header of several; 0: it has no such
 * header. */
static unsigned groups_of(const uint8_t *head, uint64_t have, uint64_t size) {
    uint64_t bytes = 0;
    for (unsigned n = 0; n < MAX_GROUPS; n++) {
        const uint64_t at = 8 + 4 * (uint64_t)GROUP_WORDS * n;
        if (n > 1 && bytes == get_u32(head) && (bytes + at == size || have < size)) return n;
        const uint64_t more = at + 4 * GROUP_WORDS <= have ? group_bytes(head + at) : 0;
        if (!more || __builtin_add_overflow(bytes, more, &bytes) || bytes > INT32_MAX) return 0;
    }
    return 0;
}

/* Returns 1 if a file of `size` bytes may begin with this header: its numbers are in range, and the
 * length fits the shape or the file. Otherwise `why` gets the reason, which is -1 if only the
 * length does not fit. */
static int begins(const uint8_t *head, uint64_t have, uint64_t size, char *why, size_t why_size) {
    const uint64_t bytes = have < HEADER ? 0 : group_bytes(head + 4 * TYPE);
    const uint32_t length = have < HEADER ? 0 : get_u32(head + 4 * LENGTH);
    if (have < HEADER) snprintf(why, why_size, "too short for a header");
    else if (!bytes || get_u32(head + 4 * FORMAT) > MAX_FORMAT)
        snprintf(why, why_size, "the first 28 bytes are no length, memory format, dtype and sizes");
    else if (bytes == length || bytes == size - HEADER || groups_of(head, have, size)) return 1;
    else {
        snprintf(why, why_size,
                 "the sizes in the first 28 bytes fit neither the length there nor the file");
        return -1;
    }
    return 0;
}

static int read_header(struct kvc_lmcache_chunk *k, const uint8_t *head, uint64_t size,
                       const struct kvc_import_options *o, struct kvc_error *e) {
    uint64_t dim[4], rank = 4;
    const uint32_t length = get_u32(head + 4 * LENGTH), type = get_u32(head + 4 * TYPE);
    for (int i = 0; i < 4; i++) {
        dim[i] = get_u32(head + 4 * (SIZES + i));
        if (dim[i] > INT32_MAX)
            return kvc_fail_at(
                e, KVC_ERR_DAMAGED, 4 * (SIZES + (uint64_t)i),
                "a size in the header is negative; if the file has no header, say its geometry");
    }
    while (rank > 1 && !dim[rank - 1]) rank--;
    if (type >= DTYPES || dtypes[type] < 0)
        return kvc_fail_at(e, type == F64 ? KVC_ERR_UNSUPPORTED : KVC_ERR_DAMAGED, 4 * TYPE,
                           "the header states dtype %" PRIu32 "%s", type,
                           type == F64 ? ", float64, which no cache has"
                                       : "; if the file has no header, say its geometry");
    if (length != size - HEADER)
        return kvc_fail_at(e, KVC_ERR_DAMAGED, 0,
                           "the header states %" PRIi32 " bytes of data, but %" PRIu64
                           " follow it (cut short or appended to)",
                           (int32_t)length, size - HEADER);
    return kvc_lmcache_of_shape(k, get_u32(head + 4 * FORMAT),
                                kvc_dtype_info((unsigned)dtypes[type]), dim, rank, length, o, e);
}

/* --- files --- */

static const char *const suffixes[] = {".data", ".pt", NULL};

static int lmcache_probe_file(const struct kvc_bundle *b, size_t i, const struct kvc_input *in,
                              char *why, size_t size) {
    uint8_t head[8 + 4 * GROUP_WORDS * MAX_GROUPS];
    const uint64_t have = in->size < sizeof head ? in->size : sizeof head;
    if (kvc_lmcache_is_disk(b, i)) return 1;
    if (!kvc_input_copy(in, 0, head, have, NULL)) return begins(head, have, in->size, why, size);
    snprintf(why, size, "the file cannot be read");
    return 0;
}

static int lmcache_probe(const struct kvc_bundle *b, char *why, size_t size) {
    return kvc_members_probe(b, suffixes, "no file is named *.data", lmcache_probe_file, why, size);
}

/* Reads the chunk of a file by options, by what lies beside it, or by its header. */
static int lmcache_read_file(struct kvc_lmcache_file *f, const struct kvc_bundle *b,
                             const struct kvc_import_options *o, struct kvc_error *e) {
    struct kvc_lmcache_key key = {.world = 0};
    const char *name = kvc_member_path(b, f->member);
    uint8_t head[8 + 4 * GROUP_WORDS * MAX_GROUPS];
    const uint64_t have = f->in->size < sizeof head ? f->in->size : sizeof head;
    if (name) kvc_lmcache_key_of(&key, name);
    if (kvc_lmcache_has_geometry(o))
        return kvc_lmcache_of_options(&f->chunk, "lmcache", f->in->size,
                                      kvc_import_dtype(key.dtype), o, e);
    const int beside = kvc_lmcache_of_disk(&f->chunk, b, f->member, f->in->size, o, e);
    if (beside <= 0) return beside;
    if (have < HEADER)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "too short for a header of 28 bytes");
    if (kvc_input_copy(f->in, 0, head, have, e)) return -1;
    const unsigned groups = groups_of(head, have, f->in->size);
    if (groups)
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "the chunk has %u groups of layers, and which layers are in a group is not recorded",
            groups);
    f->at = HEADER;
    return read_header(&f->chunk, head, f->in->size, o, e);
}

/* Returns 1 if a chunk holds all layers of a model, as far as a file tells. */
static int is_whole(const struct kvc_lmcache_chunk *k) {
    return k->layers > 1 || k->layout == KVC_LMCACHE_2LTD || k->layout == KVC_LMCACHE_FUSED;
}

/* Gives the files of several layers their numbers: those of their keys where all have one, else the
 * order of the files. */
static int number_layers(struct kvc_lmcache_file *file, size_t n, const struct kvc_bundle *b,
                         int *known, struct kvc_error *e) {
    struct kvc_lmcache_key first = {.world = 0}, key;
    *known = 1;
    for (size_t i = 0; i < n; i++) {
        const char *name = kvc_member_path(b, file[i].member);
        const int has_key = name && kvc_lmcache_key_of(&key, name);
        if (!i && has_key) first = key;
        if (has_key && *first.chunk && strcmp(first.chunk, key.chunk) != 0)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "there are several chunks, whose order is not recorded: read each by "
                            "itself (%s, %s)",
                            b->member[file[0].member].name, name);
        file[i].layer = has_key && key.has_layer ? (uint32_t)key.layer : (uint32_t)i;
        *known = *known && has_key && key.has_layer;
    }
    if (is_whole(&file->chunk)) *known = 1;
    else if (*known) return 0;
    for (size_t i = 0; i < n; i++) file[i].layer = (uint32_t)i;
    return 0;
}

static int check_layers(const struct kvc_lmcache_file *file, size_t n, const struct kvc_bundle *b,
                        struct kvc_error *e) {
    for (size_t i = 0; i < n && n > 1; i++) {
        const struct kvc_lmcache_chunk *k = &file[i].chunk;
        const char *name = b->member[file[i].member].name;
        if (is_whole(k))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "%s: it holds all layers of a chunk, as other files here do, and the "
                            "order of chunks is not recorded: read each by itself",
                            name);
        if (k->tokens != file[0].chunk.tokens || k->layout != file[0].chunk.layout)
            return kvc_fail(
                e, KVC_ERR_DAMAGED,
                "%s: it has %" PRIu64
                " tokens in the layout of one of several layers, and the first file has %" PRIu64
                ", or another layout",
                name, k->tokens, file[0].chunk.tokens);
    }
    return 0;
}

static int read_files(struct kvc_lmcache_file *file, size_t *n, const struct kvc_bundle *b,
                      const struct kvc_import_options *o, struct kvc_error *e) {
    for (size_t i = 0; i < b->n; i++) {
        if (!kvc_member_is_read(b, i, suffixes)) continue;
        file[*n] = (struct kvc_lmcache_file){.member = i, .in = kvc_bundle_open(b, i, e)};
        if (!file[*n].in) return -1;
        if (lmcache_read_file(&file[*n], b, o, e)) return kvc_member_failed(b, i, e);
        ++*n;
    }
    return *n ? check_layers(file, *n, b, e)
              : kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "no file is named *.data");
}

static struct kvc_cache *lmcache_import(const struct kvc_bundle *b,
                                        const struct kvc_import_options *o, struct kvc_error *e) {
    struct kvc_lmcache_file *file = kvc_alloc(b->n, sizeof *file);
    struct kvc_cache *c = NULL;
    size_t n = 0;
    int known = 0;
    int status = file ? read_files(file, &n, b, o, e) : kvc_fail_memory(e, "files");
    if (!status) status = number_layers(file, n, b, &known, e);
    if (!status) c = kvc_lmcache_build("lmcache", b, file, n, known, o, e);
    free(file);
    return c;
}

/* --- writing --- */

static int number_of(enum kvc_dtype dtype) {
    for (int i = DTYPES - 1; i > 0; i--)
        if (dtypes[i] == (int)dtype) return i;
    return 0;
}

static int lmcache_keeps(enum kvc_dtype dtype) {
    return number_of(dtype) != 0;
}

static int lmcache_export(const struct kvc_cache *c, const struct kvc_export_options *o,
                          struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_lmcache_export x;
    uint8_t head[HEADER];
    uint64_t dim[4];
    if (kvc_lmcache_export_open(&x, c, o, lmcache_keeps, "lmcache", e)) return -1;
    kvc_lmcache_shape(&x.chunk, dim);
    int status = 0;
    if (x.chunk.bytes > INT32_MAX)
        status =
            kvc_fail(e, KVC_ERR_UNSUPPORTED,
                     "lmcache: the header has 31 bits for the bytes of K and V, which are %" PRIu64
                     " here: select tokens, or write lmcache-gds",
                     x.chunk.bytes);
    put_u32(head + 4 * LENGTH, (uint32_t)x.chunk.bytes);
    put_u32(head + 4 * FORMAT, kvc_lmcache_layouts[x.chunk.layout].fmt);
    put_u32(head + 4 * TYPE, (uint32_t)number_of(x.chunk.info->dtype));
    for (int i = 0; i < 4; i++) put_u32(head + 4 * (SIZES + i), (uint32_t)dim[i]);
    if (!status) status = kvc_sink_write(out, head, sizeof head, e);
    if (!status) status = kvc_lmcache_export_data(&x, out, e);
    kvc_lmcache_export_close(&x);
    return status;
}

static int lmcache_is_default(const struct kvc_cache *c) {
    return kvc_lmcache_is_default(c, HEADER);
}

const struct kvc_format kvc_format_lmcache = {
    .name = "lmcache",
    .summary = "chunks of LMCache's FSConnector, or without header",
    .suffix = ".data",
    .import_options = kvc_lmcache_options,
    .export_options = kvc_lmcache_export_options,
    .lacks = KVC_LMCACHE_LACKS,
    .keeps = lmcache_keeps,
    .is_default = lmcache_is_default,
    .takes_members = 1,
    .probe = lmcache_probe,
    .import = lmcache_import,
    .export = lmcache_export,
};
