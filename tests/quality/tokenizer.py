"""tokenizer.py: text to the token ids of a GGUF file's own vocabulary and back: byte-level BPE with llama.cpp's
pre-tokenizer `smollm`. Special tokens written out in a text are text, unless they are named.
"""

import re
import unicodedata


def byte_characters():
    """The character that stands for each byte in the vocabulary (GPT-2's table): itself where it prints."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b if b in printing else next(others)) for b in range(256)]


def one_of(characters):
    return "[" + "".join(map(re.escape, sorted(characters))) + "]" if characters else "(?!)"


def split(text):
    """Words that no token crosses: each digit alone, the rest as GPT-2 splits it. Python's re knows no Unicode
    categories, so the classes list the characters of this text."""
    space = set(re.findall(r"\s", text))
    letters = {c for c in set(text) if unicodedata.category(c)[0] == "L"}
    digits = {c for c in set(text) if unicodedata.category(c)[0] == "N"}
    rest = set(text) - space - letters - digits
    words = re.compile(rf"'s|'t|'re|'ve|'m|'ll|'d| ?{one_of(letters)}+| ?{one_of(rest)}+|\s+(?!\S)|\s+")
    for part in re.split(f"({one_of(digits)})", text):
        yield from [part] if part in digits else words.findall(part)


class Tokenizer:
    def __init__(self, model):
        kind = model.field("tokenizer.ggml.pre")
        if kind != "smollm":
            raise ValueError(f"{model.path}: its pre-tokenizer is {kind}; only smollm is known")
        self.ids = {token: i for i, token in enumerate(model.field("tokenizer.ggml.tokens"))}
        self.ranks = {tuple(m.split(" ")): i for i, m in enumerate(model.field("tokenizer.ggml.merges"))}
        self.tokens = list(self.ids)
        self.characters = byte_characters()
        self.bytes = {character: byte for byte, character in enumerate(self.characters)}
        self.known = {}

    def word(self, text):
        parts = [self.characters[b] for b in text.encode()]
        while len(parts) > 1:
            rank, at = min((self.ranks.get(pair, len(self.ranks)), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == len(self.ranks):
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts]

    def encode(self, text, special=()):
        """special: tokens whose names in the text are these tokens, not text."""
        ids = []
        for part in re.split(f"({'|'.join(map(re.escape, special))})", text) if special else [text]:
            if part in special:
                ids.append(self.ids[part])
                continue
            for word in split(part):
                if word not in self.known:
                    self.known[word] = self.word(word)
                ids += self.known[word]
        return ids

    def decode(self, ids):
        """The text of ids; bytes that are no UTF-8, as of a character cut in two, become U+FFFD."""
        return bytes(self.bytes[c] for i in ids for c in self.tokens[i]).decode("utf-8", "replace")
