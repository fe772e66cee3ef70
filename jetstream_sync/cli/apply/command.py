"""``jsm apply``: make streams and consumers as a file says, as often as one likes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from ... import ConsumerConfig, JetStream, StreamConfig
from ...errors import APIError
from ..config.diff import difference_documents
from ..config.edit import update_error
from ..config.files import read_documents
from ..output import emit, say
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from .plan import CREATE, DELETE, NOTHING, UPDATE, Step, plan, prune, wishes

__all__ = ["apply"]

#: What was done, and what would be.
_DONE = {CREATE: "created", UPDATE: "updated", NOTHING: "unchanged", DELETE: "deleted"}
_WOULD = {CREATE: "would create", UPDATE: "would update", NOTHING: "unchanged"} | {
    DELETE: "would delete"
}
_TO_DO = {CREATE: "to create", UPDATE: "to update", NOTHING: "unchanged", DELETE: "to delete"}


@click.command("apply")
@click.option(
    "-f", "--file", "path", required=True, metavar="FILE", help="JSON or YAML; - is stdin."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--exit-code", is_flag=True, help="With --dry-run: status 1 when something would.")
@click.option("--prune", "pruning", is_flag=True, help="Delete what the file does not have.")
@click.option("--force", "-y", "--yes", is_flag=True, help="With --prune: ask nothing; do it.")
@common_options
def apply(
    settings: Settings, path: str, dry_run: bool, exit_code: bool, pruning: bool, force: bool
) -> None:
    """
    Make streams and consumers as a file says.

    What is there as the file says is left alone, so applying a file again changes nothing. What the
    file does not say of a stream or consumer stays as it is. Nothing is deleted without --prune,
    which deletes the other streams of the account, and the other durable consumers of the file's
    streams. When one change is impossible, none is made.

    \b
      {"streams": [
        {"name": "ORDERS", "subjects": ["ORDERS.*"], "max_age": "1y",
         "consumers": [{"name": "NEW", "filter_subject": "ORDERS.received"}]}
      ]}

    \b
    Exit status:
      0  all is as the file says
      1  a change is impossible, or the server refused it;
         with --dry-run --exit-code: something would be done
      2  the file can not be read, or nobody can be asked about --prune
      3  a consumer's stream is neither there nor in the file
      5  no connection
    """  # noqa: D301 - click knows its mark by the character, not by the escape
    wanted = wishes(read_documents(settings, path), path)
    if pruning and not wanted:
        raise CommandError(f"{path}: it has nothing; --prune would delete all", ExitStatus.USAGE)
    with settings.jetstream() as js:
        steps = plan(js, wanted)
        if pruning:
            steps += prune(js, wanted)
        if dry_run:
            _report(settings, steps, _WOULD, dry_run=True)
        impossible = [step for step in steps if not step.possible]
        if impossible:
            raise CommandError(_impossible(impossible), ExitStatus.FAILED)
        if dry_run:
            if exit_code and any(step.action != NOTHING for step in steps):
                raise click.exceptions.Exit(ExitStatus.FAILED)
            return
        doomed = [step.title for step in steps if step.action == DELETE]
        if doomed:
            Asker(settings).confirm(f"Delete {', '.join(doomed)}?", force=force)
        done: list[Step] = []
        try:
            for step in steps:
                _carry_out(js, step)
                done.append(step)
        finally:
            # What was done before a refusal is told, too.
            _report(settings, done, _DONE, dry_run=False)


def _impossible(steps: list[Step]) -> str:
    parts = [
        f"{step.title}: " + "; ".join(each.line() for each in step.found if not each.possible)
        for step in steps
    ]
    return "nothing was done, since these changes are impossible: " + "; ".join(parts)


def _carry_out(js: JetStream, step: Step) -> None:
    if step.action == NOTHING:
        return
    try:
        if step.action == DELETE:
            _delete(js, step)
        elif isinstance(step.config, StreamConfig):
            make = js.create_stream if step.action == CREATE else js.update_stream
            make(step.config)
        elif isinstance(step.config, ConsumerConfig):
            _make_consumer(js, step.stream, step.config, create=step.action == CREATE)
    except APIError as error:
        if step.action == UPDATE:
            name = step.stream if step.consumer is None else f"{step.stream} > {step.consumer}"
            raise update_error(step.kind, name, error, step.found) from error
        raise CommandError(f"{step.title}: {error}", ExitStatus.FAILED) from error


def _delete(js: JetStream, step: Step) -> None:
    if step.consumer is None:
        js.delete_stream(step.stream)
    else:
        js.delete_consumer(step.stream, step.consumer)


def _make_consumer(js: JetStream, stream: str, config: ConsumerConfig, *, create: bool) -> None:
    if config.deliver_subject:
        push = js.create_push_consumer if create else js.update_push_consumer
        push(stream, config)
    else:
        pull = js.create_consumer if create else js.update_consumer
        pull(stream, config)


def _report(settings: Settings, steps: list[Step], verbs: dict[str, str], *, dry_run: bool) -> None:
    """Say what was done, or would be."""
    counts = Counter(step.action for step in steps)
    document = {
        "dry_run": dry_run,
        "items": [_item(step) for step in steps],
        "summary": {verb: counts[action] for action, verb in _DONE.items()},
    }

    def human() -> None:
        width = max(map(len, verbs.values()))
        for step in steps:
            say(settings, f"{verbs[step.action]:<{width}}  {step.title}")
            for each in step.found:
                say(settings, f"{'':<{width}}    {each.line()}")
        totals = _TO_DO if dry_run else _DONE
        parts = [f"{number} {totals[action]}" for action, number in counts.items()]
        say(settings, ", ".join(parts) if parts else "Nothing to do")

    emit(settings, document, human)


def _item(step: Step) -> dict[str, Any]:
    item: dict[str, Any] = {"kind": step.kind, "stream": step.stream}
    if step.consumer is not None:
        item["consumer"] = step.consumer
    item["action"] = _DONE[step.action]
    if step.found:
        item["differences"] = difference_documents(step.found)
    return item
