"""run_state.py: the folder in which a run keeps what it has measured, so that it can be
interrupted at any time. Not for what is measured (fisher.py).

It holds `sums`: a line with the SHA-256 of the rest, and a safetensors file with the sums of
the texts that are done; `next`: room on the disk for the following `sums`; and caches, for the
predictors, named by their content."""
import contextlib
import fcntl
import hashlib
import json
import os
import re

from safetensors import SafetensorError
from safetensors.torch import load, save

from model_files import Refusal

SLACK = 1 << 16  # bytes by which the header may grow with a text
SUMS, NEXT, BASE, PARTIAL_CACHE = "sums", "next", "base.kvcp", "cache.partial"
DIGITS = 16      # of hashes in names of caches: of the text, and of the file
CACHE = re.compile(r"[0-9a-f]{16}\.([0-9a-f]{16})\.safetensors")


def synced(path, data):
    """Writes a file that was there or not, and waits until it is on the disk."""
    with open(path, "r+b" if os.path.exists(path) else "wb") as f:
        f.write(data)
        f.truncate()
        f.flush()
        os.fsync(f.fileno())


class RunState:
    """Opened by one run at a time. `facts` tell what the sums are of, without the texts, each
    as it is shown and as it is compared; `texts` has the name and the SHA-256 of each."""

    def __init__(self, folder, facts, texts):
        self.folder, self.facts, self.texts = folder, facts, texts
        self.sums = os.path.join(folder, SUMS)
        self.lock = None

    # --- opening ---

    def open(self, resume, force):
        """Returns how many texts are done, and the tensors of their sums."""
        if force and not resume and os.path.exists(self.sums):
            self.take_lock()
            self.remove()
            os.close(self.lock)
        os.makedirs(self.folder, 0o700, exist_ok=True)
        self.take_lock()
        if not os.path.exists(self.sums):
            return 0, None
        if not resume:
            raise Refusal(f"{self.folder} is of a run that was interrupted: --resume goes on with "
                          "it, -f starts again")
        return self.read()

    def take_lock(self):
        self.lock = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise Refusal(f"{self.folder} is in use by another run") from e

    def read(self):
        with open(self.sums, "rb") as f:
            digest, data = f.readline().strip().decode("ascii", "replace"), f.read()
        if hashlib.sha256(data).hexdigest() != digest:
            raise Refusal(f"{self.sums} is damaged: -f starts again")
        try:
            tensors = load(data)
        except SafetensorError as e:
            raise Refusal(f"{self.sums} is not of this program ({e}): -f starts again") from e
        size = int.from_bytes(data[:8], "little")
        kept = json.loads(json.loads(data[8:8 + size])["__metadata__"]["run"])
        self.compare(kept)
        return len(kept["texts"]), tensors

    def compare(self, kept):
        """Texts may have been added after those that are done."""
        for key, (shown, value) in self.facts.items():
            there = kept["facts"].get(key, ["unknown", None])
            if there[1] != value:
                changed = "which has changed" if there[0] == shown else f"not {shown}"
                raise Refusal(f"{self.folder} is of another run, with {key} {there[0]}, {changed}: "
                              "-f starts again, -o names another place")
        for number, (name, digest) in enumerate(kept["texts"]):
            if number >= len(self.texts) or self.texts[number][1] != digest:
                here = self.texts[number][0] if number < len(self.texts) else "missing"
                now = "has changed" if here == name else f"is {here} now"
                raise Refusal(f"{self.folder} is of other texts: text {number + 1} was {name} "
                              f"there, and {now}: -f starts again")

    # --- writing ---

    def trouble(self, e):
        raise Refusal(f"{self.folder}: {e.strerror}: what was measured is kept there; make room, "
                      "and go on with --resume") from e

    def keep(self, done, tensors, next_bytes):
        """Replaces the sums by those of `done` texts, and takes room for the next ones, which
        are `next_bytes` larger: a disk that is full ends the run before it measures what it
        could not keep."""
        run = json.dumps({"facts": self.facts, "texts": self.texts[:done]})
        data = save({name: x.contiguous() for name, x in tensors.items()}, {"run": run})
        data = hashlib.sha256(data).hexdigest().encode() + b"\n" + data
        spare = os.path.join(self.folder, NEXT)
        try:
            synced(spare, data)
            os.replace(spare, self.sums)
            os.fsync(self.lock)
            if done < len(self.texts):
                with open(spare, "wb") as f:
                    os.posix_fallocate(f.fileno(), 0, len(data) + next_bytes + SLACK)
        except OSError as e:
            self.trouble(e)

    # --- caches ---

    def find_cache(self, key):
        """The whole cache of a text. One that is damaged is removed."""
        for name in sorted(os.listdir(self.folder)):
            cache = CACHE.fullmatch(name)
            if not cache or not name.startswith(key[:DIGITS]):
                continue
            path = os.path.join(self.folder, name)
            with open(path, "rb") as f:
                if hashlib.sha256(f.read()).hexdigest()[:DIGITS] == cache[1]:
                    return path
            os.remove(path)
        return None

    def keep_cache(self, key, tensors, metadata):
        partial = os.path.join(self.folder, PARTIAL_CACHE)
        data = save(tensors, metadata)
        digest = hashlib.sha256(data).hexdigest()[:DIGITS]
        path = os.path.join(self.folder, f"{key[:DIGITS]}.{digest}.safetensors")
        try:
            synced(partial, data)
            os.replace(partial, path)
        except OSError as e:
            with contextlib.suppress(OSError):
                os.remove(partial)
            self.trouble(e)
        return path

    def keep_base(self, data):
        """The profile without predictors."""
        path = os.path.join(self.folder, BASE)
        try:
            synced(path, data)
        except OSError as e:
            self.trouble(e)
        return path

    def remove(self):
        """Removes what runs leave, and the folder unless something else is in it."""
        for name in os.listdir(self.folder):
            if name in (SUMS, NEXT, BASE, PARTIAL_CACHE) or CACHE.fullmatch(name):
                os.remove(os.path.join(self.folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
