"""``jsm consumer add``: make a consumer, of options, answers and a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ... import ConsumerConfig, ConsumerInfo, StreamConfig
from ...errors import ConsumerExistsError, ConsumerNotFoundError, StreamNotFoundError
from ...subjects import check_consumer_name, subjects_overlap
from ..completion.complete import complete_stream
from ..config.fields import changed, subjects_of
from ..config.files import config_of_file, write_config
from ..output import document, duration, emit, note, write_blocks
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..terminology import words
from .find import no_stream, title
from .options import config_options, fields_of
from .show import config_block, filters_of, show
from .values import (
    outside,
    parse_ack,
    parse_deliver,
    parse_max_deliver,
    parse_replay,
)

if TYPE_CHECKING:
    from ... import JetStream

__all__ = ["add", "check_against_stream", "put"]


@click.command()
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.argument("consumer", required=False)
@click.option("--pull", is_flag=True, help="It is pulled from, not pushed to a subject.")
@click.option("--ephemeral", is_flag=True, help="It goes when nobody uses it, and needs no name.")
@config_options
@click.option(
    "--config", "config_file", metavar="FILE", help="Its configuration as JSON; '-': from input."
)
@click.option("--output", metavar="FILE", help="Write the configuration there, and make nothing.")
@click.option("--defaults", is_flag=True, help="Ask nothing that has a default.")
@click.option("--dry-run", is_flag=True, help="Show what would be made, and make nothing.")
@click.option("--update", is_flag=True, help="Change the one of that name when there is one.")
@common_options
def add(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    pull: bool,
    ephemeral: bool,
    config_file: str | None,
    output: str | None,
    defaults: bool,
    dry_run: bool,
    update: bool,
    **options: Any,
) -> None:
    """
    Make a CONSUMER of a STREAM. What is missing is asked for, when there is somebody to ask.

    \b
    Examples:
      jsm consumer add ORDERS NEW --filter ORDERS.received --ack explicit --pull --deliver all
      jsm consumer add ORDERS MONITOR --ack none --target monitor.ORDERS --deliver last --filter ''
      jsm consumer add ORDERS --pull --ephemeral --deliver 1h --defaults
    """  # noqa: D301 - click knows its mark by the character, not by the escape
    fields = fields_of(options)
    if pull:
        if fields.get("deliver_subject"):
            raise click.UsageError("--pull and --target exclude each other")
        fields["deliver_subject"] = None
    base = ConsumerConfig()
    if config_file is not None:
        base = config_of_file(settings, ConsumerConfig, config_file, {})
    with settings.jetstream() as js:
        ask = Asker(settings)
        if stream is None:
            stream = ask.select(f"Select a {words().stream.lower()}", js.stream_names, "STREAM")
        name = _name(ask, consumer, base, ephemeral=ephemeral)
        ask.done()
        if defaults or config_file is not None:
            ask.interactive = False
        _ask_for_rest(ask, base, fields)
        config = changed(base, {**fields, **name})
        try:
            stream_config = js.get_stream(stream).cached_info.config
        except StreamNotFoundError as error:
            raise no_stream(js, stream, error) from error
        check_against_stream(settings, config, stream_config)
        if output is not None:
            write_config(settings, config, output)
            return
        if dry_run:
            _show_plan(settings, stream, config)
            return
        info = put(js, stream, config, update=update)
        emit(settings, info, lambda: show(settings, info))
        _warn_unheard(settings, info)


def _name(
    ask: Asker, given: str | None, base: ConsumerConfig, *, ephemeral: bool
) -> dict[str, Any]:
    """Return the fields that have the name."""
    known = given or base.durable_name or base.name
    if ephemeral:
        return {"durable_name": None, "name": known}
    if known is None:
        known = ask.value(
            f"{words().consumer} name",
            "CONSUMER",
            check_consumer_name,
            blank="",
            help="What it is called; leave it out with --ephemeral",
        )
        return {"durable_name": known or None, "name": None}
    if given is None and base.durable_name is None:
        return {}
    return {"durable_name": known, "name": None}


def _ask_for_rest(ask: Asker, base: ConsumerConfig, fields: dict[str, Any]) -> None:
    """Ask for what the tool of 2020 asked for, in its order, where it was not said."""
    if not ask.interactive:
        return
    if "deliver_subject" not in fields:
        answer = ask.text(
            "Delivery target",
            "--target",
            default="",
            help="The subject to push messages to; blank: they are pulled",
        )
        fields["deliver_subject"] = None if answer.lower() in ("", "pull") else answer
    if "deliver_policy" not in fields:
        everything: dict[str, Any] = {}
        fields.update(
            ask.value(
                "Start policy (all, last, 1h, msg sequence)",
                "--deliver",
                parse_deliver,
                default="all",
                blank=everything,
                help="Which message comes first; also new, subject, and a time",
            )
        )
    if fields["deliver_subject"] is not None:
        if "ack_policy" not in fields:
            fields["ack_policy"] = ask.value(
                "Acknowledgement policy",
                "--ack",
                parse_ack,
                default="explicit",
                blank=base.ack_policy,
                help="Which messages have to be acknowledged: explicit, all or none",
            )
        if "replay_policy" not in fields:
            fields["replay_policy"] = ask.value(
                "Replay policy",
                "--replay",
                parse_replay,
                default="instant",
                blank=base.replay_policy,
                help="How fast stored messages come: instant, or original, as they were stored",
            )
    if not {"filter_subject", "filter_subjects"} & set(fields):
        answer = ask.text(
            f"Filter {words().stream} by subject (blank for all)",
            "--filter",
            default="",
            help="Deliver only messages on this subject, which may have wildcards",
        )
        subjects = subjects_of([answer])
        fields["filter_subject"] = subjects[0] if len(subjects) == 1 else None
        fields["filter_subjects"] = subjects if len(subjects) > 1 else None
    if "max_deliver" not in fields:
        fields["max_deliver"] = ask.value(
            "Maximum Allowed Deliveries",
            "--max-deliver",
            parse_max_deliver,
            default="-1",
            blank=-1,
            help="How often a message is delivered when it is not acknowledged; -1: no limit",
        )


def check_against_stream(settings: Settings, config: ConsumerConfig, stream: StreamConfig) -> None:
    """Warn of what the server takes, and of what it refuses without saying why."""
    subjects = list(stream.subjects or ())
    noun = words().stream.lower()
    target = config.deliver_subject
    overlapping = [each for each in subjects if target and subjects_overlap(target, each)]
    if overlapping:
        note(
            settings,
            f"warning: {noun} {stream.name} stores {overlapping[0]}, and so what goes to {target}",
        )
    if stream.sources or stream.mirror or stream.subject_transform:
        return  # messages have other subjects, too
    for each in outside(filters_of(config), subjects) if subjects else ():
        known = ", ".join(subjects)
        note(settings, f"warning: nothing falls under {each}: {noun} {stream.name} stores {known}")


def put(js: JetStream, stream: str, config: ConsumerConfig, *, update: bool) -> ConsumerInfo:
    """
    Make a consumer of either kind, or change it.

    Args:
        js: where.
        stream: the stream's name.
        config: what it is to be.
        update: whether one of that name may be changed.

    Raises:
        CommandError: there is one of that name with another configuration.

    """
    name = config.durable_name or config.name
    if update and name is not None:
        try:
            js.consumer_info(stream, name)
        except ConsumerNotFoundError:
            pass
        else:
            if config.deliver_subject is not None:
                return js.update_push_consumer(stream, config)
            return js.update_consumer(stream, config).cached_info
    try:
        if config.deliver_subject is not None:
            return js.create_push_consumer(stream, config)
        return js.create_consumer(stream, config).cached_info
    except ConsumerExistsError as error:
        noun = words().consumer.lower()
        raise CommandError(
            f"{noun} {name} exists with another configuration",
            ExitStatus.FAILED,
            hint="change it with 'edit', or with --update",
            cause=error,
        ) from error


def _show_plan(settings: Settings, stream: str, config: ConsumerConfig) -> None:
    noun = words().consumer.lower()
    name = config.durable_name or config.name or "(a random name)"

    def human() -> None:
        heading = f"This {noun} would be made: {stream} > {name}"
        write_blocks(settings.env, config_block(settings, config), heading=heading)

    emit(settings, {"stream_name": stream, "config": document(config), "dry_run": True}, human)


def _warn_unheard(settings: Settings, info: ConsumerInfo) -> None:
    """Say that an ephemeral consumer goes when nobody listens."""
    config = info.config
    if config.durable_name or not config.deliver_subject or info.push_bound:
        return
    within = duration(config.inactive_threshold) if config.inactive_threshold else "5s"
    note(
        settings,
        f"warning: nobody listens: subscribe to {config.deliver_subject} within {within}, "
        f"or {words().consumer.lower()} {title(info)} goes",
    )
