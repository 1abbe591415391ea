"""The Heads page in Chromium, on the real app: what a visitor sees, changes, shares and takes away."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from attention import load_model, trace
from benchmarks.chromium import wait_until_drawn
from benchmarks.server import AppServer
from tests.browser.conftest import DESKTOP, Watch
from tests.browser.looks import overflow, violations

MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
SMOLLM_TITLE = "SmolLM2: writes, left to right"
ALICE = "Alice fed the cats because they were hungry."
KIND = "Alice fed the cats because she was kind."
CHASED = "The cat sat on the mat that the dog chased."
SORRY = "Something went wrong on our side. Your text is kept; change it or reload the page."
LONGEST = 30_000  # milliseconds; the machine may be busy with other tests


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Expectations wait as long as a busy machine needs."""
    expect.set_options(timeout=LONGEST)
    yield
    expect.set_options(timeout=5_000)


def go(page: Page, url: str, **settings: str) -> None:
    """Open the page at an address; ``v_layer`` stands for ``v.layer``."""
    named = {name.replace("v_", "v."): value for name, value in settings.items()}
    page.goto(f"{url}/?{urlencode(named)}" if named else url)
    wait_until_live(page)


def wait_until_live(page: Page) -> None:
    """Until the shipped first picture, shown while the models load, has given way to the page itself."""
    expect(page.get_by_role("tab").or_(page.locator("[data-testid=stAlert]")).first).to_be_attached(timeout=120_000)
    wait_until_drawn(page, 90)


def viewer(page: Page) -> Locator:
    return page.locator(".hs")


def headline(page: Page) -> Locator:
    return page.locator(".hs h2")


def selection(page: Page) -> tuple[int, int, int, int]:
    """Layer, head, query and key as the viewer reports them."""
    facts = viewer(page).evaluate("node => ({...node.dataset})")
    return tuple(int(facts[name]) for name in ("layer", "head", "query", "key"))  # type: ignore[return-value]


def expect_selection(page: Page, layer: int, head: int, query: int) -> None:
    for name, value in (("layer", layer), ("head", head), ("query", query)):
        expect(viewer(page)).to_have_attribute(f"data-{name}", str(value))


def sentence_box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Sentence", exact=True)


def type_sentence(page: Page, text: str) -> None:
    sentence_box(page).fill(text)
    sentence_box(page).press("Enter")


