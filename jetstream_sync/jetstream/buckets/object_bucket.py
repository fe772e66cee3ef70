"""Access to the messages of one object store bucket: infos with compare and set, and purges of chunks."""

# Rules:
#
# 1. An info is published with the sequence of the info that it replaces. When several writers change
#    one object, the server accepts exactly one of them; the others read the newer info and try again.
# 2. The writer whose info replaced another one purges the chunks of exactly that one. The chunks of an
#    object that a reader can find are therefore never purged.
# 3. Chunks that could not be purged stay until `ObjectStore.purge_orphans`.

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ... import errors
from ...api.object_store import ObjectInfo, decode_info, encode_info, info_subject, stream_name
from ...api.stream import MsgGetRequest
from ...headers import EXPECTED_LAST_SUBJECT_SEQ, ROLLUP
from ...net.clock import Deadline
from ...subjects import API_PREFIX, chunk_subject
from ..api_requests import APIRequests
from ..direct_get import leader_get
from ..publish import PubAckFuture, Publisher

if TYPE_CHECKING:
    from ...api.publish import PubAck

log: logging.Logger = logging.getLogger("jetstream_sync.object_store")

#: Seconds without a reply after which a purge is repeated.
_REPEAT_INTERVAL_S: Final = 2.0


def object_store_not_found(bucket: str) -> errors.BucketNotFoundError:
    """Return the error for an object store that does not exist."""
    return errors.BucketNotFoundError.found_here(f"object store {bucket!r} does not exist")


class ObjectBucket:
    """The requests to one bucket; any thread may use it."""

    def __init__(self, api: APIRequests, publisher: Publisher, name: str) -> None:
        self.api = api
        self.publisher = publisher
        self.name = name
        self.stream: str = stream_name(name)
        #: Whether no direct get was refused by the permissions of the user.
        self.may_get_direct: bool = True

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn errors of the stream into those of the object store."""
        try:
            yield
        except errors.StreamNotFoundError as error:
            raise object_store_not_found(self.name) from error
        except errors.APIError as error:
            if error.err_code == errors.ErrorCode.STREAM_SEALED and not isinstance(
                error, errors.ObjectStoreSealedError
            ):
                raise errors.ObjectStoreSealedError(*error.args) from error
            raise
        except errors.NoStreamResponseError as error:
            prefix = self.api.routes.prefix
            hint = f"object store {self.name!r} may not exist"
            if prefix != API_PREFIX:
                hint = f"through the API prefix {prefix!r} object stores can only be read"
            raise errors.NoStreamResponseError(error.subject, hint) from error

    # --- infos ----------------------------------------------------------------------------------

    def last_info(
        self, name: str, deadline: Deadline, to_replace: bool = False
    ) -> tuple[ObjectInfo | None, int]:
        """Return the info of an object, and its sequence; ``None`` and 0 if there is none."""
        # The leader of the stream answers, so the info of an earlier change is always seen.
        request = MsgGetRequest(last_by_subj=info_subject(self.name, name))
        try:
            with self.translated_errors():
                msg = leader_get(self.api, self.stream, request, deadline)
        except errors.MessageNotFoundError:
            return None, 0
        try:
            return decode_info(msg.data, msg.time, name), msg.seq
        except errors.InvalidResponseError:
            if not to_replace:
                raise
            return None, msg.seq

    def publish_info(self, info: ObjectInfo, expected: int, timeout: float | None) -> PubAckFuture:
        """Publish an info that replaces the one with the sequence ``expected``; 0: there is none."""
        subject, headers = self._info_message(info, expected)
        return self.publisher.publish_async(subject, encode_info(info), headers, timeout)

    def store_info(self, info: ObjectInfo, expected: int, deadline: Deadline) -> None:
        """Publish an info, and wait until it is stored."""
        subject, headers = self._info_message(info, expected)
        with self.translated_errors():
            self.check_ack(
                self.publisher.publish_expecting(subject, encode_info(info), headers, deadline)
            )

    def _info_message(self, info: ObjectInfo, expected: int) -> tuple[str, dict[str, str]]:
        """Return the subject and headers of an info."""
        headers = {ROLLUP: "sub", EXPECTED_LAST_SUBJECT_SEQ: str(expected)}
        return info_subject(self.name, info.name), headers

    def check_ack(self, ack: PubAck) -> None:
        """Check that a message was stored in this bucket."""
        if ack.stream != self.stream:
            raise errors.InvalidResponseError(
                f"stream {ack.stream!r} stored a message of bucket {self.name!r}: "
                "its subjects overlap with those of the bucket"
            )

    # --- chunks ---------------------------------------------------------------------------------

    def purge(self, subject: str, deadline: Deadline, before: int | None = None) -> int:
        """Delete messages, and return their number."""
        body: dict[str, str | int] = {"filter": subject}
        if before is not None:
            body["seq"] = before
        route = self.api.routes.to("STREAM.PURGE", self.stream)
        while True:
            try:
                with self.translated_errors():
                    response = self.api.ask(route, body, deadline.sooner(_REPEAT_INTERVAL_S))
            except errors.TimeoutError:  # a stream without a leader does not reply
                if deadline.expired():
                    raise
                continue
            purged = response.get("purged")
            return purged if type(purged) is int else 0

    def request_purge(self, subject: str) -> None:
        """Request the purge of a subject without waiting for it."""
        self.api.send(self.api.routes.to("STREAM.PURGE", self.stream), {"filter": subject})

    def purge_chunks(self, nuid: str, deadline: Deadline, count: int = 0) -> None:
        """Delete the chunks of an object that no reader can find; a failure is only logged."""
        try:
            # Server 2.10 may leave messages behind after it was killed: a second purge takes them.
            while purged := self.purge(chunk_subject(self.name, nuid), deadline):
                count -= purged
                if not count:
                    break
        except errors.ObjectStoreSealedError:
            pass  # it refused the chunks, too
        except errors.Error as error:
            log.warning("bucket %r: chunks %s could not be purged: %s", self.name, nuid, error)
