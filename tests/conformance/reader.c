/* reader.c: libkvc as a reader of the conformance set (README.md), over its public interface.
 *
 *   reader FILE [PROFILE [WEIGHTS]]      an empty PROFILE: none
 *
 * Prints for each tensor LAYER ROLE DIGEST, and of a source that is one file "source SHA-256".
 * Exit status: 0 valid, 1 refused as invalid, 2 not supported, 3 trouble. */
#include "formats/api/kvc.h"
#include "formats/io/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <xxhash.h>

enum { ROWS = 256 };

/* The digest of FORMAT.md 6, of the rows as they are read. */
static int print_tensor(const struct kvc_file *f, uint32_t tensor, struct kvc_error *e) {
    struct kvc_tensor_info info = {.size = sizeof info};
    if (kvc_file_tensor(f, tensor, &info)) return -1;
    const size_t row_bytes = (size_t)info.row_bytes;
    uint8_t *rows = malloc(ROWS * row_bytes);
    if (!rows) return kvc_error_set(e, KVC_ERR_MEMORY, KVC_NEED_NOTHING, "out of memory");
    uint64_t digest = 0;
    int status = 0;
    for (uint64_t first = 0; first < info.rows && !status; first += ROWS) {
        const uint64_t n = info.rows - first < ROWS ? info.rows - first : ROWS;
        status = kvc_file_read(f, tensor, first, n, rows, ROWS * row_bytes, e);
        for (uint64_t i = 0; i < n && !status; i++)
            digest += XXH3_64bits_withSeed(rows + i * row_bytes, row_bytes, first + i);
    }
    free(rows);
    if (!status) printf("%" PRIu32 " %s %016" PRIx64 "\n", info.layer, info.role, digest);
    return status;
}

static int hash_more(void *state, const void *data, size_t n) {
    kvc_sha256_update(state, data, n);
    return 0;
}

static int print_source(const struct kvc_file *f, struct kvc_error *e) {
    struct kvc_source_info info = {.size = sizeof info};
    if (kvc_file_source(f, &info)) return -1;
    if (!info.has_bytes || info.members) return 0;
    struct kvc_sha256 h;
    uint8_t sum[KVC_SHA256_BYTES];
    kvc_sha256_init(&h);
    const int status = kvc_file_unpack(f, NULL, NULL, hash_more, &h, e);
    if (kvc_sha256_final(&h, sum, e) || status) return -1;
    printf("source ");
    for (size_t i = 0; i < sizeof sum; i++) printf("%02x", sum[i]);
    printf("\n");
    return 0;
}

/* Prints what can be read, also of a file with rows of a later version. */
static int print_all(const struct kvc_file *f, struct kvc_error *e) {
    struct kvc_error *why = kvc_error_new();
    int status = kvc_file_check(f, 1, e);
    for (uint32_t t = 0; t < kvc_file_tensors(f); t++) {
        if (status && kvc_error_code(e) != KVC_ERR_UNSUPPORTED) break;
        if (!print_tensor(f, t, status ? why : e)) continue;
        status = -1;
    }
    kvc_error_free(why);
    return status ? -1 : print_source(f, e);
}

static int status_of(const struct kvc_error *e) {
    if (kvc_error_need(e) == KVC_NEED_PROFILE) return 1; /* the file's has not what rows need */
    switch (kvc_error_code(e)) {
    case KVC_ERR_UNKNOWN_FORMAT:
    case KVC_ERR_OTHER_MODEL:
    case KVC_ERR_USAGE: /* of facts, by which weights cannot be used */
    case KVC_ERR_DAMAGED: return 1;
    case KVC_ERR_UNSUPPORTED: return 2;
    default: return 3;
    }
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: reader FILE [PROFILE [WEIGHTS]]\n");
        return 3;
    }
    struct kvc_error *e = kvc_error_new();
    const struct kvc_open_options options = {.size = sizeof options,
                                             .format = "kvc",
                                             .profile = argc > 2 && *argv[2] ? argv[2] : NULL,
                                             .weights = argc > 3 ? argv[3] : NULL};
    struct kvc_file *f = kvc_file_open(argv[1], &options, e);
    int status = 0;
    if (!f || print_all(f, e)) {
        fprintf(stderr, "reader: %s\n", kvc_error_message(e));
        status = status_of(e);
    }
    kvc_file_close(f);
    kvc_error_free(e);
    return status;
}
