#!/bin/sh
# check-abi.sh MAKE LIBRARY...: compares each LIBRARY, a shared library of this tree, with that of the last release: removed functions and
# changed types are reported, added functions are well. ABI_BASE names the commit to compare with (default: the last tag).
set -eu
make=$1
shift
skip() {
    echo "SKIPPED: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
command -v abidiff >/dev/null || skip "abidiff is not installed (apt-get install abigail-tools)"
git rev-parse --git-dir >/dev/null 2>&1 || skip "this is no git checkout"
base=${ABI_BASE:-$(git describe --tags --abbrev=0 2>/dev/null || true)}
[ -n "$base" ] || skip "there is no tag to compare with; ABI_BASE=COMMIT names a commit"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
git archive "$base" | tar -x -C "$scratch"
(cd "$scratch" && unset MAKEFLAGS MAKELEVEL && $make -s CUDA=0 all >/dev/null)
# what only tools and libraries of the same build use may change
printf '[suppress_%s]\nsymbol_version_regexp = ^KVC_PRIVATE_\n' function variable >"$scratch/private"
for library; do
    old=$(find "$scratch" -maxdepth 1 -name "${library%%.so*}.so.*.*")
    [ -n "$old" ] || { echo "$library: new since $base"; continue; }
    status=0
    abidiff --suppressions "$scratch/private" --no-added-syms --hd1 "$scratch/formats/api" --hd2 formats/api "$old" "$library" || status=$?
    [ $status = 0 ] || { echo "$library differs from that of $base (abidiff's status: $status)" >&2; exit 1; }
done
echo "ABI: as in $base"
