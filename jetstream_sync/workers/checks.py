"""Checks of options; each raises `InvalidOptionError` with the rule."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from typing import Any, cast

from .. import KeyValueConfig, StreamConfig, errors
from ..subjects import check_stream_name, check_subject


def check_option(option: str, value: object, ok: bool, rule: str) -> None:
    """Raise `InvalidOptionError` for an option unless ``ok``."""
    if not ok:
        raise errors.InvalidOptionError(option, value, rule)


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_count(option: str, value: object, least: int = 1) -> None:
    """Raise `InvalidOptionError` unless a value is a whole number of at least ``least``."""
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= least
    check_option(option, value, ok, f"must be a whole number, {least} or above")


def check_seconds(option: str, value: Any, least: float = 0) -> None:
    """Raise `InvalidOptionError` unless a value is a number of seconds of at least ``least``."""
    ok = is_number(value) and value >= least
    check_option(option, value, ok, f"must be a number of seconds, {least:g} or above")


def check_configs(option: str, value: Collection[Any]) -> None:
    """Raise `InvalidOptionError` unless a value has only configs of streams and buckets."""
    rule = "must be a list of configs of streams and buckets"
    check_option(option, value, not isinstance(value, str), rule)
    for item in value:
        check_option(option, item, isinstance(item, (StreamConfig, KeyValueConfig)), rule)


def check_time(option: str, value: datetime | None) -> datetime | None:
    """Return a time, which must have a time zone, or ``None``."""
    ok = value is None or (isinstance(value, datetime) and value.utcoffset() is not None)
    check_option(option, value, ok, "must be a datetime with a time zone")
    return value


def check_name(option: str, value: object, check: Callable[[str], object]) -> None:
    """Check a name with a function of the package, whose error does not name the option."""
    check_option(option, value, isinstance(value, str) and bool(value), "must be a name")
    try:
        check(cast("str", value))
    except errors.InvalidArgumentError as error:
        raise errors.InvalidOptionError(option, value, str(error)) from error


def check_bucket(option: str, value: object) -> None:
    """Check the name of a key-value bucket."""
    check_name(option, value, lambda name: KeyValueConfig(bucket=name))


def check_target(target: object) -> None:
    """Check the option ``dead_letters``."""
    if target is None:
        return
    if callable(target):
        check_plain("dead_letters", target)
    else:
        check_name("dead_letters", target, check_stream_name)


def exceptions(option: str, given: object) -> tuple[type[BaseException], ...]:
    """Return the exception classes of an option."""
    classes = tuple(given) if isinstance(given, Collection) else (given,)
    ok = isinstance(given, Collection) and all(
        isinstance(item, type) and issubclass(item, BaseException) for item in classes
    )
    check_option(option, given, ok, "must be a list of exception classes, such as (ValueError,)")
    return classes


def subjects_of(one: object, several: object) -> tuple[str, ...]:
    """Return the filters of a handler, given as one subject or as several."""
    is_list = isinstance(several, Collection) and not isinstance(several, (str, bytes))
    found: tuple[Any, ...] = tuple(cast("Collection[Any]", several)) if is_list else ()
    rule = "must be a list of subjects: give a single one as 'filter_subject'"
    ok = is_list and all(isinstance(subject, str) for subject in found)
    check_option("filter_subjects", several, ok, rule)
    for subject in found:
        check_name("filter_subjects", subject, check_subject)
    if one is None:
        return found
    check_option("filter_subject", one, isinstance(one, str), "must be a subject")
    check_name("filter_subject", one, check_subject)
    rule = "excludes 'filter_subject': give one of them"
    check_option("filter_subjects", several, found in ((), (one,)), rule)
    return (cast("str", one),)


def unwrapped(function: object) -> object:
    """Return the function inside of any `functools.partial`."""
    while isinstance(function, partial):
        function = function.func
    return function


def implementation(function: object) -> object:
    """Return what has the code of a function: inside of any partial, the method of an object that is called."""
    inner = unwrapped(function)
    if isinstance(inner, type) or hasattr(inner, "__code__"):
        return inner
    return getattr(inner, "__func__", type(inner).__call__ if callable(inner) else inner)


def check_plain(option: str, function: object) -> None:
    """Raise `InvalidOptionError` unless a function runs to its end when it is called."""
    rule, inner = "", unwrapped(function)
    if isinstance(inner, type):
        # Types of Python, such as list, are conversions; others would construct an object and drop it.
        if inner.__module__ != "builtins":
            rule = "must be a function, not a class"
    elif not callable(inner):
        rule = "must be a function"
    else:
        call = implementation(function)
        if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
            rule = "must not be async: handlers block, and run in threads"
        elif inspect.isgeneratorfunction(call):
            rule = "must not be a generator: its code would not run"
    check_option(option, function, not rule, rule)


def check_importable(function: Callable[..., object]) -> None:
    """Check that a process can import a function."""
    check_option("pool", "processes", os.name == "posix", "needs a POSIX system")
    name = getattr(implementation(function), "__qualname__", "")
    rule = f"a process imports its handler: define {name} at the top level of a module"
    check_option("pool", "processes", "<locals>" not in name, rule)


def check_token(option: str, value: object) -> None:
    """Check that a name can be a token of a subject, and a part of the name of a consumer."""
    ok = isinstance(value, str) and value and not set(value) & set(".*>/\\ \t\r\n")
    rule = "must be a token of a subject, without '.', '*', '>', '/', '\\' and spaces"
    check_option(option, value, bool(ok), rule)


def short_digest(data: bytes, length: int = 16) -> str:
    """Return a short text that differs for other data."""
    import hashlib  # noqa: PLC0415 - its import loads OpenSSL, and programs that only call tasks need neither

    return hashlib.sha256(data).hexdigest()[:length]


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; the default host is the local machine."""
    host, _, port = address.rpartition(":")
    ok = port.isascii() and port.isdigit() and int(port) <= 65535
    check_option("http", address, ok, "must be HOST:PORT, as in '127.0.0.1:9400'")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
