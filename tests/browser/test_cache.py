"""The KV cache page in Chromium, on the real app: the answer without scrolling, workings, files, links, phone, axe."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from attention.known_models import find_model
from benchmarks.chromium import wait_until_drawn
from tests.browser.conftest import DESKTOP
from tests.browser.looks import MAIN, overflow, violations

GIB = 2**30
ANSWER = "Llama 3 8B, 8,192 tokens, 16 users: 16 GiB. As MHA: 64 GiB."
LONGEST = 30_000  # milliseconds; the machine may be busy with other tests
TABS = (
    "Compare",
    "One GPU",
    "Choose n_kv",
    "When the cache dominates",
    "Agree with an engine",
    "Paste a config",
    "4x",
)


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Expectations wait as long as a busy machine needs."""
    expect.set_options(timeout=LONGEST)
    yield
    expect.set_options(timeout=5_000)


def go(page: Page, url: str, **settings: str) -> None:
    page.goto(f"{url}/cache?{urlencode(settings)}" if settings else f"{url}/cache")
    wait_until_drawn(page, 90)


def answer(page: Page) -> Locator:
    return page.locator(".hs-answer")


def fill_number(page: Page, label: str, value: int) -> None:
    box = page.get_by_role("spinbutton", name=label, exact=True)
    box.fill(str(value))
    box.press("Enter")


