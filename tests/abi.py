#!/usr/bin/env python3
"""abi.py write CC: prints the public interface: functions, callbacks, structs with the place of each field, enums and constants.
abi.py check CC FILE LIBRARY...: compares it with a recorded one. Prints what programs that were built before would trip over, and exits
with 1 if there is any; what was added is well. Each LIBRARY must export its functions under a version that programs may use.

Sizes and places are what the compiler CC says of the headers. A struct that begins with its size may grow at its end, the others may not."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HEADERS = ["kvc_error", "kvc", "kvc_inspect", "kvc_comparing", "kvc_store", "kvc_cuda"]
# its size is given beside it (array_size)
SIZED = {"kvc_memory_array"}


class Skip(Exception):
    pass


def plain(text):
    """Returns a text of C with single spaces, and with none around brackets, commas and stars."""
    text = re.sub(r" ?([*,()\[\]]) ?", lambda m: " *" if m[1] == "*" else m[1] + " " * (m[1] == ","), " ".join(text.split()))
    return re.sub(r"(?<=[*(]) (?=\*)", "", text).strip()


def split(text, at=","):
    """Splits a text at a character that is in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == at and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def declared(text):
    """Returns the type and the name of a parameter or a field with one declarator."""
    pointer = re.fullmatch(r"(.*?)\(\s*\*\s*(\w+)\s*\)\s*(?:\((.*)\)|(\[.*\]))", text, re.S)
    if pointer:
        return plain(f"{pointer[1]}(*)" + (pointer[4] or f"({parameters(pointer[3])})")), pointer[2]
    one = re.fullmatch(r"(.*?[\s*])(\w+)\s*((?:\[[^\]]*\])*)", text, re.S)
    return (plain(one[1] + one[3]), one[2]) if one else (plain(text), "")


def parameters(text):
    """Returns parameters without their names."""
    return ", ".join(p if p in ("void", "...") else declared(p)[0] for p in split(" ".join(text.split())))


def fields(body):
    """Yields the type and the name of each field."""
    for declaration in split(body, ";"):
        first, *others = split(declaration)
        kind, name = declared(first)
        yield kind, name
        base = re.sub(r"( \*+|\[.*)+$", "", kind)
        for other in others:
            yield declared(f"{base} {other}")


class Interface:
    def __init__(self, texts):
        self.functions, self.callbacks, self.structs, self.enums, self.constants, self.header = {}, {}, {}, {}, [], {}
        for header, text in texts.items():
            self.read(header, re.sub(r"/\*.*?\*/", " ", text, flags=re.S))

    def read(self, header, text):
        self.constants += re.findall(r"^#define (KVC_(?!VERSION_)\w+)[ ]+(?!__)\S", text, re.M)
        text = re.sub(r"^#.*?(?<!\\)$|__attribute__\(\(format\(.*?\)\)\)", "", text, flags=re.M)
        for result, name, given in re.findall(r"KVC_[A-Z_]*API\s+([^;{}()]*?)\b(kvc_\w+)\(([^;]*)\)\s*;", text):
            self.functions[name] = plain(f"{result}({parameters(given)})")
            self.header[name] = header
        for given in re.findall(r"\btypedef\s+([^;]*);", text):
            callback = re.fullmatch(r"(.*?)\b(kvc_\w+)\((.*)\)", given, re.S)
            kind, name = (plain(f"{callback[1]}({parameters(callback[3])})"), callback[2]) if callback else declared(given)
            self.callbacks[name] = kind
        for name, body in re.findall(r"^struct (kvc_\w+)\s*\{(.*?)^\};", text, re.S | re.M):
            self.structs[name] = list(fields(body))
        for name, body in re.findall(r"^enum (kvc_\w+)\s*\{(.*?)\}", text, re.S | re.M):
            self.enums[name] = [re.match(r"\w+", item)[0] for item in split(body)]

    def program(self):
        """Returns a program of C that prints numbers: constants, then enums, then sizes and places."""
        yield from (f'printf("%llu\\n", (unsigned long long)({name}));' for name in self.constants)
        for items in self.enums.values():
            yield from (f'printf("%d\\n", (int){item});' for item in items)
        for name, members in self.structs.items():
            yield f'printf("%zu\\n", sizeof(struct {name}));'
            for _, field in members:
                yield f'printf("%zu\\n", offsetof(struct {name}, {field}));'
                yield f'printf("%zu\\n", sizeof ((struct {name} *)0)->{field});'

    def lines(self, numbers):
        """Yields the interface as it is recorded."""
        number = iter(numbers)
        for name in self.constants:
            yield f"constant {name} = {next(number)}"
        for name, items in self.enums.items():
            for item in items:
                yield f"enum {name}: {item} = {next(number)}"
        for name, members in self.structs.items():
            size = next(number)
            sized = name in SIZED or (bool(members) and members[0] == ("size_t", "size"))
            yield f"struct {name}: {size} bytes, {'may grow' if sized else 'fixed'}"
            for kind, field in members:
                yield f"field {name}.{field}: at {next(number)}, {next(number)} bytes: {kind}"
        for name, kind in self.callbacks.items():
            yield f"type {name}: {kind}"
        for name, kind in self.functions.items():
            yield f"function {name} of {self.header[name]}.h: {kind}"


