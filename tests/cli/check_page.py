#!/usr/bin/env python3
"""check_page.py PAGE...: checks the HTML reports of kvc-diff and kvc-dump: a page that is well-formed, needs nothing from outside and
forbids it, with one script, which sets text as text alone, and JSON that is strict and escaped. Prints every fault with its page, and
exits with 1 if there is any. If html5lib is installed, its strict parser reads the page as well."""
import functools
import html.parser
import json
import re
import sys

VOID = {"meta", "br", "hr", "link", "img", "input"}
# Attributes and CSS that make a browser fetch something.
FETCHES = {"src", "srcset", "data", "poster", "action", "formaction", "xlink:href", "background"}
# What makes elements or programs of text, or fetches.
UNSAFE = (
    r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|DOMParser|createContextualFragment|\beval\b|\bFunction\(|"
    r"fetch\(|XMLHttpRequest|import\(|WebSocket|sendBeacon"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.faults, self.open, self.ids, self.links = [], [], set(), []
        self.scripts, self.columns, self.policies = [], None, []

    def fault(self, text):
        self.faults.append("line %d: %s" % (self.getpos()[0], text))

    def handle_starttag(self, tag, attrs, closed=False):
        raw = self.get_starttag_text()
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.fault("an attribute twice: " + raw)
        for name, value in attrs:
            if name in FETCHES or name.startswith("on"):
                self.fault("attribute %s in %s" % (name, raw))
            if name == "href":
                self.links.append(value)
            if name == "id":
                if value in self.ids:
                    self.fault("id %s twice" % value)
                self.ids.add(value)
        if tag in ("link", "img", "iframe", "object", "embed", "base", "form"):
            self.fault("element " + raw)
        if tag == "meta" and dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policies.append(dict(attrs)["content"])
        if tag == "script":
            self.scripts.append([dict(attrs).get("type"), dict(attrs).get("id"), ""])
        if tag == "tr":
            self.cells = 0
        if tag in ("td", "th"):
            self.cells += 1
        if tag not in VOID and not closed:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        if tag not in VOID:
            self.fault("%s closes itself" % tag)
        self.handle_starttag(tag, attrs, closed=True)

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.fault("</%s> where %s is open" % (tag, self.open[-1:] or "nothing"))
            return
        self.open.pop()
        if tag == "tr" and "thead" in self.open:
            self.columns = self.cells
        elif tag == "tr" and self.columns not in (None, self.cells):
            self.fault("a row of %d cells below %d" % (self.cells, self.columns))
        if tag == "table":
            self.columns = None

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][2] += data
        elif self.open and self.open[-1] == "style" and re.search(r"url\(|@import|expression\(", data):
            self.fault("the style sheet fetches something")
        elif re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ufffd]", data):
            self.fault("a character that nobody sees: %r" % data[:60])

    def unknown_decl(self, data):
        self.fault("a declaration: " + data[:60])

    def handle_comment(self, data):
        self.fault("a comment: " + data[:60])


def no_constant(name):
    raise ValueError(name + " is no JSON")


@functools.cache  # all pages of a tool have one script
def unsafe(script):
    return ["the script has " + found for found in re.findall(UNSAFE, script)]


def check(path):
    text = open(path, encoding="utf-8", newline="").read()
    page = Page()
    page.feed(text)
    page.close()
    if not text.startswith("<!doctype html>"):
        page.faults.append("no doctype")
    if page.open:
        page.faults.append("not closed: %s" % page.open)
    for link in page.links:
        if not link.startswith("#") or link[1:] not in page.ids:
            page.faults.append("a link to %r" % link)
    if page.policies != [POLICY]:
        page.faults.append("policies: %r" % page.policies)
    names = sorted(name or "" for _, name, _ in page.scripts)
    if names not in (["", "kvc-diff", "pictures-data"], ["", "kvc-dump", "pictures-data"]):
        page.faults.append("scripts: %s" % names)
    for kind, name, script in page.scripts:
        if name is None:
            page.faults += unsafe(script)
            continue
        if kind != "application/json" or re.search("[<>&]", script):
            page.faults.append("%s is not escaped JSON" % name)
        try:
            json.loads(script, parse_constant=no_constant)
        except ValueError as error:
            page.faults.append("%s: %s" % (name, error))
    try:
        import html5lib

        html5lib.HTMLParser(strict=True).parse(text)
    except ImportError:
        pass
    except Exception as error:  # html5lib.html5parser.ParseError, of which the text is empty
        page.faults.append("html5lib: %r" % error)
    return page.faults


faulty = 0
for path in sys.argv[1:]:
    for fault in check(path):
        print("%s: %s" % (path, fault))
        faulty = 1
sys.exit(faulty)
