/* profile_learn_samples.c: keeps the rows of caches for learning predictors, which takes them layer
 * by layer, in a temporary file. Not for what is learnt from them (profile_learn_loop.c). */
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/model/profile_learn.h"
#include "formats/model/profile_learn_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void kvc_learnt_sample_free(struct kvc_learnt_sample *s) {
    free(s->column);
    free(s->block);
}

/* A layer of the part that is read: its tensors, and its RoPE. */
struct source {
    uint32_t tensor[2];
    struct kvc_rope rope;
};

static int profile_learn_samples_by_layer(const void *a, const void *b) {
    const struct kvc_learnt_column *x = a, *y = b;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

/* Lists the layers of a part that have K and V as floats, ascending. */
static int list_columns(const struct kvc_learner *l, const struct kvc_cache *c, uint32_t part,
                        struct kvc_learnt_sample *s, struct kvc_error *e) {
    if (!(s->column = kvc_alloc_zeros((uint64_t)c->n_layers + 1, sizeof *s->column)))
        return kvc_fail_memory(e, "a profile");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_layer *layer = &c->layer[i];
        struct kvc_learnt_column *x = &s->column[s->n];
        if (layer->part != part || layer->index >= l->layers) continue;
        if (!kvc_learn_takes(c, layer, 0) || !kvc_learn_takes(c, layer, 1)) continue;
        for (int r = 0; r < 2; r++) {
            const struct kvc_shape *shape = &c->tensor[layer->tensor[r]].shape;
            x->width[r] = (size_t)(shape->heads * shape->dim);
        }
        x->layer = layer->index;
        x->number = i;
        s->n++;
    }
    qsort(s->column, s->n, sizeof *s->column, profile_learn_samples_by_layer);
    for (unsigned i = 0; i < s->n; i++) {
        s->column[i].at = s->width;
        s->width += s->column[i].width[0] + s->column[i].width[1];
    }
    return 0;
}

/* Reads the rows of block b as rows[s->width], before RoPE. Rows at the first positions, and rows
 * with a value that is not finite, are left out. */
static int read_block(const struct kvc_cache *c, const struct kvc_learnt_sample *s,
                      struct source *from, uint64_t b, float *rows, uint8_t *bytes, size_t *kept,
                      struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(c, from[0].tensor[0]);
    const uint64_t first = cells->block[b], n = cells->block[b + 1] - first;
    float *room = rows + KVC_BLOCK * s->width;
    uint8_t keep[KVC_BLOCK];
    for (uint64_t i = 0; i < n; i++)
        keep[i] = kvc_cells_position(cells, first + i) >= KVC_PROFILE_FIRST;
    for (unsigned k = 0; k < s->n; k++)
        for (int r = 0; r < 2; r++) {
            const struct kvc_learnt_column *x = &s->column[k];
            const struct kvc_shape *shape = &c->tensor[from[k].tensor[r]].shape;
            if (c->read(c, from[k].tensor[r], first, n, bytes, e)) return -1;
            for (uint64_t i = 0; i < n; i++) {
                float *to = rows + i * s->width + x->at + (r ? x->width[0] : 0);
                kvc_to_floats(to, bytes + i * kvc_row_bytes(shape), x->width[r], shape->dtype);
                if (!kvc_all_finite(to, x->width[r])) keep[i] = 0;
                else if (keep[i] && !r)
                    kvc_learn_normalise(&from[k].rope, to, (size_t)shape->heads, (size_t)shape->dim,
                                        kvc_cells_position(cells, first + i), room);
            }
        }
    *kept = 0;
    for (uint64_t i = 0; i < n; i++)
        if (keep[i])
            memmove(rows + (*kept)++ * s->width, rows + i * s->width, s->width * sizeof *rows);
    return 0;
}

/* Writes rows to the file, rounded to bf16: first all rows of the first column, then those of the
 * next. */
