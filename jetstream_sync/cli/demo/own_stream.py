"""The demo's own stream: created for one run, and never taken for somebody else's."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from ... import StreamConfig
from ...errors import (
    APIError,
    Error,
    StreamNameInUseError,
    StreamNotFoundError,
    StreamSubjectOverlapError,
)
from ..status import CommandError, ExitStatus

if TYPE_CHECKING:
    from ... import JetStream, Stream

__all__ = ["new_stream"]

#: Longer than any run, so that a redelivery is always recognized.
_DUPLICATE_WINDOW = timedelta(hours=1)
#: The key in the stream's metadata that says which run made it.
_OWNER = "jsm-demo-run"


@contextlib.contextmanager
def new_stream(
    js: JetStream, name: str, *, remove: bool, warn: Callable[[str], None]
) -> Iterator[Stream]:
    """Create the stream, and delete it at the end when that is planned and it is still ours."""
    # With an id of its own in the config it can never be taken for an equal one of somebody else,
    # which the server would hand out as if it had just been created.
    owner = uuid.uuid4().hex
    config = StreamConfig(
        name=name,
        subjects=[f"{name}.*"],
        description="orders of jsm demo",
        duplicate_window=_DUPLICATE_WINDOW,
        metadata={_OWNER: owner},
    )
    with contextlib.ExitStack() as undo:
        if remove:
            undo.callback(_remove, js, name, owner, warn)
        try:
            stream = _create(js, config)
        except (APIError, CommandError):
            # The server said no. After a timeout or Ctrl-C nobody knows, so then it is looked for.
            undo.pop_all()
            raise
        yield stream


def _create(js: JetStream, config: StreamConfig) -> Stream:
    try:
        return js.create_stream(config)
    except (StreamNameInUseError, StreamSubjectOverlapError) as error:
        what = (
            f"a stream {config.name} exists already"
            if isinstance(error, StreamNameInUseError)
            else f"another stream takes subjects of {config.name}.* already"
        )
        raise CommandError(
            f"{what}, and a demo does not touch it; choose another name with --stream",
            ExitStatus.FAILED,
        ) from error


def _remove(js: JetStream, name: str, owner: str, warn: Callable[[str], None]) -> None:
    try:
        # Ctrl-C may have come while it was created, and it may be somebody else's: look first.
        config = js.get_stream(name).cached_info.config
        if (config.metadata or {}).get(_OWNER) == owner:
            js.delete_stream(name)
    except StreamNotFoundError:
        pass
    except Error as error:
        warn(f"stream {name} could not be removed: {error}")
