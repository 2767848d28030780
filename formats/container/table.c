/* table.c: reads and writes the TABLE of a .kvc: parts, layers, tensors and pipelines. Spec:
 * FORMAT.md 5. Not for other records (reader.c, write_sections.c). */
#include "formats/container/records.h"

#include "codecs/memory.h"
#include "codecs/registry.h"
#include "codecs/rope.h"
#include "formats/container/offsets.h"
#include "formats/container/record_write.h"
#include "formats/container/write_sections.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ARG_BYTES = 10 }; /* at most, of an argument in a file */

/* Each function reads one table at *at and moves *at to its end; kvc_reader_table() has checked
 * that fixed entries fit. */
static int read_parts(struct kvc_cache *c, const struct kvc_records *k, const uint8_t **at,
                      uint64_t n, uint64_t size, struct kvc_error *e) {
    uint64_t cells = 0;
    for (; n; n--, *at += size) {
        const uint8_t *p = *at;
        if (!kvc_part_kind_name(p[0]))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "part kind %u is unknown", p[0]);
        if (p[1] | p[2] | p[3] | get_u32(p + 12))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "table: reserved bytes are set");
        uint64_t part_cells = get_u64(p + 16);
        if (part_cells > KVC_MAX_CELLS || (cells += part_cells) > k->most_cells)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "table: %" PRIu64 " cells are more than the blocks can hold", cells);
        uint32_t number = kvc_cache_add_part(c, (enum kvc_part_kind)p[0], part_cells, e);
        if (number == KVC_NONE) return -1;
        c->part[number].stream = get_u32(p + 4);
        c->part[number].snapshot = get_u32(p + 8);
    }
    return 0;
}

static int read_layers(struct kvc_cache *c, const uint8_t **at, uint64_t n, uint64_t size,
                       struct kvc_error *e) {
    for (uint64_t i = 0; i < n; i++, *at += size) {
        const uint8_t *p = *at;
        uint32_t part = get_u32(p);
        if (!kvc_layer_kind_name(p[8]))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "layer kind %u is unknown", p[8]);
        if (p[9] | p[10] | p[11])
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "table: reserved bytes are set");
        if (part >= c->n_parts)
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: layer %" PRIu64 " has no part", i);
        uint32_t number = kvc_cache_add_layer(c, part, get_u32(p + 4), (enum kvc_layer_kind)p[8],
                                              e);
        if (number == KVC_NONE) return -1;
        c->layer[number].window = get_u32(p + 12);
    }
    return 0;
}

static int read_tensors(struct kvc_cache *c, struct kvc_records *k, const uint8_t **at, uint64_t n,
                        uint64_t size, uint64_t pipelines, uint64_t rotations,
                        uint16_t *rotation_of, struct kvc_error *e) {
    k->pipeline_of = kvc_alloc(n + 1, sizeof *k->pipeline_of);
    k->turn = kvc_alloc_zeros(n + 1, sizeof *k->turn);
    if (!k->pipeline_of || !k->turn) return kvc_fail_memory(e, "the table of tensors");
    for (uint64_t i = 0; i < n; i++, *at += size) {
        const uint8_t *p = *at;
        uint32_t layer = get_u32(p);
        if (layer >= c->n_layers)
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: tensor %" PRIu64 " has no layer", i);
        if (!kvc_role_name(p[4]))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "role %u is unknown", p[4]);
        if (!kvc_dtype_info(p[5]))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "dtype %u is unknown", p[5]);
        if (get_u16(p + 6) >= pipelines)
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: tensor %" PRIu64 " has no pipeline", i);
        if (get_u16(p + 8) > rotations)
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: tensor %" PRIu64 " has no rotation", i);
        if (get_u16(p + 10) | get_u32(p + 12))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "table: reserved bytes are set");
        struct kvc_shape shape = {.dtype = (enum kvc_dtype)p[5],
                                  .heads = get_u64(p + 16),
                                  .dim = get_u64(p + 24),
                                  .tokens = c->part[c->layer[layer].part].cells.n};
        uint32_t number = kvc_cache_add_tensor(c, layer, (enum kvc_role)p[4], &shape, e);
        if (number == KVC_NONE) return -1;
        struct kvc_tensor *t = &c->tensor[number];
        t->source = (struct kvc_strides){get_u64(p + 32), get_u64(p + 40), get_u64(p + 48)};
        t->source_size = get_u64(p + 56);
        if (t->source_size > KVC_MAX_TENSOR_BYTES || t->source_size < kvc_tensor_bytes(t) ||
            !kvc_strides_check(&shape, &t->source, t->source_size))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "table: tensor %" PRIu64 " reaches beyond its region of the source", i);
        k->pipeline_of[i] = get_u16(p + 6);
        rotation_of[i] = get_u16(p + 8);
    }
    return 0;
}

