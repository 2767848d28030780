#!/bin/sh
# model.sh BUILD NVCC NVCC_OPTIONS LIBRARY...: a model of the GPU decoder's speed (model.py): the kernel's SASS for sm_90, and how often
# the host's lockstep decoder executes each line when it decodes the sample, packed by four recipes. Measures nothing. nvdisasm
# is that of PATH or of nvcc's folder, else of a Python package in a venv below build/. What is missing: says so, exit status 0.
set -eu
build=$1 nvcc=$2 options=$3
shift 3
work=$build/model-cuda profile=samples/smollm2-135m-instruct-predict.kvcp
python=${PYTHON:-python3}
skip() {
    echo "SKIPPED: no model of the GPU decoder: $1"
    exit 0
}
[ -n "$nvcc" ] || skip "no nvcc, or CUDA=0"
"$nvcc" --list-gpu-code | grep -qx sm_90 || skip "$nvcc knows no sm_90"
command -v gcov >/dev/null || skip "no gcov"
if $CC --version | grep -q clang; then skip "gcov counts lines of gcc only"; fi
PATH=$PATH:$(dirname "$(command -v "$nvcc")")
nvdisasm=$(command -v nvdisasm || true)
if [ -z "$nvdisasm" ]; then
    venv=build/model-cuda-venv
    [ -d $venv/bin ] || "$python" -m venv $venv >/dev/null 2>&1 || skip "no nvdisasm, and no venv for it"
    nvdisasm=$(find $venv -name nvdisasm -type f | head -n 1)
    if [ -z "$nvdisasm" ]; then
        $venv/bin/pip install --quiet nvidia-cuda-nvdisasm >&2 || skip "no nvdisasm, and pip cannot install nvidia-cuda-nvdisasm"
        nvdisasm=$(find $venv -name nvdisasm -type f | head -n 1)
        [ -n "$nvdisasm" ] || skip "nvidia-cuda-nvdisasm has no nvdisasm"
    fi
fi

rm -rf "$work"
mkdir -p "$work"
# shellcheck disable=SC2086 # options are words
"$nvcc" $options -cubin -arch=sm_90 -lineinfo -Xptxas -v '-DKVC_CUDA_BUILD=""' -I. -o "$work/decode.cubin" kernels/device/decode.cu \
    2>"$work/ptxas.log" || { cat "$work/ptxas.log" >&2; exit 1; }
"$nvdisasm" -c -g -gi "$work/decode.cubin" >"$work/decode.sass"

# a libkvc_cuda that decodes on the host (fake.c) and counts lines
$CC -std=c11 -D_GNU_SOURCE -I. -O0 -g -ffp-contract=off -fPIC --coverage -c -o "$work/counted.o" kernels/device/decode_host.c
$CC --coverage -shared -Wl,--exclude-libs,ALL -o "$work/counted.so" "$work/counted.o" "$build/tests/cuda/fake.o" \
    "$build/formats/api/cuda/kvc_cuda.o" "$build/libkvc.a" "$@"
"$build/kvc-unpack" -c samples/prompt.safetensors.kvc >"$work/prompt"
set --
for recipe in fast split kivi4 small; do
    how="-r $recipe"
    # small but for the stage predict: LOOPS of model.py has no loop of predictions
    [ $recipe != small ] || how="-r sink:4,derope@k,center,basis,steps,code --target-kld=0.01"
    # shellcheck disable=SC2086 # a recipe and its options
    "$build/kvc-pack" -q -c $how --profile=$profile "$work/prompt" >"$work/$recipe.kvc"
    rm -f "$work/counted.gcda"
    KVC_CUDA_LIBRARY=$work/counted.so "$build/kvc-unpack" -q -t --device=cuda --profile=$profile "$work/$recipe.kvc"
    gcov --json-format --stdout "$work/counted.o" >"$work/$recipe.json"
    set -- "$@" "$recipe:$work/$recipe.kvc:$work/$recipe.json"
done
exec "$python" tests/cuda/model.py "$work/decode.sass" "$work/ptxas.log" "$work/prompt" "$@"
