"""
Groups of commands: aliases, lazily imported commands, suggestions for unknown names.

Help and JSON show the main name of a command.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from ..suggestions import closest_match
from .status import CommandError, ExitStatus

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


@dataclass(frozen=True, kw_only=True)
class LazyCommand:
    """A command that is imported on first use."""

    target: str
    """The import path, ``package.module:name``."""
    help: str
    """The short help in the list of commands."""
    aliases: tuple[str, ...] = ()
    """Other names of the command."""

    def load(self, name: str) -> click.Command:
        """
        Import and return the command.

        Raises:
            CommandError: the module is not installed.

        """
        module_name, _, attribute = self.target.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name not in (module_name, module_name.rpartition(".")[0]):
                raise
            raise CommandError(
                f"{name!r} is not part of this installation", ExitStatus.USAGE
            ) from error
        command: click.Command = getattr(module, attribute)
        command.short_help = command.short_help or self.help
        return command


class MissingCommandError(click.UsageError):
    """A group was called without a command; the error shows the group's help."""

    def __init__(self, ctx: click.Context) -> None:
        super().__init__("a command is missing", ctx)
        self.help: str = ctx.get_help()


#: Commands of the ``nats`` command that are not in jsm, by group (natscli 0.3).
_OF_NATS: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset(
        {"audit", "auth", "counter", "governor", "latency", "micro", "plugins", "reply", "schema"}
        | {"service", "tools", "trace", "traffic"}
    ),
    "account": frozenset({"report", "tls"}),
    "consumer": frozenset({"cluster", "graph"}),
    "server": frozenset(
        {"account", "check", "cluster", "config", "generate", "graph", "info", "list", "ls"}
        | {"mkpasswd", "ping", "raft", "report", "request", "watch"}
    ),
    "stream": frozenset({"cluster", "search"}),
}


class NounGroup(click.Group):
    """
    A group whose commands have aliases and may be imported lazily.

    Args:
        lazy: commands to import on first use, by name.

    """

    def __init__(
        self, *args: Any, lazy: Mapping[str, LazyCommand] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy: dict[str, LazyCommand] = dict(lazy or {})
        self.aliases: dict[str, str] = {}
        for name, entry in self.lazy.items():
            self.aliases.update(dict.fromkeys(entry.aliases, name))

    def command(  # type: ignore[override]  # always with brackets
        self, name: str, *, aliases: Sequence[str] = (), **kwargs: Any
    ) -> Callable[[Callable[..., Any]], click.Command]:
        """Return a decorator that makes a function a command, as in click, with aliases."""
        decorate = super().command(name, **kwargs)

        def with_aliases(function: Callable[..., Any]) -> click.Command:
            command: click.Command = decorate(function)
            self.add_aliases(command, aliases)
            return command

        return with_aliases

    def add_aliases(self, command: click.Command, aliases: Sequence[str]) -> None:
        """Add aliases for a command of this group."""
        self.aliases.update(dict.fromkeys(aliases, command.name or ""))

    def aliases_of(self, name: str) -> list[str]:
        """Return the aliases of a command."""
        return [alias for alias, target in self.aliases.items() if target == name]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options of the group; raise `MissingCommandError` when there are no arguments."""
        # The behaviour of click itself differs from version to version.
        if not args and not ctx.resilient_parsing:
            raise MissingCommandError(ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of their definition."""
        del ctx
        return [*(name for name in self.commands if name not in self.lazy), *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with a name or alias, imported if necessary."""
        del ctx
        name = self.aliases.get(cmd_name, cmd_name)
        if name not in self.commands and name in self.lazy:
            self.commands[name] = self.lazy[name].load(name)
        return self.commands.get(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed, with its main name."""
        typed = args[0]
        command = self.get_command(ctx, typed)
        if command is None:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            if typed in _OF_NATS.get(" ".join(ctx.command_path.split()[1:]), ()):
                ctx.fail(f"the command {typed!r} of nats is not in jsm")
            close = closest_match(typed, [*self.list_commands(ctx), *self.aliases])
            hint = f"; did you mean {close!r}?" if close else ""
            ctx.fail(f"No such command {typed!r}{hint}")
        return command.name, command, args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        rows = []
        for name in self.list_commands(ctx):
            if name in self.lazy and name not in self.commands:
                rows.append((name, self.lazy[name].help))
                continue
            command = self.commands[name]
            if not command.hidden:
                rows.append((name, command.get_short_help_str(limit=70)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command name, or an alias when no command name matches."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for shells only

        rows = {name: entry.help for name, entry in self.lazy.items()}
        for name, command in self.commands.items():
            if not command.hidden:
                rows.setdefault(name, command.get_short_help_str())
        found = [
            CompletionItem(name, help=text)
            for name, text in rows.items()
            if name.startswith(incomplete)
        ]
        if incomplete and not found:
            found = [
                CompletionItem(alias, help=rows.get(target, ""))
                for alias, target in self.aliases.items()
                if alias.startswith(incomplete)
            ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]
