"""Open caches: what is in them, their values, and writing them."""

from __future__ import annotations

import ctypes as c
import os
import tempfile
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

import numpy as np

from . import _lib, arrays, cuda, devices
from ._lib import call, encode, kvc
from .arrays import Key, Plane
from .errors import Code, Error

Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Tensor:
    """K or V of a layer, or a companion. `part` is "live", "sliding", "recurrent", "checkpoint" or "companion"."""

    index: int
    part: str
    role: str
    dtype: str
    layer: int
    stream: int
    checkpoint: int
    rows: int
    heads: int
    dim: int
    row_bytes: int


class Meta(Mapping[str, str]):
    """Metadata of a file (kvc(5)) as text. Like a dict that cannot be changed."""

    def __init__(self, file: "File") -> None:
        self._file = file

    def __getitem__(self, key: str) -> str:
        name = key.encode()
        size = kvc.kvc_file_meta_size(self._file.pointer, name)
        if not size:
            raise KeyError(key)
        text = c.create_string_buffer(size)
        kvc.kvc_file_meta(self._file.pointer, name, text, size)
        return text.value.decode(errors="replace")

    def __iter__(self) -> Iterator[str]:
        i = 0
        while (key := kvc.kvc_file_meta_key(self._file.pointer, i)) is not None:
            yield key.decode(errors="replace")
            i += 1

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


