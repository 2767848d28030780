/* test_simt.c: the layer of simt.h itself: what lanes exchange, whom they wait for, how memory is
 * shared, which faults end the program and, in a build with ThreadSanitizer, which accesses of two
 * lanes are reported as a race. Not for the decoder, whose tests run over the layer unchanged
 * (run.sh).
 *
 *   test_simt          runs the tests
 *   test_simt CASE     runs one kernel of those that have a fault, for the tests */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/simt/decode_simt.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

enum { WARP = 32, RACE = 66 /* exit status of programs with ThreadSanitizer's reports */ };
#define ALL 0xffffffffu

static const char *program;

/* --- what lanes exchange --- */

struct seen {
    uint64_t from[SIMT_THREADS], up[SIMT_THREADS], across[SIMT_THREADS];
    uint32_t ballot[SIMT_THREADS];
    int any[SIMT_THREADS], all[SIMT_THREADS], none[SIMT_THREADS];
};

static void exchange(void *arguments) {
    struct seen *const seen = arguments;
    const unsigned i = threadIdx.x;
    seen->from[i] = __shfl_sync(ALL, UINT64_C(1) << 40 | i, 5);
    seen->up[i] = __shfl_up_sync(ALL, i, 3);
    seen->across[i] = __shfl_xor_sync(ALL, i, 16);
    seen->ballot[i] = __ballot_sync(ALL, i % 3 == 0);
    seen->any[i] = __any_sync(ALL, i == 40);
    seen->all[i] = __all_sync(ALL, i != 40);
    seen->none[i] = __any_sync(ALL, 0);
}

static void lanes_exchange_values(void **state) {
    (void)state;
    for (unsigned order = 0; order < SIMT_ORDERS; order++) {
        static struct seen seen;
        memset(&seen, 0xff, sizeof seen);
        simt_set_order((enum simt_order)order, 1);
        simt_run(exchange, &seen, 1, 2 * WARP);
        for (unsigned i = 0; i < 2 * WARP; i++) {
            const unsigned lane = i % WARP, first = i - lane;
            uint32_t bits = 0;
            for (unsigned k = 0; k < WARP; k++) bits |= (uint32_t)((first + k) % 3 == 0) << k;
            assert_true(seen.from[i] == (UINT64_C(1) << 40 | (first + 5)));
            assert_int_equal(seen.up[i], lane < 3 ? i : i - 3);
            assert_int_equal(seen.across[i], i ^ 16);
            assert_int_equal(seen.ballot[i], bits);
            assert_int_equal(seen.any[i], first == WARP);
            assert_int_equal(seen.all[i], first != WARP);
            assert_int_equal(seen.none[i], 0);
        }
    }
}

/* --- whom lanes wait for --- */

/* The lower half of a warp sums over its own lanes, more often than the upper half; the last lane
 * ends at once. */
static void diverge(void *arguments) {
    uint32_t *const sum = arguments;
    const unsigned lane = threadIdx.x;
    const uint32_t mask = lane < 16 ? 0xffffu : 0xffff0000u;
    if (lane == 31) return;
    for (unsigned i = 0; i < (lane < 16 ? 5u : 2u); i++) {
        sum[lane] += (uint32_t)__popc(__ballot_sync(mask, 1));
        simt_meet(SIMT_SYNC_WARP, mask, 0, 0);
    }
    sum[lane] += 1000 * (uint32_t)__popc(__ballot_sync(ALL, 1));
}

static void masks_are_waited_for(void **state) {
    (void)state;
    for (unsigned order = 0; order < SIMT_ORDERS; order++) {
        uint32_t sum[WARP] = {0};
        simt_set_order((enum simt_order)order, 2);
        simt_run(diverge, sum, 1, WARP);
        for (unsigned i = 0; i < WARP; i++)
            assert_int_equal(sum[i], i == 31 ? 0 : (i < 16 ? 5 * 16 : 2 * 15) + 31000);
    }
}

/* --- memory --- */

/* Each thread passes a number to the thread of the next warp, by memory of its block, and counts
 * what it gets. */
static void pass_on(void *arguments) {
    uint32_t *const total = arguments;
    __shared__ uint32_t room[SIMT_THREADS];
    const unsigned i = threadIdx.x;
    for (uint32_t round = 1; round <= 3; round++) {
        room[i] = round * i;
        __syncthreads();
        atomicAdd(total, room[(i + WARP) % SIMT_THREADS]);
        __syncthreads();
    }
}

