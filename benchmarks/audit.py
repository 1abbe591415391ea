"""`make audit`: pins that match what is installed, licences of all of it, and known vulnerabilities.

``python -m benchmarks.audit`` checks; ``python -m benchmarks.audit licences`` writes LICENCES.md anew.
Exit code 0: all checked and sound. 1: something is wrong. 3: sound as far as could be seen, but the vulnerability
service was not reached or does not know these packages.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LICENCES = ROOT / "LICENCES.md"
LOCKS = ("requirements.lock", "requirements-models.txt")
TOOL = "pip-audit==2.10.1"
# What makes a virtual environment; none of it is imported by this project.
OF_THE_ENVIRONMENT = frozenset({"pip", "setuptools", "wheel"})
SOUND, WRONG, UNCHECKED = 0, 1, 3
# Packages whose metadata name no licence: read in the licence file that they install.
READ_IN_FILE = {"axe-playwright-python": "MIT"}
# What packages write, and the SPDX name (spdx.org/licenses) that their own licence file says it is.
SPDX = {
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)")
_EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)*")


@dataclass(frozen=True)
class Package:
    """An installed package: its name as people write it, its version without a build tag, its licence or ``""``."""

    name: str
    version: str
    licence: str

    @property
    def key(self) -> str:
        """The name as package indexes compare it."""
        return normal(self.name)


@dataclass(frozen=True)
class Vulnerabilities:
    """What a check found: one line each, and how many of the packages it could look up at all."""

    found: tuple[str, ...]
    n_checked: int
    n_asked: int
    reason: str = ""


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(files: Iterable[str] = LOCKS) -> dict[str, str]:
    """Normal name -> version, of all the lock files."""
    lines = (line for file in files for line in (ROOT / file).read_text(encoding="utf-8").splitlines())
    found = (_PIN.match(line) for line in lines)
    return {normal(pin[1]): pin[2] for pin in found if pin}


def installed() -> dict[str, Package]:
    """Every package of this environment by its normal name, but not pip and its kin."""
    packages = (_package(one) for one in importlib.metadata.distributions())
    return {one.key: one for one in sorted(packages, key=lambda one: one.key) if one.key not in OF_THE_ENVIRONMENT}


def _package(one: importlib.metadata.Distribution) -> Package:
    name = one.metadata["Name"]
    return Package(name, one.version.partition("+")[0], licence_of(name, one.metadata))


def licence_of(name: str, metadata: Any) -> str:
    """The licence that a package's metadata state: expression, field, or classifier, as an SPDX name; ``""``: none."""
    classifiers = [
        line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or [] if line.startswith("License")
    ]
    written = [
        metadata.get("License-Expression"),
        metadata.get("License"),
        *classifiers,
        READ_IN_FILE.get(normal(name)),
    ]
    for words in written:
        known = SPDX.get(words or "", words or "")
        if _EXPRESSION.fullmatch(known) and known.upper() not in {"UNKNOWN", "NONE", "OTHER"}:
            return known
    return ""


def pin_faults(pinned: Mapping[str, str], packages: Mapping[str, Package]) -> list[str]:
    """One line for each package that is not pinned, pinned at another version, or pinned and not there."""
    unpinned = [
        f"{one.name} {one.version} is installed but not pinned." for key, one in packages.items() if key not in pinned
    ]
    other = [
        f"{packages[key].name} {packages[key].version} is installed, {version} is pinned."
        for key, version in pinned.items()
        if key in packages and packages[key].version != version
    ]
    extra = [f"{key} {version} is pinned but not installed." for key, version in pinned.items() if key not in packages]
    return [*unpinned, *other, *extra]


def licence_faults(packages: Mapping[str, Package], listed: str) -> list[str]:
    """One line for each package without a known licence, and one when LICENCES.md is not of these packages."""
    unknown = [f"No licence is known of {one.name} {one.version}." for one in packages.values() if not one.licence]
    stale = [] if listed == licences_text(packages) else [f"{LICENCES.name} is out of date: run make licences."]
    return [*unknown, *stale]


def licences_text(packages: Mapping[str, Package]) -> str:
    """LICENCES.md: every package with its version and licence."""
    rows = "\n".join(f"| {one.name} | {one.version} | {one.licence or 'unknown'} |" for one in packages.values())
    return (
        "# Licences of everything Headscope installs\n\n"
        "Made by `make licences` from what the installed packages say of themselves; `make audit` compares.\n"
        "The texts of the licences come with the packages, in `.venv`.\n\n"
        "| package | version | licence (SPDX) |\n|---|---|---|\n" + rows + "\n"
    )


def vulnerabilities(run: Callable[[], tuple[str, str]] | None = None) -> Vulnerabilities:
    """Known vulnerabilities of the pinned packages, asked by pip-audit in an environment of its own.

    ``run`` gives pip-audit's JSON and its last words. pip-audit calls a package it could not look up skipped,
    and ends as if all were well: those are counted here as not checked.
    """
    told, reason = (run or _pip_audit)()
    try:
        dependencies = json.loads(told)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Vulnerabilities((), 0, len(pins(LOCKS[:1])), reason)
    checked = [one for one in dependencies if "vulns" in one]
    skipped = next((one.get("skip_reason", "") for one in dependencies if "vulns" not in one), "")
    found = tuple(
        f"{one['name']} {one['version']}: {fault['id']}, mended in {', '.join(fault['fix_versions']) or 'none yet'}."
        for one in checked
        for fault in one["vulns"]
    )
    return Vulnerabilities(found, len(checked), len(dependencies), skipped)


def _pip_audit() -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="headscope-audit-") as folder:
        python = Path(folder) / "bin" / "python"
        steps = (
            f"{shlex.quote(sys.executable)} -m venv {folder}",
            f"{python} -m pip install --quiet --no-input --disable-pip-version-check {TOOL}",
            f"{python} -m pip_audit -r {shlex.quote(str(ROOT / 'requirements.lock'))} --no-deps --disable-pip "
            "--format json --progress-spinner off",
        )
        for step in steps:
            done = subprocess.run(shlex.split(step), capture_output=True, text=True, check=False, timeout=600)
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            if done.returncode and step is not steps[-1]:
                break
        return done.stdout, words[-1][:300] if words else ""


def verdict(faults: list[str], asked: Vulnerabilities) -> tuple[int, str]:
    """The exit code and the last line."""
    if faults or asked.found:
        return WRONG, f"{len(faults) + len(asked.found)} faults, listed above."
    if asked.n_checked < asked.n_asked:
        return UNCHECKED, (
            f"Pins and licences are sound, but {asked.n_asked - asked.n_checked} of {asked.n_asked} packages were not "
            f"checked for known vulnerabilities: the service was not reached or does not know them ({asked.reason})."
        )
    return SOUND, f"Pins and licences are sound; no vulnerability is known of {asked.n_checked} packages."


def main(arguments: list[str]) -> int:
    """Check, or write the list of licences; the exit code."""
    packages = installed()
    if arguments == ["licences"]:
        LICENCES.write_text(licences_text(packages), encoding="utf-8")
        return SOUND
    listed = LICENCES.read_text(encoding="utf-8") if LICENCES.is_file() else ""
    faults = [*pin_faults(pins(), packages), *licence_faults(packages, listed)]
    asked = vulnerabilities()
    code, words = verdict(faults, asked)
    sys.stdout.write("\n".join([*faults, *asked.found, words]) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
