#!/bin/sh
# run.sh unit|all|san BUILD: runs the tests that were built below BUILD and prints the totals as its last line.
# unit: unit tests. san: what a sanitizer build runs. all: everything.
set -u
what=$1
build=$2
passed=0 failed=0 skipped=0
export KVC_TEST_FILES=tests/files
if [ -d ../shared/data ] && [ -z "${KVC_TEST_DATA:-}" ]; then
    KVC_TEST_DATA=$(cd ../shared/data && pwd)
    export KVC_TEST_DATA
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Adds the counts of a finished run: cmocka's closing lines or "N passed, N failed[, N skipped]".
count() { # count STATUS NAME
    p=$(sed -n -e 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' -e 's/^\([0-9]*\) passed, .*/\1/p' "$log" | tail -n 1)
    f=$(sed -n -e 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' -e 's/^[0-9]* passed, \([0-9]*\) failed.*/\1/p' "$log" | tail -n 1)
    s=$(sed -n -e 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' -e 's/.* failed, \([0-9]*\) skipped.*/\1/p' "$log" | tail -n 1)
    p=${p:-0} f=${f:-0} s=${s:-0}
    [ "$p" = 0 ] && [ "$f" = 0 ] && [ "$1" = 0 ] && [ "$s" = 0 ] && p=1
    [ "$1" != 0 ] && [ "$f" = 0 ] && f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" != 0 ]; then
        echo "FAIL $2"
        cat "$log"
    else
        echo "ok   $2: $p passed$([ "$s" = 0 ] || echo ", $s skipped")"
        grep '^SKIPPED:' "$log" || true
    fi
}
run() { # run NAME COMMAND...
    name=$1
    shift
    "$@" >"$log" 2>&1
    count $? "$name"
}

for t in "$build"/tests/unit/test_*; do
    case $t in *.o | *.d) continue ;; esac
    [ -x "$t" ] && run "unit $(basename "$t")" "$t"
done
if [ "$what" != unit ]; then
    run golden "$build/tests/golden/golden" tests/golden
    for t in "$build"/replay/fuzz_*; do
        name=$(basename "$t")
        [ -x "$t" ] && run "replay $name" "$t" "tests/fuzz/corpus/${name#fuzz_}"
    done
    [ "$what" = san ] && export KVC_SANITIZED=1 # sanitizers have memory of their own: tests of limits skip
    export KVC_FAKE_CUDA="$(cd "$build" && pwd)/tests/cuda/libkvc_cuda_fake.so"
    run "command line" env KVC_BIN="$(cd "$build" && pwd)" sh tests/cli/run.sh
    if [ -n "${KVC_TEST_DATA:-}" ]; then
        run "real files" python3 tests/cli/check_index.py "$build/kvc-dump" "$KVC_TEST_DATA"
        run "real round trips" sh tests/real.sh "$build" "$KVC_TEST_DATA"
    fi
fi
if [ "$what" = all ]; then
    run "GPU's tests, on the host" "$build/tests/cuda/test_cuda_fake" tests/golden/*.kvc samples/*.kvc
    run "check-layers" sh tests/check-layers.sh
    for t in check-symbols check-install check-vars check-simde check-cuda man-lint; do run "$t" "${MAKE:-make}" -s $t; done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
