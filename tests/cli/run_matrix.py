#!/usr/bin/env python3
"""run_matrix.py: converts a cache of every format to every format that is written, reads the result, and compares K and V. Prints
the table of sources and targets, and below it what each target leaves out and why a conversion is refused.

    run_matrix.py SAMPLES CLI_TESTS

Runs the tools of PATH in the current folder, which it fills."""
import os
import random
import shutil
import subprocess
import sys

samples, tests = sys.argv[1:]
TARGETS = ["llama", "safetensors", "npz", "torch", "mlx", "vllm", "lmcache", "lmcache-gds", "hicache", "vllm-blocks", "raw"]
OPTIONS = {"hicache": ":layout=page_head,page=2", "vllm-blocks": ":shape=2-H-T-D,page=2"}  # a page divides the tokens of every source
LEGEND = """=  the same K and V, nothing is lost
~  the same K and V with --lossy-metadata; what is left out is listed
-  refused; the reason is listed
f  the same values, as float32
?  written with --lossy-metadata, but no geometry reads it as one cache
"""


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def must(*command):
    status, text = run(*command)
    if status:
        sys.exit(f"{command}: status {status}\n{text}")


def make(script, *arguments):
    must(sys.executable, os.path.join(tests, script), *arguments)


class Source:
    """A file with the options to read it, and what a file without metadata is read with; dtype None: tensors differ."""

    def __init__(self, name, path, options, dtype, layers, tokens, heads, dim, pairing="halves"):
        self.name, self.path, self.options, self.dtype = name, path, options, dtype
        self.layers, self.tokens, self.heads, self.dim, self.pairing = layers, tokens, heads, dim, pairing

    def read_options(self, target, lost):
        """Options to read what was written for a target, which lost what a message says."""
        dtype = "f32" if self.dtype in ("q8_0", None) and target == "hicache" else self.dtype
        geometry = f"dtype={dtype},layers={self.layers},heads={self.heads},dim={self.dim}"
        options = [f"--kv-heads={self.heads}"]
        if target == "llama":
            options.append("--pairing=interleaved")
        elif target == "raw" or "pairing of K" in lost:
            options.append(f"--pairing={self.pairing}")
        elif target.startswith("lmc") or target in OPTIONS:
            options.append("--pairing=halves")
        if target == "raw":
            options.append(f"--from=raw:{geometry},tokens={self.tokens}")
        if target == "hicache":
            options.append(f"--from=hicache{OPTIONS[target]},{geometry}")
        if target == "vllm-blocks":
            options.append(f"--from=vllm-blocks:shape=2-H-T-D,heads={self.heads},dim={self.dim},chunk=2,in-order")
        return options