def address(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def cards(page: Page) -> dict[str, str]:
    return {card.get_attribute("data-card"): " ".join(card.inner_text().split()) for card in
            page.locator(".hs-card").all()}  # fmt: skip


def open_tab(page: Page, name: str) -> Locator:
    """The panel of a tab, once its content is there."""
    page.get_by_role("tab", name=name).click()
    expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
    wait_until_drawn(page)
    return page.get_by_role("tabpanel", name=name)


def percent_in(text: str) -> int:
    found = re.search(r"(\d+) %", text)
    assert found, text
    return int(found[1])


# But for the list of pages on a phone: its markup is Streamlit's own (ul > div > li).
OURS = {"exclude": [["[data-testid=stSidebarNavItems]"]]}


class TestFirstLook:
    def test_ten_seconds_three_heads_and_one_changed_word(self, page: Page, app_url: str) -> None:
        page.goto(app_url)
        expect(headline(page)).to_have_text("they looks at cats: 54 %", timeout=10_000)
        wait_until_live(page)
        expect(viewer(page)).to_have_count(1)
        shown = cards(page)
        for name, place, link, share in (
            ("previous", "L0 H2", "they looks at because", 100),
            ("object_verb", "L2 H0", "cats looks at fed", 48),
            ("agreement", "L1 H3", "they looks at cats", 54),
        ):
            assert place in shown[name]
            assert link in shown[name]
            assert abs(percent_in(shown[name].split(link)[1]) - share) <= 1
        average = page.locator(".hs-average").inner_text()
        assert re.search(r"because 4[789], cats (19|20|21): blurred", average), average
        expect(page.locator(".hs-where")).to_contain_text("Layer 1, head 3 (numbered from 0)")

        # Nothing down to the strip needs scrolling.
        strip = page.locator(".hs-f").bounding_box()
        assert strip is not None
        assert strip["y"] + strip["height"] <= DESKTOP["height"]
        recipe = page.locator(".hs-stack").get_attribute("aria-label") or ""
        assert recipe.startswith("new they = .54 V(cats) + .12 V(Alice)")
        parts = [float(part.replace("<.01", "0")) for part in re.findall(r"(?<![\w.])(?:\d?\.\d\d|<\.01)", recipe)]
        assert abs(sum(parts) - 1) <= 0.03

        # One word changes, the arrow moves, and the browser's Back undoes it.
        page.locator(".hs-pill").click()
        expect(headline(page)).to_have_text("she looks at Alice: 70 %")
        expect(sentence_box(page)).to_have_value(KIND)
        expect(page).to_have_url(re.compile(re.escape(urlencode({"text": KIND}))))
        expect(page.locator(".hs-word[data-side=key][data-on=top]")).to_have_text("Alice")
        page.go_back()
        expect(headline(page)).to_have_text("they looks at cats: 54 %")
        expect(sentence_box(page)).to_have_value(ALICE)

        type_sentence(page, "The king thanked the queen when he came home.")
        expect(headline(page)).to_contain_text("he looks at king")
        expect(page.locator(".hs-pill")).to_be_hidden()
        wait_until_drawn(page)
        page.reload()
        expect(headline(page)).to_contain_text("he looks at king")
        expect(sentence_box(page)).to_have_value("The king thanked the queen when he came home.")

    def test_the_very_first_request_of_a_server_may_be_a_deep_link(
        self, odd_server: AppServer, page: Page, watch: Watch
    ) -> None:
        go(page, odd_server.url, text=KIND, v_layer="2", v_head="0", v_query="4", v_view="map", v_cut="50")
        expect(headline(page)).to_have_text(re.compile(r"cats looks at fed: 4[456] %"))
        expect_selection(page, 2, 0, 4)
        expect(viewer(page)).to_have_attribute("data-view", "map")
        expect(viewer(page)).to_have_attribute("data-cut", "50")
        expect(page.locator(".gtitle")).to_have_text(["Layer 2, head 0 (numbered from 0)"])
        # A page that does not exist is said to be so and shows the first one.
        page.goto(f"{odd_server.url}/no-such-page")
        wait_until_drawn(page)
        expect(page.get_by_text("Page not found")).to_be_visible()
        expect(headline(page)).to_contain_text("looks at")
        # Streamlit writes the same to the console.
        assert all("requested does not seem to exist" in line for line in watch.console_errors)
        watch.console_errors.clear()


class TestDecoder:
    def test_thirty_by_nine_three_groups_the_trap_and_the_start_token(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        page.get_by_role("button", name="Examples").click()
        page.get_by_role("button", name=CHASED).click()
        expect(headline(page)).to_have_text(re.compile(r"that looks at mat: 9[34] %"))
        expect(page.get_by_text("The link alone proves nothing")).to_be_visible()
        expect(page.locator(".hs-grid-top span")).to_have_text(
            ["KV 0 serves Q 0-2", "KV 1 serves Q 3-5", "KV 2 serves Q 6-8"]
        )
        expect(page.locator(".hs-e")).to_contain_text("All 270 heads")
        shown = cards(page)
        for name, link, share in (
            ("previous", "that looks at mat", 89),
            ("latest_noun", "that looks at mat", 93),
            ("clause", "chased looks at that", 51),
        ):
            assert link in shown[name]
            assert abs(percent_in(shown[name].split(link)[1]) - share) <= 1
        wait_until_drawn(page)

        type_sentence(page, "The cat sat on the")
        panel = open_tab(page, "Checks")
        for start, token, share in (
            ("Starts with <|endoftext|>", "“ mat”", (32, 33)),
            ("Starts with <|im_start|>", "“ edge”", (12,)),
            ("Starts with nothing", "“ cat”", (7,)),
        ):
            if start not in page.get_by_role("combobox", name="Start token").input_value():
                page.get_by_role("combobox", name="Start token").click()
                page.get_by_role("option", name=start).click()
            first = panel.locator("table").nth(1).locator("tbody tr").first
            expect(first).to_contain_text(token)
            assert percent_in(first.inner_text()) in share
        assert address(page)["model"] == SMOLLM_TITLE
        assert address(page)["start"] == "Starts with nothing"


class TestDetails:
    def test_the_tabs_follow_the_locked_head(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        page.locator("[data-card=object_verb]").click()
        expect(page.locator(".gtitle")).to_have_text(["Layer 2, head 0 (numbered from 0)"])
        page.get_by_role("button", name=re.compile("^Why 4[789] %")).click()
        why = page.get_by_role("tabpanel", name="Why this number?")
        expect(why).to_contain_text(re.compile("Why does cats give fed 4[789] %"))
        words = why.inner_text()
        dot, scale = float(re.search(r"q·k = (-?\d+\.\d+)", words)[1]), float(re.search(r"Times (\d+\.\d+)", words)[1])  # type: ignore[index]
        score = float(re.search(r"score (-?\d+\.\d+)", words)[1])  # type: ignore[index]
        top, total, weight = map(float, re.search(r"(\d+\.\d+) / (\d+\.\d+) = (\d+\.\d+)", words).groups())  # type: ignore[union-attr]
        assert dot * scale == pytest.approx(score, abs=0.002)
        assert top / total == pytest.approx(weight, abs=0.001)
        assert weight == pytest.approx(0.48, abs=0.01)
        expect(why.locator("tbody tr")).to_have_count(11)
        rows = why.locator("tbody tr").all_inner_texts()
        assert sum(float(row.split()[-1]) for row in rows) == pytest.approx(1, abs=0.01)

        for tab in ("Averages", "Words", "Checks"):
            expect(open_tab(page, tab).locator("svg.main-svg, table").first).to_be_visible()
        expect(page.get_by_role("tabpanel", name="Checks").locator("tbody tr")).to_have_count(5)
        verdicts = page.get_by_role("tabpanel", name="Checks").locator("tbody tr td:nth-child(3)")
        assert verdicts.all_inner_texts() == ["yes"] * 5

    def test_a_new_text_moves_headline_details_and_link_together(self, page: Page, app_url: str) -> None:
        go(page, app_url, v_layer="1", v_head="3", v_query="2", detail="Why this number?")
        why = page.get_by_role("tabpanel", name="Why this number?")
        expect(why).to_contain_text("Why does fed give")
        type_sentence(page, "The cat sat on the mat because it was tired.")
        expect(headline(page)).to_contain_text("it looks at")
        expect(why).to_contain_text("Why does it give")
        expect_selection(page, 1, 3, 8)
        assert address(page)["v.query"] == "8"

    def test_a_link_may_name_a_model_by_its_id(self, page: Page, app_url: str) -> None:
        go(page, app_url, model="SmolLM2-135M-Instruct", text="The cat sat on the mat that the dog chased.")
        expect(headline(page)).to_contain_text("that looks at mat: 93 %")
        expect(page.locator("[data-testid=stAlert]")).to_have_count(0)

    def test_two_sentences_stand_side_by_side_and_a_link_keeps_both(
        self, page: Page, app_url: str, visitor: Callable[..., Page]
    ) -> None:
        go(page, app_url)
        panel = open_tab(page, "Two sentences")
        panel.get_by_role("textbox").fill(KIND)
        panel.get_by_role("textbox").press("Enter")
        titles = page.locator(".hs-pane-title")
        expect(titles).to_have_text([re.compile("they → cats 54 %"), re.compile("she → Alice 70 %")])
        expect(panel.locator("tbody tr")).to_have_count(2)
        for row in panel.locator("tbody tr").all_inner_texts():
            assert sum(int(share) for share in re.findall(r"(\d+) %", row)) in (99, 100, 101)
        open_tab(page, "Checks")
        expect(page).to_have_url(re.compile("compare="))
        other = visitor()
        other.goto(page.url)
        expect(other.locator(".hs-pane-title")).to_have_text(
            [re.compile("they → cats 54 %"), re.compile("she → Alice 70 %")]
        )

    def test_the_untrained_twin_stands_beside(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        page.get_by_role("button", name="Untrained twin", exact=True).click()
        titles = page.locator(".hs-pane-title")
        expect(titles).to_have_text([re.compile("Trained"), re.compile("Untrained twin: random weights")])
        twin = trace(load_model(f"{MINILM}~untrained"), ALICE).weights[1, 3, 6]
        assert percent_in(titles.nth(1).inner_text()) == round(float(twin.max()) * 100)
        expect(page).to_have_url(re.compile("twin=true"))
        page.get_by_role("button", name="Untrained twin", exact=True).click()
        expect(page.locator(".hs-pane")).to_have_count(1)


class TestTakeAway:
    def test_csv_holds_the_engines_numbers_and_the_html_opens_offline(
        self, page: Page, app_url: str, browser: Any, tmp_path: Path
    ) -> None:
        text = "Say </script><img src=x onerror=window.hit=1> & שלום."
        go(page, app_url, text=text, detail="Download", v_layer="1", v_head="3")
        with page.expect_download() as waiting:
            page.get_by_role("button", name="This head as CSV").click()
        assert waiting.value.suggested_filename == "headscope-L1H3.csv"
        rows = list(csv.reader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8"))))
        traced = trace(load_model(MINILM), text)
        read = np.array([[float(cell) for cell in row[1:]] for row in rows[1:]], np.float32)
        np.testing.assert_array_equal(read, traced.weights[1, 3])
        with page.expect_download() as waiting:
            page.get_by_role("button", name="This picture as a web page").click()
        file = tmp_path / "picture.html"
        waiting.value.save_as(file)

        offline = browser.new_context(offline=True)
        faults: list[str] = []
        offline.on("weberror", lambda error: faults.append(str(error.error)))
        alone = offline.new_page()
        alone.goto(file.as_uri())
        expect(alone.locator(".hs h2")).to_contain_text("looks at")
        assert alone.locator("h1").inner_text() == text
        assert alone.evaluate("window.hit") is None
        assert alone.locator("img").count() == 0
        assert faults == []
        offline.close()

    def test_share_copies_a_link_that_shows_the_same_page_elsewhere(
        self, page: Page, visitor: Callable[..., Page], app_url: str
    ) -> None:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        go(page, app_url, text=KIND)
        page.locator("[data-card=object_verb]").click()
        page.get_by_role("button", name="Map", exact=True).click()
        page.get_by_role("combobox", name="Colour scale").select_option("bright")
        open_tab(page, "Words")
        chosen = selection(page)
        page.get_by_role("button", name="Share").click()
        expect(page.get_by_role("button", name="Link copied")).to_be_visible()
        link = page.evaluate("navigator.clipboard.readText()")
        other = visitor()
        other.goto(link)
        wait_until_drawn(other)
        assert selection(other) == chosen
        assert headline(other).inner_text() == headline(page).inner_text()
        for name in ("view", "scale"):
            value = viewer(page).get_attribute(f"data-{name}")
            expect(viewer(other)).to_have_attribute(f"data-{name}", value or "")
        expect(sentence_box(other)).to_have_value(KIND)
        expect(other.get_by_role("tab", name="Words")).to_have_attribute("aria-selected", "true")
        expect(other.locator(".gtitle")).to_have_text(["Layer 2, head 0, word by word"])


class TestText:
    def test_a_text_too_long_for_a_link_stays_and_stays_quick(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        text = "The cat sat on the mat and " * 160
        assert len(quote(text)) > 4_000
        type_sentence(page, text)
        expect(page.get_by_text("512 are shown")).to_be_visible()
        expect(page.get_by_role("button", name="Share")).to_be_disabled()
        expect(sentence_box(page)).to_have_value(text)
        assert "text" not in address(page)
        wait_until_drawn(page)
        # 18.9 million weights: a key press still paints within a second.
        page.locator(".hs-scroll[role=application]").focus()
        before = selection(page)
        took = page.evaluate(
            """async () => {
              const root = document.querySelector('.hs') ?? [...document.querySelectorAll('*')]
                .map((node) => node.shadowRoot?.querySelector('.hs')).find(Boolean);
              const painted = root.dataset.painted;
              const begin = performance.now();
              const pane = root.querySelector('.hs-scroll[role=application]');
              pane.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true, composed: true }));
              while (root.dataset.painted === painted) await new Promise(requestAnimationFrame);
              return performance.now() - begin;
            }"""
        )
        assert selection(page)[2] == before[2] + 1
        assert took < 1_000
        type_sentence(page, ALICE)
        expect(headline(page)).to_contain_text("looks at cats")
        expect(page.get_by_role("button", name="Share")).to_be_enabled()

    @pytest.mark.parametrize("model", [MINILM, SMOLLM])
    def test_hostile_and_odd_words_are_words(self, model: str, page: Page, app_url: str) -> None:
        go(page, app_url, **({"model": SMOLLM_TITLE} if model == SMOLLM else {}))
        page.evaluate("() => { window.hit = 0; window.alert = () => { window.hit += 1; }; }")
        start = "<|endoftext|>" if model == SMOLLM else None
        for text in (
            "<img src=x onerror=alert(1)> and <script>alert(2)</script>",
            "<s> *a* :smile: `x` $y$ &lt;",
            "القطة جلست. שלום עולם 猫坐在垫子上 Η γάτα 🙂🎉",
            "the cat saw the cat saw the cat",
        ):
            labels = [token.label for token in trace(load_model(model), text, start=start).tokens]
            type_sentence(page, text)
            expect(page.locator(".hs-word[data-side=key]").first).to_be_attached()
            expect(page.locator(".xtick text")).to_have_text(labels if len(labels) <= 40 else labels[::2])
            keys = page.locator(".hs-word[data-side=key]").all_text_contents()
            assert keys == labels[: len(keys)]
            assert sentence_box(page).input_value() == text
            assert page.evaluate("window.hit") == 0
            assert page.locator("img[src=x]").count() == 0
            assert page.locator("[data-testid=stMain] img:visible").count() == 0  # the menu's QR codes are hidden

    def test_bad_input_is_one_sentence_and_the_text_stays(self, page: Page, app_url: str) -> None:
        go(page, app_url, model="gpt-17")
        alerts = page.locator("[data-testid=stAlert]")
        expect(alerts).to_have_text("This link asks for a model that is not here. Showing MiniLM: reads both ways.")
        type_sentence(page, "x" * 100_000)
        expect(alerts.last).to_have_text(
            re.compile("The text has 100,000 characters. At most 20,000 are allowed. Shorten it.")
        )
        assert len(sentence_box(page).input_value()) == 100_000
        type_sentence(page, "")
        expect(alerts.last).to_contain_text("The text is empty.")
        type_sentence(page, ALICE)
        expect(headline(page)).to_have_text("they looks at cats: 54 %")

    def test_a_wrong_model_of_the_hub_is_shown_as_it_was_typed(self, odd_server: AppServer, page: Page) -> None:
        for model in (":smile:", "www.example.com", "https://x.org/a", "me@example.com", "<b>x</b>*y*"):
            go(page, odd_server.url, model=model, text="Birds sing.")
            alert = page.locator("[data-testid=stAlert]")
            expect(alert).to_contain_text("could not be fetched")
            assert f"The model '{model}' could not" in alert.inner_text().replace("\u2060", "")
            assert alert.locator("a, b, em, img, strong").count() == 0
            expect(sentence_box(page)).to_have_value("Birds sing.")


@pytest.fixture(scope="module")
def odd_server(serve_module: Callable[..., AppServer], tmp_path_factory: pytest.TempPathFactory) -> AppServer:
    """A server no page has been asked of yet: models of the Hub are allowed but out of reach, one word is a fault."""
    folder = tmp_path_factory.mktemp("odd")
    root = Path(__file__).parents[2]
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.insert(0, {str(root)!r})\nimport attention.engine as engine\nreal = engine.trace\n"
        "def failing(model, text, **rest):\n"
        "    if 'zebra' in text:\n        raise RuntimeError('planted-4711')\n"
        "    return real(model, text, **rest)\nengine.trace = failing\n",
        encoding="utf-8",
    )
    return serve_module({"PYTHONPATH": str(folder), "HEADSCOPE_ALLOW_HUB": "1", "HF_HUB_OFFLINE": "1"})


def test_a_fault_of_ours_is_one_sentence_without_a_traceback(odd_server: AppServer, page: Page, watch: Watch) -> None:
    """The engine fails in the real app, through everything that lies between."""
    go(page, odd_server.url)
    expect(headline(page)).to_have_text("they looks at cats: 54 %")
    type_sentence(page, "A zebra ran.")
    expect(page.locator("[data-testid=stAlert]")).to_have_text(re.compile(re.escape(SORRY)))
    wait_until_drawn(page)
    everything = page.content()
    for word in ("planted-4711", "Traceback", "RuntimeError", "engine.py", "stException"):
        assert word not in everything
    expect(sentence_box(page)).to_have_value("A zebra ran.")
    assert "planted-4711" in odd_server.log()
    assert "zebra ran" not in odd_server.log()
    type_sentence(page, ALICE)
    expect(headline(page)).to_have_text("they looks at cats: 54 %")
    assert watch.faults() == []


class TestEverybody:
    def test_the_keyboard_alone_reaches_and_changes_everything(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        reached: list[str] = []
        for _ in range(60):
            page.keyboard.press("Tab")
            name = page.evaluate(
                """() => { let node = document.activeElement;
                while (node?.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
                return [node.getAttribute('role'), node.getAttribute('aria-label'), node.textContent].join(' '); }"""
            )
            reached.append(name)
            if name.startswith("application"):
                break
        assert any("Sentence" in name for name in reached)
        assert any("Share" in name for name in reached)
        assert reached[-1].startswith("application The head.")
        for key, place in (
            ("ArrowDown", (1, 3, 7)),
            ("ArrowRight", (1, 4, 7)),
            ("PageDown", (2, 4, 7)),
            ("Home", (2, 4, 0)),
        ):
            page.keyboard.press(key)
            expect_selection(page, *place)
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        expect(viewer(page)).to_have_attribute("data-locked", "true")
        expect(page.locator(".gtitle")).to_have_text(["Layer 2, head 4 (numbered from 0)"])
        spoken = page.locator(".hs [aria-live]")
        expect(spoken).to_have_text(re.compile(r"Layer 2, head 4, \[SEP\] to .+, \d+ percent"))
        page.keyboard.press("Escape")
        expect(viewer(page)).to_have_attribute("data-locked", "false")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_axe_finds_nothing_on_a_phone_and_nothing_scrolls_sideways(
        self, scheme: str, visitor: Callable[..., Page], app_url: str
    ) -> None:
        page = visitor(phone=True, color_scheme=scheme)
        go(page, app_url)
        assert viewer(page).get_attribute("data-theme") == scheme
        assert violations(page, OURS) == []
        assert overflow(page) == []
        open_tab(page, "Why this number?")
        assert violations(page, OURS) == []
        assert overflow(page) == []
