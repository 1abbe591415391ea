"""The Chromium that tests, screenshots and benchmarks drive: find it, install it where that is possible, or say so."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC_CHROME = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
MISSING = (
    f"The browser tests need a Chromium that runs, and none was found (looked for {', '.join(NAMES)}). "
    "Install one (on Debian: apt-get install chromium), or set HEADSCOPE_CHROMIUM to its full path."
)
# No sandbox: tests often run as root, where Chromium refuses to start with one; it only ever opens our own pages.
# The others keep Chromium from calling home, so that a request to another host is ours to explain.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-sync",
    "--disable-component-update",
)
# A language or family as fontconfig asks for it, and the Debian package that has it.
FONTS = {":lang=ar": "fonts-noto-core", ":lang=zh": "fonts-noto-cjk", "Noto Color Emoji": "fonts-noto-color-emoji"}

# True when the script has ended and has drawn something, nothing is a grey placeholder, the letters have their fonts,
# and all that for some frames on end: between two runs of the script the page looks done for a moment.
DRAWN = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  const done = app !== null && app.dataset.testScriptState === 'notRunning'
    && app.dataset.testConnectionState === 'CONNECTED'
    && document.querySelector('[data-testid="stMain"] [data-testid="stElementContainer"]') !== null
    && ['stSkeleton', 'stAppSkeleton', 'stSpinner'].every((id) => !document.querySelector(`[data-testid="${id}"]`))
    && document.fonts.status === 'loaded';
  window.framesDrawn = done ? window.framesDrawn + 1 : 0;
  return window.framesDrawn >= 6;
}"""


class ChromiumMissingError(RuntimeError):
    """No Chromium can be used; the message says what was tried and what to do."""


def find_chromium(environ: Mapping[str, str] = os.environ, mac_chrome: Path = MAC_CHROME) -> Path | None:
    """The browser to use: ``HEADSCOPE_CHROMIUM``, else one on PATH, else Chrome on a Mac; None when there is none.

    Raises ChromiumMissingError when ``HEADSCOPE_CHROMIUM`` names a file that cannot be run.
    """
    chosen = environ.get("HEADSCOPE_CHROMIUM")
    if chosen:
        if not os.access(chosen, os.X_OK) or Path(chosen).is_dir():
            raise ChromiumMissingError(
                f"HEADSCOPE_CHROMIUM is {chosen!r}, and no program can be run there. "
                "Give the full path of a Chromium or Chrome program, or leave the setting out."
            )
        return Path(chosen)
    found = (shutil.which(name, path=environ.get("PATH")) for name in NAMES)
    on_path = next((Path(path) for path in found if path), None)
    if on_path is None and os.access(mac_chrome, os.X_OK):
        return mac_chrome
    return on_path


def require_chromium(environ: Mapping[str, str] = os.environ, mac_chrome: Path = MAC_CHROME) -> Path:
    """As find_chromium, but raises ChromiumMissingError where that gives None."""
    found = find_chromium(environ, mac_chrome)
    if found is None:
        raise ChromiumMissingError(MISSING)
    return found


def install_chromium() -> Path:
    """A Chromium that runs, installed first where none is there: by apt as root, else Playwright's own download.

    Raises ChromiumMissingError, with a sentence to act on, when neither works.
    """
    found = find_chromium()
    if found is None:
        if _can_apt():
            _say("Installing Chromium with apt (once)…")
            _apt_install(["chromium"])
            found = find_chromium()
        else:
            _say("No Chromium was found, and apt cannot install one here. Trying Playwright's own download (once)…")
            found = _download_with_playwright()
    if found is None:
        raise ChromiumMissingError(MISSING)
    # Some systems have a program of this name that only tells where to get the real one.
    if subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        raise ChromiumMissingError(f"{found} does not run. {MISSING}")
    return found


def install_fonts() -> None:
    """Fonts for Arabic, Chinese and emoji, where apt can install them; one sentence where it cannot.

    Without them Chromium draws empty boxes, and a screenshot cannot be judged.
    """
    missing = [package for pattern, package in FONTS.items() if not _has_font(pattern)]
    if not missing:
        return
    if _can_apt():
        _say("Installing fonts for Arabic, Chinese and emoji (once)…")
        _apt_install(missing)
    else:
        _say(f"Fonts are missing ({', '.join(missing)}): some letters in screenshots will be empty boxes.")


def launch(playwright: Playwright, chromium: Path | None = None) -> Browser:
    """A headless browser with this project's flags, the same for tests, screenshots and benchmarks."""
    return playwright.chromium.launch(executable_path=chromium or require_chromium(), args=list(FLAGS))


def wait_until_drawn(page: Page, timeout: float = 60.0) -> None:
    """Wait until the app's script has ended and what it sent is on the screen.

    ``timeout`` in seconds; Playwright's TimeoutError is raised after it.
    """
    page.evaluate("window.framesDrawn = 0")
    page.wait_for_function(DRAWN, timeout=timeout * 1000)


def _can_apt() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _apt_install(packages: list[str]) -> None:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", *command],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            _say(f"apt-get {' '.join(command)} failed. Its last words:\n" + "\n".join(done.stdout.splitlines()[-5:]))


def _has_font(pattern: str) -> bool:
    if shutil.which("fc-list") is None:
        return False
    return bool(subprocess.run(["fc-list", pattern], capture_output=True, text=True, check=False).stdout.strip())


def _download_with_playwright() -> Path | None:
    from playwright.sync_api import sync_playwright

    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], stdout=sys.stderr, check=False)
    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if os.access(path, os.X_OK) else None


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main() -> int:
    """Print the browser's path; with ``--install`` install browser and fonts first where they are missing."""
    parser = argparse.ArgumentParser(description="Print the path of the Chromium the tests drive.")
    parser.add_argument("--install", action="store_true", help="install Chromium and fonts where they are missing")
    try:
        if parser.parse_args().install:
            print(install_chromium())
            install_fonts()
        else:
            print(require_chromium())
    except ChromiumMissingError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
