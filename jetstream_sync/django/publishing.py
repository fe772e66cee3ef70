"""The connection of the process, and messages that are published when a transaction commits."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import transaction

from .. import shared_connection
from .config import Config

if TYPE_CHECKING:
    from .. import Connection, Headers, JetStream


def connection() -> Connection:
    """
    Return the connection of this process; open it if there is none.

    Call this wherever the connection is needed; a forked process gets its own. Workers have another
    connection. See `jetstream_sync.shared_connection`.

    Raises:
        ImproperlyConfigured: the setting ``JETSTREAM`` is wrong.
        Error: as `jetstream_sync.connect`.

    """
    config = Config.load()
    return shared_connection(config.servers, **{"name": config.name, **config.connection})


def jetstream() -> JetStream:
    """
    Return a JetStream context of `connection`.

    Raises:
        ImproperlyConfigured: the setting ``JETSTREAM`` is wrong.
        Error: the connection cannot be opened.

    """
    return connection().jetstream(timeout=Config.load().timeout)


def publish_on_commit(
    subject: str,
    payload: bytes = b"",
    headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None = None,
    *,
    msg_id: str | None = None,
    using: str | None = None,
    robust: bool = False,
    **options: Any,
) -> str:
    """
    Publish a message when the current transaction commits, or now if there is none.

    Nothing is published if the transaction is rolled back. The message is lost if the process ends, or
    publishing fails, after the commit: use `Outbox.publish` for messages that must not be lost. In
    tests, ``TestCase.captureOnCommitCallbacks`` captures it.

    Args:
        subject: the subject, without wildcards.
        payload: the payload.
        headers: names and values.
        msg_id: the message id for deduplication; ``None``: a random one.
        using: the database of the transaction; ``None``: the default.
        robust: whether an error of publishing is logged. Otherwise it is raised where the transaction
            ends, although that is committed.
        **options: as for `JetStream.publish`.

    Returns:
        The message id.

    Raises:
        Error: there is no transaction, and publishing failed.

    """
    msg_id = uuid.uuid4().hex if msg_id is None else msg_id
    publish = functools.partial(
        _publish, subject, payload, headers=headers, msg_id=msg_id, **options
    )
    transaction.on_commit(publish, using=using, robust=robust)
    return msg_id


def _publish(subject: str, payload: bytes, **options: Any) -> None:
    jetstream().publish(subject, payload, **options)
