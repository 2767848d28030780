#!/bin/sh
# compilers.sh MAKE: decoded bytes do not depend on the compiler, on its optimisation, or on the kernels. Builds the readers of the golden
# files and of the conformance set by each compiler with each set of flags, one after another, runs both with each table of kernels, and
# prints a table. COMPILERS: some of the compilers. LEVELS: some of the flags, by commas.
#
# A build is right if all digests are those that the files were made with: then all builds decode alike.
set -u
make=$1
compilers=${COMPILERS:-gcc clang}
# The last fills variables that were not set with a pattern: what reads one decodes otherwise.
levels=${LEVELS:--O0,-O1,-O2,-O3,-O2 -march=native,-O2 -ftrivial-auto-var-init=pattern}
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 2' HUP INT TERM

row() { printf '%-7s %-37s %-11s %-16s %s\n' "$@"; } # row COMPILER FLAGS KERNELS GOLDEN CONFORMANCE

# Prints the last line that a reader's run ends with, and counts it; on failure the rest too.
outcome() { # outcome COMMAND...
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        last=$(tail -n 1 "$log")
        last="${last%% passed*} ok"
    else
        failed=$((failed + 1)) last=FAIL
        grep -v ' passed, ' "$log" | head -n 20 >&2
    fi
}

# Runs both readers of a folder with each table that the CPU has; the reader refuses the other ones.
run_build() { # run_build COMPILER FLAGS FOLDER
    reader=$3/tests/conformance/reader golden=$3/tests/golden/golden
    tables=""
    for table in ref avx2 avxvnni avx512 avx512vnni amx neon neondot; do
        KVC_KERNEL=$table "$reader" tests/golden/zstd-v1.kvc >/dev/null 2>"$log" || {
            grep -q "names no kernel table" "$log" && continue
            cat "$log" >&2
        }
        tables="$tables $table"
        outcome env KVC_KERNEL=$table "$golden" tests/golden
        of_golden=$last
        outcome env KVC_KERNEL=$table "${PYTHON:-python3}" tests/conformance/run.py "$reader"
        row "$1" "$2" $table "$of_golden" "$last"
    done
    # no build has fewer tables than the first
    [ "$tables" = "${all_tables=$tables}" ] && [ -n "$tables" ] || {
        failed=$((failed + 1))
        echo "$1 $2: tables of kernels:$tables; the first build has$all_tables" >&2
    }
}

row compiler flags kernels "golden digests" "conformance files"
for compiler in $compilers; do
    command -v "$compiler" >/dev/null || {
        skipped=$((skipped + 1))
        echo "SKIPPED: there is no $compiler"
        continue
    }
    IFS=,
    for flags in $levels; do
        unset IFS
        if $make -s -j"$(nproc)" CC="$compiler" CFLAGS="$flags" CUDA=0 readers >"$log"; then
            run_build "$compiler" "$flags" "$(tail -n 1 "$log")"
        else
            failed=$((failed + 1))
            row "$compiler" "$flags" "" "not built" ""
        fi
    done
    unset IFS
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed != 0 ]
