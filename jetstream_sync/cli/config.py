"""
Configs of streams and consumers: fields from options, config files, differences and the editor.

Files are read by ``--config`` and written by ``--output``. A difference says whether the server
supports the change.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from .. import ConsumerConfig, StreamConfig
from ..codec import Record, decode, encode, loads
from ..durations import duration_to_ns, time_to_text
from ..errors import APIError, Error, InvalidArgumentError, InvalidResponseError
from ..suggestions import closest_match
from .output import duration, emit, note, say, to_json
from .prompts import Asker
from .settings import Settings
from .status import CommandError, ExitStatus
from .values import FILE, Decorator, parse_limited_duration, parse_limited_size, with_options

R = TypeVar("R", bound=Record)
T = TypeVar("T")

#: The server's defaults for unset fields; 0, false and empty values are not listed.
_DEFAULTS: Final[Mapping[str, object]] = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "num_replicas": 1,
    "compression": "none",
    "persist_mode": "default",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "max_deliver": -1,
    "deliver_policy": "all",
    "replay_policy": "instant",
    "priority_policy": "none",
}
#: Fields whose defaults depend on other settings: when unset, the server decides.
_LEFT_TO_SERVER: Final = frozenset(
    {"duplicate_window", "ack_wait", "max_ack_pending", "max_waiting", "consumer_limits", "name"}
    | {"ack_policy", "subjects", "inactive_threshold"}
)
#: Fields that can only be turned on, by the class of the config.
_ENABLE_ONLY: Final[Mapping[type[Record], frozenset[str]]] = {
    StreamConfig: frozenset(
        {"sealed", "deny_delete", "deny_purge", "allow_msg_ttl", "allow_msg_schedules"}
    ),
    ConsumerConfig: frozenset(),
}
#: Fields that cannot be changed.
_IMMUTABLE: Final[Mapping[type[Record], frozenset[str]]] = {
    StreamConfig: frozenset({"name", "storage", "allow_msg_counter", "persist_mode"}),
    ConsumerConfig: frozenset(
        {"deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy", "replay_policy"}
        | {"idle_heartbeat", "flow_control", "max_waiting", "mem_storage", "priority_policy"}
    ),
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field that differs between two configs."""

    field: str
    before: Any
    """The JSON value; ``None``: unset."""
    after: Any
    shown_before: str
    """The value as text."""
    shown_after: str
    possible: bool
    """Whether any server version supports this change."""

    def line(self) -> str:
        """Return the difference as one line of text."""
        rest = "" if self.possible else "  (cannot be changed)"
        return f"{self.field}: {self.shown_before} -> {self.shown_after}{rest}"


def differences(before: R, after: R) -> list[Difference]:
    """
    Return the fields that differ, by name; an unset field equals its default.

    Args:
        before: the current config from the server.
        after: the desired config.

    """
    old, new = (encode(without_server_labels(each)) for each in (before, after))
    found = []
    for name in sorted({*old, *new}):
        if name not in new and name in _LEFT_TO_SERVER:
            continue
        if _normalized(name, old.get(name)) == _normalized(name, new.get(name)):
            continue
        found.append(
            Difference(
                field=name,
                before=old.get(name),
                after=new.get(name),
                shown_before=_shown(getattr(before, name, old.get(name)), old.get(name)),
                shown_after=_shown(getattr(after, name, new.get(name)), new.get(name)),
                possible=_possible(type(before), name, old.get(name), new.get(name)),
            )
        )
    return found


