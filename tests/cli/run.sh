#!/bin/sh
# run.sh: runs the command line tests, NAME/cmd with what it must print and return. Not for unit tests.
#
#   tests/cli/run.sh [-u] [TEST...]      -u: take what exact tests print as what they must print
#
# KVC_BIN: directory of the tools (default: the checkout). PYTHON: python3. README.md says more.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd) || exit 2
root=$(dirname "$(dirname "$here")")
bin=$(cd "${KVC_BIN:-$root}" && pwd) || exit 2
SAMPLES=$root/samples
PYTHON=${PYTHON:-python3}
CLI_TESTS=$here
PATH=$bin:$PATH
export SAMPLES CLI_TESTS PYTHON PATH
unset KVC_BIN KVC_CUDA_LIBRARY KVC_KERNEL KVC_MODEL KVC_PROFILE_PATH

bless=0
if [ "${1-}" = -u ]; then
    bless=1
    shift
fi
for tool in kvc-pack kvc-unpack kvc-dump kvc-diff; do
    [ -x "$bin/$tool" ] || { echo "run.sh: $bin/$tool is missing: run make, or set KVC_BIN" >&2; exit 2; }
done
[ $# -gt 0 ] || set -- $(cd "$here" && for cmd in */cmd; do dirname "$cmd"; done)

work=$(mktemp -d "${TMPDIR:-/tmp}/kvc-cli.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

# Line by line, each against a shell pattern.
matches() {
    exec 3<"$1" 4<"$2"
    while IFS= read -r pattern <&3; do
        IFS= read -r line <&4 || return 1
        case $line in
        $pattern) ;;
        *) return 1 ;;
        esac
    done
    ! IFS= read -r line <&4
}

# compare NAME STREAM: does what the test printed there agree with what stands beside it?
compare() {
    want=$here/$1/$2
    got=$work/$2
    if [ -f "$want.glob" ]; then
        matches "$want.glob" "$got" && return 0
        diff -u --label "expected (patterns)" --label "$2" "$want.glob" "$got"
        return 1
    fi
    if [ $bless = 1 ]; then
        if [ -s "$got" ]; then cp "$got" "$want"; else rm -f "$want"; fi
        return 0
    fi
    [ -f "$want" ] || want=/dev/null
    cmp -s "$want" "$got" || { diff -u -a --label expected --label "$2" "$want" "$got"; return 1; }
}

# Prints what is wrong with test $1, nothing when it passed; 77 when it was skipped.
run_one() {
    [ -f "$here/$1/cmd" ] || { echo "there is no $1/cmd"; return 1; }
    area=$work/area
    rm -rf "$area"
    mkdir -p "$area/test" "$area/spool"
    (
        cd "$area/test" || exit
        exec env TMPDIR="$area/spool" sh -ec '. "$1"; . "$2"' "$1" "$here/lib.sh" "$here/$1/cmd"
    ) </dev/null >"$work/stdout" 2>"$work/stderr"
    code=$?
    [ $code != 77 ] || return 77
    bad=0
    want_code=0
    [ ! -f "$here/$1/exit" ] || want_code=$(cat "$here/$1/exit")
    [ "$code" = "$want_code" ] || { echo "exit status $code, expected $want_code"; bad=1; }
    compare "$1" stdout || bad=1
    compare "$1" stderr || bad=1
    left=$(ls -A "$area" "$area/spool" | grep -v -e : -e '^$' -e '^test$' -e '^spool$')
    [ -z "$left" ] || { echo "files outside the test's directory: $left"; bad=1; }
    return $bad
}

passed=0 failed=0 skipped=0
for name; do
    name=${name%/}
    run_one "$name" >"$work/report"
    case $? in
    0) passed=$((passed + 1)) ;;
    77)
        skipped=$((skipped + 1))
        echo "skip $name: $(tail -n 1 "$work/stderr")"
        ;;
    *)
        failed=$((failed + 1))
        echo "FAIL $name"
        sed 's/^/    /' "$work/report"
        ;;
    esac
done
tail=
[ $skipped = 0 ] || tail=", $skipped skipped"
echo "$passed passed, $failed failed$tail"
[ $failed = 0 ]