def current(cc):
    """Returns the lines of the interface of this tree."""
    if not shutil.which(cc.split()[0]):
        raise Skip(f"there is no compiler '{cc}'")
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "formats", "api")
    texts = {}
    for header in HEADERS:
        with open(os.path.join(folder, header + ".h"), encoding="utf-8") as f:
            texts[header] = f.read()
    interface = Interface(texts)
    with tempfile.TemporaryDirectory() as scratch:
        source, program = os.path.join(scratch, "a.c"), os.path.join(scratch, "a")
        with open(source, "w", encoding="utf-8") as f:
            f.write("".join(f'#include "{header}.h"\n' for header in HEADERS) + "#include <stdio.h>\nint main(void) {\n")
            f.write("\n".join(interface.program()) + "\nreturn 0;\n}\n")
        subprocess.run([*cc.split(), "-w", "-I", folder, "-o", program, source], check=True)
        try:
            numbers = subprocess.run([program], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout.split()
        except OSError as why:
            raise Skip(f"programs of '{cc}' do not run here: {why}") from None
    return sorted(interface.lines(numbers))


def parsed(lines):
    """Returns what was recorded by its kind and name."""
    found = {}
    for line in lines:
        m = re.fullmatch(r"(constant|enum|struct|field|type|function) (.*?)(?: = |: (?!KVC_))(.*)", line.strip())
        if m:
            found[m[1], m[2]] = m[3]
    return found


def bytes_of(text):
    return int(re.match(r"\d+", text)[0])


def compare(old, new):
    """Yields what changed for programs that were built with the old interface. Both are as parsed() returns them."""
    for (kind, name), was in old.items():
        now = new.get((kind, name))
        if now is None:
            yield f"{kind} {name} is gone"
        elif kind != "struct" and now != was:
            yield f"{kind} {name} is '{now}', and was '{was}'"
        elif kind == "struct" and now != was and (was.endswith("fixed") or now.endswith("fixed") or bytes_of(now) < bytes_of(was)):
            yield f"struct {name} is '{now}', and was '{was}'"
    for (kind, name), now in new.items():
        struct = old.get(("struct", name.split(".")[0])) if kind == "field" else None
        if struct is None or (kind, name) in old:
            continue
        at = int(re.match(r"at (\d+)", now)[1])
        if struct.endswith("fixed"):
            yield f"field {name} is new, and its struct is fixed"
        elif at < bytes_of(struct):
            yield f"field {name} is new at byte {at}, and not after the {bytes_of(struct)} bytes of the struct: programs have other bytes there"


def missing(interface, libraries):
    """Yields functions that a library does not export under a version for programs."""
    for library in libraries:
        stem = os.path.basename(library).split(".")[0]
        listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
        exported = set(re.findall(r" (kvc_\w+)@@KVC_[\d.]+$", listed, re.M))
        for kind, name in interface:
            if kind != "function":
                continue
            function, header = name.split(" of ")
            own = {"kvc_store.h": "libkvc_store", "kvc_cuda.h": "libkvc_cuda"}.get(header, "libkvc")
            if own == stem and function not in exported:
                yield f"{library} does not export {function}"


def check(cc, path, libraries):
    with open(path, encoding="utf-8") as f:
        old = parsed(f)
    new = parsed(current(cc))
    faults = [*compare(old, new)]
    if shutil.which("nm"):
        faults += missing(old, libraries)
    for fault in faults:
        print(f"abi: {fault}", file=sys.stderr)
    if faults:
        print(f"abi: programs that were built with the interface of {path} may fail: add functions, or fields at the end of structs with a size; "
              "else the first number of the version changes", file=sys.stderr)
        return 1
    added = sorted(f"{kind} {name}" for kind, name in new if (kind, name) not in old)
    for name in added:
        print(f"abi: new: {name}")
    print(f"abi: ok{f', with {len(added)} that make abi records' if added else ''}")
    return 0


def main(command, cc, *arguments):
    try:
        if command == "check":
            return check(cc, arguments[0], arguments[1:])
        print("\n".join(current(cc)))
        return 0
    except Skip as why:
        print(f"SKIPPED: {why}\n0 passed, 0 failed, 1 skipped")
        return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
