"""
Configs of streams, consumers and buckets: their options, values, files, differences and the editor.

Options and values are made from the declarations of the fields on the records. `config_options` adds an option
for each field of a config, `take_fields` reads them, and `changed` applies them to a config. A field of a
nested record has an option of its own if its declaration has flags. An option that is not given sets nothing,
so the same options create a config and edit one.

Files are read by ``--config`` and written by ``--output``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from enum import Enum
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import click

from ... import ConsumerConfig, StreamConfig, StreamSource, errors
from ...codec import Record, decode, encode, loads
from ...differences import Difference, without_server_labels
from ...durations import duration_text, duration_to_ns, time_to_text
from ...exit_status import ExitStatus
from ...options import closest_match
from .env import parse_json
from .output import count, emit_text, limit, say, size, to_json
from .prompts import Asker
from .render import Field
from .settings import Settings
from .status import CommandError, FailedError, file_errors
from .values import (
    FILE,
    LIMIT,
    LIMITED_DURATION,
    LIMITED_SIZE,
    SIZE,
    TIME,
    Decorator,
    Parsed,
    force_option,
    option,
    parse_duration,
    parse_limited_duration,
    parse_limited_size,
    with_options,
)

if TYPE_CHECKING:
    from ... import JetStream
    from ...declare import Step

R = TypeVar("R", bound=Record)
#: A config that is edited with `edit_config`.
C = TypeVar("C", StreamConfig, ConsumerConfig)

#: The help texts of options, by record and field; tests/make_jsm_reference.py writes it.
HELP_FILE: Final = "data/help.json"
#: Words of field names that titles write in another way.
_TITLE_WORDS: Final = {
    "hdrs": "Headers",
    "max": "Maximum",
    "msg": "Message",
    "msgs": "Messages",
    "num": "",
    "opt": "",
    "seq": "Sequence",
    "ttl": "TTL",
}
#: Other names of the values of enums.
_ENUM_ALIASES: Final = {"stream": "limits", "next": "new"}
#: Other names of the keys of a source.
_SOURCE_KEYS: Final = {
    "stream": "name",
    "seq": "opt_start_seq",
    "start_seq": "opt_start_seq",
    "time": "opt_start_time",
    "start_time": "opt_start_time",
    "subject": "filter_subject",
    "filter": "filter_subject",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigField:
    """A field of a config record."""

    owner: type[Record]
    name: str
    metadata: Mapping[str, Any]
    type: Any
    """The type of a value, or of an item if `many`."""
    many: bool
    path: tuple[str, ...]
    """The names of the enclosing fields, and its own."""

    @property
    def title(self) -> str:
        """The label in output."""
        words = (_TITLE_WORDS.get(word, word.capitalize()) for word in self.name.split("_"))
        return self.metadata.get("title") or " ".join(filter(None, words))

    @property
    def parameter(self) -> str:
        """The name of the option's value in a command."""
        return "_".join(self.path)

    @property
    def flags(self) -> list[str]:
        """The flags of the option; empty: none."""
        flags: str = self.metadata.get("flags", f"--{self.name.replace('_', '-')}")
        return flags.split()


@functools.cache
def _field_helps() -> dict[str, dict[str, str]]:
    # The file is made of the docstrings of the fields, which are in the source only and take long to read.
    found: dict[str, dict[str, str]] = parse_json(
        pkgutil.get_data("jetstream_sync.cli", HELP_FILE) or b"{}"
    )
    return found


_known_fields: Final[dict[type[Record], list[ConfigField]]] = {}


def config_fields(record: type[Record]) -> list[ConfigField]:
    """Return the fields of a record, each followed by the fields of a nested record that have flags."""
    if record not in _known_fields:
        _known_fields[record] = _fields_of(record, ())
    return _known_fields[record]


def _fields_of(record: type[Record], path: tuple[str, ...]) -> list[ConfigField]:
    found: list[ConfigField] = []
    hints = get_type_hints(record)
    for field in dataclasses.fields(record):
        if field.name == "extra" or (path and not field.metadata.get("flags")):
            continue
        kind, many = _value_type(hints[field.name])
        own = ConfigField(record, field.name, field.metadata, kind, many, (*path, field.name))
        found.append(own)
        if not path and not many and is_record(kind):
            found += _fields_of(kind, own.path)
    return found


