"""Open caches: what is in them, their values, and writing them."""

from __future__ import annotations

import contextlib
import ctypes as c
import io
import os
import tempfile
from dataclasses import dataclass
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple, Union,
                    overload)

import numpy as np

from . import _lib, arrays, cuda, devices
from ._lib import call, encode, kvc
from .arrays import Key, Plane
from .errors import Code, Error, error_of_system, kind_of
from .handle import Handle
from .options import PackOptions, Path as Path, Unpack, UnpackOptions, check_names, pack_options, unpack_options

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor as TorchTensor


@dataclass(frozen=True)
class Tensor:
    """K or V of a layer, or a companion. `part` is "live", "window", "state", "snapshot" or "companion"."""

    index: int
    part: str
    role: str
    dtype: str
    layer: int
    stream: int
    snapshot: int
    rows: int
    heads: int
    dim: int
    row_bytes: int


class Meta(Mapping[str, str]):
    """Metadata of a file (kvc(5)) as text. Like a dict that cannot be changed."""

    def __init__(self, file: "File") -> None:
        self._file = file

    def __getitem__(self, key: str) -> str:
        name = key.encode(errors="surrogatepass") if isinstance(key, str) and "\0" not in key else b""
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


class File(Handle):
    """An open cache: a file of any format that kvc reads, a selection, or arrays in memory. Use it in a `with`, or close() it.

    kvc.open(), kvc.open_arrays(), kvc.join() and select() make one. It is like a mapping of K and V by layer and role: `f[3, "K"]` reads
    all rows of an array as the file has them, `len(f)`, `list(f)` and `(3, "K") in f` tell which arrays there are.

    `decoded` tells what the last load() onto a device was decoded by: "cuda:0", or "cpu: " and why; empty before.
    """

    _again = "open the path again with kvc.open()"
    _made_by = "kvc.open() opens a path"
    source: Optional[cuda.Source] = None  # a .kvc that a device can open too
    decoded = ""

    @classmethod
    def _of(cls, address: int, *keep: Any, parents: Sequence["File"] = (), held: Sequence[c.c_void_p] = ()) -> "File":
        """Returns the handle of a struct kvc_file, as Handle._hold() says."""
        self = cls.__new__(cls)
        self._hold(address, kvc.kvc_file_close, *keep, parents=parents, held=held)
        return self

    # --- looking ---

    @property
    def format(self) -> str:
        """The name of the format: "kvc", "llama", "safetensors" and so on."""
        return str(kvc.kvc_file_format(self.pointer), "utf-8")

    @property
    def meta(self) -> Meta:
        return Meta(self)

    @property
    def tokens(self) -> Optional[np.ndarray]:
        """A copy of the token ids, int32, or None. They begin at position 0, or where the metadata key tokens.first says."""
        n, pointer = c.c_uint64(), self.pointer  # held until the copy is made
        data = kvc.kvc_file_tokens(pointer, c.byref(n))
        return np.ctypeslib.as_array((c.c_int32 * n.value).from_address(data)).copy() if data else None

    @property
    def tensors(self) -> List[Tensor]:
        """All tensors, in the order of their numbers."""
        return [self._tensor(i) for i in range(kvc.kvc_file_tensors(self.pointer))]

    def _tensor(self, i: int) -> Tensor:
        t, pointer = _lib.TensorInfo(), self.pointer  # held while its texts are read
        if not 0 <= i < 2**32 or kvc.kvc_file_tensor(pointer, i, c.byref(t)):
            del pointer
            raise Error(Code.USAGE, f"there is no tensor {i}")
        return Tensor(i, t.part.decode(), t.role.decode(), t.dtype.decode(), t.layer, t.stream, t.snapshot, t.rows, t.heads, t.dim,
                      t.row_bytes)

    def position(self, tensor: int, row: int) -> int:
        """Returns the position of a tensor's row."""
        if not 0 <= row < self._tensor(tensor).rows:
            raise Error(Code.USAGE, f"tensor {tensor} has no row {row}")
        return int(kvc.kvc_file_position(self.pointer, _lib.whole("tensor", tensor, _lib.u32), _lib.whole("row", row)))

    def __repr__(self) -> str:
        return f"<kvc.File {'closed' if self.closed else f'{self.format}, {kvc.kvc_file_tensors(self.pointer)} tensors'}>"

    # --- K and V by layer and role ---

    def _tokens_of(self) -> List[Tensor]:
        """Returns the tensors that have rows of tokens: K and V, but no companions, states and further streams."""
        return [t for t in self.tensors if t.part in ("live", "window") and t.stream == 0]

    def keys(self) -> List[Key]:
        """The layers and roles that `f[layer, role]` takes."""
        return list(dict.fromkeys((t.layer, t.role) for t in self._tokens_of()))

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return True  # closed and empty ones, too

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __getitem__(self, key: Key) -> "NDArray[Any]":
        if not isinstance(key, tuple) or len(key) != 2:
            raise TypeError(f"a layer and a role are asked for, as f[0, 'K'], not {key!r}")
        found = {(t.layer, t.role): t.index for t in reversed(self._tokens_of())}
        if key not in found:
            roles = ", ".join(sorted({role for _, role in found}))
            raise KeyError(f"there is no {key[1]} of layer {key[0]}: there are {roles} of the layers "
                           f"{_lib.ranges({layer for layer, _ in found})}")
        return self.read(found[key])

    # --- values ---

    @overload
    def read(self, tensor: int, first: int = 0, rows: Optional[int] = None, *,
             torch: Literal[False] = False) -> "NDArray[Any]": ...

    @overload
    def read(self, tensor: int, first: int = 0, rows: Optional[int] = None, *, torch: bool) -> Any: ...

    def read(self, tensor: int, first: int = 0, rows: Optional[int] = None, *, torch: bool = False) -> Any:
        """Returns rows of tensor number `tensor` as an array [rows, heads, channels], decoded straight into it."""
        t = self._tensor(tensor)
        rows = t.rows - first if rows is None else rows
        if first < 0 or rows < 0 or first + rows > t.rows:
            raise Error(Code.USAGE, f"tensor {tensor} has no rows {first} to {first + rows - 1}: it has {t.rows}")
        out = arrays.empty((rows, t.heads, t.dim), t.dtype, torch)
        if rows:
            call(kvc.kvc_file_read, self.pointer, tensor, first, rows, out.data_ptr() if torch else out.ctypes.data,
                 out.nbytes)
        return out

    @overload
    def arrays(self, *, first: Optional[int] = None, end: Optional[int] = None, layers: Optional[Sequence[int]] = None,
               dtype: Any = None, pairing: Optional[str] = None, threads: int = 0, torch: Literal[False] = False,
               device: Any = None) -> Dict[Key, "NDArray[Any]"]: ...

    @overload
    def arrays(self, *, first: Optional[int] = None, end: Optional[int] = None, layers: Optional[Sequence[int]] = None,
               dtype: Any = None, pairing: Optional[str] = None, threads: int = 0, torch: Literal[True],
               device: Any = None) -> Dict[Key, "TorchTensor"]: ...

    @overload
    def arrays(self, *, first: Optional[int] = None, end: Optional[int] = None, layers: Optional[Sequence[int]] = None,
               dtype: Any = None, pairing: Optional[str] = None, threads: int = 0, torch: bool,
               device: Any = None) -> Dict[Key, Any]: ...

    def arrays(self, *, first: Optional[int] = None, end: Optional[int] = None, layers: Optional[Sequence[int]] = None,
               dtype: Any = None, pairing: Optional[str] = None, threads: int = 0, torch: bool = False,
               device: Any = None) -> Dict[Key, Any]:
        """Returns K and V as new arrays [tokens, heads, channels] by (layer, role).

        They hold positions [first, end), by default all; a layer with a sliding window has the last ones only. `layers` are some of those
        of the file. `dtype` is "f32", "f16" or "bf16", or what numpy or torch call them, to have all values rounded to it. `torch` makes
        tensors, on `device` ("cpu", "cuda", "cuda:1").
        """
        chosen: Dict[Key, Any] = {}
        number, dtype = devices.place.find(device), arrays.dtype_of(dtype)
        if number is not None and not torch:
            raise Error(Code.USAGE, f"arrays on the device '{device}' are tensors: torch=True makes them")
        found = self._tokens_of()
        if not found:
            raise Error(Code.UNSUPPORTED, "the file has no K and V of tokens")
        asked = _lib.chosen_layers(layers, (t.layer for t in found))
        own = self.range()
        first, end = own[0] if first is None else first, own[1] if end is None else end
        if not 0 <= first <= end:
            raise Error(Code.USAGE, f"positions {first} to {end} are no range")
        for t in found:
            if asked is None or t.layer in asked:
                n = end - first if t.part == "live" else min(end - first, t.rows)
                chosen[t.layer, t.role] = arrays.empty((n, t.heads, t.dim), dtype or t.dtype, torch, number)
        if end > first:
            self.load(chosen, first=first, tokens=end - first, convert=dtype is not None, pairing=pairing, threads=threads)
        return chosen

    def range(self) -> Tuple[int, int]:
        """Returns the positions [first, end) that the file has of K and V: in a layer with a sliding window, the last ones."""
        rows = [t for t in self._tokens_of() if t.rows]
        live = [t for t in rows if t.part == "live"] or rows
        first = min((self.position(t.index, 0) for t in live), default=0)
        return first, max((self.position(t.index, t.rows - 1) + 1 for t in rows), default=first)

    def load(self, into: Any, *, first: int = 0, tokens: Optional[int] = None, layout: Optional[str] = None, dtype: Any = None,
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
        asked = _lib.chosen_layers(layers, (t.layer for t in self.tensors))
        chosen = _lib.flags(asked)
        part = _lib.SelectOptions(first=first, end=end or 0, layers=_lib.address(chosen), n_layers=len(chosen) if chosen else 0,
                                no_companions=not companions)
        pointer = self.pointer
        try:
            return File._of(call(kvc.kvc_file_select, pointer, c.byref(part)), parents=[self], held=[pointer])
        finally:
            del pointer  # a traceback that is kept must not keep the file open

    def match(self, tokens: Any) -> int:
        """Returns the number of leading tokens that the cache shares with these."""
        ids, common = arrays.token_ids(tokens), c.c_uint64()
        call(kvc.kvc_file_match, self.pointer, ids.ctypes.data, ids.size, c.byref(common))
        return common.value

    def check(self, threads: int = 0) -> None:
        """Reads everything, and raises the first error of a hash or digest."""
        call(kvc.kvc_file_check, self.pointer, _lib.whole("threads", threads, _lib.u32))

    # --- writing ---

    @overload
    def pack(self, path: None = None, **options: Unpack[PackOptions]) -> bytes: ...

    @overload
    def pack(self, path: Path, **options: Unpack[PackOptions]) -> int: ...

    def pack(self, path: Optional[Path] = None, **options: Unpack[PackOptions]) -> Union[bytes, int]:
        """Packs into a .kvc. Returns its bytes, or, written to `path`, how many they are. `pack()` explains the options."""
        check_names("pack", options, PackOptions)
        for file in (options.get("queries"), options.get("base")):
            if file is not None:
                _file(file)
        o, keep = pack_options(**options)
        if path is not None:
            return write_file(path, lambda fd: call(kvc.kvc_file_pack_fd, self.pointer, c.byref(o), fd))
        data, size = c.c_void_p(), c.c_size_t()
        call(kvc.kvc_file_pack_memory, self.pointer, c.byref(o), c.byref(data), c.byref(size))
        try:
            return c.string_at(data, size.value)
        finally:
            _free(data)

    def unpack(self, path: Path, format: Optional[str] = None, **options: Unpack[UnpackOptions]) -> int:
        """Writes the source that a .kvc was made from, or another format ("safetensors", "llama"). Returns the number of bytes.

        Options: `pairing` of K in what is written, `settings` of the format (kvc-unpack(1)), `lossy_metadata` to write a format that does
        not hold all of the cache, `threads`.
        """
        check_names("unpack", options, UnpackOptions, ("format",))
        o, keep = unpack_options(**options)

        def write(fd: int) -> None:
            def take(_: Any, data: int, size: int) -> None:
                view = memoryview((c.c_char * size).from_address(data))
                while view:
                    view = view[os.write(fd, view):]

            with _lib.Callback(_lib.WRITE_FN, take) as back:
                call(kvc.kvc_file_unpack, self.pointer, encode(format), c.byref(o), back.pointer, None)

        return write_file(path, write)

    def unpack_into(self, buffer: Any = None, format: Optional[str] = None, **options: Unpack[UnpackOptions]) -> int:
        """Writes as unpack() does, into a writable buffer (bytearray, mmap, array). Returns the number of bytes; None: only their number."""
        check_names("unpack_into", options, UnpackOptions, ("format",))
        o, keep = unpack_options(**options)
        size = c.c_size_t()
        room = np.frombuffer(memoryview(buffer), np.uint8) if buffer is not None else np.empty(0, np.uint8)
        if buffer is not None and not room.flags.writeable:
            raise TypeError("the buffer is read-only")
        call(kvc.kvc_file_unpack_memory, self.pointer, encode(format), c.byref(o), room.ctypes.data if buffer is not None else None,
             room.size, c.byref(size))
        return size.value


def write_file(path: Path, write: Callable[[int], Any]) -> int:
    """Calls write(fd) for a new file that takes the place of `path` when it is complete. Returns its size."""
    path = os.fsdecode(path)
    try:
        return _write_beside(path, write)
    except Error:
        raise
    except OSError as problem:
        raise error_of_system(problem, path) from None


def _write_beside(path: str, write: Callable[[int], Any]) -> int:
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise Error(Code.USAGE, f"{path} is neither a file nor a new name: without a path, pack() returns bytes")
    fd, temporary = tempfile.mkstemp(prefix=".kvc-", dir=os.path.dirname(path) or ".")
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
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    with contextlib.suppress(OSError, ValueError), io.open("/proc/self/status") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    mask = os.umask(0o077)  # elsewhere there is no other way to ask; other threads see it for a moment
    os.umask(mask)
    return mask


def _free(data: c.c_void_p) -> None:
    free = c.CDLL(None).free
    free.argtypes, free.restype = (c.c_void_p,), None
    free(data)


def open(source: Any, *, format: Optional[str] = None, settings: Optional[Mapping[str, Any]] = None, model: Optional[Path] = None,
         kv_heads: int = 0, pairing: Optional[str] = None, weights: Optional[Path] = None, profile: Optional[Path] = None,
         profile_folders: Optional[Sequence[Path]] = None, damaged: bool = False, tokens: Any = None, verify: bool = True,
         max_memory: int = 0, facts: Optional[Mapping[str, Any]] = None) -> File:
    """Opens a cache: a path of a file, a folder or a tar archive, a list of paths of one cache, bytes in memory, or a file object that
    is open for reading bytes, of which the rest is read.

    `format` and `settings` are as --from of kvc-pack(1), `model` a weights file whose facts are taken, and which a .kvc must match.
    `profile` and `profile_folders` say where the profile of a .kvc is; None: beside it, or in the folders of profiles, kvc-profile(5).
    `tokens` are the token ids of a file that holds none, `facts` what its metadata do not tell or tell wrongly, as --fact of
    kvc-pack(1): {"scale.k": 0.02, "scale.v": 0.03}.
    With `verify`, decoded rows of a .kvc are compared with their digests, except by load(), arrays() and kvc.load(). `max_memory` are
    the bytes that decoding a .kvc may take; 0: a quarter of the machine's memory.
    """
    lines, told = _lib.texts(settings), _lib.texts(facts)
    ids = None if tokens is None else arrays.token_ids(tokens)
    o = _lib.OpenOptions(format=encode(format), set=_lib.address(lines), model=encode(model), kv_heads=kv_heads,
                         pairing=encode(pairing), weights=encode(weights), profile=encode(profile),
                         profile_folders=_folders(profile_folders), damaged=damaged, no_verify=not verify,
                         max_memory=max_memory, facts=_lib.address(told))
    if ids is not None:
        o.token_ids, o.n_token_ids = ids.ctypes.data, ids.size
    if isinstance(source, (str, os.PathLike)):
        name = encode(source)
        state = cuda.file_state(source)
        f = File._of(call(kvc.kvc_file_open, name, c.byref(o)))
        if state and f.format == "kvc" and not (damaged or settings or facts or ids is not None):
            f.source = cuda.Source(os.path.abspath(source), o.profile, o.model, o.weights, o.profile_folders, state)
        return f
    if isinstance(source, (list, tuple)):
        if not source:
            raise Error(Code.USAGE, "a list of no paths is no cache")
        paths = (c.c_char_p * len(source))(*map(encode, source))
        return File._of(call(kvc.kvc_file_open_members, paths, len(source), c.byref(o)))
    data = _bytes_of(source)
    return File._of(call(kvc.kvc_file_open_memory, data.ctypes.data, data.size, c.byref(o)), data)


def _folders(paths: Optional[Sequence[Path]]) -> Optional[bytes]:
    """Returns paths of folders as the library takes them: separated by colons, of which "none" is no folder."""
    if paths is None:
        return None
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = [paths]
    folders = [encode(os.fspath(path)) or b"" for path in paths]
    for folder in folders:
        if b":" in folder:
            raise Error(Code.USAGE, f"profile_folders: {os.fsdecode(folder)!r} has a colon, which separates folders: name it by a link")
    return b":".join(b"./none" if folder == b"none" else folder for folder in folders)


def _bytes_of(source: Any) -> "NDArray[np.uint8]":
    """Returns the bytes of an object that has them, without a copy, or what is left of a file object."""
    try:
        view = memoryview(source)
    except TypeError:
        if isinstance(source, Handle) or not hasattr(source, "read"):
            raise TypeError("kvc.open() takes a path, a list of paths, bytes, or a file that is open for reading bytes, not "
                            f"{kind_of(source)}; kvc.open_arrays() takes arrays") from None
        source = source.read()
        if isinstance(source, str):
            raise TypeError("the file was opened as text: open it with mode 'rb'") from None
        view = memoryview(source)
    # of the view: an older numpy, as 1.21, would let a bytearray grow, and move, while the array is used
    return np.frombuffer(view, np.uint8) if len(view) else np.empty(0, np.uint8)


def join(files: Sequence[File], how: str = "tokens") -> File:
    """Returns a handle of several files as one cache: consecutive blocks of tokens, or the "heads" of tensor-parallel ranks."""
    files = list(files)
    pointers = [_file(f).pointer for f in files]  # held until the call is over
    handles = (c.c_void_p * len(files))(*(p.value for p in pointers))
    try:
        return File._of(call(kvc.kvc_file_join, handles, len(files), encode(how)), parents=files, held=pointers)
    finally:
        del pointers  # a traceback that is kept must not keep files open


def _file(value: Any) -> File:
    if not isinstance(value, File):
        raise TypeError(f"an open kvc.File is asked for, not {kind_of(value)}: kvc.open() opens a path")
    return value


def model_identity(weights: Path) -> str:
    """Returns the identity of the model of a weights file or folder: what prefix keys are chained over."""
    text = c.create_string_buffer(128)
    call(kvc.kvc_model_identity, encode(weights), text, len(text))
    return text.value.decode()
