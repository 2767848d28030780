"""runs.py MODEL OTHER_MODEL: runs of make_profile that are killed, meet a full disk, or find what
is not theirs, and are resumed. Each is a process of its own, forked after torch was loaded. Prints
what each run says. Not for the options of kvc-profile make (profile-make)."""
import inspect
import os
import resource
import shutil
import signal
import sys

os.environ["OMP_NUM_THREADS"] = "1"
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../share/make_profile")
sys.path.insert(0, PROGRAM)

import torch

from importlib.util import module_from_spec, spec_from_file_location

spec = spec_from_file_location("make_profile", os.path.join(PROGRAM, "__main__.py"))
make_profile = module_from_spec(spec)
spec.loader.exec_module(make_profile)
import profile_run
import run_state
from transformers import LlamaForCausalLM

torch.set_num_threads(1)
MODEL, OTHER = sys.argv[1:3]
TEXTS = ["a.txt", "b.txt", "c.txt"]
OPTIONS = ["--tokens=200", "--samples=2", "--measure=2", "--predict-tokens=1500", "--threads=1"]


def die(module, name, nth, after, by=signal.SIGKILL):
    """Kills this process in the nth call of a function, or after that call."""
    real, calls = getattr(module, name), []

    def call(*arguments, **more):
        calls.append(1)
        if len(calls) == nth and not after:
            os.kill(os.getpid(), by)
        result = real(*arguments, **more)
        if len(calls) == nth:
            os.kill(os.getpid(), by)
        return result
    setattr(module, name, call)


def interrupted_at_a_terminal():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    die(torch.autograd, "grad", 7, False, signal.SIGINT)


def renamed():
    """Has the model take its cache as in transformers 5.40: by the newer name only."""
    real = LlamaForCausalLM.forward
    name = "cache" if "cache" in inspect.signature(real).parameters else "past_key_values"

    def forward(self, input_ids=None, cache=None, **more):
        more.pop("past_key_values", None)  # a name that nobody knows
        return real(self, input_ids, **{name: cache}, **more)
    LlamaForCausalLM.forward = forward


