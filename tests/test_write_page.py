"""The page "Watch it write" run by Streamlit itself: it shows the run's own numbers, recorded or computed here."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from attention.generation import generate
from attention.models import LoadedModel
from attention.plots.colours import KEY
from attention.plots.write_charts import Share, growth_chart, plain_text_html, shares_html, time_chart
from attention.written import shipped_recording
from pages.cost.write_live import waiting, write, writing
from pages.shared.link_values import MOST_LINK_BYTES

ENTRY = str(Path(__file__).parent.parent / "pages" / "entry.py")
PROMPT = "Alice fed the cats because they were hungry. The cats"


def opened(**address: str) -> AppTest:
    """The page after its first run at an address."""
    app = AppTest.from_file(ENTRY, default_timeout=240)
    for name, value in address.items():
        app.query_params[name] = value
    app.switch_page("cost/write.py")
    return app.run()


def ran_live(app: AppTest, tokens: int = 8) -> AppTest:
    app.selectbox(key="w_tokens").select(tokens)
    return app.button(key="w_run").click().run()


def htmls(app: AppTest) -> list[str]:
    """Every piece of HTML on the page."""
    return [part.proto.body for part in app.get("html")]


def headline(app: AppTest) -> str:
    (found,) = [part for part in htmls(app) if "<h2" in part]
    return found


def charts(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def numbers(packed: Any) -> list[float]:
    """A trace's coordinates, whether sent as bytes or as a list."""
    if isinstance(packed, dict):
        return np.frombuffer(base64.b64decode(packed["bdata"]), np.dtype(packed["dtype"])).tolist()
    return list(packed)


def line(figure: dict[str, Any], name: str) -> tuple[list[float], list[float]]:
    (found,) = [part for part in figure["data"] if part["name"] == name]
    return numbers(found["x"]), numbers(found["y"])


def assert_no_fault(app: AppTest) -> None:
    assert len(app.exception) == 0
    assert not [error.value for error in app.error]


