#!/bin/sh
# run.sh BUILD SET REASON: the tests of the layer of simt.h, and the decoder's tests over the layer. SET: quick, the stored files;
# whole, all of tests/unit/test_load.c; cuda, tests/cuda/test_cuda.c instead. REASON not empty: says why nothing was tested.
set -u
build=$1/tests/simt
if [ -n "$3" ]; then
    echo "SKIPPED: the code for GPUs is not run on the host: $3"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
passed=0 failed=0
scratch=$(mktemp -d)
log=$scratch/log
trap 'rm -rf "$scratch"' EXIT
trap 'exit 2' HUP INT TERM

run() { # run NAME COMMAND...
    name=$1
    shift
    if "$@" >"$log" 2>&1; then
        echo "ok   $name"
        passed=$((passed + 1))
    else
        echo "FAIL $name"
        cat "$log"
        failed=$((failed + 1))
    fi
}

decode() { # decode FILE...
    for file; do
        run "${file#"$scratch"/}" "$build/test_load" "$file"
    done
}

# Files that the decoder needs beside those that are stored.
decode_made() {
    # four adjacent channels at a time (kernels/device/decode_quant.h)
    run "packing" "$1/kvc-pack" -q -r quant:kivi:bits=4 --layers=0-3 -o "$scratch/quant.kvc" samples/transformers-16.safetensors
    # K that is rotated by halves, of more than two layers
    run "packing predicted layers" "$1/kvc-pack" -q -r cross --layers=0-3 --profile=samples/smollm2-135m-instruct-predict.kvcp \
        -o "$scratch/cross.kvc" samples/transformers-16.safetensors
    run "making inputs" "$build/make_inputs" "$scratch"
    decode "$scratch"/*.kvc
}

run "warps on the host" "$build/test_simt"
[ "$2" = cuda ] || run "packing out of memory of a device" "$build/test_device_pack"
case $2 in
quick)
    decode_made "$1"
    decode samples/*.kvc tests/golden/*.kvc
    ;;
whole)
    decode_made "$1"
    run "loading" "$build/test_load"
    ;;
cuda) KVC_TEST_CUDA_BIG=0 run "GPU's tests" "$build/test_cuda" tests/golden/*.kvc samples/*.kvc ;;
esac
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
