#!/usr/bin/env python3
"""check_index.py: does kvc-dump say of every real file what its index says? Not for .kvc files.

usage: check_index.py KVC_DUMP DATA_DIR

Compares the facts of index.json's llama.cpp/, hf/, npz/ and hidden/ files with kvc-dump --json, the sum of
layer 0 K with --stats, and checks that each damaged file of these formats is refused with exit status 2,
nothing on standard output and a message that names the file.
"""
import json
import math
import os
import subprocess
import sys

DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
PAIRINGS = {"half": "halves", "half (NEOX)": "halves", "interleaved (NORM)": "interleaved"}
SUM_BELOW = 7_000_000  # bytes: larger files' sums take too long
# Formats that these tools do not read.
SKIPPED = (".pt",)


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def that(self, ok, path, what):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAIL {path}: {what}")

    def same(self, path, what, got, want):
        self.that(got == want, path, f"{what} is {got!r}, not {want!r}")


def dump(tool, *arguments):
    return subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=120)


def dump_json(checks, tool, path, *arguments):
    run = dump(tool, "--json", *arguments, path)
    checks.same(path, f"exit status with {arguments}", run.returncode, 0)
    checks.same(path, "standard error", run.stderr, "")
    return json.loads(run.stdout)["files"][0] if run.returncode == 0 else None


def check_sum(checks, tool, path, part, layers_sum, arguments):
    got = dump_json(checks, tool, path, "--stats", f"--part={part}", *arguments)
    if got is None:
        return
    rows = [row for row in got["stats"] if row["role"] == "K"]
    rows = [row for row in rows if row["layer"] == min(row["layer"] for row in rows)]
    total = sum(row["mean"] * (row["values"] - row["nan"] - row["inf"]) for row in rows)
    close = math.isclose(total, layers_sum, rel_tol=1e-6)
    checks.that(close, path, f"part {part}: sum of layer 0 K is {total}, not {layers_sum}")


def check_tokens(checks, path, got, entry):
    checks.same(path, "tokens.count", got["tokens"]["count"], entry["tokens"])
    checks.same(path, "tokens.first", got["tokens"]["first"], entry["first_tokens"][:8])


def check_llama_part(checks, path, number, got, want):
    where = f"{path} part {number}"
    for name in ("cells", "pos_min", "pos_max", "pos_ascending", "layers", "k_row_bytes", "v_row_bytes"):
        checks.same(where, name, got[name], want[name])
    checks.same(where, "k_dtype", got["k_dtype"], want["k_type"])
    checks.same(where, "v_dtype", got["v_dtype"], want["v_type"])


def check_llama(checks, tool, path, entry):
    got = dump_json(checks, tool, path)
    if got is None:
        return
    checks.same(path, "format", got["format"], entry["format"])
    checks.same(path, "version", got["version"], entry["version"])
    check_tokens(checks, path, got, entry)
    form = "server" if entry.get("token_words", "").startswith("server") else "plain"
    checks.same(path, "token_form", got["token_form"], form)
    want = [(body > 0, stream, part) for body, streams in enumerate(entry["parts"])
            for stream, part in enumerate(streams)]
    parts = [part for part in got["parts"] if part["kind"] != "snapshot"]
    checks.same(path, "number of parts", len(parts), len(want))
    for part, (sliding, stream, facts) in zip(parts, want):
        checks.same(path, "kind", part["kind"], "window" if sliding else "live")
        checks.same(path, "stream", part["stream"], stream)
        check_llama_part(checks, path, part["part"], part, facts)
    first = entry["parts"][0][0]
    checks.same(path, "transposed_v", got["transposed_v"], bool(first["v_trans"]))
    for role, name in (("k", "k_rot"), ("v", "v_rot")):
        # Only quantised caches are ever rotated: others are known to be plain in versions that do not say.
        quantised = first[f"{role}_type"] not in ("f32", "f16", "bf16")
        unsaid = None if quantised else 0
        tile = unsaid if first[name] is None else first[name]
        checks.same(path, f"hadamard.{role}", got["hadamard"][role], tile)
    checkpoints = [part for part in got["parts"] if part["kind"] == "snapshot"]
    checks.same(path, "checkpoints", got["snapshots"], len(entry["checkpoints"]))
    for part, facts in zip(checkpoints, entry["checkpoints"]):
        for name in ("cells", "pos_min", "pos_max"):
            checks.same(path, f"checkpoint {name}", part[name], facts[name])
    checks.same(path, "kv_heads without --kv-heads", got["kv_heads"], None)
    facts = [item["fact"] for item in got["unknown"]]
    checks.that("number of KV heads" in facts, path, f"the number of KV heads is not among {facts}")
    checks.same(path, "rope.k", got["rope"]["k"], entry["k_rope"])
    heads = f"--kv-heads={entry['kv_heads']}"
    told = dump_json(checks, tool, path, heads)
    if told is not None:
        checks.same(path, "kv_heads", told["kv_heads"], entry["kv_heads"])
        checks.same(path, "head_dim", told["head_dim"], entry["head_dim"])
    if entry["format"].endswith("GGSN"):  # names its architecture, so the pairing is known
        checks.same(path, "rope.pairing", got["rope"]["pairing"], PAIRINGS[entry["rope_pairing"]])
    if entry["bytes"] < SUM_BELOW:
        for part, (_, _, facts) in zip(parts, want):
            check_sum(checks, tool, path, part["part"], facts["k0"]["sum"], [heads])


