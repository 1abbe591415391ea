"""Finding a browser, never skipping silently, and the screenshots' names and sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import chromium
from benchmarks.chromium import ChromiumMissingError, find_chromium, install_chromium, main, require_chromium
from benchmarks.server import PageLink, start_app
from benchmarks.shots import SCHEMES, SIZES, picture_path, write_readme_picture

NO_MAC = Path("/no/such/chrome")


def program(folder: Path, name: str, code: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_the_setting_comes_before_the_path(tmp_path: Path) -> None:
    chosen = program(tmp_path / "chosen", "my-chrome")
    program(tmp_path / "bin", "chromium")
    environ = {"HEADSCOPE_CHROMIUM": str(chosen), "PATH": str(tmp_path / "bin")}
    assert find_chromium(environ, NO_MAC) == chosen


@pytest.mark.parametrize("wrong", ["missing", "not-executable", "a-folder"])
def test_a_setting_that_cannot_run_is_an_error_not_a_fallback(tmp_path: Path, wrong: str) -> None:
    program(tmp_path / "bin", "chromium")
    (tmp_path / "not-executable").write_text("")
    (tmp_path / "a-folder").mkdir()
    environ = {"HEADSCOPE_CHROMIUM": str(tmp_path / wrong), "PATH": str(tmp_path / "bin")}
    with pytest.raises(ChromiumMissingError, match=wrong):
        find_chromium(environ, NO_MAC)


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_each_usual_name_is_found_on_the_path(tmp_path: Path, name: str) -> None:
    expected = program(tmp_path / "bin", name)
    assert find_chromium({"PATH": str(tmp_path / "bin")}, NO_MAC) == expected


def test_chrome_on_a_mac_is_found_last(tmp_path: Path) -> None:
    mac = program(tmp_path / "Applications", "Google Chrome")
    assert find_chromium({"PATH": str(tmp_path)}, mac) == mac
    on_path = program(tmp_path / "bin", "chromium")
    assert find_chromium({"PATH": str(tmp_path / "bin")}, mac) == on_path


def test_none_at_all_is_told_with_what_to_do(tmp_path: Path) -> None:
    assert find_chromium({"PATH": str(tmp_path)}, NO_MAC) is None
    with pytest.raises(ChromiumMissingError, match="HEADSCOPE_CHROMIUM"):
        require_chromium({"PATH": str(tmp_path)}, NO_MAC)


@pytest.mark.parametrize("root", [True, False])
def test_a_failed_installation_is_an_error_not_a_skip(monkeypatch: pytest.MonkeyPatch, root: bool) -> None:
    tried: list[str] = []
    monkeypatch.setattr(chromium, "find_chromium", lambda: None)
    monkeypatch.setattr(chromium, "_can_apt", lambda: root)
    monkeypatch.setattr(chromium, "_apt_install", tried.extend)
    monkeypatch.setattr(chromium, "_download_with_playwright", lambda: tried.append("playwright"))
    with pytest.raises(ChromiumMissingError, match="apt-get install chromium"):
        install_chromium()
    assert tried == (["chromium"] if root else ["playwright"])


def test_a_program_that_only_has_the_name_is_not_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hollow = program(tmp_path, "chromium-browser", code=10)
    monkeypatch.setattr(chromium, "find_chromium", lambda: hollow)
    with pytest.raises(ChromiumMissingError, match="does not run"):
        install_chromium()


def test_the_command_ends_with_1_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADSCOPE_CHROMIUM", "/no/such/browser")
    monkeypatch.setattr("sys.argv", ["chromium", "--install"])
    assert main() == 1
    printed = capsys.readouterr()
    assert printed.out == ""  # the Makefile takes what is printed here for the browser's path
    assert "/no/such/browser" in printed.err


def test_an_app_that_ends_early_is_told_in_its_own_words() -> None:
    with pytest.raises(RuntimeError, match="ended with code"):
        start_app({"STREAMLIT_SERVER_SSL_CERT_FILE": "/no/such/file"})


def test_every_picture_has_its_own_name(tmp_path: Path) -> None:
    links = [PageLink("Heads", ""), PageLink("KV cache", "cache"), PageLink("Head finder", "finder")]
    names = [
        picture_path(link, width, scheme, whole, tmp_path)
        for link in links
        for width, _ in SIZES
        for scheme in SCHEMES
        for whole in (False, True)
    ]
    assert len(set(names)) == len(names) == 24
    assert names[0] == tmp_path / "heads-1440-light.png"


@pytest.mark.parametrize(("limit", "same"), [(10_000_000, True), (1_000, False)])
def test_the_readmes_picture_is_copied_or_made_smaller(tmp_path: Path, limit: int, same: bool) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (90, 160, 3), dtype=np.uint8)
    picture = tmp_path / "shot.png"
    Image.fromarray(noise).save(picture)
    target = tmp_path / "docs" / "readme.png"
    write_readme_picture(picture, target, limit)
    assert (target.read_bytes() == picture.read_bytes()) is same
    assert target.stat().st_size <= picture.stat().st_size
    with Image.open(target) as image:
        assert image.size == (160, 90)
