"""Head finder run by Streamlit itself: two words give the engine's heads, labels carry evidence, muting is undone."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from attention import LoadedModel, UserError, load_model, rank_heads_for_link, trace
from attention.atlas import UNCLEAR, AtlasRow, HeadAtlas, PruningCurve, PruningPoint
from attention.links import HeadLink, Word, words_in
from attention.muting import outcome
from attention.patterns import word_rows
from attention.plots.cache_charts import csv_text
from attention.plots.colours import WEIGHT_SCALE, WEIGHT_SCALE_DARK
from attention.plots.head_grid import FAMILIES, GRAMMAR, NONE, atlas_grid, contrast, family_of, legend_html, shade
from attention.plots.head_maps import pruning_chart
from attention.settings import settings
from attention.trials import TRIALS
from pages.see import finder_atlas, finder_links, finder_mute, finder_parts
from pages.see.finder_questions import QUESTIONS, Question
from pages.shared.bar import DEFAULT_TEXT
from tests.tiny_models import save_tiny

ENTRY = str(Path(__file__).parent.parent / "pages" / "entry.py")
MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
TINY, TINY_TEXT = "tiny-llama", "the cat sat on the mat that the dog chased"
FIND, ATLAS, MUTE = "Find by two words", "All heads", "Mute heads"


@pytest.fixture(scope="module", autouse=True)
def _tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A random decoder with shared keys and values, which no shipped file knows."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny(folder / TINY, "llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCOPE_MODEL_FOLDERS", str(folder))
        settings.cache_clear()
        yield
    settings.cache_clear()


@pytest.fixture(scope="module")
def tiny_atlas() -> HeadAtlas:
    """The tiny model's heads, measured as the page does it."""
    app = tiny(f_tab=ATLAS)
    assert_no_fault(app)
    found = finder_parts.atlas_at_hand(load_model(TINY))
    assert found is not None
    return found


def opened(**address: str | list[str]) -> AppTest:
    """The page after its first run at an address."""
    app = AppTest.from_file(ENTRY, default_timeout=240)
    for name, value in address.items():
        app.query_params[name] = value
    app.switch_page("see/finder.py")
    return app.run()


def tiny(**address: str | list[str]) -> AppTest:
    """The page on the tiny model, without a start token."""
    return opened(model=TINY, text=TINY_TEXT, start="Starts with nothing", **address)


def assert_no_fault(app: AppTest) -> None:
    assert [one.value for one in app.exception] == []
    assert [one.value for one in app.error] == []


def html(app: AppTest, name: str) -> list[str]:
    """The words of every piece of a class, markup left out."""
    pieces = [part.value for part in app.get("html") if f'class="{name}"' in part.value]
    return [re.sub(r"<[^>]+>", "", piece) for piece in pieces]


def grid(app: AppTest) -> dict[str, Any]:
    (part,) = [part.proto for part in app.get("bidi_component") if part.proto.component_name == "headscope_grid"]
    return json.loads(part.json)


def group(app: AppTest, key: str) -> Any:
    return next(one for one in app.get("button_group") if one.key == key)


def plots(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(part.proto.spec) for part in app.get("plotly_chart")]


def numbers(packed: Any) -> np.ndarray:
    """An array of a figure as it was sent."""
    if isinstance(packed, list):
        return np.array(packed)
    values = np.frombuffer(base64.b64decode(packed["bdata"]), np.dtype("<" + packed["dtype"]))
    return values.reshape([int(part) for part in packed["shape"].split(",")]) if "shape" in packed else values


def bars(app: AppTest) -> tuple[np.ndarray, np.ndarray]:
    """The numbers before and after muting, as drawn."""
    (figure,) = plots(app)
    before, after = (numbers(one["x"]) for one in figure["data"])
    return before, after