def _value_type(hint: Any) -> tuple[Any, bool]:
    """Return the type of the values or items of a field, and whether it has several."""
    choices = [item for item in get_args(hint) if item is not NoneType]
    if get_origin(hint) is Sequence:
        return choices[0], True
    if get_origin(hint) is Mapping:
        return dict, False
    if not choices:
        return hint, False
    enums = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, Enum)]
    return _value_type(enums[0] if enums else choices[0])


def is_record(kind: Any) -> bool:
    """Return whether the type of a field is a record."""
    return isinstance(kind, type) and issubclass(kind, Record)


# --- parsing ------------------------------------------------------------------------------------


def _enum_type(kind: type[Enum], prefix: str) -> Parsed:
    """Return the type of an enum; it accepts the beginning of a name, and names such as AckExplicit."""
    words = [str(member.value) for member in kind]
    plain = {word.replace("_", ""): word for word in words}

    def parse(text: str) -> Any:
        given = "".join(text.lower().replace("_", " ").replace("-", " ").split())
        given = given.removesuffix("policy")
        for name in (given, given.removeprefix(prefix)):
            known = _ENUM_ALIASES.get(name, name)
            found = [word for key, word in plain.items() if known and key.startswith(known)]
            if known in plain or len(found) == 1:
                return kind(plain.get(known) or found[0])
        raise ValueError(f"{text!r} is not one of {', '.join(words)}")

    return Parsed("policy", parse, words, listed=True)


def _record_type(kind: type[Record]) -> Parsed:
    """Return the type of a record: a name, ``key=value,key=value`` or a JSON object."""

    def parse(text: str) -> Any:
        try:
            made = decode(kind, _document(text.strip()))
        except ValueError as error:
            raise (
                error if isinstance(error, errors.Error) else ValueError(f"{text!r}: {error}")
            ) from None
        if made.extra:
            raise ValueError(f"{text!r}: unknown fields: {', '.join(made.extra)}")
        # Decoding checks only types; creating a copy runs the other checks.
        return replace(made)

    return Parsed("NAME|KEY=VALUE,...|JSON", parse)


def _document(text: str) -> dict[str, Any]:
    """Return the fields of a source of messages in a text."""
    if text.startswith("{"):
        found = loads(text)
        if not isinstance(found, dict):
            raise ValueError("expected a JSON object")
        return found
    if "=" not in text:
        return {"name": text}
    fields: dict[str, Any] = {}
    for pair in text.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise ValueError("expected key=value,key=value or a JSON object")
        if key == "domain":
            key, value = "api", f"$JS.{value}.API"
        if key in ("api", "deliver"):
            fields.setdefault("external", {})[key] = value
        else:
            key = _SOURCE_KEYS.get(key, key)
            fields[key] = int(value) if key == "opt_start_seq" else value
    return fields


def _parse_pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"invalid value {text!r}: expected KEY=VALUE")
    return key, value


#: The origin of a mirror or source.
SOURCE: Final = _record_type(StreamSource)


def parse_list(text: str) -> list[str]:
    """Return the items of a text, which are separated by commas or spaces."""
    return text.replace(",", " ").split()


_DURATIONS: Final = Parsed(
    "durations", lambda text: [parse_duration(item) for item in parse_list(text)]
)
_LIST: Final = Parsed("list", parse_list)
PAIR: Final = Parsed("KEY=VALUE", _parse_pair)


def option_type(field: ConfigField) -> Any:
    """Return the click type of a value of a field; ``None`` for a text."""
    low = field.metadata.get("range", (0,))[0]
    if is_record(field.type):
        return _record_type(field.type)
    if isinstance(field.type, type) and issubclass(field.type, Enum):
        return _enum_type(field.type, field.name.partition("_")[0])
    if field.type is timedelta:
        return _DURATIONS if field.many else LIMITED_DURATION
    if field.type is int:
        if field.metadata.get("unit") == "bytes":
            return SIZE if low >= 0 else LIMITED_SIZE
        return int if low >= 0 else LIMIT
    if field.type is str:
        return _LIST if field.many else None
    return {dict: PAIR, datetime: TIME, bool: bool}[field.type]


