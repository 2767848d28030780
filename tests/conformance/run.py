#!/usr/bin/env python3
"""run.py: runs a reader of .kvc files over the conformance set, and compares what it says with index.json (README.md).

    run.py [-v] READER...            a program and its first arguments
    run.py [-v] --second-reader      tests/engine/kvc_reader.py, in this process
    run.py [-v] --far READER...      only a file of more than 4 GiB, which is made for it: sparse, and needs libxxhash

-v prints what the reader says of each file. The last line is "N passed, M failed". Status 0: none failed.
"""
import concurrent.futures
import contextlib
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).resolve().parent
STATUS = {"valid": 0, "invalid": 1, "unsupported": 2}
SECONDS = 600  # that a file may take: many on a busy machine, for the one of 4 GiB


def by_program(reader):
    def run(*paths):
        try:
            done = subprocess.run([*reader, *paths], capture_output=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return None, "", f"it takes more than {SECONDS} seconds"
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace").strip()
    return run


def second_reader():
    """The same of tests/engine/kvc_reader.py. Loading its libraries for each file would take minutes."""
    sys.path.insert(0, str(HERE.parent / "engine"))
    sys.dont_write_bytecode = True
    try:
        import kvc_reader
    except ImportError as e:
        print(f"SKIPPED: the second reader needs the Python package {e.name}\n0 passed, 0 failed, 1 skipped")
        sys.exit(0)

    def run(*paths):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = kvc_reader.digests(*paths)
            except Exception:  # as of a program that ends in this way
                traceback.print_exc()
                status = None
        return status, out.getvalue(), err.getvalue().strip()
    return run


def fault(entry, status, out):
    """What is wrong with a reader's answer; None if nothing is."""
    if status != STATUS[entry["verdict"]]:
        return f"ends with {status}, not {STATUS[entry['verdict']]} ({entry['verdict']})"
    if "tensors" not in entry:  # nothing of it must be read
        return None
    lines = out.splitlines()
    sources = [line.split()[1:] for line in lines if line.startswith("source ")]
    tensors = [line for line in lines if not line.startswith("source ")]
    expected = [" ".join(map(str, tensor)) for tensor in entry["tensors"]]
    for i, (got, due) in enumerate(zip(tensors, expected)):
        if got.lower() != due.lower():
            return f"says of tensor {i} '{got}', not '{due}'"
    if len(tensors) != len(expected):
        return f"prints {len(tensors)} tensors, not {len(expected)}"
    if sources and sources != [[entry.get("source")]]:
        return f"gives another source file back than that with SHA-256 {entry.get('source')}"
    return None


def far_file(folder):
    sys.path.insert(0, str(HERE))
    sys.dont_write_bytecode = True
    import make_files
    entry = make_files.write_far(pathlib.Path(folder) / "far.kvc")
    return {**entry, "sha256": None}


def main(args):
    verbose = args[:1] == ["-v"]
    args = args[verbose:]
    if args[:1] == ["--far"] and args[1:]:
        with tempfile.TemporaryDirectory() as folder:
            return judge_all([far_file(folder)], args[1:], verbose)
    if not args or args == ["--far"]:
        sys.exit(__doc__)
    return judge_all(json.loads((HERE / "index.json").read_text()), args, verbose)


def judge_all(entries, args, verbose):
    one_process = args == ["--second-reader"]
    run = second_reader() if one_process else by_program(args)

    def judge(entry):
        paths = [str(HERE / entry[x]) if x in entry else "" for x in ("file", "profile", "weights")]
        while not paths[-1]:
            paths.pop()
        if entry["sha256"] and hashlib.sha256(pathlib.Path(paths[0]).read_bytes()).hexdigest() != entry["sha256"]:
            return "is not the file that was made once", ""
        status, out, err = run(*paths)
        return fault(entry, status, out), err
    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(1 if one_process else os.cpu_count()) as pool:
        answers = list(pool.map(judge, entries))
    for entry, (wrong, err) in zip(entries, answers):
        passed, failed = passed + (wrong is None), failed + (wrong is not None)
        if wrong:
            print(f"FAIL {entry['file']}: {entry['about']}\n     {wrong}" + (f"; it says: {err}" if err else ""))
        elif verbose:
            print(f"ok   {entry['file']}: {err or entry['verdict']}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