def run(*options, model=MODEL, texts=TEXTS, out="out.kvcp", prepare=None):
    """Returns how the process ended, and what it said."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 2)
        sys.argv = ["make_profile", *OPTIONS, *options, "-o", out, model, *texts]
        if prepare:
            prepare()
        status = make_profile.main()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open("log") as f:
        return status, f.read()


def read(path):
    with open(path, "rb") as f:
        return f.read()


def clear():
    shutil.rmtree("out.kvcp.making", ignore_errors=True)
    if os.path.exists("out.kvcp"):
        os.remove("out.kvcp")


def check(what, condition, said=""):
    if not condition:
        print(f"FAILED: {what}\n{said}")
        sys.exit(1)


def resumed(what, whole, measured):
    """Goes on, after `measured` texts, and gets the same profile."""
    status, said = run("--resume")
    check(what, status == 0 and read("out.kvcp") == whole, said)
    check(what + ": the folder stays", not os.path.exists("out.kvcp.making"))
    check(what + ": measured again", said.count(": text ") == 2 - measured, said)
    check(what + ": not told", not measured or f"{measured} of 2 texts are measured" in said, said)
    print(f"{what}: resumed after {measured}")
    clear()


def killed(what, whole, measured, *places):
    for module, name, nth, after in places:
        status, said = run(prepare=lambda: die(module, name, nth, after))
        check(what, status == -signal.SIGKILL and not os.path.exists("out.kvcp"), said)
        resumed(f"{what}, {'after' if after else 'in'} {name} {nth}", whole, measured)


def full(what, whole, measured, limit):
    def prepare():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    status, said = run(prepare=prepare)
    check(what, status == 2 and "File too large" in said and "--resume" in said, said)
    print(said.strip().splitlines()[-1])
    resumed(what, whole, measured)


def refused(what, *options, **how):
    before = sorted((x, read("out.kvcp.making/" + x)) for x in os.listdir("out.kvcp.making"))
    status, said = run(*options, **how)
    check(what, status == 2, said)
    after = sorted((x, read("out.kvcp.making/" + x)) for x in os.listdir("out.kvcp.making"))
    check(what + ": what was measured has changed", before == after, said)
    print(f"{what}: {said.strip().splitlines()[-1]}")


def flip(path, at):
    data = bytearray(read(path))
    data[at] ^= 1
    with open(path, "wb") as f:
        f.write(data)


def interrupt():
    """Leaves a run whose texts are measured, and a cache of which is made."""
    clear()
    status, said = run(prepare=lambda: die(profile_run.ProfileRun, "make_cache", 2, False))
    check("interrupt", status == -signal.SIGKILL and ": text 2 of 2" in said, said)


def main():
    status, said = run()
    check("in one go", status == 0 and not os.path.exists("out.kvcp.making"), said)
    whole = read("out.kvcp")
    clear()
    status, said = run(prepare=renamed)
    check("a cache by its newer name", status == 0 and read("out.kvcp") == whole, said)
    clear()

    # a text has three places, with two samples each
    killed("killed in the first text", whole, 0, (torch.autograd, "grad", 1, False),
           (torch.autograd, "grad", 5, False))
    killed("killed in the second text", whole, 1, (torch.autograd, "grad", 9, False))
    # 1: no text yet; 2, 3: the texts
    killed("killed where sums are written", whole, 0, (os, "replace", 1, False),
           (os, "replace", 1, True), (os, "replace", 2, False))
    killed("killed between texts", whole, 1, (os, "replace", 2, True),
           (os, "posix_fallocate", 2, False))
    killed("killed after the texts", whole, 2, (os, "replace", 3, True),
           (profile_run.ProfileRun, "make_cache", 3, True), (os, "replace", 4, False),
           (profile_run.subprocess, "run", 1, False))

    status, said = run(prepare=interrupted_at_a_terminal)
    check("interrupted", status == 130 and "interrupted; --resume goes on" in said, said)
    resumed("interrupted", whole, 1)

    full("a full disk at once", whole, 0, 60_000)
    full("a full disk after a text", whole, 1, 100_000)
    full("a full disk after the texts", whole, 2, 150_000)

    interrupt()
    refused("without --resume")
    refused("another model", "--resume", model=OTHER)
    refused("another text", "--resume", texts=["a.txt", "c.txt", "b.txt"])
    refused("fewer texts", "--resume", "--measure=1")
    refused("other tokens", "--resume", "--tokens=201")
    refused("other weights", "--resume", "--float32")
    folder = os.open("out.kvcp.making", os.O_RDONLY)
    run_state.fcntl.flock(folder, run_state.fcntl.LOCK_EX)
    refused("at the same time", "--resume")
    os.close(folder)
    sums = read("out.kvcp.making/sums")
    for at in 3, 70, len(sums) // 2, len(sums) - 1:
        flip("out.kvcp.making/sums", at)
        refused("damaged", "--resume")
        flip("out.kvcp.making/sums", at)
    with open("out.kvcp.making/sums", "wb") as f:
        f.write(sums[:-100])
    refused("cut off", "--resume")
    with open("out.kvcp.making/sums", "wb") as f:
        f.write(sums)
    cache = [x for x in os.listdir("out.kvcp.making") if x.endswith(".safetensors")]
    check("one cache", len(cache) == 1, str(cache))
    flip("out.kvcp.making/" + cache[0], 5000)
    resumed("a damaged cache is made again", whole, 2)

    # a text more, and what is not a run's own folder
    status, said = run("--keep", "--measure=1", texts=["a.txt"])
    os.remove("out.kvcp")
    check("kept", status == 0 and os.path.exists("out.kvcp.making/sums"), said)
    resumed("a text more", whole, 1)
    interrupt()
    others = ["else", "my.safetensors"]
    for name in others:
        with open("out.kvcp.making/" + name, "w"):
            pass
    status, said = run("--force")
    check("others' files stay", sorted(os.listdir("out.kvcp.making")) == others, said)
    check("begun again", status == 0 and read("out.kvcp") == whole, said)
    check("measured again", said.count(": text ") == 2, said)
    print("begun again")

    status, said = run("--float32", out="exact.kvcp")
    check("float32", status == 0, said)
    from safetensors.torch import load_file
    rounded, exact = load_file("out.kvcp"), load_file("exact.kvcp")
    for role in "kv":
        means = [sum(x[f"layers.{i}.{role}.weight"].mean() for i in range(2))
                 for x in (rounded, exact)]
        check(f"{role}: {means}", means[0] != means[1] and abs(means[0] / means[1] - 1) < 0.03)


main()