class File(_lib.Handle):
    """An open cache: a file of any format that kvc reads, a selection, or arrays in memory. Use it in a `with`, or close() it.

    `decoded` tells what the last load() onto a device was decoded by: "cuda:0", or "cpu: " and why; empty before.
    """

    def __init__(self, address: int, *keep: Any) -> None:
        super().__init__(address, kvc.kvc_file_close, *keep)
        self.source: Optional[cuda.Source] = None  # a .kvc that a device can open too
        self.decoded = ""

    # --- looking ---

    @property
    def format(self) -> str:
        """The name of the format: "kvc", "llama", "safetensors" and so on."""
        return kvc.kvc_file_format(self.pointer).decode()

    @property
    def meta(self) -> Meta:
        return Meta(self)

    @property
    def tokens(self) -> Optional[np.ndarray]:
        """A copy of the token ids, int32, or None. They begin at position 0, or where the metadata key tokens.first says."""
        n = c.c_uint64()
        data = kvc.kvc_file_tokens(self.pointer, c.byref(n))
        return np.ctypeslib.as_array((c.c_int32 * n.value).from_address(data)).copy() if data else None

    @property
    def tensors(self) -> List[Tensor]:
        """All tensors, in the order of their numbers."""
        return [self._tensor(i) for i in range(kvc.kvc_file_tensors(self.pointer))]

    def _tensor(self, i: int) -> Tensor:
        t = _lib.TensorInfo()
        if kvc.kvc_file_tensor(self.pointer, i, c.byref(t)):
            raise Error(Code.USAGE, f"there is no tensor {i}")
        return Tensor(i, t.part.decode(), t.role.decode(), t.dtype.decode(), t.layer, t.stream, t.checkpoint, t.rows, t.heads, t.dim,
                      t.row_bytes)

    def position(self, tensor: int, row: int) -> int:
        """Returns the position of a tensor's row."""
        if not 0 <= row < self._tensor(tensor).rows:
            raise Error(Code.USAGE, f"tensor {tensor} has no row {row}")
        return kvc.kvc_file_position(self.pointer, tensor, row)

    def __repr__(self) -> str:
        return f"<kvc.File {'closed' if self.closed else f'{self.format}, {kvc.kvc_file_tensors(self.pointer)} tensors'}>"

    # --- values ---

    def read(self, tensor: int, first: int = 0, rows: Optional[int] = None, *, torch: bool = False) -> Any:
        """Returns rows of tensor number `tensor` as an array [rows, heads, channels], decoded straight into it."""
        t = self._tensor(tensor)
        rows = t.rows - first if rows is None else rows
        if first < 0 or rows < 0 or first + rows > t.rows:
            raise Error(Code.USAGE, f"tensor {tensor} has no rows {first} to {first + rows - 1}: it has {t.rows}")
        out = arrays.empty((rows, t.heads, t.dim), t.dtype, torch)
        if rows:
            call(kvc.kvc_file_read, self.pointer, tensor, first, rows, out.data_ptr() if torch else out.ctypes.data)
        return out

    def arrays(self, *, first: Optional[int] = None, end: Optional[int] = None, layers: Optional[Sequence[int]] = None,
               dtype: Optional[str] = None, pairing: Optional[str] = None, threads: int = 0, torch: bool = False,
               device: Any = None) -> Dict[Key, Any]:
        """Returns K and V as new arrays [tokens, heads, channels] by (layer, role).

        They hold positions [first, end), by default all; a layer with a sliding window has the last ones only. `dtype` is "f32", "f16"
        or "bf16" to have all values rounded to it. `torch` makes tensors, on `device` ("cpu", "cuda", "cuda:1").
        """
        chosen, number = {}, devices.place.find(device)
        if number is not None and not torch:
            raise Error(Code.USAGE, f"arrays on the device '{device}' are tensors: torch=True makes them")
        found = [t for t in self.tensors if t.part in ("live", "sliding") and t.stream == 0]
        if not found:
            raise Error(Code.UNSUPPORTED, "the file has no K and V of tokens")
        rows = [t for t in found if t.rows]
        if first is None:
            live = [t for t in rows if t.part == "live"] or rows
            first = min((self.position(t.index, 0) for t in live), default=0)
        if end is None:
            end = max((self.position(t.index, t.rows - 1) + 1 for t in rows), default=first)
        if not 0 <= first <= end:
            raise Error(Code.USAGE, f"positions {first} to {end} are no range")
        for t in found:
            if layers is None or t.layer in layers:
                n = end - first if t.part == "live" else min(end - first, t.rows)
                chosen[t.layer, t.role] = arrays.empty((n, t.heads, t.dim), dtype or t.dtype, torch, number)
        if end > first:
            self.load(chosen, first=first, tokens=end - first, convert=dtype is not None, pairing=pairing, threads=threads)
        return chosen

    def load(self, into: Any, *, first: int = 0, tokens: Optional[int] = None, layout: Optional[str] = None, dtype: Optional[str] = None,
             convert: bool = False, pairing: Optional[str] = None, threads: int = 0, verify: bool = False) -> None:
        """Decodes straight into the caller's arrays or tensors, whatever their strides.

        `into` has them by (layer, role), or a (K, V) for each layer; `layout` names their axes ("THD", "HTD", "BHTD", "TD"). Array
        index 0 gets position `first`. Arrays with fewer tokens than the others get the last ones, as of a sliding window. `convert`
        rounds values to the arrays' type. After an error the arrays hold rubbish.

        Arrays may be on CUDA devices: tensors, or what has __cuda_array_interface__. The device decodes if it can (kvc.cuda), else the
        CPU does and torch copies; `decoded` tells. The values are the same. `verify`: the CPU compares rows with their digests, as
        devices do always.
        """
        views = arrays.planes(into, layout, dtype, to_fill=True)
        how = _lib.LoadHow(threads=threads, convert=convert, pairing=encode(pairing), verify=verify)

        def by_cpu(planes: Mapping[Key, Plane]) -> None:
            call(kvc.kvc_file_load, self.pointer, c.byref(arrays.memory(planes, first=first, tokens=tokens)), c.byref(how))

        def by_device() -> None:
            cuda.decode(self, views, first=first, tokens=tokens, convert=convert, pairing=pairing)

        if cuda.on_devices(views):
            _, self.decoded = cuda.either(into, layout, dtype, by_device, by_cpu)
        else:
            by_cpu(views)

    # --- parts and comparisons ---

    def select(self, first: int = 0, end: Optional[int] = None, *, layers: Optional[Sequence[int]] = None,
               companions: bool = True) -> "File":
        """Returns a handle of positions [first, end) and some layers. Nothing is copied."""
        if first < 0 or (end is not None and end <= first):
            raise Error(Code.USAGE, f"positions {first} to {end} are no range")
        chosen = _lib.flags(layers)
        part = _lib.PartOptions(first=first, end=end or 0, layers=_lib.address(chosen), n_layers=len(chosen) if chosen else 0,
                                no_companions=not companions)
        return File(call(kvc.kvc_file_select, self.pointer, c.byref(part)), self)

    def match(self, tokens: Any) -> int:
        """Returns the number of leading tokens that the cache shares with these."""
        ids, common = arrays.token_ids(tokens), c.c_uint64()
        call(kvc.kvc_file_match, self.pointer, ids.ctypes.data, ids.size, c.byref(common))
        return common.value

    def check(self, threads: int = 0) -> None:
        """Reads everything, and raises the first error of a hash or digest."""
        call(kvc.kvc_file_check, self.pointer, threads)

    # --- writing ---

    def pack(self, path: Optional[Path] = None, **options: Any) -> Union[bytes, int]:
        """Packs into a .kvc. Returns its bytes, or, written to `path`, how many they are. `pack()` explains the options."""
        o, keep = write_options(**options)
        if path is not None:
            return write_file(path, lambda fd: call(kvc.kvc_file_pack_fd, self.pointer, c.byref(o), fd))
        data, size = c.c_void_p(), c.c_size_t()
        call(kvc.kvc_file_pack_memory, self.pointer, c.byref(o), c.byref(data), c.byref(size))
        try:
            return c.string_at(data, size.value)
        finally:
            _free(data)

    def unpack(self, path: Path, format: Optional[str] = None, **options: Any) -> int:
        """Writes the source that a .kvc was made from, or another format ("safetensors", "llama"). Returns the number of bytes."""
        o, keep = write_options(**options)

        def write(fd: int) -> None:
            def take(_: Any, data: int, size: int) -> int:
                view = memoryview((c.c_char * size).from_address(data))
                try:
                    while view:
                        view = view[os.write(fd, view):]
                    return 0
                except OSError:
                    return 1

            call(kvc.kvc_file_unpack, self.pointer, encode(format), c.byref(o), _lib.WRITE_FN(take), None)

        return write_file(path, write)

    def unpack_into(self, buffer: Any = None, format: Optional[str] = None, **options: Any) -> int:
        """Writes as unpack() does, into a writable buffer (bytearray, mmap, array). Returns the number of bytes; None: only their number."""
        o, keep = write_options(**options)
        size = c.c_size_t()
        room = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
        if buffer is not None and not room.flags.writeable:
            raise TypeError("the buffer is read-only")
        call(kvc.kvc_file_unpack_memory, self.pointer, encode(format), c.byref(o), room.ctypes.data if buffer is not None else None,
             room.size, c.byref(size))
        return size.value