def address(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def open_tab(page: Page, name: str) -> Locator:
    page.get_by_role("tab", name=name, exact=True).click()
    expect(page.get_by_role("tab", name=name, exact=True)).to_have_attribute("aria-selected", "true")
    wait_until_drawn(page)
    return page.get_by_role("tabpanel", name=name)


def bottom(part: Locator) -> float:
    box = part.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


class TestFirstScreen:
    def test_answer_bars_and_verdict_need_no_scrolling(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        expect(answer(page)).to_have_text(ANSWER)
        assert float(answer(page).evaluate("node => parseFloat(getComputedStyle(node).fontSize)")) >= 28
        bars = page.locator(".st-key-cache-bars, .js-plotly-plot").first
        for part in (answer(page), bars, page.locator(".hs-verdict"), page.locator(".hs-facts")):
            assert bottom(part) <= DESKTOP["height"]
        inputs, verdict = (
            page.get_by_role("spinbutton", name="Tokens each").bounding_box(),
            page.locator(".hs-verdict").bounding_box(),
        )
        assert inputs is not None
        assert verdict is not None
        assert inputs["x"] < bars.bounding_box()["x"] < verdict["x"]  # type: ignore[index]

    def test_a_change_changes_answer_and_link_and_the_link_brings_it_back(
        self, page: Page, app_url: str, visitor: Callable[..., Page]
    ) -> None:
        go(page, app_url)
        fill_number(page, "Tokens each", 32_768)
        expect(answer(page)).to_have_text("Llama 3 8B, 32,768 tokens, 16 users: 64 GiB. As MHA: 256 GiB.")
        expect(page.locator(".hs-verdict")).to_have_text(re.compile("Does not fit"))
        expect(page).to_have_url(re.compile("c_tokens=32768"))
        other = visitor()
        other.goto(page.url)
        expect(answer(other)).to_have_text("Llama 3 8B, 32,768 tokens, 16 users: 64 GiB. As MHA: 256 GiB.")

    def test_the_picker_finds_models_by_how_they_share(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        picker = page.get_by_role("combobox", name=re.compile("Model"))
        picker.click()
        picker.fill("mla 2024")
        expect(page.get_by_role("option", name="DeepSeek-V2, MLA, 2024", exact=True)).to_be_visible()
        page.get_by_role("option", name="DeepSeek-V2, MLA, 2024", exact=True).click()
        expect(answer(page)).to_have_text(re.compile("^DeepSeek-V2, 8,192 tokens, 16 users: 8.44 GiB"))
        expect(page).to_have_url(re.compile("c_model=DeepSeek-V2"))

    def test_a_link_in_free_spelling_offers_the_listed_model_which_then_stands_in_the_link(
        self, page: Page, app_url: str
    ) -> None:
        go(page, app_url, c_model="llama-2-7b")
        page.get_by_role("button", name="Show Llama 2 7B, as the link asks").click()
        expect(answer(page)).to_have_text(re.compile("^Llama 2 7B, 8,192 tokens, 16 users: 64 GiB"))
        expect(page).to_have_url(re.compile("c_model=Llama"))

    def test_workings_open_under_the_numbers(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        workings = page.get_by_role("button", name="Show working")
        expect(workings).to_have_count(3)
        for place, words in enumerate(
            (
                "32 layers × 8 K/V heads × 256 numbers per head (128 key + 128 value) × 2 bytes (fp16)",
                "32 layers × 32 K/V heads",
                "= left: 41.04 GiB",
            )
        ):
            workings.nth(place).click()
            expect(page.locator(".hs-work").filter(has_text=words).first).to_be_visible()
            page.keyboard.press("Escape")

    def test_the_file_holds_the_exact_bytes(self, page: Page, app_url: str, tmp_path: Path) -> None:
        go(page, app_url)
        with page.expect_download() as waiting:
            page.get_by_role("button", name="CSV").first.click()
        waiting.value.save_as(tmp_path / "bars.csv")
        with (tmp_path / "bars.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == ["sharing", "bytes", "which"]
        assert [int(row[1]) for row in rows[1:]] == [64 * GIB, 16 * GIB, 2 * GIB, 9 * GIB // 2]


class TestTabs:
    def test_compare_draws_a_line_for_each_model_and_its_file_has_every_point(
        self, page: Page, app_url: str, tmp_path: Path
    ) -> None:
        go(page, app_url)
        panel = page.get_by_role("tabpanel", name="Compare")
        expect(panel.locator(".legend .traces")).to_have_count(6)
        with page.expect_download() as waiting:
            panel.get_by_role("button", name="CSV").click()
        waiting.value.save_as(tmp_path / "curves.csv")
        with (tmp_path / "curves.csv").open(newline="") as file:
            rows = list(csv.reader(file))[1:]
        assert len(rows) == 1200
        for name, tokens, size in rows[::97]:
            assert int(size) == find_model(name).cache.bytes(int(tokens), 16)

    def test_a_tab_and_its_boxes_travel_in_the_link(
        self, page: Page, app_url: str, visitor: Callable[..., Page]
    ) -> None:
        go(page, app_url)
        panel = open_tab(page, "Agree with an engine")
        panel.get_by_label("Lines of a vLLM start-up log").fill(
            "Available KV cache memory: 11.12 GiB\nGPU KV cache size: 91,056 tokens"
        )
        panel.get_by_label("Lines of a vLLM start-up log").press("Control+Enter")
        expect(panel).to_contain_text("The log's 5,691 blocks agree with ours.")
        open_tab(page, "4x")
        expect(page.get_by_role("heading", name=re.compile("4x less cache"))).to_be_visible()
        assert {"c_tab", "c_log"} <= set(address(page))
        other = visitor()
        other.goto(page.url)
        expect(other.get_by_role("heading", name=re.compile("4x less cache"))).to_be_visible()
        wait_until_drawn(other)
        expect(open_tab(other, "Agree with an engine")).to_contain_text("The log's 5,691 blocks agree with ours.")

    def test_a_pasted_config_is_counted_mended_and_used(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        panel = open_tab(page, "Paste a config")
        box = panel.get_by_role("textbox", name="A model's config.json")
        box.fill('{"model_type": "llama", "num_hidden_layers": 2')
        box.press("Control+Enter")
        expect(panel.get_by_role("alert")).to_contain_text("This text is not JSON (line 1, column")
        expect(box).to_have_value('{"model_type": "llama", "num_hidden_layers": 2')
        box.fill(
            '{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 32, '
            '"num_key_value_heads": 2}'
        )
        box.press("Control+Enter")
        expect(panel).to_contain_text("Your config.json: 64 bytes for each token")
        use = panel.get_by_role("button", name="Use it everywhere on this page")
        expect(use).to_have_count(2)  # the config's own comes first, but is drawn a moment later
        use.first.click()
        expect(answer(page)).to_have_text("Your config.json, 8,192 tokens, 16 users: 8 MiB. As MHA: 32 MiB.")
        expect(page).to_have_url(re.compile("c_model=My"))

    def test_the_wide_table_scrolls_by_itself_and_by_keyboard(self, phone: Page, app_url: str) -> None:
        go(phone, app_url, c_tab="Choose n_kv")
        region = phone.get_by_role("region", name=re.compile("a row for every way"))
        before = region.evaluate("node => node.scrollLeft")
        region.focus()
        phone.keyboard.press("ArrowRight")
        phone.wait_for_function("node => node.scrollLeft > 0", arg=region.element_handle())
        assert before == 0


class TestEveryone:
    def test_axe_finds_nothing_on_a_phone_and_nothing_scrolls_sideways(
        self, visitor: Callable[..., Page], app_url: str
    ) -> None:
        page = visitor(phone=True, reduced_motion="reduce")
        found = {}
        go(page, app_url)
        for tab in TABS:
            open_tab(page, tab)
            found[tab] = [*violations(page, MAIN), *overflow(page)]
        assert found == {tab: [] for tab in TABS}

    def test_charts_are_told_in_words(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        charts = page.get_by_role("figure", name=re.compile("Bars of cached bytes|Lines of cached bytes"))
        expect(charts).to_have_count(2)
        expect(page.get_by_role("heading", level=1)).to_have_text("What a KV cache costs")