class TestFind:
    def test_it_opens_on_an_answer_from_the_engine(self) -> None:
        app = opened()
        assert_no_fault(app)
        links = rank_heads_for_link(MINILM, DEFAULT_TEXT, "they", "cats")
        first = links[0]
        (answer,) = html(app, "hs-f-answer")
        expected = f"they looks at cats: {first.weight * 100:.0f} % in layer {first.layer}, head {first.head}"
        assert answer == expected
        (said,) = html(app, "hs-f-said")
        assert f"Distance alone would give {first.positional * 100:.0f} %" in said
        assert re.search(r"2 words back \(n = \d{3}\)", said)
        traced = trace(load_model(MINILM), DEFAULT_TEXT)
        for figure, link in zip(plots(app), links, strict=False):
            np.testing.assert_array_equal(numbers(figure["data"][0]["z"]), word_rows(traced, link.layer, link.head))
            (frame,) = figure["layout"]["shapes"]
            assert (frame["x0"], frame["y0"]) == (3 - 0.5, 5 - 0.5)
        assert len(plots(app)) == 5

    def test_every_head_is_a_cell_with_its_weight(self) -> None:
        data = grid(opened())
        links = {(one.layer, one.head): one for one in rank_heads_for_link(MINILM, DEFAULT_TEXT, "they", "cats")}
        assert (data["layers"], data["heads"], data["shared"]) == (6, 12, 1)
        for index, cell in enumerate(data["cells"]):
            link = links[divmod(index, 12)]
            assert cell["ground"] == shade(link.weight, "light")
            assert contrast(cell["ink"], cell["ground"]) >= 4.5
            assert cell["words"].startswith(f"Layer {link.layer}, head {link.head}: they looks at cats with ")
        places = {cell["text"]: divmod(index, 12) for index, cell in enumerate(data["cells"]) if cell["text"]}
        assert [places[str(place)] for place in range(1, 6)] == list(links)[:5]

    def test_numbering_and_authors_are_named_once(self) -> None:
        app = opened()
        said = [caption.value for caption in app.caption if "numbered from 0" in caption.value]
        assert said == ["Heads are numbered from 0; the papers by Clark, Voita and Michel count from 1."]
        assert sum("The Headscope project, CC0-1.0" in words for words in html(app, "hs-f-small")) == 1

    def test_a_question_brings_its_sentence_and_a_trap_is_called_one(self) -> None:
        app = opened(f_query="Alice")
        app.button(key="f-ask-previous").click().run()
        assert_no_fault(app)
        assert html(app, "hs-f-answer") == ["because looks at cats: 100 % in layer 0, head 2"]
        assert html(app, "hs-f-said")[0].startswith("A trap. Distance alone would give 100 %")
        app.button(key="f-ask-she-alice").click().run()
        assert app.text_input(key="text").value == "Alice fed the cats because she was kind."
        assert html(app, "hs-f-answer")[0].startswith("she looks at Alice")
        assert not html(app, "hs-f-said")[0].startswith("A trap")

    def test_ranking_beyond_distance_leaves_the_trap_behind(self) -> None:
        asked = {"f_query": "because", "f_key": "cats"}
        assert html(opened(**asked), "hs-f-answer")[0].endswith("in layer 0, head 2")
        links = rank_heads_for_link(MINILM, DEFAULT_TEXT, "because", "cats")
        best = max(links, key=lambda one: one.weight - one.positional)
        app = opened(**asked, f_rank="weight beyond distance")
        assert (best.layer, best.head) != (0, 2)
        assert html(app, "hs-f-answer")[0].endswith(f"in layer {best.layer}, head {best.head}")

    def test_a_repeated_word_is_two_words_and_a_decoder_offers_earlier_words_only(self) -> None:
        app = tiny(f_query="mat", f_key="the²")
        assert_no_fault(app)
        words = ["the¹", "cat", "sat", "on", "the²", "mat", "that", "the³", "dog", "chased"]
        assert [one.content for one in group(app, "f_query").proto.options] == words[1:]
        assert [one.content for one in group(app, "f_key").proto.options] == words[:5]
        links = rank_heads_for_link(TINY, TINY_TEXT, 5, 4)
        first = f"{links[0].weight * 100:.0f} % in layer {links[0].layer}, head {links[0].head}"
        assert html(app, "hs-f-answer") == [f"mat looks at the²: {first}"]
        assert {link.weight for link in links} != {link.weight for link in rank_heads_for_link(TINY, TINY_TEXT, 5, 0)}

    def test_a_causal_row_holds_no_later_words_and_far_words_are_told_from_the_farthest_measured(self) -> None:
        text = "the cat sat on a mat that the dog chased and it ran away because b was tired c d e"
        app = opened(model=TINY, start="Starts with nothing", text=text, f_query="c", f_key="cat")
        assert_no_fault(app)
        assert "its mean for a word 16 words back, the farthest measured (n = 11)" in html(app, "hs-f-said")[0]
        places = [int(one) for words in html(app, "hs-f-lines") for one in re.findall(r"place \d+ of (\d+)", words)]
        assert places == [19] * 5  # "c" is the 19th of 21 words

    @pytest.mark.parametrize("layer", ["²", "9" * 5000, "-1", "2.0", "<b>"])
    def test_a_link_to_a_head_that_is_not_there_still_opens(self, layer: str) -> None:
        app = tiny(f_layer=layer)
        assert_no_fault(app)
        assert html(app, "hs-f-answer")

    def test_another_sentence_finds_words_of_its_own(self) -> None:
        app = opened(f_query="were", f_key="fed")
        app.text_input(key="text").set_value("Birds sing.").run()
        assert_no_fault(app)
        (answer,) = html(app, "hs-f-answer")
        assert re.match(r"(Birds|sing|\.) looks at (Birds|sing|\.): ", answer)

    @pytest.mark.parametrize(
        ("text", "words"),
        [("", "The text is empty"), ("Birds", "The sentence has one word"), ("<b>*a*</b> :smile: $x$ `c`", "")],
    )
    def test_odd_texts(self, text: str, words: str) -> None:
        app = opened()
        app.text_input(key="text").set_value(text).run()
        assert [one.value for one in app.exception] == []
        assert app.text_input(key="text").value == text
        if words:
            assert [words in one.value for one in app.error] == [True]
        else:
            assert [one.value for one in app.error] == []
            assert "looks at" in html(app, "hs-f-answer")[0]
            assert not any("<b>*a*" in part.value for part in app.get("html"))

    def test_a_long_text_gets_boxes_instead_of_buttons(self) -> None:
        app = opened(text="one two three four five six seven eight nine ten " * 5)
        assert_no_fault(app)
        keys = [box.key for box in app.selectbox]
        assert {"f_query", "f_key"} <= set(keys)
        assert "looks at" in html(app, "hs-f-answer")[0]

    @pytest.mark.parametrize("question", QUESTIONS, ids=[one.id for one in QUESTIONS])
    def test_the_head_we_name_is_among_the_first_five(self, question: Question) -> None:
        model = load_model(question.model)
        traced = trace(model, question.text, start=model.default_start)
        labels = finder_links.word_labels(words_in(traced))
        query, key = labels.index(question.query), labels.index(question.key)
        links = rank_heads_for_link(model, question.text, query, key, start=model.default_start)
        assert (question.layer, question.head) in [(one.layer, one.head) for one in links[:5]]
        found = next(one for one in links if (one.layer, one.head) == (question.layer, question.head))
        assert found.rank == 1
        assert finder_links.is_trap(found) is (question.id in {"previous", "that-mat"})