class TestRecording:
    def test_the_page_opens_on_it_with_its_own_numbers(self) -> None:
        app = opened()
        recorded = shipped_recording()
        assert_no_fault(app)
        assert "49 tokens cached:" in headline(app)
        assert "2,205 KiB measured</b> = 49 × 45 KiB by formula. At 16 bit: 1,102.5 KiB." in headline(app)
        (said,) = [part for part in htmls(app) if ">Recorded on" in part]
        assert "SmolLM2" in said
        assert "Run live computes it here" in said
        growth, times = charts(app)
        tokens, kib = line(growth, "measured")
        assert tokens == [step.n_cached for step in recorded.steps]
        assert kib == [step.cache_bytes / 1024 for step in recorded.steps]
        assert line(growth, "by formula")[1] == [step.formula_bytes / 1024 for step in recorded.steps]
        assert line(growth, "at 16 bit, by formula")[1] == [value / 2 for value in kib]
        lengths, seconds = line(times, "without: all read again")
        assert list(zip(lengths, seconds, strict=True)) == [(n, one * 1000) for n, one in recorded.recomputed]
        assert line(times, "with the cache")[1] == [step.seconds_with_cache * 1000 for step in recorded.steps[1:]]

    def test_it_says_where_the_last_token_looks_and_what_comes_next(self) -> None:
        app = opened(w_step="2", w_layer="3", w_head="5")
        recorded = shipped_recording()
        step = recorded.steps[1]
        row = step.row(3, 5)
        assert row.sum() == pytest.approx(1, abs=0.05)
        best = recorded.labels[int(row.argmax())]
        (said,) = [part for part in htmls(app) if 'class="hs-w-said"' in part]
        words = said.replace("&lt;", "<").replace("&gt;", ">")
        assert f"<bdi>{recorded.labels[step.n_cached - 1]}</bdi></b> looks at" in words
        assert f"<bdi>{best}</bdi></b>: {row.max() * 100:.0f} %." in words
        assert f"writes <b><bdi>{step.label}</bdi>" in words
        looks, nexts = [part for part in htmls(app) if '<ul class="hs-w-shares' in part]
        assert looks.count("<li") == 5
        assert [one.text in nexts for one in step.alternatives] == [True] * 5
        assert nexts.count('class="hs-w-chosen"') == 1
        (text,) = [part for part in htmls(app) if '<p class="hs-w-text"' in part]
        assert text.count("hs-w-token") == step.n_cached
        assert text.count("hs-w-looks") == 1

    def test_it_says_when_a_head_looks_at_what_followed_the_same_token_before(self) -> None:
        def said(**address: str) -> str:
            (found,) = [part for part in htmls(opened(**address)) if 'class="hs-w-said"' in part]
            return found

        ids, labels = shipped_recording().ids, shipped_recording().labels
        assert (labels[27], labels[28], ids[27], ids[48]) == ("fox", "decided", ids[48], ids[27])
        assert "decided</bdi></b>: 85 %, which followed “<bdi>fox</bdi>” before." in said()
        assert "which followed" not in said(w_head="0")

    def test_stepping(self) -> None:
        app = opened(w_step="2")
        assert "12 tokens cached:" in headline(app)
        assert "540 KiB measured</b> = 12 × 45 KiB by formula. At 16 bit: 270 KiB." in headline(app)
        app.button(key="w_less").click().run()
        app.button(key="w_less").click().run()
        assert app.slider(key="w_step").value == 1
        assert "11 tokens cached:" in headline(app)
        app.button(key="w_more").click().run()
        assert app.slider(key="w_step").value == 2
        app.slider(key="w_step").set_value(40).run()
        app.button(key="w_more").click().run()
        assert "50 tokens cached:" in headline(app)
        assert_no_fault(app)

    @pytest.mark.parametrize("address", [{"w_step": "999"}, {"w_step": "x"}, {"w_layer": "77"}, {"w_top_k": "-3"}])
    def test_a_link_that_fits_nothing_still_opens(self, address: dict[str, str]) -> None:
        app = opened(**address)
        assert_no_fault(app)
        assert "tokens cached:" in headline(app)

    def test_the_working_multiplies_out(self) -> None:
        (work,) = [part.value for part in opened().text if "K/V heads" in part.value]
        assert "30 layers × 3 K/V heads × 128 numbers per head" in work
        assert "= 46,080 bytes" in work
        assert 30 * 3 * 128 * 4 == 45 * 1024


class TestLive:
    def test_it_writes_what_generate_writes(self, smollm: LoadedModel) -> None:
        app = ran_live(opened(w_prompt=PROMPT))
        assert_no_fault(app)
        expected = list(generate(smollm, PROMPT, start=smollm.default_start, max_new_tokens=8))
        run = app.session_state["written_run"]
        assert [step.id for step in run.steps] == [step.id for step in expected]
        assert "19 tokens cached:" in headline(app)
        assert "855 KiB measured</b> = 19 × 45 KiB by formula" in headline(app)
        assert any(">Computed just now with SmolLM2" in part for part in htmls(app))
        assert line(charts(app)[0], "measured")[1] == [step.n_cached * 45 for step in expected]
        assert [part["name"] for part in charts(app)[1]["data"]] == ["with the cache", "this step"]
        app.button(key="w_time").click().run()
        assert line(charts(app)[1], "without: all read again")[0][-1] == 19
        app.button(key="w_back").click().run()
        assert "49 tokens cached:" in headline(app)
        assert_no_fault(app)

    def test_drawing_says_how_and_shows_both_chances(self, smollm: LoadedModel) -> None:
        app = opened(w_method="Draw by chance", w_temperature="0.5", w_top_k="3", w_seed="4", w_prompt=PROMPT)
        ran_live(app)
        assert_no_fault(app)
        how = {"start": smollm.default_start, "max_new_tokens": 8, "temperature": 0.5, "top_k": 3, "seed": 4}
        expected = [step.id for step in generate(smollm, PROMPT, **how)]
        assert [step.id for step in app.session_state["written_run"].steps] == expected
        assert any("drawn at temperature 0.5 among the 3 likeliest, seed 4" in part for part in htmls(app))
        assert any(" → " in part for part in htmls(app) if '<ul class="hs-w-shares' in part)

    @pytest.mark.parametrize(
        ("prompt", "words"),
        [("", "The text is empty"), ("   ", "only spaces"), ("word " * 700, "Shorten the prompt")],
    )
    def test_a_prompt_nobody_can_go_on_from_is_one_sentence(self, prompt: str, words: str) -> None:
        app = opened()
        app.text_input(key="w_prompt").set_value(prompt).run()
        ran_live(app)
        assert len(app.exception) == 0
        (error,) = [error.value.replace("\\", "") for error in app.error]
        assert words in error
        assert app.text_input(key="w_prompt").value == prompt
        assert "49 tokens cached:" in headline(app)

    def test_text_is_never_markup(self) -> None:
        prompt = "<script>alert(1)</script> <b>bold</b> **x** :smile: $a$"
        app = ran_live(opened(w_prompt=prompt))
        assert_no_fault(app)
        shown = "".join(htmls(app))
        assert "<script>" not in shown
        assert "<b>bold" not in shown
        assert "&lt;" in shown

    def test_a_prompt_too_long_for_a_link_stays_out_of_it(self) -> None:
        app = opened()
        app.text_input(key="w_prompt").set_value("word " * MOST_LINK_BYTES).run()
        app.run()
        assert_no_fault(app)
        assert "w_prompt" not in app.query_params


