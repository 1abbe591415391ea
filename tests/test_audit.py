"""The audit: every installed package is pinned and has a known licence; what was not checked is never called sound."""

from __future__ import annotations

import json
from email.message import Message

import pytest

from benchmarks import audit
from benchmarks.audit import SOUND, UNCHECKED, WRONG, Package, Vulnerabilities

ONE = Package("Some.Name", "1.2", "MIT")


def test_every_installed_package_is_pinned_and_no_pin_is_left_over() -> None:
    assert audit.pin_faults(audit.pins(), audit.installed()) == []


def test_the_list_of_licences_is_complete_and_none_is_unknown() -> None:
    listed = audit.LICENCES.read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in listed.splitlines() if line[0:1] == "|"]
    assert {audit.normal(name): version for name, version, _ in rows[2:]} == audit.pins()
    assert [row for row in rows[2:] if row[2] in {"", "unknown"}] == []
    assert audit.licence_faults(audit.installed(), listed) == []


def test_each_kind_of_wrong_pin_is_told() -> None:
    packages = {"some-name": ONE}
    assert audit.pin_faults({"some-name": "1.2"}, packages) == []
    assert audit.pin_faults({}, packages) == ["Some.Name 1.2 is installed but not pinned."]
    assert audit.pin_faults({"some-name": "1.3"}, packages) == ["Some.Name 1.2 is installed, 1.3 is pinned."]
    assert audit.pin_faults({"some-name": "1.2", "b": "1"}, packages) == ["b 1 is pinned but not installed."]


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "BSD")], "MIT OR Apache-2.0"),
        ([("License", "Apache 2.0")], "Apache-2.0"),
        (
            [("License", "Copyright (c) 2026 Somebody\nAll rights"), ("Classifier", "License :: OSI :: MIT License")],
            "MIT",
        ),
        ([("License", "UNKNOWN")], ""),
        ([("License", "see the file")], ""),
        ([("Classifier", "Topic :: MIT License")], ""),
    ],
)
def test_a_licence_is_read_from_what_the_package_says(fields: list[tuple[str, str]], licence: str) -> None:
    metadata = Message()
    for name, value in fields:
        metadata.add_header(name, value)
    assert audit.licence_of("x", metadata) == licence


def test_an_unknown_licence_and_an_old_list_are_told() -> None:
    packages = {"some-name": Package("Some.Name", "1.2", "")}
    assert audit.licence_faults(packages, audit.licences_text(packages)) == ["No licence is known of Some.Name 1.2."]
    assert len(audit.licence_faults({"some-name": ONE}, "")) == 1
    assert audit.licence_faults({"some-name": ONE}, audit.licences_text({"some-name": ONE})) == []


def test_a_package_that_was_skipped_is_not_called_sound() -> None:
    told = {"dependencies": [{"name": "a", "skip_reason": "not found"}, {"name": "b", "version": "1", "vulns": []}]}
    asked = audit.vulnerabilities(lambda: (json.dumps(told), ""))
    assert asked == Vulnerabilities((), 1, 2, "not found")
    code, words = audit.verdict([], asked)
    assert code == UNCHECKED
    assert "1 of 2 packages were not checked" in words


@pytest.mark.parametrize("told", ["", "no JSON", "[]", "{}"])
def test_a_service_that_does_not_answer_is_said(told: str) -> None:
    asked = audit.vulnerabilities(lambda: (told, "Name or service not known"))
    code, words = audit.verdict([], asked)
    assert code == UNCHECKED
    assert "Name or service not known" in words
    assert asked.n_asked == len(audit.pins(("requirements.lock",)))


def test_a_vulnerability_is_told_with_what_mends_it() -> None:
    fault = {"id": "CVE-1", "fix_versions": ["1.1", "2"]}
    told = {"dependencies": [{"name": "b", "version": "1", "vulns": [fault]}]}
    asked = audit.vulnerabilities(lambda: (json.dumps(told), ""))
    assert asked.found == ("b 1: CVE-1, mended in 1.1, 2.",)
    assert audit.verdict([], asked)[0] == WRONG
    assert audit.verdict(["a fault"], Vulnerabilities((), 1, 1))[0] == WRONG
    assert audit.verdict([], Vulnerabilities((), 1, 1)) == (
        SOUND,
        "Pins and licences are sound; no vulnerability is known of 1 packages.",
    )
