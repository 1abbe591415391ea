"""The Shapes page in Chromium: the track's own arithmetic against the engine's, then the page as a visitor uses it."""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from attention.layout import HeadLayout
from attention.listings import code_listing
from attention.multihead import StepTrace, multi_head_attention, random_inputs, rope_tables
from attention.plots.shape_track import track_bytes, track_css, track_js
from benchmarks.chromium import wait_until_drawn
from tests.browser.looks import violations

LONGEST = 60_000  # milliseconds; the machine may be busy with other tests

HOST_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Host</title>
<style>%(css)s</style></head><body><div id="mount" style="width:1384px"></div>
<script type="module">%(js)s
window.unpack = (packed) => Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
window.track = { decode, litBy, storyOf, whyWrong, madeFrom };
window.show = (packed) => shapeTrack({ data: unpack(packed), parentElement: document.getElementById("mount") });
window.ready = true;
</script></body></html>"""

ASK = """([packed, asked]) => {
  const scene = track.decode(unpack(packed));
  return asked.map(([key, index]) => ({
    story: track.storyOf(scene, key, index),
    lit: [...track.litBy(scene, key, index)].map(([name, mask]) => [name, Array.from(mask)]),
  }));
}"""


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Expectations wait as long as a busy machine needs."""
    expect.set_options(timeout=LONGEST)
    yield
    expect.set_options(timeout=5_000)


@pytest.fixture
def host(page: Page) -> Page:
    page.set_content(HOST_PAGE % {"css": track_css(), "js": track_js()})
    page.wait_for_function("window.ready === true")
    return page


def traced(layout: HeadLayout, seq_len: int, causal: bool, rope: bool) -> StepTrace:
    x, weights = random_inputs(layout, seq_len, biases=rope)
    tables = rope_tables(seq_len, layout.d_head) if rope else None
    return multi_head_attention(x, weights, layout, causal, rope=tables)


def packed(trace: StepTrace, **more: Any) -> str:
    return base64.b64encode(track_bytes(trace, source="random", **more)).decode()


class TestProvenance:
    """The browser follows the engine's rules by itself: its answers are compared with the engine's own."""

    @pytest.mark.parametrize(
        ("layout", "seq_len", "causal", "rope"),
        [
            (HeadLayout(8, 2, 2), 4, False, False),
            (HeadLayout(24, 6, 2), 5, True, True),
            (HeadLayout(12, 6, 3), 3, True, False),
            (HeadLayout(12, 3, 1), 4, False, True),
            (HeadLayout(6, 1, 1), 1, True, False),
        ],
        ids=["MHA", "GQA causal RoPE", "GQA causal", "MQA RoPE", "one of each"],
    )
    def test_what_lights_up_and_what_is_told(
        self, host: Page, layout: HeadLayout, seq_len: int, causal: bool, rope: bool
    ) -> None:
        trace = traced(layout, seq_len, causal, rope)
        rng = np.random.default_rng(1)
        asked = [
            (step.key, [int(rng.integers(length)) for length in step.shape]) for step in trace.steps for _ in range(6)
        ]
        answers = host.evaluate(ASK, [packed(trace), asked])
        for (key, index), answer in zip(asked, answers, strict=True):
            assert answer["story"] == trace.story(key, tuple(index)), (key, index)
            expected = trace.lit(key, tuple(index))
            for name, mask in answer["lit"]:
                assert mask == expected[name].astype(int).ravel().tolist(), (key, index, name)
            assert {name for name, _ in answer["lit"]} == {step.key for step in trace.steps}

    def test_another_element_at_a_real_models_size_costs_no_wait(self, host: Page) -> None:
        trace = traced(HeadLayout(576, 9, 3), 32, True, True)
        milliseconds = host.evaluate(
            """([packed, key, index]) => {
              const scene = track.decode(unpack(packed));
              const began = performance.now();
              track.litBy(scene, key, index);
              return performance.now() - began;
            }""",
            [packed(trace), "3.K", [1, 2, 3]],
        )
        assert milliseconds < 2_000  # a machine shared with other tests; alone about 100

    @pytest.mark.parametrize(
        ("typed", "part"),
        [
            ("(2, 4, 4)", None),
            ("2 4 4", None),
            ("[2,4,4]", None),
            ("2×4×4", None),
            ("", "Type whole numbers"),
            ("two, 4, 4", "Type whole numbers"),
            ("-2, 4, 4", "Type whole numbers"),
            ("4, 8", "You typed 2 axes. This line leaves 3 axes: head, seq, d_head."),
            ("4, 2, 4", "another order. The order of the axes is head, seq, d_head."),
            ("2, 4, 8", "2 · 4 · 8 is 64 numbers, and there are 32."),
            ("8, 2, 2", "Axis 0 is head, and that is not 8. Count the query heads."),
            ("999999999999", "Type whole numbers"),
        ],
    )
    def test_a_wrong_shape_is_told_why(self, host: Page, typed: str, part: str | None) -> None:
        told = host.evaluate(
            """([packed, typed]) => {
              const scene = track.decode(unpack(packed));
              const target = scene.byKey.get("3.K");
              return track.whyWrong(target, track.madeFrom(scene, target), typed);
            }""",
            [packed(traced(HeadLayout(8, 2, 2), 4, False, False)), typed],
        )
        assert told == part if part is None else part in told


