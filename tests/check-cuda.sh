#!/bin/sh
# check-cuda.sh NVCC [LOG LIBRARY] ARCH...: the kernel, compiled for each ARCH (LOG: what nvcc and ptxas said), compiles without
# a warning and spills no register to memory, and the library needs neither a driver nor CUDA's run-time library nor that of
# C++ to be loaded. NVCC empty: says that nothing was checked.
set -eu
nvcc=$1
shift
if [ -z "$nvcc" ]; then
    echo "SKIPPED: the CUDA kernel is not compiled: no nvcc, or CUDA=0"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
log=$1 library=$2
shift 2
passed=0 failed=0 skipped=0
if grep -i 'warning' "$log"; then
    echo "FAIL the kernel compiles with warnings: see $log"
    failed=$((failed + 1))
else
    passed=$((passed + 1))
fi
for arch in "$@"; do
    if ! "$nvcc" --list-gpu-code | grep -qx "sm_$arch"; then
        echo "SKIPPED: $nvcc knows no sm_$arch"
        skipped=$((skipped + 1))
    # the kernel's functions follow its name
    elif awk -v arch="'sm_$arch'" '
        /Compiling entry function/ { mine = $NF == arch }
        mine && /Function properties/ { name = $NF }
        mine && /spill/ { if ($5 + $9) { print name " spills on " arch ":" $0; spilt = 1 } }
        mine && / registers/ { print "kvc_device_kernel on " arch ": " $5 " registers"; found = 1 }
        END { exit spilt || !found }' "$log"; then
        passed=$((passed + 1))
    else
        echo "FAIL sm_$arch: see $log"
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
