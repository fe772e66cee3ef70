"""The version of this package, independent of installed metadata, and how to install its extras."""

# A zip file, as Spark sends it to executors, has no metadata.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__version__: Final = "1.0.0rc2"

_NAME: Final = "jetstream-sync"


def install_command(extras: str) -> str:
    """
    Return the command that installs this package with extras such as ``cli,server``.

    It names the source of the present installation: the folder or the file that pip recorded, or the
    distribution if it came from an index.
    """
    # Slow to import, and needed for an error only.
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415
    from urllib.parse import urlsplit  # noqa: PLC0415
    from urllib.request import url2pathname  # noqa: PLC0415

    from .codec import loads  # noqa: PLC0415

    source = Path(__file__).resolve().parents[1]  # an editable installation has links
    found = (source / "pyproject.toml").is_file()  # a source tree, perhaps not installed
    if not found:
        try:
            recorded = distribution(_NAME).read_text("direct_url.json")
        except PackageNotFoundError:  # modules that were copied, as in a zip file for Spark
            pass
        else:
            if recorded is None:
                return f"pip install '{_NAME}[{extras}]'"
            url = urlsplit(loads(recorded)["url"])
            source = Path(url2pathname(url.path))
            found = url.scheme == "file" and source.exists()
    if found:
        return f"pip install '{source}[{extras}]'"
    return f"pip install '.[{extras}]' in a clone of the repository"


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """
    Name the extra to install if an import in the block finds a package missing.

    Args:
        extra: the extra that installs the packages that the block imports.

    Raises:
        ModuleNotFoundError: a package is missing; its ``name`` is kept.

    """
    try:
        yield
    except ModuleNotFoundError as error:
        # A module with a dot belongs to a package that is there, in another version.
        if error.name is None or "." in error.name:
            raise
        # A requirement of the missing package can be imported before the package itself.
        text = f"the extra {extra!r} is not installed (no module {error.name!r}): {install_command(extra)}"
        raise ModuleNotFoundError(text, name=error.name) from None