@given(st.lists(st.sampled_from(["the", "The", "the²", "the¹", "cat", ".", "the² (word 1)"]), min_size=1, max_size=12))
def test_labels_are_never_alike(texts: list[str]) -> None:
    labels = finder_links.word_labels(tuple(Word(index, text, (index,)) for index, text in enumerate(texts)))
    assert len(set(labels)) == len(texts)
    for label, text in zip(labels, texts, strict=True):
        assert label.startswith(text)


def test_a_trap_is_at_least_half_distance() -> None:
    def link(weight: float, positional: float) -> HeadLink:
        return HeadLink(0, 0, 0, weight, 1, positional)

    assert finder_links.is_trap(link(0.8, 0.4))
    assert not finder_links.is_trap(link(0.8, 0.39))


class TestAtlas:
    def test_counts_cells_and_card_are_the_atlas(self, tiny_atlas: HeadAtlas) -> None:
        app = tiny(f_tab=ATLAS, f_layer="2", f_head="4")
        assert_no_fault(app)
        counts = tiny_atlas.labels
        unclear, rest = counts.get(UNCLEAR, 0), counts.get("rest", 0)
        (answer,) = html(app, "hs-f-answer")
        assert answer.startswith(f"{18 - unclear - rest} of 18 heads have a job that holds up; {rest} only rest")
        assert answer.endswith(f"{unclear} stay unclear")
        data = grid(app)
        assert (data["layers"], data["heads"], data["shared"], data["chosen"]) == (3, 6, 3, [2, 4])
        assert [cell["text"] for cell in data["cells"]] == [family_of(row.label).letter for row in tiny_atlas.rows]
        row = tiny_atlas.row(2, 4)
        (title,) = html(app, "hs-f-card")
        assert title.startswith(f"Layer 2, head 4, K/V head 1: {row.title}")
        evidence = next(part.value for part in app.get("html") if "Evidence, on sentences not used" in part.value)
        for one in row.evidence:
            assert f">{one.n}<" in evidence
            assert one.baseline_name in evidence
        scores = next(part.value for part in app.get("html") if "Means over texts" in part.value)
        assert scores.count("<tr>") == 1 + len(tiny_atlas.scores.scores)
        assert "Olsson et al. 2022" in scores
        for example in row.examples:
            assert any(example.text.replace("'", "&#x27;") in part.value for part in app.get("html"))

    def test_filters_leave_the_other_heads_without_colour(self, tiny_atlas: HeadAtlas) -> None:
        app = tiny(f_tab=ATLAS, f_only_layer="1", f_only_kv="0")
        shown = [index for index, cell in enumerate(grid(app)["cells"]) if not cell["faint"]]
        assert shown == [6, 7, 8]
        assert "All 3 heads shown, as a table" in [one.label for one in app.expander]
        title = tiny_atlas.rows[0].title
        app = tiny(f_tab=ATLAS, f_labels=[title])
        shown = [index for index, cell in enumerate(grid(app)["cells"]) if not cell["faint"]]
        assert shown == [index for index, row in enumerate(tiny_atlas.rows) if row.title == title]

    def test_the_file_has_every_head_with_its_numbers(self, tiny_atlas: HeadAtlas) -> None:
        headers, lines = finder_atlas.table_of(tiny_atlas, tiny_atlas.rows)
        read = list(csv.DictReader(io.StringIO(csv_text(headers, lines))))
        assert len(read) == 18
        for line, row in zip(read, tiny_atlas.rows, strict=True):
            first = row.evidence[0]
            assert (line["layer"], line["head"], line["label"]) == (str(row.layer), str(row.head), row.title)
            assert float(line["held-out"]) == pytest.approx(first.value, abs=6e-4)
            assert float(line["best rule"]) == pytest.approx(first.baseline, abs=6e-4)
            assert line["n"] == str(first.n)
            assert float(line["induction"]) == pytest.approx(row.scores["induction"], abs=6e-5)

    def test_every_job_tried_is_listed_with_its_baseline(self, tiny_atlas: HeadAtlas) -> None:
        app = tiny(f_tab=ATLAS)
        tried = next(part.value for part in app.get("html") if "head that the first half likes best" in part.value)
        assert tried.count("<tr>") == 1 + len(tiny_atlas.trials)
        assert "Preposition" in tried
        small = html(app, "hs-f-small")
        assert any("Prepositions: no head stays clearly above" in words for words in small)

    def test_a_model_that_cannot_be_measured_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Refusing:
            def scores(self, *_: Any) -> HeadAtlas:
                raise UserError("This model cannot be traced.", "Others can.", "Choose another.")

        monkeypatch.setattr(finder_parts, "default_engine", Refusing)
        bar = SimpleNamespace(progress=lambda *_: None, empty=lambda: None)
        monkeypatch.setattr(finder_parts.st, "progress", lambda *_: bar)
        model = SimpleNamespace(id="refused", revision="x")
        for _ in range(2):  # not kept: who asks again is told again
            with pytest.raises(UserError, match=r"cannot be traced"):
                finder_parts.measured(model)  # type: ignore[arg-type]


