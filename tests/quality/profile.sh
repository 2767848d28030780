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
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') || exit 2
export PYTHONDONTWRITEBYTECODE=1
state=$here/../../build/$model-profile
mkdir -p "$here/../../build/quality" "$(dirname "$out")" || exit 2
weights=$(cd "$here" && "$python" -c 'import sys, lm; print(lm.MODELS[sys.argv[1]][1](sys.argv[2]))' "$model" "$here/../../build/quality") ||
    exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

# Other languages: the translated questions of debconf, base-passwd and libc6, a text for each, and one of the beginnings of all.
for language in fr es it nl pl sv pt de; do
    awk -v key="^Description-$language.UTF-8:" '/^[A-Z]/ { on = $0 ~ key } on { sub(/^Description-[^:]*: */, ""); sub(/^ /, ""); print }' \
        /var/lib/dpkg/info/debconf.templates /var/lib/dpkg/info/base-passwd.templates /var/lib/dpkg/info/libc6*.templates \
        >"$work/debconf.$language"
    [ $language = de ] || { head -c 1500 "$work/debconf.$language"; echo; } >>"$work/debconf.languages"
done

# Prose of licences, programs, reference text, tables and headers: base-files, python3, perl-doc, tzdata, libc6-dev. The first make the
# metric, each of 2560 tokens; all of them the predictors.
metric="/usr/share/common-licenses/MPL-2.0 $library/argparse.py /usr/share/perl/5.36/pod/perldiag.pod
    /usr/share/common-licenses/GFDL-1.3 $work/debconf.languages /usr/share/zoneinfo/tzdata.zi $library/pydoc_data/topics.py
    /usr/include/elf.h $library/tarfile.py $library/html/entities.py"
more="/usr/share/common-licenses/Apache-2.0 /usr/share/common-licenses/Artistic /usr/share/common-licenses/CC0-1.0
    $library/subprocess.py $library/ast.py $library/typing.py $library/ipaddress.py $library/email/message.py
    $library/asyncio/base_events.py $library/statistics.py $library/encodings/cp437.py $library/turtle.py
    $library/_pydecimal.py $library/pickletools.py $library/tkinter/__init__.py /usr/share/zoneinfo/leapseconds
    /usr/share/zoneinfo/iso3166.tab /usr/include/stdlib.h /usr/include/unistd.h /etc/services
    $work/debconf.fr $work/debconf.es $work/debconf.it $work/debconf.nl $work/debconf.pl $work/debconf.sv
    $work/debconf.pt ${GERMAN-$work/debconf.de}"

# A model that knows many languages also gets the translated messages of dpkg, apt and coreutils, which are sentences.
if [ "$model" = qwen ]; then
    for language in fr zh_CN es ru ja de it pl ko; do
        "$python" -c 'import gettext, sys
for name in ("dpkg", "apt", "coreutils"):
    with open(f"/usr/share/locale/{sys.argv[1]}/LC_MESSAGES/{name}.mo", "rb") as f:
        texts = [t for t in gettext.GNUTranslations(f)._catalog.values() if isinstance(t, str) and t.isprintable()]
    sys.stdout.buffer.write("".join(t + "\n" for t in texts if len(t.encode()) > 40).encode())' \
            "$language" >"$work/messages.$language" || exit 2
        case $language in
        fr | zh_CN | es) metric="$metric $work/messages.$language" ;;
        *) more="$more $work/messages.$language" ;;
        esac
    done
fi

# shellcheck disable=SC2086
set -- $metric
measure=$#
# shellcheck disable=SC2086
set -- "$@" $more
for back in $backs; do
    path=$out
    [ "$back" = "${backs%% *}" ] || path=${out%.kvcp}-$back.kvcp
    if [ "$model" = qwen ]; then precision=; else precision=--float32; fi
    "$python" "$here/../../share/make_profile" --state="$state" --resume --keep --force --measure="$measure" --back="$back" \
        --kvc-profile="$tools/kvc-profile" --threads="${THREADS:-0}" ${precision:+"$precision"} -o "$path" "$weights" "$@" || exit 2
done
rm -r "$state"
