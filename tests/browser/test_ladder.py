"""The ladder in Chromium: the sliders show the shipped sweep without the server, and every visitor has their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from attention.kv_working import readable
from attention.model_facts import title_of
from attention.rungs import LadderPoint, shipped_sweep
from attention.sharing import LatentKV, ShareKV
from benchmarks.chromium import wait_until_drawn
from tests.browser.looks import MAIN, overflow, violations

LONGEST = 60_000  # milliseconds; the machine may be busy with other tests
MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
RANKS = (384, 320, 256, 192, 128, 96, 64, 32)


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    expect.set_options(timeout=LONGEST)
    yield
    expect.set_options(timeout=5_000)


def go(page: Page, url: str, **settings: str) -> None:
    """Open the page at an address; ``l__share`` stands for ``l.share``."""
    named = {name.replace("l__", "l."): value for name, value in settings.items()}
    page.goto(f"{url}/ladder?{urlencode(named)}" if named else f"{url}/ladder")
    expect(board(page)).to_be_visible()
    wait_until_drawn(page, LONGEST / 1000)


def board(page: Page) -> Locator:
    return page.locator(".hsl")


def slider(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name, exact=True)


def state(page: Page) -> Locator:
    return page.locator(".hsl-state")


def blocks(page: Page, family: str) -> int:
    """The K/V heads one sees; those merged into a neighbour lie under it."""
    return page.locator(f".hsl-of-{family} .hsl-kv:not([data-over])").count()


def address(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def measured(model: str, what_if: object) -> LadderPoint:
    return next(point for point in shipped_sweep(model) if point.what_if == what_if)


def surprise(what_if: object) -> str:
    """As the page writes it."""
    value = measured(SMOLLM, what_if).on("prose").value
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def silent(page: Page) -> Callable[[], int]:
    """Counts what is sent to the server and the runs of the script from here on."""
    page.evaluate(
        """() => { window.reruns = 0; new MutationObserver(() => { window.reruns += 1; }).observe(
        document.querySelector('[data-testid="stApp"]'), { attributeFilter: ['data-test-script-state'] });
        const send = WebSocket.prototype.send;
        WebSocket.prototype.send = function (...given) { window.reruns += 1; return send.apply(this, given); }; }"""
    )
    return lambda: int(page.evaluate("window.reruns"))


def test_the_sliders_walk_the_shipped_sweep_without_the_server(page: Page, app_url: str) -> None:
    go(page, app_url)
    expect(state(page)).to_have_text(
        f"Averaged to 1 K/V head (128 numbers, no training): surprise {surprise(ShareKV(1))}. "
        f"Latent of 128 (128 numbers, no training): surprise {surprise(LatentKV(128))}. "
        f"As shipped (384): {surprise(None)}."
    )
    expect(page.locator(".hsl-fate")).to_have_count(3)
    assert [page.locator(".hsl-sentence b").nth(at).inner_text() for at in range(3)] == ["Berlin", "“-”", "Berlin"]
    assert violations(page, MAIN) == []
    assert overflow(page) == []
    asked = silent(page)
    slider(page, "Latent").focus()
    page.keyboard.press("Home")
    for rank in RANKS:
        expect(board(page)).to_have_attribute("data-latent", str(rank))
        expect(state(page)).to_contain_text(
            f"Latent of {rank} ({rank} numbers, no training): surprise {surprise(LatentKV(rank))}"
        )
        size = readable(measured(SMOLLM, LatentKV(rank)).bytes_per_token)
        expect(page.locator(".hsl-of-latent .hsl-caption")).to_contain_text(f"{size} a token would be cached")
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    expect(state(page)).to_contain_text("identical to 4 digits on this text")
    assert blocks(page, "share") == 1
    assert blocks(page, "latent") == page.locator(".hsl-of-latent .hsl-kv[data-rebuilt]").count() == 3
    slider(page, "Share heads").focus()
    page.keyboard.press("Home")
    assert blocks(page, "share") == 3
    expect(page.locator(".hsl-fate").nth(1)).to_contain_text("As shipped")
    page.keyboard.press("End")
    page.get_by_role("button", name="Same memory for both: 128 numbers").click()
    expect(board(page)).to_have_attribute("data-latent", "128")
    page.locator(".hsl-maps").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hsl-cell")).to_contain_text("Germany looks at capital. As shipped: 0.13")
    assert asked() == 0


def test_a_link_a_reload_and_the_other_model(page: Page, app_url: str) -> None:
    go(page, app_url, l_model=title_of(MINILM), l__share="3", l__share_way="aligned", l__latent="256")
    share = measured(MINILM, ShareKV(3, "aligned")).quality[0].value
    expect(state(page)).to_contain_text(
        f"Aligned, averaged to 3 K/V heads (192 numbers, no training): likeness {share:.3f}."
    )
    assert blocks(page, "share") == 3
    assert blocks(page, "latent") == 12
    slider(page, "Share heads").press("ArrowRight")
    expect(board(page)).to_have_attribute("data-share", "2")
    assert address(page)["l.share"] == "2"
    page.reload()
    wait_until_drawn(page, LONGEST / 1000)
    expect(board(page)).to_have_attribute("data-share", "2")
    expect(board(page)).to_have_attribute("data-share-way", "aligned")
    expect(board(page)).to_have_attribute("data-latent", "256")
    page.get_by_label("Way of sharing").select_option("first")
    expect(state(page)).to_contain_text("First head kept: 2 K/V heads")
    expect(page.locator(".hsl-fate").nth(1)).to_contain_text("measured on the texts only")
    # A run of the script keeps what was chosen; another model begins anew.
    page.get_by_role("tab", name="All numbers").click()
    expect(page.get_by_role("region", name="Every setting measured")).to_be_visible()
    wait_until_drawn(page, LONGEST / 1000)
    expect(board(page)).to_have_attribute("data-share-way", "first")
    model = page.get_by_role("combobox", name="Model")
    model.scroll_into_view_if_needed()
    wait_until_drawn(page, LONGEST / 1000)  # Streamlit's list closes while the page still scrolls
    model.click()
    page.get_by_role("option", name="SmolLM2").click()
    expect(board(page)).to_have_attribute("data-share", "1")
    expect(board(page)).to_have_attribute("data-share-way", "mean")
    assert "l.share_way" not in address(page)


@pytest.mark.parametrize("broken", [{"l__share": "7", "l__latent": "x", "l__share_way": "prayer", "l__here": "there"}])
def test_a_broken_link_shows_a_whole_board(page: Page, app_url: str, broken: dict[str, str]) -> None:
    go(page, app_url, **broken)
    assert board(page).get_attribute("data-share-way") == "mean"
    expect(page.locator(".hsl-fate")).to_have_count(3)


def test_on_a_phone_in_the_dark_while_somebody_else_moves_on(visitor: Callable[..., Page], app_url: str) -> None:
    phone, other = visitor(phone=True, color_scheme="dark"), visitor()
    go(phone, app_url)
    go(other, app_url)
    slider(other, "Latent").press("End")
    expect(board(other)).to_have_attribute("data-latent", "32")
    expect(board(phone)).to_have_attribute("data-theme", "dark")
    expect(board(phone)).to_have_attribute("data-latent", "128")
    assert overflow(phone) == []
    assert violations(phone, MAIN) == []
    for name in ("Share heads", "Latent"):
        box = slider(phone, name).bounding_box()
        assert box is not None
        assert box["height"] >= 32
        assert box["width"] > 300
    # The sliders stay in sight while one reads what they change.
    phone.locator(".hsl-fate").nth(2).scroll_into_view_if_needed()
    expect(slider(phone, "Latent")).to_be_in_viewport()


def test_leaving_stops_a_sentence_and_the_board_stays_in_use(page: Page, app_url: str) -> None:
    go(page, app_url)
    page.get_by_role("textbox", name="Your own sentence").fill("The largest planet of all is <i>")
    page.keyboard.press("Enter")
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_visible()
    slider(page, "Latent").press("End")
    expect(board(page)).to_have_attribute("data-latent", "32")
    stop.click()
    expect(page.get_by_text("Stopped. The picture below is still the earlier one.")).to_be_visible()
    expect(page.get_by_role("textbox", name="Your own sentence")).to_have_value("The largest planet of all is <i>")
    expect(page.locator(".hsl-sentence").first).to_contain_text("The capital of Germany is Berlin")
    expect(board(page)).to_have_attribute("data-latent", "32")