def write_options(*, recipe: Optional[str] = None, profile: Optional[Path] = None, embed_profile: bool = False,
                  force_profile: bool = False, threads: int = 0, align: int = 0, verify: bool = True, queries: Optional[File] = None,
                  dequantize: bool = False, target_kld: float = 0, target_ratio: float = 0, max_output_error: float = 0,
                  max_logit_error: float = 0, keep_tokens: bool = True, keep_companions: bool = True, pairing: Optional[str] = None,
                  settings: Optional[Mapping[str, Any]] = None, lossy_metadata: bool = False) -> Any:
    """Returns struct kvc_write_options, and what it refers to."""
    lines = _lib.texts(settings)
    o = _lib.WriteOptions(threads=threads, recipe=encode(recipe), align=align, no_verify=not verify,
                          queries=queries.pointer if queries else None, dequantize=dequantize, profile=encode(profile),
                          embed_profile=embed_profile, force_profile=force_profile, target_kld=target_kld, target_ratio=target_ratio,
                          max_output_error=max_output_error, max_logit_error=max_logit_error, no_tokens=not keep_tokens,
                          no_companions=not keep_companions, pairing=encode(pairing), set=_lib.address(lines),
                          lossy_metadata=lossy_metadata)
    return o, (lines, queries)


def write_file(path: Path, write: Any) -> int:
    """Calls write(fd) for a new file that takes the place of `path` when it is complete. Returns its size."""
    path = os.fspath(path)
    fd, temporary = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=os.path.dirname(path) or ".")
    try:
        try:
            write(fd)
            os.fsync(fd)
            os.fchmod(fd, 0o666 & ~_umask())
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        os.replace(temporary, path)
        return size
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0o077)  # there is no other way to ask
    os.umask(mask)
    return mask