/* --- arguments --- */

/* Reads an argument of a stage. Returns -1 where it is cut short or out of its bounds. */
static int read_arg(const struct kvc_arg *arg, const uint8_t **p, const uint8_t *end, int64_t *i,
                    double *f) {
    uint64_t bits;
    switch (arg->kind) {
    case KVC_ARG_INTEGER:
        if (get_varint(p, end, &bits) || bits > INT64_MAX) return -1;
        *i = (int64_t)bits;
        return (*i < arg->min || *i > arg->max) && *i != arg->fallback ? -1 : 0;
    case KVC_ARG_REAL:
        if (end - *p < 8) return -1;
        *f = get_f64(*p);
        *p += 8;
        if (*f >= arg->least && *f <= arg->most) return 0;
        return *f == arg->otherwise && !arg->required ? 0 : -1;
    case KVC_ARG_WORD:
        if (*p == end) return -1;
        for (*i = 0; arg->words[*i] && *i < **p;) ++*i;
        return *i == *(*p)++ && arg->words[*i] ? 0 : -1;
    case KVC_ARG_FLAG:
        if (*p == end || **p > 1) return -1;
        *i = *(*p)++;
        return 0;
    }
    return -1;
}

/* Reads the arguments of a stage, which fill the bytes from p to `end`. */
static int read_args(const struct kvc_stage *stage, const uint8_t *p, const uint8_t *end,
                     struct kvc_stage_args *args, struct kvc_error *e) {
    memset(args, 0, sizeof *args);
    int bad = 0;
    for (unsigned k = 0; k < stage->n_args && !bad; k++) {
        const struct kvc_arg *arg = &stage->args[k];
        args->i[k] = arg->fallback;
        args->f[k] = arg->otherwise;
        if (!arg->encoder) bad = read_arg(arg, &p, end, &args->i[k], &args->f[k]);
    }
    if (!bad && p == end && (!stage->check || !stage->check(args, NULL))) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "table: arguments of stage %s are malformed", stage->name);
}

/* Writes the arguments of a stage, at most ARG_BYTES each. Returns their end. */
static uint8_t *put_args(uint8_t *p, const struct kvc_stage *stage,
                         const struct kvc_stage_args *args) {
    for (unsigned k = 0; k < stage->n_args; k++) {
        const struct kvc_arg *arg = &stage->args[k];
        if (arg->encoder) continue;
        switch (arg->kind) {
        case KVC_ARG_INTEGER: p += put_varint(p, (uint64_t)args->i[k]); break;
        case KVC_ARG_REAL:
            put_f64(p, args->f[k]);
            p += 8;
            break;
        case KVC_ARG_WORD:
        case KVC_ARG_FLAG: *p++ = (uint8_t)args->i[k]; break;
        }
    }
    return p;
}

/* --- pipelines --- */

/* Reads one stage of a pipeline. An unknown one becomes the stage that refuses all rows, and is
 * alone then in its pipeline. */
static int read_stage(const uint8_t **at, const uint8_t *end, struct kvc_pipeline *line, unsigned s,
                      struct kvc_error *e) {
    const uint8_t *p = *at;
    if (end - p < 3 || end - p - 3 < p[2])
        return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    *at = p + 3 + p[2];
    const struct kvc_stage *stage = kvc_stage_by_id(get_u16(p));
    if (line->step[0].stage == &kvc_stage_unknown) return 0;
    if (!stage) s = 0;
    line->step[s].stage = stage ? stage : &kvc_stage_unknown;
    if (stage) return read_args(stage, p + 3, *at, &line->step[s].args, e);
    line->step[0].args = (struct kvc_stage_args){.i = {get_u16(p)}};
    return 0;
}