# --- options ------------------------------------------------------------------------------------


class FieldOption(click.Option):
    """An option for a field, with the docstring of the field as its help text."""

    def __init__(self, *args: Any, field: ConfigField, **kwargs: Any) -> None:
        self.field = field
        super().__init__(*args, **kwargs)

    @property
    def help(self) -> str:
        """The help text; it is read when help is shown."""
        return _field_helps().get(self.field.owner.__name__, {}).get(self.field.name, "")

    @help.setter  # noqa: A003 - the name in click
    def help(self, _value: str | None) -> None:
        """Ignore the value that click sets."""


def config_options(record: type[Record], types: Mapping[str, Any] | None = None) -> Decorator:
    """Return a decorator that adds the options for the fields of a config."""
    options = []
    for field in config_fields(record):
        if not field.flags:
            continue
        kind = (types or {}).get(field.name) or option_type(field)
        first, *others = field.flags
        if kind is bool and "/" not in first:
            first = f"{first}/--no-{first[2:]}"
        options.append(
            click.option(
                first,
                *others,
                field.parameter,
                cls=FieldOption,
                field=field,
                type=None if kind is bool else kind,
                multiple=(field.many and field.type is not timedelta) or field.type is dict,
                default=None,
            )
        )
    return with_options(*options)


def take_fields(record: type[Record], options: dict[str, Any]) -> dict[str, Any]:
    """
    Remove the options of `config_options` from ``options``, and return the fields they set.

    The fields of a nested record are in a dict of their own.
    """
    fields: dict[str, Any] = {}
    for field in config_fields(record):
        value = options.pop(field.parameter, None) if field.flags else None
        if value is None or value == ():
            continue
        if field.type is dict:
            value = dict(value)
        elif field.many and field.type is str:
            value = [item for part in value for item in part]
        elif field.many:
            value = list(value)
        *parents, name = field.path
        target = fields
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = value
    return fields


def changed(config: R, fields: Mapping[str, Any]) -> R:
    """
    Return a config with some fields replaced; nested records and metadata are merged.

    An empty metadata value removes its key.
    """
    values: dict[str, Any] = dict(_merged(config, fields))
    return replace(config, **values)


