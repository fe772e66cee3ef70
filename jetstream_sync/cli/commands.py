"""``jsm commands``, ``help``, ``completion`` and ``errors``: what the program knows without a server."""

from __future__ import annotations

import copy
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click
from click.shell_completion import get_completion_class

from .. import errors
from .main import NounGroup
from .shared.env import parse_json
from .shared.output import emit, emit_text
from .shared.render import Block, Field, Table, show_blocks, show_rows
from .shared.settings import Settings, command
from .shared.status import MEANINGS, AbsentError, CommandError, FailedError
from .shared.values import ANY_CASE_PATTERN


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A command and its position in the tree."""

    path: tuple[str, ...]
    command: click.Command
    context: click.Context
    aliases: tuple[str, ...]

    @property
    def is_group(self) -> bool:
        """Whether this is a group of commands."""
        return isinstance(self.command, click.Group)

    @property
    def help(self) -> str:
        """The help text without the options, one line for each paragraph."""
        text = (self.command.help or "").partition("\f")[0].strip()
        examples = "" if self.is_group else f"\n\n{self.command.epilog or ''}"
        return f"{text}{examples}".replace("\b\n", "").strip()


def walk(group: click.Group, context: click.Context) -> Iterator[Node]:
    """Yield the commands of a tree, each group before its commands, in the order of the help."""
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if found is None or found.hidden:
            continue
        below = click.Context(found, info_name=name, parent=context)
        aliases = group.aliases_of(name) if isinstance(group, NounGroup) else []
        path = tuple(below.command_path.split()[1:])
        yield Node(path=path, command=found, context=below, aliases=tuple(aliases))
        if isinstance(found, click.Group):
            yield from walk(found, below)


def parameters(command: click.Command) -> tuple[list[click.Argument], list[click.Option]]:
    """Return the visible arguments and options that belong to the command itself."""
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    options = [
        param
        for param in command.params
        # Common options do not expose a value to the command.
        if isinstance(param, click.Option) and param.expose_value and not param.hidden
    ]
    return arguments, options


def default_of(option: click.Option) -> Any:
    """Return the default of an option that shows it, as a JSON value; ``None`` for none."""
    value = option.default
    if not option.show_default:
        return None
    return value if isinstance(value, (str, int, float, bool)) else None


def _described(node: Node) -> dict[str, Any]:
    arguments, options = parameters(node.command)
    return {
        "command": " ".join(("jsm", *node.path)),
        "aliases": list(node.aliases),
        "group": node.is_group,
        "help": node.help,
        "arguments": [
            {
                "name": argument.make_metavar(node.context).strip("[]{}"),
                "required": argument.required,
                "multiple": argument.nargs != 1,
            }
            for argument in arguments
        ],
        "options": [
            {
                "flags": [*option.opts, *option.secondary_opts],
                "switch": bool(option.is_flag),
                "required": option.required,
                "multiple": option.multiple,
                "choices": (
                    [str(choice) for choice in option.type.choices]
                    if isinstance(option.type, click.Choice)
                    else None
                ),
                "default": default_of(option),
                "help": " ".join((option.help or "").split()),
            }
            for option in options
        ],
    }


@command("commands")
def commands(settings: Settings) -> None:
    """
    List all commands.

    With -j, include the aliases, arguments and options of each command. The options that all commands
    share are listed by 'jsm help options' only.
    """
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    nodes = list(walk(root.command, root))
    rows = [node for node in nodes if not node.is_group]
    document = [_described(node) for node in nodes]
    show_rows(settings, rows, Table(_COMMANDS, "Commands"), document=document)


_COMMANDS: Final = (
    Field("Command", lambda node: " ".join(("jsm", *node.path))),
    Field("Purpose", lambda node: node.command.get_short_help_str(limit=100)),
)


@command("help")
@click.argument("path", nargs=-1, metavar="[COMMAND]...")
def help_(settings: Settings, *, path: tuple[str, ...]) -> None:
    """
    Show the help of a command.

    'jsm help options' shows the login options of all commands and the exit statuses.
    """
    below = click.get_current_context().find_root()
    shown = below.command
    if path == ("options",):
        text = _options_help(below)
        emit_text(settings, {"help": text}, text.removesuffix("\n"))
        return
    for name in path:
        found = shown.get_command(below, name) if isinstance(shown, click.Group) else None
        if found is None:
            raise CommandError(f"no such command: {name!r}", hint="see 'jsm commands'")
        shown, below = found, click.Context(found, info_name=found.name, parent=below)
    text = shown.get_help(below)
    emit_text(settings, {"command": below.command_path, "help": text}, text)


def _options_help(root: click.Context) -> str:
    """Return the help of the options of all commands, and of the exit statuses."""
    formatter = root.make_formatter()
    rows = []
    for option in root.command.params:
        shown = copy.copy(option)
        shown.hidden = False  # type: ignore[attr-defined]  # the options of the root are all options
        rows.append(shown.get_help_record(root))
    with formatter.section("Options of all commands, before or after the name of the command"):
        formatter.write_dl([row for row in rows if row is not None])
    with formatter.section("Exit statuses"):
        formatter.write_dl([(str(int(status)), text) for status, text in MEANINGS.items()])
    return formatter.getvalue()


_SHELLS: Final = ("bash", "zsh", "fish", "powershell")


@command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(settings: Settings, *, shell: str) -> None:
    """
    Generate the shell completion script.

    The script completes commands, options, and the names of streams, consumers and contexts. To load it in the
    current session, run: source <(jsm completion bash). To install it, write it to this file:

    \b
      bash        ~/.local/share/bash-completion/completions/jsm
      zsh         a directory of $fpath, as _jsm
      fish        ~/.config/fish/completions/jsm.fish
      powershell  $PROFILE
    """  # noqa: D301 - click requires the character, not the escape
    kind = get_completion_class(shell)
    if kind is None:
        raise FailedError(
            f"this version of click does not support {shell}",
            hint="install a newer version of click",
        )
    script = kind(click.Command("jsm"), {}, "jsm", "_JSM_COMPLETE").source()
    emit(settings, {"shell": shell, "script": script}, lambda: settings.env.stdout.write(script))


# --- errors of the server ---------------------------------------------------------------------------

#: The API errors of the server, derived from the list in the server's source.
_DATA = "data/errors.json"


def _known() -> list[dict[str, Any]]:
    # Not importlib.resources: its import takes longer than this command.
    document = parse_json(pkgutil.get_data(__package__, _DATA) or b"")
    return [
        {**item, "raised_as": _class_of(item).__name__, "source": document["source"]}
        for item in document["errors"]
    ]


def _class_of(error: dict[str, Any]) -> type[errors.APIError]:
    by_code = errors.APIError.by_code.get(error["code"], errors.APIError)
    return errors.APIError.by_err_code.get(error["err_code"], by_code)


@command()
@click.argument("pattern", type=ANY_CASE_PATTERN, default="")
def list_errors(settings: Settings, *, pattern: re.Pattern[str]) -> None:
    """List the errors whose description or name matches the regular expression PATTERN."""
    found = [
        item for item in _known() if pattern.search(f"{item['description']} {item['constant']}")
    ]

    title = f"Errors of {found[0]['source']}" if found else ""
    show_rows(settings, found, Table(_ERROR[:4], title, "No errors found"))


_ERROR: Final = (
    Field("Error", "err_code", str),
    Field("Code", "code", str),
    Field("Server's Name", "constant", drop=1),
    Field("Description", "description"),
    Field("Raised As", "raised_as"),
    Field("Known To", "source"),
)


@command()
@click.argument("codes", nargs=-1, required=True, type=int, metavar="CODE...")
def lookup_errors(settings: Settings, *, codes: tuple[int, ...]) -> None:
    """Show the errors with the given err_codes, such as 10059."""
    known = {item["err_code"]: item for item in _known()}
    for code in codes:
        if code not in known:
            raise AbsentError(
                f"unknown error code {code}: {known[10003]['source']} does not define it",
                hint="list all codes with 'jsm errors ls'",
            )
    found = [known[code] for code in codes]

    blocks = [Block(f"Error {item['err_code']}", _ERROR[1:], item) for item in found]
    show_blocks(settings, found if len(found) > 1 else found[0], *blocks)
