"""Groups of commands: a table of commands that are imported on first use, aliases and suggestions."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from .settings import Settings, common_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


#: Examples of all commands, one a line, from the pages; tests/make_jsm_reference.py writes it.
_EXAMPLES: Final = "data/examples.txt"


def is_example(path: str, line: str) -> bool:
    """Return whether a line runs a command; `path`: its name with those of its groups: ``stream add``."""
    return re.search(rf"^(?:.*\| )?jsm {re.escape(path)}(?: |$)", line) is not None


def examples_of(path: str) -> list[str]:
    """Return the examples of a command."""
    text = (pkgutil.get_data(__package__, _EXAMPLES) or b"").decode()
    return [line for line in text.splitlines() if is_example(path, line)]


@dataclass(frozen=True)
class Entry:
    """A command in a table of commands, or a group with a table of its own."""

    #: The help; the list of commands shows its first paragraph.
    help: str
    #: The module below this package, followed by ``:`` and the function if it has another name.
    target: str = ""
    #: Other names, separated by spaces.
    aliases: str = ""
    commands: Mapping[str, Entry] = field(default_factory=dict)
    #: Further names, each with the arguments that it stands for.
    shortcuts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first paragraph of the help."""
        return self.help.partition("\n\n")[0]

    def load(self, name: str, path: str) -> click.Command:
        """Return the group, or import and return the command; `path`: the names from the outermost group on."""
        if self.commands:

            @common_options
            def group(_settings: Settings) -> None: ...

            options: Any = {"entries": self.commands, "path": path, "help": self.help}
            return click.command(name, cls=NounGroup, **options)(group)
        place, _, attribute = self.target.partition(":")
        module = importlib.import_module(f"{__package__}.{place}")
        command: click.Command = getattr(module, attribute or name)
        command.name = name
        command.short_help = self.summary
        examples = "\n".join(f"  {example}" for example in examples_of(path))
        # With the mark of click for a paragraph whose lines stay as they are.
        command.epilog = f"\b\nExamples:\n{examples}"
        return command


class MissingCommandError(click.UsageError):
    """A group was called without a command; the error shows the group's help."""

    def __init__(self, ctx: click.Context) -> None:
        super().__init__("a command is missing", ctx)
        self.help: str = ctx.get_help()


class NounGroup(click.Group):
    """A group of the commands in a table, which have aliases and are imported on first use."""

    def __init__(
        self, *args: Any, entries: Mapping[str, Entry], path: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.path = path
        self.entries: dict[str, Entry] = dict(entries)
        self.aliases: dict[str, str] = {
            alias: name for name in self.entries for alias in self.aliases_of(name)
        }

    def aliases_of(self, name: str) -> list[str]:
        """Return the aliases of a command."""
        return [*self.entries[name].aliases.split(), *self.entries[name].shortcuts]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options of the group; raise `MissingCommandError` when there are no arguments."""
        # The behaviour of click itself differs from version to version.
        if not args and not ctx.resilient_parsing:
            raise MissingCommandError(ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of their definition."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with a name or alias, imported if necessary."""
        del ctx
        name = self.aliases.get(cmd_name, cmd_name)
        if name not in self.commands and name in self.entries:
            self.commands[name] = self.entries[name].load(name, f"{self.path} {name}".strip())
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
            from ..options import closest_match  # noqa: PLC0415 - for errors only

            close = closest_match(typed, [*self.list_commands(ctx), *self.aliases])
            hint = f"; did you mean {close!r}?" if close else ""
            ctx.fail(f"No such command {typed!r}{hint}")
        entry = self.entries.get(self.aliases.get(typed, typed))
        implied = entry.shortcuts.get(typed, ()) if entry is not None else ()
        return command.name, command, [*implied, *args[1:]]

    def _summaries(self) -> dict[str, str]:
        """Return the short help of each command, without importing any."""
        return {name: entry.summary for name, entry in self.entries.items()}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and then the options."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries().items()))
        click.Command.format_options(self, ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command name, or an alias when no command name matches."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for shells only

        rows = self._summaries()
        names = [name for name in rows if name.startswith(incomplete)]
        if incomplete and not names:
            names = [alias for alias in self.aliases if alias.startswith(incomplete)]
        found = [CompletionItem(name, help=rows[self.aliases.get(name, name)]) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]
