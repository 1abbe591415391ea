"""The head viewer in Chromium, without Streamlit: a host page plays its part, and the offline file runs as it is."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from attention.plots.colours import WEIGHT_SCALE, WEIGHT_SCALE_DARK
from attention.plots.viewer import (
    ViewedTrace,
    ViewerScene,
    dequantise,
    quantise,
    viewer_bytes,
    viewer_css,
    viewer_html,
    viewer_js,
)
from tests.browser.conftest import Watch
from tests.browser.looks import violations
from tests.viewer_scenes import (
    ALICE,
    FakeModel,
    FakeTrace,
    alice_scene,
    alice_trace,
    fake_trace,
    row_of,
    tokens_of,
)

DESKTOP = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
HOST = "http://viewer.test/"

# What Streamlit does: one call per new data, on the same element, with two setters; `sent` records what goes up.
HOST_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Host</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>%(css)s</style></head><body class="hs-page"><main><h1>Host page</h1><div id="mount"></div></main>
<script type="module">%(js)s
window.sent = [];
window.show = (packed, setters = true) => {
  const note = (kind) => (name, value) => window.sent.push([kind, name, value]);
  window.cleanUp = headViewer({
    data: Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)),
    parentElement: document.getElementById("mount"),
    ...(setters ? { setStateValue: note("state"), setTriggerValue: note("trigger") } : {}),
  });
};
window.ready = true;
</script></body></html>"""

# True once the picture has stood still for three frames.
STILL = """() => new Promise((done) => {
  const root = document.querySelector('.hs');
  let last = root.dataset.painted, same = 0;
  const look = () => {
    same = root.dataset.painted === last && last !== undefined ? same + 1 : 0;
    last = root.dataset.painted;
    if (same >= 3) done(true); else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"""

PIXEL = """([selector, x, y]) => {
  const canvas = document.querySelector(selector);
  const ratio = canvas.width / canvas.clientWidth;
  return [...canvas.getContext('2d').getImageData(x * ratio, y * ratio, 1, 1).data].slice(0, 3);
}"""


