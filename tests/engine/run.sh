#!/bin/sh
# run.sh BUILD_DIR [TEST...]: runs the engine tests with the tools in BUILD_DIR; see README.md.
set -u
if [ $# -lt 1 ] || [ ! -x "$1/kvc-pack" ]; then
    echo "Usage: run.sh BUILD_DIR [TEST...]    BUILD_DIR holds kvc-pack and the other tools" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
build=$(cd "$1" && pwd) || exit 2
shift
venv=${KVC_ENGINE_VENV:-$here/../../build/engine-venv}
python=$venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

# install FILE OPTION...: once for each content of FILE.
install() {
    stamp=$venv/kvc-$(basename "$1")
    cmp -s "$1" "$stamp" && return 0
    echo "installing $(basename "$1") into $venv"
    file=$1
    shift
    "$python" -m pip install -q "$@" -r "$file" && cp "$file" "$stamp"
}

if [ ! -x "$python" ] && ! ${PYTHON:-python3} -m venv "$venv"; then
    echo "run.sh: cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2
    exit 2
fi
install "$here/requirements.txt" --no-deps || exit 2
if [ "${KVC_ENGINE_FULL:-0}" = 1 ]; then
    install "$here/requirements-transformers.txt" || exit 2
fi
slot=${KVC_LONG_SLOT:-$here/../../build/engine/slot-2000.bin}
exec "$python" "$here/test_engine.py" --tools "$build" --long-slot "$slot" "$@"
