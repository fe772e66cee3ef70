"""
Configs of streams and consumers: config files, differences and the editor.

Files are read by ``--config`` and written by ``--output``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import click

from .. import StreamConfig
from ..codec import Record, decode, encode, loads
from ..differences import Difference, differences, without_server_labels
from ..durations import duration_to_ns, time_to_text
from ..errors import APIError, Error, InvalidArgumentError, InvalidResponseError
from ..options import closest_match
from .fields import ConfigField, changed, config_fields, is_record, option_type, parse_list
from .output import emit, say, to_json
from .prompts import Asker
from .settings import Settings
from .status import CommandError, ExitStatus, file_errors
from .values import (
    FILE,
    Decorator,
    Parsed,
    option,
    parse_limited_duration,
    parse_limited_size,
    with_options,
)

R = TypeVar("R", bound=Record)
T = TypeVar("T")


def difference_documents(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as JSON documents."""
    return [{"field": each.field, "before": each.before, "after": each.after} for each in found]


def read_text(settings: Settings, path: str) -> str:
    """Return the text of a file; ``-`` is standard input."""
    with file_errors(path):
        data = settings.env.stdin.read() if path == "-" else Path(path).read_bytes()
        return data.decode()


def read_documents(settings: Settings, path: str) -> list[Any]:
    """Return the documents in a file: one JSON document, or any number of YAML documents."""
    text = read_text(settings, path)
    try:
        return [loads(text)]
    except InvalidResponseError as error:
        if text.lstrip().startswith(("{", "[")):
            raise CommandError(f"{path}: {error}") from error
        return _yaml_documents(text, path)


