#!/bin/sh
# big-endian.sh: decoded bytes do not depend on the byte order of the machine. The second reader (tests/engine/kvc_reader.py) reads the
# conformance set under a big-endian Python, of s390x, under qemu. kvc's own code is not compiled: kernels/target.h refuses it, and says so
# here if there is a compiler for s390x.
set -eu
. tests/foreign.sh
folder=$(pwd)/build/s390x
packages="python3-numpy python3-xxhash python3-zstandard"
libraries=/usr/lib/s390x-linux-gnu

skip() {
    echo "SKIPPED: big endian is not tested: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
sh tests/deps.sh check big-endian || skip "packages are missing"
command -v apt-get >/dev/null || skip "there is no apt-get to get a Python for s390x with"
foreign_unpack "$folder" s390x "$packages" || skip "a Python for s390x cannot be downloaded"

python() { # python ARGUMENTS...
    qemu-s390x -L "$folder/root" -E LD_LIBRARY_PATH="$libraries/lapack:$libraries/blas" -E PYTHONDONTWRITEBYTECODE=1 \
        "$folder/root/usr/bin/python3" "$@"
}
[ "$(python -c 'import sys; print(sys.byteorder)')" = big ] || { echo "no big-endian Python runs" >&2; exit 1; }
if command -v s390x-linux-gnu-gcc >/dev/null; then
    # it has no headers of the C library, which this file does not need
    if s390x-linux-gnu-gcc -E -x c kernels/target.h 2>&1 >/dev/null | grep -q 'error: .*needs a 64-bit little-endian machine'; then
        echo "compiling for s390x is refused: ok"
    else
        echo "compiling for s390x is not refused" >&2
        exit 1
    fi
fi
python tests/conformance/run.py --second-reader
