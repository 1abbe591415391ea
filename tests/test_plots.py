"""Figures a page can trust: maps with integer axes and escaped words, the viewer's opening scene, numbers, colours."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention import AttentionTrace, LoadedModel, trace, untrained_twin
from attention.patterns import JOBS, swap_of
from attention.plots import colours
from attention.plots.heatmaps import KEY_TITLE, MOST_TICKS, QUERY_TITLE, difference_map, heatmap
from attention.plots.numbers import percent
from attention.plots.scenes import evidence_line, heads_scene
from attention.plots.viewer import Card, ViewerScene, viewer_bytes
from tests.tiny_models import SENTENCE, tiny

ROOT = Path(__file__).parent.parent
ALICE = "Alice fed the cats because they were hungry."
KIND = "Alice fed the cats because she was kind."
CHASED = "The cat sat on the mat that the dog chased."
TWIN_OF_CHASED = "The cat that the dog chased sat on the mat."
START = "<|endoftext|>"
DTYPES = {"f4": np.float32, "f8": np.float64, "i1": np.int8, "i2": np.int16, "i4": np.int32}


def figure_of(*args: Any, **options: Any) -> dict[str, Any]:
    """What the browser receives."""
    return json.loads(heatmap(*args, **options).to_json())


def numbers_in(packed: dict[str, Any]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(packed["bdata"]), DTYPES[packed["dtype"]])
    shape = [int(part) for part in packed["shape"].split(",")] if "shape" in packed else [-1]
    return flat.reshape(shape)


def square(size: int, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).random((size, size), dtype=np.float32)
    return weights / weights.sum(axis=-1, keepdims=True)


class TestHeatmap:
    def test_arrays_travel_as_bytes_and_are_the_weights(self) -> None:
        weights = square(5)
        cells = figure_of(weights, list("abcde"), list("abcde"))["data"][0]
        assert cells["z"]["dtype"] == "f4"
        np.testing.assert_array_equal(numbers_in(cells["z"]), weights)

    def test_repeated_words_stay_separate_rows_on_integer_axes(self) -> None:
        words = ["the", "cat", "saw", "the", "dog"]
        figure = figure_of(square(5), words, words)
        for name in ("x", "y"):
            assert numbers_in(figure["data"][0][name]).tolist() == [0, 1, 2, 3, 4]
            axis = figure["layout"][f"{name}axis"]
            assert axis["type"] == "linear"
            assert axis["tickvals"] == [0, 1, 2, 3, 4]
            assert axis["ticktext"] == words

    def test_words_like_dates_and_numbers_do_not_change_the_axis(self) -> None:
        words = ["2024-01-01", "12:30", "7", "1e3"]
        figure = figure_of(square(4), words, words)
        assert [figure["layout"][axis]["type"] for axis in ("xaxis", "yaxis")] == ["linear", "linear"]
        assert figure["layout"]["xaxis"]["ticktext"] == words

    def test_markup_in_words_and_title_is_shown_not_obeyed(self) -> None:
        words = ["<b>", "<br>", "&amp;", "<a href='x'>"]
        figure = figure_of(square(4), words, words, title="<i>x</i> & y")
        escaped = ["&lt;b&gt;", "&lt;br&gt;", "&amp;amp;", "&lt;a href='x'&gt;"]
        assert figure["layout"]["xaxis"]["ticktext"] == escaped
        assert figure["layout"]["yaxis"]["ticktext"] == escaped
        assert figure["layout"]["title"]["text"] == "&lt;i&gt;x&lt;/i&gt; &amp; y"
        assert figure["data"][0]["text"][0][1] == "&lt;b&gt; → &lt;br&gt;"

    def test_rows_are_queries_from_the_top_and_axes_say_so(self) -> None:
        layout = figure_of(square(3), list("abc"), list("abc"))["layout"]
        assert layout["yaxis"]["range"] == [2.5, -0.5]
        assert layout["yaxis"]["autorange"] is False
        assert layout["xaxis"]["range"] == [-0.5, 2.5]
        assert layout["yaxis"]["title"]["text"] == QUERY_TITLE
        assert layout["xaxis"]["title"]["text"] == KEY_TITLE
        assert QUERY_TITLE.startswith("query (row)")
        assert KEY_TITLE.startswith("key (column)")

    @pytest.mark.parametrize("scale", [0.01, 1.0])
    def test_the_scale_is_fixed_from_nought_to_one(self, scale: float) -> None:
        cells = figure_of(square(3) * np.float32(scale), list("abc"), list("abc"))["data"][0]
        assert (cells["zmin"], cells["zmax"]) == (0.0, 1.0)

    def test_hover_says_query_key_and_three_digits(self) -> None:
        weights = np.zeros((2, 2), np.float32)
        cells = figure_of(weights, ["they", "ate"], ["they", "cats"])["data"][0]
        assert cells["text"] == [["they → they", "they → cats"], ["ate → they", "ate → cats"]]
        assert cells["hovertemplate"] == "%{text}: %{z:.3f}<extra></extra>"

    def test_a_long_text_hovers_by_position(self) -> None:
        words = [f"w{index}" for index in range(129)]
        cells = figure_of(square(129), words, words)["data"][0]
        assert "text" not in cells
        assert cells["hovertemplate"].startswith("row %{y}, column %{x}: %{z:.3f}")

    @pytest.mark.parametrize("size", [1, 40, 41, 80, 81, 512])
    def test_ticks_thin_out_evenly_and_keep_the_first(self, size: int) -> None:
        words = [f"w{index}" for index in range(size)]
        axis = figure_of(square(size), words, words)["layout"]["xaxis"]
        shown = axis["tickvals"]
        assert shown[0] == 0
        assert len(set(np.diff(shown))) <= 1
        assert min(size, MOST_TICKS) / 2 <= len(shown) <= MOST_TICKS
        assert axis["ticktext"] == [f"w{index}" for index in shown]

    def test_a_very_long_word_is_cut_on_the_axis_only(self) -> None:
        word = "pneumonoultramicroscopic"
        figure = figure_of(square(1), [word], [word])
        assert figure["layout"]["xaxis"]["ticktext"] == ["pneumonoultramicr…"]
        assert figure["data"][0]["text"] == [[f"{word} → {word}"]]

    def test_masked_cells_are_blank_and_others_untouched(self) -> None:
        weights, visible = square(4), np.tri(4, dtype=bool)
        shown = numbers_in(figure_of(weights, list("abcd"), list("abcd"), visible=visible)["data"][0]["z"])
        assert np.isnan(shown[~visible]).all()
        np.testing.assert_array_equal(shown[visible], weights[visible])

    def test_dark_and_light_use_their_own_scale(self) -> None:
        for theme, scale in (("light", colours.WEIGHT_SCALE), ("dark", colours.WEIGHT_SCALE_DARK)):
            cells = figure_of(square(2), list("ab"), list("ab"), theme=theme)["data"][0]
            assert [tuple(stop) for stop in cells["colorscale"]] == list(scale)

    def test_differences_are_centred_on_nought(self) -> None:
        first, second = square(3, 1), square(3, 2)
        cells = json.loads(difference_map(first, second, list("abc"), list("abc")).to_json())["data"][0]
        np.testing.assert_array_equal(numbers_in(cells["z"]), second - first)
        assert cells["zmin"] == -cells["zmax"]
        assert cells["zmax"] == pytest.approx(np.abs(second - first).max())


def opening(scene: ViewerScene, traced: AttentionTrace) -> tuple[str, str, float]:
    """What the first headline says: query word, key word, share."""
    assert scene.start is not None
    return link(traced, *scene.start)


def link(traced: AttentionTrace, layer: int, head: int, query: int) -> tuple[str, str, float]:
    row = traced.weights[layer, head, query]
    return traced.tokens[query].label, traced.tokens[int(row.argmax())].label, float(row.max())


def links(scene: ViewerScene, traced: AttentionTrace) -> dict[str, tuple[str, str, float]]:
    return {card.id: link(traced, card.layer, card.head, card.query) for card in scene.cards}


def about(query: str, key: str, share: float) -> tuple[str, str, Any]:
    return query, key, pytest.approx(share, abs=0.01)


class TestScenes:
    def test_the_default_sentence_opens_on_they_and_shows_three_jobs(self, minilm: LoadedModel) -> None:
        traced = trace(minilm, ALICE)
        scene = heads_scene(traced)
        assert scene.start == (1, 3, 6)
        assert opening(scene, traced) == about("they", "cats", 0.54)
        assert links(scene, traced) == {
            "previous": about("they", "because", 1.00),
            "object_verb": about("cats", "fed", 0.48),
            "agreement": about("they", "cats", 0.54),
        }
        assert [(card.title, card.layer, card.head) for card in scene.cards] == [
            ("Previous word", 0, 2),
            ("Object → its verb", 2, 0),
            ("Who is meant", 1, 3),
        ]
        assert scene.average is not None
        assert (scene.average.heads, scene.average.query) == (((0, 2), (2, 0), (1, 3)), 6)

    def test_swapping_the_pronoun_moves_the_arrow_and_swapping_back_returns(self, minilm: LoadedModel) -> None:
        first = heads_scene(trace(minilm, ALICE))
        assert first.swap_label is not None
        assert first.swap_label.endswith("they → she")
        swap = swap_of(ALICE)
        assert swap is not None
        assert swap.text == KIND
        traced = trace(minilm, swap.text)
        scene = heads_scene(traced)
        assert opening(scene, traced) == about("she", "Alice", 0.70)
        assert links(scene, traced)["object_verb"] == about("cats", "fed", 0.45)
        assert scene.swap_label is not None
        assert scene.swap_label.endswith("she → they")
        back = swap_of(KIND)
        assert back is not None
        assert back.text == ALICE
        assert swap_of("Any other text.") is None

    def test_the_lessons_sentence_and_its_twin_on_the_decoder(self, smollm: LoadedModel) -> None:
        traced = trace(smollm, CHASED, start=START)
        scene = heads_scene(traced)
        assert opening(scene, traced) == about("that", "mat", 0.93)
        assert links(scene, traced) == {
            "previous": about("that", "mat", 0.89),
            "latest_noun": about("that", "mat", 0.93),
            "clause": about("chased", "that", 0.51),
        }
        twin = trace(smollm, TWIN_OF_CHASED, start=START)
        assert opening(heads_scene(twin), twin) == about("that", "cat", 0.90)

    @pytest.mark.parametrize("text", ["Birds sing songs.", "hello", ".", "🙂", "== ++"])
    def test_any_text_opens_on_one_of_its_own_words(self, text: str, minilm: LoadedModel, smollm: LoadedModel) -> None:
        for traced in (trace(minilm, text), trace(smollm, text, start=START), trace(smollm, text)):
            scene = heads_scene(traced)
            assert scene.start is not None
            assert not traced.tokens[scene.start[2]].special
            assert all(not traced.tokens[card.query].special for card in scene.cards)
            assert len(scene.cards) == 3
            assert viewer_bytes(scene)[:4] == b"HSV1"

    def test_a_text_without_a_pronoun_says_so_instead_of_claiming_a_job(self, minilm: LoadedModel) -> None:
        scene = heads_scene(trace(minilm, "Birds sing songs."))
        meant = next(card for card in scene.cards if card.id == "agreement")
        assert meant.evidence == "No pronoun in this text: its strongest link is shown"
        assert scene.start is not None
        assert scene.start[:2] == (2, 0)

    def test_the_untrained_twin_claims_nothing(self, minilm: LoadedModel) -> None:
        twin = trace(untrained_twin(minilm), ALICE)
        scene = heads_scene(twin)
        assert [card.evidence for card in scene.cards] == ["Random weights: nothing was learned"] * 3
        beside = heads_scene(trace(minilm, ALICE), twin=twin)
        assert [viewed.role for viewed in beside.traces] == ["main", "twin"]
        assert all("Random" not in card.evidence for card in beside.cards)

    def test_a_model_without_named_heads_gets_no_cards(self) -> None:
        scene = heads_scene(trace(tiny("llama"), SENTENCE))
        assert scene.cards == ()
        assert scene.average is None
        assert scene.start == (0, 0, 0)

    def test_checks_and_notices_are_handed_on(self, minilm: LoadedModel) -> None:
        traced = trace(minilm, "word " * 600)
        scene = heads_scene(traced, checks=traced.checks)
        assert [name for name, _, _ in scene.checks] == [check.name for check in traced.checks]
        assert {name: good for name, _, good in scene.checks}["Tokens cut"] is False
        assert scene.notices == (traced.notice,)
        assert "602 tokens" in traced.notice

    def test_no_card_claims_to_understand(self, minilm: LoadedModel, smollm: LoadedModel) -> None:
        cards: list[Card] = [*heads_scene(trace(minilm, ALICE)).cards, *heads_scene(trace(smollm, CHASED)).cards]
        assert not any("understand" in f"{card.title} {card.evidence}".lower() for card in cards)


class TestEvidenceLine:
    """The line on a card holds the file's own figures, of the half the head was not chosen on."""

    def scores(self, model: str, job: str) -> dict[str, dict[str, Any]]:
        data = json.loads((ROOT / "assets" / "evidence.json").read_text(encoding="utf-8"))
        return {score["name"]: score for score in data["models"][model]["scores"][job] if score["half"] == "held_out"}

    def line(self, model: str, name: str) -> str:
        return evidence_line(model, next(job for job in JOBS[model] if job.id == name))

    def test_who_is_meant_says_where_it_is_right_and_where_it_fails(self) -> None:
        scores = self.scores("all-MiniLM-L6-v2", "agreement")
        agrees, meaning = scores["agrees in gender or number: first"], scores["only meaning decides: above"]
        line = self.line("all-MiniLM-L6-v2", "agreement")
        figures = [round(agrees["value"] * 100), agrees["n"], round(meaning["value"] * 100), meaning["n"]]
        assert [int(number) for number in re.findall(r"\d+", line)] == figures

    def test_object_to_verb_stands_beside_the_best_fixed_distance(self) -> None:
        score = self.scores("all-MiniLM-L6-v2", "object_verb")["verb first"]
        line = self.line("all-MiniLM-L6-v2", "object_verb")
        figures = [round(score["value"] * 100), score["n"], round(score["baseline"] * 100)]
        assert [int(number) for number in re.findall(r"\d+", line)] == figures

    def test_previous_word_says_where_it_breaks(self) -> None:
        scores = self.scores("all-MiniLM-L6-v2", "previous")
        broken = min((score for score in scores.values()), key=lambda score: score["value"])
        line = self.line("all-MiniLM-L6-v2", "previous")
        assert f"only {round(broken['value'] * 100)} % in a text of {broken['name']}" in line
        assert f"Mean {round(scores['mean weight']['value'] * 100)} % over {scores['mean weight']['n']}" in line

    def test_a_job_without_measurements_says_that_it_has_none(self) -> None:
        assert self.line("SmolLM2-135M-Instruct", "clause") == "One example, not yet tested on many sentences"


