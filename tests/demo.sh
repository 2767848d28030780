#!/bin/sh
# demo.sh: the main job on real samples: pack, look inside, unpack, compare, and the size that each preset makes. Run by `make demo`.
set -eu
root=$(pwd)
samples=$root/samples
profile=$samples/smollm2-135m-instruct-predict.kvcp
queries=$samples/prompt-queries.kvc
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp samples/slot-f16.bin "$dir/slot.bin"
cp samples/transformers-16.safetensors "$dir/transformers.safetensors"
cd "$dir"
PATH="$root:$PATH"
run() {
    printf '\n$ %s\n' "$*" | sed "s,$samples,samples,g"
    "$@"
}
size() { wc -c <"$1" | tr -d ' '; }

# row NAME KVC-PACK-OPTION...: packs the sample so and prints a row of the table.
row() {
    name=$1
    shift
    kvc-pack -q -f "$@" -o row.kvc prompt.safetensors
    printf '%s %s\n' "$(size prompt.safetensors)" "$(size row.kvc)" |
        awk -v name="$name" '{ printf "%-16s %8d %7.2f\n", name, $2, $1 / $2 }'
}

printf '\nA prompt of 512 tokens, as transformers computes its cache: lossless.\n'
run kvc-unpack -o prompt.safetensors "$samples/prompt.safetensors.kvc"
run kvc-pack -v prompt.safetensors
run kvc-dump prompt.safetensors.kvc
run kvc-unpack -v -o again.safetensors prompt.safetensors.kvc
run cmp prompt.safetensors again.safetensors
run kvc-diff prompt.safetensors prompt.safetensors.kvc
echo "(the same: no output, exit status 0)"

printf '\nLossy: smaller, and what it does to attention.\n'
run kvc-pack -v -r kivi4 -o kivi4.kvc prompt.safetensors
run kvc-diff --queries="$queries" prompt.safetensors kivi4.kvc || [ $? = 1 ]

printf '\nA slot of llama.cpp, and the same prompt in the cache of another engine: equal but for rounding.\n'
run kvc-pack -v slot.bin
run kvc-diff --abs=0.02 --layers=0-1 slot.bin transformers.safetensors || [ $? = 1 ]

printf '\nEvery preset on the prompt: bytes, and how many times smaller. What each costs the model: kvc-quality(7).\n\n'
printf '%-16s %8s %7s\n' recipe bytes ratio
for recipe in fast split; do row $recipe -r $recipe; done
echo "lossy, no profile:"
for recipe in think gear4 gear-l4 kivi4 gear think-kivi kcvt4 gear-l zipcache kivi2; do
    row $recipe -r $recipe --queries="$queries"
done
echo "lossy, with the model's profile:"
row near-lossless -r near-lossless --profile="$profile"
row small -r small --profile="$profile"
row tiny -r tiny --profile="$profile"
echo "(minicache needs neighbouring layers and hidden needs hidden states, which the sample has not)"
