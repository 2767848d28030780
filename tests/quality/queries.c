/* queries.c: how near estimated queries (formats/model/QUERIES.md) are to true ones: the cosine,
 * mean over the heads and rows that both have, layer by layer and over all. Not for what profiles
 * are worth that are learnt with them (learnt.sh).
 *
 *     queries FILE WEIGHTS [QUERIES]    QUERIES: a file with true queries; else FILE has them */
#include "formats/cache/view.h"
#include "formats/file/given.h"
#include "formats/file/open.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static _Noreturn void stop(const struct kvc_error *e) {
    fprintf(stderr, "queries: %s\n", e->message);
    exit(2);
}

static struct kvc_cache *open_floats(struct kvc_opened *f, const char *path,
                                     const struct kvc_model *m) {
    const struct kvc_opening o = {.model = m};
    struct kvc_error e;
    struct kvc_cache *floats = NULL;
    if (!kvc_open_path(f, path, &o, &e)) floats = kvc_view_float(f->cache, &e);
    if (!floats) stop(&e);
    return floats;
}

/* Returns the number of the tensor of a layer's queries, or KVC_NONE. */
static uint32_t find_queries(const struct kvc_cache *c, uint32_t layer) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->tensor[t].role == KVC_ROLE_QUERIES && c->layer[c->tensor[t].layer].index == layer)
            return t;
    return KVC_NONE;
}

static float *read_rows(const struct kvc_cache *c, uint32_t t) {
    const struct kvc_shape *s = &c->tensor[t].shape;
    struct kvc_error e;
    float *rows = calloc((size_t)(s->tokens * s->heads * s->dim), sizeof *rows);
    if (!rows) exit(2);
    if (c->read(c, t, 0, s->tokens, (uint8_t *)rows, &e)) stop(&e);
    return rows;
}

/* Returns the mean cosine of two tensors of queries; NaN where no row is in both. */
static double mean_cosine(const struct kvc_cache *a, uint32_t ta, const struct kvc_cache *b,
                          uint32_t tb) {
    const struct kvc_shape *sa = &a->tensor[ta].shape, *sb = &b->tensor[tb].shape;
    if (sa->heads != sb->heads || sa->dim != sb->dim) return (double)NAN;
    float *ra = read_rows(a, ta), *rb = read_rows(b, tb);
    const size_t dim = (size_t)sa->dim, width = (size_t)sa->heads * dim;
    double sum = 0;
    uint64_t n = 0;
    for (uint64_t i = 0; i < sa->tokens; i++)
        for (uint64_t j = 0; j < sb->tokens; j++) {
            if (kvc_cells_position(&kvc_tensor_part(a, ta)->cells, i) !=
                kvc_cells_position(&kvc_tensor_part(b, tb)->cells, j))
                continue;
            for (size_t h = 0; h < width; h += dim, n++) {
                const float *x = ra + i * width + h, *y = rb + j * width + h;
                const struct kvc_kernels *k = kvc_kernels_get();
                sum += (double)k->dot(x, y, dim) /
                       sqrt((double)k->dot(x, x, dim) * (double)k->dot(y, y, dim));
            }
        }
    free(ra);
    free(rb);
    return sum / (double)n;
}

int main(int argc, char **argv) {
    static struct kvc_model m;
    static struct kvc_opened file, other;
    struct kvc_error e;
    double all = 0;
    uint32_t layers = 0;
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "Usage: queries FILE WEIGHTS [QUERIES]\n");
        return 2;
    }
    if (kvc_given_model(argv[2], 0, &m, &e)) stop(&e);
    struct kvc_cache *c = open_floats(&file, argv[1], &m), *true_ones = c;
    if (argc > 3) true_ones = open_floats(&other, argv[3], NULL);
    struct kvc_cache *q = kvc_given_queries(c, NULL, argv[2], 0, &e);
    if (!q) stop(&e);
    for (uint32_t t = 0; t < q->n_tensors; t++) {
        const uint32_t layer = q->layer[q->tensor[t].layer].index,
                       found = find_queries(true_ones, layer);
        const double cosine = found == KVC_NONE ? (double)NAN : mean_cosine(q, t, true_ones, found);
        if (isnan(cosine)) continue;
        printf("%" PRIu32 " %.4f\n", layer, cosine);
        all += cosine;
        layers++;
    }
    if (layers) printf("mean %.4f\n", all / layers);
    kvc_cache_free(q);
    if (true_ones != c) {
        kvc_cache_free(true_ones);
        kvc_close(&other);
    }
    kvc_cache_free(c);
    kvc_close(&file);
    if (!layers) fprintf(stderr, "queries: no layer has true queries at the estimates' rows\n");
    return layers ? 0 : 2;
}
