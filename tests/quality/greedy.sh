#!/bin/sh
# greedy.sh BUILD_DIR [OPTION]...: greedy.py with these options, in a Python that has what it needs; see README.md.
set -u
if [ $# -lt 1 ] || [ ! -x "$1/kvc-pack" ]; then
    echo "Usage: greedy.sh BUILD_DIR [OPTION of greedy.py]...    BUILD_DIR holds kvc-pack and the other tools" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
tools=$(cd "$1" && pwd) || exit 2
shift
export PYTHONDONTWRITEBYTECODE=1
python=$(sh "$here/python.sh") || exit 2
"$python" -m doctest "$here/greedy.py" || exit 2
exec "$python" "$here/greedy.py" --tools="$tools" "$@"
