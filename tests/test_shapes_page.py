"""The Shapes page run by Streamlit itself: what is drawn is the engine's own run, and no setting breaks it."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from attention import load_model
from attention.layout import HeadLayout, divisors
from attention.mistakes import MISTAKES, run_mistake
from attention.multihead import multi_head_attention, random_inputs
from attention.plots.shape_track import read_track_bytes
from attention.real_layer import real_layer
from pages.compute.shapes import BREAK_IT, D_MODELS, SHORT, TABS

ENTRY = str(Path(__file__).parent.parent / "pages" / "entry.py")
ALICE = "Alice fed the cats because they were hungry."


def opened(**address: str) -> AppTest:
    app = AppTest.from_file(ENTRY, default_timeout=120)
    for name, value in address.items():
        app.query_params[name] = value
    app.switch_page("compute/shapes.py")
    return app.run()


def sent(app: AppTest) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    (track,) = [part.proto for part in app.get("bidi_component") if part.proto.component_name == "headscope_shapes"]
    return read_track_bytes(track.bytes)


def boxes(app: AppTest) -> dict[str, Any]:
    return {box.key: box.value for box in app.selectbox if box.key and box.key.startswith("s_")}


def told(app: AppTest) -> str:
    return " ".join(element.value.replace("\\", "") for element in (*app.info, *app.error))


def assert_sound(app: AppTest) -> None:
    assert len(app.exception) == 0
    assert "Traceback" not in told(app)


def assert_shows(app: AppTest, layout: HeadLayout, seq_len: int, causal: bool = False, seed: int = 0) -> None:
    """Every tensor sent is the engine's for these very settings."""
    header, arrays = sent(app)
    x, weights = random_inputs(layout, seq_len, seed)
    trace = multi_head_attention(x, weights, layout, causal)
    assert list(arrays) == [step.key for step in trace.steps]
    for step in trace.steps:
        np.testing.assert_array_equal(arrays[step.key], step.array.astype(np.float32))
    assert header["causal"] is causal


class TestSettings:
    def test_the_lessons_own_case_opens(self) -> None:
        app = opened()
        assert_sound(app)
        assert_shows(app, HeadLayout(8, 2, 2), 4)
        assert (app.info, app.error) == ([], [])

    def test_every_control_reaches_the_engine(self) -> None:
        app = opened()
        app.slider(key="s_seq").set_value(7)
        app.selectbox(key="s_width").set_value(24).run()
        app.selectbox(key="s_heads").set_value(6).run()
        app.selectbox(key="s_kv").set_value(2)
        app.selectbox(key="s_seed").set_value(5)
        app.toggle(key="s_causal").set_value(True).run()
        assert_sound(app)
        assert_shows(app, HeadLayout(24, 6, 2), 7, causal=True, seed=5)

    def test_a_link_gives_the_same_page(self) -> None:
        app = opened(s_seq="5", s_width="16", s_heads="8", s_kv="4", s_causal="true", s_seed="3")
        assert_shows(app, HeadLayout(16, 8, 4), 5, causal=True, seed=3)
        assert told(app) == ""

    @pytest.mark.parametrize("d_model", D_MODELS)
    def test_only_divisors_are_offered(self, d_model: int) -> None:
        app = opened(s_width=str(d_model))
        heads = [int(option) for option in app.selectbox(key="s_heads").options]
        assert heads == [number for number in divisors(d_model) if number <= 16]
        app.selectbox(key="s_heads").set_value(heads[-1]).run()
        assert [int(option) for option in app.selectbox(key="s_kv").options] == list(divisors(heads[-1]))
        assert_sound(app)

    def test_a_size_that_no_longer_fits_is_replaced_in_a_sentence(self) -> None:
        app = opened(s_heads="8")
        app.selectbox(key="s_width").set_value(10).run()
        assert "n_heads is now 2, because 8 no longer fits. It may be 1, 2, 5, 10." in told(app)
        assert boxes(app)["s_heads"] == 2
        assert_shows(app, HeadLayout(10, 2, 2), 4)
        app.toggle(key="s_causal").set_value(True).run()
        assert told(app) == ""  # said once

    def test_mha_stays_mha_and_gqa_stays_as_chosen(self) -> None:
        app = opened()
        app.selectbox(key="s_heads").set_value(8).run()
        assert_shows(app, HeadLayout(8, 8, 8), 4)
        app.selectbox(key="s_kv").set_value(2).run()
        app.selectbox(key="s_heads").set_value(4).run()
        assert_shows(app, HeadLayout(8, 4, 2), 4)
        assert told(app) == ""

    @pytest.mark.parametrize(
        ("name", "value", "sentence"),
        [
            ("s_heads", "3", "This link asks for n_heads 3. It may be 1, 2, 4, 8. Showing 2."),
            ("s_kv", "4", "This link asks for n_kv_heads 4. It may be 1, 2. Showing 2."),
            ("s_width", "7", "This link asks for d_model 7."),
            ("s_seq", "99", "This link asks for seq_len 99. It may be 1 to 16. Showing 4."),
            ("s_seed", "<b>", "This link asks for seed <b>."),
            ("s_causal", "maybe", "This link asks for causal maybe."),
            ("s_source", "GPT-9", "This link asks for numbers GPT-9."),
            ("s_mistake", "all", "This link asks for mistake all."),
        ],
    )
    def test_a_link_that_asks_for_what_is_not_there(self, name: str, value: str, sentence: str) -> None:
        app = opened(**{name: value, "s_tab": BREAK_IT})
        assert_sound(app)
        assert sentence in told(app)
        assert_shows(app, HeadLayout(8, 2, 2), 4)


