"""Settings of Sphinx; every reference has to resolve (``-n -W``)."""

from __future__ import annotations

from sphinx.application import Sphinx

import jetstream_sync

project = "jetstream_sync"
author = "The jetstream_sync developers"
project_copyright = author
version = release = jetstream_sync.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["changelog.d/*"]

# `name` is code; where a link helps the reader, a role is written out.
default_role = "code"

html_theme = "furo"
html_title = f"jetstream_sync {version}"

autodoc_member_order = "bysource"
# Signatures stay short, and what is imported for them needs no page.
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False


def shield_colon(
    _app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Keep napoleon from taking "Never sent: the server sets it" for a type and a text."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment, which has no colon


def setup(app: Sphinx) -> None:
    """Go before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", shield_colon, priority=400)
