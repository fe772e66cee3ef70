"""Check that the tag of a release is its version, and that its metadata names the repository."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Fail with the reason if the tag in the environment is not a release of these sources."""
    version = runpy.run_path(str(ROOT / "jetstream_sync" / "version.py"))["__version__"]
    tag = os.environ["GITHUB_REF_NAME"]
    if tag != f"v{version}":
        sys.exit(f"tag {tag!r} is not the version: jetstream_sync/version.py has {version!r}")
    address = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
    if address not in (ROOT / "pyproject.toml").read_text(encoding="utf-8"):
        sys.exit(f"[project.urls] in pyproject.toml does not name {address}")


if __name__ == "__main__":
    main()
