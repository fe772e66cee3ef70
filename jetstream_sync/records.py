"""
Frozen dataclasses that share their methods instead of generating them for each class.

`dataclasses.dataclass` compiles five functions for each frozen class. For the JetStream records this
was a third of the import time of the package.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

__all__ = ["RecordBase", "record"]

_T = TypeVar("_T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """Describe the decorator to type checkers; a no-op at run time."""
        return lambda decorator: decorator


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,)
)
def record(cls: type[_T]) -> type[_T]:
    """Turn a subclass of `RecordBase` into a frozen, slotted, keyword-only dataclass."""
    return dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)


class _Signature:
    """Compute the signature of a record class from its fields, for `inspect.signature`."""

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        if not dataclasses.is_dataclass(cls):
            # A base class: on this error `inspect` and `pydoc` fall back to the usual lookup.
            raise AttributeError(f"{cls.__name__} has no fields and therefore no signature")
        parameters = []
        for each in dataclasses.fields(cls):
            default = each.default
            if each.default_factory is not dataclasses.MISSING:
                default = each.default_factory()
            elif default is dataclasses.MISSING:
                default = inspect.Parameter.empty
            parameters.append(
                inspect.Parameter(
                    each.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=each.type,
                )
            )
        return inspect.Signature(parameters)


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

    __hash__ = None  # type: ignore[assignment]  # fields hold lists and dicts

    def __getstate__(self) -> list[Any]:
        return [getattr(self, each.name) for each in dataclasses.fields(self)]

    def __setstate__(self, state: list[Any]) -> None:
        for each, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)
