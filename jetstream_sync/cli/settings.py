"""The options that every command has, before or after its name, and what became of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from .env import Environment

__all__ = ["Settings", "common_options"]

_Command = TypeVar("_Command", bound=Callable[..., object])


@dataclass(kw_only=True)
class Settings:
    """
    What the user asked of ``jsm`` as a whole; click passes it down as ``obj``.

    It is changed while the command line is read, and by nobody after that.
    """

    env: Environment
    #: Addresses given by ``--server``, in order; empty when the option was not used.
    servers: list[str] = field(default_factory=list)
    #: Results and errors as JSON.
    json: bool = False

    def take(self, servers: tuple[str, ...], *, json: bool) -> None:
        """Take over the options of one level; the level nearest to the command wins."""
        listed = [address.strip() for value in servers for address in value.split(",")]
        if any(not address for address in listed):
            raise click.BadParameter("an address is empty", param_hint="--server")
        self.servers = listed or self.servers
        self.json = self.json or json


def common_options(command: _Command) -> _Command:
    """
    Give a click command ``--server`` and ``--json``, and the `Settings` as its first argument.

    Args:
        command: called with the settings and then with its own options.

    """

    @click.option(
        "-s",
        "--server",
        "servers",
        multiple=True,
        metavar="URL",
        help="A NATS server; repeat it, or separate with commas, for several.",
    )
    @click.option("-j", "--json", "as_json", is_flag=True, help="Write the result as JSON.")
    @click.pass_obj
    @functools.wraps(command)
    def with_settings(
        settings: Settings, /, *, servers: tuple[str, ...], as_json: bool, **options: Any
    ) -> object:
        settings.take(servers, json=as_json)
        return command(settings, **options)

    return with_settings  # type: ignore[return-value]  # click's decorators lose the type
