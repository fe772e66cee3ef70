"""
Object stores as a filesystem of fsspec, for pandas, pyarrow and others.

Import it with the extra ``fsspec``. Its URLs are ``jetstream://bucket/name``; a name may have slashes.
"""

# Rules:
#
# 1. Only `FileNotFoundError` means that a path does not exist. Methods of fsspec that take every error for
#    that are replaced.
# 2. A call lists each bucket once. Where fsspec asks for one directory after the other, the listing is kept
#    until the call ends.
# 3. A bucket has objects only, so directories come from the slashes in names.
# 4. Other clients choose the names, and local paths are made of listed ones. So no path has a part that is empty,
#    "." or "..", or a NUL: in the names of such objects they are escaped, and unescaped they name nothing.

from __future__ import annotations

import errno
import io
import os
import re
from base64 import urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from .. import (
    Connection,
    JetStream,
    Listing,
    ObjectInfo,
    ObjectReader,
    ObjectStore,
    Stream,
    StreamInfo,
    errors,
    shared_connection,
)
from ..api.object_store import infos_subject, name_in
from ..exact import exact
from ..jetstream.buckets.object_reading import real_path, replacing
from ..jetstream.buckets.object_writing import TextFile, Unstored
from ..subjects import OBJECT_PREFIX, chunk_subject
from ..version import needs_extra

with needs_extra("fsspec"):
    from fsspec.compression import compr
    from fsspec.core import get_compression
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

__all__ = ["JetStreamFileSystem"]

#: The largest object that is read as a whole when it is opened, in chunks.
_WHOLE_CHUNKS: Final = 4
#: The size of the buffer of a file that is read, in bytes.
_BUFFER_BYTES: Final = 512 * 1024
#: Number of objects whose positions of chunks are kept.
_KEPT_INDEXES: Final = 64
#: The errors for an object that does not exist, also for a broken link.
_ABSENT: Final = errors.ObjectNotFoundError, errors.BucketNotFoundError, errors.ObjectLinkError
#: Options of fsspec itself, which are not passed to `connect()`.
_FSSPEC_OPTIONS: Final = (
    *("use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"),
    *("asynchronous", "loop", "batch_size"),
)
#: The listings of the current call, by filesystem and bucket; ``None``: they are not kept.
_listings: ContextVar[dict[tuple[int, str], Listing[ObjectInfo]] | None]
_listings = ContextVar("_listings", default=None)
#: The sources and targets of the copies that `cp_file` was called for instead; ``None``: it copies.
_planned: ContextVar[list[tuple[str, str]] | None] = ContextVar("_planned", default=None)


@contextmanager
def _one_listing() -> Iterator[None]:
    """Keep the listings of the block, so that each bucket is listed once."""
    token = None if _listings.get() is not None else _listings.set({})
    try:
        yield
    finally:
        if token is not None:
            _listings.reset(token)


def _listing_once(name: str) -> Any:
    """Return a method of fsspec that lists each bucket once."""

    def method(self: AbstractFileSystem, *args: Any, **options: Any) -> Any:
        with _one_listing():
            return getattr(super(JetStreamFileSystem, self), name)(*args, **options)

    return method


def _error(code: int, path: Any) -> OSError:
    """Return the error of Python for an error number."""
    return OSError(code, os.strerror(code), path)


#: What no path has, because it is no part of a local path, or leads elsewhere.
_UNSAFE: Final = re.compile(r"(?:^|(?<=/))\.\.?(?=/|$)|\0|^/+|(?<=/)/+|/+$")


def _escaped(name: str) -> str:
    text = name.replace("%", "%25")
    return _UNSAFE.sub(lambda found: "".join(f"%{ord(c):02X}" for c in found[0]), text)


def _unescaped(path: str) -> str:
    """Return the name of which a path is the escaped form, or else the path."""
    name = re.sub("%(00|25|2E|2F)", lambda found: chr(int(found[1], 16)), path)
    return name if _escaped(name) == path else path


def _is_escaped(name: str) -> bool:
    """Return whether a name is escaped in paths: it is unsafe, or looks like the escaped form of one that is."""
    while not _UNSAFE.search(name):
        inner = _unescaped(name)
        if inner == name:
            return False
        name = inner
    return True


def _path_of(name: str) -> str:
    """Return the path of an object in its bucket."""
    return _escaped(name) if _is_escaped(name) else name