def check_arrays(checks, tool, path, entry):
    got = dump_json(checks, tool, path)
    if got is None:
        return
    checks.same(path, "format", got["format"], entry["format"].split(",")[0].split(" ")[0])
    check_tokens(checks, path, got, entry)
    checks.same(path, "layers", got["layers"], entry["layers"])
    checks.same(path, "kv_heads", got["kv_heads"], entry["kv_heads"])
    checks.same(path, "head_dim", got["head_dim"], entry["head_dim"])
    part = got["parts"][0]
    checks.same(path, "kind", part["kind"], "live")
    for name in ("pos_min", "pos_max"):
        checks.same(path, name, part[name], entry[name])
    checks.same(path, "cells", part["cells"], entry["pos_max"] - entry["pos_min"] + 1)
    for name in ("k_dtype", "v_dtype"):
        checks.same(path, name, part[name].split(",")[0], DTYPES[entry[name]])
    metadata = entry["metadata"] or {}
    if "rope_pairing" in metadata:
        checks.same(path, "rope.pairing", got["rope"]["pairing"], PAIRINGS[metadata["rope_pairing"]])
        checks.same(path, "rope.theta", got["rope"]["theta"], float(metadata["rope_theta"]))
        checks.same(path, "rope.dim", got["rope"]["dim"], int(metadata["rope_dim"]))
        checks.same(path, "rope.k", got["rope"]["k"], metadata["k_rope"])
        checks.same(path, "model.name", got["model"]["name"], metadata["model"])
    if entry["bytes"] < SUM_BELOW:
        check_sum(checks, tool, path, 0, entry["k0"]["sum"], [])


def check_damaged(checks, tool, path):
    run = dump(tool, path)
    checks.same(path, "exit status", run.returncode, 2)
    checks.same(path, "standard output", run.stdout, "")
    checks.that(run.stderr.count("\n") == 1, path, f"the message is not one line: {run.stderr!r}")
    named = os.path.basename(path) in run.stderr
    checks.that(named, path, f"the message does not name the file: {run.stderr!r}")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    tool, data = sys.argv[1:]
    checks = Checks()
    with open(os.path.join(data, "index.json"), encoding="utf-8") as file:
        index = json.load(file)
    for entry in index["files"]:
        folder, path = entry["path"].split("/")[0], os.path.join(data, entry["path"])
        if folder == "llama.cpp":
            check_llama(checks, tool, path, entry)
        elif folder in ("hf", "npz", "hidden"):
            check_arrays(checks, tool, path, entry)
        elif folder == "damaged" and entry["expect"] == "refuse" and not path.endswith(SKIPPED):
            check_damaged(checks, tool, path)
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed or not checks.passed else 0)


if __name__ == "__main__":
    main()
