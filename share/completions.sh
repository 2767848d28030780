#!/bin/sh
# completions.sh TOOLS OUT: writes completions for bash, zsh and fish below the folder OUT, from the option tables of the tools in the
# folder TOOLS (--list-options). Leaves them out, and says so, if this machine cannot run the tools.
set -eu
export LC_ALL=C
tools=$1 out=$2
rm -rf "$out"
mkdir -p "$out/bash" "$out/zsh" "$out/fish"
"$tools/kvc-pack" --version >/dev/null 2>&1 || {
    echo "completions are left out: this machine cannot run the tools" >&2
    exit 0
}

# rows TOOL: an option a row: name, letter, argument (no, optional, required), values, description; then commands: "-", name.
rows() {
    "$tools/$1" --list-options | awk 'BEGIN { FS = OFS = "\t" } { sub(/(; | \().*/, "", $5); print }'
}

bash_of() {
    awk -F'\t' -v tool="$1" '
        BEGIN { function_name = "_" tool; gsub(/-/, "_", function_name) }
        $1 == "-" { commands = commands " " $2; next }
        {
            all = all " --" $1 ($3 == "required" ? "=" : "")
            names = "--" $1 ($2 != "-" ? " | -" $2 : "")
            if ($3 != "no" && $4 != "") cases = cases "    " names ") words=\"" $4 "\" ;;\n"
            else if ($3 == "required") files = files (files == "" ? "" : " | ") names
        }
        END {
            print "# shellcheck shell=bash"
            print "# bash completion of " tool ", made by completions.sh of kvc"
            print function_name "() {"
            print "    local current=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} words="
            print "    COMPREPLY=()"
            print "    # bash takes --option=value as three words"
            print "    if [[ $current == = ]]; then"
            print "        current="
            print "    elif [[ $option == = && $COMP_CWORD -gt 1 ]]; then"
            print "        option=${COMP_WORDS[COMP_CWORD - 2]}"
            print "    fi"
            print "    case $option in"
            printf "%s", cases
            print "    " files ") return ;; # a file"
            print "    *)"
            print "        [[ $current == -* ]] && words=\"" substr(all, 2) "\""
            if (commands != "") {
                print "        [[ $current == -* ]] || words=\"" substr(commands, 2) "\""
                print "        for option in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do # after a command: files"
                print "            [[ $current != -* && \" $words \" == *\" $option \"* ]] && words="
                print "        done"
            }
            print "        ;;"
            print "    esac"
            print "    [[ $words ]] || return 0 # files"
            print "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")"
            print "    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi"
            print "    return 0"
            print "}"
            print "complete -o default -F " function_name " " tool
        }'
}

zsh_of() {
    awk -F'\t' -v tool="$1" '
        BEGIN { quote = sprintf("%c", 39); print "#compdef " tool; print "# zsh completion of " tool ", made by completions.sh of kvc"; print "_arguments -s -S \\" }
        $1 == "-" { commands = commands " " $2; next }
        {
            text = $5; gsub(quote, quote "\\" quote quote, text); gsub(/\[|\]|:/, "\\\\&", text)
            action = $4 != "" ? ":value:(" $4 ")" : ":file:_files"
            if ($3 == "no") action = ""
            if ($3 == "optional") action = ":" action
            long = "--" $1 ($3 == "required" ? "=" : $3 == "optional" ? "=-" : "")
            if ($2 == "-") print "    " quote long "[" text "]" action quote " \\"
            else print "    " quote "(-" $2 " --" $1 ")" quote "{-" $2 ($3 == "no" ? "" : "+") "," long "}" quote "[" text "]" action quote " \\"
        }
        END {
            if (commands != "") print "    " quote "1:command:(" substr(commands, 2) ")" quote " \\"
            print "    " quote "*:file:_files" quote
        }'
}

fish_of() {
    awk -F'\t' -v tool="$1" '
        BEGIN { quote = sprintf("%c", 39); print "# fish completion of " tool ", made by completions.sh of kvc" }
        $1 == "-" { print "complete -c " tool " -n __fish_use_subcommand -a " $2; next }
        {
            text = $5; gsub(/\\/, "\\\\", text); gsub(quote, "\\" quote, text)
            line = "complete -c " tool ($2 != "-" ? " -s " $2 : "") " -l " $1
            if ($3 == "required") line = line ($4 != "" ? " -x" : " -r")
            if ($3 != "no" && $4 != "") line = line " -a " quote $4 quote
            print line " -d " quote text quote
        }'
}

for tool in kvc-dump kvc-pack kvc-unpack kvc-diff kvc-store kvc-profile; do
    rows $tool >"$out/rows"
    bash_of $tool <"$out/rows" >"$out/bash/$tool"
    zsh_of $tool <"$out/rows" >"$out/zsh/_$tool"
    fish_of $tool <"$out/rows" >"$out/fish/$tool.fish"
done
rm "$out/rows"