def _merged(config: Record, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    types = {field.name: field.type for field in config_fields(type(config))}
    for name, value in fields.items():
        before = getattr(config, name)
        if not isinstance(value, dict):
            yield name, value
        elif is_record(types[name]):
            try:
                yield name, replace(before, **value) if before else types[name](**value)
            except TypeError as error:  # a required field is missing
                raise click.UsageError(f"{name}: {error}") from None
        else:
            old = before or {}
            yield name, {k: text for k, text in {**old, **value}.items() if text or k not in old}


def ask_for_field(
    ask: Asker, field: ConfigField, default: str, *, value: Any = None, kind: Any = None
) -> Any:
    """Return the value of a field: the given one, else the answer to a prompt; `kind`: the type of its option."""
    kind = kind or option_type(field)
    parse: Callable[[str], Any] = str if kind is None else kind.parse
    answers = {"default": default, "blank": parse(default)}
    return ask.value(field.title, field.flags[0], parse, value=value, **answers)


# --- output -------------------------------------------------------------------------------------


def display_fields(record: type[Record], *, without: str) -> list[Field]:
    """Return a line for each field of a config but one; fields that are not set have no line."""
    own = (field for field in config_fields(record) if len(field.path) == 1)
    return [_display_field(item) for item in own if item.name != without]


def _display_field(field: ConfigField) -> Field:
    limited = field.metadata.get("server_default") == -1
    if field.name == "max_age":
        return Field(field.title, field.name, lambda value: value or "Unlimited")
    return Field(
        field.title,
        (lambda config: _own_labels(getattr(config, field.name)))
        if field.name == "metadata"
        else field.name,
        _shown_limit(field) if limited else (lambda value: value_text(value, field)),
        if_set=not limited,
        each=field.name == "metadata" or (field.many and is_record(field.type)),
    )


def _shown_limit(field: ConfigField) -> Callable[[int | None], str]:
    return lambda value: limit(value, size if field.metadata.get("unit") == "bytes" else count)


def _own_labels(metadata: Mapping[str, str] | None) -> list[str]:
    """Return the metadata as texts, without what the server adds."""
    labels = sorted((metadata or {}).items())
    return [f"{key}: {value}" for key, value in labels if not key.startswith("_nats.")]


def value_text(value: Any, field: ConfigField | None = None) -> Any:
    """Return what is shown of a config value that is not 0, false or empty."""
    if isinstance(value, Record):
        return record_text(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(str(value_text(item)) for item in value)
    if isinstance(value, timedelta):
        return duration_text(value)
    if field is not None and field.metadata.get("unit") == "bytes" and isinstance(value, int):
        return size(value)
    return value.value if isinstance(value, Enum) else value


def record_text(record: Record) -> str:
    """Return a nested record, such as a source or a placement, in one line."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    parts = []
    if "dest" in values:
        parts.append(f"{values.pop('src') or '>'} to {values.pop('dest')}")
    for name, value in values.items():
        if value and name != "extra":
            shown = "" if value is True else f" {value_text(value)}"
            parts.append(str(value) if name == "name" else f"{name.replace('_', ' ')}{shown}")
    return ", ".join(parts)


# --- files and changes --------------------------------------------------------------------------


def difference_documents(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as JSON documents."""
    return [{"field": item.field, "before": item.before, "after": item.after} for item in found]


def read_text(settings: Settings, path: str) -> str:
    """Return the text of a file; ``-`` is standard input."""
    with file_errors(path):
        if path == "-":
            return settings.env.stdin.read().decode()
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
            return file.read().decode()


def read_documents(settings: Settings, path: str) -> list[Any]:
    """Return the documents in a file: one JSON document, or any number of YAML documents."""
    text = read_text(settings, path)
    try:
        return [loads(text)]
    except errors.InvalidResponseError as error:
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
        return [_as_json(item) for item in yaml.safe_load_all(text)]
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"{path}: invalid YAML: {reason}") from error


def _as_json(value: Any) -> Any:
    """Return the JSON value for a YAML value: times and keys become text."""
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
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
        raise errors.InvalidArgumentError("expected an object with the fields of a config")
    values = _with_units(record, {**document, **more})
    labels = values.get("metadata")
    if isinstance(labels, dict):
        values["metadata"] = {
            key: text for key, text in labels.items() if not str(key).startswith("_nats.")
        }
    config = decode(record, values)
    known = [field.name for field in dataclasses.fields(record)]
    for name in config.extra:
        # A newer server may support the field, unless the name looks like a typing error.
        if close := closest_match(name, known):
            raise errors.InvalidArgumentError(
                f"unknown config field {name!r}; did you mean {close!r}?"
            )
    # Decoding checks types only; replace() validates the values as well.
    return replace(config)


def _with_units(record: type[Record], document: dict[str, Any]) -> dict[str, Any]:
    """Return JSON fields: texts with units, such as ``1y`` and ``10GB``, become numbers."""
    known = {field.name: field for field in config_fields(record) if len(field.path) == 1}
    read = dict(document)
    for name, value in document.items():
        if name in known:
            try:
                read[name] = _without_units(known[name], value)
            except ValueError as error:
                raise errors.InvalidArgumentError(f"{name}: {error}") from None
    return read


def _without_units(field: ConfigField, value: Any) -> Any:
    if isinstance(value, dict) and is_record(field.type):
        return _with_units(field.type, value)
    if isinstance(value, list):
        return value if field.type is str else [_without_units(field, item) for item in value]
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
            raise errors.InvalidArgumentError(f"expected one config, found {len(documents)}")
        return config_of(record, documents[0], more)
    except errors.Error as error:
        raise CommandError(f"{path}: {error}") from error


def write_config(settings: Settings, config: Record, path: str) -> None:
    """Write a config to a file; ``-`` is standard output."""
    text = to_json(encode(config))
    if path == "-":
        settings.env.stdout.write(text)
        return
    with file_errors(path, ExitStatus.FAILED), open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)
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
    force_option,
)
#: The options of the commands that create a stream or consumer.
creation_options: Decorator = with_options(
    option("--config FILE", "Read the config from FILE; - is stdin.", FILE, to="file"),
    option("--output FILE", "Write the config to FILE instead of creating it.", FILE),
    option("--defaults", "Use defaults instead of prompts."),
)


