#!/bin/sh
# run.sh: runs the command line tests, NAME/cmd with what it must print and return. Not for unit tests.
#
#   tests/cli/run.sh [-u] [TEST...]      -u: take what exact tests print as what they must print
#
# KVC_BIN: directory of the tools (default: the checkout). PYTHON: python3. JOBS: tests at a time (default: one a core).
# README.md says more.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd) || exit 2
root=$(dirname "$(dirname "$here")")
bin=$(cd "${KVC_BIN:-$root}" && pwd) || exit 2
SAMPLES=$root/samples
PYTHON=${PYTHON:-python3}
# The interpreter itself: a name in PATH may be a script that looks for it each time.
[ -n "${KVC_CLI_WORK-}" ] || PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)') || exit 2
CLI_TESTS=$here
PATH=$bin:$PATH
# Sizes and offsets are those that zstd 1.5.4 makes. Another one may make others: near.py.
[ -n "${KVC_CLI_WORK-}" ] || OTHER_ZSTD=$("$PYTHON" -I -S -c 'import ctypes
print({10504: ""}.get(ctypes.CDLL("libzstd.so.1").ZSTD_versionNumber(), 1))' 2>/dev/null) || OTHER_ZSTD=
export SAMPLES CLI_TESTS OTHER_ZSTD PYTHON PATH
unset KVC_BIN KVC_CUDA_LIBRARY KVC_KERNEL KVC_MODEL KVC_RECIPE KVC_THREADS KVC_STORE KVC_STORE_BACKENDS XDG_DATA_HOME
KVC_PROFILE_PATH=none # no profile of this machine changes a test; a test that unsets it has a HOME of its own
export KVC_PROFILE_PATH

for tool in kvc-pack kvc-unpack kvc-dump kvc-diff kvc-store kvc-profile; do
    [ -x "$bin/$tool" ] || { echo "run.sh: $bin/$tool is missing: run make, or set KVC_BIN" >&2; exit 2; }
done
[ -n "${KVC_CLI_WORK-}" ] || case $(kvc-dump --nonsense 2>&1) in *"unrecognized option '--nonsense'"*) OTHER_LIBC= ;; *) OTHER_LIBC=1 ;; esac
export OTHER_LIBC

bless=0
if [ "${1-}" = -u ]; then
    bless=1
    shift
    [ -z "$OTHER_ZSTD$OTHER_LIBC" ] || { echo "run.sh: -u wants glibc and zstd 1.5.4, whose words and sizes the tests expect" >&2; exit 2; }
fi
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(cd "$here" && for cmd in */cmd; do dirname "$cmd"; done)

# Line by line, each against a shell pattern.
matches() {
    exec 3<"$1" 4<"$2"
    while IFS= read -r pattern <&3; do
        IFS= read -r line <&4 || return 1
        # shellcheck disable=SC2254
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
    cmp -s "$want" "$got" && return 0
    [ -n "$OTHER_ZSTD" ] && "$PYTHON" -I -S "$here/near.py" "$want" "$got" && return 0
    diff -u -a --label expected --label "$2" "$want" "$got"
    return 1
}

# Puts the words of glibc's messages in the place of musl's, in which the same is said.
as_glibc() {
    [ -n "$OTHER_LIBC" ] || return 0
    sed -i -e "s/unrecognized option: \(.\)$/invalid option -- '\1'/" -e "s/unrecognized option: \(..*\)/unrecognized option '--\1'/" \
        -e "s/option requires an argument: \(.\)$/option requires an argument -- '\1'/" \
        -e "s/option requires an argument: \(..*\)/option '--\1' requires an argument/" \
        -e "s/option does not take an argument: \(.*\)/option '--\1' doesn't allow an argument/" \
        -e "s/option is ambiguous: \(.*\)/option '--\1' is ambiguous/" \
        -e 's/Error loading shared library //' \
        -e 's/: I\/O error$/: Input\/output error/' -e 's/: Out of memory$/: Cannot allocate memory/' "$1"
}

# Prints what is wrong with test $1, nothing when it passed; 77 when it was skipped.
run_one() {
    [ -f "$here/$1/cmd" ] || { echo "there is no $1/cmd"; return 1; }
    area=$work/area
    mkdir -p "$area/test" "$area/spool" "$work/home"
    (
        cd "$area/test" || exit
        exec env HOME="$work/home" TMPDIR="$area/spool" sh -ec '. "$1"; . "$2"' "$1" "$here/lib.sh" "$here/$1/cmd"
    ) </dev/null >"$work/stdout" 2>"$work/stderr"
    code=$?
    [ $code != 77 ] || return 77
    as_glibc "$work/stdout"
    as_glibc "$work/stderr"
    bad=0
    want_code=0
    [ ! -f "$here/$1/exit" ] || want_code=$(cat "$here/$1/exit")
    [ "$code" = "$want_code" ] || { echo "exit status $code, expected $want_code"; bad=1; }
    compare "$1" stdout || bad=1
    compare "$1" stderr || bad=1
    # shellcheck disable=SC2010
    left=$(ls -A "$area" "$area/spool" | grep -v -e : -e '^$' -e '^test$' -e '^spool$')
    [ -z "$left" ] || { echo "files outside the test's directory: $left"; bad=1; }
    return $bad
}

# A worker: one test, what it reports and its status beside its folder.
if [ -n "${KVC_CLI_WORK-}" ]; then
    work=$KVC_CLI_WORK/$1 bless=$KVC_CLI_BLESS
    unset KVC_CLI_WORK KVC_CLI_BLESS
    mkdir "$work" && run_one "$1" >"$work.report"
    echo $? >"$work.status"
    rm -rf "$work/area"
    exit
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/kvc-cli.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM
for name; do echo "${name%/}"; done |
    env KVC_BIN="$bin" KVC_CLI_WORK="$work" KVC_CLI_BLESS=$bless xargs -P "${JOBS:-$(nproc)}" -n 1 sh "$here/run.sh"

passed=0 failed=0 skipped=0
for name; do
    name=${name%/}
    case $(cat "$work/$name.status") in
    0) passed=$((passed + 1)) ;;
    77)
        skipped=$((skipped + 1))
        echo "skip $name: $(tail -n 1 "$work/$name/stderr")"
        ;;
    *)
        failed=$((failed + 1))
        echo "FAIL $name"
        sed 's/^/    /' "$work/$name.report"
        ;;
    esac
done
tail=
[ $skipped = 0 ] || tail=", $skipped skipped"
echo "$passed passed, $failed failed$tail"
[ $failed = 0 ]
