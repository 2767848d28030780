#!/bin/sh
# demo.sh: the main job on real samples: pack, look inside, unpack, compare. Run by `make demo`.
set -eu
root=$(pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp samples/slot-f16.bin "$dir/slot.bin"
cp samples/transformers-16.safetensors "$dir/transformers.safetensors"
cd "$dir"
PATH="$root:$PATH"
run() {
    printf '\n$ %s\n' "$*"
    "$@"
}
run kvc-pack -v slot.bin
run kvc-dump slot.bin.kvc
run kvc-unpack -v -o again.bin slot.bin.kvc
run cmp slot.bin again.bin
run kvc-diff slot.bin slot.bin.kvc
echo "(the same: no output, exit status 0)"
printf '\nThe same prompt in the cache of another engine: equal but for rounding.\n'
run kvc-diff --abs=0.02 --layers=0-1 slot.bin transformers.safetensors || [ $? = 1 ]
