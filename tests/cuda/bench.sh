#!/bin/sh
# bench.sh NVCC [BENCH OPTION...]: rates of libkvc_cuda on device 0, as JSON; then, where $PYTHON has torch with CUDA, a real
# reload (reload.py), as JSON too. NVCC empty, or no device: says that nothing was measured.
set -u
nvcc=$1
if [ -z "$nvcc" ]; then
    echo "SKIPPED: nothing is measured on a GPU: no nvcc, or CUDA=0"
    exit 0
fi
shift
"$@" || exit $?
case " $* " in *" --help "*) exit 0 ;; esac
if ! "${PYTHON:-python3}" -c 'import sys, torch, transformers, safetensors
sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "SKIPPED: no real reload is measured: ${PYTHON:-python3} has no torch with CUDA, transformers and safetensors"
    exit 0
fi
exec "${PYTHON:-python3}" tests/cuda/reload.py
