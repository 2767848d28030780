#!/usr/bin/env python3
"""options.py [--check] TOOLS PAGE...: writes the section OPTIONS of man pages from the tables of options of the programs in the
folder TOOLS (--list-options).

The head of an entry (letter, name, argument) is made from the table, and an entry of an option that is gone is removed. Options without an
entry follow in the literal block after the line `.\\" other options`: those that kvc-options(7) describes by name, the others with their
help, up to the first "; ". --check writes nothing and returns 1 if a page is stale."""

import os
import re
import subprocess
import sys
import textwrap

OTHERS = '.\\" other options\n'


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
    """Returns the head of an entry: "Fl r , -recipe= Ns Ar recipe"."""
    letter, argument, _ = option
    between = " Ns " if argument.startswith("[=") else "= Ns "
    long = "-" + name + (between + marked(argument) if argument else "")
    if letter == "-":
        return "Fl " + long
    return "Fl %s , %s" % (letter, long)


def listing(options, shared):
    """Returns the lines of options: the names of those in shared, then the others with their help, as --help has them."""
    names, lines = [], []
    for name, (letter, argument, words) in options.items():
        short = "   " if letter == "-" else "-%s," % letter
        left = "%s --%s%s" % (short, name, argument if not argument or argument.startswith("[=") else "=" + argument)
        if name in shared:
            names.append("-h, --help" if name == "help" else left.strip())
            names[-1] = names[-1].replace(" ", "\0")
            continue
        text = textwrap.wrap(words.split("; ")[0].replace("\\", "\\e"), 50, break_long_words=False, break_on_hyphens=False)
        if len(left) > 22:
            lines.append(left)
            left = ""
        lines += ["%-22s %s" % (left, text[0])] + [" " * 23 + line for line in text[1:]]
    names = textwrap.wrap("   ".join(names), 72, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") + "\n" for line in names + [""] * bool(names and lines) + lines]


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


def shared_names():
    """Returns the names of the options that kvc-options(7) describes."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "kvc-options.7"), encoding="utf-8") as f:
        return {name for line in f if line.startswith(".It Fl") for name in names_of(line)}


def section(page, lines, options):
    """Returns the section OPTIONS as it should be."""
    seen, parts = set(), []
    for part in entries(lines):
        names = names_of(part[0]) if part[0].startswith(".It Fl") else []
        if names and not seen.issuperset(names):
            known = [name for name in names if name in options]
            if not known:
                continue
            part[0] = ".It %s\n" % " , ".join(head(name, options[name]) for name in known)
            seen.update(names)
        parts.append(part)
    new = [line for part in parts for line in part]
    if OTHERS not in new:
        sys.exit("%s: no line %s" % (page, OTHERS.strip()))
    begin = new.index(OTHERS) + 2
    new[begin:new.index(".Ed\n", begin)] = listing({name: option for name, option in options.items() if name not in seen}, shared_names())
    return new


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
        new = lines[:begin] + section(page, lines[begin:end], options) + lines[end:]
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
