#!/bin/sh
# real.sh BUILD DATA: packs every real file with every lossless stage, from file and through pipes, and gets it back
# byte for byte; damaged files must be refused with exit 2 and no output.
set -u
bin=$(cd "$1" && pwd)
data=$2
passed=0 failed=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
ok() { passed=$((passed + 1)); }
bad() {
    failed=$((failed + 1))
    echo "FAIL $*"
}
for f in "$data"/llama.cpp/*.bin "$data"/hf/*.safetensors "$data"/hidden/*.safetensors "$data"/npz/smol-64.npz; do
    for recipe in store zstd split fast; do
        if "$bin/kvc-pack" -q -f -r $recipe -o "$dir/a.kvc" "$f" && "$bin/kvc-unpack" -q -f -o "$dir/a" "$dir/a.kvc" &&
            cmp -s "$dir/a" "$f" && "$bin/kvc-pack" -q -r $recipe <"$f" | cmp -s - "$dir/a.kvc" &&
            "$bin/kvc-unpack" -q <"$dir/a.kvc" | cmp -s - "$f" && "$bin/kvc-unpack" -t "$dir/a.kvc" &&
            "$bin/kvc-diff" "$f" "$dir/a.kvc"; then ok; else bad "$recipe $f"; fi
    done
done
# Folders of vLLM: the folder comes back, and K and V are those of transformers.
for d in "$data"/vllm/*/*; do
    case $d in */packed*) from=vllm tokens=32 ;; */old*) from=vllm:shape=2-T-HD tokens=16 ;; *) from=vllm tokens=16 ;; esac
    rm -rf "${dir:?}"/*
    if "$bin/kvc-pack" -q --from=$from --kv-heads=3 -o "$dir/a.kvc" "$d" && "$bin/kvc-unpack" -o "$dir/back" "$dir/a.kvc" &&
        diff -r "$d" "$dir/back" && tar cf - -C "$d" . | "$bin/kvc-pack" -q --from=$from --kv-heads=3 |
        "$bin/kvc-unpack" -o "$dir/through" - && diff -r "$d" "$dir/through" &&
        "$bin/kvc-unpack" -q --lossy-metadata --to=safetensors --tokens=0:$tokens -o "$dir/hf" "$data/hf/smol-gpl3.safetensors" &&
        "$bin/kvc-diff" "$dir/a.kvc" "$dir/hf" && "$bin/kvc-unpack" -q --lossy-metadata --to=vllm -o "$dir/new" "$dir/hf" &&
        "$bin/kvc-diff" "$dir/new" "$dir/hf"; then ok; else bad "$d"; fi
done
rm -rf "${dir:?}"/*
# chunks of LMCache: the same bytes again, and K and V of the model's cache
same_rows() { # same_rows TOKENS FILE
    "$bin/kvc-unpack" -q -f --lossy-metadata --tokens=0:"$1" -o "$dir/rows.safetensors" "$data/hf/smol-gpl3.safetensors" &&
        "$bin/kvc-diff" -q --kv-heads=3 "$2" "$dir/rows.safetensors" || {
        echo "other K or V in $2"
        return 1
    }
}
for f in "$data"/lmcache/fs/*.data "$data"/lmcache/gds/*/*/*.safetensors "$data"/lmcache/gds/61/74; do
    if "$bin/kvc-pack" -q -f --kv-heads=3 -o "$dir/a.kvc" "$f" && rm -rf "$dir/a" &&
        "$bin/kvc-unpack" -q -o "$dir/a" "$dir/a.kvc" && diff -r "$f" "$dir/a" && same_rows 32 "$dir/a.kvc"; then ok; else bad "$f"; fi
    rm -rf "$dir/a"
done
for f in "$data"/damaged/bad-*; do
    case $f in *.pt | *bitflip-data*) continue ;; esac
    rm -rf "${dir:?}"/* && "$bin/kvc-pack" -o "$dir/a.kvc" "$f" >"$dir/out" 2>"$dir/err"
    if [ $? = 2 ] && [ ! -s "$dir/out" ] && grep -q "$(basename "$f")" "$dir/err" && [ "$(ls -A "$dir" | wc -l)" = 2 ]; then
        ok
    else
        bad "$f"
    fi
done
if "$bin/kvc-diff" -q "$data/damaged/bad-bitflip-data.bin" "$data/llama.cpp/v4-q4_1-q5_0.bin"; then
    bad "a flipped bit of data shows no difference"
else
    ok
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
