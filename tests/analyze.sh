#!/bin/sh
# analyze.sh FLAGS...: static analysis. FLAGS are those that compile a C file. Runs clang-tidy (.clang-tidy has the checks) over the
# library and the tools, gcc -fanalyzer over the rooms that read bytes of strangers, and shellcheck over the scripts. A tool that is
# missing is skipped with its name. ANALYZE=all adds the analyzer's core checks, which have false findings, and does not fail by them.
# Exit status 1 when something was found.
set -u
CLANG_TIDY=${CLANG_TIDY:-clang-tidy} GCC=${GCC:-gcc} SHELLCHECK=${SHELLCHECK:-shellcheck}
jobs=$(nproc 2>/dev/null || echo 1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 2' HUP INT TERM
status=0
skip() { echo "SKIPPED: $1"; }

# Findings that are false, as patterns of a line: the list of members owns the names, and its sorted copy is filled by memcpy()
# (bundle.c); the list that does not count a member yet is freed with it (npz.c); only
# encoders whose room suffices pass a buffer on (pipeline.c); the view is freed by its cache once the cache has it (view.c); the
# room of a block, which `low` may point into, is freed by room_free() (split_decode.c).
known='formats/io/bundle.c:.*leak of
formats/io/bundle.c:.*use of uninitialized value
formats/engines/npz.c:.*leak of .strdup(path)
codecs/pipeline.c:.*Use of memory after it is freed
formats/cache/view.c:.*Potential leak of memory pointed to by .v.
codecs/stages/split/split_decode.c:.*Potential leak of memory pointed to by .low.'

# Prints the findings in a log that are not known, without the same one twice.
findings() { # findings LOG
    grep -E '^[^ ]+:[0-9]+:[0-9]+: (warning|error): ' "$1" | sed "s|^$(pwd)/||" | grep -v -e "$known" | sort -u
}
report() { # report NAME LOG
    n=$(findings "$2" | wc -l)
    if [ "$n" != 0 ]; then
        findings "$2" >&2
        status=1
    fi
    echo "$1: $n findings"
}

if command -v "$CLANG_TIDY" >/dev/null; then
    checks=
    [ "${ANALYZE:-}" != all ] || checks="clang-analyzer-core.*"
    printf '%s\n' "$@" "-I$(pwd)" >"$scratch/compile_flags.txt"
    # AVX-512's files need flags of their own, and CUDA's files its headers
    find kernels codecs formats cli -name '*.c' ! -name '*_avx512.c' ! -path '*/cuda/*' | sort |
        xargs -P "$jobs" -n 4 "$CLANG_TIDY" -p "$scratch" "--checks=$checks" --quiet >"$scratch/log" 2>/dev/null || true
    report clang-tidy "$scratch/log"
    [ "${ANALYZE:-}" != all ] || status=0
else
    skip "clang-tidy is not installed (apt-get install clang-tidy)"
fi

if "$GCC" -fanalyzer -E -x c /dev/null >/dev/null 2>&1 && "$GCC" --version | head -n 1 | grep -qi gcc; then
    for file in formats/io/*.c formats/engines/*.c; do
        "$GCC" "$@" -O1 -fanalyzer -c -o /dev/null "$file"
    done 2>"$scratch/log"
    report "gcc -fanalyzer" "$scratch/log"
else
    skip "$GCC is not a gcc with -fanalyzer (gcc 10 or later)"
fi

if command -v "$SHELLCHECK" >/dev/null; then
    "$SHELLCHECK" -f gcc -S warning tests/*.sh tests/*/*.sh .ci/run >"$scratch/log"
    report shellcheck "$scratch/log"
else
    skip "shellcheck is not installed (apt-get install shellcheck)"
fi
exit $status
