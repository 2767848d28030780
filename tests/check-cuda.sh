#!/bin/sh
# check-cuda.sh NVCC [LOGS LIBRARY] ARCH...: the kernels, compiled for each ARCH (LOGS: folder with what nvcc and ptxas said of each),
# compile without a warning and spill few registers to memory (SPILLS bytes, stored and loaded: the decoder keeps the place in a run
# there while an operation runs), and the library needs neither a driver nor CUDA's run-time library nor that of
# C++ to be loaded. NVCC empty: says that nothing was checked.
set -eu
SPILLS=512
nvcc=$1
shift
if [ -z "$nvcc" ]; then
    echo "SKIPPED: the CUDA kernels are not compiled: no nvcc, or CUDA=0"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
logs=$1 library=$2
shift 2
passed=0 failed=0 skipped=0
if grep -i 'warning' "$logs"/*.log; then
    echo "FAIL a kernel compiles with warnings"
    failed=$((failed + 1))
else
    passed=$((passed + 1))
fi
for arch in "$@"; do
    if ! "$nvcc" --list-gpu-code | grep -qx "sm_$arch"; then
        echo "SKIPPED: $nvcc knows no sm_$arch"
        skipped=$((skipped + 1))
    # a kernel's functions follow its name
    elif awk -v arch="'sm_$arch'" -v most=$SPILLS '
        FNR == 1 { mine = 0 }
        /Compiling entry function/ { mine = $NF == arch }
        mine && /Function properties/ { name = $NF }
        mine && /spill/ { if ($5 + $9 > most) { print name " spills on " arch ":" $0; spilt = 1 } }
        FNR == 1 { files++ }
        mine && / registers/ { print FILENAME " on " arch ": " $5 " registers"; found++ }
        END { exit spilt || found != files }' "$logs"/*.log; then
        passed=$((passed + 1))
    else
        echo "FAIL sm_$arch: see $logs"
        failed=$((failed + 1))
    fi
done
if readelf -d "$library" | grep -E 'NEEDED.*lib(cuda|cudart|stdc\+\+)\.so'; then
    echo "FAIL $library needs a library that may be missing"
    failed=$((failed + 1))
else
    passed=$((passed + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
