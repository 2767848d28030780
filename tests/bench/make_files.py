"""make_files.py: llama.cpp slots for the benchmarks, by the server of tests/engine. Not a program to run by hand:
make_files.sh runs it.

    make_files.py TEXT FOLDER

Slots of the first tokens of TEXT, as the server saves them; those that are there already stay.
"""

import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../engine"))
import server  # noqa: E402

F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8  # ggml types
SLOTS = {"slot-2000-f16.bin": (2000, F16, F16), "slot-200-f16.bin": (200, F16, F16), "slot-128-q8_0.bin": (128, Q8_0, Q8_0),
         "slot-64-q8_0-q4_0.bin": (64, Q8_0, Q4_0), "slot-24-f32.bin": (24, F32, F32)}


def make(name, text, folder):
    n, of_k, of_v = SLOTS[name]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with server.Server(scratch, (of_k, of_v)) as s:
            s.fill(s.tokenize(text)[:n])
            if s.save(name) != n:
                raise ValueError(f"{name}: not {n} tokens")
        os.replace(os.path.join(scratch, name), os.path.join(folder, name))


def main():
    text_path, folder = sys.argv[1:]
    with open(text_path, encoding="utf-8") as f:
        text = f.read()
    for name in SLOTS:
        if not os.path.exists(os.path.join(folder, name)):
            print(f"making {folder}/{name}", flush=True)
            make(name, text, folder)


main()