def _yaml_documents(text: str, path: str) -> list[Any]:
    """Return the documents in a YAML text."""
    try:
        # PyYAML is optional, and has no type information.
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise CommandError(
            f"{path}: the file is not JSON; to read YAML, install PyYAML: pip install pyyaml"
        ) from None
    try:
        return [_as_json(each) for each in yaml.safe_load_all(text)]
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"{path}: invalid YAML: {reason}") from error


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
    """
    if isinstance(document, dict) and isinstance(document.get("config"), dict):
        document = document["config"]
    if not isinstance(document, dict):
        raise InvalidArgumentError("expected an object with the fields of a config")
    values = _with_units(record, {**document, **more})
    labels = values.get("metadata")
    if isinstance(labels, dict):
        values["metadata"] = {
            key: text for key, text in labels.items() if not str(key).startswith("_nats.")
        }
    config = decode(record, values)
    known = [each.name for each in fields(record)]
    for name in config.extra:
        # A newer server may support the field, unless the name looks like a typing error.
        if close := closest_match(name, known):
            raise InvalidArgumentError(f"unknown config field {name!r}; did you mean {close!r}?")
    # Decoding checks types only; replace() validates the values as well.
    return replace(config)


def _with_units(record: type[Record], document: dict[str, Any]) -> dict[str, Any]:
    """Return JSON fields: texts with units, such as ``1y`` and ``10GB``, become numbers."""
    known = {each.name: each for each in config_fields(record) if len(each.path) == 1}
    read = dict(document)
    for name, value in document.items():
        if name in known:
            try:
                read[name] = _without_units(known[name], value)
            except ValueError as error:
                raise InvalidArgumentError(f"{name}: {error}") from None
    return read


def _without_units(field: ConfigField, value: Any) -> Any:
    if isinstance(value, dict) and is_record(field.type):
        return _with_units(field.type, value)
    if isinstance(value, list):
        return value if field.type is str else [_without_units(field, each) for each in value]
    if not isinstance(value, str):
        return value
    if field.type is timedelta:
        return duration_to_ns(parse_limited_duration(value))
    if field.metadata.get("unit") == "bytes":
        return parse_limited_size(value)
    if field.many:
        return parse_list(value)
    kind = option_type(field)
    if isinstance(kind, Parsed) and kind.words:
        with suppress(ValueError):  # a newer server may know the value
            return kind.parse(value).value
    return value


def config_of_file(settings: Settings, record: type[R], path: str, more: dict[str, Any]) -> R:
    """Return the config in a file; see `config_of`."""
    try:
        documents = read_documents(settings, path)
        if len(documents) != 1:
            raise InvalidArgumentError(f"expected one config, found {len(documents)}")
        return config_of(record, documents[0], more)
    except Error as error:
        raise CommandError(f"{path}: {error}") from error


def write_config(settings: Settings, config: Record, path: str) -> None:
    """Write a config to a file; ``-`` is standard output."""
    text = to_json(encode(config))
    if path == "-":
        settings.env.stdout.write(text)
        return
    with file_errors(path, ExitStatus.FAILED):
        Path(path).write_text(text, encoding="utf-8")
    say(settings, f"Wrote the config to {path}")


def _needs_terminal(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    settings = context.find_object(Settings)
    if value and settings is not None and not settings.interactive:
        raise click.UsageError("--interactive needs a terminal")
    return value


#: The options for editing a config; see `edit_config`.
edit_options: Decorator = with_options(
    option("--config FILE", "Read the new config from FILE; - is stdin.", FILE, to="file"),
    option("-i, --interactive", "Edit the config in $EDITOR.", callback=_needs_terminal),
    option("--dry-run", "Show the changes without applying them."),
    option("--exit-code", "With --dry-run, exit with status 1 on changes."),
    option("-f, --force, -y, --yes", "Skip the confirmation."),
)


def show_differences(settings: Settings, found: list[Difference]) -> None:
    """Write the differences, one field per line."""
    document = {"changed": bool(found), "differences": difference_documents(found)}
    lines = [f"  {each.text}\n" for each in found] or ["No differences\n"]
    emit(settings, document, lambda: settings.env.stdout.writelines(lines))


def update_error(kind: str, name: str, error: APIError, found: list[Difference]) -> CommandError:
    """Return the error for a change that the server rejected, with the differences."""
    listed = "; ".join(each.text for each in found)
    return CommandError(
        f"{kind} {name} cannot be changed: {error} [{listed}]", ExitStatus.FAILED, cause=error
    )


def _in_editor(config: R, names: Mapping[str, Any]) -> R:
    """Return a config as edited by the user."""
    text = to_json(encode(without_server_labels(config)))
    while True:
        edited = click.edit(text, extension=".json")
        if edited is None:
            return config
        try:
            return config_of(type(config), json.loads(edited), dict(names))
        except (ValueError, Error) as error:
            if not click.confirm(f"{error}\nEdit it again?", default=True, err=True):
                raise CommandError("nothing was done") from error
            text = edited


def edit_config(
    settings: Settings,
    before: R,
    fields: Mapping[str, Any],
    names: Mapping[str, Any],
    update: Callable[[R], T],
    *,
    kind: str,
    name: str,
    confirm: str,
    options: Mapping[str, Any],
    check: Callable[[R], object] = lambda _config: None,
) -> T | None:
    """
    Change a config as the options of `edit_options` say.

    Returns:
        The result of the update; ``None`` if nothing differs.
    """
    base = before
    if options["file"] is not None:
        # The file may contain another name, such as that of the original.
        more = {"name": names["name"] if isinstance(before, StreamConfig) else None}
        base = replace(config_of_file(settings, type(before), options["file"], more), **names)
    after = changed(base, fields)
    if options["interactive"]:
        after = _in_editor(after, {key: text for key, text in names.items() if text})
    found = differences(before, after)
    if options["dry_run"]:
        show_differences(settings, found)
        raise click.exceptions.Exit(
            ExitStatus.FAILED if options["exit_code"] and found else ExitStatus.OK
        )
    if not found:
        return None
    check(after)
    if not settings.json:
        show_differences(settings, found)
    Asker(settings).confirm(confirm, force=options["force"])
    try:
        return update(without_server_labels(after))
    except APIError as error:
        raise update_error(kind, name, error, found) from error