class TestNumbers:
    @pytest.mark.parametrize(
        ("share", "words"),
        [(0.0, "0 %"), (0.0049, "< 1 %"), (0.0051, "1 %"), (0.541, "54 %"), (1.0, "100 %")],
    )
    def test_percent(self, share: float, words: str) -> None:
        assert percent(share) == words

    @given(st.floats(1e-9, 1.0))
    def test_a_positive_share_never_reads_as_nothing_but_at_the_edge(self, share: float) -> None:
        words = percent(share)
        if share < 0.005:
            assert words == "< 1 %"
        else:
            assert abs(float(words.removesuffix(" %")) - share * 100) <= 0.5 + 1e-9


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


CONFIG = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))["theme"]
CONCEPTS = {"QUERY": "query", "KEY": "key", "VALUE": "value", "LATENT": "", "CACHE": "", "BROKEN": "broken"}


class TestColours:
    def test_the_measure_is_right(self) -> None:
        assert contrast("#000000", "#ffffff") == pytest.approx(21)
        assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)

    @pytest.mark.parametrize("theme", ["light", "dark"])
    @pytest.mark.parametrize("concept", CONCEPTS)
    def test_a_concept_can_be_read_as_text_on_either_ground(self, concept: str, theme: str) -> None:
        shade = getattr(colours, concept).on(theme)
        for ground in ("backgroundColor", "secondaryBackgroundColor"):
            assert contrast(shade, CONFIG[theme][ground]) >= 4.5

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_the_theme_uses_the_same_colours(self, theme: str) -> None:
        own = CONFIG[theme]
        assert own["primaryColor"] == own["blueColor"] == colours.QUERY.on(theme)
        assert own["orangeColor"] == colours.KEY.on(theme)
        assert own["greenColor"] == colours.VALUE.on(theme)
        assert own["violetColor"] == colours.LATENT.on(theme)
        assert own["redColor"] == colours.BROKEN.on(theme)

    def test_more_weight_is_always_further_from_the_ground(self) -> None:
        for scale, sign in ((colours.WEIGHT_SCALE, -1), (colours.WEIGHT_SCALE_DARK, 1)):
            assert [stop for stop, _ in scale] == [0.0, 0.25, 0.5, 0.75, 1.0]
            assert (np.diff([sign * luminance(shade) for _, shade in scale]) > 0.02).all()

    def test_differences_are_palest_in_the_middle(self) -> None:
        shades = [luminance(shade) for _, shade in colours.DIFFERENCE_SCALE]
        assert shades[2] == max(shades)
        assert shades[0] < shades[1] < shades[2] > shades[3] > shades[4]
