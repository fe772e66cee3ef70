"""``jsm completion``: generate the shell completion script."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from ..output import emit
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus

__all__ = ["completion"]

_SHELLS: Final = ("bash", "zsh", "fish", "powershell")
#: Where each shell looks for the script.
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
        raise CommandError(
            f"this version of click does not support {shell}",
            ExitStatus.FAILED,
            hint="install a newer version of click",
        )
    script = kind(click.Command("jsm"), {}, "jsm", "_JSM_COMPLETE").source()
    emit(
        settings,
        {"shell": shell, "script": script, "place": _PLACES[shell]},
        lambda: settings.env.stdout.write(script),
    )
