#!/bin/sh
# check-layers.sh: proves from the #include lines that layers point one way: kernels <- codecs <- formats <- cli.
set -eu
status=0
check() { # check LAYER ALLOWED...: files of LAYER include from ALLOWED only
    layer=$1
    allowed=$(echo "$*" | tr ' ' '|')
    bad=$(find "$layer" -name '*.[ch]' -o -name '*.cu' | xargs grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' |
        grep -vE "\"($allowed)/[a-z0-9_./-]+\"" || true)
    if [ -n "$bad" ]; then
        echo "$layer may include from: $*; but:" >&2
        echo "$bad" >&2
        status=1
    fi
}
check kernels
check codecs kernels
check formats codecs kernels
check cli formats codecs kernels
if grep -nE '#[[:space:]]*include[[:space:]]*"' formats/kvc.h formats/kvc_cuda.h; then
    echo "kvc.h and kvc_cuda.h are installed alone and may include nothing of the project's" >&2
    status=1
fi
if grep -nE '#[[:space:]]*include[[:space:]]*"formats/cuda/' formats/*.[ch] cli/*.[ch]; then
    echo "only libkvc_cuda has what is in formats/cuda" >&2
    status=1
fi
[ $status = 0 ] && echo "layers: ok"
exit $status