static int read_pipelines(struct kvc_records *k, const uint8_t **at, const uint8_t *end, uint64_t n,
                          struct kvc_error *e) {
    if (n > KVC_MAX_PIPELINES) return kvc_fail(e, KVC_ERR_DAMAGED, "table: too many pipelines");
    k->pipeline = calloc((size_t)n + 1, sizeof *k->pipeline);
    k->pipeline_text = calloc((size_t)n + 1, sizeof *k->pipeline_text);
    if (!k->pipeline || !k->pipeline_text) return kvc_fail_memory(e, "pipelines");
    for (uint64_t i = 0; i < n; i++) {
        struct kvc_pipeline *line = &k->pipeline[i];
        char text[2048];
        if (*at == end || **at < 1 || **at > KVC_MAX_STEPS)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "table: pipeline %" PRIu64 " has no valid number of stages", i);
        line->n = *(*at)++;
        for (unsigned s = 0; s < line->n; s++)
            if (read_stage(at, end, line, s, e)) return -1;
        if (line->n && line->step[0].stage == &kvc_stage_unknown) line->n = 1;
        if (kvc_pipeline_check(line, e)) {
            if (e) e->code = KVC_ERR_DAMAGED;
            return kvc_error_prefix(e, "table");
        }
        if (kvc_pipeline_print(line, text, sizeof text) || !(k->pipeline_text[i] = strdup(text)))
            return kvc_fail_memory(e, "pipelines");
        k->n_pipelines++;
    }
    return 0;
}

/* --- rotations --- */

static int read_rotation(struct kvc_rope_facts *r, struct kvc_records *k, const uint8_t **at,
                         const uint8_t *end, struct kvc_error *e) {
    const uint8_t *p = *at;
    if (end - p < 4) return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    *r = (struct kvc_rope_facts){.pairing = (enum kvc_pairing)p[0],
                                 .of_profile = p[1],
                                 .half = get_u16(p + 2)};
    if (!kvc_pairing_turns(r->pairing) || p[1] > 1 || !r->half)
        return kvc_fail(e, KVC_ERR_DAMAGED, "table: a rotation is out of range");
    *at = p += 4;
    if (r->of_profile) return 0;
    if ((uint64_t)(end - p) < 8 * r->half)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    double *angle = kvc_alloc(r->half, sizeof *angle);
    if (!angle) return kvc_fail_memory(e, "rotations");
    r->angle = k->angles[k->n_angles++] = angle;
    for (size_t i = 0; i < r->half; i++, p += 8) {
        angle[i] = get_f64(p);
        if (!kvc_rope_angle_is_sane(angle[i]))
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: an angle is not between 0 and 1");
    }
    *at = p;
    return 0;
}

/* Reads n rotations, and gives each tensor its own, for which it must have channels enough. */
static int read_rotations(const struct kvc_cache *c, struct kvc_records *k, const uint8_t **at,
                          const uint8_t *end, uint64_t n, const uint16_t *rotation_of,
                          struct kvc_error *e) {
    struct kvc_rope_facts *r = kvc_alloc(n + 1, sizeof *r);
    k->angles = kvc_alloc(n + 1, sizeof *k->angles);
    int status = r && k->angles ? 0 : kvc_fail_memory(e, "rotations");
    for (uint64_t i = 0; i < n && !status; i++) status = read_rotation(&r[i], k, at, end, e);
    for (uint32_t t = 0; t < c->n_tensors && !status; t++) {
        if (!rotation_of[t]) continue;
        k->turn[t] = r[rotation_of[t] - 1];
        if (2 * k->turn[t].half > c->tensor[t].shape.dim)
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "table: tensor %" PRIu32 " has fewer channels than its rotation", t);
    }
    free(r);
    return status;
}

/* Refuses tensors whose pipeline has a stage that does not take them. */
static int check_pipelines(const struct kvc_cache *c, const struct kvc_records *k,
                           struct kvc_error *e) {
    uint32_t t = 0;
    while (t < c->n_tensors &&
           kvc_pipeline_accepts(kvc_records_pipeline(k, t), &c->tensor[t].shape, e))
        t++;
    if (t == c->n_tensors) return 0;
    if (e) e->code = KVC_ERR_DAMAGED;
    return kvc_error_prefix(e, "table");
}