def _name_of(path: str) -> str:
    """Return the name of the object with a path in its bucket."""
    name = _unescaped(path)
    return name if name != path and _is_escaped(name) else path


@contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Raise the errors that users of fsspec expect."""
    try:
        yield
    except _ABSENT as error:
        raise _error(errno.ENOENT, path) from error
    except errors.ObjectExistsError as error:
        raise _error(errno.EEXIST, path) from error


class JetStreamFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """
    The object stores of an account, as directories with files.

    A written object appears when its file is closed, or when its transaction ends. A file that is read
    from its start to its end is checked against the digest of the object. Seeks and ranges read only the
    chunks that they need, without that check. Connections are shared in the process.

    Example::

        pandas.read_parquet("jetstream://REPORTS/2024/01.parquet", storage_options={"servers": url})

    Args:
        servers: as for `connect()`.
        context: as for `connect()`.
        **options: ``domain`` and ``timeout`` of `Connection.jetstream`, the other options of `connect()`,
            and those of fsspec.

    """

    protocol = "jetstream"
    root_marker = ""

    def __init__(
        self, servers: str | None = None, context: str | None = None, **options: Any
    ) -> None:
        own = {name: options.pop(name) for name in _FSSPEC_OPTIONS if name in options}
        super().__init__(servers=servers, context=context, **own)
        self._js_options = {
            key: options.pop(key) for key in ("domain", "timeout") if key in options
        }
        self._connecting = {"servers": servers, "context": context, **options}
        #: The connection that was used last, and its context: a context for each file is slow.
        self._used: tuple[Connection, JetStream] | None = None
        #: The directories that `mkdir` was called for, until files are put, copied or removed.
        self._made: set[str] = set()
        #: The state of each bucket, and the sorted paths of its objects, which may be deleted.
        self._paths: dict[str, tuple[object, list[str]]] = {}
        #: `_new_index` of the last objects.
        self.index: Callable[[str, str, int], list[tuple[int, int]]] = lru_cache(_KEPT_INDEXES)(
            self._new_index
        )

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(exact(path))
        return stripped.lstrip("/") if isinstance(stripped, str) else stripped

    @property
    def _js(self) -> JetStream:
        connection = shared_connection(**self._connecting)
        if self._used is None or self._used[0] is not connection:
            self._used = connection, connection.jetstream(**self._js_options)
        return self._used[1]

    def _find(self, path: Any) -> tuple[ObjectStore, str]:
        """Return the store of a path, and the name in it; empty: the path is that of the store."""
        bucket, _, name = self._strip_protocol(path).partition("/")
        if _UNSAFE.search(name):
            rule = "'.', '..' and empty parts of a name are escaped, as in listings"
            raise OSError(errno.ENOENT, rule, path)
        try:
            return self._js.object_store(bucket), _name_of(name)
        except (errors.BucketNotFoundError, errors.InvalidNameError) as error:
            raise _error(errno.ENOENT, path) from error

    # --- directories ----------------------------------------------------------------------------

    def _infos(self, store: ObjectStore, prefix: str, *, complete: bool = True) -> list[ObjectInfo]:
        """
        Return the object with a name, and those in the directory with this name.

        If some of them cannot be read, this raises; without ``complete``, only if all of them cannot.
        """
        key = id(self), store.bucket
        listings = _listings.get()
        if listings is None:
            listings = {}
        if key not in listings:
            listings[key] = store.list(allow_incomplete=True)
        listing, path = listings[key], _path_of(prefix)
        start = f"{path}/" if path else ""

        def is_below(name: str) -> bool:
            return name == prefix or _path_of(name).startswith(start)

        found = [item for item in listing if is_below(item.name)]
        if (complete or not found) and any(map(is_below, listing.missing)):
            listing.check()
        return found

    def _is_directory(self, store: ObjectStore, name: str) -> bool:
        """Return whether there is a directory with a name, without a listing unless its first object is deleted."""
        bucket, path = store.bucket, _path_of(name)
        if f"{bucket}/{path}" in self._made:
            return True
        state, paths = self._paths.get(bucket, (None, []))
        stream = self._js.get_stream(OBJECT_PREFIX + bucket)
        if state is None or _state_of(stream.cached_info) != state:
            found = stream.info(subjects_filter=infos_subject(bucket))
            names = (name_in(subject.encode()) for subject in found.state.subjects or ())
            paths = sorted(map(_path_of, names))
            self._paths[bucket] = _state_of(found), paths
        first = bisect_left(paths, f"{path}/")
        if not any(item.startswith(f"{path}/") for item in paths[first : first + 1]):
            return False
        with suppress(errors.Error):
            if store.info(_name_of(paths[first])).link is None:
                return True
        return any(True for _ in self._entries(store, name, complete=False))

    def _entries(
        self, store: ObjectStore, prefix: str, *, complete: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Yield the files of `_infos`, without broken links."""
        infos = self._infos(store, prefix, complete=complete)
        found = {(store.bucket, info.name): info for info in infos if info.link is None}
        for info in infos:
            target: ObjectInfo | None = info
            if info.link is not None:
                target = found.get((info.link.bucket, info.link.name or ""))
            try:
                yield _file(store, info, target or _target(store, info))
            except FileNotFoundError:
                continue

    def _tree(self, path: str, maxdepth: int | None = None) -> dict[str, list[dict[str, Any]]]:
        """Return the entries of a directory and of all directories in it; of a file, its own entry."""
        tree: dict[str, list[dict[str, Any]]] = {}
        if not path:
            tree[""] = [_directory(name) for name in self._js.object_store_names()]
            for entry in () if maxdepth == 1 else tree[""]:
                tree.update(self._tree(entry["name"]))
            return tree
        store, prefix = self._find(path)
        if not prefix:
            tree[path] = []
        for entry in self._entries(store, prefix):
            directory = path
            while True:
                siblings = tree.setdefault(directory, [])
                first, _, rest = entry["name"][len(directory) + 1 :].partition("/")
                if not rest:
                    siblings.append(entry)
                    break
                directory = f"{directory}/{first}"
                if directory not in tree:
                    siblings.append(_directory(directory))
        if not tree and path not in self._made:
            raise _error(errno.ENOENT, path)
        return tree or {path: []}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return what a directory has; see fsspec."""
        path = self._strip_protocol(path)
        entries = self._tree(path, maxdepth=1)[path]
        return entries if detail else [entry["name"] for entry in entries]

    def walk(
        self,
        path: str,
        maxdepth: Any = None,
        topdown: Any = True,
        on_error: Any = "omit",
        **kw: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yield each directory with the directories and files in it; raise `ValueError` for a ``maxdepth`` below 1."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        try:
            tree = kw.pop("tree", None) or self._tree(path, maxdepth)
        except OSError as error:
            if callable(on_error):
                on_error(error)
            elif on_error == "raise" or not isinstance(error, FileNotFoundError):
                raise
            return
        dirs: dict[str, Any] = {}
        files: dict[str, Any] = {}
        for entry in tree[path]:
            kind = dirs if entry["type"] == "directory" else files
            kind[entry["name"][len(path) + 1 if path else 0 :]] = entry
        shown = (dirs, files) if kw.get("detail") else (list(dirs), list(files))
        if topdown:
            yield path, *shown
        depth = maxdepth and maxdepth - 1
        # With `topdown` the caller may remove directories.
        for name in (list(shown[0]) if topdown else dirs) if depth != 0 else ():
            yield from self.walk(dirs[name]["name"], depth, topdown, tree=tree, **kw)
        if not topdown:
            yield path, *shown

    def du(
        self, path: str, total: Any = True, maxdepth: Any = None, withdirs: Any = False, **_: Any
    ) -> Any:
        """Return the size of the files below a path in bytes, or the size of each; see fsspec."""
        found = self.find(path, maxdepth, withdirs, detail=True)
        sizes = {name: entry["size"] for name, entry in found.items()}
        return sum(sizes.values()) if total else sizes

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size and type of a file or directory; raise `FileNotFoundError` if there is none."""
        path = self._strip_protocol(path)
        store, name = self._find(path) if path else (None, "")
        if store is None or not name:
            return _directory(path)
        try:
            info = store.info(name)
        except errors.ObjectNotFoundError:
            if self._is_directory(store, name):
                return _directory(path)
            raise _error(errno.ENOENT, path) from None
        return _file(store, info, info if info.link is None else _target(store, info))

    def _type(self, path: str) -> str:
        """Return the type of a path; empty if it does not exist."""
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return ""

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether there is a file or directory."""
        return self._type(path) != ""

    def lexists(self, path: str, **_: Any) -> bool:
        """Return whether there is a file, a directory or a link, which may be broken."""
        try:
            return self._object(path) is not None
        except (FileNotFoundError, IsADirectoryError):
            return self.exists(path)

    def isdir(self, path: str) -> bool:
        """Return whether there is a directory."""
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Return whether there is a file."""
        return self._type(path) == "file"

    def modified(self, path: str) -> Any:
        """Return when a file was written, in UTC; ``None`` for a directory."""
        return self.info(path).get("mtime")

    created = modified

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """
        Create the store of a path; this object remembers a directory in it, which other programs see with its files.

        Raises `FileExistsError` if the path exists, and without ``create_parents`` `FileNotFoundError` if its store
        does not.
        """
        if self.exists(path):
            raise _error(errno.EEXIST, path)
        bucket, _, name = self._strip_protocol(path).partition("/")
        if not self.exists(bucket):
            if name and not create_parents:
                raise _error(errno.ENOENT, path)
            self._js.create_object_store(bucket=bucket, **options)
        while name:
            self._made.add(f"{bucket}/{name}")
            name = name.rpartition("/")[0]

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create the store of a path if it does not exist."""
        if not exist_ok or not self.exists(path):
            self.mkdir(path)

    def rmdir(self, path: str) -> None:
        """
        Delete a store that is empty, or forget a directory; what another client writes to the store meanwhile is lost.

        Raises `FileNotFoundError`, `NotADirectoryError`, or `OSError` for a directory that is not empty.
        """
        path = self._strip_protocol(path)
        store, name = self._find(path)
        if name and path in self._made and not self._infos(store, name):
            self._made.discard(path)
            return
        if name or store.list():
            codes = {"": errno.ENOENT, "file": errno.ENOTDIR, "directory": errno.ENOTEMPTY}
            raise _error(codes[self._type(path)], path)
        self._js.delete_object_store(store.bucket)
        self._made.clear()

    # --- several files --------------------------------------------------------------------------

    find: Callable[..., Any] = _listing_once("find")
    glob: Callable[..., Any] = _listing_once("glob")
    get: Callable[..., Any] = _listing_once("get")
    if hasattr(AbstractFileSystem, "tree"):  # from fsspec 2024.12 on
        tree: Callable[..., Any] = _listing_once("tree")

    def put(self, *args: Any, **options: Any) -> None:
        """Store local files; see fsspec."""
        with _one_listing():
            super().put(*args, **options)
        self._made.clear()

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kw: Any) -> Any:
        """Return the data of files; see fsspec. ``on_error="omit"`` leaves out what does not exist."""
        how = "return" if on_error == "omit" else on_error
        with _one_listing():
            if recursive:
                path = [name for item in self.expand_path(path) for name in self.find(item)]
            found = super().cat(path, on_error=how, **kw)
        if how != on_error and isinstance(found, dict):
            found = {k: v for k, v in found.items() if not isinstance(v, FileNotFoundError)}
            for error in (data for data in found.values() if isinstance(data, Exception)):
                raise error
        return found

    def _pairs(self, *args: Any, **options: Any) -> list[tuple[str, str]]:
        """Return the sources and targets of a copy; see fsspec."""
        pairs: list[tuple[str, str]] = []
        token = _planned.set(pairs)
        try:
            super().copy(*args, **options)
        finally:
            _planned.reset(token)
        return pairs

    def copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **_: Any,
    ) -> None:
        """Copy files; see fsspec. By default, a store that does not exist is always an error."""
        with _one_listing():
            pairs = self._pairs(path1, path2, recursive, maxdepth)
            if on_error is None:
                for bucket in {self._strip_protocol(path).partition("/")[0] for _, path in pairs}:
                    self._find(bucket)
            for source, target in pairs:
                try:
                    self._copy(source, target)
                except FileNotFoundError:
                    if on_error == "raise" or (on_error is None and not recursive):
                        raise
        self._made.clear()

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        **_: Any,
    ) -> None:
        """
        Move files; see fsspec. Only objects that were copied are deleted, after all copies.

        Raises:
            FileNotFoundError: a path does not exist; nothing was deleted.
            IsADirectoryError: a path is a directory, without ``recursive``; nothing was copied.
            OSError: a file would be replaced by another one and be moved; nothing was copied.
            ObjectReplacedError: a file was replaced after it was copied; it was not deleted.

        """
        if self._strip_protocol(path1) == self._strip_protocol(path2):
            return
        with _one_listing():
            if not recursive:
                for path in path1 if isinstance(path1, list) else [path1]:
                    for name in self.expand_path(path):
                        self._object(name)
            pairs = [
                (self._strip_protocol(source), self._strip_protocol(target))
                for source, target in self._pairs(path1, path2, recursive, maxdepth)
            ]
            pairs = [(source, target) for source, target in pairs if source != target]
            for path in {source for source, _ in pairs} & {target for _, target in pairs}:
                raise _error(errno.EINVAL, path)
            moved = [self._copy(source, target) for source, target in pairs]
        for store, copied in filter(None, moved):
            if store.info(copied.name).nuid != copied.nuid:
                raise errors.ObjectReplacedError(store.bucket, copied.name)
            store.delete(copied.name)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """
        Delete objects, with ``recursive`` also those in directories. A store is not deleted.

        Raises:
            FileNotFoundError: a path does not exist, or nothing matches a pattern; nothing was deleted.
            IsADirectoryError: a path is a directory, without ``recursive``; nothing was deleted.

        """
        paths = [path] if isinstance(path, (str, os.PathLike)) else path
        with _one_listing():
            found = [name for path in paths for name in self.expand_path(path)]
            removed = [item for name in found for item in self._below(name, recursive, maxdepth)]
        for store, name in removed:
            store.delete(name)
        self._made.clear()

    def _below(
        self, path: str, recursive: bool, maxdepth: int | None
    ) -> Iterator[tuple[ObjectStore, str]]:
        """Yield the objects that `rm()` deletes for a path, also broken links."""
        if not recursive:
            store, info = self._object(path)
            yield store, info.name
            return
        store, prefix = self._find(path)
        infos = self._infos(store, prefix)
        if prefix and not infos and path not in self._made:
            raise _error(errno.ENOENT, path)
        for info in infos:
            depth = info.name.count("/", len(prefix) + 1) + 1 if info.name != prefix else 0
            if maxdepth is None or depth <= maxdepth:
                yield store, info.name

    # --- files ----------------------------------------------------------------------------------

    def _object(self, path: str) -> tuple[ObjectStore, ObjectInfo]:
        """Return the store and the info of an object or link; raise if there is none."""
        store, name = self._find(path)
        try:
            if name:
                return store, store.info(name)
        except errors.ObjectNotFoundError:
            if not self._is_directory(store, name):
                raise _error(errno.ENOENT, path) from None
        raise _error(errno.EISDIR, path)

    def _reader(self, path: str) -> ObjectReader:
        """Open an object; raise if there is none, or it is a directory."""
        store, info = self._object(path)
        with _os_errors(path):
            return store.open(info.name)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **kw: Any,
    ) -> Any:
        """Return a file object; see fsspec. A written file that is collected before its end is not stored."""
        text = {name: kw.pop(name) for name in ("encoding", "errors", "newline") if name in kw}
        binary = mode if "b" in mode else mode.replace("t", "") + "b"
        packing = None if "r" in mode else get_compression(self._strip_protocol(path), compression)
        if packing is not None:
            compression = None
        file = super().open(path, binary, block_size, cache_options, compression, **kw)
        if packing is not None:
            file = _PackedFile(compr[packing](file, mode="w"), file)
        return file if "b" in mode else TextFile(file, **text)

    def _open(self, path: str, mode: str = "rb", *_: Any, autocommit: Any = True, **kw: Any) -> Any:
        if mode == "rb":
            return self._again(self._opened, path)
        if mode not in ("wb", "xb"):
            raise NotImplementedError(f"mode {mode!r}: objects are written as a whole")
        store, name = self._find(path)
        if not name:
            raise _error(errno.EISDIR, path)
        exclusive = mode == "xb" or kw.get("exclusive")
        with _os_errors(path):
            file = store.open(name, "xb" if exclusive else "wb", meta=kw.get("meta"))
        return _WrittenFile(file, path, autocommit)

    def _opened(self, path: str) -> _ReadFile:
        with self._reader(path) as reader:
            chunks = _Chunks(self, path, self._js, reader.info)
            if reader.info.chunks <= _WHOLE_CHUNKS:
                chunks.data = reader.readall()
        return _ReadFile(chunks, _BUFFER_BYTES)

    def _again(self, call: Any, *args: Any) -> Any:
        """Return the result of a call, which is repeated once if the object was replaced meanwhile."""
        try:
            return call(*args)
        except errors.ObjectReplacedError:
            return call(*args)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> Any:
        """Return the data of a file, or a range of it; it is read again once if it was replaced."""
        return self._again(self._range, path, start, end)

    def _range(self, path: str, start: int | None, end: int | None) -> bytes:
        if start is None and end is None:
            with self._reader(path) as reader:
                return reader.readall()
        with self._opened(path) as file:
            begin, stop, _ = slice(start, end).indices(file.size)
            file.seek(begin)
            return bytes(file.raw.read(max(0, stop - begin)) or b"")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kw: Any) -> None:
        """Store a file; with the mode "create", only if there is none."""
        with self.open(path, "wb", exclusive=mode == "create", **kw) as file:
            file.write(value)

    def put_file(self, lpath: Any, rpath: str, *args: Any, mode: str = "", **kw: Any) -> None:
        """Store a local file; with the mode "create", only if there is none."""
        super().put_file(lpath, rpath, *args, exclusive=mode == "create", **kw)

    def get_file(self, rpath: str, lpath: Any, *args: Any, **kw: Any) -> None:
        """
        Write a file to a local one; see fsspec.

        The local file is replaced at the end, and unchanged if this raises, unless its directory is not
        writable: then it is written in place.
        """
        is_path = isinstance(lpath, (str, os.PathLike)) and not (args[1:] or kw.get("outfile"))
        target = real_path(lpath) if is_path else None
        if target is None or (
            target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK))
        ):
            super().get_file(rpath, lpath, *args, **kw)
            return
        with replacing(target) as part:
            super().get_file(rpath, str(part), *args, **kw)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy an object with its description, headers, metadata and chunk size."""
        planned = _planned.get()
        if planned is None:
            self._copy(path1, path2)
        else:
            planned.append((path1, path2))

    def _copy(self, path1: str, path2: str) -> tuple[ObjectStore, ObjectInfo] | None:
        """Copy an object; return its store and its info, or that of a link; ``None``: a directory."""
        target, name = self._find(path2)
        try:
            store, info = self._object(path1)
        except IsADirectoryError:
            return None  # directories come from the names of objects
        with _os_errors(path1):
            source = store.open(info.name)
        with source:
            target.put(replace(source.info, name=name), source)
        return store, source.info if info.link is None else info

    def touch(self, path: str, truncate: bool = True, **kw: Any) -> None:
        """Store an empty file; without ``truncate``, only set the time of one that exists."""
        try:
            self.pipe_file(path, b"", mode="overwrite" if truncate else "create", **kw)
        except FileExistsError:
            store, info = self._object(path)
            store.update_meta(info.name, info)

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        self.rm(path)

    def _new_index(self, bucket: str, nuid: str, chunks: int) -> list[tuple[int, int]]:
        """Return the offset and the sequence of each chunk of an object that is stored."""
        stream: Any = self._js.get_stream(OBJECT_PREFIX + bucket)
        subject = chunk_subject(bucket, nuid)
        with stream.ordered_consumer(filter_subjects=subject, headers_only=True) as consumer:
            messages = consumer.fetch_no_wait(chunks)
        index: list[tuple[int, int]] = []
        offset = 0
        for message in messages:
            index.append((offset, message.metadata.stream_seq))
            offset += int(message.headers["Nats-Msg-Size"])
        return index


