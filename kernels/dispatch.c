/* dispatch.c: which table of kernels this CPU gets. Not for the kernels. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static int runs_everywhere(void) {
    return 1;
}

#if defined(__x86_64__)
static int runs_avx2(void) { /* F16C and FMA with it: its kernels use all three */
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx2")) return 0; /* asks the operating system too */
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && (c & bit_FMA);
}

#if !defined(KVC_NO_AVX512)
static int runs_avx512(void) {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif
#endif

/* Best first. */
static const struct {
    const struct kvc_kernels *kernels;
    int (*runs)(void);
} table[] = {
#if defined(__x86_64__)
#if !defined(KVC_NO_AVX512)
    {&kvc_kernels_avx512, runs_avx512},
#endif
    {&kvc_kernels_avx2, runs_avx2},
#endif
    {&kvc_kernels_ref, runs_everywhere},
};

#define N_TABLES (sizeof table / sizeof table[0])

static const char *names[N_TABLES + 1];
static const struct kvc_kernels *chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

const struct kvc_kernels *kvc_kernels_find(const char *name) {
    for (size_t i = 0; i < N_TABLES; i++)
        if (strcmp(table[i].kernels->name, name) == 0) return table[i].runs() ? table[i].kernels : NULL;
    return NULL;
}

static void choose(void) {
    for (size_t i = 0; i < N_TABLES; i++) names[i] = table[i].kernels->name;
    const char *forced = getenv("KVC_KERNEL");
    if (forced && *forced) {
        chosen = kvc_kernels_find(forced);
        return;
    }
    for (size_t i = 0; i < N_TABLES && !chosen; i++)
        if (table[i].runs()) chosen = table[i].kernels;
}

const struct kvc_kernels *kvc_kernels_get(void) {
    pthread_once(&once, choose);
    return chosen;
}

const char *const *kvc_kernels_names(void) {
    pthread_once(&once, choose);
    return names;
}