def show_differences(settings: Settings, found: Sequence[Difference]) -> None:
    """Write the differences, one field per line."""
    document = {"changed": bool(found), "differences": difference_documents(found)}
    lines = [f"  {item.text}" for item in found]
    emit_text(settings, document, "\n".join(lines) or "No differences")


def run_step(js: JetStream, step: Step) -> Any:
    """Create, update or delete an object, and return what the call returned; name it in an error."""
    title = step.declared.title
    try:
        return step.run(js)
    except errors.APIError as error:
        text = f"{title}: {error}"
        if step.found:
            listed = "; ".join(item.text for item in step.found)
            text = f"{title} cannot be changed: {error} [{listed}]"
        raise FailedError(text, cause=error) from error


def change_config(settings: Settings, js: JetStream, step: Step, *, force: bool) -> Any:
    """Show a change, make it after a confirmation, and return what the call returned."""
    if not settings.json:
        show_differences(settings, step.found)
    settings.ask().confirm(f"Change {step.declared.title}?", force=force)
    result = run_step(js, step)
    check_updates(js, [(step, result)])
    return result


#: Seconds after which the config of an updated object is read again: another editor that read it before the update
#: has written it by then, unless its computer or its link is slow.
_SETTLE_S: Final = 0.25


def check_updates(js: JetStream, done: Sequence[tuple[Step, Any]]) -> None:
    """
    Read updated configs again, and raise `CommandError` if another editor has overwritten a change.

    `done`: the steps and their results. The server updates a whole config, and compares it with nothing.
    """
    updated = [(step, result) for step, result in done if step.action == "update"]
    if updated:
        time.sleep(_SETTLE_S)
    lost = [(step, step.overwritten(js, result)) for step, result in updated]
    texts = [
        f"{step.declared.title}: {'; '.join(item.text for item in found)}"
        for step, found in lost
        if found
    ]
    if texts:
        raise FailedError(
            f"another editor has changed the same fields at the same time: {', '.join(texts)}"
        )


def _in_editor(config: R, names: Mapping[str, Any]) -> R:
    """Return a config as edited by the user."""
    text = to_json(encode(without_server_labels(config)))
    while True:
        edited = click.edit(text, extension=".json")
        if edited is None:
            return config
        try:
            return config_of(type(config), parse_json(edited), dict(names))
        except (ValueError, errors.Error) as error:
            if not click.confirm(f"{error}\nEdit it again?", default=True, err=True):
                raise CommandError("nothing was done") from error
            text = edited


def edit_config(
    settings: Settings,
    js: JetStream,
    before: C,
    fields: Mapping[str, Any],
    *,
    options: Mapping[str, Any],
    stream: str = "",
    check: Callable[[C], object] = lambda _config: None,
) -> Any:
    """
    Change a config as the options of `edit_options` say; `stream`: that of a consumer.

    Returns:
        What the update returned; ``None`` if nothing differs.
    """
    from ...declare import NOTHING, Declared  # noqa: PLC0415 - not needed for help

    names = {
        name: getattr(before, name) for name in ("name", "durable_name") if hasattr(before, name)
    }
    base = before
    if options["file"] is not None:
        # The file may contain another name, such as that of the original.
        more = {"name": names["name"] if isinstance(before, StreamConfig) else None}
        base = replace(config_of_file(settings, type(before), options["file"], more), **names)
    after = changed(base, fields)
    if options["interactive"]:
        after = _in_editor(after, {key: text for key, text in names.items() if text})
    step = Declared(config=after, stream=stream).change_from(before)
    if options["dry_run"]:
        show_differences(settings, step.found)
        raise click.exceptions.Exit(
            ExitStatus.FAILED if options["exit_code"] and step.found else ExitStatus.OK
        )
    if step.action == NOTHING:
        return None
    check(after)
    return change_config(settings, js, step, force=options["force"])