class TestRealLayers:
    def test_minilm(self) -> None:
        app = opened(s_source="MiniLM, real", s_layer_encoder="4")
        assert_sound(app)
        header, arrays = sent(app)
        taken = real_layer(load_model("all-MiniLM-L6-v2"), ALICE, 4)
        np.testing.assert_allclose(arrays["7.output"], taken.expected, rtol=0, atol=1e-5)
        assert header["source"] == "MiniLM, layer 4 of 0 to 5"
        assert header["tokens"][1] == "alice" or header["tokens"][1] == "Alice"
        (note,) = header["notes"]
        assert float(note.split(": ")[1].split()[0]) < 1e-5

    def test_smollm_walks_through_rope(self) -> None:
        app = opened(s_source="SmolLM2, real", s_layer_decoder="29")
        header, arrays = sent(app)
        assert "3½.K" in arrays
        assert header["causal"] is True
        assert header["sizes"]["n_kv_heads"] == 3
        assert float(header["notes"][0].split(": ")[1].split()[0]) < 1e-5

    @pytest.mark.parametrize("text", ["", "   ", "a " * 200])
    def test_a_text_that_cannot_be_drawn_is_told_and_kept(self, text: str) -> None:
        app = opened(s_source="MiniLM, real")
        app.text_input(key="text").set_value(text).run()
        assert_sound(app)
        assert len(app.error) == 1
        assert app.text_input(key="text").value == text


class TestBreakIt:
    def test_every_mistake_of_the_engine_can_be_picked(self) -> None:
        assert set(SHORT) == {mistake.key for mistake in MISTAKES}

    @pytest.mark.parametrize("key", list(SHORT))
    @pytest.mark.parametrize("sizes", [(8, 4, 2, 5), (8, 2, 2, 2), (8, 2, 2, 4), (6, 1, 1, 1)])
    def test_what_is_said_is_the_engines_report(self, key: str, sizes: tuple[int, int, int, int]) -> None:
        d_model, n_heads, n_kv_heads, seq_len = sizes
        app = opened(s_width=str(d_model), s_heads=str(n_heads), s_kv=str(n_kv_heads), s_seq=str(seq_len),
                     s_causal="true", s_mistake=SHORT[key], s_tab=BREAK_IT)  # fmt: skip
        assert_sound(app)
        layout = HeadLayout(d_model, n_heads, n_kv_heads)
        x, weights = random_inputs(layout, seq_len)
        report = run_mistake(key, x, weights, layout, causal=True)
        page = " ".join(element.proto.body for element in app.get("html"))
        assert html.escape(report.sentence) in page
        assert ("class='hs-verdict hs-broken'" in page) is report.visible
        assert [report.wrong_line, report.right_line] == [block.value for block in app.code]
        if report.error:
            assert html.escape(report.error) in page
        assert any(report.mistake.caught_by[:20] in block.value.replace("\\", "") for block in app.markdown)

    def test_the_maps_are_the_engines_arrays(self) -> None:
        app = opened(s_seq="4", s_mistake=SHORT["skip_permute"], s_tab=BREAK_IT)
        x, weights = random_inputs(HeadLayout(8, 2, 2), 4)
        report = run_mistake("skip_permute", x, weights, HeadLayout(8, 2, 2))
        assert report.at_step is not None
        figure = json.loads(app.get("plotly_chart")[0].proto.spec)
        head = boxes(app)["s_worst_K"]
        for trace, array in zip(
            figure["data"], (report.at_step.correct, report.at_step.wrong, report.at_step.difference), strict=True
        ):
            np.testing.assert_allclose(numbers(trace["z"]), array[head], rtol=1e-5, atol=1e-6)
        assert figure["data"][0]["zmin"] == figure["data"][1]["zmin"]
        assert figure["data"][2]["zmin"] == -figure["data"][2]["zmax"]
        marked = [name.startswith("✗") for name in figure["layout"]["yaxis2"]["ticktext"]]
        wrong = (np.abs(report.at_step.difference[head]) > 1e-9).any(axis=-1).tolist()
        assert marked == wrong
        assert any(wrong)
        assert not all(wrong)


class TestBelow:
    def test_rank_and_width(self) -> None:
        app = opened(s_tab=TABS[0], s_seq="9")
        assert_sound(app)
        words = " ".join(block.value.replace("\\", "") for block in (*app.markdown, *app.warning))
        assert "d_head 4 is small" in words
        assert "Measured on these scores: rank 4. It cannot exceed 4 (d_head)" in words

    def test_cost_against_mha(self) -> None:
        app = opened(s_tab=TABS[1], s_width="16", s_heads="4", s_kv="2")
        assert_sound(app)
        words = " ".join(block.value for block in app.markdown)
        # 16·16 for W_q and W_o, 16·8 for W_k and W_v; MHA has four of 16·16
        assert "Parameters: 768 instead of 1,024, 25 % fewer" in words
        page = " ".join(element.proto.body for element in app.get("html"))
        assert "d_model · n_kv_heads · d_head = 16 · 2 · 4 = 128" in page


def numbers(packed: dict[str, Any]) -> np.ndarray:
    shape = [int(part) for part in packed["shape"].split(",")]
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).reshape(shape)
