/* dispatch.c: chooses the kernels for this CPU. Not for the kernels.
 *
 * $KVC_KERNEL names a table; else it is the table of the widest instruction set, with the rANS that
 * is fastest on this CPU (trial.c). The trial is made when rANS is first called, so that programs
 * without rANS do not wait for it: until then the table has functions that make the trial and then
 * call the kernels that it found. */
#include "kernels/kernels.h"
#include "kernels/trial.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
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

static int runs_avx512(void) {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("bmi");
}

static int runs_avx512vnni(void) {
    return runs_avx512() && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__) /* which always has NEON */
static int runs_neondot(void) {
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#endif

/* Widest first. */
static const struct {
    const struct kvc_kernels *kernels;
    int (*runs)(void);
} table[] = {
#if defined(__x86_64__)
    {&kvc_kernels_avx512vnni, runs_avx512vnni},
    {&kvc_kernels_avx512, runs_avx512},
    {&kvc_kernels_avx2, runs_avx2},
#elif defined(__aarch64__)
    {&kvc_kernels_neondot, runs_neondot},
    {&kvc_kernels_neon, runs_everywhere},
#endif
    {&kvc_kernels_ref, runs_everywhere},
};

#define N_TABLES (sizeof table / sizeof table[0])

static const char *names[N_TABLES + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT, trial_once = PTHREAD_ONCE_INIT;
static struct kvc_kernels untried, tried; /* the widest table before and after the trial */
static const struct kvc_kernels *rans_encode_of, *rans_decode_of;
static const struct kvc_kernels *_Atomic chosen;

const struct kvc_kernels *kvc_kernels_find(const char *name) {
    for (size_t i = 0; i < N_TABLES; i++)
        if (strcmp(table[i].kernels->name, name) == 0)
            return table[i].runs() ? table[i].kernels : NULL;
    return NULL;
}

/* --- rANS --- */

static void try_rans(void) {
    const struct kvc_kernels *runs[N_TABLES];
    size_t n = 0;
    for (size_t i = N_TABLES; i-- > 0;)
        if (table[i].runs()) runs[n++] = table[i].kernels;
    const struct kvc_kernels *two_of;
    kvc_trial_rans(runs, n, &rans_encode_of, &rans_decode_of, &two_of);
    tried = untried;
    tried.rans_encode = rans_encode_of->rans_encode;
    tried.rans_decode = rans_decode_of->rans_decode;
    tried.rans_decode_two = two_of->rans_decode_two;
    atomic_store_explicit(&chosen, &tried, memory_order_release);
}

static void first_rans_decode(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base,
                              size_t n, const uint32_t *slots, unsigned bits) {
    pthread_once(&trial_once, try_rans);
    tried.rans_decode(r, symbols, base, n, slots, bits);
}

static void first_rans_encode(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n,
                              const struct kvc_rans_symbol *rows, unsigned bits) {
    pthread_once(&trial_once, try_rans);
    tried.rans_encode(r, symbols, n, rows, bits);
}

/* --- the choice --- */

static void choose(void) {
    for (size_t i = 0; i < N_TABLES; i++) names[i] = table[i].kernels->name;
    const char *forced = getenv("KVC_KERNEL");
    const struct kvc_kernels *widest = NULL;
    if (forced && *forced) {
        rans_encode_of = rans_decode_of = kvc_kernels_find(forced);
        atomic_init(&chosen, rans_encode_of);
        return;
    }
    for (size_t i = 0; i < N_TABLES && !widest; i++)
        if (table[i].runs()) widest = table[i].kernels;
    untried = *widest;
    untried.rans_encode = first_rans_encode;
    untried.rans_decode = first_rans_decode;
    untried.rans_decode_two = NULL;
    atomic_init(&chosen, &untried);
}

const struct kvc_kernels *kvc_kernels_get(void) {
    pthread_once(&once, choose);
    return atomic_load_explicit(&chosen, memory_order_acquire);
}

struct kvc_kernels_choice kvc_kernels_choice(void) {
    const struct kvc_kernels *k = kvc_kernels_get();
    const int forced = k != &untried && k != &tried;
    struct kvc_kernels_choice choice = {.by_trial = !forced};
    if (!forced) pthread_once(&trial_once, try_rans);
    if (!k) return choice;
    choice.name = k->name;
    choice.rans_encode = rans_encode_of->name;
    choice.rans_decode = rans_decode_of->name;
    return choice;
}

const char *const *kvc_kernels_names(void) {
    pthread_once(&once, choose);
    return names;
}
