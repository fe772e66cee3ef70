"""The reference of the commands is what the commands say, and all of them say something."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from fixtures.jsm import run_jsm
from make_jsm_reference import EXAMPLES_FILE, HELP_FILE, PAGE, examples, helps, nodes, pages, root

from jetstream_sync.cli.commands import parameters
from jetstream_sync.cli.main import jsm
from jetstream_sync.cli.streams.change import add
from jetstream_sync.exit_status import ExitStatus

NODES = nodes()


def test_the_pages_are_what_the_commands_say():
    """Run ``python tests/make_jsm_reference.py`` when this fails."""
    paths = [PAGE, *PAGE.with_suffix("").glob("*.rst")]
    assert {path: path.read_text("utf-8") for path in paths} == pages()


def test_the_help_of_fields_is_that_of_their_docstrings():
    """Run ``python tests/make_jsm_reference.py`` when this fails; an installation needs no sources."""
    assert HELP_FILE.read_text("utf-8") == helps()


def test_the_examples_of_commands_are_those_of_the_pages():
    """Run ``python tests/make_jsm_reference.py`` when this fails; each command needs one on a how-to page."""
    assert EXAMPLES_FILE.read_text("utf-8") == examples()


def test_many_options_are_grouped():
    """The help of a command with many options has headings, the common ones first."""
    for path in (("stream", "add"), ("consumer", "add"), ("stream", "edit"), ("consumer", "edit")):
        shown = run_jsm(*path, "--help").ok().out
        headings = re.findall(r"^([A-Z][\w ]+):$", shown, re.MULTILINE)
        assert headings[0] == "Common options"
        assert headings[-1] == "Options of all commands"
        assert len(headings) >= 5
        _, *parts = re.split(r"^[A-Z][\w ]+:$", shown, flags=re.MULTILINE)
        assert max(part.count("\n  -") for part in parts) <= 14


def test_a_field_without_a_heading_is_not_below_files_and_prompts(monkeypatch):
    """A new field of a config needs no heading: its option is below one for other options."""
    headings = {**add.headings, "Features": ""}
    monkeypatch.setattr(type(add), "headings", headings)
    features = run_jsm("stream", "add", "--help").ok().out
    other, _, files = features.partition("Other options:")[2].partition("Files and prompts:")
    assert "--allow-direct" in other
    assert "--output" in files


def test_every_status_is_explained():
    """Each exit status is in ``jsm help options``, below the options that ``jsm --help`` leaves out."""
    shown = run_jsm("help", "options").ok().out
    for status in ExitStatus:
        assert re.search(rf"^  {int(status)} +\w", shown, re.MULTILINE), status
    assert "--creds FILE" in shown
    brief = run_jsm("--help").ok().out
    assert "--creds" not in brief
    assert brief.index("Commands:") < brief.index("Options:")


@pytest.mark.parametrize("node", NODES)
def test_every_command_has_help(node):
    """A command, and each of its options, says what it does; -h shows it, and -j is among them."""
    first = node.help.partition("\n\n")[0]
    assert first.endswith((".", ":")), first
    arguments, options = parameters(node.command)
    for option in options:
        assert option.help, option.opts
        assert not option.help.startswith(" ")
    for name in (node.path[-1], *node.aliases):
        result = run_jsm(*node.path[:-1], name, "-h").ok()
        assert "-j, --json" in result.out
        assert result.err == ""
    assert len({id(argument) for argument in arguments}) == len(arguments)


@pytest.mark.parametrize("node", NODES)
def test_no_name_is_used_twice(node):
    """No option hides another one of the same command, and no alias is ambiguous."""
    flags = [flag for param in node.command.params for flag in (*param.opts, *param.secondary_opts)]
    twice = {flag for flag in flags if flags.count(flag) > 1}
    assert not twice
    if isinstance(node.command, click.Group):
        names = node.command.list_commands(node.context)
        assert not set(names) & set(getattr(node.command, "aliases", {}))


def test_the_tree_can_be_read_by_programs():
    """``jsm commands -j`` has every command, with its options."""
    listed = {item["command"]: item for item in run_jsm("commands", "-j").ok().json}
    assert set(listed) == {" ".join(("jsm", *node.path)) for node in NODES}
    said = listed["jsm rtt"]
    assert said["options"][0]["flags"] == ["-n", "--count"]
    assert said["options"][0]["default"] == 5
    for node in NODES:
        _, options = parameters(node.command)
        flags = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
        told = listed[" ".join(("jsm", *node.path))]
        assert {flag for item in told["options"] for flag in item["flags"]} == flags


@pytest.mark.parametrize("path", [(), ("account",), ("stream", "info"), ("ms", "nfo")])
def test_help_is_a_command_too(path):
    """``jsm help`` shows the same as -h."""
    shown = run_jsm("help", *path).ok().out
    # It is called by its real name there.
    assert shown.partition("\n")[2] == run_jsm(*path, "-h").ok().out.partition("\n")[2]
    assert run_jsm("help", *path, "-j").ok().json["help"] == shown.rstrip("\n")


def test_help_for_what_is_not_there():
    """There is no help for no command."""
    assert run_jsm("help", "nonsense").status == 2


def test_every_command_that_was_named_is_there():
    """No command of the tree is missing from the installation."""
    assert set(jsm.entries) == {node.path[0] for node in NODES}


def test_recipes_are_commands():
    """Every recipe of the documentation is a command line that can be read."""
    lines = (PAGE.parents[1] / "howto" / "jsm.rst").read_text().splitlines()
    recipes = [line.strip() for line in lines if re.match(r"   (JSM_TRACE=1 )?jsm ", line)]
    assert recipes
    for recipe in recipes:
        _check_line(re.split(" [<|>]", recipe)[0].removeprefix("JSM_TRACE=1 "))


def _check_line(line: str) -> None:
    """Parse a command line as jsm would, without running it."""
    words = shlex.split(line)
    assert words[0] == "jsm"
    command: click.Command = jsm
    context = root()
    rest = words[1:]
    while isinstance(command, click.Group):
        context = command.make_context(context.info_name, rest, parent=context.parent)
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, line
        command = found
        context = click.Context(found, info_name=name, parent=context)
    command.make_context(context.info_name, rest, parent=context.parent)
