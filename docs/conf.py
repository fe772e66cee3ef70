"""Configure Sphinx. Every reference must resolve (``-n -W``), without network access."""

from __future__ import annotations

import builtins
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path

import django
from django.conf import settings
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import jetstream_sync
from jetstream_sync.codec import Record
from jetstream_sync.records import needed_release

# The models in the reference can be imported then.
settings.configure(INSTALLED_APPS=["jetstream_sync.django"])
django.setup()

project = "jetstream_sync"
author = "The jetstream_sync developers"
project_copyright = author
version = release = jetstream_sync.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.svgbob",
]

# `name` is code. Where a link helps the reader, the page uses a role.
default_role = "code"

# A list of the names of the standard library that the reference uses, with their pages. Python's own
# inventory would have to be downloaded for each build.
intersphinx_mapping = {"python": ("https://docs.python.org/3", "python.inv")}

# Fields of these types keep the name, which docs/reference/types.rst explains: they are given as
# seconds or as a timedelta, and always read as a timedelta.
autodoc_type_aliases = {"Duration": "Duration", "Durations": "Durations"}

# The full names of types whose last part alone appears in signatures.
FULL_NAMES = {
    "Buffer": "collections.abc.Buffer",
    "Callable": "collections.abc.Callable",
    "datetime": "datetime.datetime",
    "ConnectionEvent": "jetstream_sync.ConnectionEvent",
    "ConsumerConfigFields": "jetstream_sync.ConsumerConfig",
    "Future": "concurrent.futures.Future",
    "HandlerFunction": "collections.abc.Callable",
    "Headers": "jetstream_sync.Headers",
    "JetStream": "jetstream_sync.JetStream",
    "JetStreamContext": "jetstream_sync.JetStream",
    "JetStreamMsg": "jetstream_sync.JetStreamMsg",
    "Mapping": "collections.abc.Mapping",
    "Middleware": "collections.abc.Callable",
    "Msg": "jetstream_sync.Msg",
    "ObjectStoreConfigFields": "jetstream_sync.ObjectStoreConfig",
    "PathLike": "os.PathLike",
    "SSLContext": "ssl.SSLContext",
    "Schedule": "jetstream_sync.Schedule",
    "Sequence": "collections.abc.Sequence",
    "HandlerFields": "jetstream_sync.workers.Handler",
    "TaskFields": "jetstream_sync.workers.TaskOptions",
    "KeyValueConfigFields": "jetstream_sync.KeyValueConfig",
    "StreamConfigFields": "jetstream_sync.StreamConfig",
    "StreamRecreatedError": "jetstream_sync.errors.StreamRecreatedError",
    "Task": "jetstream_sync.workers.Task",
    "jetstream_sync.django.workers.Task": "jetstream_sync.workers.Task",
    "_t.Mapping": "collections.abc.Mapping",
    "socket": "socket.socket",
    "jetstream_sync.jetstream.buckets.watch.Watch": "jetstream_sync.Watch",
    "jetstream_sync.jetstream.buckets.watch_handle.WatchHandle": "jetstream_sync.WatchHandle",
    "timedelta": "datetime.timedelta",
}

# The options of `connect` are documented in the source of this class.
jetstream_sync.ConnectOptions.__qualname__ = "ConnectionOptions"

# Types of optional packages, and groups of options, which have no page here.
nitpick_ignore = [
    ("py:class", "DeadLetterTarget"),
    ("py:class", "GaugeSnapshot"),
    ("py:class", "jetstream_sync.workers.metrics.GaugeSnapshot"),
    ("py:class", "SparkSession"),
    ("py:class", "concurrent.futures._base.Future"),
    ("py:class", "flask.app.Flask"),
    ("py:class", "pa.RecordBatch"),
    ("py:exc", "ImproperlyConfigured"),
    ("py:class", "Source"),
    ("py:class", "Work"),
    ("py:class", "LimitUse"),
    ("py:class", "jetstream_sync.workers.source.Work"),
    ("py:class", "RunState"),
    ("py:class", "SharedLimitRule"),
    ("py:class", "SentCall"),
    ("py:class", "UniqueCalls"),
    ("py:class", "jetstream_sync.workers.call_messages.CallRecord"),
    ("py:class", "jetstream_sync.workers.limits.SharedLimitRule"),
    ("py:class", "TaskDecorator"),
    ("py:class", "TaskQueues"),
    ("py:class", "WorkerEventKind"),
    ("py:class", "jetstream_sync.workers.queues.TaskQueues"),
    ("py:class", "jetstream_sync.workers.worker.TaskDecorator"),
    ("py:class", "jetstream_sync.workers.tasks.TaskDecorator"),
]
# Type variables.
nitpick_ignore_regex = [
    ("py:class", r"(jetstream_sync\.[\w.]+\.)?([A-Z](_co)?|_Self)"),
    ("py:obj", r"typing\.~\w+"),
]

