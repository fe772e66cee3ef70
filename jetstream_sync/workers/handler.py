"""Handlers: functions of the user with a consumer of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

from ..converters import Convert, converter
from ..options import check_returned, signature_of
from .arguments import may_be, payload_type
from .checks import check_option, check_plain, unwrapped
from .context import Context, is_context
from .dead_letters import one_line
from .errors import DecodeError, misfit
from .source import Source, SourceOptions
from .work import HandlerFunction, Work, WorkOptions

DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "bytes": bytes,
    "json": json.loads,
    "text": lambda data: data.decode("utf-8"),
}
#: What those return that do not convert to an annotation.
_FIXED: Final[dict[str, type]] = {"bytes": bytes, "text": str}


@dataclass(frozen=True, kw_only=True)
class Handler(Source, Work):
    """
    A handler and its options; `Worker.handler` returns it in place of the function.

    It can be called like the function, for tests.
    """

    decode: str | Callable[[bytes], Any] = "bytes"
    """``"bytes"``, ``"json"``, ``"text"``, or a function of the payload. A payload that cannot be decoded
    becomes a dead letter at once."""
    name: str = field(repr=False, default="")
    """The name of the function, see `unwrapped`; for an object with ``__call__``, the name of its class."""

    def __post_init__(self) -> None:
        """Check and complete the options."""
        if isinstance(self.function, Handler):  # decorated twice, for two consumers
            object.__setattr__(self, "function", self.function.function)
        check_plain("handler", self.function)
        function = unwrapped(self.function)
        name = getattr(function, "__name__", None) or type(function).__name__
        object.__setattr__(self, "name", name)
        check_option(
            "handler", self.function, name != "<lambda>", "must have a name: define it with def"
        )
        arity_of(self.function)
        Source.__post_init__(self)
        WorkOptions.__post_init__(self)
        ok = callable(self.decode) or self.decode in tuple(DECODERS)
        rule = f"must be a function or one of {sorted(DECODERS)}"
        check_option("decode", self.decode, ok, rule)
        if callable(self.decode) and not isinstance(self.decode, type):
            check_plain("decode", self.decode)
        kind = _FIXED.get(self.decode) if isinstance(self.decode, str) else None
        if kind is not None:
            wanted = payload_type(self.function, of_items=self.max_messages is not None)
            rule = (
                f"passes {kind.__name__} to a parameter that is annotated {getattr(wanted, '__name__', wanted)}: "
                "set 'json', or a function that returns it"
            )
            check_option("decode", self.decode, may_be(wanted, kind), rule)
        self.adopt(self)

    @property
    def works(self) -> Sequence[Work]:
        """The handler itself."""
        return (self,)

    def route(self, subject: str) -> Work | None:
        """Return the handler, for any subject."""
        del subject
        return self

    def options(self) -> dict[str, str]:
        """Return the values of all options as text, by name."""
        names = (*HANDLER_OPTIONS, "max_messages", "max_wait")
        return {name: repr(getattr(self, name)) for name in names}

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    # --- running --------------------------------------------------------------------------------

    @cached_property
    def _arity(self) -> str:
        return arity_of(self.function)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        return self.decode if callable(self.decode) else DECODERS[self.decode]

    @cached_property
    def _convert(self) -> Convert | None:
        if self.decode != "json":
            return None
        return converter(payload_type(self.function, of_items=self.max_messages is not None))

    def decoded(self, data: bytes) -> Any:
        """
        Return the decoded payload.

        Raises:
            DecodeError: it cannot be decoded.

        """
        try:
            value = self._decode(data)
        except Exception as error:
            wrong = DecodeError(f"the payload cannot be decoded: {one_line(error)}")
            raise (misfit(wrong) if callable(self.decode) else wrong) from error
        if callable(self.decode):
            check_returned(value)
        if self._convert is None:
            return value
        try:
            return self._convert(value)
        except Exception as error:
            text = f"the payload does not fit the handler: {one_line(error)}"
            raise misfit(DecodeError(text)) from error

    @property
    def of_payload(self) -> Callable[[bytes], object] | None:
        """As `Work.of_payload`."""
        function = self.function
        if self._arity == "none":
            return lambda _: function()
        if self._arity == "payload":
            is_plain = self.decode == "bytes"
            return function if is_plain else lambda data: function(self.decoded(data))
        return None

    def run(self, context: Context) -> object:
        """Run the function for a message; return and raise what it does."""
        payload = None
        if self._arity in {"payload", "both"}:
            payload = self.decoded(context.message.data)
        return self.run_decoded(payload, context)

    def run_decoded(self, payload: Any, context: object) -> object:
        """Run the function for a decoded payload, or for a list of them and that of their contexts."""
        payloads = (payload,) if self._arity in {"payload", "both"} else ()
        contexts = (context,) if self._arity in {"context", "both"} else ()
        return self.function(*payloads, *contexts)


#: The options of `Worker.handler`.
HANDLER_OPTIONS: Final = (
    *("filter_subject", "filter_subjects", "concurrency", "deliver", "decode", "group", "member"),
    *(item.name for kind in (WorkOptions, SourceOptions) for item in fields(kind)),
)


def arity_of(function: HandlerFunction) -> str:
    """Return which arguments the function takes: none, payload, context or both."""
    try:
        parameters = signature_of(function).parameters.values()
    except ValueError:
        return "payload"  # a built-in function that does not describe its parameters
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        and parameter.default is parameter.empty
    ]
    keywords = [
        parameter
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    ok = len(positional) <= 2 and not keywords
    rule = "must take at most two arguments: the payload and the context"
    check_option("handler", function, ok, rule)
    if not positional and any(item.kind is item.VAR_POSITIONAL for item in parameters):
        return "payload"  # as of a wrapper that passes its arguments on
    if len(positional) == 1:
        return "context" if is_context(positional[0].annotation) else "payload"
    return "both" if positional else "none"