static void blocks_have_memory_of_their_own(void **state) {
    (void)state;
    for (unsigned order = 0; order < SIMT_ORDERS; order++) {
        uint32_t total = 0;
        simt_set_order((enum simt_order)order, 3);
        simt_run(pass_on, &total, SIMT_BLOCKS, SIMT_THREADS);
        assert_int_equal(total,
                         SIMT_BLOCKS * (1 + 2 + 3) * (SIMT_THREADS * (SIMT_THREADS - 1) / 2));
    }
}

/* --- arithmetic and types --- */

static void arithmetic_is_cuda_s(void **state) {
    (void)state;
    uint4 four = make_uint4(1, 2, 3, 4);
    const uint2 two = make_uint2(1, 2);
    assert_int_equal((uintptr_t)&four % 16, 0);
    assert_int_equal(four.w + two.y, 6);
    assert_int_equal(__dp4a((int)0x80ff0102u, 0x7f020304, 10), -128 * 127 - 2 + 3 + 8 + 10);
    assert_true(__umul64hi(UINT64_C(1) << 63, 6) == 3);
    assert_int_equal(__ffs(0), 0);
    assert_int_equal(__ffs(8), 4);
    assert_int_equal(__float2int_rn(2.5f), 2);
    assert_int_equal(__float2int_rn(-3.5f), -4);
    assert_true(__fmaf_rn(0x1.000004p0f, 0x1.000004p0f, -1) >
                __fadd_rn(__fmul_rn(0x1.000004p0f, 0x1.000004p0f), -1));
}

/* --- kernels with a fault, and their twins without --- */

static uint32_t word[2], flag;

static void different_functions(void *arguments) {
    (void)arguments;
    if (threadIdx.x == 7) simt_meet(SIMT_SYNC_WARP, ALL, 0, 0);
    else __ballot_sync(ALL, 1);
}
static void different_masks(void *arguments) {
    (void)arguments;
    simt_meet(SIMT_SYNC_WARP, threadIdx.x == 9 ? ~1u : ALL, 0, 0);
}
static void mask_of_others(void *arguments) {
    (void)arguments;
    simt_meet(SIMT_SYNC_WARP, 0xffffu, 0, 0);
}
static void lane_that_ended(void *arguments) {
    (void)arguments;
    if (threadIdx.x != 5) __shfl_sync(ALL, 1, 5);
}
/* A word that one lane writes and another reads after they met. */
static void pass_by(enum simt_meeting meeting, uint32_t mask, unsigned from, unsigned to) {
    if (threadIdx.x == from) word[0] = 1;
    if (mask >> threadIdx.x % WARP & 1) simt_meet(meeting, mask, 1, 8);
    if (threadIdx.x == to) word[1] = word[0];
}
static void pass_by_shuffle(void *arguments) {
    (void)arguments;
    pass_by(SIMT_SHUFFLE, ALL, 3, 20);
}
static void pass_by_ballot(void *arguments) {
    (void)arguments;
    pass_by(SIMT_BALLOT, ALL, 3, 20);
}
static void pass_by_half(void *arguments) {
    (void)arguments;
    pass_by(SIMT_SYNC_WARP, 0xffffu, 3, 20);
}
static void pass_by_other_warp(void *arguments) {
    (void)arguments;
    pass_by(SIMT_SYNC_WARP, ALL, 3, WARP + 3);
}
static void pass_by_warp(void *arguments) {
    (void)arguments;
    pass_by(SIMT_SYNC_WARP, ALL, 3, 20);
}
static void pass_by_own_half(void *arguments) {
    (void)arguments;
    pass_by(SIMT_SYNC_WARP, 0xffffu, 3, 12);
}
static void pass_by_block(void *arguments) {
    (void)arguments;
    pass_by(SIMT_SYNC_BLOCK, ALL, 3, WARP + 3);
}
/* A lane writes again what others may still read. */
static void write_early(void *arguments) {
    (void)arguments;
    pass_by(SIMT_SYNC_WARP, ALL, 3, 20);
    __shfl_sync(ALL, 1, 20);
    if (threadIdx.x == 3) word[0] = 2;
}
/* A warp waits for another warp's flag. */
static void pass_by_flag(uint32_t ready) {
    if (threadIdx.x == 0) {
        word[0] = 1;
        kvc_add_release(&flag, 1);
    } else if (threadIdx.x == WARP) {
        while (ready ? kvc_load_acquire(&flag) == 0 : atomicAdd(&flag, 0u) == 0) __nanosleep(100);
        word[1] = word[0];
    }
}
static void pass_by_acquire(void *arguments) {
    (void)arguments;
    pass_by_flag(1);
}
static void pass_by_relaxed(void *arguments) {
    (void)arguments;
    pass_by_flag(0);
}

