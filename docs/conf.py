"""Settings of Sphinx; every reference has to resolve (``-n -W``)."""

from __future__ import annotations

import importlib
import re
from dataclasses import MISSING, fields

from sphinx.application import Sphinx

import jetstream_sync
from jetstream_sync.codec import Record
from jetstream_sync.install import install_command

project = "jetstream_sync"
author = "The jetstream_sync developers"
project_copyright = author
version = release = jetstream_sync.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.svgbob",
]
exclude_patterns = ["changelog.d/*"]

# `name` is code; where a link helps the reader, a role is written out.
default_role = "code"

# What a user passes where the source has a name for it.
TYPES = {
    "Duration": "timedelta | float | None",
    "Durations": "Sequence[timedelta | float] | None",
    "ErrorCallback": "Callable[[Exception], object]",
    "EventCallback": "Callable[[], object]",
}

html_theme = "furo"
html_title = f"jetstream_sync {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]

# The copy button leaves out prompts and what a command prints.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
# Signatures stay short, and what is imported for them needs no page.
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False


def name_source(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Have every page name what pip installs as the package does; pages have what works in a clone."""
    source[0] = re.sub(
        r"pip install '\.\[([\w,]+)\]'", lambda found: install_command(found[1]), source[0]
    )


def shield_colon(
    _app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Keep napoleon from taking "Never sent: the server sets it" for a type and a text."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment, which has no colon


def drop_field_list(
    _app: Sphinx, what: str, _name: str, obj: object, _options: object, lines: list[str]
) -> None:
    """Remove the list of fields that records show in `help()`: the page documents each field itself."""
    if what == "class" and isinstance(obj, type) and issubclass(obj, Record) and "Fields:" in lines:
        del lines[lines.index("Fields:") :]


def say_type(
    _app: Sphinx, what: str, name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Add the type of a field as it stands in the source, without links that need a page each."""
    owner, _, field_name = name.rpartition(".")
    module, _, class_name = owner.rpartition(".")
    if what != "attribute" or not class_name:
        return
    found = getattr(importlib.import_module(module), class_name, None)
    annotation = getattr(found, "__annotations__", {}).get(field_name)
    if annotation is None:
        return
    text = str(getattr(annotation, "__forward_arg__", annotation))
    if not text.startswith(("Final", "ClassVar")):
        lines += ["", f"``{TYPES.get(text, text)}``"]


def shorten_record(
    _app: Sphinx,
    what: str,
    _name: str,
    obj: object,
    _options: object,
    signature: str | None,
    _returns: str | None,
) -> tuple[str, None] | None:
    """Name only what must be given: the other fields, forty for a stream, follow on the page."""
    if what != "class" or not isinstance(obj, type) or not issubclass(obj, Record) or not signature:
        return None
    if signature == "()":
        return "", None  # created by the server only
    needed = [
        each.name
        for each in fields(obj)
        if each.default is MISSING and each.default_factory is MISSING
    ]
    return f"({', '.join(['*', *needed, '...'])})", None


def setup(app: Sphinx) -> None:
    """Go before napoleon, whose priority is 500."""
    app.connect("source-read", name_source)
    app.connect("autodoc-process-docstring", shield_colon, priority=400)
    app.connect("autodoc-process-docstring", drop_field_list, priority=400)
    app.connect("autodoc-process-docstring", say_type, priority=600)
    app.connect("autodoc-process-signature", shorten_record)