class TestFamilies:
    def test_every_job_has_one_and_no_two_share_a_letter(self) -> None:
        every = (*FAMILIES, GRAMMAR, NONE)
        assert len({family.letter for family in every}) == len(every)
        for trial in TRIALS:
            expected = "W" if trial.kind in {"agreement", "meaning_only"} else "G"
            assert family_of(trial.id).letter == expected
        assert family_of(UNCLEAR) is NONE
        assert [family_of(job).letter for job in ("previous", "rest", "induction", "duplicate")] == ["P", "R", "C", "C"]

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_letters_read_on_their_ground(self, theme: str) -> None:
        for family in (*FAMILIES, GRAMMAR, NONE):
            assert contrast(family.ink.on(theme), family.ground.on(theme)) >= 4.5, family.title

    def test_the_legend_counts_every_head_once(self) -> None:
        words = re.sub(r"<[^>]+>", "", legend_html({"previous": 2, "next": 1, "det_up": 4, "unclear": 65}, "light"))
        assert re.findall(r"\d+", words) == ["3", "0", "0", "0", "4", "65"]

    def test_weights_run_along_the_one_scale(self) -> None:
        for theme, scale in (("light", WEIGHT_SCALE), ("dark", WEIGHT_SCALE_DARK)):
            assert [shade(stop, theme) for stop, _ in scale] == [colour for _, colour in scale]

    def test_contrast_is_wcags(self) -> None:
        assert contrast("#000000", "#ffffff") == pytest.approx(21)
        assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)

    def test_a_faint_head_keeps_its_words_and_loses_its_letter(self, tiny_atlas: HeadAtlas) -> None:
        cells = atlas_grid(tiny_atlas, {(0, 0)}, (0, 0), "light").cells
        assert [cell.faint for cell in cells] == [False] + [True] * 17
        assert cells[5].text == ""
        assert tiny_atlas.row(0, 5).evidence[0].title in cells[5].words