static const struct fault {
    const char *name;
    simt_kernel *kernel;
    const char *says; /* NULL: nothing; RACE_SAYS: ThreadSanitizer's report */
} faults[] = {
#define RACE_SAYS "data race"
    {"different-functions", different_functions, "no lane can go on"},
    {"different-masks", different_masks, "no lane can go on"},
    {"mask-of-others", mask_of_others, "own bit"},
    {"lane-that-ended", lane_that_ended, "takes no part"},
    {"pass-by-shuffle", pass_by_shuffle, RACE_SAYS},
    {"pass-by-ballot", pass_by_ballot, RACE_SAYS},
    {"pass-by-half", pass_by_half, RACE_SAYS},
    {"pass-by-other-warp", pass_by_other_warp, RACE_SAYS},
    {"pass-by-relaxed", pass_by_relaxed, RACE_SAYS},
    {"write-early", write_early, RACE_SAYS},
    {"pass-by-warp", pass_by_warp, NULL},
    {"pass-by-own-half", pass_by_own_half, NULL},
    {"pass-by-block", pass_by_block, NULL},
    {"pass-by-acquire", pass_by_acquire, NULL},
};
enum { FAULTS = sizeof faults / sizeof faults[0] };

/* Runs a case in another process; returns its exit status, 128 + its signal, and what it says. */
static int run_case(const char *name, unsigned order, char *said, size_t room) {
    char number[2] = {(char)('0' + order), 0};
    char *const arguments[] = {(char *)(uintptr_t)program, (char *)(uintptr_t)name, number, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2], status;
    size_t n = 0;
    ssize_t got;
    pid_t child;
    assert_int_equal(pipe(ends), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    assert_int_equal(posix_spawn(&child, program, &actions, NULL, arguments, environ), 0);
    close(ends[1]);
    while (n + 1 < room && (got = read(ends[0], said + n, room - 1 - n)) > 0) n += (size_t)got;
    said[n] = 0;
    close(ends[0]);
    posix_spawn_file_actions_destroy(&actions);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void check_cases(int races) {
    static char said[1 << 20];
    for (size_t i = 0; i < FAULTS; i++) {
        const struct fault *f = &faults[i];
        const int race = f->says && !strcmp(f->says, RACE_SAYS), sound = !f->says;
        if (race != races && !sound) continue;
        for (unsigned order = 0; order < SIMT_ORDERS; order++) {
            const int status = run_case(f->name, order, said, sizeof said);
            const int expected = sound ? 0 : race ? RACE : 128 + SIGABRT;
            if (status != expected || (f->says && !strstr(said, f->says)))
                fail_msg("%s, order %u: status %d, not %d; it says: %s", f->name, order, status,
                         expected, said);
        }
    }
}

static void faults_end_the_program(void **state) {
    (void)state;
    check_cases(0);
}

#ifdef __SANITIZE_THREAD__
static void races_are_reported(void **state) {
    (void)state;
    check_cases(1);
}
#endif

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_exchange_values),
        cmocka_unit_test(masks_are_waited_for),
        cmocka_unit_test(blocks_have_memory_of_their_own),
        cmocka_unit_test(arithmetic_is_cuda_s),
        cmocka_unit_test(faults_end_the_program),
#ifdef __SANITIZE_THREAD__
        cmocka_unit_test(races_are_reported),
#endif
    };
    program = argv[0];
    setenv("TSAN_OPTIONS", "atexit_sleep_ms=0", 0); /* cases end without a delay */
    if (argc < 3) return cmocka_run_group_tests(tests, NULL, NULL);
    simt_set_order((enum simt_order)atoi(argv[2]), 4);
    for (size_t i = 0; i < FAULTS; i++)
        if (!strcmp(faults[i].name, argv[1])) simt_run(faults[i].kernel, NULL, 1, 2 * WARP);
    return 0;
}
