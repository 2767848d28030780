#!/bin/sh
# check-target.sh MAKE: machines that kvc does not support, and flags that change arithmetic, are refused in one sentence before anything is
# compiled, and vector flags follow the machine that is compiled for, not the one that compiles.
set -eu
make=$1
cc=${CC:-cc}
status=0
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
bad() { echo "$*" >&2; status=1; }
big="-U__BYTE_ORDER__ -D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__"
narrow="-U__SIZEOF_POINTER__ -D__SIZEOF_POINTER__=4"
sentence="kvc needs a 64-bit little-endian machine"
exact="kvc needs exact floating-point arithmetic"

# shellcheck disable=SC2086
preprocess() { $cc $1 -I. -E -x c "$2" >/dev/null 2>"$root/log"; } # preprocess FLAGS FILE
preprocess "" kernels/target.h || bad "this machine is refused: $(cat "$root/log")"
for flags in "$big" "$narrow" -m32; do
    if [ "$flags" = -m32 ] && ! echo | $cc -m32 -E -x c - >/dev/null 2>&1; then continue; fi
    for file in kernels/target.h kernels/kernels.h; do
        [ "$flags$file" != -m32kernels/kernels.h ] || continue # the C library's headers for it may be missing
        if preprocess "$flags" $file; then bad "$file is not refused with $flags"; fi
        [ "$(grep -c "error: .*$sentence" "$root/log")" = 1 ] || bad "$file with $flags: $(cat "$root/log")"
    done
    if $make -k -j2 CUDA=0 CPPFLAGS="$flags" all >"$root/out" 2>"$root/log"; then bad "make does not fail with $flags"; fi
    if [ "$(grep -c "error: .*$sentence" "$root/log")" != 1 ] || grep -E ' (CC|AR|LD) ' "$root/out"; then
        bad "make with $flags: $(cat "$root/out" "$root/log")"
    fi
done

# flags that change what is computed, those that this compiler has; clang tells of some of them only together
for flags in -ffast-math -Ofast -ffinite-math-only -funsafe-math-optimizations -mfpmath=387; do
    echo | $cc "$flags" -E -dM -x c - >"$root/macros" 2>/dev/null || continue
    case $flags in
    -ffinite-math-only) macro='__FINITE_MATH_ONLY__ 1' ;;
    -funsafe-math-optimizations) macro=__NO_SIGNED_ZEROS__ ;;
    -mfpmath=387) macro='__FLT_EVAL_METHOD__ 2' ;;
    *) macro=__FAST_MATH__ ;;
    esac
    grep -q "$macro" "$root/macros" || continue
    for file in kernels/target.h kernels/kernels.h; do
        if preprocess "$flags" $file; then bad "$file is not refused with $flags"; fi
        [ "$(grep -c "error: .*$exact" "$root/log")" = 1 ] || bad "$file with $flags: $(cat "$root/log")"
    done
    flags_refused=yes
done
[ "${flags_refused:-}" ] || bad "no flag that changes arithmetic was tried"
if $make -k -j2 CUDA=0 CFLAGS=-ffast-math all >"$root/out" 2>"$root/log"; then bad "make does not fail with -ffast-math"; fi
if [ "$(grep -c "error: .*$exact" "$root/log")" != 1 ] || grep -E ' (CC|AR|LD) ' "$root/out"; then
    bad "make with -ffast-math: $(cat "$root/out" "$root/log")"
fi

# vector_flags CPPFLAGS PATTERN: commands that compile a kernel so. With a macro of its own, so that nothing is built already.
vector_flags() {
    $make -n V=1 CUDA=0 CC="$cc" CPPFLAGS="-DCHECK_TARGET $1" all | grep -c -e "$2" || true
}
avx2='-mavx2 .*kernels/[a-z]*_vec.c'
neondot='+dotprod .*kernels/[a-z]*_neondot.c'
[ "$(vector_flags -U__x86_64__ "$avx2")" = 0 ] || bad "AVX2's flags are passed to a compiler for another machine"
[ "$(vector_flags "-U__x86_64__ -D__aarch64__" "$neondot")" -gt 0 ] || bad "the flags of dot products are missing on ARM64"
if echo __x86_64__ | $cc -E -x c - | grep -qx 1; then
    [ "$(vector_flags "" "$avx2")" -gt 0 ] || bad "AVX2's flags are missing on x86-64"
    [ "$(vector_flags "" "$neondot")" = 0 ] || bad "the flags of ARM64's dot products are passed to a compiler for another machine"
fi
[ $status = 0 ] && echo "target: ok"
exit $status
