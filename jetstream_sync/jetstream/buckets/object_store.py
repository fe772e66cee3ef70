"""Object stores (ADR-20): named objects of any size, stored in chunks in a stream."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from ... import errors
from ...api.enums import DeliverPolicy
from ...api.object_store import (
    ObjectInfo,
    ObjectLink,
    ObjectMeta,
    ObjectMetaOptions,
    ObjectStoreStatus,
    decode_info,
    deleted_info,
    description_of,
    info_subject,
    infos_subject,
    is_object,
    name_in,
    status_of,
    stream_name,
)
from ...api.stream import MsgGetRequest
from ...codec import encode
from ...foreign_names import ForeignNames
from ...net.clock import Deadline, seconds
from ...protocol.parser import PAYLOAD, REPLY
from ...subjects import check_bucket, chunk_subject, metadata_of, selects_itself
from ..api_requests import APIRequests, info_of, limited, stream_info, with_one_deadline
from ..direct_get import leader_get
from ..listing import Listing
from ..publish import Publisher
from .object_bucket import ObjectBucket, object_store_not_found
from .object_reading import Download, ObjectReader, real_path, replacing
from .object_writing import (
    ObjectData,
    ObjectWriter,
    ProgressCallback,
    TextFile,
    Upload,
    check_data,
    pieces_of,
)
from .watch import Markers, Watch
from .watch_handle import WatchHandle, watch_with_callbacks

if TYPE_CHECKING:
    from ...protocol.parser import RawMessage

T = TypeVar("T")

#: Maximum number of links that are followed to an object.
_MAX_LINKS: Final = 8


class ObjectStore(ForeignNames):
    """
    An object store: named objects of any size.

    Returned by `JetStream.create_object_store`, `JetStream.object_store` and the like. It needs no
    closing, and any number of threads may use it. The data passes in chunks, so that memory use does not
    depend on the size of an object.

    An object is replaced as a whole. A reader gets the data of one put, or an error.
    """

    def __init__(self, api: APIRequests, publisher: Publisher, bucket: str) -> None:
        self._api = api
        self._publisher = publisher
        self._bucket = ObjectBucket(api, publisher, bucket)

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._bucket.name

    # --- storing --------------------------------------------------------------------------------

    def put(
        self,
        meta: str | ObjectMeta,
        data: ObjectData,
        progress: ProgressCallback | None = None,
        timeout: float | timedelta | None = None,
    ) -> ObjectInfo:
        """
        Store an object, and replace the one with the same name.

        Afterwards the object can be read, and the chunks of the replaced one are purged. If the call
        raises or is interrupted by Ctrl-C, the earlier object is kept, and the chunks that were sent are
        purged; `purge_orphans()` removes chunks that could not be purged. If several clients put the same
        name concurrently, the last one to complete wins.

        Args:
            meta: the name; or an `ObjectMeta`, which also has description, headers, metadata and chunk
                size.
            data: bytes, a binary file, or an iterable of bytes. A file is read from its position to its
                end and is not closed.
            progress: called as ``progress(done, total)`` on this thread after each stored chunk, with
                numbers of bytes; the total is ``None`` if it is not known. An exception ends the put.
            timeout: how long to wait for the next chunk to be stored, in seconds, not for the whole
                object; ``None``: the timeout of the JetStream context.

        Returns:
            The info of the stored object.

        Raises:
            InvalidNameError: the name is empty or too long.
            InvalidOptionError: the data is a str, a text file, a closed file or not bytes; the chunk
                size is above the server's ``max_payload``.
            ObjectLinkError: the meta has a link; see `add_link()`.
            ObjectStoreSealedError: the bucket is sealed.
            BucketNotFoundError: the bucket does not exist.
            NoStreamResponseError: the data does not reach the bucket.
            PermissionsError: the user may not write to the bucket.
            APIError: the server refused, for example because the bucket is full.
            TimeoutError: no chunk was stored in time.
            ObjectIncompleteError: the server lost chunks in a restart, or stored them out of order.
            ConnectionLostError: the connection was lost. If that happened at the very end, the object
                may be stored all the same.
            ConnectionClosedError: the connection is closed.

        """
        total = check_data(data)
        upload = Upload(self._bucket, _meta_of(meta), total, progress, timeout)
        try:
            with ObjectWriter(upload) as writer:
                for piece in pieces_of(data, upload.chunk_size):
                    writer.write(piece)
        except BaseException:
            upload.abort()  # a Ctrl-C may have ended the end of the block
            raise
        assert writer.info is not None
        return writer.info

    def put_file(
        self,
        path: str | os.PathLike[str],
        name: str | ObjectMeta | None = None,
        progress: ProgressCallback | None = None,
        timeout: float | timedelta | None = None,
    ) -> ObjectInfo:
        """
        Store a file.

        Args:
            path: the file.
            name: the name of the object, or its meta; ``None``: the last part of the path.
            progress: as in `put()`.
            timeout: as in `put()`.

        Raises:
            OSError: the file cannot be read.
            Error: as `put()`.

        """
        path = os.fspath(path)  # a number would be a file that is open
        meta = os.path.basename(path) if name is None else name  # noqa: PTH119
        with open(path, "rb") as file:  # noqa: PTH123
            return self.put(meta, file, progress, timeout)

    # --- reading --------------------------------------------------------------------------------

    @overload
    def open(
        self,
        name: str,
        mode: Literal["rb"] = "rb",
        *,
        progress: ProgressCallback | None = None,
        timeout: float | timedelta | None = None,
    ) -> ObjectReader: ...
    @overload
    def open(
        self,
        name: str,
        mode: Literal["wb", "xb"],
        *,
        meta: ObjectMeta | None = None,
        progress: ProgressCallback | None = None,
        timeout: float | timedelta | None = None,
    ) -> ObjectWriter: ...
    @overload
    def open(
        self,
        name: str,
        mode: Literal["r", "rt", "w", "wt", "x", "xt"],
        *,
        meta: ObjectMeta | None = None,
        progress: ProgressCallback | None = None,
        timeout: float | timedelta | None = None,
        encoding: str = "utf-8",
        newline: str | None = None,
    ) -> TextIOWrapper: ...
    def open(
        self,
        name: str,
        mode: Literal["rb", "wb", "xb", "r", "rt", "w", "wt", "x", "xt"] = "rb",
        *,
        meta: ObjectMeta | None = None,
        progress: ProgressCallback | None = None,
        timeout: float | timedelta | None = None,
        encoding: str = "utf-8",
        newline: str | None = None,
    ) -> ObjectReader | ObjectWriter | TextIOWrapper:
        """
        Open an object as a file.

        Args:
            name: the name. To read, links are followed.
            mode: ``"rb"``: read bytes; ``"wb"``: write bytes, and store the object when the file is closed;
                ``"xb"``: the same, but never replace an object; ``"r"`` or ``"rt"``, ``"w"`` or ``"wt"``,
                ``"x"`` or ``"xt"``: the same with text. The ``buffer`` of a text file is the binary file.
            meta: for writing, the description, headers, metadata and chunk size; its name is ignored.
            progress: as in `put()`.
            timeout: how long to wait for the next chunk, in seconds; ``None``: the timeout of the
                JetStream context.
            encoding: of the text.
            newline: how line ends of the text are translated, as in the built-in `open`.

        Raises:
            InvalidOptionError: the mode is another one, or there is a meta to read.
            ObjectNotFoundError: there is no such object.
            ObjectDeletedError: it was deleted.
            ObjectLinkError: it is a link that cannot be followed.
            UnsupportedDigestError: its data cannot be verified.
            ObjectExistsError: the mode is ``"xb"`` or ``"x"``, and there is an object or a link with the
                name. `ObjectWriter.close` raises it if another client stored the object meanwhile.
            Error: to write, as `put()`.
            APIError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        if mode not in ("rb", "wb", "xb", "r", "rt", "w", "wt", "x", "xt"):
            raise errors.InvalidOptionError(
                "mode", mode, "must be 'rb', 'wb', 'xb', 'r', 'w' or 'x'"
            )
        file: ObjectReader | ObjectWriter
        if mode[0] != "r":
            wanted = ObjectMeta(name=name) if meta is None else replace(_meta_of(meta), name=name)
            exclusive = mode[0] == "x"
            file = ObjectWriter(Upload(self._bucket, wanted, None, progress, timeout, exclusive))
        elif meta is not None:
            raise errors.InvalidOptionError("meta", meta, "is only used to write")
        else:
            file = ObjectReader(self._download(name, progress, timeout))
        return file if "b" in mode else TextFile(file, encoding, newline=newline)

    def _download(
        self, name: str, progress: ProgressCallback | None, timeout: float | timedelta | None
    ) -> Download:
        bucket, info = self._resolve(name, self._api.deadline(timeout))
        return Download(bucket, info, progress, timeout)

    def get_bytes(
        self,
        name: str,
        progress: ProgressCallback | None = None,
        timeout: float | timedelta | None = None,
    ) -> bytes:
        """
        Return the data of an object. Links are followed.

        Args:
            name: the name.
            progress: as in `put()`.
            timeout: how long to wait for the next chunk, in seconds; ``None``: the timeout of the
                JetStream context.

        Raises:
            ObjectNotFoundError, ObjectDeletedError, ObjectLinkError, UnsupportedDigestError: as `open()`.
            DigestMismatchError: the data does not have the digest of the info.
            ObjectIncompleteError: chunks are missing.
            ObjectReplacedError: the object was replaced or deleted meanwhile.
            TimeoutError: no chunk arrived in time.
            APIError, ConnectionClosedError: as `info()`.

        """
        with ObjectReader(self._download(name, progress, timeout)) as reader:
            return reader.readall()

    def get_file(
        self,
        name: str,
        path: str | os.PathLike[str],
        progress: ProgressCallback | None = None,
        timeout: float | timedelta | None = None,
    ) -> ObjectInfo:
        """
        Write the data of an object to a file. Links are followed.

        The data is written to a temporary file beside it, which is renamed when the digest was checked.
        If the call raises, also at a Ctrl-C, the path is unchanged. A device or a named pipe is written
        to directly.

        Args:
            name: the name.
            path: the file; an existing one is replaced and keeps its mode.
            progress: as in `put()`.
            timeout: as in `get_bytes()`.

        Returns:
            The info of the object.

        Raises:
            OSError: the file cannot be written.
            Error: as `get_bytes()`.

        """
        # A symbolic link stays one: the file that it points to is replaced.
        target = real_path(path)
        if target.is_dir():
            raise IsADirectoryError(f"{str(target)!r} is a directory: give the path of a file")
        if target.exists() and not target.is_file():
            with ObjectReader(self._download(name, progress, timeout)) as reader:
                with target.open("wb") as file:
                    file.writelines(iter(reader.read_chunk, b""))
                return reader.info
        with (
            replacing(target) as part,
            ObjectReader(self._download(name, progress, timeout)) as reader,
            part.open("xb") as file,
        ):
            file.writelines(iter(reader.read_chunk, b""))
        return reader.info

    def _resolve(self, name: str, deadline: Deadline) -> tuple[ObjectBucket, ObjectInfo]:
        """Return the info of an object and its bucket, after following links."""
        bucket = self._bucket
        seen: set[tuple[str, str]] = set()
        while True:
            info = _existing(bucket, name, deadline)[0]
            link = info.link
            if link is None:
                return bucket, info
            seen.add((bucket.name, name))
            reason = ""
            if link.name is None:
                reason = f"it is a link to bucket {link.bucket!r}, which has no data"
            elif (link.bucket, link.name) in seen:
                reason = "its links form a loop"
            elif len(seen) >= _MAX_LINKS:
                reason = f"it leads through more than {_MAX_LINKS} links"
            if link.name is None or reason:
                raise errors.ObjectLinkError(self.bucket, info.name, reason)
            try:
                info_subject(check_bucket(link.bucket), link.name)
            except errors.InvalidNameError as error:
                raise errors.ObjectLinkError(
                    self.bucket, info.name, f"its target: {error}"
                ) from None
            name = link.name
            if link.bucket != bucket.name:
                bucket = ObjectBucket(self._api, self._publisher, link.bucket)

    def info(
        self, name: str, deleted: bool = False, timeout: float | timedelta | None = None
    ) -> ObjectInfo:
        """
        Return the info of an object. A link is not followed.

        The leader of the stream answers, so the last change is always seen.

        Args:
            name: the name.
            deleted: whether to return the info of a deleted object instead of raising.
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Raises:
            ObjectNotFoundError: there is no such object.
            ObjectDeletedError: it was deleted.
            InvalidNameError: the name is empty or too long.
            BucketNotFoundError: the bucket does not exist.
            APIError: the server returned an error.
            TimeoutError: the server did not reply in time.
            JetStreamNotEnabledError, ConnectionClosedError: as `JetStream.account_info`.

        """
        return _existing(self._bucket, name, self._api.deadline(timeout), deleted)[0]

    # --- changing -------------------------------------------------------------------------------

    def delete(self, name: str, timeout: float | timedelta | None = None) -> None:
        """
        Delete an object, or a link.

        Its data is purged. Its info stays, marked as deleted, so that watchers notice. Nothing happens if
        it was deleted before.

        Args:
            name: the name.
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Raises:
            ObjectNotFoundError: there is no such object.
            ObjectStoreSealedError: the bucket is sealed.
            Error: otherwise as `info()`.

        """
        deadline = self._api.deadline(timeout)

        def mark() -> ObjectInfo:
            info, sequence = _existing(self._bucket, name, deadline, deleted=True)
            if not info.deleted:
                marker = replace(info, deleted=True, size=0, chunks=0, digest=None)
                self._bucket.store_info(marker, sequence, deadline)
            return info

        info = _until_stored(mark, deadline)
        # Also if it was deleted before: the chunks are left if a deletion was interrupted.
        self._bucket.purge_chunks(info.nuid, deadline, info.chunks)

    def update_meta(
        self, name: str, meta: ObjectMeta, timeout: float | timedelta | None = None
    ) -> ObjectInfo:
        """
        Change the name, description, headers and metadata of an object.

        All of them are replaced. The data and the options stay. Another name renames the object. If that is
        interrupted, both names may have the same data, which the deletion of either would remove: repeat the call.

        Args:
            name: the current name.
            meta: the new values; its options are ignored. An `ObjectInfo` can be changed with
                `dataclasses.replace` and passed here.
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Returns:
            The new info.

        Raises:
            ObjectNotFoundError, ObjectDeletedError: there is no such object.
            ObjectExistsError: there is an object with the new name.
            ObjectReplacedError: another client replaced or deleted the object during the renaming; there
                is no object with the new name.
            ObjectStoreSealedError: the bucket is sealed.
            Error: otherwise as `info()`.

        """
        meta = _meta_of(meta)
        deadline = self._api.deadline(timeout)

        def change() -> ObjectInfo:
            info, sequence = _existing(self._bucket, name, deadline)
            changed = replace(info, **description_of(meta, datetime.now(timezone.utc)))
            if meta.name == name:
                self._bucket.store_info(changed, sequence, deadline)
            else:
                self._store_new(changed, deadline)
                self._remove_old(info, sequence, changed, deadline)
            return changed

        return _until_stored(change, deadline)

    def _store_new(self, info: ObjectInfo, deadline: Deadline, *, over_links: bool = False) -> None:
        """Store an info under a name that is free, deleted, of the same data, or (if permitted) a link."""
        current, sequence = self._bucket.last_info(info.name, deadline)
        if (
            current is not None
            and not current.deleted
            and not (current.chunks and current.nuid == info.nuid)  # of a rename that has not ended
            and not (over_links and current.link is not None)
        ):
            raise errors.ObjectExistsError(self.bucket, info.name)
        self._bucket.store_info(info, sequence, deadline)

    def _remove_old(
        self, info: ObjectInfo, sequence: int, renamed: ObjectInfo, deadline: Deadline
    ) -> None:
        """Remove the info under the old name of a renamed object."""
        # Both names have the same chunks for a moment. A writer that replaces or deletes the object
        # under its old name meanwhile purges them. The purge response of the old info shows it: the
        # purge is bounded by the sequence of that info, which is gone then.
        subject = info_subject(self.bucket, info.name)
        while not self._bucket.purge(subject, deadline, before=sequence + 1):
            current, sequence = self._bucket.last_info(info.name, deadline)
            if current is None or current.nuid != info.nuid or current.deleted:
                subject = info_subject(self.bucket, renamed.name)
                self._bucket.purge(subject, deadline)
                raise errors.ObjectReplacedError(self.bucket, info.name)

    def add_link(
        self, name: str | ObjectMeta, info: ObjectInfo, timeout: float | timedelta | None = None
    ) -> ObjectInfo:
        """
        Add a link to an object, of this bucket or of another one.

        Reading the link reads the object. A link or a deleted object with this name is replaced.

        Args:
            name: the name of the link, or its meta.
            info: the info of the object.
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Returns:
            The info of the link.

        Raises:
            ObjectLinkError: the object is deleted, or is itself a link.
            ObjectExistsError: there is an object with the name of the link.
            ObjectStoreSealedError: the bucket is sealed.
            Error: otherwise as `info()`.

        """
        if not isinstance(info, ObjectInfo):
            raise errors.InvalidOptionError("info", info, "must be the ObjectInfo of an object")
        if info.deleted:
            raise errors.ObjectLinkError(
                info.bucket, info.name, "a deleted object cannot be linked to"
            )
        if info.link is not None:
            raise errors.ObjectLinkError(
                info.bucket, info.name, "it is a link: add a link to its target instead"
            )
        return self._link(name, ObjectLink(bucket=info.bucket, name=info.name), timeout)

    def add_bucket_link(
        self, name: str | ObjectMeta, store: ObjectStore, timeout: float | timedelta | None = None
    ) -> ObjectInfo:
        """
        Add a link to a whole bucket, which cannot be read; its target is in the ``link`` of its info.

        Args:
            name: the name of the link, or its meta.
            store: the bucket.
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Raises:
            Error: as `add_link()`.

        """
        if not isinstance(store, ObjectStore):
            raise errors.InvalidOptionError("store", store, "must be an ObjectStore")
        return self._link(name, ObjectLink(bucket=store.bucket), timeout)

    def _link(
        self, name: str | ObjectMeta, link: ObjectLink, timeout: float | timedelta | None
    ) -> ObjectInfo:
        meta = _meta_of(name)
        deadline = self._api.deadline(timeout)
        info = ObjectInfo(
            **description_of(meta, datetime.now(timezone.utc)),
            options=ObjectMetaOptions(link=link),
            bucket=self.bucket,
            nuid=os.urandom(11).hex(),
        )
        _until_stored(lambda: self._store_new(info, deadline, over_links=True), deadline)
        return info

    # --- listing and watching -------------------------------------------------------------------

    def list(
        self,
        deleted: bool = False,
        timeout: float | timedelta | None = None,
        *,
        allow_incomplete: bool = False,
    ) -> Listing[ObjectInfo]:
        """
        Return the infos of all objects and links, sorted by name; empty if there are none.

        Objects whose infos another program has stored in another form are missing in the `Listing`.

        Args:
            deleted: whether to include deleted objects.
            timeout: how long to wait for all of them, in seconds; ``None``: the timeout of the
                JetStream context.
            allow_incomplete: whether the readable infos are enough.

        Raises:
            IncompleteListingError: where the `Listing` is used as complete, without ``allow_incomplete``.
            BucketNotFoundError: the bucket does not exist.
            StreamRecreatedError: the bucket was deleted and created again, or restored to an earlier state,
                while the infos were read.
            TimeoutError: the infos did not arrive in time.
            APIError, PermissionsError, ConnectionClosedError: the server refused, or the connection is
                closed.

        """
        deadline = self._api.deadline(timeout)
        missing: dict[str, str] = {}
        with (
            limited(deadline),
            self._watch(DeliverPolicy.LAST_PER_SUBJECT, False, False, missing) as watch,
        ):
            watch.wait_current(deadline.left())
            # If an object changed meanwhile, its last info is kept.
            found = {info.name: info for info in watch.initial()}
        names = sorted(found.keys() - missing.keys())
        infos = [found[name] for name in names if deleted or not found[name].deleted]
        kind = f"objects of bucket {self.bucket!r}"
        return Listing(infos, kind, missing, {}, 0, allow_incomplete)

    @overload
    def watch(
        self, *, ignore_deletes: bool = False, updates_only: bool = False
    ) -> Watch[ObjectInfo]: ...
    @overload
    def watch(
        self,
        *,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        cb: Callable[[ObjectInfo], object],
        current_cb: Callable[[], object] | None = None,
    ) -> WatchHandle: ...
    def watch(
        self,
        *,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        cb: Callable[[ObjectInfo], object] | None = None,
        current_cb: Callable[[], object] | None = None,
    ) -> Watch[ObjectInfo] | WatchHandle:
        """
        Watch the infos of the bucket: those that exist, and then every change.

        An object that vanished without a message, as in a bucket that was deleted and created again or
        restored to an earlier state, is returned as deleted; all infos of such a bucket follow.

        Args:
            ignore_deletes: whether to leave out deleted objects.
            updates_only: whether to leave out what exists.
            cb: called with each info, on a thread of its own; ``None``: take the infos from the result.
            current_cb: called once, after ``cb`` has handled the infos that existed at the start.

        Returns:
            An iterator; with ``cb`` a handle to stop it.

        Raises:
            InvalidOptionError: ``current_cb`` is given without ``cb``, or one is not callable.
            BucketNotFoundError: the bucket does not exist.
            APIError, PermissionsError, TimeoutError, ConnectionClosedError: the consumer could not be
                created.

        """
        policy = DeliverPolicy.NEW if updates_only else DeliverPolicy.LAST_PER_SUBJECT
        make = partial(self._watch, policy, ignore_deletes)
        if cb is None and current_cb is None:
            return make()
        return watch_with_callbacks(self._api, make, cb, current_cb)

    def _watch(
        self,
        policy: DeliverPolicy,
        ignore_deletes: bool,
        follows: bool = True,
        missing: dict[str, str] | None = None,
    ) -> Watch[ObjectInfo]:
        """Watch the infos; those that cannot be read are ``missing``, by name, or reported."""
        report = self._api.core.events.error

        def info_of_delivery(delivery: RawMessage) -> ObjectInfo | None:
            try:
                time = metadata_of(delivery[REPLY]).timestamp
                # A rename of nats-py leaves the new name in the info of the old one.
                info = decode_info(delivery[PAYLOAD], time, name_in(delivery[0]))
            except errors.Error as error:
                # A message of another program; the watch goes on.
                if missing is None:
                    report(error)
                else:
                    missing[name_in(delivery[0])] = str(error)
                return None
            if missing:
                missing.pop(name_in(delivery[0]), None)
            return None if ignore_deletes and info.deleted else info

        markers = Markers(
            lambda delivery: is_object(delivery[PAYLOAD]),
            lambda subject: (b"", deleted_info(self.bucket, subject)),
        )
        return Watch(
            self._api,
            stream_name(self.bucket),
            {"filter_subjects": infos_subject(self.bucket), "deliver_policy": policy},
            info_of_delivery,
            partial(object_store_not_found, self.bucket),
            markers if follows else None,
        )

    # --- the bucket -----------------------------------------------------------------------------

    def status(self) -> ObjectStoreStatus:
        """
        Return the config and state of the bucket.

        Raises:
            BucketNotFoundError: it does not exist.
            APIError, JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as
                `JetStream.account_info`.

        """
        with self._bucket.translated_errors():
            return status_of(stream_info(self._api, stream_name(self.bucket)))

    def purge_orphans(
        self,
        older_than: float | timedelta = timedelta(days=1),
        timeout: float | timedelta | None = None,
    ) -> int:
        """
        Delete the chunks that no object has, of uploads and deletions that were interrupted.

        Args:
            older_than: keep chunks of uploads that stored one less than this time ago, in seconds, by the
                clock of the server: the upload may go on.
            timeout: for all requests, in seconds; ``None``: the timeout of the JetStream context for each.

        Returns:
            The number of deleted chunks.

        Raises:
            ObjectStoreSealedError: the bucket is sealed.
            Error: otherwise as `list()`.

        """
        limit = seconds(older_than, "older_than")
        deadline = Deadline(timeout)
        stream = stream_name(self.bucket)
        with limited(deadline):
            with self._bucket.translated_errors():
                found = stream_info(self._api, stream, chunk_subject(self.bucket, "*"))
            now = found.ts or datetime.now(timezone.utc)  # of the server, if it reports that
            # In this order: an upload that ends meanwhile has its info.
            used = {chunk_subject(self.bucket, info.nuid) for info in self.list()}
        deleted = 0
        for subject in sorted(filter(selects_itself, set(found.state.subjects or ()) - used)):
            with suppress(errors.MessageNotFoundError):
                request = MsgGetRequest(last_by_subj=subject)
                last = leader_get(self._api, stream, request, self._limit(deadline))
                if now - last.time >= timedelta(seconds=limit):
                    deleted += self._bucket.purge(subject, self._limit(deadline))
        return deleted

    def _limit(self, deadline: Deadline) -> Deadline:
        return self._api.deadline() if deadline.at is None else deadline

    @with_one_deadline
    def seal(self) -> None:
        """
        Seal the bucket: it can be read, but never be changed again. This cannot be undone.

        Raises:
            BucketNotFoundError: it does not exist.
            APIError, JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as
                `JetStream.account_info`.

        """
        name = stream_name(self.bucket)
        with self._bucket.translated_errors():
            config = stream_info(self._api, name).config
            body: dict[str, Any] = encode(replace(config, sealed=True))
            info_of(self._api.ask(self._api.routes.to("STREAM.UPDATE", name), body))

    def __repr__(self) -> str:
        return f"<ObjectStore {self.bucket!r}>"


def _meta_of(meta: str | ObjectMeta) -> ObjectMeta:
    if isinstance(meta, ObjectMeta):
        return meta
    if not isinstance(meta, str):
        raise errors.InvalidOptionError(
            "meta", meta, "must be the name of the object or an ObjectMeta"
        )
    return ObjectMeta(name=meta)


def _until_stored(change: Callable[[], T], deadline: Deadline) -> T:
    """Return the result of a change of an info, which is repeated while other writers change it, too."""
    while True:
        try:
            return change()
        except errors.WrongLastSequenceError:
            if deadline.expired():
                raise


def _existing(
    bucket: ObjectBucket, name: str, deadline: Deadline, deleted: bool = False
) -> tuple[ObjectInfo, int]:
    """Return the info of an object and its sequence."""
    info, sequence = bucket.last_info(name, deadline)
    if info is None:
        raise errors.ObjectNotFoundError(bucket.name, name)
    if info.deleted and not deleted:
        raise errors.ObjectDeletedError(bucket.name, name)
    return info, sequence
