#!/bin/sh
# test.sh NVCC [TEST]: runs test_cuda on device 0 over all stored files, and again, without the big cache, under each tool of
# NVIDIA's compute-sanitizer where that is found in PATH or beside NVCC. Standard output is test_cuda's JSON.
# NVCC empty: says that nothing was tested.
set -u
nvcc=$1
if [ -z "$nvcc" ]; then
    echo "SKIPPED: nothing is decoded on a GPU: no nvcc, or CUDA=0"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
"$2" tests/golden/*.kvc samples/*.kvc >build/test-cuda.json
status=$?
cat build/test-cuda.json
grep -q '^{' build/test-cuda.json || exit $status # skipped
sanitizer=$(PATH="$PATH:$(dirname "$nvcc")" command -v compute-sanitizer)
[ -n "$sanitizer" ] || echo "SKIPPED: compute-sanitizer is neither in PATH nor beside $nvcc" >&2
for tool in ${sanitizer:+memcheck racecheck initcheck synccheck}; do
    if KVC_TEST_CUDA_BIG=0 "$sanitizer" --tool "$tool" --error-exitcode 99 --target-processes all "$2" tests/golden/*.kvc \
        samples/*.kvc >build/test-cuda.log 2>&1; then
        echo "$tool: clean" >&2
    else
        echo "FAIL $tool" >&2
        cat build/test-cuda.log >&2
        status=1
    fi
done
exit $status