/* Reads all tables. rotation_of has room for a number a tensor. */
static int read_tables(struct kvc_cache *c, struct kvc_records *k, const uint8_t *p,
                       const uint8_t *end, uint16_t *rotation_of, struct kvc_error *e) {
    const uint64_t parts = get_u32(p), layers = get_u32(p + 4), tensors = get_u32(p + 8),
                   pipelines = get_u32(p + 12), rotations = get_u32(p + 16);
    const uint64_t part = get_u16(p + 20), layer = get_u16(p + 22), tensor = get_u16(p + 24);
    p += KVC_TABLE_HEADER;
    if (read_parts(c, k, &p, parts, part, e)) return -1;
    if (read_layers(c, &p, layers, layer, e)) return -1;
    if (read_tensors(c, k, &p, tensors, tensor, pipelines, rotations, rotation_of, e)) return -1;
    if (read_pipelines(k, &p, end, pipelines, e)) return -1;
    if (check_pipelines(c, k, e)) return -1;
    if (read_rotations(c, k, &p, end, rotations, rotation_of, e)) return -1;
    return p == end ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "bytes follow the table");
}

int kvc_reader_table(struct kvc_cache *c, struct kvc_records *k, const uint8_t *p, size_t n,
                     struct kvc_error *e) {
    if (n < KVC_TABLE_HEADER) return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    const uint64_t tensors = get_u32(p + 8), rotations = get_u32(p + 16);
    const uint64_t part = get_u16(p + 20), layer = get_u16(p + 22), tensor = get_u16(p + 24);
    if (get_u16(p + 26)) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "table: reserved bytes are set");
    if (part < KVC_PART_ENTRY || layer < KVC_LAYER_ENTRY || tensor < KVC_TENSOR_ENTRY)
        return kvc_fail(e, KVC_ERR_DAMAGED, "table: its entries are too short");
    if (get_u32(p) * part + get_u32(p + 4) * layer + tensors * tensor + get_u32(p + 12) +
            4 * rotations >
        n - KVC_TABLE_HEADER)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    if (rotations > KVC_MAX_PIPELINES)
        return kvc_fail(e, KVC_ERR_DAMAGED, "table: too many rotations");
    uint16_t *rotation_of = kvc_alloc(tensors + 1, sizeof *rotation_of);
    if (!rotation_of) return kvc_fail_memory(e, "the table of tensors");
    const int status = read_tables(c, k, p, p + n, rotation_of, e);
    free(rotation_of);
    return status;
}

/* --- writing --- */

static uint8_t *put_parts(uint8_t *p, const struct kvc_cache *c) {
    for (uint32_t i = 0; i < c->n_parts; i++, p += KVC_PART_ENTRY) {
        p[0] = (uint8_t)c->part[i].kind;
        put_u32(p + 4, c->part[i].stream);
        put_u32(p + 8, c->part[i].snapshot);
        put_u64(p + 16, c->part[i].cells.n);
    }
    return p;
}

static uint8_t *put_layers(uint8_t *p, const struct kvc_cache *c) {
    for (uint32_t i = 0; i < c->n_layers; i++, p += KVC_LAYER_ENTRY) {
        put_u32(p, c->layer[i].part);
        put_u32(p + 4, c->layer[i].index);
        p[8] = (uint8_t)c->layer[i].kind;
        put_u32(p + 12, c->layer[i].window);
    }
    return p;
}

/* --- rotations of tensors, each listed once --- */

static int same_rotation(const struct kvc_rope_facts *a, const struct kvc_rope_facts *b) {
    return a->pairing == b->pairing && a->half == b->half && a->of_profile == b->of_profile &&
           (a->of_profile || memcmp(a->angle, b->angle, a->half * sizeof *a->angle) == 0);
}

/* Returns the first tensor that has the rotation of tensor t. */
static uint32_t first_with(const struct kvc_rope_facts *turn, uint32_t t) {
    uint32_t first = 0;
    while (!turn[first].half || !same_rotation(&turn[first], &turn[t])) first++;
    return first;
}

/* Sets number[t] to one more than the number of the tensor's rotation, or to 0. Returns how many
 * there are. */
static uint32_t number_rotations(const struct kvc_rope_facts *turn, uint32_t n, uint16_t *number) {
    uint32_t rotations = 0;
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t first = turn[t].half ? first_with(turn, t) : t;
        number[t] = !turn[t].half ? 0 : first < t ? number[first] : (uint16_t)++rotations;
    }
    return rotations;
}

