# Types of the C extension; see speedups.py for what the functions do.

from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import disjoint_base

_T = TypeVar("_T", bound=tuple[Any, ...])

class MessageFields:
    __slots__ = ("_core", "_header", "_reply", "_settled", "_subject", "data")
    _subject: bytes
    _reply: bytes
    _header: Any
    data: bytes
    _core: Any
    _settled: bool | None
    def __init__(
        self, delivery: tuple[bytes, bytes, bytes, bytes], core: Any, settled: Any = False, /
    ) -> None: ...

@disjoint_base
class FutureFields:
    subject: str
    message: tuple[bytes, int] | None
    due: float | None
    _core: Any
    _outcome: Any
    _watched: bool
    def __init__(
        self, subject: str, message: tuple[bytes, int] | None, due: float | None, core: Any, /
    ) -> None: ...

@disjoint_base
class OutputBuffer:
    _is_locked: Callable[[], bool]
    _acquire: Callable[[bool], bool]
    _release: Callable[[], None]
    _buffer: bytearray
    _stream: Any
    closed: BaseException | None
    _is_sending: Callable[[], bool]
    _batch: memoryview
    _fd: int
    unanswered: int
    _taken: int
    _taken_before: int
    out_msgs: int
    out_bytes: int
    _flusher: int
    _sent_at: float
    def publish_message(
        self, encoder: Any, subject: str, payload: bytes, reply: str, headers: Any, /
    ) -> None: ...
    def append(
        self,
        command: bytes,
        size: int,
        flush: int,
        messages: int = 1,
        is_awaited: bool = False,
        deadline: Any = None,
        /,
    ) -> None: ...

def read_messages(
    data: bytes, limit: int, run_type: Callable[[int, Any], Any], packed_sids: set[int], /
) -> tuple[list[Any], int, int]: ...
def encode_message(
    subject: Any, payload: Any, reply: Any, headers: Any, max_payload: int, /
) -> tuple[bytes, int] | None: ...
def encode_command(
    subject: Any, payload: Any, reply: Any, headers: Any, max_payload: int, /
) -> tuple[bytes, int] | None: ...
def settle_futures(
    future_type: type[Any], pending: dict[bytes, Any], deliveries: list[Any], token_at: int, /
) -> list[Any]: ...
def receive_reply(
    acquire: Any,
    release: Any,
    fd: int,
    subject: bytes | None,
    sid: int,
    messages: Any,
    received: list[bytes],
    /,
) -> bool: ...
def parse_pub_ack(
    response: bytes, ack_type: type[_T], defaults: tuple[Any, ...], /
) -> _T | None: ...

class PackedRun:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[bytes, bytes, bytes, bytes]: ...
    def pop(self) -> tuple[bytes, bytes, bytes, bytes]: ...
