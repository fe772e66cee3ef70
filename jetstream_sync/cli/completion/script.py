"""``jsm completion``: the script that has a shell complete commands, options and names."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from ..output import emit
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus

__all__ = ["completion"]

_SHELLS: Final = ("bash", "zsh", "fish", "powershell")
#: Where each shell looks for it.
_PLACES: Final = {
    "bash": "~/.local/share/bash-completion/completions/jsm",
    "zsh": "a directory of $fpath, as _jsm",
    "fish": "~/.config/fish/completions/jsm.fish",
    "powershell": "$PROFILE",
}


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@common_options
def completion(settings: Settings, *, shell: str) -> None:
    """
    Write the script that completes commands in a shell.

    It completes commands, options, and the names of streams, consumers and contexts. To have it in one
    session: source <(jsm completion bash). To keep it, write it to the file where the shell looks:

    \b
      bash        ~/.local/share/bash-completion/completions/jsm
      zsh         a directory of $fpath, as _jsm
      fish        ~/.config/fish/completions/jsm.fish
      powershell  $PROFILE
    """  # noqa: D301 - click knows its mark by the character
    kind = get_completion_class(shell)
    if kind is None:
        raise CommandError(
            f"this version of click knows no {shell}",
            ExitStatus.FAILED,
            hint="install a newer click",
        )
    script = kind(click.Command("jsm"), {}, "jsm", "_JSM_COMPLETE").source()
    emit(
        settings,
        {"shell": shell, "script": script, "place": _PLACES[shell]},
        lambda: settings.env.stdout.write(script),
    )