def difference_documents(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as JSON documents."""
    return [
        {
            "field": each.field,
            "before": each.before,
            "after": each.after,
            **({} if each.possible else {"possible": False}),
        }
        for each in found
    ]


def said(config: Record) -> dict[str, Any]:
    """Return the known fields of a config that are set."""
    names = [name for name in encode(config) if name not in config.extra]
    return {name: getattr(config, name) for name in names}


def warn_of_ignored(settings: Settings, wanted: R, got: R) -> None:
    """Warn about fields that the server ignored because it is too old to support them."""
    asked = replace(got, **said(wanted))
    names = [each.field for each in differences(got, asked) if each.before is None]
    if names:
        note(settings, f"the server ignored {', '.join(names)}; it may be too old to support this")


def without_server_labels(config: R) -> R:
    """Return a config without the metadata that the server adds."""
    labels = getattr(config, "metadata", None)
    if not labels:
        return config
    own = {key: text for key, text in labels.items() if not key.startswith("_nats.")}
    fields: dict[str, Any] = {"metadata": own or None}
    return config if len(own) == len(labels) else replace(config, **fields)


def _normalized(name: str, value: Any) -> Any:
    """Return a value in normalized form for comparison."""
    if name in ("subjects", "filter_subjects") and isinstance(value, list):
        return sorted(value)
    if value == _DEFAULTS.get(name) or not value:
        return None
    return _compact(value)


def _compact(value: Any) -> Any:
    """Return a value without nested fields that are unset, false, 0 or empty."""
    if isinstance(value, dict):
        return {key: _compact(each) for key, each in value.items() if each} or None
    if isinstance(value, list):
        return [_compact(each) for each in value]
    return value


def _possible(kind: type[Record], name: str, before: Any, after: Any) -> bool:
    if name in _IMMUTABLE[kind]:
        return False
    if name in _ENABLE_ONLY[kind]:
        return not before
    if name == "retention":
        return "workqueue" not in (before, after)
    if name == "mirror":
        return not after
    return True


_FORMATTERS: Final[list[tuple[type, Callable[[Any], str]]]] = [
    (bool, lambda value: "true" if value else "false"),
    (timedelta, duration),
    (str, str),
    (int, str),
]


def _shown(value: Any, wire: Any) -> str:
    """Return a value as text: durations with units, other values as JSON."""
    if wire is None:
        return "-"
    for kind, form in _FORMATTERS:
        if isinstance(value, kind):
            return form(value)
    if isinstance(wire, list) and all(isinstance(each, str) for each in wire):
        return ", ".join(wire)
    return json.dumps(wire, ensure_ascii=False)


def subjects_of(values: Sequence[str]) -> list[str]:
    """Return the subjects in values that are lists separated by commas or spaces."""
    return [each for value in values for each in value.replace(",", " ").split()]


def labels_of(values: Sequence[str]) -> dict[str, str]:
    """
    Return the metadata of ``--metadata KEY=VALUE``.

    Raises:
        click.BadParameter: a value has no key.

    """
    labels = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(
                f"invalid value {value!r}: expected KEY=VALUE", param_hint="--metadata"
            )
        labels[key] = text
    return labels


class FieldOption(NamedTuple):
    """An option whose value is the value of a config field; without it, the field is not set."""

    field: str
    type: Any
    """The type of the value, as in click; ``bool`` adds a negative form."""
    help: str
    flags: str = ""
    """The flag and its other names, separated by spaces; empty: the name of the field."""
    metavar: str | None = None
    multiple: bool = False

    def option(self) -> Callable[[Any], Any]:
        """Return the option."""
        first, *others = self.flags.split() or [f"--{self.field.replace('_', '-')}"]
        switch = self.type is bool
        return click.option(
            f"{first}/--no-{first[2:]}" if switch else first,
            *others,
            self.field,
            type=None if switch else self.type,
            default=None,
            help=self.help,
            metavar=self.metavar,
            multiple=self.multiple,
        )


def take_fields(options: dict[str, Any], table: Sequence[FieldOption]) -> dict[str, Any]:
    """Remove the options of a table from ``options`` and return the fields they set."""
    values = {each.field: options.pop(each.field) for each in table}
    return {
        field: list(value) if isinstance(value, tuple) else value
        for field, value in values.items()
        if value is not None and value != ()
    }


def changed(config: R, fields: Mapping[str, Any]) -> R:
    """
    Return a config with some fields replaced; metadata is merged.

    An empty metadata value removes its key.

    Raises:
        InvalidOptionError: the values contradict each other.

    """
    fields = dict(fields)
    labels = fields.get("metadata")
    if labels is not None:
        merged = {**(getattr(config, "metadata", None) or {}), **labels}
        fields["metadata"] = {key: value for key, value in merged.items() if value}
    return replace(config, **fields)


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
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
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


def _needs_terminal(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    settings = context.find_object(Settings)
    if value and settings is not None and not settings.interactive:
        raise click.UsageError("--interactive needs a terminal")
    return value


#: The options for editing a config; see `edit_config`.
edit_options: Decorator = with_options(
    click.option(
        "--config",
        "file",
        type=FILE,
        metavar="FILE",
        help="Read the new config from FILE; - is stdin.",
    ),
    click.option(
        "-i",
        "--interactive",
        is_flag=True,
        callback=_needs_terminal,
        help="Edit the config in $EDITOR.",
    ),
    click.option("--dry-run", is_flag=True, help="Show the changes without applying them."),
    click.option(
        "--exit-code", is_flag=True, help="With --dry-run, exit with status 1 on changes."
    ),
    click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Skip the confirmation."),
)


def show_differences(settings: Settings, found: list[Difference]) -> None:
    """Write the differences, one field per line."""
    document = {"changed": bool(found), "differences": difference_documents(found)}

    def human() -> None:
        if not found:
            settings.env.stdout.write("No differences\n")
        settings.env.stdout.writelines(f"  {each.line()}\n" for each in found)

    emit(settings, document, human)


def update_error(kind: str, name: str, error: APIError, found: list[Difference]) -> CommandError:
    """Return the error for a change that the server rejected, with the differences."""
    listed = "; ".join(each.line() for each in found)
    return CommandError(
        f"{kind} {name} cannot be changed: {error} [{listed}]", ExitStatus.FAILED, cause=error
    )


def _in_editor(config: R, names: Mapping[str, Any]) -> R:
    """
    Return a config as edited by the user.

    Args:
        config: the config to edit.
        names: fields that keep their values in any case.

    Raises:
        CommandError: the result is invalid, and the user does not edit it again.

    """
    text = to_json(encode(without_server_labels(config)))
    while True:
        edited = click.edit(text, extension=".json")
        if edited is None:
            return config
        try:
            return config_of(type(config), json.loads(edited), dict(names))
        except (ValueError, Error) as error:
            if not click.confirm(f"{error}\nEdit it again?", default=True, err=True):
                raise CommandError("nothing was done", ExitStatus.USAGE) from error
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

    Args:
        settings: the settings of the command.
        before: the current config.
        fields: the fields to change.
        names: the fields with the name, which keep their values.
        update: updates the config on the server.
        kind: the kind of object, for errors.
        name: the display name of the object, for errors.
        confirm: the prompt before the update.
        options: the values of the options.
        check: called with the changed config, and writes warnings.

    Returns:
        The result of the update; ``None`` if nothing differs.

    Raises:
        CommandError: the server rejects the change, or it was not confirmed.
        click.exceptions.Exit: with ``--dry-run``, after the differences were shown.

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
