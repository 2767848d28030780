#!/usr/bin/env python3
"""check_rules.py: every MUST of the specification has a number of its own, and every number a file of the conformance set or a test
(rules.py). Prints what is missing. Status 0: nothing."""
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import rules

# page: what the numbers of its rules begin with; of the pages of stages it is their name and a space
PREFIXES = {"formats/container/FORMAT.md": "F", "formats/container/IDS.md": "I", "formats/cache/KEYS.md": "K", "formats/store/STORE.md": "S"}
# "MUST, MUST NOT, SHOULD and MAY are those of RFC 2119" is no rule
RULE = re.compile(r"\bMUST\b(?!,| NOT,)(?: NOT\b)?(?:\s+\[([a-zA-Z]+ ?[0-9]+)\])?")


def pages():
    yield from PREFIXES.items()
    for pattern in ("*.md", "stages/*/*.md", "papers/*/*.md"):
        for page in sorted((ROOT / "codecs").glob(pattern)):
            yield str(page.relative_to(ROOT)), page.stem + " "


def check_numbers(faults):
    """The numbers in the text: rule -> page."""
    found = {}
    for page, prefix in pages():
        text = re.sub(r"`[^`\n]*`", lambda code: " " * len(code.group()), (ROOT / page).read_text())
        for m in RULE.finditer(text):
            place, number = f"{page}:{text.count(chr(10), 0, m.start()) + 1}", m.group(1)
            if not number:
                faults.append(f"{place}: MUST has no number")
            elif not number.startswith(prefix) or not number[len(prefix):].isdigit():
                faults.append(f"{place}: the rules of this page are called '{prefix}1' and so on, not '{number}'")
            elif number in found:
                faults.append(f"{place}: {number} is a rule of {found[number]} already")
            else:
                found[number] = place
    return found


def has_test(word):
    path, _, function = word.partition(":")
    if not function:
        return (ROOT / path / "cmd").exists()
    return (ROOT / path).exists() and re.search(rf"^static void {function}\(", (ROOT / path).read_text(), re.MULTILINE)


def check_tests(found, faults):
    entries = json.loads((HERE / "index.json").read_text())
    names = [pathlib.Path(x["file"]).stem for x in entries]
    for rule in sorted(found.keys() - rules.RULES.keys()):
        faults.append(f"{found[rule]}: rules.py has no file or test of {rule}")
    for rule, words in rules.RULES.items():
        if rule not in found:
            faults.append(f"rules.py: no page has the rule {rule}")
        for word in words.split():
            if rules.is_test(word):
                there = has_test(word)
            else:
                there = any(rules.matches(name, word) for name in names)
            if not there:
                faults.append(f"rules.py: {rule}: there is no {word}")
    for x in entries:
        if x["verdict"] != "valid" and not x["rules"]:
            faults.append(f"index.json: {x['file']} is refused by no rule")


def main():
    faults = []
    found = check_numbers(faults)
    check_tests(found, faults)
    if faults:
        sys.exit("\n".join(faults))
    print(f"rules: ok ({len(found)} rules)")


if __name__ == "__main__":
    main()
