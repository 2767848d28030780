#!/usr/bin/env python3
"""hours.py: runs the fuzz targets in turn, one process at a time at low priority, and adds each run to its target's line in HOURS.md.

    hours.py BUILD HOURS [TARGET...]

BUILD is the folder with fuzz/fuzz_TARGET. Grown corpora are kept in build/fuzz-corpus, inputs that fail in
build/fuzz-found. Exit code 1 when there are any of this call.
"""
import datetime
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

FUZZ = pathlib.Path(__file__).resolve().parent
ROOT = FUZZ.parent.parent
LOG = FUZZ / "HOURS.md"
# seconds of a run: most for what reads the container and what is in it
SECONDS = {"container": 600, "stages": 400, "lossy": 600, "device": 300, "profile": 120}
OTHERS = 60
MODES = (1, 2)  # fuzz_container and fuzz_device: how far an input is mended


def seeds(target):
    """Folders of inputs to begin with. The conformance set's files stand behind a byte that says how they are mended."""
    folders = [FUZZ / "corpus" / target]
    if target in ("container", "device"):
        folder = ROOT / "build/fuzz-seeds"
        folder.mkdir(parents=True, exist_ok=True)
        for path in (ROOT / "tests/conformance/files").glob("*.kvc"):
            for mode in MODES:
                if path.stat().st_size <= 32768:
                    (folder / f"{path.stem}-{mode}").write_bytes(bytes([mode]) + path.read_bytes())
        folders.append(folder)
    return folders


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def failures(found, target):
    """Inputs that failed: not those that were only slow, on a machine with other work."""
    return {p for p in found.glob(f"{target}-*") if p.suffix != ".log" and "-slow-unit-" not in p.name}


def run(build, target, seconds):
    """One run of a target; returns its CPU seconds, executions, edges and the inputs that failed."""
    grown, found = ROOT / "build/fuzz-corpus" / target, ROOT / "build/fuzz-found"
    grown.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    began, before = cpu_seconds(), failures(found, target)
    text = subprocess.run([build / f"fuzz/fuzz_{target}", f"-max_total_time={seconds}", "-timeout=120", "-rss_limit_mb=2000",
                           "-print_final_stats=1", f"-artifact_prefix={found}/{target}-", grown, *seeds(target)],
                          stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT, preexec_fn=lambda: os.nice(19)).stderr
    text = text.decode(errors="replace")
    new = sorted(failures(found, target) - before)
    if new:
        (found / f"{new[0].name}.log").write_text(text[-20000:])
    executions = re.findall(r"number_of_executed_units: (\d+)", text) or re.findall(r"^#(\d+)", text, re.M) or ["0"]
    return cpu_seconds() - began, int(executions[-1]), int((re.findall(r" cov: (\d+)", text) or ["0"])[-1]), new


def commit():
    def git(*args):
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    changed = git("status", "--porcelain", "--", "codecs", "formats", "kernels", "tests/fuzz/*.[ch]")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def log(target, cpu, executions, edges, found):
    """Adds a run to the target's line, or begins one at the end; returns the line."""
    lines, sums = LOG.read_text().splitlines(), [1, round(cpu), executions, found]
    at = next((i for i, line in enumerate(lines) if line.startswith(f"| {target} |")), len(lines))
    if at < len(lines):
        *before, most = [int(cell) for cell in lines.pop(at).split("|")[2:7]]
        sums, edges = [a + b for a, b in zip(before, sums)], max(most, edges)
    lines.insert(at, f"| {target} | {' | '.join(map(str, sums))} | {edges} | {commit()} | {datetime.date.today()} |")
    LOG.write_text("\n".join(lines) + "\n")
    return lines[at]


def main(build, hours, *targets):
    build = pathlib.Path(build).resolve()
    there = sorted(p.stem[5:] for p in FUZZ.glob("fuzz_*.c"))
    targets = targets or sorted(there, key=lambda t: (t not in SECONDS, t))
    targets, end, failed = list(targets), time.time() + float(hours) * 3600, False
    while targets and time.time() + 1 < end:
        target = targets.pop(0)
        cpu, executions, edges, new = run(build, target, min(SECONDS.get(target, OTHERS), int(end - time.time())))
        print(log(target, cpu, executions, edges, len(new)), *new, flush=True)
        failed |= bool(new)
        if not new:  # it would fail again
            targets.append(target)
    return failed


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