class _Chunks(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """The data of an object, of which chunks are read when they are needed."""

    def __init__(self, fs: Any, path: str, js: JetStream, info: ObjectInfo) -> None:
        super().__init__(fs, path, cache_type="none", size=info.size)
        self._js = js
        self._object = info
        self._stream: Stream | None = None
        #: The whole object; ``None``: it was not read.
        self.data: bytes | None = None
        # The hash of the first bytes, as far as they were read in order.
        self._hash = sha256()
        self._hashed = 0

    def _fetch_range(self, start: int, end: int) -> bytes:
        data = None if self.data is not None else self._read_chunks(start, end)
        if data is None:
            self.data = self._read_whole() if self.data is None else self.data
            return self.data[start:end]
        if start == self._hashed:
            self._hash.update(data)
            self._hashed += len(data)
            if self._hashed == self.size:
                self._check_digest()
        return data

    def _read_chunks(self, start: int, end: int) -> bytes | None:
        """Return a range; ``None``: the chunks are not stored, or not all of them."""
        info = self._object
        index = self.fs.index(info.bucket, info.nuid, info.chunks)
        if len(index) != info.chunks:
            self.fs.index.cache_clear()
            return None
        first = bisect_left(index, (start + 1, 0)) - 1
        count = bisect_left(index, (end, 0)) - first
        seq = index[first][1]
        found: list[bytes] = []
        stream = self._stream = self._stream or self._js.get_stream(OBJECT_PREFIX + info.bucket)
        while len(found) < count:
            more = stream.get_msgs(count - len(found), seq, chunk_subject(info.bucket, info.nuid))
            if not more:
                return None
            for message in more:
                if message.seq != index[first + len(found)][1]:
                    self.fs.index.cache_clear()  # a chunk was deleted since
                    return None
                found.append(message.data)
            seq = more[-1].seq + 1
        skipped = start - index[first][0]
        return b"".join(found)[skipped : skipped + end - start]

    def _read_whole(self) -> bytes:
        """Read the whole object, because a replica may be behind; raise if it was replaced."""
        info = self._object
        with self._js.object_store(info.bucket).open(info.name) as reader:
            if reader.info.nuid != info.nuid:
                raise errors.ObjectReplacedError(info.bucket, info.name)
            return reader.readall()

    def _check_digest(self) -> None:
        info = self._object
        digest = f"SHA-256={urlsafe_b64encode(self._hash.digest()).decode()}"
        if digest.rstrip("=") != (info.digest or "").rstrip("="):
            raise errors.DigestMismatchError(info.bucket, info.name, info.digest or "", digest)


class _ReadFile(io.BufferedReader):
    """A file that is read."""

    raw: Any

    @property
    def size(self) -> int:
        """The size in bytes."""
        return int(self.raw.size)


class _WrittenFile(Unstored, io.BufferedWriter):
    """A file that is written; without ``autocommit``, `commit` or `discard` ends it."""

    def __init__(self, file: Any, path: str, autocommit: bool) -> None:
        super().__init__(file)
        self._file = file
        self._path = path
        self._autocommit = autocommit

    def close(self) -> None:
        """Store the object, or leave that to `commit`."""
        if not self._autocommit and not self.closed:
            self.flush()
            return
        with _os_errors(self._path):
            super().close()

    def commit(self) -> None:
        """Store the object."""
        self._autocommit = True
        self.close()

    def discard(self) -> None:
        """Close the file without storing the object."""
        self._file.discard()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        self.close()


class _PackedFile(Unstored, io.RawIOBase):
    """A file whose data is compressed; its end is that of the compressed file."""

    def __init__(self, packer: Any, target: _WrittenFile) -> None:
        super().__init__()
        self._packer = packer
        self._target = target

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._packer.write(data)
        return memoryview(data).nbytes

    def close(self) -> None:
        if not self.closed:
            try:
                self._packer.close()
            finally:
                super().close()
                self._target.close()


def _directory(path: str) -> dict[str, Any]:
    """Return a directory as fsspec describes it."""
    return {"name": path, "size": 0, "type": "directory"}


def _file(store: ObjectStore, info: ObjectInfo, target: ObjectInfo) -> dict[str, Any]:
    """Return an object, or a link with its target, as fsspec describes a file."""
    entry: dict[str, Any] = {"name": f"{store.bucket}/{_path_of(info.name)}", "type": "file"}
    entry |= {"size": target.size, "mtime": target.mtime, "digest": target.digest}
    if info.link is not None:
        entry |= {"islink": True, "destination": f"{target.bucket}/{_path_of(target.name)}"}
    return entry


def _state_of(info: StreamInfo) -> object:
    """Return what differs after any change of a stream."""
    state = info.state
    return info.created, state.first_seq, state.last_seq, state.messages


def _target(store: ObjectStore, link: ObjectInfo) -> ObjectInfo:
    """Return the object that a link leads to; raise `FileNotFoundError` if there is none."""
    with _os_errors(f"{store.bucket}/{link.name}"), store.open(link.name) as reader:
        return reader.info
