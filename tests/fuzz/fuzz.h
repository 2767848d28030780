/* fuzz.h: what the fuzz targets share: reading all of a cache, packing it and getting it back. Not
 * for other tests.
 *
 * A target takes any bytes. Refusing them is right; crashing, or returning other data than went in,
 * is a finding. */
#ifndef FUZZ_H
#define FUZZ_H

#include "formats/container/container.h"
#include "tests/recipe_text.h"
#include "formats/file/restore.h"
#include "formats/cache/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A few bytes may rightly stand for very large caches (zeros compress well): those are left alone.
 */
#define FUZZ_MAX_BYTES (UINT64_C(16) << 20)

_Noreturn static inline void fuzz_die(const char *what, const struct kvc_error *e) {
    fprintf(stderr, "%s%s%s\n", what, e ? ": " : "", e ? e->message : "");
    abort();
}

static inline void *fuzz_alloc(size_t n) {
    void *p = malloc(n ? n : 1);
    if (!p) fuzz_die("out of memory", NULL);
    return p;
}

/* 1 when the whole cache, its source file and one block of any tensor stay under the limit. */
static inline int fuzz_is_small(const struct kvc_cache *c) {
    uint64_t total = c->literal_size;
    if (total > FUZZ_MAX_BYTES) return 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_tensor *x = &c->tensor[t];
        if (x->source_size > FUZZ_MAX_BYTES ||
            kvc_row_bytes(&x->shape) * KVC_BLOCK > FUZZ_MAX_BYTES)
            return 0;
        total += kvc_tensor_bytes(x) + x->source_size;
        if (total > FUZZ_MAX_BYTES) return 0;
    }
    return 1;
}

/* Reads every row, by blocks and the first row alone, and every literal. The digest is that of all
 * rows. */
static inline int fuzz_read(const struct kvc_cache *c, uint64_t *digest, struct kvc_error *e) {
    int status = 0;
    *digest = 0;
    for (uint32_t t = 0; t < c->n_tensors && !status; t++) {
        const struct kvc_cells *cells = &kvc_tensor_part(c, t)->cells;
        size_t row = (size_t)kvc_row_bytes(&c->tensor[t].shape);
        uint8_t *rows = fuzz_alloc(row * KVC_BLOCK), *one = fuzz_alloc(row);
        for (uint64_t b = 0; b < cells->n_blocks && !status; b++) {
            uint64_t first = cells->block[b], n = cells->block[b + 1] - first;
            status = c->read(c, t, first, n, rows, e);
            if (status) break;
            *digest += kvc_digest_rows(rows, row, first, n) * (t + 1);
            if (b) continue;
            if (c->read(c, t, 0, 1, one, e))
                fuzz_die("a block can be read, its first row cannot", e);
            if (memcmp(rows, one, row) != 0)
                fuzz_die("a row differs from the same row of its block", NULL);
        }
        free(rows);
        free(one);
    }
    if (!status && c->literal_size) {
        uint8_t *bytes = fuzz_alloc((size_t)c->literal_size);
        status = c->read_literal(c, 0, c->literal_size, bytes, e);
        free(bytes);
    }
    return status;
}

/* Packs a cache whose rows have this digest, opens the result and compares; `source` (may be NULL)
 * is the file that the cache came from. Recipe and alignment follow from `choice`. */
static inline void fuzz_round_trip(const struct kvc_cache *c, uint64_t digest,
                                   const uint8_t *source, size_t size, size_t choice) {
    struct kvc_pack_options options = {.recipe = recipe_of(choice & 1 ? "store" : "zstd"),
                                       .threads = 1,
                                       .align = choice & 2 ? 64 : 0};
    struct kvc_buffer packed = {0}, again = {0};
    struct kvc_sink out = kvc_sink_buffer(&packed), back = kvc_sink_buffer(&again);
    struct kvc_input in;
    struct kvc_error e;
    uint64_t got;
    if (kvc_container_write(c, &options, &out, NULL, &e)) fuzz_die("cannot pack", &e);
    kvc_input_memory(&in, "packed", packed.data, packed.n);
    struct kvc_cache *d = kvc_container_open(&in, &e);
    if (!d) fuzz_die("cannot open what was packed", &e);
    if (kvc_container_check(d, 1, &e)) fuzz_die("what was packed is damaged", &e);
    if (fuzz_read(d, &got, &e)) fuzz_die("cannot read what was packed", &e);
    if (got != digest) fuzz_die("other rows came back", NULL);
    if (d->n_tokens != c->n_tokens ||
        (c->n_tokens && memcmp(d->tokens, c->tokens, c->n_tokens * 4) != 0))
        fuzz_die("other tokens came back", NULL);
    if (source && c->n_extents) {
        if (kvc_source_write(d, 1, &back, &e)) fuzz_die("cannot put the source together", &e);
        if (again.n != size || memcmp(again.data, source, size) != 0)
            fuzz_die("another source file came back", NULL);
    }
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(packed.data);
    free(again.data);
}

/* Exports to one of the formats; it may refuse. */
static inline void fuzz_export(const struct kvc_cache *c, size_t choice) {
    size_t formats = 0;
    while (kvc_format_at(formats)) formats++;
    const struct kvc_format *f = kvc_format_at(choice % formats);
    struct kvc_export_options options = {0};
    struct kvc_buffer bytes = {0};
    struct kvc_sink out = kvc_sink_buffer(&bytes);
    struct kvc_error e;
    if (kvc_format_is_written(f)) kvc_export(f, c, &options, &out, &e);
    free(bytes.data);
}

/* Imports bytes as an engine's file, reads, packs and exports what came in. */
static inline void fuzz_engine_file_as(const struct kvc_format *format,
                                       const struct kvc_import_options *options,
                                       const uint8_t *data, size_t size) {
    struct kvc_input in;
    struct kvc_error e;
    uint64_t digest;
    kvc_input_memory(&in, "input", data, size);
    struct kvc_cache *c = kvc_format_import(format, &in, options, &e);
    if (c && fuzz_is_small(c)) {
        if (fuzz_read(c, &digest, &e)) fuzz_die("an imported cache cannot be read", &e);
        fuzz_round_trip(c, digest, data, size, size);
        fuzz_export(c, size);
    }
    if (!c && !*e.message) fuzz_die("refused without a word", NULL);
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* The same by names, axes and types that a user says of arrays; in the order of `as`, with the
 * format's name before it. */
static inline void fuzz_arrays_as(const struct kvc_format *format, const uint8_t *data,
                                  size_t size) {
    static const char *const as[] = {
        "map=keys=layers.0.keys,map=values=layers.0.values,map=axes=lhtd,map=dtype=f8e4m3",
        "map=kv=cache,map=axes=lcbhtd,map=dtype=bf16", "map=axes=bthd", "map=kv={i},map=axes=tcdh",
        "map=keys=keys,map=values=values,map=axes=dtblh"};
    char text[160];
    for (size_t i = 0; i < sizeof as / sizeof as[0]; i++) {
        snprintf(text, sizeof text, "%s:%s", format->name, as[i]);
        const struct kvc_import_options options = {.format = text};
        fuzz_engine_file_as(format, &options, data, size);
    }
}

/* The same without options. */
static inline void fuzz_engine_file(const struct kvc_format *format, const uint8_t *data,
                                    size_t size) {
    static const struct kvc_import_options options;
    fuzz_engine_file_as(format, &options, data, size);
}

#endif