# Literal blocks without a language are text, such as the list of options of `connect`.
highlight_language = "none"

html_theme = "furo"
html_title = f"jetstream_sync {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]

# The contents of a page list `fetch()`, not `PullConsumer.fetch()` in two lines.
toc_object_entries_show_parents = "hide"

# The copy button copies commands without prompts and output.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
# A longer signature has one line for each parameter.
python_maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False


def protect_colon(
    _app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Prevent napoleon from reading the text before a colon as a type ("Never sent: the server sets it")."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment, which has no colon


def add_release(
    _app: Sphinx, what: str, name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Add the release that a field of a record needs, which its declaration has."""
    owner, _, field = name.rpartition(".")
    record = getattr(jetstream_sync, owner.rpartition(".")[2], None)
    if what != "attribute" or not isinstance(record, type) or not issubclass(record, Record):
        return
    for item in fields(record):
        if item.name == field and (sentence := needed_release(item)):
            lines += ["", sentence]


def drop_field_list(
    _app: Sphinx, what: str, _name: str, obj: object, _options: object, lines: list[str]
) -> None:
    """Remove the list of fields that records show in `help()`: the page documents each field itself."""
    if what == "class" and isinstance(obj, type) and issubclass(obj, Record) and "Fields:" in lines:
        del lines[lines.index("Fields:") :]


def shorten_record(
    _app: Sphinx,
    what: str,
    _name: str,
    obj: object,
    _options: object,
    signature: str | None,
    _returns: str | None,
) -> tuple[str, None] | None:
    """Reduce the signature of a record to its required fields; the page lists all of them below."""
    if what != "class" or not isinstance(obj, type) or not issubclass(obj, Record) or not signature:
        return None
    if signature == "()":
        return "", None  # only the client creates these records
    needed = [
        field.name
        for field in fields(obj)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    return f"({', '.join(['*', *needed, '...'])})", None


def shorten_function(
    _app: Sphinx,
    _what: str,
    _name: str,
    obj: object,
    _options: object,
    _signature: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    """Leave the fields of a config out of the signature of a function; a page describes them once."""
    if not hasattr(obj, "__signature__") or isinstance(obj, type) or ".workers" in obj.__module__:
        return None
    code = inspect.unwrap(obj).__code__
    *named, options = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 1]
    shown = []
    for parameter in map(inspect.signature(obj).parameters.get, named):
        if parameter.name != "self":
            if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
                shown.append("*")
            shown.append(f"{parameter.name}: {parameter.annotation} = {parameter.default!r}")
    return f"({', '.join([*shown, f'**{options}'])})", returns


def resolve_types(_app: Sphinx, page: nodes.document) -> None:
    """
    Give the types in signatures the names under which they are found.

    ``bytes`` is the built-in type: Sphinx would find the fields of that name.
    """
    for reference in page.findall(addnodes.pending_xref):
        name = reference.get("reftarget", "")
        if reference.get("refdomain") == "py" and reference.get("reftype") in {
            "class",
            "exc",
            "obj",
        }:
            reference["reftarget"] = FULL_NAMES.get(name, name)
            if name in dir(builtins):
                reference.attributes.pop("refspecific", None)


def shorten_contents(_app: Sphinx, page: nodes.document) -> None:
    """Leave attributes and properties out of the contents beside a page: records have dozens."""
    for description in page.findall(addnodes.desc):
        if description.get("objtype") in {"attribute", "property"}:
            for signature in description.findall(addnodes.desc_signature):
                signature["_toc_name"] = ""


def read_examples() -> dict[str, list[str]]:
    """Return the examples in the folder of that name, by function, class or class and method."""
    found = {}
    for path in sorted(Path(__file__).with_name("examples").glob("*.py")):
        parts = re.split(r"^# --- (.*)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for name, code in zip(parts[1::2], parts[2::2], strict=True):
            found[name] = code.strip().splitlines()
    return found


EXAMPLES = read_examples()


def add_example(
    _app: Sphinx, what: str, name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Show the example of a function, class or method after its description."""
    code = EXAMPLES.get(".".join(name.split(".")[-2 if what == "method" else -1 :]))
    if what in {"function", "class", "method"} and code:
        lines += ["", ".. code-block:: python", "", *(f"   {line}" for line in code), ""]


def setup(app: Sphinx) -> None:
    """Connect the functions above. Docstrings are processed before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", protect_colon, priority=400)
    app.connect("autodoc-process-docstring", drop_field_list, priority=400)
    app.connect("autodoc-process-docstring", add_release, priority=600)
    app.connect("autodoc-process-docstring", add_example, priority=600)
    app.connect("autodoc-process-signature", shorten_record)
    app.connect("autodoc-process-signature", shorten_function)
    app.connect("doctree-read", resolve_types)
    # Before Sphinx collects the contents, with the priority 500.
    app.connect("doctree-read", shorten_contents, priority=400)