def go(page: Page, url: str, **settings: str) -> None:
    """Open the page at an address; ``s__step`` stands for ``s.step``."""
    named = {name.replace("s__", "s."): value for name, value in settings.items()}
    page.goto(f"{url}/shapes?{urlencode(named)}" if named else f"{url}/shapes")
    expect(track(page)).to_be_visible()
    wait_until_drawn(page, 90)


def track(page: Page) -> Locator:
    return page.locator(".hst")


def state(page: Page, name: str) -> str | None:
    return track(page).get_attribute(f"data-{name}")


def sentence(page: Page) -> Locator:
    return page.locator(".hst-sentence")


def big(page: Page) -> str:
    """The shapes in large type, without the axes' names beneath."""
    return page.locator(".hst-shapes").evaluate(
        """(node) => { const copy = node.cloneNode(true);
        copy.querySelectorAll('.hst-under').forEach((name) => name.remove()); return copy.textContent; }"""
    )


def press(page: Page, name: str) -> None:
    page.locator(".hst").get_by_role("button", name=name, exact=True).click()


def address(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def choose(page: Page, label: str, option: str) -> None:
    """Pick from one of Streamlit's boxes."""
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()
    wait_until_drawn(page)


def click_cell(page: Page, number: str, column: float, row: float) -> None:
    """Press the middle of the front layer's cell, found by the picture's own layout."""
    card = page.locator(f".hst-card[data-number='{number}'] canvas")
    box = card.evaluate(
        """(canvas) => {
          for (let node = canvas; node; node = node.parentNode ?? node.host) {
            const view = node.__headscope_shapes;
            if (!view) continue;
            const { block } = view.cards.find((card) => card.canvas === canvas);
            return { left: block.left, top: block.top, x: block.cellX, y: block.cellY };
          }
          return null;
        }"""
    )
    card.click(position={"x": box["left"] + (column + 0.5) * box["x"], "y": box["top"] + (row + 0.5) * box["y"]})


class TestSteps:
    def test_the_first_screen_answers_without_scrolling(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        expect(sentence(page)).to_have_text(
            "Step 3, permute. The head axis moves to the front. Same 32 numbers, new addresses."
        )
        assert big(page) == "(4, 8) → (4, 2, 4) → (2, 4, 4)"
        for part in (".hst-track", ".hst-code", ".hst-follow"):
            box = page.locator(part).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 900
        assert page.locator(".hst-shapes").evaluate("node => parseFloat(getComputedStyle(node).fontSize)") >= 44

    def test_stepping_through_all_seven(self, page: Page, app_url: str) -> None:
        go(page, app_url, s__step="1.K")
        walked = []
        for _ in range(10):
            walked.append((state(page, "step"), big(page)))
            if state(page, "step") == "7.output":
                break
            page.locator(".hst-main:visible").click()
        assert walked == [
            ("1.K", "x (4, 8) · W_k (8, 8) → (4, 8)"),
            ("2.K", "(4, 8) → (4, 2, 4)"),
            ("3.K", "(4, 8) → (4, 2, 4) → (2, 4, 4)"),
            ("4.scores", "Q (2, 4, 4) · K (2, 4, 4) → (2, 4, 4)"),
            ("4.weights", "(2, 4, 4) → (2, 4, 4)"),
            ("5.heads_out", "weights (2, 4, 4) · V (2, 4, 4) → (2, 4, 4)"),
            ("6.heads_out", "(2, 4, 4) → (4, 2, 4)"),
            ("6.concat", "(2, 4, 4) → (4, 2, 4) → (4, 8)"),
            ("7.output", "concat (4, 8) · W_o (8, 8) → (4, 8)"),
        ]
        assert address(page)["s.step"] == "7.output"
        expect(page.locator(".hst-row[data-on]")).to_have_text("output = concat @ W_o  # (4, 8)")

    def test_changing_the_heads_redraws_in_one_rerun_and_keeps_the_step(self, page: Page, app_url: str) -> None:
        go(page, app_url, s__step="2.K")
        choose(page, "n_heads", "4")
        expect(page.locator(".hst-card[data-on] .hst-shape")).to_have_text("(4, 4, 2)")  # MHA stays MHA
        choose(page, "n_kv_heads", "2")
        expect(page.locator(".hst-card[data-on] .hst-shape")).to_have_text("(4, 2, 2)")
        assert state(page, "step") == "2.K"
        asked = address(page)
        assert (asked["s_heads"], asked["s_kv"], asked["s.step"]) == ("4", "2", "2.K")
        page.reload()
        wait_until_drawn(page, 90)
        expect(page.locator(".hst-card[data-on] .hst-shape")).to_have_text("(4, 2, 2)")
        assert state(page, "step") == "2.K"

    def test_play_walks_by_itself_and_stops_at_the_end(self, page: Page, app_url: str) -> None:
        go(page, app_url, s__step="6.heads_out")
        press(page, "Play")
        expect(track(page)).to_have_attribute("data-step", "6.concat")
        expect(track(page)).to_have_attribute("data-step", "7.output")
        expect(page.locator(".hst-buttons button", has_text="Play")).to_have_attribute("aria-pressed", "false")

    def test_hovering_an_axis_lights_it_in_every_block(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        page.locator(".hst-sentence .hst-axis").hover()
        expect(track(page)).to_have_attribute("data-axis", "head")
        lit = page.locator(".hst-edge[data-lit]").all_inner_texts()
        assert sorted(lit) == sorted(
            ["kv_heads·d_head", "head = 2", "head = 2", "head = 2", "head = 2", "heads·d_head"]
        )
        page.locator(".hst-story").hover()
        expect(page.locator(".hst-edge[data-lit]")).to_have_count(0)


class TestOneElement:
    def test_a_pressed_cell_is_told_and_lit_without_a_rerun(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        # A rerun would show in the app's own state; none may begin.
        page.evaluate("""() => { window.reruns = 0; new MutationObserver(() => { window.reruns += 1; }).observe(
            document.querySelector('[data-testid="stApp"]'), { attributeFilter: ['data-test-script-state'] }); }""")
        click_cell(page, "1", 3, 0)
        expect(track(page)).to_have_attribute("data-pick", "1.K:0,3")
        x, weights = random_inputs(HeadLayout(8, 2, 2), 4)
        trace = multi_head_attention(x, weights, HeadLayout(8, 2, 2))
        expect(page.locator(".hst-story")).to_have_text(trace.story("1.K", (0, 3)))
        value = f"{trace.step('1.K').array[0, 3]:.3f}".replace("-", "−")
        expect(page.locator(".hst-element")).to_have_text(f"K[token 0, column 3] = {value}")
        told = page.locator(".hst-card[data-number='3'] canvas").get_attribute("aria-label") or ""
        assert told.endswith("1 elements lit.")
        assert address(page)["s.pick"] == "1.K:0,3"
        assert page.evaluate("window.reruns") == 0

    def test_pressing_a_block_of_another_letter_is_followed(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        press(page, "V")
        expect(track(page)).to_have_attribute("data-step", "3.V")
        expect(page.locator(".hst-element b")).to_have_text("V[head 1, token 2, dim 3]")
        expect(page.locator(".hst-card[data-on] .hst-line")).to_have_text("V = V.transpose(1, 0, 2)")

    def test_keyboard_alone(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        page.locator(".hst-track").focus()
        page.keyboard.press("ArrowRight")
        expect(track(page)).to_have_attribute("data-step", "4.scores")
        page.keyboard.press("Home")
        expect(track(page)).to_have_attribute("data-step", "1.K")
        page.keyboard.press("ArrowLeft")
        expect(track(page)).to_have_attribute("data-step", "1.K")
        page.keyboard.press("End")
        expect(track(page)).to_have_attribute("data-step", "7.output")
        page.keyboard.press("ArrowUp")
        expect(track(page)).to_have_attribute("data-pick", "3.K:1,1,3")
        page.keyboard.press("Shift+ArrowLeft")
        expect(track(page)).to_have_attribute("data-pick", "3.K:1,1,2")
        page.keyboard.press("PageUp")
        expect(track(page)).to_have_attribute("data-pick", "3.K:0,1,2")
        page.keyboard.press("PageUp")
        expect(track(page)).to_have_attribute("data-pick", "3.K:0,1,2")

    def test_a_link_restores_step_letter_element_and_dialect(self, page: Page, app_url: str) -> None:
        go(page, app_url, s__step="2.Q", s__letter="Q", s__pick="2.Q:3,1,0", s__code="einops")
        assert (state(page, "step"), state(page, "letter"), state(page, "pick")) == ("2.Q", "Q", "2.Q:3,1,0")
        expect(page.locator(".hst-row[data-on]")).to_contain_text("rearrange(Q,")

    @pytest.mark.parametrize("pick", ["9.Z:1,1", "3.K:9,9,9", "3.K:1", "W_q:1,1", "nonsense"])
    def test_a_broken_link_shows_a_whole_page(self, page: Page, app_url: str, pick: str) -> None:
        go(page, app_url, s__step="8.X", s__letter="Z", s__pick=pick, s__code="cobol")
        assert state(page, "letter") == "K"
        expect(page.locator(".hst-card")).to_have_count(7)
        expect(page.locator(".hst-element b")).to_contain_text("K[head 1,")


class TestCode:
    @pytest.mark.parametrize("dialect", ["NumPy", "PyTorch"])
    def test_the_copied_program_runs(self, page: Page, app_url: str, dialect: str) -> None:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        go(page, app_url, s_heads="4", s_kv="2", s_causal="true")
        press(page, dialect)
        press(page, "Copy")
        expect(page.locator(".hst-copy")).to_have_text("Copied")
        program = page.evaluate("navigator.clipboard.readText()")
        made: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(program, dialect, "exec"), made)
        x, weights = random_inputs(HeadLayout(8, 4, 2), 4)
        expected = multi_head_attention(x, weights, HeadLayout(8, 4, 2), causal=True).output
        np.testing.assert_allclose(np.asarray(made["output"]), expected, atol=1e-10)

    def test_the_einops_program_is_the_engines(self, page: Page, app_url: str) -> None:
        go(page, app_url, s_heads="4", s_kv="2", s_causal="true")
        press(page, "einops")
        written = page.locator(".hst-row").evaluate_all("rows => rows.map((row) => row.textContent.trimEnd())")
        assert written == code_listing(HeadLayout(8, 4, 2), 4, "einops", causal=True).splitlines()


class TestPredict:
    def test_wrong_is_told_why_and_right_goes_on(self, page: Page, app_url: str) -> None:
        go(page, app_url, s__step="2.K")
        press(page, "Predict")
        assert big(page) == "(4, 2, 4) → ( ? )" or big(page) == "K (4, 2, 4) → ( ? )"
        hidden = page.locator(".hst-card .hst-shape").all_inner_texts()
        assert hidden == ["(4, 8)", "(4, 2, 4)", *["( ? )"] * 5]
        assert "(2, 4, 4)" not in track(page).inner_text()
        page.locator("#hst-guess").fill("4, 2, 4")
        page.keyboard.press("Enter")
        expect(page.locator(".hst-said")).to_have_text(
            "The right sizes in another order. The order of the axes is head, seq, d_head."
        )
        page.locator("#hst-guess").fill("2, 4, 4")
        page.keyboard.press("Enter")
        expect(sentence(page)).to_contain_text("Right. Step 3, permute.")
        assert state(page, "step") == "3.K"

    def test_show_me_and_escape(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        press(page, "Predict")
        page.keyboard.press("Escape")
        expect(page.locator(".hst-guess")).to_be_hidden()
        assert state(page, "step") == "3.K"
        press(page, "Predict")
        press(page, "Show me")
        assert state(page, "step") == "4.scores"


class TestBreakIt:
    def test_the_button_leads_to_a_silent_mistake(self, page: Page, app_url: str) -> None:
        go(page, app_url)
        press(page, "Break it")
        verdict = page.locator(".hs-verdict")
        expect(verdict).to_have_text("Runs without an error. 4 of 4 rows are wrong.")
        expect(verdict).to_be_in_viewport()
        assert "repeating-linear-gradient" in verdict.evaluate("node => getComputedStyle(node).backgroundImage")
        page.get_by_text("Softmax over the wrong axis", exact=True).click()
        wait_until_drawn(page)
        expect(page.get_by_text("weights = softmax(scores, axis=-2)")).to_be_visible()
        assert address(page)["s_mistake"] == "Softmax over the wrong axis"

    def test_a_loud_mistake_names_the_axis(self, page: Page, app_url: str) -> None:
        go(page, app_url, s_mistake="No transpose at all", s_causal="true", s_tab="Break it")
        expect(page.locator(".hs-verdict")).to_contain_text("NumPy refuses:")
        expect(page.locator(".hs-verdict")).to_contain_text("ValueError:")


class TestPhone:
    def test_one_block_a_screen_and_a_swipe_is_a_step(self, phone: Page, app_url: str) -> None:
        go(phone, app_url)
        screen = phone.locator(".hst-track").bounding_box()
        boxes = [card.bounding_box() for card in phone.locator(".hst-card").all()]
        assert screen is not None
        right = screen["x"] + screen["width"]
        visible = [box for box in boxes if box and box["x"] < right and box["x"] + box["width"] > screen["x"]]
        assert len(visible) == 1
        assert visible[0]["y"] + visible[0]["height"] <= 844
        phone.locator(".hst-track").evaluate("node => { node.scrollLeft += node.clientWidth; }")
        expect(track(phone)).to_have_attribute("data-step", "4.weights")
        expect(sentence(phone)).to_contain_text("Step 4, softmax.")
        overflow = phone.evaluate(
            "() => document.querySelector('[data-testid=\"stMain\"]').scrollWidth - window.innerWidth"
        )
        assert overflow <= 1

    def test_touch(self, phone: Page, app_url: str) -> None:
        go(phone, app_url)
        phone.locator(".hst-main:visible").tap()
        expect(track(phone)).to_have_attribute("data-step", "4.scores")
        phone.locator(".hst-card[data-on] canvas").tap()
        expect(phone.locator(".hst-element b")).to_contain_text("scores[head 1, query 1, key ")


class TestLooks:
    def test_nothing_keeps_anyone_out_of_masked_scores(self, visitor: Callable[..., Page], app_url: str) -> None:
        page = visitor(color_scheme="dark")
        go(page, app_url, s_causal="true", s_heads="4", s_kv="2", s__step="4.masked")
        assert state(page, "theme") == "dark"
        assert violations(page) == []

    def test_words_of_a_text_are_only_text(self, page: Page, app_url: str) -> None:
        text = "<img src=x onerror=alert(1)> **bold** :smile:"
        go(page, app_url, s_source="MiniLM, real", text=text)
        expect(page.locator(".hst-element")).to_contain_text("token 2 is")
        assert page.locator(".hst img").count() == 0
        expect(page.get_by_role("textbox", name="Sentence")).to_have_value(text)
