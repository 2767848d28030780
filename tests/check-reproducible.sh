#!/bin/sh
# check-reproducible.sh MAKE: builds the tracked files in two folders, with debugging information, and compares what comes out.
# REPRODUCIBLE_CFLAGS: with which flags (default: those of the Makefile, but without optimisation, which takes long).
set -eu
make=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
for folder in one another/of-a-longer-name; do
    mkdir -p "$root/$folder"
    git ls-files -z | tar --null -T - -c | tar -x -C "$root/$folder"
    (
        cd "$root/$folder"
        $make -s -j"$(nproc)" all CUDA=0 CFLAGS="${REPRODUCIBLE_CFLAGS:--O0 -g}" >log 2>&1 || { cat log >&2; exit 1; }
        sha256sum kvc-dump kvc-pack kvc-unpack kvc-diff kvc-store kvc-profile lib*.a lib*.so.* >>"$root/sums.$(basename "$folder")"
        ! grep -aq "$root" kvc-pack libkvc.a || { echo "a path of the machine is in the output" >&2; exit 1; }
        readelf -S kvc-pack | grep -q debug_info || { echo "no debugging information was built" >&2; exit 1; }
    ) || exit 1
done
set -- "$root"/sums.*
diff "$1" "$2" >&2 || { echo "two builds differ" >&2; exit 1; }
echo "reproducible: ok ($(wc -l <"$1") files)"
