#!/bin/sh
# table.sh BUILD_DIR [OPTION]...: table.py with these options, in a Python that has what it needs; see README.md.
set -u
if [ $# -lt 1 ] || [ ! -x "$1/kvc-pack" ]; then
    echo "Usage: table.sh BUILD_DIR [OPTION of table.py]...    BUILD_DIR holds kvc-pack and the other tools" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
tools=$(cd "$1" && pwd) || exit 2
shift
export PYTHONDONTWRITEBYTECODE=1
gemma=
for option; do
    case $option in --model=gemma | gemma) gemma=gemma ;; esac
done
python=$(sh "$here/torch.sh" $gemma) || exit 2
"$python" -m doctest "$here/table.py" "$here/kvtc.py" || exit 2
exec "$python" "$here/table.py" --tools="$tools" "$@"
