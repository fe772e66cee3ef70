"""Frozen dataclasses that share their methods instead of generating them for each class."""

# `dataclasses.dataclass` compiles six functions for each frozen class. This was a third of the import time
# of the package for the JetStream records, and a sixth for the other values.

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")
_INT64_MAX = 2**63 - 1

if TYPE_CHECKING:
    from typing_extensions import Self
    from typing_extensions import dataclass_transform as dataclass_transform  # noqa: PLC0414
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """Describe the decorator to type checkers; a no-op at run time."""
        return lambda decorator: decorator


def setting(
    *,
    default: Any = dataclasses.MISSING,
    since: tuple[int, int] | None = None,
    low: float | None = None,
    high: float | None = None,
    unit: str | None = None,
    title: str | None = None,
    flags: str | None = None,
    server_default: object = None,
) -> Any:
    """Declare a field of a config, with the rules for its value and its form on the command line."""
    # The docstring of the field, which follows its declaration, is the help text of its option.
    given = {
        "since": since,
        "range": None if low is None else (low, _INT64_MAX if high is None else high),
        "unit": unit,
        "title": title,
        "flags": flags,
        "server_default": server_default,
    }
    metadata = {name: value for name, value in given.items() if value is not None}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, setting)
)
def record(cls: type[_T]) -> type[_T]:
    """Turn a subclass of `RecordBase` into a frozen, slotted, keyword-only dataclass."""
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)
    if not TYPE_CHECKING and made.__doc__:
        made.__doc__ = _FieldDocs(made.__doc__)
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(*, kw_only: bool = False) -> Callable[[type[_T]], type[_T]]:
    """Turn a subclass of `Frozen` into a frozen, slotted dataclass."""

    def decorate(cls: type[_T]) -> type[_T]:
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(
            cls
        )
        _prepare(made)
        return made

    return decorate


_E = TypeVar("_E", bound=Exception)
#: Maximum number of characters of the text of an error.
_MAX_TEXT: Final = 2000
_POSITIONAL: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD
_REQUIRED: Final = inspect.Parameter.empty


def time_text(time_ns: int) -> str:
    """Return a time in nanoseconds since 1970 as text."""
    seconds, ns = divmod(time_ns, 10**9)
    return (
        f"{datetime.fromtimestamp(seconds, timezone.utc).replace(tzinfo=None).isoformat()}.{ns:09}Z"
    )


@dataclass_transform(eq_default=False)
def with_fields(cls: type[_E]) -> type[_E]:
    """
    Give a class of errors a constructor for its annotated fields, and the text of its ``_template``.

    The values of the fields are attributes and, in the same order, the ``args``.
    """
    own = {name: text for name, text in cls.__annotations__.items() if "ClassVar" not in text}
    fields: dict[str, str] = {**getattr(cls, "_fields", {}), **own}
    signature = inspect.Signature(
        [
            inspect.Parameter(
                name, _POSITIONAL, default=getattr(cls, name, _REQUIRED), annotation=text
            )
            for name, text in {"self": "object", **fields}.items()
        ]
    )

    def __init__(self: Exception, *values: object, **named: object) -> None:  # noqa: N807
        if named or len(values) != len(fields):
            bound = signature.bind(self, *values, **named)
            bound.apply_defaults()
            values = bound.args[1:]
        # Not that of the base class, which may have fewer fields.
        Exception.__init__(self, *values)
        vars(self).update(zip(fields, values, strict=True))

    own_text = vars(cls).get("__str__")

    def __str__(self: Any) -> str:  # noqa: N807
        text: str
        try:
            text = own_text(self) if own_text else self._template.format(**vars(self))
        except ValueError:  # an int of thousands of digits has no text
            text = ": ".join(value for value in self.args if isinstance(value, str))
        # A server or another client may have chosen a long value; the attribute holds it.
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    cls._fields = fields  # type: ignore[attr-defined]
    cls.__init__ = __init__  # type: ignore[assignment]
    if own_text or "_template" in vars(cls):
        cls.__str__ = __str__  # type: ignore[method-assign]
    return cls


def _prepare(made: Any) -> None:
    """Note the arguments of a class for its constructor, which is called for each connection and pull request."""
    arguments = [field for field in dataclasses.fields(made) if field.init]
    made._positional = tuple(  # noqa: SLF001 - of `Frozen`
        field.name for field in arguments if not field.kw_only
    )
    made._arguments = tuple(  # noqa: SLF001 - of `Frozen`
        # The slot descriptor bypasses the frozen __setattr__.
        (field.name, getattr(made, field.name).__set__, field.default, field.default_factory)
        for field in arguments
    )


