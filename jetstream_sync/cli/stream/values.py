"""Click parameter types for a stream config: policies, sources and placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import click

from ... import Placement, RetentionPolicy, StorageType, StreamSource
from ...codec import decode, loads
from ...errors import Error
from ..values import ParamType, WordType

__all__ = ["PLACEMENT", "RETENTION", "SOURCE", "STORAGE", "split_pair"]

#: Accepted spellings of retention policies, including those of the 2020 CLI.
_RETENTIONS: Final = {
    "limits": RetentionPolicy.LIMITS,
    "interest": RetentionPolicy.INTEREST,
    "work": RetentionPolicy.WORK_QUEUE,
    "workq": RetentionPolicy.WORK_QUEUE,
    "workqueue": RetentionPolicy.WORK_QUEUE,
    "work queue": RetentionPolicy.WORK_QUEUE,
    "stream": RetentionPolicy.LIMITS,
    "streampolicy": RetentionPolicy.LIMITS,
    "limitspolicy": RetentionPolicy.LIMITS,
    "interestpolicy": RetentionPolicy.INTEREST,
    "workqueuepolicy": RetentionPolicy.WORK_QUEUE,
}
_STORAGES: Final = {
    "file": StorageType.FILE,
    "f": StorageType.FILE,
    "memory": StorageType.MEMORY,
    "m": StorageType.MEMORY,
}


class _PolicyType(WordType):
    """A policy by one of several names; case is ignored."""

    def __init__(self, name: str, known: Mapping[str, Any], shown: Sequence[str]) -> None:
        super().__init__(name, shown)
        self._known = known

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder in the help text."""
        del param, ctx
        return f"[{'|'.join(self.words)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the policy with this name."""
        if not isinstance(value, str) or value in self._known.values():
            return value
        policy = self._known.get(value.strip().lower())
        if policy is None:
            self.fail(f"{value!r} is not one of {', '.join(self.words)}", param, ctx)
        return policy


RETENTION: Final = _PolicyType("retention", _RETENTIONS, ["limits", "interest", "work", "stream"])
STORAGE: Final = _PolicyType("storage", _STORAGES, ["file", "memory"])


class _RecordType(ParamType):
    """A record, given as a name, as ``key=value,key=value`` or as a JSON object."""

    def __init__(self, name: str, make: Callable[[dict[str, Any]], Any], bare: str | None) -> None:
        self.name = name
        self._make = make
        self._bare = bare

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the record that the text describes."""
        if not isinstance(value, str):
            return value
        try:
            return self._make(self._read(value.strip()))
        except Error as error:
            self.fail(str(error), param, ctx)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)

    def _read(self, text: str) -> dict[str, Any]:
        if text.startswith("{"):
            document = loads(text)
            if not isinstance(document, dict):
                raise ValueError("expected a JSON object")
            return document
        if self._bare is not None and "=" not in text:
            return {self._bare: text}
        fields: dict[str, Any] = {}
        for pair in text.split(","):
            key, equals, item = pair.partition("=")
            if not equals:
                raise ValueError("expected key=value,key=value or a JSON object")
            if key.strip() == "tag":
                fields.setdefault("tags", []).append(item)
            else:
                fields[key.strip()] = item
        return fields


_SOURCE_KEYS: Final = {
    "stream": "name",
    "seq": "opt_start_seq",
    "start_seq": "opt_start_seq",
    "time": "opt_start_time",
    "start_time": "opt_start_time",
    "subject": "filter_subject",
    "filter": "filter_subject",
}


def _source(fields: dict[str, Any]) -> StreamSource:
    values = {_SOURCE_KEYS.get(key, key): value for key, value in fields.items()}
    if isinstance(values.get("opt_start_seq"), str):
        values["opt_start_seq"] = int(values["opt_start_seq"])
    for key in ("api", "deliver", "domain"):
        if isinstance(value := values.pop(key, None), str):
            name, value = ("api", f"$JS.{value}.API") if key == "domain" else (key, value)
            values.setdefault("external", {})[name] = value
    source = decode(StreamSource, values)
    if source.extra:
        raise ValueError(f"unknown fields of a source: {', '.join(source.extra)}")
    # Decoding checks only types; creating a copy runs the other checks.
    return replace(source)


def _placement(fields: dict[str, Any]) -> Placement:
    placement = decode(Placement, fields)
    if placement.extra:
        raise ValueError(f"unknown fields of a placement: {', '.join(placement.extra)}")
    return placement


def split_pair(text: str) -> tuple[str, str]:
    """
    Return the texts before and after ``=``.

    Raises:
        ValueError: the text contains no ``=``.

    """
    left, equals, right = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: expected SOURCE=DESTINATION")
    return left.strip(), right.strip()


SOURCE: Final = _RecordType("SOURCE", _source, "name")
PLACEMENT: Final = _RecordType("PLACEMENT", _placement, "cluster")