static uint8_t *put_rotations(uint8_t *p, const struct kvc_rope_facts *turn, uint32_t n) {
    for (uint32_t t = 0; t < n; t++) {
        if (!turn[t].half || first_with(turn, t) < t) continue;
        p[0] = (uint8_t)turn[t].pairing;
        p[1] = (uint8_t)turn[t].of_profile;
        put_u16(p + 2, (uint16_t)turn[t].half);
        p += 4;
        for (size_t i = 0; i < turn[t].half && !turn[t].of_profile; i++, p += 8)
            put_f64(p, turn[t].angle[i]);
    }
    return p;
}

static uint8_t *put_tensors(uint8_t *p, const struct kvc_cache *c, const struct kvc_plan *plan,
                            const uint16_t *rotation) {
    for (uint32_t i = 0; i < c->n_tensors; i++, p += KVC_TENSOR_ENTRY) {
        const struct kvc_tensor *t = &c->tensor[i];
        put_u32(p, t->layer);
        p[4] = (uint8_t)t->role;
        p[5] = (uint8_t)t->shape.dtype;
        put_u16(p + 6, (uint16_t)plan->pipeline_of[i]);
        put_u16(p + 8, rotation[i]);
        put_u64(p + 16, t->shape.heads);
        put_u64(p + 24, t->shape.dim);
        put_u64(p + 32, t->source.token);
        put_u64(p + 40, t->source.head);
        put_u64(p + 48, t->source.block);
        put_u64(p + 56, t->source_size);
    }
    return p;
}

static uint8_t *put_pipelines(uint8_t *p, const struct kvc_plan *plan) {
    for (uint32_t i = 0; i < plan->n_pipelines; i++) {
        const struct kvc_pipeline *line = &plan->pipeline[i];
        *p++ = (uint8_t)line->n;
        for (unsigned s = 0; s < line->n; s++) {
            const struct kvc_stage *stage = line->step[s].stage;
            uint8_t *const end = put_args(p + 3, stage, &line->step[s].args);
            put_u16(p, stage->id);
            p[2] = (uint8_t)(end - p - 3);
            p = end;
        }
    }
    return p;
}

int kvc_write_table(struct kvc_record_writer *w, const struct kvc_cache *c,
                    const struct kvc_plan *plan, const struct kvc_rope_facts *turn,
                    struct kvc_error *e) {
    size_t n = KVC_TABLE_HEADER + (size_t)c->n_parts * KVC_PART_ENTRY +
               (size_t)c->n_layers * KVC_LAYER_ENTRY + (size_t)c->n_tensors * KVC_TENSOR_ENTRY +
               (size_t)plan->n_pipelines * (1 + KVC_MAX_STEPS * (3 + 8 * ARG_BYTES));
    for (uint32_t t = 0; t < c->n_tensors; t++) n += 4 + 8 * turn[t].half;
    uint8_t *bytes = calloc(1, n), *p = bytes;
    uint16_t *rotation = kvc_alloc((uint64_t)c->n_tensors + 1, sizeof *rotation);
    int status = bytes && rotation ? 0 : kvc_fail_memory(e, "the table of tensors");
    const uint32_t rotations = status ? 0 : number_rotations(turn, c->n_tensors, rotation);
    if (rotations > KVC_MAX_PIPELINES)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "more than %d rotations", KVC_MAX_PIPELINES);
    if (!status) {
        put_u32(p, c->n_parts);
        put_u32(p + 4, c->n_layers);
        put_u32(p + 8, c->n_tensors);
        put_u32(p + 12, plan->n_pipelines);
        put_u32(p + 16, rotations);
        put_u16(p + 20, KVC_PART_ENTRY);
        put_u16(p + 22, KVC_LAYER_ENTRY);
        put_u16(p + 24, KVC_TENSOR_ENTRY);
        p = put_layers(put_parts(p + KVC_TABLE_HEADER, c), c);
        p = put_pipelines(put_tensors(p, c, plan, rotation), plan);
        p = put_rotations(p, turn, c->n_tensors);
        status = kvc_write_simple(w, KVC_RECORD_TABLE, KVC_SECTION_TABLE, bytes,
                                  (size_t)(p - bytes), e);
    }
    free(rotation);
    free(bytes);
    return status;
}
