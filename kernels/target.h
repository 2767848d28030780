/* target.h: refuses, in one sentence, the machines that kvc does not support: values are read in
 * place, and sizes have 64 bits. The Makefile preprocesses this file before it compiles anything,
 * and kernels.h includes it for builds without the Makefile. */
#ifndef KVC_TARGET_H
#define KVC_TARGET_H

#if !defined __BYTE_ORDER__ || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || __SIZEOF_POINTER__ != 8
#error "kvc needs a 64-bit little-endian machine, such as x86-64, aarch64 or riscv64"
#endif

#endif
