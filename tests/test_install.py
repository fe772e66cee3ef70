"""The installed package: the contents of the wheel, and its requirements."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import jetstream_sync
from jetstream_sync import speedups

ROOT = Path(__file__).parents[1]
#: The modules of this folder are installed beside the package.
TOP_LEVEL = ROOT / "jetstream_sync" / "top_level"

needs_installation = pytest.mark.skipif(
    "TOX_ENV_NAME" not in os.environ, reason="the package is installed by tox only"
)


@needs_installation
def test_the_installed_package_is_what_is_tested():
    """Under tox the tests import the wheel, not the source beside them."""
    assert not Path(jetstream_sync.__file__).is_relative_to(ROOT / "jetstream_sync")


@needs_installation
def test_the_wheel_holds_the_files_of_the_package():
    """No module, marker or data file is missing from the wheel, and none is left over."""
    expected = files_below(ROOT / "jetstream_sync")
    assert Path("py.typed") in expected
    # The C extensions are in the wheel, and their sources are not; a checkout may have built them, too.
    expected = {
        path
        for path in expected
        if path.parts[0] != TOP_LEVEL.name and path.suffix not in {".c", ".h", ".so"}
    }
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    extensions = {Path(f"_speedups{suffix}"), Path(f"_columns{suffix}")}
    assert files_below(Path(jetstream_sync.__file__).parent) == expected | extensions


@needs_installation
def test_the_extension_is_in_use_unless_it_is_turned_off():
    """The wheel was built with a C compiler, and the environment variable selects Python."""
    turned_off = os.environ.get("JETSTREAM_SYNC_SPEEDUPS") == "0"
    assert speedups.IN_USE is not turned_off


@needs_installation
def test_the_top_level_modules_are_installed():
    """The entry point of `jsm` and the module for Spark are installed beside the package."""
    site_packages = Path(jetstream_sync.__file__).parents[1]
    sources = [TOP_LEVEL / path for path in files_below(TOP_LEVEL)]
    assert {path.stem for path in sources} == {"jetstream_sync_jsm", "pyspark_jetstream"}
    for source in sources:
        assert (site_packages / source.name).read_bytes() == source.read_bytes()
    # Spark searches for data sources in this way.
    found = {info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")}
    assert found == {"pyspark_jetstream"}


def files_below(folder: Path) -> set[Path]:
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@needs_installation
def test_the_metadata_is_as_promised():
    """Version, Python and the two run-time dependencies are as promised."""
    metadata = importlib.metadata.metadata("jetstream-sync")
    assert metadata["Version"] == jetstream_sync.__version__
    assert metadata["Requires-Python"] == ">=3.10"
    required = importlib.metadata.requires("jetstream-sync") or []
    always = {re.split(r"[^\w-]", line)[0] for line in required if "extra ==" not in line}
    assert always == {"orjson", "typing-extensions"}
    cli = {line.partition(";")[0].strip() for line in required if 'extra == "cli"' in line}
    assert {re.split(r"[^\w-]", line)[0] for line in cli} == {
        "click",
        "pyyaml",
        "questionary",
        "rich",
    }
    extras = set(metadata.get_all("Provides-Extra") or ())
    assert extras == {
        *("server", "nkeys", "websocket", "cli", "spark", "docs", "test", "all"),
        *("metrics", "otel", "django", "flask", "fsspec", "top"),
    }


@needs_installation
def test_the_command_is_installed():
    """`jsm` is the command line's entry point."""
    scripts = importlib.metadata.entry_points(group="console_scripts")
    assert scripts["jsm"].value == "jetstream_sync_jsm:main"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_removed_module_does_not_come_back_from_the_build_directory(tmp_path):
    """`pip wheel .` in a clone that was built before takes the modules of the sources only."""
    sources = tmp_path / "clone"
    sources.mkdir()
    names = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "jetstream_sync")
    for name in names:
        if (ROOT / name).is_dir():
            left_out = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, sources / name, ignore=left_out)
        else:
            shutil.copy(ROOT / name, sources / name)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--quiet",
        "--no-deps",
    ]

    def built() -> set[str]:
        subprocess.run([*pip, "--wheel-dir", tmp_path / "wheels", sources], check=True)
        (wheel,) = (tmp_path / "wheels").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return set(archive.namelist())

    removed = sources / "jetstream_sync" / "api" / "removed.py"
    removed.write_text("")
    assert "jetstream_sync/api/removed.py" in built()
    removed.unlink()
    names_in_wheel = built()
    assert "jetstream_sync/api/removed.py" not in names_in_wheel
    modules = {
        f"jetstream_sync/{path.as_posix()}" for path in files_below(sources / "jetstream_sync")
    }
    inside = {name for name in modules if name.endswith(".py") and "/top_level/" not in name}
    assert inside <= names_in_wheel
    assert {"jetstream_sync_jsm.py", "pyspark_jetstream.py"} <= names_in_wheel


def test_each_fact_of_the_build_is_stated_once():
    """setup.cfg says how the package is built; pyproject.toml has no table for the same."""
    build = configparser.ConfigParser()
    build.read(ROOT / "setup.cfg", encoding="utf-8")
    assert {"options", "options.package_data", "egg_info"} <= set(build.sections())
    tables = re.findall(
        r"(?m)^\[tool\.(setuptools|distutils)([.\w-]*)\]", (ROOT / "pyproject.toml").read_text()
    )
    assert sorted(tables) == [("setuptools", ""), ("setuptools", ".dynamic")]


def test_ci_runs_the_readmes_test_command():
    """CI runs the test command of the README word for word."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)\n```", readme, re.DOTALL)
    assert commands[0].endswith("jsm demo")
    (run_tests,) = [command for command in commands if command.endswith("/tox")]
    assert run_tests in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_commit_hooks_use_the_pinned_tools():
    """The versions of the hooks of pre-commit are those that `tox -e lint` uses."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pins = (ROOT / "tests" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tools = set(re.findall(r"additional_dependencies: \[(.+)\]", hooks))
    assert tools
    assert tools <= set(pins)


def test_workflows_name_actions_by_commit():
    """Each action is pinned by its commit, with the version in a comment."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    uses = [
        line
        for path in workflows
        for line in re.findall(r"(?m)uses: (.*)", path.read_text("utf-8"))
    ]
    assert uses
    assert [line for line in uses if not re.fullmatch(r"\S+@[0-9a-f]{40} # v[\d.]+", line)] == []


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("v0.0.1", "tag 'v0.0.1' is not the version"),
        (f"v{jetstream_sync.__version__}", "[project.urls] in pyproject.toml does not name"),
    ],
)
def test_a_release_needs_the_tag_of_its_version_and_the_address_of_its_repository(tag, reason):
    """The workflow of a release stops before it uploads distributions that are not the tag's."""
    result = subprocess.run(
        [sys.executable, ROOT / "tests" / "check_tag.py"],
        env=os.environ
        | {
            "GITHUB_REF_NAME": tag,
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": "owner/name",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(reason)
