#!/usr/bin/env python3
"""options.py [--check] TOOLS PAGE...: writes the entries of the section OPTIONS of man pages from the tables of options of the
programs in the folder TOOLS (--list-options).

The head of an entry (letter, name, argument) is made from the table. Its text is the page's own, unless a line `.\\" help` begins it:
then it is the help of the table, up to the first "; ". An option that the page does not name gets such an entry, after that of the
option before it in the table, and an entry of an option that is gone is removed. --check writes nothing and returns 1 if a page is
stale."""

import os
import re
import subprocess
import sys

HELP = '.\\" help\n'


def table(program):
    """Returns the options of a program: {name: (letter, argument, help)}, in order."""
    text = subprocess.run([program, "--list-options"], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("-")]
    return {name: (letter, argument, text) for name, letter, _, _, text, argument in rows}


def marked(argument):
    """Returns the mdoc macros of an argument, "FORMAT[:OPTIONS]"."""
    if argument.startswith("[") and not argument.startswith("[="):
        inner, rest = argument[1:].split("]", 1)
        return "Oo %s Oc Ns %s" % (marked(inner), marked(rest))
    out = []
    for part in re.findall(r"[A-Za-z.]+|[^\]]", argument):
        if part == "[":
            out += ["Ns Op"] if out else ["Op"]
        elif part == "|":
            out.append("|")
        elif part.isupper() or part == "..." or "." in part:
            out.append("Ar " + part.lower())
        elif part.isalpha():
            out.append("Cm " + part)
        else:
            attached = part in ",:" or not out or out[-1].endswith("Op")
            out.append(part + " Ns" if attached else "Ns %s Ns" % part)
    return re.sub(r" Ns$", "", " ".join(out))


def head(name, option):
    """Returns the head of an entry: "Fl r Ar recipe , Fl -recipe= Ns Ar recipe"."""
    letter, argument, _ = option
    between = " Ns " if argument.startswith("[=") else "= Ns "
    long = "-" + name + (between + marked(argument) if argument else "")
    if letter == "-":
        return "Fl " + long
    return "Fl %s%s %s" % (letter, " Ar %s , Fl" % argument.lower() if argument else " ,", long)


def help_lines(option):
    """Returns the text of an entry: the help before "; ", as -h has it. Options and the name of the argument get their macros."""
    words, argument = option[2].split("; ")[0].replace("\\", "\\e"), re.escape(option[1])
    pattern = r" ?(?<![^\s(])(--?[a-zA-Z][a-z-]*|%s)([,.;:]?)(?!\S)" % (argument or "(?!)")

    def macro(match):
        word, delimiter = match.groups()
        name = ("Fl " + word[1:]) if word.startswith("-") else ("Ar " + word.lower())
        return "\n.%s%s\n" % (name, " " + delimiter if delimiter else "")

    text = re.sub(pattern, macro, words[0].upper() + words[1:] + ".")
    lines = [line.strip() for line in text.split("\n")]
    lines = ["\\&" + line if re.match(r"\.[^A-Z]", line) else line for line in lines]  # a suffix, and no macro
    return [HELP] + [line + "\n" for line in lines if line]


def names_of(line):
    return list(dict.fromkeys(re.findall(r"(?:Fl|,) -([a-z][a-z-]*)", line)))


def entries(lines):
    """Splits the lines of a section into entries of its outer lists, and what is between them."""
    depth, parts = 0, [[]]
    for line in lines:
        depth -= line.startswith(".El")
        if (depth == 1 and line.startswith(".It")) or (depth == 0 and line.startswith(".El")):
            parts.append([])
        parts[-1].append(line)
        depth += line.startswith(".Bl")
    return parts


def section(lines, options):
    """Returns the section OPTIONS as it should be."""
    seen, parts = set(), []
    for part in entries(lines):
        names = names_of(part[0]) if part[0].startswith(".It Fl") else []
        if names and not seen.issuperset(names):
            known = [name for name in names if name in options]
            if not known:
                continue
            part[0] = ".It %s\n" % " , ".join(head(name, options[name]) for name in known)
            if part[1:2] == [HELP]:
                part[1:] = help_lines(options[known[0]])
            seen.update(names)
        parts.append(part)
    mentioned = set(re.findall(r"(?:Fl|,) -([a-z][a-z-]*)", "".join(line for part in parts for line in part)))
    before = None
    for name, option in options.items():
        if name not in mentioned:
            at = next((i for i, part in enumerate(parts) if before in names_of(part[0])), len(parts) - 2)
            parts.insert(at + 1, [".It %s\n" % head(name, option)] + help_lines(option))
        before = name
    return [line for part in parts for line in part]


def main():
    arguments = sys.argv[1:]
    check = arguments[0] == "--check"
    tools, pages = arguments[check], arguments[check + 1:]
    stale = 0
    for page in pages:
        options = table(os.path.join(tools, os.path.basename(page)[:-2]))
        with open(page, encoding="utf-8") as f:
            lines = f.readlines()
        begin = lines.index(".Sh OPTIONS\n")
        end = next(i for i in range(begin + 1, len(lines)) if lines[i].startswith(".Sh"))
        new = lines[:begin] + section(lines[begin:end], options) + lines[end:]
        if new == lines:
            continue
        stale = 1
        if check:
            print("%s: the entries of OPTIONS are not those of the program's table: make man" % page, file=sys.stderr)
        else:
            with open(page, "w", encoding="utf-8") as f:
                f.writelines(new)
    if check and not stale:
        print("options of the man pages: ok")
    return check and stale


if __name__ == "__main__":
    sys.exit(main())