@dataclass
class Viewer:
    """A page with the viewer on it."""

    page: Page
    faults: list[str]

    @property
    def root(self) -> Locator:
        return self.page.locator(".hs")

    @property
    def stage(self) -> Locator:
        return self.page.locator(".hs-scroll[role=application]").first

    def data(self) -> dict[str, str]:
        self.page.evaluate(STILL)
        data: dict[str, str] = self.root.evaluate("root => ({...root.dataset})")
        return data

    def cell(self) -> tuple[int, int, int, int]:
        data = self.data()
        return int(data["layer"]), int(data["head"]), int(data["query"]), int(data["key"])

    def sent(self) -> list[list[Any]]:
        self.page.evaluate(STILL)
        messages: list[list[Any]] = self.page.evaluate("window.sent.splice(0)")
        return messages

    def show(self, scene: ViewerScene | FakeTrace) -> None:
        self.page.evaluate("packed => window.show(packed)", base64.b64encode(viewer_bytes(scene)).decode())
        self.page.evaluate(STILL)

    def headline(self) -> str:
        self.page.evaluate(STILL)
        return self.page.locator(".hs h2").inner_text()

    def word(self, side: str, index: int) -> Locator:
        return self.page.locator(f'.hs-word[data-side="{side}"][data-index="{index}"]').first

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def in_grid(self, layer: int, head: int, layers: int = 6, heads: int = 12) -> tuple[float, float]:
        """The middle of a head's small map, from what the page says of its own layout: even rows and columns."""
        box = self.page.locator(".hs-grid").bounding_box()
        assert box
        left = 52 + (head + 0.5) * ((box["width"] - 54) // heads)
        canvas = self.page.locator(".hs-grid canvas").bounding_box()
        assert canvas
        step = canvas["height"] / layers
        return canvas["x"] + left, canvas["y"] + (layer + 0.5) * step

    def in_map(self, query: int, key: int) -> tuple[float, float]:
        """Middle of a cell in canvas coordinates, found by asking what a click there would choose."""
        left, top, cell, wide = self.page.evaluate(
            """size => {
              const box = document.querySelector('.hs-pane .hs-scroll');
              const left = Math.round(Math.min(120, Math.max(84, box.clientWidth * 0.2)));
              const high = document.querySelector('.hs-pane canvas').clientHeight;
              const wide = document.querySelector('.hs-pane canvas').clientWidth;
              return [left, 92, Math.round((high - 100) / size), Math.round((wide - left - 36) / size)];
            }""",
            len(ALICE),
        )
        return left + (key + 0.5) * wide, top + (query + 0.5) * cell


Opener = Callable[..., Viewer]


@pytest.fixture
def open_viewer(visitor: Callable[..., Page], watch: Watch) -> Opener:
    """Call it with a scene (and what ``visitor`` takes) for a viewer on a host page."""
    watch.own_hosts.add(urlsplit(HOST).netloc)
    module = viewer_js().replace("export default function headViewer(", "function headViewer(")
    body = HOST_PAGE % {"css": viewer_css(), "js": module}

    def open_one(scene: ViewerScene | FakeTrace, search: str = "", **options: Any) -> Viewer:
        page = visitor(**options)
        page.route("**/*", lambda route: route.fulfill(body=body, content_type="text/html; charset=utf-8"))
        page.goto(HOST + search)
        page.wait_for_function("window.ready === true")
        viewer = Viewer(page, [])
        viewer.show(scene)
        return viewer

    return open_one


@pytest.fixture
def open_file(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    """Call it with a scene for the offline file, opened from disk with every other request refused."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_one(scene: ViewerScene | FakeTrace, **options: Any) -> Viewer:
        path = tmp_path / f"viewer{len(contexts)}.html"
        path.write_text(viewer_html(scene), encoding="utf-8")
        context = browser.new_context(**{**DESKTOP, **options})
        contexts.append(context)
        context.on("weberror", lambda error: faults.append(str(error.error)))
        context.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        context.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
        context.on("request", lambda request: None if request.url == path.as_uri() else faults.append(request.url))
        context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
        page = context.new_page()
        page.goto(path.as_uri())
        page.locator(".hs[data-painted]").wait_for()
        return Viewer(page, faults)

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


def gqa_trace() -> FakeTrace:
    words = ["<|endoftext|>", "The", "cat", "sat", "on", "the", "mat", "that", "the", "dog", "chased", "."]
    return fake_trace(words, 30, 9, 3, causal=True, model=FakeModel("fake-smol", "Fake: left to right", "decoder"))


def long_trace(count: int = 512) -> FakeTrace:
    return fake_trace(["[CLS]", *(f"word{index}" for index in range(count - 2)), "[SEP]"], 6, 12)


def percent_of(weight: float) -> str:
    return "< 1 %" if 0 < weight < 0.005 else f"{int(weight * 100 + 0.5)} %"


def scale_colour(weight: float, scale: tuple[tuple[float, str], ...] = WEIGHT_SCALE) -> np.ndarray:
    """The sequential scale read between its stops, an oracle apart from the script."""
    places = [place for place, _ in scale]
    parts = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for _, colour in scale])
    return np.array([np.interp(weight, places, parts[:, part]) for part in range(3)])


# Headline, hover, lock


def test_the_first_look_says_who_looks_at_whom(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    assert viewer.headline() == "they looks at cats: 54 %"
    expect(viewer.page.locator(".hs-where")).to_have_text("Layer 1, head 3 (numbered from 0)")
    assert viewer.cell() == (1, 3, 6, 4)
    assert viewer.data()["percent"] == "54"
    assert viewer.sent() == []


def test_the_headline_is_exact_where_a_byte_would_round_wrongly(open_viewer: Opener) -> None:
    trace = alice_trace()
    trace.weights[3, 1, 6] = row_of(11, k4=0.5451)
    assert percent_of(float(dequantise(quantise(trace.weights[3, 1, 6, 4])))) == "54 %"
    viewer = open_viewer(ViewerScene((ViewedTrace(trace),), start=(3, 1, 6)))
    assert viewer.headline() == "they looks at cats: 55 %"


def test_hover_previews_and_leaving_brings_back(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.word("query", 2).hover()
    assert viewer.headline().startswith("fed looks at ")
    assert viewer.cell()[:3] == (1, 3, 2)
    viewer.page.mouse.move(700, 890)
    assert viewer.headline() == "they looks at cats: 54 %"
    viewer.word("key", 1).hover()
    assert viewer.headline() == "they looks at Alice: 12 %"
    assert viewer.sent() == [], "hovering costs no rerun"
    assert "v." not in viewer.page.url


def test_hovering_a_small_map_previews_that_head(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.page.mouse.move(*viewer.in_grid(0, 2))
    assert viewer.cell() == (0, 2, 6, 5)
    assert viewer.headline() == "they looks at because: 100 %"
    viewer.page.mouse.click(*viewer.in_grid(4, 11))
    viewer.page.mouse.move(700, 890)
    assert viewer.cell()[:3] == (4, 11, 6)


def test_click_locks_once_and_escape_releases(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.word("query", 6).click()
    assert viewer.sent() == [["state", "lock", {"layer": 1, "head": 3, "query": 6, "key": 4}]]
    viewer.word("query", 6).click()
    assert viewer.sent() == [], "the lock did not change"
    assert viewer.data()["locked"] == "true"
    viewer.press("Escape")
    assert viewer.sent() == [["state", "lock", None]]
    assert viewer.data()["locked"] == "false"
    viewer.press("Escape")
    assert viewer.sent() == []


def test_the_lock_can_be_released_without_a_keyboard(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.word("key", 1).click()
    assert viewer.sent()[-1][2] == {"layer": 1, "head": 3, "query": 6, "key": 1}
    viewer.page.get_by_role("button", name="locked: L1 H3").click()
    assert viewer.sent() == [["state", "lock", None]]


def test_a_second_click_on_a_key_word_shows_its_own_arcs(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.word("key", 1).click()
    assert viewer.cell() == (1, 3, 6, 1)
    viewer.word("key", 1).click()
    assert viewer.cell()[:3] == (1, 3, 1)


# Keyboard and speech


def test_everything_can_be_reached_by_keyboard_alone(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    for _ in range(20):
        viewer.press("Tab")
        if viewer.stage.evaluate("stage => stage === document.activeElement"):
            break
    expect(viewer.stage).to_be_focused()
    assert viewer.stage.evaluate("stage => getComputedStyle(stage).outlineStyle") == "solid"
    viewer.press("ArrowUp", "ArrowUp")
    assert viewer.cell()[:3] == (1, 3, 4)
    viewer.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert viewer.cell()[:3] == (1, 4, 4)
    viewer.press("PageDown", "PageDown", "PageUp")
    assert viewer.cell()[:3] == (2, 4, 4)
    viewer.press("Shift+ArrowDown")
    assert viewer.cell()[:3] == (3, 4, 4)
    viewer.press("Home", "ArrowUp")
    assert viewer.cell()[2] == 0
    viewer.press("End", "ArrowDown")
    assert viewer.cell()[2] == 10
    assert viewer.sent() == [], "moving locks nothing"
    viewer.press("Enter")
    (message,) = viewer.sent()
    assert message[:2] == ["state", "lock"]
    assert (message[2]["layer"], message[2]["head"], message[2]["query"]) == (3, 4, 10)
    viewer.press("Escape")
    assert viewer.sent() == [["state", "lock", None]]


def test_moves_are_spoken(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    spoken = viewer.page.locator("[aria-live=polite]")
    viewer.stage.focus()
    viewer.press("ArrowDown", "ArrowUp")
    expect(spoken).to_have_text("Layer 1, head 3, they to cats, 54 percent")
    viewer.word("query", 2).hover()
    viewer.data()
    expect(spoken).to_have_text("Layer 1, head 3, they to cats, 54 percent")


def test_keys_inside_a_control_belong_to_the_control(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.page.get_by_label("Cut-off in percent").focus()
    viewer.press("ArrowRight")
    data = viewer.data()
    assert (data["head"], data["cut"]) == ("3", "75")


def test_a_key_press_is_painted_in_the_next_frame(open_viewer: Opener) -> None:
    viewer = open_viewer(fake_trace(["[CLS]", *(f"w{index}" for index in range(62)), "[SEP]"], 6, 12))
    viewer.stage.focus()
    frames = viewer.page.evaluate(
        """async () => {
          const root = document.querySelector('.hs'), stage = document.querySelector('.hs-scroll[role=application]');
          const counts = [];
          for (let turn = 0; turn < 5; turn += 1) {
            stage.dispatchEvent(new KeyboardEvent('keydown', {key: 'PageDown', bubbles: true, composed: true}));
            let frames = 0;
            while (root.dataset.layer !== String(turn + 1)) {
              await new Promise(requestAnimationFrame);
              frames += 1;
            }
            counts.push(frames);
          }
          return counts;
        }"""
    )
    assert frames == [1] * 5


# Resting places, cut-off, scales


def test_hiding_resting_places_says_the_share_and_can_scale_up_the_rest(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    trace = alice_trace()
    row = trace.weights[1, 3, 6]
    share = trace.weights[1, 3][:, [0, 10]].sum(axis=-1).mean()
    line = viewer.page.locator(".hs-e p")
    expect(line).to_have_text(f"All 72 heads. Dark left edge: resting on [CLS] and [SEP], {percent_of(share)} here.")
    viewer.word("query", 2).click()
    top_before = viewer.cell()[3]
    viewer.word("query", 6).click()
    assert top_before == 0
    viewer.page.get_by_role("button", name="Hide it").click()
    expect(line).to_have_text(f"All 72 heads. Hidden: resting on [CLS] and [SEP], {percent_of(share)} here.")
    hidden = float(row[0] + row[10])
    data = viewer.data()
    assert float(data["hiddenShare"]) == pytest.approx(hidden, abs=1e-3)
    assert data["percent"] == "54", "hiding alone leaves the numbers alone"
    expect(viewer.page.locator(".hs-where")).to_contain_text(f"{percent_of(hidden)} of this row is hidden")
    viewer.page.get_by_label("scale the rest to 100 %").check()
    assert viewer.data()["percent"] == percent_of(0.541 / (1 - hidden)).removesuffix(" %")
    viewer.page.get_by_label("scale the rest to 100 %").uncheck()
    viewer.word("query", 2).click()
    assert viewer.cell()[3] not in (0, 10), "a hidden place is never the answer"
    viewer.page.get_by_role("button", name="Show it").click()
    assert viewer.cell()[3] == 0


def test_a_sink_column_that_is_no_special_token_is_a_resting_place_too(open_viewer: Opener) -> None:
    trace = fake_trace(ALICE, 1, 2)
    trace.weights[0, 0] = row_of(11, k3=0.5)
    viewer = open_viewer(ViewerScene((ViewedTrace(trace),), start=(0, 0, 5)))
    expect(viewer.page.locator(".hs-e p")).to_contain_text("resting on [CLS], the and [SEP], 60 % here.")
    viewer.page.get_by_role("button", name="Hide it").click()
    assert viewer.cell()[3] not in (0, 3, 10)


def test_the_cut_off_keeps_the_strongest_arcs_that_cover_it(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    row = np.sort(np.float64(np.round(alice_trace().weights[1, 3, 6], 4)))[::-1]
    for cut in (30, 55, 70, 100):
        viewer.page.get_by_label("Cut-off in percent").fill(str(cut))
        expected = int(np.searchsorted(np.cumsum(row) / row.sum(), cut / 100 - 1e-6)) + 1
        assert int(viewer.data()["arcs"]) == expected, cut
        assert viewer.page.locator('.hs-word[data-on="target"], .hs-word[data-on="top"]').count() == expected, cut
    assert viewer.sent() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_paints_every_scale_as_defined(open_viewer: Opener, scheme: str) -> None:
    viewer = open_viewer(alice_scene(), color_scheme=scheme)
    viewer.page.get_by_role("button", name="Map").click()
    weights = dequantise(quantise(alice_trace().weights[1, 3]))
    formulas = {
        "linear": lambda w, top: w,
        "bright": lambda w, top: np.sqrt(w),
        "row": lambda w, top: w / top,
        "log": lambda w, top: max(0.0, 1 + np.log10(max(w, 1e-9)) / 3),
    }
    stops = WEIGHT_SCALE if scheme == "light" else WEIGHT_SCALE_DARK
    for scale, formula in formulas.items():
        viewer.page.get_by_label("Colour scale").select_option(scale)
        viewer.data()
        for query, key in [(1, 0), (2, 7), (9, 0), (8, 3)]:
            row = weights[query]
            expected = scale_colour(float(formula(row[key], row.max())), stops)
            seen = viewer.page.evaluate(PIXEL, [".hs-pane canvas", *viewer.in_map(query, key)])
            assert np.abs(expected - seen).max() <= 4, (scale, query, key)


def test_the_small_maps_follow_the_scale_and_the_hiding(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    shot = viewer.page.locator(".hs-grid canvas").screenshot
    viewer.data()
    plain = shot()
    viewer.page.get_by_label("Colour scale").select_option("bright")
    viewer.data()
    bright = shot()
    viewer.page.get_by_role("button", name="Hide it").click()
    viewer.data()
    assert len({plain, bright, shot()}) == 3


# Map, cards, strip, table, checks


def test_the_map_locks_the_cell_under_the_pointer(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.page.get_by_role("button", name="Map").click()
    viewer.data()
    x, y = viewer.in_map(4, 2)
    viewer.stage.hover(position={"x": x, "y": y})
    assert viewer.cell() == (1, 3, 4, 2)
    assert viewer.sent() == []
    viewer.stage.click(position={"x": x, "y": y})
    assert viewer.sent() == [["state", "lock", {"layer": 1, "head": 3, "query": 4, "key": 2}]]


def test_cards_choose_their_head_and_carry_their_evidence(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    cards = viewer.page.locator(".hs-card")
    assert [re.sub(r"\s+", " ", text) for text in cards.all_inner_texts()] == [
        "Previous word L0 H2 they looks at because 100 % mean .99 over 40 sentences; breaks past 110 tokens",
        "Object → its verb L2 H0 cats looks at fed 48 % right in .77; best fixed offset .25",
        "Who is meant L1 H3 they looks at cats 54 % agrees in gender or number: .92; meaning only: .50",
    ]
    expect(cards.nth(2)).to_have_attribute("aria-pressed", "true")
    cards.nth(1).click()
    assert viewer.headline() == "cats looks at fed: 48 %"
    assert viewer.cell() == (2, 0, 4, 2)
    expect(cards.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(cards.nth(2)).to_have_attribute("aria-pressed", "false")
    assert viewer.sent()[-1] == ["state", "lock", {"layer": 2, "head": 0, "query": 4, "key": 2}]


def test_the_average_card_is_the_mean_of_the_three_rows(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    weights = alice_trace().weights
    mean = (weights[0, 2, 6] + weights[2, 0, 6] + weights[1, 3, 6]) / 3
    first, second = np.argsort(mean)[::-1][:2]
    expect(viewer.page.locator(".hs-average .hs-fact")).to_have_text(
        f"they: {ALICE[first]} {mean[first] * 100:.0f}, {ALICE[second]} {mean[second] * 100:.0f}: blurred"
    )
    expect(viewer.page.locator(".hs-average")).to_contain_text("concat keeps three answers apart")


def test_without_cards_the_small_maps_get_their_room(open_viewer: Opener) -> None:
    with_cards = open_viewer(alice_scene()).page.locator(".hs-e").bounding_box()
    viewer = open_viewer(alice_scene(cards=(), average=None))
    without = viewer.page.locator(".hs-e").bounding_box()
    assert with_cards
    assert without
    assert without["height"] > with_cards["height"] + 120
    expect(viewer.page.locator(".hs-cards")).to_be_hidden()


def test_the_recipe_is_one_bar_that_sums_to_one(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.data()
    segments = viewer.page.locator(".hs-stack span")
    titles = segments.evaluate_all("spans => spans.map((span) => span.title)")
    assert titles[:2] == [".54 V(cats)", ".12 V(Alice)"]
    assert titles[-1].endswith(" rest")
    widths = segments.evaluate_all("spans => spans.map((span) => parseFloat(span.style.width))")
    assert sum(widths) == pytest.approx(100, abs=0.2)
    assert widths[0] == pytest.approx(54.1, abs=0.05)
    expect(viewer.page.locator(".hs-stack")).to_have_attribute(
        "aria-label", re.compile(r"^new they = \.54 V\(cats\) \+")
    )


def test_the_table_twin_lists_the_row(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    lines = viewer.page.locator(".hs tbody tr")
    row = np.round(alice_trace().weights[1, 3, 6], 4)
    expect(lines).to_have_count(11)
    assert [line.split("\t") for line in lines.all_inner_texts()] == [
        [str(key), ALICE[key], percent_of(float(row[key]))] for key in range(11)
    ]
    table = viewer.page.get_by_role("region", name="The row as a table")
    box = table.bounding_box()
    assert box
    assert box["width"] <= 2, "there for screen readers, out of sight"
    viewer.page.get_by_role("button", name="Table").click()
    box = table.bounding_box()
    assert box
    assert box["width"] > 300
    viewer.page.keyboard.press("Escape")
    box = table.bounding_box()
    assert box
    assert box["width"] <= 2


def test_the_checks_open_and_a_failure_is_not_green(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    button = viewer.page.get_by_role("button", name="5 checks passed")
    panel = viewer.page.get_by_role("region", name="Checks")
    expect(panel).to_be_hidden()
    button.click()
    expect(panel).to_contain_text("every row sums to 1")
    expect(panel).to_contain_text("largest gap 1.2e-07")
    viewer.press("Escape")
    expect(panel).to_be_hidden()
    viewer.show(alice_scene(checks=(("rows", "sum 1.2", False), ("mask", "0", True))))
    expect(viewer.page.get_by_role("button", name="✗ 1 of 2 checks failed")).to_be_visible()


def test_the_buttons_that_need_the_app_ask_it(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.page.get_by_role("button", name="Change one word: they → she").click()
    viewer.page.get_by_role("button", name="Why 54 %?").click()
    viewer.page.get_by_role("button", name="Untrained twin").click()
    assert viewer.sent() == [
        ["trigger", "ask", {"action": "swap"}],
        ["state", "lock", {"layer": 1, "head": 3, "query": 6, "key": 4}],
        ["trigger", "ask", {"action": "why"}],
        ["trigger", "ask", {"action": "twin", "on": True}],
    ]
    viewer.show(alice_scene(swap_label=None))
    expect(viewer.page.locator(".hs-pill")).to_be_hidden()


# New data in place


def swapped_scene() -> ViewerScene:
    trace = alice_trace()
    weights = trace.weights.copy()
    weights[1, 3, 6] = row_of(11, k1=0.704, k4=0.1)
    labels = [*ALICE[:6], "she", "was", "kind", ".", "[SEP]"]
    she = replace(trace, tokens=tokens_of(labels), weights=weights, text="Alice fed the cats because she was kind.")
    return alice_scene(traces=(ViewedTrace(she),))


def test_changing_one_word_moves_the_arrow_and_keeps_the_place(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.word("query", 6).click()
    viewer.sent()
    viewer.root.evaluate("root => { window.before = root; }")
    viewer.show(swapped_scene())
    assert viewer.headline() == "she looks at Alice: 70 %"
    assert viewer.root.evaluate("root => root === window.before"), "repainted in place"
    assert viewer.sent() == [["state", "lock", {"layer": 1, "head": 3, "query": 6, "key": 1}]]
    viewer.show(alice_scene())
    assert viewer.headline() == "they looks at cats: 54 %"


def test_a_rerun_keeps_what_was_chosen(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.word("query", 2).click()
    viewer.page.mouse.click(*viewer.in_grid(5, 7))
    viewer.page.mouse.move(700, 890)
    viewer.sent()
    viewer.show(alice_scene())
    viewer.show(alice_scene(notices=("Something new.",)))
    assert viewer.cell()[:3] == (5, 7, 2)
    assert viewer.data()["locked"] == "true"
    assert viewer.sent() == []
    viewer.show(alice_scene(start=(2, 0, 4)))
    assert viewer.cell()[:3] == (2, 0, 4), "a new start moves the view"
    assert viewer.sent() == [["state", "lock", None]]


def test_another_model_starts_afresh(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.page.mouse.click(*viewer.in_grid(5, 11))
    viewer.show(ViewerScene((ViewedTrace(gqa_trace()),), start=(16, 0, 7)))
    assert viewer.cell()[:3] == (16, 0, 7)
    assert viewer.headline().startswith("that looks at ")


def test_leaving_cleans_up(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.page.evaluate("window.cleanUp()")
    expect(viewer.root).to_have_count(0)
    viewer.show(alice_scene())
    expect(viewer.root).to_have_count(1)


def test_bytes_that_are_no_message_give_a_sentence(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.page.evaluate("console.error = () => {}; window.show(btoa('PK something else'))")
    expect(viewer.page.get_by_role("status")).to_contain_text("could not be read")
    viewer.show(alice_scene())
    expect(viewer.page.locator(".hs h2")).to_be_visible()


def test_an_unsent_layer_is_asked_for_once_and_drawn_when_it_comes(open_viewer: Opener) -> None:
    scene = ViewerScene((ViewedTrace(long_trace(300)),), start=(1, 3, 6))
    viewer = open_viewer(scene)
    viewer.stage.focus()
    viewer.press("PageDown")
    assert viewer.sent() == [["state", "layer", 2]]
    expect(viewer.page.locator(".hs-wait")).to_contain_text("Fetching layer 2, head 3")
    viewer.press("ArrowDown")
    assert viewer.sent() == []
    viewer.show(replace(scene, full_layers=(2,)))
    expect(viewer.page.locator(".hs-wait")).to_be_hidden()
    assert viewer.data()["layer"] == "2"
    assert viewer.headline().startswith("word6 looks at ")


# Two traces


def test_the_untrained_twin_stands_beside(open_viewer: Opener) -> None:
    twin = fake_trace(ALICE, seed=9)
    viewer = open_viewer(alice_scene(traces=(ViewedTrace(alice_trace()), ViewedTrace(twin, "twin"))))
    titles = viewer.page.locator(".hs-pane-title")
    viewer.data()
    row = twin.weights[1, 3, 6]
    assert titles.all_inner_texts() == [
        "they → cats 54 % · Trained",
        f"they → {ALICE[row.argmax()]} {percent_of(float(row.max()))} · Untrained twin: random weights",
    ]
    button = viewer.page.get_by_role("button", name="Untrained twin")
    expect(button).to_have_attribute("aria-pressed", "true")
    button.click()
    assert viewer.sent() == [["trigger", "ask", {"action": "twin", "on": False}]]
    viewer.show(alice_scene())
    expect(titles).to_have_count(1)
    expect(titles).to_be_hidden()


def test_compare_shows_the_nearest_word_of_the_other_sentence(open_viewer: Opener) -> None:
    other = fake_trace(("[CLS]", "Cats", "sleep", "[SEP]"))
    viewer = open_viewer(alice_scene(traces=(ViewedTrace(alice_trace()), ViewedTrace(other, "compare"))))
    viewer.data()
    titles = viewer.page.locator(".hs-pane-title").all_inner_texts()
    assert titles[0].endswith("· Alice fed the cats because they were hungry.")
    assert titles[1].startswith("[SEP] → ")
    assert titles[1].endswith("· [CLS] Cats sleep [SEP]")


# URL and memory


def test_the_url_is_read_at_mount_and_nonsense_is_ignored(open_viewer: Opener) -> None:
    viewer = open_viewer(
        alice_scene(), "?v.layer=2&v.head=99&v.query=4&v.scale=bright&v.hide=true&v.cut=7&v.view=map&s=keep"
    )
    data = viewer.data()
    assert viewer.cell()[:3] == (2, 3, 4)
    assert (data["scale"], data["hide"], data["cut"], data["view"]) == ("bright", "true", "70", "map")
    assert viewer.page.url.endswith("&s=keep"), "reading writes nothing"


def test_choices_are_written_to_the_url_and_leave_the_rest_alone(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene(), "?s=two%20words&v.unknown=1")
    length = viewer.page.evaluate("history.length")
    viewer.word("query", 4).click()
    viewer.page.get_by_label("Cut-off in percent").fill("90")
    viewer.page.get_by_role("button", name="Hide it").click()
    viewer.page.get_by_role("button", name="Map").click()
    search = viewer.page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    expected = {"v.layer": "1", "v.head": "3", "v.query": "4", "v.cut": "90", "v.hide": "true", "v.view": "map"}
    assert search == {"s": "two words", "v.unknown": "1", **expected}
    assert viewer.page.evaluate("history.length") == length
    viewer.page.get_by_role("button", name="Arcs").click()
    assert "v.view" not in viewer.page.url, "what is usual needs no parameter"


def test_the_tab_remembers_without_the_url(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.page.mouse.click(*viewer.in_grid(4, 6))
    viewer.page.goto(HOST)
    viewer.page.wait_for_function("window.ready === true")
    viewer.show(alice_scene())
    assert viewer.cell()[:2] == (4, 6)
    viewer.page.goto(HOST)
    viewer.page.wait_for_function("window.ready === true")
    viewer.show(swapped_scene())
    assert viewer.cell()[:2] == (1, 3), "another sentence starts where it says"


def test_a_link_inside_the_app_moves_the_view(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene())
    viewer.page.evaluate(
        "history.pushState({}, '', '?v.layer=2&v.head=0&v.query=4'); dispatchEvent(new Event('popstate'))"
    )
    assert viewer.cell() == (2, 0, 4, 2)


def test_hints_come_once(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene(hints=True))
    hints = viewer.page.locator(".hs-hint")
    assert hints.locator("span").all_inner_texts() == [
        "Click a word: its arrows show where it looks.",
        "Pick another head in the grid.",
        "Change one word and watch the arrow move.",
    ]
    for _ in range(3):
        hints.first.get_by_role("button").click()
    expect(hints).to_have_count(0)
    viewer.page.reload()
    viewer.page.wait_for_function("window.ready === true")
    viewer.show(alice_scene(hints=True))
    expect(hints).to_have_count(0)


# Layouts


def test_everything_down_to_the_strip_fits_on_a_desktop(open_viewer: Opener) -> None:
    for scene in (alice_scene(), alice_scene(hints=True), ViewerScene((ViewedTrace(gqa_trace()),))):
        viewer = open_viewer(scene)
        viewer.data()
        box = viewer.root.bounding_box()
        assert box
        assert box["height"] <= 640
        assert viewer.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_grouped_heads_stand_under_their_kv_head(open_viewer: Opener) -> None:
    viewer = open_viewer(ViewerScene((ViewedTrace(gqa_trace()),), start=(0, 0, 7)))
    viewer.data()
    labels = viewer.page.locator(".hs-grid-top span")
    assert labels.all_inner_texts() == ["KV 0 serves Q 0-2", "KV 1 serves Q 3-5", "KV 2 serves Q 6-8"]
    colours = labels.evaluate_all("spans => spans.map((span) => getComputedStyle(span).backgroundColor)")
    assert len(set(colours)) == 3
    boxes = [labels.nth(index).bounding_box() for index in range(3)]
    assert all(boxes)
    width = [round(box["width"]) for box in boxes if box]
    assert width == [width[0]] * 3, "three heads each"
    assert labels.evaluate_all("spans => spans.every((span) => span.scrollWidth <= span.clientWidth)")
    expect(viewer.page.locator(".hs-e p")).to_contain_text("All 270 heads.")
    viewer.stage.focus()
    viewer.press(*["PageDown"] * 29)
    assert viewer.cell()[0] == 29
    scroll = viewer.page.locator(".hs-grid").evaluate("box => [box.scrollTop + box.clientHeight, box.scrollHeight]")
    assert scroll[0] >= scroll[1] - 4, "the last layer is scrolled into view"
    top = viewer.page.locator(".hs-grid-top").bounding_box()
    grid = viewer.page.locator(".hs-grid").bounding_box()
    assert top
    assert grid
    assert abs(top["y"] - grid["y"]) <= 1, "the KV line stays"


def test_a_causal_head_masks_the_future(open_viewer: Opener) -> None:
    viewer = open_viewer(ViewerScene((ViewedTrace(gqa_trace()),), start=(0, 0, 4)))
    viewer.data()
    masked = viewer.page.locator('.hs-word[data-side="key"][data-masked]')
    assert masked.count() == 12 - 5
    expect(viewer.page.locator(".hs tbody tr").nth(5)).to_contain_text("masked")
    viewer.page.get_by_role("button", name="Map").click()
    viewer.data()
    void = viewer.root.evaluate("root => getComputedStyle(root).getPropertyValue('--hs-void').trim()")
    x, y = viewer.in_map(1, 9)
    seen = viewer.page.evaluate(PIXEL, [".hs-pane canvas", x, y])
    assert seen == [int(void[at : at + 2], 16) for at in (1, 3, 5)]


def test_a_phone_shows_one_layer_at_a_time_and_big_targets(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene(), phone=True)
    page = viewer.page
    viewer.data()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    rows = page.locator(".hs-word").evaluate_all(
        "nodes => nodes.map((node) => [node.getBoundingClientRect(), node.scrollWidth <= node.clientWidth + 1])"
        ".map(([box, whole]) => [box.left, box.right, box.height, whole])"
    )
    assert len(rows) == 22
    assert all(left >= 0 and right <= 390 and height >= 42 and whole for left, right, height, whole in rows)
    tops = page.locator('.hs-word[data-side="query"]').evaluate_all("nodes => nodes.map((node) => node.offsetTop)")
    assert np.diff(sorted(tops)).tolist() == [44] * 10
    nav = page.locator(".hs-layer-nav")
    expect(nav).to_contain_text("Layer 1")
    page.get_by_role("button", name="Next layer").tap()
    expect(nav).to_contain_text("Layer 2")
    assert viewer.cell()[:2] == (2, 3)
    grid = page.locator(".hs-grid canvas").bounding_box()
    assert grid
    page.locator(".hs-grid canvas").scroll_into_view_if_needed()
    page.locator(".hs-grid canvas").tap(position={"x": grid["width"] * 3.5 / 4, "y": grid["height"] * 2.5 / 3})
    assert viewer.cell()[:2] == (2, 11), "four maps a row, three rows"
    expect(page.locator(".hs-stack")).to_be_hidden()
    page.get_by_text("What the word becomes").tap()
    expect(page.locator(".hs-stack")).to_be_visible()


def test_a_tap_locks_and_a_second_tap_shows_the_words_own_arcs(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene(), phone=True)
    viewer.word("query", 2).tap()
    assert viewer.cell()[:3] == (1, 3, 2)
    assert viewer.sent()[0][2]["query"] == 2
    viewer.word("key", 8).tap()
    assert viewer.cell() == (1, 3, 2, 8)
    viewer.word("key", 8).tap()
    assert viewer.cell()[:3] == (1, 3, 8)


def test_cards_are_a_row_to_swipe_on_a_phone_and_the_chosen_one_leads(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene(), phone=True)
    viewer.data()
    cards = viewer.page.locator(".hs-cards")
    assert cards.evaluate("row => row.scrollWidth > row.clientWidth")
    assert cards.evaluate("row => getComputedStyle(row).scrollSnapType") == "x mandatory"
    chosen = viewer.page.locator('.hs-card[aria-pressed="true"]').bounding_box()
    assert chosen
    assert 0 <= chosen["x"] <= 20


# Long and odd texts


def test_512_tokens_scroll_and_hover_smoothly(open_viewer: Opener) -> None:
    viewer = open_viewer(ViewerScene((ViewedTrace(long_trace()),), start=(2, 5, 7)))
    viewer.data()
    assert viewer.page.locator(".hs-word").count() < 80, "only visible rows are elements"
    slowest = viewer.page.evaluate(
        """async () => {
          const stage = document.querySelector('.hs-scroll[role=application]');
          const root = document.querySelector('.hs');
          const box = stage.getBoundingClientRect();
          const times = [];
          for (let turn = 0; turn < 24; turn += 1) {
            stage.scrollTop = turn * 480;
            const clientX = box.left + 60, clientY = box.top + 40 + 9 * turn;
            stage.dispatchEvent(new PointerEvent('pointermove', {clientX, clientY, bubbles: true}));
            const before = root.dataset.painted;
            const started = performance.now();
            while (root.dataset.painted === before) await new Promise(requestAnimationFrame);
            times.push(performance.now() - started);
          }
          return times.sort((one, other) => one - other)[18];
        }"""
    )
    assert slowest < 200
    viewer.stage.evaluate("stage => { stage.scrollTop = stage.scrollHeight; }")
    viewer.data()
    expect(viewer.word("query", 511)).to_be_visible()
    viewer.word("query", 509).click()
    assert viewer.cell()[2] == 509
    viewer.stage.focus()
    viewer.press("Home")
    expect(viewer.word("query", 0)).to_be_in_viewport()
    viewer.page.get_by_role("button", name="Map").click()
    viewer.stage.evaluate("stage => { stage.scrollTop = stage.scrollHeight; stage.scrollLeft = stage.scrollWidth; }")
    viewer.data()
    box = viewer.stage.bounding_box()
    assert box
    viewer.stage.click(position={"x": box["width"] - 60, "y": box["height"] - 30})
    assert min(viewer.cell()[2:]) > 495


HOSTILE = (
    "[CLS]",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<s>",
    "cat",
    "cat",
    "cat",
    "مرحبا",
    "日本語",
    "👩‍👩‍👧‍👦",
    "2024-01-01",
    "*a* :smile: ~~s~~",
    "supercalifragilisticexpialidociousandmuchlonger",
    "[SEP]",
)


@pytest.mark.parametrize("options", [DESKTOP, PHONE])
def test_hostile_and_odd_words_are_only_words(open_file: Opener, options: dict[str, Any]) -> None:
    viewer = open_file(fake_trace(HOSTILE, 2, 3), **options)
    page = viewer.page
    viewer.data()
    shown = page.locator('.hs-word[data-side="query"]').evaluate_all(
        "nodes => nodes.sort((a, b) => a.dataset.index - b.dataset.index).map((node) => node.textContent)"
    )
    assert shown == list(HOSTILE[: len(shown)])
    assert len(shown) >= 12
    assert page.locator(".hs-word").evaluate_all(
        "nodes => nodes.every((n) => n.dir === 'auto' && n.title === n.textContent)"
    )
    tops = page.locator('.hs-word[data-side="key"]').evaluate_all("nodes => nodes.map((node) => node.offsetTop)")
    assert len(set(tops)) == len(shown), "repeated words keep their own rows"
    assert page.locator(".hs img, .hs script, .hs s").count() == 0
    viewer.stage.focus()
    for _ in HOSTILE:
        viewer.press("ArrowDown")
        viewer.data()
    page.get_by_role("button", name="Map").click()
    viewer.data()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".hs tbody tr").count() == len(HOSTILE)


def test_the_offline_file_works_alone(open_file: Opener) -> None:
    viewer = open_file(alice_scene())
    assert viewer.headline() == "they looks at cats: 54 %"
    for name in ("Change one word: they → she", "Why 54 %?", "Untrained twin"):
        assert viewer.page.get_by_role("button", name=name).count() == 0, "nobody is there to ask"
    viewer.word("query", 4).click()
    assert viewer.data()["locked"] == "true"
    viewer.press("PageDown", "Escape")
    assert viewer.cell()[0] == 2
    assert "?" not in viewer.page.url


def test_the_offline_file_cannot_reach_the_network(open_file: Opener) -> None:
    viewer = open_file(alice_scene())
    blocked = viewer.page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener('securitypolicyviolation', (event) => done(event.effectiveDirective));
          fetch('https://example.org/').catch(() => {});
        })"""
    )
    assert blocked == "connect-src"
    assert viewer.faults
    assert all("Content Security Policy" in fault for fault in viewer.faults)
    viewer.faults.clear()


# Motion, theme, accessibility


def test_arcs_ease_unless_less_motion_is_wanted(open_viewer: Opener) -> None:
    paints = {}
    for motion in ("no-preference", "reduce"):
        viewer = open_viewer(alice_scene(), reduced_motion=motion)
        viewer.stage.focus()
        before = int(viewer.data()["painted"])
        viewer.press("ArrowUp")
        paints[motion] = int(viewer.data()["painted"]) - before
    assert paints["reduce"] == 1
    assert paints["no-preference"] > 1


def luminance(colour: str) -> float:
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_file_follows_the_system_theme(open_file: Opener, scheme: str, dark: bool) -> None:
    viewer = open_file(alice_scene(), color_scheme=scheme)
    assert viewer.data()["theme"] == scheme
    ground, ink = viewer.root.evaluate("root => [getComputedStyle(root).backgroundColor, getComputedStyle(root).color]")
    assert (luminance(ground) < 60) is dark
    assert (luminance(ink) > 180) is dark
    expect(viewer.page.locator(".hs-e p")).to_contain_text("Bright left edge" if dark else "Dark left edge")


def test_streamlits_theme_wins_over_the_systems(open_viewer: Opener) -> None:
    viewer = open_viewer(alice_scene(), color_scheme="light")
    viewer.page.evaluate(
        """() => { const style = document.getElementById('mount').style;
          style.setProperty('--st-background-color', '#0e1117'); style.setProperty('--st-text-color', '#fafafa'); }"""
    )
    viewer.show(alice_scene())
    assert viewer.data()["theme"] == "dark"
    assert viewer.root.evaluate("root => getComputedStyle(root).backgroundColor") == "rgb(14, 17, 23)"


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_axe_finds_nothing(open_viewer: Opener, phone: bool) -> None:
    viewer = open_viewer(alice_scene(hints=True, notices=("A notice.",)), phone=phone)
    page = viewer.page

    def found_in_both_schemes() -> dict[str, list[str]]:
        found = {}
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            expect(viewer.root).to_have_attribute("data-theme", scheme)
            viewer.data()
            found[scheme] = violations(page)
        return found

    viewer.word("query", 6).click()
    assert found_in_both_schemes() == {"dark": [], "light": []}
    page.get_by_role("button", name="Map").click()
    page.get_by_role("button", name="Hide it").click()
    page.get_by_role("button", name="Table").click()
    if page.get_by_text("What the word becomes").is_visible():
        page.get_by_text("What the word becomes").click()
    page.get_by_role("button", name="5 checks passed").click()
    assert found_in_both_schemes() == {"dark": [], "light": []}


def test_axe_finds_nothing_in_the_offline_file_and_in_grouped_heads(open_file: Opener) -> None:
    twins = (ViewedTrace(gqa_trace()), ViewedTrace(gqa_trace(), "twin"))
    assert violations(open_file(ViewerScene(twins)).page) == []
