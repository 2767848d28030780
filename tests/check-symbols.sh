#!/bin/sh
# check-symbols.sh STATIC... SHARED HEADER [SHARED HEADER]... [-- BACKEND...]: libraries define kvc_ symbols only. A shared library exports the
# functions that its HEADER (several: with colons between them) declares as symbols of KVC_N, and all else under KVC_PRIVATE_VERSION, for libraries of the same build.
# No function is in two shared libraries: handles cross between them, so there must be one copy of each.
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
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Adds the functions that a library defines, exported or not, to those of all libraries.
note_defined() {
    # names of static functions in headers may repeat: a function counts where some library exports it
    nm --defined-only "$1" | awk '$2 ~ /^[TtWDdBbRr]$/ && $3 ~ /^kvc_/ {sub(/@.*/, "", $3); print $3}' |
        sort -u | sed "s|\$| $1|" >>"$scratch/defined"
    nm -D --defined-only "$1" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' >>"$scratch/global"
}
while [ $# -gt 1 ] && [ "$1" != -- ]; do
    # shellcheck disable=SC2046
    cat $(echo "$2" | tr : ' ') | tr '\n' ' ' | grep -oE 'KVC_[A-Z_]*API [^(;]*\(' |
        sed -n 's/.*[ *]\(kvc_[a-z0-9_]*\)($/\1/p' | sort >"$scratch/declared"
    nm -D --defined-only "$1" | awk '$2 != "A" {print $3}' | sort >"$scratch/all" # A: the version itself
    if grep -v '^kvc_[a-z0-9_]*@@KVC_\([0-9]*\|PRIVATE_[0-9.]*\)$' "$scratch/all" >&2; then
        echo "exported by $1 without a version" >&2
        status=1
    fi
    sed -n 's/@@KVC_[0-9]*$//p' "$scratch/all" >"$scratch/public"
    if ! diff "$scratch/declared" "$scratch/public" >&2; then
        echo "declared in $2 (<) and exported by $1 (>) differ" >&2
        status=1
    fi
    note_defined "$1"
    shift 2
done
[ "${1-}" != -- ] || shift
for backend; do note_defined "$backend"; done
# kvc_store_tier is what each backend is found by
sort -u "$scratch/global" | grep -vx kvc_store_tier >"$scratch/shared"
sort "$scratch/defined" | join - "$scratch/shared" |
    awk '$1 == last { print $1 ": in " library " and in " $2; bad = 1 } { last = $1; library = $2 } END { exit bad }' >&2 || {
    echo "these symbols are defined in two libraries" >&2
    status=1
}
[ $status = 0 ] && echo "symbols: ok"
exit $status
