"""Screenshots of every page, on a desk and on a phone, light and dark: ``make shots``.

The pages come from the app's own navigation, so a new page is in the pictures
the day it is in the menu. Beside each picture of the screen lies a ``-whole``
one, as tall as the page.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.chromium import launch, wait_until_drawn
from benchmarks.server import ROOT, AppServer, PageLink, start_app

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

FOLDER = ROOT / "shots"
README_PICTURE = ROOT / "assets" / "screenshot.png"
README_PICTURE_BYTES = 300_000
SIZES = ((1440, 900), (390, 844))
SCHEMES = ("light", "dark")
TALLEST = 12_000  # pixels; Chromium gives up on taller pictures


def picture_path(link: PageLink, width: int, scheme: str, whole: bool = False, folder: Path = FOLDER) -> Path:
    """Where a picture lies, for example ``shots/cache-390-dark.png``; the first page is called by its title."""
    name = (link.path or link.title).strip("/").replace("/", "-").replace(" ", "-").lower()
    return folder / f"{name}-{width}-{scheme}{'-whole' if whole else ''}.png"


def take_all(browser: Browser, server: AppServer, folder: Path = FOLDER) -> list[Path]:
    """Every page at every size in both schemes; the pictures of the screen, in the order of the navigation."""
    pictures = []
    pages = server.first_run()
    for width, height in SIZES:
        for scheme in SCHEMES:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
                has_touch=width < 600,
                reduced_motion="reduce",
            )
            for link in pages:
                tab = context.new_page()
                picture = picture_path(link, width, scheme, folder=folder)
                _take(tab, f"{server.url}/{link.path}", picture, {"width": width, "height": height})
                pictures.append(picture)
                print(f"{picture.relative_to(folder.parent)}", flush=True)
                tab.close()
            context.close()
    return pictures


def _take(tab: Page, url: str, picture: Path, size: ViewportSize) -> None:
    tab.goto(url)
    wait_until_drawn(tab)
    picture.parent.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=picture, animations="disabled")
    # The page scrolls inside Streamlit's own box, which a "full page" picture cuts off: make the window that tall.
    hidden = tab.evaluate(
        "() => { const box = document.querySelector('[data-testid=\"stMain\"]');"
        " return box ? box.scrollHeight - box.clientHeight : 0; }"
    )
    tab.set_viewport_size({"width": size["width"], "height": min(TALLEST, size["height"] + hidden)})
    wait_until_drawn(tab)
    tab.screenshot(path=picture.with_name(f"{picture.stem}-whole.png"), animations="disabled")


def write_readme_picture(picture: Path, target: Path = README_PICTURE, limit: int = README_PICTURE_BYTES) -> None:
    """Copy a picture for the README; with 256 colours when it has more than ``limit`` bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if picture.stat().st_size <= limit:
        shutil.copyfile(picture, target)
        return
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(256).save(target, optimize=True)


def main() -> int:
    """Start the app, take every picture, renew the README's."""
    from playwright.sync_api import sync_playwright

    shutil.rmtree(FOLDER, ignore_errors=True)
    server = start_app()
    try:
        with sync_playwright() as playwright:
            browser = launch(playwright)
            pictures = take_all(browser, server)
            browser.close()
    finally:
        server.stop()
        server.log_path.unlink(missing_ok=True)
    write_readme_picture(pictures[0])
    print(f"{len(pictures)} pictures and as many whole pages are in {FOLDER.name}/; the README's is renewed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
