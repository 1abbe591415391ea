"""The ladder page run by Streamlit itself: what is sent to the browser is the engine's, and nothing typed is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from attention import trace
from attention.healed import healed_settings
from attention.ladder_view import viewed_rungs
from attention.model_facts import title_of
from attention.models import LoadedModel
from attention.plots.ladder_board import read_board_bytes
from attention.rungs import rung_name
from attention.sharing import LatentKV, ShareKV
from attention.texts import bundled_texts
from pages.cost import ladder_inputs, ladder_live
from pages.cost.ladder_cost import flops
from pages.cost.ladder_inputs import Asked, first_view, shipped

ENTRY = str(Path(__file__).parent.parent / "pages" / "entry.py")
MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
HOSTILE = "<b>Hi</b> :smile: $a$"


def opened(**address: str) -> AppTest:
    app = AppTest.from_file(ENTRY, default_timeout=240)
    for name, value in address.items():
        app.query_params[name] = value
    app.switch_page("cost/ladder.py")
    return app.run()


def sent(app: AppTest) -> tuple[dict[str, Any], np.ndarray]:
    (board,) = [part.proto for part in app.get("bidi_component") if part.proto.component_name == "headscope_ladder"]
    return read_board_bytes(board.bytes)


def rung(app: AppTest, family: str, way: str, key: str) -> dict[str, Any]:
    (found,) = [one for one in sent(app)[0]["rungs"] if (one["family"], one["way"], one["key"]) == (family, way, key)]
    return found


def told(app: AppTest) -> str:
    parts = [part.value for part in (*app.markdown, *app.info, *app.error)]
    return " ".join([*parts, *(part.proto.body for part in app.get("html"))]).replace("\\", "")


def assert_sound(app: AppTest) -> None:
    assert len(app.exception) == 0
    assert not [error.value for error in app.error]


class TestShipped:
    def test_it_opens_on_the_decoder_with_everything_measured(self) -> None:
        app = opened()
        assert_sound(app)
        header, maps = sent(app)
        view = first_view(SMOLLM)
        assert view is not None
        assert (header["model"], header["text"], header["layer"], header["head"]) == (
            SMOLLM,
            "The capital of Germany is",
            16,
            0,
        )
        np.testing.assert_allclose(maps[0], view.rungs[0].weights, atol=5.1e-5)
        assert header["measure"]["title"] == "“A story”"
        assert header["measure"]["pieces"] == "3 pieces of 512 tokens"
        words = told(app)
        assert "Averaging the heads of a finished model breaks it." in words
        assert "T5-XXL lost little: average over 7 tasks 47.2 → 46.6 (GQA paper, Table 1)." in words
        assert "from scratch, a 7B model lost more: MMLU 45.2 → 37.9 (" in words
        assert "lossless" not in words

    def test_the_other_text_and_the_other_model(self) -> None:
        app = opened()
        story = rung(app, "latent", "whitened", "128")["quality"]["value"]
        app.selectbox(key="l_on").set_value("python_docs").run()
        docs = next(point for point in shipped(SMOLLM) if point.what_if == LatentKV(128)).on("python_docs")
        assert rung(app, "latent", "whitened", "128")["quality"]["value"] == docs.value != story
        assert sent(app)[0]["measure"]["title"] == "“Python's documentation”"
        app.selectbox(key="l_model").set_value(MINILM).run()
        assert_sound(app)
        header, _ = sent(app)
        assert (header["model"], header["layer"], header["head"]) == (MINILM, 1, 3)
        assert header["measure"]["title"] == "48 of our sentences"
        assert rung(app, "share", "mean", "6")["quality"]["value"] == pytest.approx(0.71, abs=0.05)
        assert not [box for box in app.selectbox if box.key == "l_on"]

    @pytest.mark.parametrize(
        "address", [{"l_model": "gpt-17"}, {"l_on": "novel"}, {"l_layer": "99"}, {"l_head": "-1"}, {"l_tab": "nothing"}]
    )
    def test_a_link_that_fits_nothing_still_opens(self, address: dict[str, str]) -> None:
        app = opened(**address)
        assert_sound(app)
        assert sent(app)[0]["model"] == SMOLLM

    def test_how_it_was_measured(self) -> None:
        app = opened(l_tab="How it was measured")
        assert_sound(app)
        words = told(app)
        for text in bundled_texts():
            assert text.sha256 in words
            assert text.licence in words
        # Calibration and training text have entries in common: only the evaluation texts stand apart from all.
        assert "no passage of one that quality is measured on stands in another" in words
        assert ladder_inputs._revision(SMOLLM) in words
        assert "make ladder" in words

    def test_all_numbers(self) -> None:
        app = opened(l_model=title_of(MINILM), l_tab="All numbers")
        assert_sound(app)
        (shown,) = [part.proto.body for part in app.get("html") if "Every setting measured" in part.proto.body]
        points = shipped(MINILM)
        assert shown.count("<tr") == len(points) + 1
        for point in points:
            assert f"<td>{point.quality[0].value:.4f}</td>" in shown

    def test_healing_shows_what_is_shipped_and_nothing_else(self) -> None:
        app = opened(l_model=title_of(MINILM), l_tab="Healing")
        assert_sound(app)
        settings = healed_settings(MINILM)
        assert len(app.get("plotly_chart")) == (1 if settings else 0)
        for setting in settings:
            assert rung_name(setting) in told(app)

    def test_cost_and_absorption_on_the_models_own_layer(self, minilm: LoadedModel) -> None:
        app = opened(l_model=title_of(MINILM), l_tab="Cost, too", l_tokens="8,192")
        assert_sound(app)
        words = told(app)
        assert "An encoder has no decode cache" in words
        assert "absorbing is exact" in words
        assert flops(2 * 8192 * 384 * 768) in words
        assert "exact, to rounding" in words
        assert "wrong" not in words


class TestOwnSentence:
    def test_it_goes_through_every_rung_and_is_never_markup(self, minilm: LoadedModel) -> None:
        app = opened(l_model=title_of(MINILM), l_say=HOSTILE, l_layer="2", l_head="5")
        assert_sound(app)
        header, maps = sent(app)
        assert (header["text"], header["layer"], header["head"]) == (HOSTILE, 2, 5)
        for family, way, key, what_if in (
            ("shipped", "shipped", "shipped", None),
            ("share", "aligned", "3", ShareKV(3, "aligned")),
            ("latent", "whitened", "128", LatentKV(128)),
        ):
            expected = trace(minilm, HOSTILE, what_if=what_if)
            np.testing.assert_allclose(maps[rung(app, family, way, key)["map"]], expected.weights[2, 5], atol=6e-5)
        assert "<b>Hi" not in told(app)

        app.text_input(key="l_say").set_value("word " * 60).run()
        (error,) = [error.value.replace("\\", "") for error in app.error]
        assert "The text has 62 tokens." in error
        assert app.text_input(key="l_say").value == "word " * 60
        assert sent(app)[0]["text"] == HOSTILE  # the earlier picture stays
        app.text_input(key="l_say").set_value("").run()
        assert_sound(app)
        assert sent(app)[0]["text"] == "Alice fed the cats because they were hungry."

    def test_what_was_stopped_stays_stopped_until_asked_for(self, minilm: LoadedModel) -> None:
        app = opened(l_model=title_of(MINILM))
        app.session_state[ladder_live.STOPPED] = Asked(MINILM, "Birds sing.", 1, 3, with_start=False, on="")
        app.text_input(key="l_say").set_value("Birds sing.").run()
        assert_sound(app)
        assert "Stopped." in told(app)
        assert sent(app)[0]["text"] == "Alice fed the cats because they were hungry."
        app.button(key="l_again").click().run()
        assert sent(app)[0]["text"] == "Birds sing."
        assert "Stopped." not in told(app)


class TestNotMeasuredYet:
    def test_a_model_without_a_sweep_can_be_measured(self, minilm: LoadedModel, monkeypatch: Any) -> None:
        rungs = (None, ShareKV(6, "first"), LatentKV(640))
        monkeypatch.setattr(ladder_live, "shipped", lambda _: ())
        monkeypatch.setattr("attention.ladder_view.possible_rungs", lambda _: rungs)
        app = opened(l_model=title_of(MINILM), l_tab="All numbers")
        assert_sound(app)
        assert "was not measured yet" in told(app)
        assert rung(app, "share", "mean", "6")["quality"] is None
        app.button(key="l_measure").click().run()
        assert_sound(app)
        assert rung(app, "share", "first", "6")["quality"]["value"] == pytest.approx(0.4525, abs=1e-3)
        assert rung(app, "share", "mean", "6")["quality"] is None
        assert "was not measured yet" not in told(app)


class TestFirstViews:
    def test_the_shipped_views_are_what_the_models_say(self, minilm: LoadedModel, smollm: LoadedModel) -> None:
        for model, rungs in (
            (minilm, (None, ShareKV(3), LatentKV(128), *healed_settings(MINILM))),
            (smollm, (None, LatentKV(128), *healed_settings(SMOLLM)[:1])),
        ):
            view = first_view(model.id)
            assert view is not None
            assert {one.rung for one in view.rungs} == set(viewed_rungs(model))
            layer, head = view.request.layer, view.request.head
            shown = {one.rung: one for one in view.rungs}
            original = trace(model, view.request.text)
            for rung in rungs:
                fresh = trace(model, view.request.text, what_if=rung)
                np.testing.assert_allclose(shown[rung].weights, fresh.weights[layer, head], atol=1e-4)
                assert [word for word, _ in shown[rung].next_tokens] == [
                    word for word, _ in fresh.outputs.next_tokens[:5]
                ]
                if model.kind == "encoder":
                    cosine = float(fresh.outputs.embedding @ original.outputs.embedding)
                    assert shown[rung].cosine == pytest.approx(cosine, abs=1e-5)
