"""model_files.py: what the files of a model say of it: fingerprints, name, windows. Needs no
torch. Not for weights (causal_model.py)."""
import hashlib
import os
import re
import struct


class Refusal(Exception):
    """What this program is given, or finds of an interrupted run, it cannot go on with."""


GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def read_gguf_header(path):
    """The bytes before the tensor data, and the values that are single texts or numbers."""
    facts = {}
    with open(path, "rb") as f:
        def number(form):
            return struct.unpack("<" + form, f.read(struct.calcsize("<" + form)))[0]

        def value(kind):
            if kind == 8:
                return f.read(number("Q")).decode("utf-8", "replace")
            if kind == 9:
                of, n = number("I"), number("Q")
                if of in GGUF_SIZES:
                    f.seek(n * GGUF_SIZES[of], os.SEEK_CUR)
                else:
                    for _ in range(n):
                        value(of)
                return None
            data = f.read(GGUF_SIZES[kind])
            return int.from_bytes(data, "little") if kind in (0, 2, 4, 10) else None

        if f.read(4) != b"GGUF" or number("I") not in (2, 3):
            raise Refusal(f"{path}: not a GGUF file of version 2 or 3")
        tensors, pairs = number("Q"), number("Q")
        for _ in range(pairs):
            key = value(8)
            facts[key] = value(number("I"))
        for _ in range(tensors):
            value(8)
            f.seek(8 * number("I") + 12, os.SEEK_CUR)
        alignment, end = facts.get("general.alignment") or 32, f.tell()
    header = (end + alignment - 1) // alignment * alignment
    return (header if tensors else min(header, os.path.getsize(path))), facts


def weights_files(path):
    """The files of a model in the order in which a fingerprint takes them, and their kind."""
    if os.path.isdir(path):
        names = sorted(os.fsencode(x) for x in os.listdir(path)
                       if x.endswith(".safetensors") and x[0] != ".")
        if b"model.safetensors" in names:
            names = [b"model.safetensors"]
        return [os.path.join(path, os.fsdecode(x)) for x in names], "safetensors"
    split = re.fullmatch(r"(.*-)(\d{5})-of-(\d{5})\.gguf", path, re.DOTALL)
    if split:
        return [f"{split[1]}{i + 1:05}-of-{split[3]}.gguf" for i in range(int(split[3]))], "gguf"
    return [path], "gguf"


def fingerprints(path):
    """SHA-256 over the weights files, of samples and of pieces, as section 2 of kvc's KEYS.md
    says."""
    files, kind = weights_files(path)
    if not files:
        return {}
    count = struct.pack("<I", len(files))
    sums = {a: hashlib.sha256(f"kvc model {a} {n}\n{kind}\n".encode() + count)
            for a, n in (("sampled", 0), ("pieces", 1))}
    for name in files:
        size = os.path.getsize(name)
        with open(name, "rb") as f:
            header = read_gguf_header(name)[0] if kind == "gguf" else \
                8 + struct.unpack("<Q", f.read(8))[0]
            f.seek(0)
            for s in sums.values():
                s.update(struct.pack("<Q", size))
            sums["sampled"].update(f.read(header))
            rest = size - header
            if rest <= 64 * 4096:
                sums["sampled"].update(f.read())
            else:
                for i in range(64):
                    f.seek(header + i * (rest - 4096) // 63)
                    sums["sampled"].update(f.read(4096))
            f.seek(0)
            pieces = hashlib.sha256()
            while piece := f.read(1 << 24):
                pieces.update(hashlib.sha256(piece).digest())
            sums["pieces"].update(pieces.digest())
    return {f"model.fingerprint.{kind}.{a}": s.hexdigest() for a, s in sums.items()}


def window_facts(config, n_layers):
    """Which layers have a sliding window, where any has: a digit for each layer, 1 for those."""
    text = config.get_text_config()
    types = getattr(text, "layer_types", None)
    if not types or len(types) != n_layers or "sliding_attention" not in types:
        return {}
    facts = {"model.sliding-layers": "".join("01"[t == "sliding_attention"] for t in types)}
    if getattr(text, "sliding_window", None):
        facts["model.sliding-window"] = text.sliding_window
    return facts


def model_facts(path, config):
    """Name and architecture as the weights themselves spell them."""
    if not os.path.isdir(path):
        facts = read_gguf_header(path)[1]
        name, architecture = facts.get("general.name"), facts.get("general.architecture")
    else:
        name, architecture = getattr(config, "_name_or_path", None), config.model_type
        name = os.path.basename(os.path.abspath(name)) if name and name[0] in "/." else name
    return {"model.name": name or os.path.basename(os.path.abspath(path)),
            "model.architecture": architecture}
