#!/bin/sh
# profile.sh BUILD_DIR smollm2|gemma|qwen OUT: makes the profile of a model that table.py knows, with predictors (kvc-profile(1), make),
# from texts that Debian and Python bring. Not for texts that judge a profile (judged_texts.py): they must not be among these. What is
# interrupted goes on in build/MODEL-profile when it is called again.
#
# BACK: layers back (default 1; of gemma 2, as layers of two kinds take turns; of qwen "1 2": two profiles, the second OUT-2.kvcp).
# PYTHON: one that has PyTorch; else the virtual environment of run.sh is made. THREADS: of PyTorch.
set -u
if [ $# -ne 3 ] || [ ! -x "$1/kvc-profile" ]; then
    echo "Usage: profile.sh BUILD_DIR smollm2|gemma|qwen OUT    BUILD_DIR holds kvc-profile" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
tools=$(cd "$1" && pwd) || exit 2
model=$2 out=$3 backs=${BACK:-1}
case $model in
smollm2) python=$(sh "$here/torch.sh") || exit 2 ;;
gemma) python=$(sh "$here/torch.sh" gemma) && backs=${BACK:-2} || exit 2 ;;
qwen)
    backs=${BACK:-1 2}
    python=$(sh "$here/torch.sh") && "$python" "$here/qwen.py" >/dev/null || {
        echo "SKIPPED: the profile of Qwen is not made: its weights, or PyTorch, cannot be had"
        exit 0
    }
    ;;
*) echo "profile.sh: no model '$model'" >&2; exit 2 ;;
esac
export PYTHONDONTWRITEBYTECODE=1
state=$here/../../build/$model-profile
mkdir -p "$here/../../build/quality" "$(dirname "$out")" || exit 2
weights=$(cd "$here" && "$python" -c 'import sys, lm; print(lm.MODELS[sys.argv[1]][1](sys.argv[2]))' "$model" "$here/../../build/quality") ||
    exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

list=$(PYTHON="$python" sh "$here/profile_texts.sh" "$model" "$work") || exit 2
measure=$(echo "$list" | sed -n '/^$/{=;q;}')
# shellcheck disable=SC2086
set -- $list
for back in $backs; do
    path=$out
    [ "$back" = "${backs%% *}" ] || path=${out%.kvcp}-$back.kvcp
    if [ "$model" = qwen ]; then precision=; else precision=--float32; fi
    "$python" "$here/../../share/make_profile" --state="$state" --resume --keep --force --measure=$((measure - 1)) --back="$back" \
        --kvc-profile="$tools/kvc-profile" --threads="${THREADS:-0}" ${precision:+"$precision"} -o "$path" "$weights" "$@" || exit 2
done
rm -r "$state"
