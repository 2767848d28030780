#!/bin/sh
# check-symbols.sh STATIC... SHARED HEADER [SHARED HEADER]...: libraries define kvc_ symbols only; a shared one exports exactly the
# functions that its HEADER declares, as versioned symbols.
set -eu
status=0
while [ "$1" != "${1%.a}" ]; do
    bad=$(nm -g --defined-only "$1" | awk 'NF == 3 && $3 !~ /^(kvc_|__(asan|odr_asan|tsan|ubsan)|_ZTS)/ {print $3}')
    if [ -n "$bad" ]; then
        echo "symbols without the kvc_ prefix in $1:" >&2
        echo "$bad" >&2
        status=1
    fi
    shift
done
declared=$(mktemp) exported=$(mktemp)
while [ $# -gt 1 ]; do
    sed -n 's/^KVC_[A-Z_]*API [^(]*[ *]\(kvc_[a-z0-9_]*\)(.*/\1/p' "$2" | sort >"$declared"
    nm -D --defined-only "$1" | awk '$2 != "A" {print $3}' | sort >"$exported" # A: the version itself
    if grep -v '@@KVC_[0-9]*$' "$exported" >&2; then
        echo "exported by $1 without a version" >&2
        status=1
    fi
    sed -i 's/@@.*//' "$exported"
    if ! diff "$declared" "$exported" >&2; then
        echo "declared in $2 (<) and exported by $1 (>) differ" >&2
        status=1
    fi
    shift 2
done
rm -f "$declared" "$exported"
[ $status = 0 ] && echo "symbols: ok"
exit $status
