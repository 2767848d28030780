#!/usr/bin/env python3
"""keys_examples.py: computes the worked examples of formats/cache/KEYS.md, without kvc's own code.

    keys_examples.py            prints them
    keys_examples.py --check    finds those that KEYS.md does not have
"""
import hashlib
import pathlib
import struct
import sys

from make_files import SPACES, TWO_EXTRAS, first_key, namespace, prefix_keys, u32, u64

PIECE = 1 << 24
GGUF = bytes.fromhex(
    "47475546 03000000 0000000000000000 0200000000000000 1400000000000000 67656e6572616c2e617263686974656374757265"
    "08000000 0500000000000000 6c6c616d61 1500000000000000 746f6b656e697a65722e67676d6c2e746f6b656e73 09000000"
    "08000000 0300000000000000 0100000000000000 61 0400000000000000 e2968162 0600000000000000 5b504144325d")
HEADER = b'{"a":{"dtype":"U8","shape":[300001],"data_offsets":[0,300001]}}'
SAFETENSORS = u64(len(HEADER)) + HEADER + bytes(7 * i & 255 ^ i >> 8 & 255 for i in range(300001))


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def pieces_of(kind, *files):
    """The fingerprint of all bytes of a model's files."""
    pieces = [sha(*(sha(f[i:i + PIECE]) for i in range(0, len(f), PIECE))) for f in files]
    return sha(b"kvc model pieces 1\n", kind, b"\n", u32(len(files)), *(u64(len(f)) + p for f, p in zip(files, pieces)))


def sampled(kind, data, header):
    """The sampled fingerprint of a model of one file."""
    rest = len(data) - header
    at = [header + i * (rest - 4096) // 63 for i in range(64)] if rest > 64 * 4096 else []
    blocks = [data[i:i + 4096] for i in at] or [data[header:]]
    return sha(b"kvc model sampled 0\n", kind, b"\n", u32(1), u64(len(data)), data[:header], *blocks)


def examples():
    """(what it is, the text that KEYS.md has)"""
    ids = list(range(512))
    keys, other = prefix_keys(ids), prefix_keys(ids, extra={0: TWO_EXTRAS})
    name = "model:" + sha(b"m\0llama\0", struct.pack("<3Q", 30, 3, 64)).hex()
    yield "H_0", first_key(b"unknown").hex()
    yield "key 1", keys[0].hex()
    yield "key 2", keys[1].hex()
    yield "key 1 after extras", other[0].hex()
    yield "key 2 after extras", other[1].hex()
    yield "a name", name
    yield "adapters", "+lora:" + sha(b"a.gguf").hex()[:16]
    for what, facts in SPACES.items():
        yield f"namespace ({what})", namespace(facts).hex()
    yield "sampled (GGUF)", sampled(b"gguf", GGUF, len(GGUF)).hex()
    yield "pieces (GGUF)", pieces_of(b"gguf", GGUF).hex()
    yield "sampled (safetensors)", sampled(b"safetensors", SAFETENSORS, 8 + len(HEADER)).hex()
    yield "pieces (safetensors)", pieces_of(b"safetensors", SAFETENSORS).hex()
    yield "tokenizer", sha(b"kvc tokenizer 0\n", u32(1), b"a", u32(2), b" b").hex()


def main(option=""):
    page = (pathlib.Path(__file__).parents[2] / "formats/cache/KEYS.md").read_text()
    lacking = [f"{what}: {text}" for what, text in examples() if text not in page]
    if option == "--check":
        return f"KEYS.md does not have\n" + "\n".join(lacking) if lacking else 0
    for what, text in examples():
        print(f"{what:32}{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