class _FieldDocs:
    """A class docstring that lists the fields of a record, so that ``help(StreamConfig)`` explains them."""

    # The strings below the fields exist in the source only. They are read on first access, which keeps the
    # import fast; without the source, as in a package of ``.pyc`` files, the docstring has no list.

    __slots__ = ("_complete", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._complete: str | None = None

    def __get__(self, instance: object, cls: type[Any]) -> str:
        if self._complete is None:
            docs = field_docs(cls)
            names = [field.name for field in dataclasses.fields(cls) if field.name in docs]
            names.sort(key="extra".__eq__)  # the base class has it first
            listed = "".join(f"\n\n{_wrapped(name, docs[name])}" for name in names)
            text = inspect.cleandoc(self._text)
            self._complete = f"{text}\n\nFields:{listed}\n" if names else self._text
        return self._complete


def field_docs(cls: type[Any]) -> dict[str, str]:
    """Return the docstrings of the fields of a record class, with the releases that they need."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs.update(_docs_in_source(base))
    for field in dataclasses.fields(cls):
        if field.name in docs and "since" in field.metadata:
            docs[field.name] = f"{docs[field.name].rstrip()} {needed_release(field)}"
    return docs


def needed_release(field: dataclasses.Field[Any]) -> str:
    """Return the sentence on the release of nats-server that a field needs; empty: any."""
    since = field.metadata.get("since")
    return f"Needs server {since[0]}.{since[1]}." if since else ""


def _docs_in_source(cls: type[Any]) -> dict[str, str]:
    """Return the strings that follow the fields in the source of a class."""
    import ast  # noqa: PLC0415 - for help() only

    try:
        tree = ast.parse(inspect.getsource(sys.modules[cls.__module__]))
    except (OSError, TypeError, KeyError):
        return {}
    body = next(
        (
            item.body
            for item in tree.body
            if isinstance(item, ast.ClassDef) and item.name == cls.__name__
        ),
        [],
    )
    return {
        field.target.id: doc.value.value
        for field, doc in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }


def _wrapped(name: str, text: str) -> str:
    import textwrap  # noqa: PLC0415 - for help() only

    text = f"{name}: {' '.join(text.split())}"
    return textwrap.fill(text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8)


def _parameters(cls: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a record class or dataclass, by name, with their true defaults."""
    parameters = {}
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        elif default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        if field.init:
            kind = inspect.Parameter.KEYWORD_ONLY if field.kw_only else _POSITIONAL
            parameters[field.name] = inspect.Parameter(
                field.name, kind, default=default, annotation=field.type
            )
    return parameters


def shows_fields(*sources: tuple[type[Any], Collection[str]]) -> Callable[[_F], _F]:
    """
    Show fields in place of ``**options`` in the signature of a function, as `help` prints it.

    Args:
        sources: classes with the names of the fields that are options of the function; no name: all of them.

    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        shown = {
            name: parameter
            for name, parameter in signature.parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        }
        for cls, names in sources:
            for name, parameter in _parameters(cls).items():
                if (name in names or (not names and name != "extra")) and name not in shown:
                    shown[name] = parameter.replace(kind=parameter.KEYWORD_ONLY)
        function.__signature__ = signature.replace(parameters=list(shown.values()))  # type: ignore[attr-defined]
        return function

    return decorate


class _Signature:
    """Compute the signature of a record class from its fields, for `inspect.signature`."""

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        if not dataclasses.is_dataclass(cls):
            # A base class: on this error `inspect` and `pydoc` fall back to the usual lookup.
            raise AttributeError(f"{cls.__name__} has no fields and therefore no signature")
        return inspect.Signature(list(_parameters(cls).values()))


class RecordBase:
    """Methods of a frozen dataclass, implemented with its fields; a subclass defines ``__init__``."""

    __slots__ = ()

    if TYPE_CHECKING:
        # Required by the types of `dataclasses.replace` and `dataclasses.fields`.
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    else:
        __signature__ = _Signature()

        def __setattr__(self, name: str, value: object) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordBase) or other.__class__ is not self.__class__:
            return NotImplemented
        return self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(tuple(self.__getstate__()))

    def __getstate__(self) -> list[Any]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def __setstate__(self, state: list[Any]) -> None:
        for item, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, item.name, value)


class Frozen(RecordBase):
    """Base class of frozen dataclasses that are never sent as JSON, decorated with `frozen`."""

    __slots__ = ()

    #: The names of the arguments that may be positional.
    _positional: ClassVar[tuple[str, ...]] = ()
    #: Of each argument its name, the function that sets it, its default, and what makes a default.
    _arguments: ClassVar[tuple[tuple[str, Callable[[Any, Any], None], Any, Any], ...]] = ()

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, *args: Any, **given: Any) -> None:
            if args:
                self._add_positional(args, given)
            for name, assign, default, factory in self._arguments:
                value = given.pop(name, default)
                if value is dataclasses.MISSING:
                    if factory is dataclasses.MISSING:
                        raise self._wrong_call(f"requires the argument {name!r}")
                    value = factory()
                assign(self, value)
                del value  # it may be a secret, and an error below shows the locals
            if given:
                raise self._wrong_call(f"got an unexpected keyword argument {min(given)!r}")
            self.__post_init__()

    @classmethod
    def _add_positional(cls, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        names = cls._positional
        if len(args) > len(names):
            raise cls._wrong_call(f"takes {len(names)} positional arguments, not {len(args)}")
        for name, value in zip(names, args, strict=False):
            if name in given:
                raise cls._wrong_call(f"got multiple values for argument {name!r}")
            given[name] = value

    @classmethod
    def _wrong_call(cls, problem: str) -> TypeError:
        return TypeError(f"{cls.__name__}.__init__() {problem}")

    def __post_init__(self) -> None:
        """Check the fields, and set those that follow from others."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)
        shown = (f"{item.name}={getattr(self, item.name)!r}" for item in fields if item.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"