class TestMute:
    def test_it_opens_with_heads_muted_and_draws_the_models_own_numbers(self) -> None:
        app = tiny(f_tab=MUTE)
        assert_no_fault(app)
        muted = ((1, 0), (1, 1), (1, 2))
        model = load_model(TINY)
        assert app.multiselect(key="f_mute").value == ["L1 H0", "L1 H1", "L1 H2"]
        before, after = bars(app)
        for drawn, heads in ((before, ()), (after, muted)):
            expected = probabilities(model, heads)
            assert all(np.isclose(expected, value, atol=1e-7).any() for value in drawn)
        np.testing.assert_allclose(before, np.sort(probabilities(model, ()))[::-1][:10], atol=1e-7)
        assert not np.array_equal(before, after)
        assert "3 heads muted, the loss on a text said twice goes from" in html(app, "hs-f-answer")[0]
        struck = [divmod(index, 6) for index, cell in enumerate(grid(app)["cells"]) if cell["struck"]]
        assert struck == list(muted)

    def test_unmuting_gives_the_same_bits_and_says_so(self) -> None:
        app = tiny(f_tab=MUTE, f_mute=["L0 H1", "L2 H5"])
        before, after = bars(app)
        assert not np.array_equal(before, after)
        app.button(key="f-unmute").click().run()
        assert_no_fault(app)
        again, unmuted = bars(app)
        np.testing.assert_array_equal(again, before)
        np.testing.assert_array_equal(unmuted, before)
        assert html(app, "hs-f-answer")[0].startswith("No head is muted.")
        assert "identical to before, bit for bit" in html(app, "hs-f-said")[0]
        assert app.button(key="f-unmute").disabled

    def test_a_trace_left_behind_would_be_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        change = SimpleNamespace(before=0.5, after=0.5)
        effect = SimpleNamespace(next_tokens=(change,), similarities=())
        other = SimpleNamespace(next_tokens=(SimpleNamespace(before=0.5 + 1e-12, after=0.5 + 1e-12),), similarities=())
        monkeypatch.setattr(finder_mute, "Engine", lambda: SimpleNamespace(muted=lambda _: other))
        assert "different" in finder_mute._again(effect, None)  # type: ignore[arg-type]

    def test_groups_are_added_whole(self) -> None:
        app = tiny(f_tab=MUTE, f_mute=["L0 H1"])
        box = app.selectbox(key="f-group")
        box.select("K/V group: layer 2, K/V head 1 (3)").run()
        assert_no_fault(app)
        assert app.multiselect(key="f_mute").value == ["L0 H1", "L2 H3", "L2 H4", "L2 H5"]
        assert app.selectbox(key="f-group").value is None

    def test_pressing_a_head_mutes_it_and_pressing_again_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        state: dict[str, Any] = {"f_mute": ["L2 H0"]}
        monkeypatch.setattr(finder_mute.st, "session_state", state)
        finder_mute._toggle(0, 3)
        assert state["f_mute"] == ["L0 H3", "L2 H0"]
        finder_mute._toggle(2, 0)
        assert state["f_mute"] == ["L0 H3"]

    def test_as_many_others_at_random(self) -> None:
        model = load_model(TINY)
        muted = ((0, 0), (2, 5))
        draws = finder_mute.drawn_instead(model, muted)
        assert draws == finder_mute.drawn_instead(model, muted)
        assert len({*draws}) == 3
        for heads in draws:
            assert len(set(heads)) == 2
            assert not {*heads} & {*muted}
        app = tiny(f_tab=MUTE, f_random="true")
        assert any("As many other heads at random" in words for words in html(app, "hs-f-said"))

    def test_where_fewer_others_are_left_none_are_drawn_and_that_is_said(self) -> None:
        most = [f"L{layer} H{head}" for layer in (0, 1) for head in range(5)]  # 10 of 18
        assert finder_mute.drawn_instead(load_model(TINY), finder_mute.heads_of(most)) == []
        assert len(finder_mute.drawn_instead(load_model(TINY), finder_mute.heads_of(most[:9]))) == 3
        app = tiny(f_tab=MUTE, f_random="true", f_mute=most)
        assert_no_fault(app)
        assert finder_mute.TOO_FEW in html(app, "hs-f-said")
        assert not any("at random" in words for words in html(app, "hs-f-said"))

    def test_an_encoder_shows_what_its_embedding_becomes(self) -> None:
        app = opened(f_tab=MUTE)
        assert_no_fault(app)
        muted = ((0, 2), (1, 3), (2, 0))
        model = load_model(MINILM)
        whole, silent = (outcome(model, DEFAULT_TEXT, heads).embedding for heads in ((), muted))
        assert whole is not None
        assert silent is not None
        assert f"is {float(whole @ silent):.3f} similar to itself" in html(app, "hs-f-answer")[0]
        before, after = bars(app)
        assert len(before) == 8
        assert not np.array_equal(before, after)

    def test_another_model_starts_with_heads_of_its_own(self) -> None:
        app = tiny(f_tab=MUTE, f_mute=["L0 H1"])
        app.selectbox(key="model").select(MINILM).run()
        assert_no_fault(app)
        assert app.multiselect(key="f_mute").value == ["L0 H2", "L1 H3", "L2 H0"]


