#!/bin/sh
# smoke.sh BENCH FILE...: one run of every table of the benchmark program: it ends well and prints each table's heading.
# Asserts nothing about the numbers.
set -u
bench=$1
shift
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
failed=0 passed=0
if ! "$bench" --quick "$@" >"$log" 2>&1; then
    cat "$log"
    echo "bench --quick: no exit status 0"
    failed=1
fi
has() { # has HEADING
    if grep -q -F -e "$1" "$log"; then passed=$((passed + 1)); else
        echo "bench --quick: no heading '$1'"
        failed=$((failed + 1))
    fi
}
has "; CPU: "
has "compiler: "
has "kernels: "
has "Kernels, one core"
has "Transform codec, 3 heads of 64 channels"
has "Transform codec, 2 heads of 128 channels"
has "The CPU's part of loading"
for file; do
    has "$file, lossy recipes:"
    has "$file, packed by one thread and by two:"
    has "$file, $(awk "BEGIN { printf \"%.1f MB\", $(wc -c <"$file") / 1e6 }"), "
    has "  $(basename "$file") "
done
has "Whole files, headers included: ratio"
[ "$failed" = 0 ] || cat "$log"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
