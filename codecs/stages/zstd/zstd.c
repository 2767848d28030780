/* zstd.c: the stage that splits rows into byte planes and compresses each. Spec: zstd.md. */
#include "codecs/memory.h"
#include "codecs/planes.h"
#include "codecs/stage.h"

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

enum { LEVEL, DEFAULT_LEVEL = 1, MAX_LEVEL = 19 };

static const struct kvc_arg arguments[] = {
    {.key = "level", .min = 1, .max = MAX_LEVEL, .fallback = DEFAULT_LEVEL}};

static int only_bytes(const struct kvc_dtype_info *info) {
    return info->block == 1; /* then every plane is one byte wide, as the kernel needs */
}

static int zstd_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                       uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    (void)state;
    const struct kvc_dtype_info *info = kvc_dtype_info(block->shape.dtype);
    size_t blocks = (size_t)(block->shape.tokens * kvc_row_blocks(&block->shape)),
           n = blocks * info->size;
    uint8_t *planes = malloc(n ? n : 1);
    if (!planes) return kvc_fail_memory(e, "byte planes");
    if (only_bytes(info)) kvc_kernels_get()->split_planes(planes, block->rows, blocks, info->size);
    int status = 0;
    size_t at = 0, count = out->count, used = out->used, directory = 0;
    for (uint8_t p = 0; info->planes[p] && !status; p++) {
        size_t group = info->planes[p];
        uint8_t *plane = planes + at * blocks;
        if (!only_bytes(info)) kvc_plane_out(plane, block->rows, blocks, info->size, at, group);
        status = kvc_sections_add(out, KVC_SECTION_PLANE, stage, p, plane, blocks * group,
                                  (int)args->i[LEVEL], e);
        at += group;
        directory += KVC_SECTION_COST;
    }
    /* nothing gained: keep the rows */
    if (!status && out->used - used + directory >= n + KVC_SECTION_COST) {
        out->count = count;
        out->used = used;
        status = kvc_sections_add(out, KVC_SECTION_RAW, stage, 0, block->rows, n, 0, e);
    }
    free(planes);
    return status;
}

static int zstd_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_error *e) {
    (void)args;
    const struct kvc_section *sections = stored->section;
    const size_t n = stored->n;
    const struct kvc_dtype_info *info = kvc_dtype_info(block->shape.dtype);
    size_t blocks = (size_t)(block->shape.tokens * kvc_row_blocks(&block->shape)), at = 0, i = 0;
    const int raw = kvc_stored_raw(stored, block, e);
    if (raw) return raw < 0 ? -1 : 0;
    uint8_t *planes = kvc_alloc(blocks, info->size);
    if (!planes) return kvc_fail_memory(e, "byte planes");
    const struct kvc_section *next = sections, *end = sections + n;
    int status = 0;
    for (; info->planes[i] && !status; i++) {
        size_t group = info->planes[i];
        const struct kvc_section *s = kvc_section_take(&next, end, KVC_SECTION_PLANE, (unsigned)i,
                                                       e);
        status = s ? kvc_section_decode(s, planes + at * blocks, blocks * group, e) : -1;
        if (!status && !only_bytes(info))
            kvc_plane_in(block->rows, planes + at * blocks, blocks, info->size, at, group);
        at += group;
    }
    if (!status) status = kvc_section_none_left(next, end, e);
    if (!status && only_bytes(info))
        kvc_kernels_get()->merge_planes(block->rows, planes, blocks, info->size);
    free(planes);
    return status;
}

const struct kvc_stage kvc_stage_zstd = {
    .id = 2,
    .name = "zstd",
    .summary = "byte planes, each compressed by zstd",
    .flags = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS,
    .args = arguments,
    .n_args = 1,
    .encode = zstd_encode,
    .decode = zstd_decode,
};
