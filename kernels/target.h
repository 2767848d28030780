/* target.h: refuses, in one sentence, the machines and flags that kvc does not support: values are
 * read in place, sizes have 64 bits, and binary32 and binary64 are computed as IEEE 754 says. The
 * Makefile preprocesses this file before it compiles anything, and kernels.h includes it for builds
 * without the Makefile. */
#ifndef KVC_TARGET_H
#define KVC_TARGET_H

#if !defined __BYTE_ORDER__ || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || __SIZEOF_POINTER__ != 8
#error "kvc needs a 64-bit little-endian machine, such as x86-64, aarch64 or riscv64"
#elif defined __FAST_MATH__ || __FINITE_MATH_ONLY__ + 0 || defined __ASSOCIATIVE_MATH__ || \
    defined __RECIPROCAL_MATH__ || defined __NO_SIGNED_ZEROS__ || __FLT_EVAL_METHOD__ + 0
#error "kvc needs exact floating-point arithmetic: compile without -ffast-math and its like"
#endif

#endif
