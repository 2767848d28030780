#!/bin/sh
# run.sh unit|all|san|coverage BUILD: runs the tests that were built below BUILD, lists what was skipped and why, and prints the
# totals as its last line.
# unit: unit tests. san: what a sanitizer build runs. coverage: what a build with gcov's counters runs, without the larger files
# that only some machines have. all: everything.
set -u
what=$1
build=$2
passed=0 failed=0 skipped=0
export KVC_PROFILE_PATH=none # no profile of this machine changes a test
if [ "$what" = coverage ]; then
    unset KVC_TEST_DATA
elif [ -d ../shared/data ] && [ -z "${KVC_TEST_DATA:-}" ]; then
    KVC_TEST_DATA=$(cd ../shared/data && pwd)
    export KVC_TEST_DATA
fi
jobs=$(nproc 2>/dev/null || echo 1)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
trap 'exit 2' HUP INT TERM

# Adds the counts of a finished run: cmocka's closing lines or "N passed, N failed[, N skipped]".
count() { # count STATUS LOG NAME
    log=$2
    p=$(sed -n -e 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' -e 's/^\([0-9]*\) passed, .*/\1/p' "$log" | tail -n 1)
    f=$(sed -n -e 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' -e 's/^[0-9]* passed, \([0-9]*\) failed.*/\1/p' "$log" | tail -n 1)
    s=$(sed -n -e 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' -e 's/.* failed, \([0-9]*\) skipped.*/\1/p' "$log" | tail -n 1)
    p=${p:-0} f=${f:-0} s=${s:-0}
    [ "$p" = 0 ] && [ "$f" = 0 ] && [ "$1" = 0 ] && [ "$s" = 0 ] && p=1
    [ "$1" != 0 ] && [ "$f" = 0 ] && f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" != 0 ]; then
        echo "FAIL $3"
        cat "$log"
    else
        echo "ok   $3: $p passed$([ "$s" = 0 ] || echo ", $s skipped")"
    fi
    # reasons as the suites give them: "SKIPPED: WHY", or "skip TEST: WHY" of the command line
    [ "$s" = 0 ] || sed -n -e "s|^SKIPPED: |  $3: |p" -e "s|^skip |  $3, |p" "$log" >>"$logs/skipped"
}
run() { # run NAME COMMAND...
    [ $counting = 0 ] || { suites=$((suites + 1)); return 0; }
    name=$1
    shift
    "$@" >"$logs/one" 2>&1
    count $? "$logs/one" "$name"
}
# Runs a command for each of what is named, on all cores: its $1, and $name without the folder.
run_all() { # run_all PREFIX COMMAND NAMED...
    prefix=$1 command=$2
    shift 2
    [ $counting = 0 ] || { suites=$((suites + $#)); return 0; }
    printf '%s\n' "$@" | xargs -P "$jobs" -I {} sh -c '
        name=$(basename "$1")
        eval "$2" >"$3/$name" 2>&1
        echo $? >"$3/$name.status"' sh {} "$command" "$logs"
    for t; do
        t=$(basename "$t")
        count "$(cat "$logs/$t.status")" "$logs/$t" "$prefix$t"
    done
}

run_suites() {
    # shellcheck disable=SC2046
    run_all "unit " '"$1"' $(for t in "$build"/tests/unit/test_*; do case $t in *.o | *.d | *.gc??) ;; *) echo "$t" ;; esac; done)
    [ "$what" != unit ] || return 0
    run golden "$build/tests/golden/golden" tests/golden
    run "conformance, libkvc" "${PYTHON:-python3}" tests/conformance/run.py "$build/tests/conformance/reader"
    run_all "replay " '"$1" "tests/fuzz/corpus/${name#*_}"' "$build"/replay/fuzz_*
    run attack_model "$build/tests/store/attack_model"
    run "command line" env KVC_BIN="$(cd "$build" && pwd)" sh tests/cli/run.sh
    if [ -n "${KVC_TEST_DATA:-}" ]; then
        run "real files" python3 tests/cli/check_index.py "$build/kvc-dump" "$KVC_TEST_DATA"
        run "real round trips" sh tests/real.sh "$build" "$KVC_TEST_DATA"
    fi
    [ "$what" != san ] || return 0
    run "GPU's tests, on the host" "$build/tests/cuda/test_cuda_fake" tests/golden/*.kvc samples/*.kvc
    [ "$what" != all ] || run_rest
}

run_rest() {
    run "conformance, second reader" "${PYTHON:-python3}" tests/conformance/run.py --second-reader
    run_all "" '"$1"' "$build/tests/store/attack_kill" "$build/tests/store/attack_index" "$build/tests/store/attack_faults"
    [ ! -e "$build/tests/store/s3_driver" ] || run "signatures of S3" python3 tests/store/s3_sign.py "$build/tests/store/s3_driver"
    [ ! -e "$build/kvc_store_redis.so" ] || run "store in Redis" python3 tests/store/redis.py "$build"
    run check-install "${MAKE:-make}" -s check-install # builds this tree for another folder of profiles
    # targets of which no two build the same files, the longest first
    run_all "" '"${MAKE:-make}" -s "$1"' test-simt-quick check-dist bench-smoke \
        check-layers check-layers-test check-size check-words check-files check-symbols check-abi check-abi-test \
        check-memory check-python check-vars check-target check-deps check-simde check-cuda check-options man-lint \
        test-trace
}

[ "$what" = san ] || [ "$what" = coverage ] && export KVC_SANITIZED=1 # sanitizers have memory of their own: tests of limits skip
KVC_FAKE_CUDA="$(cd "$build" && pwd)/tests/cuda/libkvc_cuda_fake.so"
export KVC_FAKE_CUDA
case $what in
unit) time=", about 1 min of processor time" ;;
all | coverage) time=", about 10 min of processor time" ;;
san) time=", about 20 min of processor time" ;;
esac
suites=0 counting=1
run_suites
echo "$suites suites on up to $jobs cores$time"
counting=0
run_suites
[ ! -s "$logs/skipped" ] || { echo "skipped:"; cat "$logs/skipped"; }
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
