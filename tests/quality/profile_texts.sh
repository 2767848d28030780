#!/bin/sh
# profile_texts.sh smollm2|gemma|qwen DIR: prints the paths of texts that Debian and Python bring, for a profile of a model, a line each,
# and an empty line between those that make the metric and those that the predictors have besides. Texts that are put together are
# written into DIR. Not for texts that judge a profile (judged_texts.py).
#
# PYTHON: whose library is taken. GERMAN: a German text in place of the one made here, or none if it is empty.
set -u
if [ $# -ne 2 ] || [ ! -d "$2" ]; then
    echo "Usage: profile_texts.sh smollm2|gemma|qwen DIR" >&2
    exit 2
fi
model=$1 work=$2 python=${PYTHON:-python3}
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') || exit 2

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
printf '%s\n' $metric '' $more
