"""The examples at the end of each command's help."""

from __future__ import annotations

import io
import re
import shlex

import click
import pytest

from jetstream_sync.cli.commands import walk
from jetstream_sync.cli.main import examples_of, jsm
from jetstream_sync.cli.shared.env import Environment
from jetstream_sync.cli.shared.settings import Settings

COMMANDS = [
    " ".join(node.path)
    for node in walk(jsm, click.Context(jsm, info_name="jsm", **jsm.context_settings))
    if not node.is_group
]


def parse(words: list[str]) -> str:
    """Parse the words behind ``jsm`` without running the command; return the name of the command."""
    env = Environment(stdin=io.BytesIO(), stdout=io.StringIO(), stderr=io.StringIO())
    settings = Settings(env=env, words=words)
    context = click.Context(jsm, info_name="jsm", obj=settings, **jsm.context_settings)
    command: click.Command | None = jsm
    path: list[str] = []
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)
        assert command is not None
        path.append(str(name))
    command.make_context(path[-1], words, parent=context)
    return " ".join(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_examples_that_parse(command):
    """An example is a command line that the command accepts."""
    examples = examples_of(command)
    assert examples
    for example in examples:
        words = shlex.split(re.sub(r"^.*\| (?=jsm )| (\||<|>) .*$", "", example))
        assert parse(words[1:]) == command