class TestPictures:
    def test_measured_dots_are_what_was_measured_not_the_formula(self) -> None:
        recorded = shipped_recording()
        steps = tuple(replace(step, cache_bytes=step.cache_bytes - 1024) for step in recorded.steps)
        picture = growth_chart(replace(recorded, steps=steps), 3, "light")
        spec = json.loads(picture.figure.to_json())
        measured, formula = line(spec, "measured")[1], line(spec, "by formula")[1]
        assert [one - 1 for one in formula] == measured
        assert line(spec, "this step") == ([14], [measured[3]])
        assert picture.alt.startswith("Cached KiB against tokens cached: from 494.0 KiB at 11 tokens")

    def test_times_start_with_the_second_token(self) -> None:
        recorded = shipped_recording()
        alone = replace(recorded, steps=recorded.steps[:1], recomputed=())
        assert line(json.loads(time_chart(alone, 0, "dark").figure.to_json()), "with the cache") == ([], [])
        two = replace(recorded, steps=recorded.steps[:2], recomputed=())
        spec = json.loads(time_chart(two, 1, "dark").figure.to_json())
        assert line(spec, "with the cache")[0] == line(spec, "this step")[0] == [12]

    def test_hidden_and_hostile_characters_are_shown_as_text(self) -> None:
        shown = shares_html("<b>", [Share("<i>&", 0.5, " <u>")], KEY, "light")
        assert "&lt;b&gt;" in shown
        assert "&lt;i&gt;&amp;" in shown
        assert "<u>" not in shown
        assert plain_text_html(["a\n", "<x>"]).endswith('a⏎</span><ins class="hs-w-new">&lt;x&gt;</ins></p>')


class TestWords:
    def test_the_line_is_told_as_it_is(self) -> None:
        assert waiting(0, 4) == "All 4 places are taken. You are next; yours starts by itself."
        assert "One other is before you" in waiting(1, 4)
        assert "3 others are before you" in waiting(3, 4)
        assert writing(2, 8, 0) == "Writing token 2 of at most 8."
        assert "One other is writing too: you take turns" in writing(2, 8, 1)
        assert "2 others are writing too" in writing(2, 8, 2)

    def test_who_finds_every_place_taken_waits_in_line_and_leaving_frees_it(self, monkeypatch: Any) -> None:
        from attention import generation
        from attention.turns import Turns

        places = Turns(1)
        monkeypatch.setattr(generation, "writers", places)
        how: dict[str, Any] = {"max_new_tokens": 8, "temperature": 0.0, "top_k": None, "seed": 0}
        first, second = (write("SmolLM2-135M-Instruct", PROMPT, **how) for _ in range(2))
        run, words = next(first)
        assert (len(run.steps), words) == (1, "Writing token 1 of at most 8.")
        run, words = next(second)
        assert (run.steps, words) == ((), waiting(0, 1))
        first.close()
        run, words = next(second)
        assert len(run.steps) == 1
        second.close()
        assert places.busy == 0
