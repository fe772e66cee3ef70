"""
``jsm apply``: create and update streams, consumers, buckets and object stores from a file.

Repeating it changes nothing. A field that the file does not contain keeps its value. What a file with a set has
created carries the name of the set, and only that is ever deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from ... import ConsumerConfig, KeyValueConfig, ObjectStoreConfig, StreamConfig, errors
from ...declare import CREATE, DELETE, NOTHING, SET_LABEL, UPDATE, Declared, Step, plan, set_of
from ...durations import counted
from ...exit_status import ExitStatus
from ...subjects import KV_PREFIX, OBJECT_PREFIX, check_stream_name
from ..shared.config import check_updates, config_of, difference_documents, read_documents, run_step
from ..shared.listings import Lister, lister
from ..shared.output import emit_text
from ..shared.settings import Settings, command
from ..shared.status import AbsentError, CommandError
from ..shared.values import FILE, option

#: The lists of a file, and the record of their items.
_LISTS: Final[dict[str, Any]] = {
    "streams": StreamConfig,
    "consumers": ConsumerConfig,
    "buckets": KeyValueConfig,
    "object_stores": ObjectStoreConfig,
}
_PREFIXES: Final = {KV_PREFIX: KeyValueConfig, OBJECT_PREFIX: ObjectStoreConfig}


# --- reading ------------------------------------------------------------------------------------


def _read(settings: Settings, path: str) -> tuple[list[Declared], set[str]]:
    """Return the objects that a file declares, streams first, and the names of the sets in it."""
    documents, sets = read_documents(settings, path), set[str]()
    declared: dict[str, Declared] = {}
    for number, document in enumerate(documents, 1):
        where = path if len(documents) == 1 else f"{path}, document {number}"
        for item in () if document is None else _of_document(document, where, sets):
            if declared.setdefault(item.title, item) is not item:
                raise CommandError(f"{path}: {item.title} occurs twice")
    return sorted(declared.values(), key=lambda item: item.kind == "consumer"), sets


def _of_document(document: Any, where: str, sets: set[str]) -> Iterator[Declared]:
    if isinstance(document, list):
        for number, item in enumerate(document):
            yield from _of_document(item, f"{where}, item {number + 1}", sets)
        return
    if not isinstance(document, dict):
        raise CommandError(f"{where}: expected an object")
    if not _LISTS.keys() & document.keys() or "name" in document:
        yield from _of_item(document, where, StreamConfig)
        return
    if unknown := document.keys() - _LISTS.keys() - {"set"}:
        listed = ", ".join(sorted(map(str, unknown)))
        known = ", ".join(map(repr, ["set", *_LISTS]))
        raise CommandError(f"{where}: unknown keys {listed}: expected {known}")
    if "set" in document:
        if not isinstance(document["set"], str) or not document["set"]:
            raise CommandError(f"{where}: set: expected a name")
        sets.add(document["set"])
    for key, kind in _LISTS.items():
        items = document.get(key) or []
        if not isinstance(items, list):
            raise CommandError(f"{where}: {key}: expected a list")
        for number, item in enumerate(items):
            yield from _of_item(item, f"{where}, {key}[{number}]", kind)


def _of_item(item: Any, where: str, kind: Any) -> Iterator[Declared]:
    if not isinstance(item, dict):
        raise CommandError(f"{where}: expected an object")
    try:
        if kind is ConsumerConfig or {"stream", "stream_name"} & item.keys():
            yield _consumer(item, item.get("stream") or item.get("stream_name"))
            return
        fields = dict(item)
        inside = (fields.pop("consumers", None) or []) if kind is StreamConfig else []
        fields = _config_fields(fields)
        resource = Declared(config=config_of(kind, fields, {}), fields=frozenset(fields))
        yield resource
        if not isinstance(inside, list):
            raise errors.InvalidArgumentError("consumers: expected a list")
        for entry in inside:
            yield _consumer(entry, resource.name)
    except errors.Error as error:
        raise CommandError(f"{where}: {error}") from error


def _config_fields(item: Any) -> dict[str, Any]:
    """Return the fields of a config, or of the config inside an info document."""
    if not isinstance(item, dict):
        raise errors.InvalidArgumentError("expected an object")
    inner = item.get("config")
    return dict(inner) if isinstance(inner, dict) else dict(item)


def _consumer(item: Any, stream: object) -> Declared:
    fields = _config_fields(item)
    for key in ("stream", "stream_name"):
        fields.pop(key, None)
    if not isinstance(stream, str):
        raise errors.InvalidArgumentError("a consumer needs the name of its stream: set 'stream'")
    check_stream_name(stream)
    if isinstance(alias := fields.pop("durable", None), str):
        fields["durable_name"] = alias
    name = fields.get("durable_name") or fields.get("name")
    if not name:
        raise errors.InvalidArgumentError(f"a consumer of {stream} has no name")
    if "inactive_threshold" not in fields:
        # A consumer without an inactive threshold is meant to stay, so it must be durable.
        fields["durable_name"] = name
    config = config_of(ConsumerConfig, fields, {})
    return Declared(stream=stream, config=config, fields=frozenset(fields))


# --- the set ------------------------------------------------------------------------------------


def _deletions(lists: Lister, declared: Sequence[Declared], name: str) -> list[Step]:
    """
    Return a deletion for each object of a set that is not declared.

    Raises:
        CommandError: some streams or consumers cannot be read, so the list is not complete.

    """
    kept = {item.title for item in declared}
    streams = lists.streams()
    streams.check()
    consumers = lists.consumers_of(streams)
    consumers.check()
    steps = []
    gone: set[str] = set()
    for info in streams.found:
        if set_of(info.config) != name:
            continue
        found = _declared_of(info.config)
        if found.title not in kept:
            gone.add(info.config.name)
            steps.append(Step(action=DELETE, declared=found, messages=info.state.messages))
    for item in consumers.found:
        found = Declared(config=item.config, stream=item.stream_name)
        # Those of a deleted stream are deleted with it.
        if set_of(item.config) == name and found.title not in kept and found.stream not in gone:
            steps.append(Step(action=DELETE, declared=found, messages=item.num_pending))
    return steps


def _declared_of(config: StreamConfig) -> Declared:
    """Return an existing stream, or the bucket or object store that it belongs to."""
    for prefix, kind in _PREFIXES.items():
        if config.name.startswith(prefix):
            bucket = kind(bucket=config.name.removeprefix(prefix))
            return Declared(config=bucket)
    return Declared(config=config)


def _confirm(settings: Settings, steps: Sequence[Step], *, force: bool) -> None:
    """
    Show what is to be deleted with its messages, and ask for the number of deletions.

    `force` confirms in a script only: on a terminal, the number is asked for in any case.
    """
    lines = []
    for step in steps:
        held = counted(step.messages or 0, "message")
        what = f"{held} to deliver" if step.declared.kind == "consumer" else held
        lines.append(f"delete  {step.declared.title}, {what}")
    settings.env.stderr.write("".join(f"{line}\n" for line in lines))
    ask = settings.ask()
    if not ask.interactive:
        ask.confirm(f"Delete {counted(len(steps), 'object')}?", force=force)
        return

    def check(answer: str) -> str:
        if answer != str(len(steps)):
            raise ValueError("this is not the number of deletions; Ctrl-C deletes nothing")
        return answer

    ask.value("Number of deletions to confirm", "--force", check, blank="")


@command("apply")
@option("-f, --file FILE", "JSON or YAML file; - is stdin.", FILE, to="path", required=True)
@option(
    "--set NAME", "Label what the file declares as this set.  [default: the file's set]", to="label"
)
@option("--dry-run", "Show what would be done, and change nothing.")
@option("--exit-code", "With --dry-run: exit with status 1 if there are changes.")
@option("--strict", "Set fields that are not in the file to their defaults.")
@option("--prune", "Delete objects of the set that are not in the file.", to="pruning")
@option("--force, -y, --yes", "With --prune: confirm the deletions, without a terminal.")
def apply(
    settings: Settings,
    *,
    path: str,
    label: str | None,
    dry_run: bool,
    exit_code: bool,
    strict: bool,
    pruning: bool,
    force: bool,
) -> None:
    """
    Create and update streams, consumers, buckets and object stores from a file.

    What already matches the file is left unchanged, so applying a file again changes nothing. Fields that the
    file does not contain keep their values; --dry-run lists those that are not managed.

    Objects of a file with a set have the name of the set in their metadata. --prune deletes the objects
    with this name that are not in the file, and nothing else. It shows their messages and, on a terminal, asks
    for the number of deletions; a script confirms with --yes. It refuses if a server does not answer.

    \b
      {"set": "shop",
       "streams": [
        {"name": "ORDERS", "subjects": ["ORDERS.*"], "max_age": "1y",
         "consumers": [{"name": "NEW", "filter_subject": "ORDERS.received"}]}
      ],
       "buckets": [{"bucket": "CONFIG", "history": 5}],
       "object_stores": [{"bucket": "FILES"}]}

    \b
    Exit status:
      0  the objects match the file
      1  the server refused a change, or --prune cannot see all streams;
         with --dry-run --exit-code: there are changes
      2  the file cannot be read, or --prune needs a confirmation and there is no terminal
      3  the stream of a consumer exists neither on the server nor in the file
      5  no connection
    """  # noqa: D301 - click knows its mark by the character, not by the escape
    declared, sets = _read(settings, path)
    name = label or next(iter(sets), None)
    if label is None and len(sets) > 1:
        raise CommandError(f"{path} has several sets: {', '.join(sorted(sets))}")
    if pruning and name is None:
        hint = "add 'set' to the file, or use --set NAME"
        raise CommandError(
            "--prune needs a set, since it deletes only what belongs to it", hint=hint
        )
    declared = [item.in_set(name) for item in declared] if name else declared
    with lister(settings) as lists:
        steps = _plan(lists, declared, name, strict=strict)
        deletions = _deletions(lists, declared, name) if pruning and name else []
        if dry_run:
            _report(settings, [*steps, *deletions], (), dry_run=True)
            if exit_code and any(step.action != NOTHING for step in [*steps, *deletions]):
                raise click.exceptions.Exit(ExitStatus.FAILED)
            return
        if deletions:
            _confirm(settings, deletions, force=force)
        done: list[Step] = []
        results: list[Any] = []
        try:
            for step in [*steps, *deletions]:
                results.append(run_step(lists.js, step))
                done.append(step)
            check_updates(lists.js, list(zip(done, results, strict=True)))
        finally:
            # Also report the steps that were completed before an error.
            _report(settings, done, [*steps, *deletions][len(done) :], dry_run=False)


def _plan(
    lists: Lister, declared: Sequence[Declared], name: str | None, *, strict: bool
) -> list[Step]:
    try:
        steps = plan(lists.js, declared, strict=strict)
    except errors.StreamNotFoundError as error:
        raise AbsentError(error.description, cause=error) from error
    for step in steps:
        owner = next((item.before for item in step.found if item.field == "metadata"), None)
        other = (owner or {}).get(SET_LABEL) if isinstance(owner, dict) else None
        if name is not None and other not in (None, name):
            raise CommandError(f"{step.declared.title} belongs to set {other!r}, not to {name!r}")
    return steps


def _report(
    settings: Settings, steps: Sequence[Step], left: Sequence[Step], *, dry_run: bool
) -> None:
    """Write the steps that were done, or would be done, and a summary; `left`: those that were not done."""
    counts = Counter(step.action for step in steps)
    document = {
        "dry_run": dry_run,
        "items": [_item(step) for step in steps],
        **({"not_done": [_item(step) for step in left]} if left else {}),
        "summary": {_verb(action): counts[action] for action in (CREATE, UPDATE, NOTHING, DELETE)},
    }
    width = max((len(_verb(step.action, dry_run=dry_run)) for step in steps), default=0)
    width = max(width, len(_NOT_DONE) if left else 0)
    lines = []
    for step in steps:
        held = "" if step.messages is None else f", {counted(step.messages, 'message')}"
        verb = _verb(step.action, dry_run=dry_run)
        lines.append(f"{verb:<{width}}  {step.declared.title}{held}")
        lines += [f"{'':<{width}}    {item.text}" for item in step.found]
        if dry_run and step.unmanaged:
            texts = "; ".join(item.text.removesuffix(" -> -") for item in step.unmanaged)
            lines.append(f"{'':<{width}}    not managed: {texts}")
    lines += [f"{_NOT_DONE:<{width}}  {step.declared.title}" for step in left]
    totals = [f"{number} {_verb(action, dry_run=dry_run)}" for action, number in counts.items()]
    totals += [f"{len(left)} {_NOT_DONE}"] if left else []
    lines.append(", ".join(totals) or "Nothing to do")
    emit_text(settings, document, "\n".join(lines))


#: What the report says of the steps after one that failed, and of that one.
_NOT_DONE: Final = "not done"


def _verb(action: str, *, dry_run: bool = False) -> str:
    if action == NOTHING:
        return "unchanged"
    return f"would {action}" if dry_run else f"{action}d"


def _item(step: Step) -> dict[str, Any]:
    declared = step.declared
    item: dict[str, Any] = {"kind": declared.kind}
    if isinstance(declared.config, ConsumerConfig):
        item |= {"stream": declared.stream, "consumer": declared.name.partition(" > ")[2]}
    else:
        item["stream" if isinstance(declared.config, StreamConfig) else "bucket"] = declared.name
    item["action"] = _verb(step.action)
    if step.messages is not None:
        item["messages"] = step.messages
    for key, found in (("differences", step.found), ("not_managed", step.unmanaged)):
        if found:
            item[key] = difference_documents(found)
    return item
