"""Handlers: the functions of the user, with their options."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict

from .. import DeliverPolicy, Headers, InvalidOptionError
from .context import Context
from .dead_letters import DeadLetterTarget, one_line
from .limits import rate_interval
from .retries import Backoff, is_number

if TYPE_CHECKING:
    from .. import JetStreamMsg

HandlerFunction = Callable[..., object]
#: Wraps each run of a handler: ``middleware(call, context)`` calls ``call()``.
Middleware = Callable[[Callable[[], object], Context], object]

DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "bytes": bytes,
    "json": json.loads,
    "text": lambda data: data.decode("utf-8"),
}


#: Longest wait for a full batch, in seconds.
_LONGEST_WAIT_S: Final = 3600
#: The header of a message with the subject for a `Reply`.
REPLY_TO: Final = "Reply-To"


@dataclass(frozen=True)
class Reply:
    """
    A result of a handler for the publisher of the message.

    It is published to the subject in the header ``Reply-To`` of the message, before the message is
    acknowledged; without the header it is ignored. A subject that begins with ``$`` gets no reply. An
    error of sending is logged, and the message is acknowledged.

    Args:
        payload: the payload.
        headers: names and values; ``None``: none.

    """

    payload: bytes = b""
    headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None = None


class BatchOptions(TypedDict, total=False):
    """The options of `Worker.handler` that `Worker.batch` has, too."""

    filter_subject: str | None
    filter_subjects: Sequence[str]
    concurrency: int
    prefetch: int | None
    retry: Backoff | None
    timeout: float
    ack_wait: float | None
    deliver: str | int | datetime
    reject_on: Sequence[type[BaseException]]
    retry_on: Sequence[type[BaseException]] | None
    decode: str | Callable[[bytes], Any]
    confirm: bool
    dead_letters: DeadLetterTarget | None


class DecodeError(Exception):
    """The payload cannot be decoded; another attempt cannot succeed."""


@dataclass(frozen=True, kw_only=True)
class Handler:
    """
    A handler and its options; `Worker.handler` returns it in place of the function.

    It can be called like the function, for tests.
    """

    function: HandlerFunction = field(repr=False)
    """The function."""
    stream: str
    """The name of the stream."""
    consumer: str
    """The durable name of the consumer."""
    filter_subjects: tuple[str, ...] = ()
    """The consumer's filters; empty: those of the existing consumer, or none."""
    concurrency: int = 1
    """Number of threads."""
    prefetch: int = 1
    """Number of messages that are received ahead."""
    retry: Backoff = field(default_factory=Backoff)
    """The attempts and their delays."""
    timeout: float = 600.0
    """Seconds after which the lease of a message is no longer renewed."""
    ack_wait: float | None = None
    """The consumer's ``ack_wait`` in seconds; ``None``: 30 for a new consumer, else unchanged."""
    deliver: str | int | datetime = "all"
    """Where a new consumer starts: ``"all"``, ``"new"``, a sequence or a time."""
    reject_on: tuple[type[BaseException], ...] = ()
    """Errors that make a dead letter at once."""
    retry_on: tuple[type[BaseException], ...] | None = None
    """If given, all other errors make a dead letter at once."""
    decode: str | Callable[[bytes], Any] = "bytes"
    """How the payload is decoded."""
    confirm: bool = True
    """Whether acknowledgements are confirmed by the server."""
    dead_letters: DeadLetterTarget | None = None
    """The stream for dead letters, or a function that returns their subject; ``None``: none."""
    key: Callable[[JetStreamMsg], Hashable] | None = None
    """Returns the key of a message: messages of one key are handled one after the other."""
    ack: str = "after"
    """Whether a message is acknowledged ``"after"`` or ``"before"`` the function runs."""
    park_after: float | None = None
    """Seconds above which the delay of a retry is spent in the stream; ``None``: never."""
    once: str | None = None
    """The key-value bucket that records which messages are handled; ``None``: none."""
    max_bytes: int | None = None
    """Largest total size of the held messages; ``None``: not limited."""
    exclusive: bool = False
    """Whether one process at a time receives the messages (ADR-42)."""
    limit: str | None = None
    """The name of a limit of the worker, see `Worker.limit`."""
    rate: str | None = None
    """How often the function may start in one process, such as ``"10/s"``."""
    pool: str = "threads"
    """Whether the function runs in ``"threads"`` of the worker, or in ``"processes"`` of its own."""
    module: str = field(repr=False, default="")
    """The module that defines the handler."""
    process_setup: str = field(repr=False, default="")
    """``MODULE:FUNCTION``, called in a new process before the module is imported; empty: none."""
    max_messages: int | None = None
    """The size of the largest batch; ``None``: each message is handled by itself."""
    max_wait: float = 1.0
    """Seconds after which a batch is handled though it is not full."""
    _arity: str = field(init=False, repr=False, default="both")
    _decode: Callable[[bytes], Any] = field(init=False, repr=False, default=bytes)

    def __post_init__(self) -> None:
        """Check the options."""
        _check_function(self.function)
        object.__setattr__(self, "_arity", _arity(self.function))
        for option in ("concurrency", "prefetch"):
            value = getattr(self, option)
            least = 1 if option == "concurrency" else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidOptionError(option, value, f"must be a whole number, {least} or above")
        for option in ("stream", "consumer"):
            value = getattr(self, option)
            if not isinstance(value, str) or not value:
                raise InvalidOptionError(option, value, "must be a name")
        if not is_number(self.timeout) or not self.timeout > 0:
            rule = "must be a number of seconds above 0"
            raise InvalidOptionError("timeout", self.timeout, rule)
        if self.ack_wait is not None and not (is_number(self.ack_wait) and self.ack_wait >= 3):
            raise InvalidOptionError("ack_wait", self.ack_wait, "must be at least 3 seconds")
        start_of(self.deliver)
        if self.ack not in ("after", "before"):
            raise InvalidOptionError("ack", self.ack, "must be 'after' or 'before'")
        if self.park_after is not None:
            if not (is_number(self.park_after) and self.park_after >= 1):
                raise InvalidOptionError("park_after", self.park_after, "must be 1 second or more")
            if self.key is not None or self.retry.in_place:
                raise InvalidOptionError(
                    "park_after", self.park_after, "excludes 'key' and retries in place"
                )
        if self.once is not None and self.ack == "before":
            raise InvalidOptionError(
                "once", self.once, "excludes ack='before': the message is not delivered again"
            )
        if self.max_messages is not None:
            self._check_batch(self.max_messages)
        if not isinstance(self.retry, Backoff):
            raise InvalidOptionError("retry", self.retry, "must be a Backoff")
        _check_pool(self.pool, self.function)
        if self.key is not None and not callable(self.key):
            raise InvalidOptionError("key", self.key, "must be a function of the message")
        limit = self.max_bytes
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 1
        ):
            raise InvalidOptionError(
                "max_bytes", limit, "must be a whole number of bytes, 1 or above"
            )
        if self.rate is not None:
            rate_interval(self.rate)
        if not callable(self.decode) and self.decode not in tuple(DECODERS):
            raise InvalidOptionError(
                "decode", self.decode, f"must be a function or one of {sorted(DECODERS)}"
            )
        decode = self.decode if callable(self.decode) else DECODERS[self.decode]
        object.__setattr__(self, "_decode", decode)

    def _check_batch(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidOptionError("max_messages", size, "must be a whole number, 1 or above")
        if not (is_number(self.max_wait) and 0 <= self.max_wait <= _LONGEST_WAIT_S):
            raise InvalidOptionError(
                "max_wait", self.max_wait, f"must be from 0 to {_LONGEST_WAIT_S} seconds"
            )
        for option in ("key", "once", "limit", "rate"):
            if getattr(self, option) is not None:
                raise InvalidOptionError(option, getattr(self, option), "is not for batches")
        if self.ack != "after" or self.retry.in_place:
            option = "retry" if self.retry.in_place else "ack"
            raise InvalidOptionError(option, getattr(self, option), "is not for batches")
        if self.pool != "threads":
            raise InvalidOptionError("pool", self.pool, "must be 'threads' for batches")

    @property
    def capacity(self) -> int:
        """The number of messages that are held at most."""
        return self.concurrency * (self.max_messages or 1) + self.prefetch

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", repr(self.function))

    @property
    def identity(self) -> tuple[str, str, str]:
        """Stream, consumer, and qualified name of the function: the same in each process."""
        qualified_name = getattr(self.function, "__qualname__", self.name)
        return self.stream, self.consumer, qualified_name

    def options(self) -> dict[str, str]:
        """Return the values of all options as text, by name."""
        left_out = {"function", "stream", "consumer", "module", "process_setup"}
        return {
            each.name: repr(getattr(self, each.name))
            for each in fields(self)
            if each.init and each.name not in left_out
        }

    def check_processes(self, count: int) -> None:
        """
        Check that this number of processes may run the handler at a time.

        Raises:
            InvalidOptionError: more than one would handle messages of one key at a time.

        """
        if count > 1 and self.key is not None and not self.exclusive:
            raise InvalidOptionError(
                "processes",
                count,
                f"handler {self.name} has 'key', whose order holds within one process: add exclusive=True, "
                "or run one process for each partition of the stream",
            )

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def decoded(self, data: bytes) -> Any:
        """
        Return the decoded payload.

        Raises:
            DecodeError: it cannot be decoded.

        """
        try:
            return self._decode(data)
        except Exception as error:
            raise DecodeError(f"the payload cannot be decoded: {one_line(error)}") from error

    def run(self, context: Context, middleware: Sequence[Middleware]) -> object:
        """Run the function for a message, inside the middleware; return and raise what they do."""
        if not middleware:
            return self._call(context)

        def call() -> object:
            return self._call(context)

        for each in reversed(middleware):
            call = _wrapped(each, call, context)
        return call()

    def _call(self, context: Context) -> object:
        if self._arity == "none":
            return self.function()
        if self._arity == "context":
            return self.function(context)
        payload = self.decoded(context.message.data)
        if self._arity == "payload":
            return self.function(payload)
        return self.function(payload, context)

    def run_batch(
        self, payloads: list[Any], contexts: list[Context], middleware: Sequence[Middleware]
    ) -> object:
        """Run the function for a batch, inside the middleware; return and raise what they do."""

        def call() -> object:
            arguments: dict[str, tuple[object, ...]] = {
                "none": (),
                "context": (contexts,),
                "payload": (payloads,),
                "both": (payloads, contexts),
            }
            return self.function(*arguments[self._arity])

        contexts[0].batch = [context.message for context in contexts]
        for each in reversed(middleware):
            call = _wrapped(each, call, contexts[0])
        return call()


def _wrapped(
    middleware: Middleware, call: Callable[[], object], context: Context
) -> Callable[[], object]:
    return lambda: middleware(call, context)


def start_of(deliver: str | int | datetime) -> dict[str, Any]:
    """
    Return the fields of a consumer config for the start of a new consumer.

    Raises:
        InvalidOptionError: it is none of the possible starts.

    """
    if isinstance(deliver, datetime):
        return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": deliver}
    if isinstance(deliver, int) and not isinstance(deliver, bool) and deliver >= 1:
        return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": deliver}
    if deliver not in ("all", "new"):
        raise InvalidOptionError(
            "deliver", deliver, "must be 'all', 'new', a sequence of at least 1, or a datetime"
        )
    return {"deliver_policy": DeliverPolicy(deliver)}


def exception_classes(option: str, given: object) -> tuple[type[BaseException], ...]:
    """
    Return the exception classes of an option.

    Raises:
        InvalidOptionError: the value is not a list of them.

    """
    classes = tuple(given) if isinstance(given, Collection) else ()
    if not isinstance(given, Collection) or not all(
        isinstance(each, type) and issubclass(each, BaseException) for each in classes
    ):
        raise InvalidOptionError(
            option, given, "must be a list of exception classes, such as (ValueError,)"
        )
    return classes


def subject_filters(one: object, several: object) -> tuple[str, ...]:
    """
    Return the filters of a handler from its options ``filter_subject`` and ``filter_subjects``.

    Raises:
        InvalidOptionError: both are given, or one has the wrong type.

    """
    if one is not None:
        if several:
            raise InvalidOptionError(
                "filter_subjects", several, "excludes 'filter_subject': give one of them"
            )
        if not isinstance(one, str):
            raise InvalidOptionError("filter_subject", one, "must be a subject")
        return (one,)
    rule = "must be a list of subjects: give a single one as 'filter_subject'"
    if not isinstance(several, Collection) or isinstance(several, (str, bytes)):
        raise InvalidOptionError("filter_subjects", several, rule)
    subjects = tuple(several)
    if not all(isinstance(each, str) for each in subjects):
        raise InvalidOptionError("filter_subjects", several, rule)
    return subjects


def _check_function(function: HandlerFunction) -> None:
    """
    Refuse what cannot run in a thread to its end.

    Raises:
        InvalidOptionError: the function is no plain function.

    """
    rule = ""
    if not callable(function):
        rule = "must be a function"
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        rule = "must not be async: handlers block, and run in threads"
    elif inspect.isgeneratorfunction(function):
        rule = "must not be a generator: its code would not run"
    elif getattr(function, "__name__", "") == "<lambda>":
        rule = "must have a name: define it with def"
    if rule:
        raise InvalidOptionError("handler", function, rule)


def _check_pool(pool: str, function: HandlerFunction) -> None:
    """
    Check that a function can run in a pool.

    Raises:
        InvalidOptionError: it cannot.

    """
    if pool not in {"threads", "processes"}:
        raise InvalidOptionError("pool", pool, "must be 'threads' or 'processes'")
    if pool == "threads":
        return
    if os.name != "posix":
        raise InvalidOptionError("pool", pool, "needs a POSIX system")
    if "<locals>" in getattr(function, "__qualname__", ""):
        raise InvalidOptionError(
            "pool",
            pool,
            f"a process imports its handler: define {function.__qualname__} at the top level of a module",
        )


def _arity(function: HandlerFunction) -> str:
    """
    Return which arguments the function takes: none, payload, context or both.

    Raises:
        InvalidOptionError: it needs other arguments.

    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return "payload"  # a built-in function that does not describe its parameters
    positional = [
        each
        for each in parameters
        if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}
        and each.default is each.empty
    ]
    keywords = [
        each for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty
    ]
    if len(positional) > 2 or keywords:
        raise InvalidOptionError(
            "handler", function, "must take at most two arguments: the payload and the context"
        )
    if len(positional) == 1:
        return "context" if _is_context(positional[0].annotation) else "payload"
    return "both" if positional else "none"


def _is_context(annotation: Any) -> bool:
    """Return whether an annotation is `Context`; it may be a string."""
    if isinstance(annotation, str) or hasattr(annotation, "__origin__"):
        text = str(annotation)
    else:
        text = getattr(annotation, "__name__", "")
    # Also ``list[Context]``, for batches.
    return text.rstrip("]").rpartition("[")[2].rpartition(".")[2] == Context.__name__
