/* dispatch.c: chooses the kernels for this CPU. Not for the kernels.
 *
 * $KVC_KERNEL names a table; else it is the table of the widest instruction set, with the rANS that
 * is fastest on this CPU (trial.c). The trial is made when rANS is first called, so that programs
 * without rANS do not wait for it: until then the table has functions that make the trial and then
 * call the kernels that it found. Likewise AMX is asked for when a prediction is first made. */
#include "kernels/kernels.h"
#include "kernels/trial.h"
#include "kernels/twins.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
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

#if defined(KVC_AVXVNNI)
static int runs_avxvnni(void) {
    enum { AVX_VNNI = 1 << 4 };
    unsigned a, b, c, d;
    return runs_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
}
#endif

static int runs_avx512(void) {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("bmi");
}

static int runs_avx512vnni(void) {
    return runs_avx512() && __builtin_cpu_supports("avx512vnni");
}

#if defined(KVC_TILES)
/* Returns 1 where AMX's products are the reference's. */
static int amx_multiplies(void) {
    enum { ROWS = 33, OUTPUTS = 20, INPUTS = 68, BLOCKS = 2 };
    int8_t x[ROWS * INPUTS], weights[BLOCKS * KVC_DOT_BLOCK * INPUTS];
    float scale[OUTPUTS], mean[OUTPUTS], y[2][ROWS * OUTPUTS];
    const struct kvc_dot_matrix m = {OUTPUTS, INPUTS, weights, scale, mean};
    for (unsigned i = 0; i < sizeof x; i++) x[i] = (int8_t)((int)(i * i % 255) - 127);
    for (unsigned i = 0; i < sizeof weights; i++) weights[i] = (int8_t)((int)(i * 7 % 255) - 127);
    for (size_t i = 0; i < OUTPUTS; i++) scale[i] = 1, mean[i] = 0;
    kvc_kernels_ref.dot_rows(y[0], x, ROWS, &m);
    kvc_kernels_amx.dot_rows(y[1], x, ROWS, &m);
    return memcmp(y[0], y[1], sizeof y[0]) == 0;
}

/* Asks Linux for AMX's tiles, which a process has at its request alone
 * (Documentation/arch/x86/xstate.rst): a stack for signals must then have room for 8 KB more. */
static int runs_amx(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    unsigned a, b, c, d;
    if (!runs_avx512vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (!(d & AMX_TILE) || !(d & AMX_INT8)) return 0;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 && amx_multiplies();
}
#endif
#elif defined(__aarch64__) /* which always has NEON */
static int runs_neondot(void) {
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#endif

#if defined(KVC_TILES)
#define ASKED 1 /* tables that are taken as a whole only where $KVC_KERNEL names them */
#else
#define ASKED 0
#endif

/* Widest first. */
static const struct {
    const struct kvc_kernels *kernels;
    int (*runs)(void);
} table[] = {
#if defined(KVC_TILES)
    {&kvc_kernels_amx, runs_amx},
#endif
#if defined(__x86_64__)
    {&kvc_kernels_avx512vnni, runs_avx512vnni},
    {&kvc_kernels_avx512, runs_avx512},
#if defined(KVC_AVXVNNI)
    {&kvc_kernels_avxvnni, runs_avxvnni},
#endif
    {&kvc_kernels_avx2, runs_avx2},
#elif defined(__aarch64__)
    {&kvc_kernels_neondot, runs_neondot},
    {&kvc_kernels_neon, runs_everywhere},
#endif
    {&kvc_kernels_ref, runs_everywhere},
};

#define N_TABLES (sizeof table / sizeof table[0])

static const char *names[N_TABLES + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT, trial_once = PTHREAD_ONCE_INIT,
                      tiles_once = PTHREAD_ONCE_INIT;
static struct kvc_kernels untried, tried; /* the widest table before and after the trial */
static const struct kvc_kernels *rans_encode_of, *rans_decode_of, *dot_rows_of;
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
    for (size_t i = N_TABLES; i-- > ASKED;)
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

/* --- products --- */

static void ask_for_tiles(void) {
#if defined(KVC_TILES)
    if (runs_amx()) dot_rows_of = &kvc_kernels_amx;
#endif
}

static void first_dot_rows(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m) {
    pthread_once(&tiles_once, ask_for_tiles);
    dot_rows_of->dot_rows(y, x, rows, m);
}

/* --- the choice --- */

static void choose(void) {
    for (size_t i = 0; i < N_TABLES; i++) names[i] = table[i].kernels->name;
    const char *forced = getenv("KVC_KERNEL");
    const struct kvc_kernels *widest = NULL;
    if (forced && *forced) {
        rans_encode_of = rans_decode_of = dot_rows_of = kvc_kernels_find(forced);
        atomic_init(&chosen, rans_encode_of);
        return;
    }
    for (size_t i = ASKED; i < N_TABLES && !widest; i++)
        if (table[i].runs()) widest = table[i].kernels;
    untried = *widest;
    untried.rans_encode = first_rans_encode;
    untried.rans_decode = first_rans_decode;
    untried.rans_decode_two = NULL;
    untried.dot_rows = first_dot_rows;
    dot_rows_of = widest;
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
    if (!forced) {
        pthread_once(&trial_once, try_rans);
        pthread_once(&tiles_once, ask_for_tiles);
    }
    if (!k) return choice;
    choice.name = k->name;
    choice.rans_encode = rans_encode_of->name;
    choice.rans_decode = rans_decode_of->name;
    choice.dot_rows = dot_rows_of->name;
    return choice;
}

const char *const *kvc_kernels_names(void) {
    pthread_once(&once, choose);
    return names;
}
