#!/bin/sh
# check-format.sh [--apply]: compares the C code with what clang-format makes of it by .clang-format, and prints the files that
# differ and the share of their lines; --apply formats the files. CLANG_FORMAT names the program; without it the one in PATH is
# taken, else that of PyPI's package clang-format in PYTHON.
set -eu
PYTHON=${PYTHON:-python3}
program=${CLANG_FORMAT:-}
[ -n "$program" ] || program=$(command -v clang-format || true)
[ -n "$program" ] ||
    program=$("$PYTHON" -c 'import clang_format, os; print(os.path.join(os.path.dirname(clang_format.__file__), "data", "bin", "clang-format"))' \
        2>/dev/null || true)
version=$([ -z "$program" ] || "$program" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)[.].*/\1/p')
if [ "${version:-0}" -lt 14 ]; then
    echo "SKIPPED: no clang-format 14 or later (apt-get install clang-format, or pip install clang-format)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

files=$(find kernels codecs formats cli tests \( -name '*.[ch]' -o -name '*.cu' \) | sort)
if [ "${1-}" = --apply ]; then
    # shellcheck disable=SC2086
    "$program" -i --style=file $files
    exit
fi
lines=0 differing=0 changed=0
for file in $files; do
    n=$("$program" --style=file "$file" | diff "$file" - | grep -c '^[<>]' || true)
    lines=$((lines + $(wc -l <"$file")))
    [ "$n" != 0 ] || continue
    differing=$((differing + 1)) changed=$((changed + n))
    echo "$file: $n lines of the difference" >&2
done
if [ $changed != 0 ]; then
    echo "$differing files are not formatted ($changed of $lines lines, old and new): make format" >&2
    exit 1
fi
echo "format: ok"
