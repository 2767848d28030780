/* dtype.c: the table of element types. */
#include "codecs/dtype.h"

#include "kernels/kernels.h"

#include <string.h>

static void f32_to_f32(float *dst, const uint8_t *src, size_t n) {
    memcpy(dst, src, n * sizeof *dst);
}

static void f16_to_f32(float *dst, const uint8_t *src, size_t n) {
    kvc_kernels_get()->f16_to_f32(dst, src, n);
}

static void bf16_to_f32(float *dst, const uint8_t *src, size_t n) {
    kvc_kernels_get()->bf16_to_f32(dst, src, n);
}

static void u8_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = (float)src[i];
}

static void i8_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = (float)(int8_t)src[i];
}

/* ggml numbers: enum ggml_type of ggml/include/ggml.h. */
static const struct kvc_dtype_info table[] = {
    {KVC_F32, "f32", 1, 4, 0, 1, {1, 1, 1, 1}, f32_to_f32},
    {KVC_F16, "f16", 1, 2, 1, 1, {1, 1}, f16_to_f32},
    {KVC_BF16, "bf16", 1, 2, 30, 1, {1, 1}, bf16_to_f32},
    {KVC_F8E4M3, "f8e4m3", 1, 1, -1, 1, {1}, kvc_f8e4m3_to_f32},
    {KVC_F8E5M2, "f8e5m2", 1, 1, -1, 1, {1}, kvc_f8e5m2_to_f32},
    {KVC_U8, "u8", 1, 1, -1, 0, {1}, u8_to_f32},
    {KVC_I8, "i8", 1, 1, -1, 0, {1}, i8_to_f32},
    {KVC_Q8_0, "q8_0", 32, 34, 8, 1, {1, 1, 32}, kvc_q8_0_to_f32},
    {KVC_Q4_0, "q4_0", 32, 18, 2, 1, {1, 1, 16}, kvc_q4_0_to_f32},
    {KVC_Q4_1, "q4_1", 32, 20, 3, 1, {1, 1, 1, 1, 16}, kvc_q4_1_to_f32},
    {KVC_Q5_0, "q5_0", 32, 22, 6, 1, {1, 1, 4, 16}, kvc_q5_0_to_f32},
    {KVC_Q5_1, "q5_1", 32, 24, 7, 1, {1, 1, 1, 1, 4, 16}, kvc_q5_1_to_f32},
    {KVC_IQ4_NL, "iq4_nl", 32, 18, 20, 1, {1, 1, 16}, kvc_iq4_nl_to_f32},
};

#define N (sizeof table / sizeof table[0])

const struct kvc_dtype_info *kvc_dtype_info(unsigned dtype) {
    for (size_t i = 0; i < N; i++)
        if ((unsigned)table[i].dtype == dtype) return &table[i];
    return NULL;
}

const struct kvc_dtype_info *kvc_dtype_by_name(const char *name) {
    for (size_t i = 0; i < N; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

const struct kvc_dtype_info *kvc_dtype_by_ggml(int64_t type) {
    for (size_t i = 0; i < N; i++)
        if (table[i].ggml >= 0 && table[i].ggml == type) return &table[i];
    return NULL;
}
