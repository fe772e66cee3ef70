"""Config files, as read by ``--config`` and written by ``--output``."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, Final, TypeVar

from ...codec import Record, decode, encode, loads
from ...durations import duration_to_ns, time_to_text
from ...errors import Error, InvalidArgumentError, InvalidResponseError
from ...suggestions import closest_match
from ..output import say
from ..render import to_json
from ..settings import Settings
from ..status import CommandError, ExitStatus
from ..values import parse_limited_duration, parse_limited_size

__all__ = ["config_of", "config_of_file", "read_documents", "read_text", "write_config"]

R = TypeVar("R", bound=Record)

#: Fields whose values may have units, at any depth of a config.
_DURATIONS: Final = frozenset(
    {"max_age", "duplicate_window", "subject_delete_marker_ttl", "inactive_threshold", "ack_wait"}
    | {"idle_heartbeat", "max_expires", "priority_timeout", "backoff"}
)
_SIZES: Final = frozenset({"max_bytes", "max_msg_size"})
#: Retention policies by their names of 2020 and of the command line.
_RETENTIONS: Final = {"stream": "limits", "work": "workqueue", "workq": "workqueue"}


def read_text(settings: Settings, path: str) -> str:
    """
    Return the text of a file; ``-`` is standard input.

    Raises:
        CommandError: the file cannot be read, or is not UTF-8 text.

    """
    try:
        data = settings.env.stdin.read() if path == "-" else Path(path).read_bytes()
        return data.decode()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}", ExitStatus.USAGE) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: the file is not UTF-8 text", ExitStatus.USAGE) from error


def read_documents(settings: Settings, path: str) -> list[Any]:
    """
    Return the documents in a file: one JSON document, or any number of YAML documents.

    Raises:
        CommandError: the file cannot be read or parsed.

    """
    text = read_text(settings, path)
    try:
        return [loads(text)]
    except InvalidResponseError as error:
        if text.lstrip().startswith(("{", "[")):
            raise CommandError(f"{path}: {error}", ExitStatus.USAGE) from error
        return _yaml_documents(text, path)


def _yaml_documents(text: str, path: str) -> list[Any]:
    """
    Return the documents in a YAML text.

    Raises:
        CommandError: PyYAML is not installed, or the text is not valid YAML.

    """
    try:
        # PyYAML is optional, and has no type information.
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise CommandError(
            f"{path}: the file is not JSON; to read YAML, install PyYAML: pip install pyyaml",
            ExitStatus.USAGE,
        ) from None
    try:
        return [_as_json(each) for each in yaml.safe_load_all(text)]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"{path}: invalid YAML: {reason}", ExitStatus.USAGE) from error


def _as_json(value: Any) -> Any:
    """Return the JSON value for a YAML value: times and keys become text."""
    if isinstance(value, dict):
        return {str(name): _as_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, datetime):
        # In YAML, a time without an offset is UTC.
        return time_to_text(value if value.tzinfo else value.replace(tzinfo=timezone.utc))
    return str(value) if isinstance(value, (bytes, date)) else value


def config_of(record: type[R], document: Any, more: dict[str, Any]) -> R:
    """
    Return the config in a document, which is a config or an info.

    Metadata that the server adds (keys that start with ``_nats.``) is omitted. Durations and sizes
    may have units: ``"max_age": "1y"``.

    Args:
        record: the class of the config.
        document: the parsed document.
        more: JSON fields to set.

    Raises:
        InvalidArgumentError, InvalidResponseError: the document is not a valid config.

    """
    if isinstance(document, dict) and isinstance(document.get("config"), dict):
        document = document["config"]
    if not isinstance(document, dict):
        raise InvalidArgumentError("expected an object with the fields of a config")
    fields = _with_units({**document, **more})
    labels = fields.get("metadata")
    if isinstance(labels, dict):
        fields["metadata"] = {
            key: text for key, text in labels.items() if not str(key).startswith("_nats.")
        }
    config = decode(record, fields)
    known = [each.name for each in dataclasses.fields(record)]
    for name in config.extra:
        # A newer server may support the field, unless the name looks like a typing error.
        if close := closest_match(name, known):
            raise InvalidArgumentError(f"unknown config field {name!r}; did you mean {close!r}?")
    # Decoding checks types only; replace() validates the values as well.
    return replace(config)


def _with_units(fields: dict[str, Any]) -> dict[str, Any]:
    """Return JSON fields: texts with units such as ``1y`` and ``10GB`` become numbers."""
    read = {}
    for name, value in fields.items():
        try:
            read[name] = _without_units(name, value)
        except ValueError as error:
            raise InvalidArgumentError(f"{name}: {error}") from None
    return read


def _without_units(name: str, value: Any) -> Any:
    if isinstance(value, dict) and name != "metadata":
        return _with_units(value)
    if name == "subjects":
        return value.replace(",", " ").split() if isinstance(value, str) else value
    if isinstance(value, list):
        return [_without_units(name, each) for each in value]
    if not isinstance(value, str):
        return value
    if name in _DURATIONS:
        return duration_to_ns(parse_limited_duration(value))
    if name in _SIZES:
        return parse_limited_size(value)
    return _RETENTIONS.get(value, value) if name == "retention" else value


def config_of_file(settings: Settings, record: type[R], path: str, more: dict[str, Any]) -> R:
    """
    Return the config in a file; see `config_of`.

    Raises:
        CommandError: the file does not contain exactly one valid config.

    """
    try:
        documents = read_documents(settings, path)
        if len(documents) != 1:
            raise InvalidArgumentError(f"expected one config, found {len(documents)}")
        return config_of(record, documents[0], more)
    except Error as error:
        raise CommandError(f"{path}: {error}", ExitStatus.USAGE) from error


def write_config(settings: Settings, config: Record, path: str) -> None:
    """
    Write a config to a file; ``-`` is standard output.

    Raises:
        CommandError: the file cannot be written.

    """
    text = to_json(encode(config))
    if path == "-":
        settings.env.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}", ExitStatus.FAILED) from error
    say(settings, f"Wrote the config to {path}")