def probabilities(model: LoadedModel, heads: tuple[tuple[int, int], ...]) -> np.ndarray:
    found = outcome(model, TINY_TEXT, heads).probabilities
    assert found is not None
    return found


def test_closed_tabs_keep_their_settings_and_draw_nothing() -> None:
    app = tiny(f_tab=MUTE, f_query="dog", f_key="cat", f_rank="weight beyond distance")
    assert_no_fault(app)
    assert group(app, "f_query").value == "dog"
    assert group(app, "f_key").value == "cat"
    assert len(plots(app)) == 1
    assert html(app, "hs-f-card") == []


def test_the_pruning_curve_is_drawn_as_measured() -> None:
    points = [SimpleNamespace(n_muted=n, loss=loss, random_loss=rand, right=0.5) for n, loss, rand in POINTS]
    curve = SimpleNamespace(points=points, n_free=9, tolerance=0.05)
    picture = pruning_chart(curve, "dark")  # type: ignore[arg-type]
    random, greedy = picture.figure.data
    assert list(greedy.x) == [0, 9, 18]
    assert list(greedy.y) == [2.0, 2.05, 5.0]
    assert list(random.y) == [2.0, 3.5, 5.0]
    assert "with 9 it is within 5 % of the first" in picture.alt


def test_a_smaller_number_of_heads_that_costs_more_is_told() -> None:
    losses = ((0, 1.0), (7, 1.12), (14, 1.1), (22, 1.04), (72, 2.0))
    points = tuple(PruningPoint(n, loss, 0.5, 1.5) for n, loss in losses)
    words = finder_atlas.pruning_words(PruningCurve(points, (), 24, ""))
    assert words.startswith("With <b>22 of 72 heads</b> silent, the held-out loss is within 5 %")
    assert "with 7 or 14 silent it rises more" in words
    assert "not even" not in finder_atlas.pruning_words(PruningCurve((points[0], *points[3:]), (), 24, ""))


POINTS = ((0, 2.0, 2.0), (9, 2.05, 3.5), (18, 5.0, 5.0))


def test_names_of_heads_go_there_and_back() -> None:
    heads = ((0, 11), (2, 3), (17, 4))
    assert finder_mute.heads_of([finder_parts.short_name(*head) for head in reversed(heads)]) == heads
    assert finder_mute.heads_of(["L1", "H2", "L1 H2 ", "L-1 H2"]) == ()


def row_with(label: str) -> AtlasRow:
    return SimpleNamespace(label=label, title=label, layer=1, head=2, kv_head=0)  # type: ignore[return-value]


def test_all_filters_must_agree() -> None:
    passes = finder_atlas._passes
    assert passes(row_with("a"), {"label": [], "f_only_layer": ("all",), "f_only_kv": ("0",)})
    assert not passes(row_with("a"), {"label": ["b"]})
    assert not passes(row_with("a"), {"f_only_layer": ("2",)})
    assert not passes(row_with("a"), {"f_only_layer": ("1",), "f_only_kv": ("1",)})