def make_sources():
    slot, hf = os.path.join(samples, "slot-f16.bin"), os.path.join(samples, "transformers-16.safetensors")
    inverted = ["--kv-heads=3", "--pairing=interleaved"]
    geometry = "dtype=f16,layers=3,heads=2,dim=16"
    yield Source("llama f16", slot, inverted, "f16", 30, 16, 3, 64, "interleaved")
    with open("q8_0.values", "wb") as f:  # a scale of f16 near 1 and 32 numbers of 8 bits in each block
        source = random.Random(1)
        f.write(b"".join(bytes([source.randrange(256), 0x3C]) + source.randbytes(32) for _ in range(2 * 2 * 20 * 3 * 2)))
    must("kvc-unpack", "-q", "--from=raw:dtype=q8_0,layers=2,tokens=20,heads=3,dim=64", "--pairing=interleaved",
         "--to=llama:version=3", "--to-pairing=interleaved", "-o", "q8_0.slot", "q8_0.values")
    yield Source("llama q8_0", "q8_0.slot", inverted, "q8_0", 2, 20, 3, 64, "interleaved")
    blocks = os.path.join(samples, "slot-q4_1-q5_0.bin")
    yield Source("llama q4_1+q5_0 rotated", blocks, inverted, None, 30, 16, 3, 64, "interleaved")
    make("make_iswa.py", "sliding.slot", "--tokens", 40, "--window", 16)
    yield Source("llama sliding", "sliding.slot", ["--kv-heads=1", "--pairing=interleaved"], "f16", 4, 40, 1, 64, "interleaved")
    yield Source("safetensors", hf, [], "bf16", 30, 16, 3, 64)
    make("make_lossy.py", "queries.safetensors", "f16", 30, 8)
    yield Source("safetensors with queries", "queries.safetensors", [], "f16", 4, 30, 2, 64)
    mixed = os.path.join(samples, "cache-16-deflate.npz")
    yield Source("npz f32+f16", mixed, [], None, 8, 16, 3, 64)
    for to, dtype in [("npz", "f32"), ("torch", "bf16"), ("mlx", "bf16")]:
        must("kvc-unpack", "-q", "--lossy-metadata", f"--to={to}", "-o", f"made.{to}", hf)
        yield Source(to, f"made.{to}", [], dtype, 30, 16, 3, 64)
    numbers = ["layers=12", "tokens=48", "heads=3", "dim=8", "page=8"]
    make("make_vllm.py", "vllm.folder", "T-H-2D", *numbers)
    yield Source("vllm", "vllm.folder", ["--pairing=halves"], "f16", 12, 48, 3, 8)
    make("make_vllm.py", "blocks.folder", "blocks:T-H-2D", *numbers)
    order = "block=50,block=c1,block=32,block=a3,block=14,block=85"
    blocks = f"--from=vllm-blocks:shape=T-H-2D,heads=3,dim=8,{order}"
    yield Source("vllm-blocks", "blocks.folder", [blocks, "--pairing=halves"], "f16", 12, 48, 3, 8)
    make("make_lmcache.py", "lmcache.folder")
    known = ["--kv-heads=2", "--pairing=halves"]
    for name, path, options in [
        ("lmcache", "org-SEP-model@1@0@5eed@half.data", known),
        ("lmcache-gds", "gds", known),
        ("hicache", "page_head", ["--pairing=halves", f"--from=hicache:layout=page_head,{geometry},page=8"]),
    ]:
        yield Source(name, os.path.join("lmcache.folder", path), options, "f16", 3, 40, 2, 16)
    with open("f16.values", "wb") as f:
        f.write(b"".join(bytes([i % 251, 0x38 + i % 5]) for i in range(2 * 2 * 10 * 2 * 16)))
    raw = "--from=raw:dtype=f16,layers=2,tokens=10,heads=2,dim=16"
    yield Source("raw", "f16.values", [raw, "--pairing=halves"], "f16", 2, 10, 2, 16)
    must("kvc-pack", "-q", "-o", "hf.kvc", hf)
    yield Source(".kvc of safetensors", "hf.kvc", [], "bf16", 30, 16, 3, 64)


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def message(text, path):
    """A message without the names of the tool and of the file, and without the advice."""
    line = text.splitlines()[0].removeprefix("kvc-unpack: ").removeprefix(f"{path}: ")
    return line.split("; --lossy-metadata")[0]


def convert(source, target, notes):
    """Returns the entry of the table, and adds what is lost, or the reason of a refusal, to the notes."""
    out, command = "converted", ["kvc-unpack", *source.options, f"--to={target}{OPTIONS.get(target, '')}", "-o", "converted",
                            source.path]
    if target == "llama":
        command.insert(1, "--to-pairing=interleaved")
    for path in [out, "back.kvc"]:
        remove(path)
    status, text = run(*command)
    lost = text if status and " does not hold " in text else ""
    if lost:
        assert not os.path.exists(out), f"{source.name} to {target}: refused, but written"
        status, text = run(*command, "--lossy-metadata", "-q")
    if status or lost:
        notes.setdefault(message(text if status else lost, source.path), []).append(source.name)
    if status:
        return "-"
    if target == "raw" and not source.dtype:
        return "?"
    must("kvc-pack", "-q", *source.read_options(target, lost), "-o", "back.kvc", out)
    status, text = run("kvc-diff", "source.kvc", "back.kvc")
    facts = [line for line in text.splitlines() if " in A" in line and not line.startswith("kvc-diff: ")]
    casts = [line for line in facts if line.endswith("f32 in B")]
    casts += [line for line in facts if casts and line.startswith("hadamard.") and line.endswith(" 0 in B")]
    left_out = [line for line in facts if lost and line.endswith("only in A")]
    if status and ("differ: 0 of" not in text or len(facts) != len(casts) + len(left_out)):
        sys.exit(f"{source.name} to {target} differs:\n{text}")
    return ("~" if lost else "=") + ("f" if casts else "")


def main():
    notes = {}
    table = []
    for source in make_sources():
        remove("source.kvc")
        must("kvc-pack", "-q", *source.options, "-o", "source.kvc", source.path) if source.path[-4:] != ".kvc" else \
            shutil.copy(source.path, "source.kvc")
        table.append([source.name] + [convert(source, target, notes) for target in TARGETS])
    print(LEGEND)
    first = max(len(row[0]) for row in table)
    for row in [["source, target:"] + TARGETS] + table:
        line = "  ".join([row[0].ljust(first)] + [entry.ljust(len(name)) for entry, name in zip(row[1:], TARGETS)])
        print(line.rstrip())
    print()
    for note in sorted(notes):
        print(f"{note}\n    {', '.join(notes[note])}")


main()