static int write_block(struct kvc_learner *l, struct kvc_learnt_sample *s, const float *rows,
                       size_t n, uint16_t *room, struct kvc_error *e) {
    struct kvc_learnt_block *block = &s->block[s->n_blocks++];
    *block = (struct kvc_learnt_block){.offset = l->rows.size, .rows = (uint32_t)n};
    for (unsigned k = 0; k < s->n; k++) {
        const size_t width = s->column[k].width[0] + s->column[k].width[1];
        for (size_t i = 0; i < n; i++)
            kvc_from_floats((uint8_t *)(room + i * width), rows + i * s->width + s->column[k].at,
                            width, KVC_BF16);
        if (kvc_temporary_append(&l->rows, room, n * width * sizeof *room, e)) return -1;
    }
    s->rows += n;
    return 0;
}

static int keep_part(struct kvc_learner *l, const struct kvc_cache *c, struct kvc_learnt_sample *s,
                     struct kvc_error *e) {
    const struct kvc_layer *first = &c->layer[s->column[0].number];
    const uint64_t blocks = kvc_tensor_cells(c, first->tensor[0])->n_blocks;
    uint64_t widest = 1;
    struct source *from = kvc_alloc_zeros(s->n, sizeof *from);
    int status = from ? 0 : kvc_fail_memory(e, "a profile");
    for (unsigned k = 0; k < s->n && !status; k++) {
        const uint32_t number = s->column[k].number;
        for (int r = 0; r < 2; r++) {
            const uint64_t row = kvc_row_bytes(&c->tensor[c->layer[number].tensor[r]].shape);
            from[k].tensor[r] = c->layer[number].tensor[r];
            widest = row > widest ? row : widest;
        }
        status = kvc_learn_rope(l, c, number, &l->layer[s->column[k].layer], &from[k].rope, e);
    }
    float *rows = kvc_alloc(KVC_BLOCK + 1, (s->width + 1) * sizeof *rows);
    uint16_t *room = kvc_alloc(KVC_BLOCK, s->width * sizeof *room);
    uint8_t *bytes = kvc_alloc(KVC_BLOCK, widest);
    s->block = kvc_alloc(blocks + 1, sizeof *s->block);
    if (!status && !(rows && room && bytes && s->block)) status = kvc_fail_memory(e, "rows");
    for (uint64_t b = 0; b < blocks && !status; b++) {
        size_t kept;
        status = read_block(c, s, from, b, rows, bytes, &kept, e) ||
                 write_block(l, s, rows, kept, room, e);
    }
    for (unsigned k = 0; from && k < s->n; k++) kvc_rope_free(&from[k].rope);
    free(from);
    free(rows);
    free(room);
    free(bytes);
    return status ? -1 : 0;
}

int kvc_learn_keep(struct kvc_learner *l, const struct kvc_cache *c, struct kvc_error *e) {
    if (l->rows.fd < 0 && kvc_temporary_open(&l->rows, e)) return -1;
    for (uint32_t p = 0; p < c->n_parts; p++) {
        if (!kvc_part_is_attended(&c->part[p])) continue;
        struct kvc_learnt_sample *grown = kvc_realloc(l->sample, (uint64_t)l->n_samples + 1,
                                                      sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "a profile");
        l->sample = grown;
        struct kvc_learnt_sample *s = &l->sample[l->n_samples++];
        *s = (struct kvc_learnt_sample){.n = 0};
        if (list_columns(l, c, p, s, e) || (s->n && keep_part(l, c, s, e))) return -1;
    }
    return 0;
}

int kvc_learnt_rows(const struct kvc_learner *l, const struct kvc_learnt_sample *s, unsigned column,
                    int is_v, float *to, struct kvc_error *e) {
    const struct kvc_learnt_column *x = &s->column[column];
    const size_t both = x->width[0] + x->width[1], width = x->width[is_v];
    uint16_t *room = kvc_alloc(KVC_BLOCK, both * sizeof *room);
    int status = room ? 0 : kvc_fail_memory(e, "rows");
    for (uint64_t b = 0; b < s->n_blocks && !status; b++) {
        const struct kvc_learnt_block *block = &s->block[b];
        status = kvc_temporary_read(&l->rows, block->offset + block->rows * x->at * sizeof *room,
                                    room, block->rows * both * sizeof *room, e);
        for (size_t i = 0; i < block->rows && !status; i++, to += width)
            kvc_to_floats(to, (const uint8_t *)(room + i * both + (is_v ? x->width[0] : 0)), width,
                          KVC_BF16);
    }
    free(room);
    return status;
}
