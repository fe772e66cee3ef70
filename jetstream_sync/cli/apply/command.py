"""``jsm apply``: create and update streams and consumers from a file; repeating it changes nothing."""

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
from .plan import CREATE, DELETE, NOTHING, UPDATE, Step, desired_resources, plan, prune

__all__ = ["apply"]

#: The verb of each action in the output.
_DONE = {CREATE: "created", UPDATE: "updated", NOTHING: "unchanged", DELETE: "deleted"}
_WOULD = {CREATE: "would create", UPDATE: "would update", NOTHING: "unchanged"} | {
    DELETE: "would delete"
}
_TO_DO = {CREATE: "to create", UPDATE: "to update", NOTHING: "unchanged", DELETE: "to delete"}


@click.command("apply")
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="FILE",
    help="JSON or YAML file; '-' for standard input.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option(
    "--exit-code", is_flag=True, help="With --dry-run: exit with status 1 if there are changes."
)
@click.option(
    "--prune",
    "pruning",
    is_flag=True,
    help="Delete streams and consumers that are not in the file.",
)
@click.option(
    "--force", "-y", "--yes", is_flag=True, help="With --prune: do not ask for confirmation."
)
@common_options
def apply(
    settings: Settings, path: str, dry_run: bool, exit_code: bool, pruning: bool, force: bool
) -> None:
    """
    Create and update streams and consumers from a file.

    A stream or consumer that already matches the file is left unchanged, so applying a file again
    changes nothing. Fields that the file does not contain keep their values. Nothing is deleted
    without --prune, which deletes all other streams of the account and all other durable consumers
    of the streams in the file. If one change is impossible, no change is made.

    \b
      {"streams": [
        {"name": "ORDERS", "subjects": ["ORDERS.*"], "max_age": "1y",
         "consumers": [{"name": "NEW", "filter_subject": "ORDERS.received"}]}
      ]}

    \b
    Exit status:
      0  the streams and consumers match the file
      1  a change is impossible, or the server refused it;
         with --dry-run --exit-code: there are changes
      2  the file cannot be read, or --prune needs a confirmation and there is no terminal
      3  the stream of a consumer exists neither on the server nor in the file
      5  no connection
    """  # noqa: D301 - click knows its mark by the character, not by the escape
    desired = desired_resources(read_documents(settings, path), path)
    if pruning and not desired:
        raise CommandError(
            f"{path} contains no streams or consumers: --prune would delete everything",
            ExitStatus.USAGE,
        )
    with settings.jetstream() as js:
        steps = plan(js, desired)
        if pruning:
            steps += prune(js, desired)
        if dry_run:
            _report(settings, steps, _WOULD, dry_run=True)
        impossible = [step for step in steps if not step.possible]
        if impossible:
            raise CommandError(_impossible(impossible), ExitStatus.FAILED)
        if dry_run:
            if exit_code and any(step.action != NOTHING for step in steps):
                raise click.exceptions.Exit(ExitStatus.FAILED)
            return
        deleted = [step.title for step in steps if step.action == DELETE]
        if deleted:
            Asker(settings).confirm(f"Delete {', '.join(deleted)}?", force=force)
        done: list[Step] = []
        try:
            for step in steps:
                _execute(js, step)
                done.append(step)
        finally:
            # Also report the steps that were completed before an error.
            _report(settings, done, _DONE, dry_run=False)


def _impossible(steps: list[Step]) -> str:
    parts = [
        f"{step.title}: " + "; ".join(each.line() for each in step.found if not each.possible)
        for step in steps
    ]
    return "nothing was changed, because these changes are impossible: " + "; ".join(parts)


def _execute(js: JetStream, step: Step) -> None:
    if step.action == NOTHING:
        return
    try:
        if step.action == DELETE:
            _delete(js, step)
        elif isinstance(step.config, StreamConfig):
            change = js.create_stream if step.action == CREATE else js.update_stream
            change(step.config)
        elif isinstance(step.config, ConsumerConfig):
            _apply_consumer(js, step.stream, step.config, create=step.action == CREATE)
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


def _apply_consumer(js: JetStream, stream: str, config: ConsumerConfig, *, create: bool) -> None:
    if config.deliver_subject:
        push = js.create_push_consumer if create else js.update_push_consumer
        push(stream, config)
    else:
        pull = js.create_consumer if create else js.update_consumer
        pull(stream, config)


def _report(settings: Settings, steps: list[Step], verbs: dict[str, str], *, dry_run: bool) -> None:
    """Write the steps that were done, or would be done, and a summary."""
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