def _free(data: c.c_void_p) -> None:
    free = c.CDLL(None).free
    free.argtypes, free.restype = (c.c_void_p,), None
    free(data)


def open(source: Any, *, format: Optional[str] = None, settings: Optional[Mapping[str, Any]] = None, model: Optional[Path] = None,
         kv_heads: int = 0, pairing: Optional[str] = None, weights: Optional[Path] = None, profile: Optional[Path] = None,
         profile_folders: Sequence[Path] = (), damaged: bool = False, tokens: Any = None, verify: bool = True, max_memory: int = 0,
         facts: Optional[Mapping[str, Any]] = None) -> File:
    """Opens a cache: a path of a file, a folder or a tar archive, a list of paths of one cache, or bytes in memory.

    `format` and `settings` are as --from of kvc-pack(1), `model` a weights file whose facts are taken, and which a .kvc must match.
    `profile` and `profile_folders` say where the profile of a .kvc is. `tokens` are the token ids of a file that holds none, `facts` what
    its metadata do not tell or tell wrongly, as --fact of kvc-pack(1): {"scale.k": 0.02, "scale.v": 0.03}.
    With `verify`, decoded rows of a .kvc are compared with their digests, except by load(), arrays() and kvc.load(). `max_memory` are
    the bytes that decoding a .kvc may take; 0: a quarter of the machine's memory.
    """
    lines, told = _lib.texts(settings), _lib.texts(facts)
    ids = None if tokens is None else arrays.token_ids(tokens)
    o = _lib.OpenOptions(format=encode(format), set=_lib.address(lines), model=encode(model), kv_heads=kv_heads,
                         pairing=encode(pairing), weights=encode(weights), profile=encode(profile),
                         profile_folders=b":".join(map(os.fsencode, profile_folders)) or None, damaged=damaged,
                         no_verify=not verify, max_memory=max_memory,
                         facts=_lib.address(told))
    if ids is not None:
        o.token_ids, o.n_token_ids = ids.ctypes.data, ids.size
    if isinstance(source, (str, os.PathLike)):
        state = cuda.file_state(source)
        f = File(call(kvc.kvc_file_open, encode(source), c.byref(o)))
        if state and f.format == "kvc" and not (damaged or settings or facts or ids is not None):
            f.source = cuda.Source(os.path.abspath(source), o.profile, o.model, o.weights, o.profile_folders, state)
        return f
    if isinstance(source, (list, tuple)):
        paths = (c.c_char_p * len(source))(*map(os.fsencode, source))
        return File(call(kvc.kvc_file_open_members, paths, len(source), c.byref(o)))
    data = np.frombuffer(source, np.uint8) if len(memoryview(source)) else np.empty(0, np.uint8)
    return File(call(kvc.kvc_file_open_memory, data.ctypes.data, data.size, c.byref(o)), data)


def join(files: Sequence[File], how: str = "tokens") -> File:
    """Returns a handle of several files as one cache: consecutive blocks of tokens, or the "heads" of tensor-parallel ranks."""
    handles = (c.c_void_p * len(files))(*(f.pointer.value for f in files))
    return File(call(kvc.kvc_file_join, handles, len(files), how.encode()), *files)


def model_identity(weights: Path) -> str:
    """Returns the identity of the model of a weights file or folder: what prefix keys are chained over."""
    text = c.create_string_buffer(128)
    call(kvc.kvc_model_identity, encode(weights), text, len(text))
    return text.value.decode()
