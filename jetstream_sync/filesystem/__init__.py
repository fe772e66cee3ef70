"""
Object stores as a filesystem of fsspec, for pandas, pyarrow and others.

Import it with the extra ``fsspec``. Its URLs are ``jetstream://bucket/name``; a name may have slashes.
"""

from __future__ import annotations

import io
import tempfile
from typing import TYPE_CHECKING, Any, Final

from fsspec.spec import AbstractFileSystem

from .. import (
    BucketNotFoundError,
    JetStream,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStore,
    shared_connection,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["JetStreamFileSystem"]

#: The largest object that is read into memory, in bytes; a larger one is copied to a temporary file.
_IN_MEMORY: Final = 64 * 1024 * 1024


class JetStreamFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """
    The object stores of an account, as directories with files.

    Objects are read as a whole before the first byte is returned, so that their digest is checked and the
    file is seekable. A written object appears when its file is closed. The options of `connect()`, with
    ``servers`` and ``context``, are the ``storage_options``; connections are shared in the process.

    Example::

        pandas.read_parquet("jetstream://REPORTS/2024/01.parquet", storage_options={"servers": url})

    Args:
        servers: as for `connect()`.
        context: as for `connect()`.
        domain: as for `Connection.jetstream`.
        **options: the other options of `connect()`, and those of fsspec.

    """

    protocol = "jetstream"
    root_marker = ""

    def __init__(
        self,
        servers: str | None = None,
        context: str | None = None,
        domain: str | None = None,
        **options: Any,
    ) -> None:
        ours = ("use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache")
        fsspec_options = {name: options.pop(name) for name in ours if name in options}
        super().__init__(servers=servers, context=context, domain=domain, **fsspec_options)
        self._connecting = {"servers": servers, "context": context, **options}
        self._domain = domain

    @property
    def _js(self) -> JetStream:
        return shared_connection(**self._connecting).jetstream(domain=self._domain)

    def _find(self, path: str) -> tuple[ObjectStore, str]:
        """Return the store of a path, and the name in it; empty: the path is that of the store."""
        bucket, _, name = self._strip_protocol(path).partition("/")
        try:
            return self._js.object_store(bucket), name
        except BucketNotFoundError as error:
            raise FileNotFoundError(path) from error

    # --- directories ----------------------------------------------------------------------------

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return what a directory has; see fsspec."""
        path = self._strip_protocol(path).rstrip("/")
        entries = list(self._stores() if not path else self._objects(path))
        if path and "/" in path and not entries:
            raise FileNotFoundError(path)
        return entries if detail else [entry["name"] for entry in entries]

    def _stores(self) -> Iterator[dict[str, Any]]:
        for name in self._js.object_store_names():
            yield {"name": name, "size": 0, "type": "directory"}

    def _objects(self, path: str) -> Iterator[dict[str, Any]]:
        store, prefix = self._find(path)
        seen = set()
        for info in store.list():
            if info.name == prefix:
                yield _file(store, info)
                continue
            if prefix and not info.name.startswith(f"{prefix}/"):
                continue
            start = len(prefix) + 1 if prefix else 0
            first, slash, _ = info.name[start:].partition("/")
            if not slash:
                yield _file(store, info)
            elif first not in seen:
                seen.add(first)
                name = f"{store.bucket}/{info.name[:start]}{first}"
                yield {"name": name, "size": 0, "type": "directory"}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size and type of a file or directory; see fsspec."""
        path = self._strip_protocol(path).rstrip("/")
        if not path:
            return {"name": "", "size": 0, "type": "directory"}
        store, name = self._find(path)
        try:
            if name:
                return _file(store, store.info(name))
        except ObjectNotFoundError:
            if not any(info.name.startswith(f"{name}/") for info in store.list()):
                raise FileNotFoundError(path) from None
        return {"name": path, "size": 0, "type": "directory"}

    def created(self, path: str) -> Any:
        """Return when a file was written, in UTC."""
        return self.modified(path)

    def modified(self, path: str) -> Any:
        """Return when a file was written, in UTC; ``None`` for a directory."""
        return self.info(path).get("mtime")

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Create the store of a path; directories in it exist as long as they have files."""
        bucket, _, name = self._strip_protocol(path).partition("/")
        if not name:
            self._js.create_object_store(bucket=bucket, **options)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create the store of a path if it does not exist."""
        try:
            self._find(path)
        except FileNotFoundError:
            self.mkdir(path)

    # --- files ----------------------------------------------------------------------------------

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete objects; directories vanish with their last file."""
        paths = [path] if isinstance(path, str) else path
        for each in paths:
            found = self.find(each, maxdepth) if recursive else self.expand_path(each)
            for name in found:
                self.rm_file(name)

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        store, name = self._find(path)
        try:
            store.delete(name)
        except ObjectNotFoundError as error:
            raise FileNotFoundError(path) from error

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy an object."""
        store, name = self._find(path2)
        with self.open(path1, "rb") as source:
            store.put(name, source)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        store, name = self._find(path)
        if mode == "wb":
            return io.BufferedWriter(store.open(name, "wb"))
        if mode != "rb":
            raise NotImplementedError(f"mode {mode!r}: objects are written as a whole")
        try:
            with store.open(name, "rb") as source:
                large = (source.info.size or 0) > _IN_MEMORY
                file = tempfile.TemporaryFile() if large else io.BytesIO()  # noqa: SIM115 - returned
                try:
                    while chunk := source.read_chunk():
                        file.write(chunk)
                except BaseException:
                    file.close()
                    raise
        except ObjectNotFoundError as error:
            raise FileNotFoundError(path) from error
        file.seek(0)
        return file


def _file(store: ObjectStore, info: ObjectInfo) -> dict[str, Any]:
    """Return an object as fsspec describes a file."""
    return {
        "name": f"{store.bucket}/{info.name}",
        "size": info.size,
        "type": "file",
        "mtime": info.mtime,
        "digest": info.digest,
    }
