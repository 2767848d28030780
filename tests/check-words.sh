#!/bin/sh
# check-words.sh [FILE...]: finds words in comments and documents that are not to be used, pages that documents name and that
# do not exist, links that lead nowhere, and stages without a row in codecs/README.md. Without FILE it checks all files of the tree. Of C files only comments
# count; of documents everything outside of code blocks.
set -eu

# A word or words as an extended regular expression, and what to write instead. One a line. "At least" and "least squares" are allowed.
words='
behind = after
at hand = available, current
great|greatest = large, maximum
least = minimum
turned = rotated
goes on to say = predicts
goes with = matches
comes? to be = is made
what there is = all
of a kind = of one type
frontier = a source that readers have
'

# Prints FILE:LINE:TEXT of every line that is a comment or text, without what is set as code.
prose() {
    case $1 in
    *.c | *.h | *.cu)
        awk -v f="$1" '{
            text = ""; rest = $0
            while (rest != "") {
                if (open) {
                    end = index(rest, "*/")
                    text = text (end ? substr(rest, 1, end - 1) : rest)
                    rest = end ? substr(rest, end + 2) : ""
                    if (end) open = 0
                } else {
                    begin = index(rest, "/*")
                    rest = begin ? substr(rest, begin + 2) : ""
                    if (begin) open = 1
                }
            }
            if (text != "") print f ":" NR ":" text
        }' "$1"
        ;;
    *.md)
        awk -v f="$1" '/^```/ { code = !code }
            !code { gsub(/`[^`]*`/, ""); print f ":" NR ":" $0 }' "$1"
        ;;
    *.[1-9]) awk -v f="$1" '/^\.Bd -literal/ { code = 1 } /^\.Ed/ { code = 0 } !code { print f ":" NR ":" $0 }' "$1" ;;
    *) awk -v f="$1" '/^[ \t]*#/ { print f ":" NR ":" $0 }' "$1" ;;
    esac
}

if [ $# = 0 ]; then
    # shellcheck disable=SC2046
    set -- $(find kernels codecs formats cli tests samples man README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md BENCHMARKS.md python/*.md share/*.md Makefile -type f ! -name check-words.sh \( -name '*.[ch]' -o \
        -name '*.cu' -o -name '*.md' -o -name '*.[157]' -o -name '*.py' -o -name '*.sh' -o -name '*.mk' -o -name cmd -o \
        -name Makefile \) | sed 's|^[.]/||' | sort)
fi
for f; do prose "$f"; done | awk -v words="$words" '
    BEGIN {
        n = split(words, line, "\n")
        for (i = 1; i <= n; i++)
            if (split(line[i], half, " = ") == 2) { pattern[++patterns] = half[1]; instead[patterns] = half[2] }
    }
    {
        place = $0
        sub(/^[^:]*:[0-9]*:/, "", $0)
        place = substr(place, 1, length(place) - length($0))
        text = " " tolower($0) " "
        gsub(/at least|least squares/, "", text)
        for (i = 1; i <= patterns; i++)
            if (text ~ "[^a-z0-9_](" pattern[i] ")[^a-z0-9_]") {
                print place " \"" pattern[i] "\": write " instead[i]
                found = 1
            }
    }
    END { exit found }' >&2 || exit 1

# Prints FILE: PAGE for each page in Markdown, named by its path from the top folder, that does not exist. codecs/stages/NAME/NAME.md is
# the page of every stage, wherever it is; of a pattern one file suffices.
stages=$(sed -n 's/^STAGE(\([a-z]*\)).*/\1/p' codecs/stages.def)
missing_pages() {
    for document; do
        case $document in
        *.md | *.[1-9]) ;;
        *) continue ;;
        esac
        grep -oE '(^|[^A-Za-z0-9_/-])(\.\./)*(codecs|formats|kernels|samples|tests|python|packaging|share|man)/[A-Za-z0-9_*/.-]+\.md' "$document" |
            sed 's/^[^A-Za-z.]//; s|^\(\.\./\)*||' | sort -u | while read -r page; do
            case $page in
            *NAME*) for stage in $stages; do echo "codecs/*/*/$stage.md"; done ;;
            *) echo "$page" ;;
            esac
        done | while read -r page; do
            # shellcheck disable=SC2086 # a pattern is expanded
            set -- $page
            [ -e "$1" ] || echo "$document: there is no $page"
        done
    done
}

# Prints the anchors of a page in Markdown: its headings in lower case, without punctuation, with dashes for spaces.
anchors() {
    awk '/^```/ { code = !code } !code && sub(/^#+ /, "") { h = tolower($0); gsub(/[^a-z0-9 _-]/, "", h); gsub(/ /, "-", h); print h }' "$1"
}

# Prints FILE: LINK for each relative link of a page in Markdown that leads to no file, or to no heading of one.
broken_links() {
    for document; do
        case $document in *.md) ;; *) continue ;; esac
        grep -oE '\]\([^) ]+\)' "$document" | sed 's/^](//; s/)$//' | sort -u | while read -r link; do
            case $link in *://* | mailto:*) continue ;; esac
            page=$document path=${link%%#*}
            [ -z "$path" ] || page=$(dirname "$document")/$path
            case $link in *#*) anchors "$page" | grep -qxF "${link#*#}" ;; *) [ -e "$page" ] ;; esac 2>/dev/null ||
                echo "$document: the link $link leads nowhere"
        done
    done
}
missing=$(missing_pages "$@"; broken_links "$@")
for stage in $stages; do
    grep -q "^| \`$stage\` |" codecs/README.md || missing="$missing
codecs/README.md: no row of the stage $stage"
done
[ -z "$missing" ] || { echo "$missing" >&2; exit 1; }
echo "words: ok ($# files)"
