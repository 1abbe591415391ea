"""The claims on the cards: measured again on the committed sentences, and once more on another path."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attention import LoadedModel, UserError, trace
from attention.patterns import JOBS, Score, caption_of, evidence_for, measure, swap_of, word_rows
from attention.tokens import encode, words_of
from tests.tiny_models import tiny

ASSETS = Path(__file__).parent.parent / "assets"
SENTENCES: dict[str, Any] = json.loads((ASSETS / "sentences.json").read_text(encoding="utf-8"))
EVIDENCE: dict[str, Any] = json.loads((ASSETS / "evidence.json").read_text(encoding="utf-8"))
MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
HELD_OUT = "held_out"
Measured = dict[str, list[Score]]


@pytest.fixture(scope="module")
def fresh(minilm: LoadedModel, smollm: LoadedModel) -> dict[str, Measured]:
    """Both models measured now."""
    return {model.id: measure(model, trace) for model in (minilm, smollm)}


def shipped(model: str, job: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(s["half"], s["name"]): s for s in EVIDENCE["models"][model]["scores"][job]}


class TestFile:
    def test_it_was_measured_on_the_committed_sentences_and_weights(
        self, minilm: LoadedModel, smollm: LoadedModel
    ) -> None:
        digest = hashlib.sha256((ASSETS / "sentences.json").read_bytes()).hexdigest()
        assert EVIDENCE["sentences_sha256"] == digest
        assert {name: facts["revision"] for name, facts in EVIDENCE["models"].items()} == {
            MINILM: minilm.revision,
            SMOLLM: smollm.revision,
        }

    @pytest.mark.parametrize("model", [MINILM, SMOLLM])
    def test_a_fresh_measurement_gives_the_same_figures(self, model: str, fresh: dict[str, Measured]) -> None:
        assert set(fresh[model]) == set(EVIDENCE["models"][model]["scores"])
        for job, scores in fresh[model].items():
            recorded = shipped(model, job)
            assert len(scores) == len(recorded)
            for score in scores:
                known = recorded[score.half, score.name]
                assert score.value == pytest.approx(known["value"], abs=1e-3)
                assert score.baseline == pytest.approx(known["baseline"], abs=1e-3)
                assert (score.n, score.baseline_name) == (known["n"], known["baseline_name"])

    def test_both_halves_are_told_apart(self) -> None:
        for scores in EVIDENCE["models"][MINILM]["scores"].values():
            assert {score["half"] for score in scores} == {"select", HELD_OUT}
        found = evidence_for(MINILM, "agreement")
        assert [score.half for score in found].count(HELD_OUT) == 4
        assert evidence_for(SMOLLM, "clause") == ()
        assert evidence_for("no-such-model", "agreement") == ()


class TestPromises:
    """Measured now, on the half no head was chosen on."""

    def held_out(self, fresh: dict[str, Measured], job: str) -> dict[str, Score]:
        return {score.name: score for score in fresh[MINILM][job] if score.half == HELD_OUT}

    def test_who_is_meant_follows_gender_and_number(self, fresh: dict[str, Measured]) -> None:
        scores = self.held_out(fresh, "agreement")
        above, first = scores["agrees in gender or number: above"], scores["agrees in gender or number: first"]
        assert above.n == first.n >= 40
        assert above.value >= 0.85
        assert first.value >= 0.75
        assert above.baseline == first.baseline == 0.5

    def test_who_is_meant_fails_where_only_meaning_decides(self, fresh: dict[str, Measured]) -> None:
        score = self.held_out(fresh, "agreement")["only meaning decides: above"]
        assert score.n >= 20
        assert 0.35 <= score.value <= 0.65
        assert score.baseline == 0.5

    def test_object_to_verb_beats_every_fixed_distance(self, fresh: dict[str, Measured]) -> None:
        score = self.held_out(fresh, "object_verb")["verb first"]
        assert score.value >= 0.65
        assert score.baseline == pytest.approx(0.25)
        assert score.baseline is not None
        assert score.value - score.baseline >= 0.30

    def test_previous_word_holds_up_to_a_hundred_tokens_and_then_breaks(self, fresh: dict[str, Measured]) -> None:
        scores = self.held_out(fresh, "previous")
        assert scores.pop("mean weight").value >= 0.99
        by_length = {int(name.split()[0]): score.value for name, score in scores.items()}
        short = [value for length, value in by_length.items() if length <= 101]
        long = [value for length, value in by_length.items() if length > 200]
        assert len(short) >= 2
        assert min(short) >= 0.99
        assert len(long) >= 1
        assert max(long) < 0.91


class TestWordNumbers:
    """A label of sentences.json must name the same word as the tokenizer's own count of words."""

    @pytest.mark.parametrize("kind", ["agreement", "meaning_only", "object_verb"])
    @pytest.mark.parametrize("model", ["minilm", "smollm"])
    def test_labels_hit_their_words(self, kind: str, model: str, request: pytest.FixtureRequest) -> None:
        loaded: LoadedModel = request.getfixturevalue(model)
        for item in SENTENCES[kind]:
            text = item["text"]
            tokens = encode(loaded.tokenizer, text).tokens
            words = [
                text[tokens[group[0]].start : tokens[group[-1]].end].strip()
                for group in words_of(tokens)
                if not tokens[group[0]].special
            ]
            for name, place in item.items():
                if f"{name}_word" in item:
                    assert words[place] == item[f"{name}_word"], (text, name, words)

    @pytest.mark.parametrize("model", ["minilm", "smollm"])
    def test_grammar_arcs_hit_their_words_too(self, model: str, request: pytest.FixtureRequest) -> None:
        loaded: LoadedModel = request.getfixturevalue(model)
        for item in SENTENCES["dependencies"]:
            tokens = encode(loaded.tokenizer, item["text"]).tokens
            groups = [group for group in words_of(tokens) if not tokens[group[0]].special]
            words = [item["text"][tokens[group[0]].start : tokens[group[-1]].end].strip() for group in groups]
            for arc in item["arcs"]:
                for end in ("dependent", "head"):
                    assert words[arc[end]] == arc[f"{end}_word"], (item["text"], words)


class TestAnotherPath:
    """One job again through transformers' own eager attention, merging words by hand."""

    @pytest.fixture(scope="class")
    def rows(self, minilm: LoadedModel) -> list[tuple[dict[str, Any], np.ndarray]]:
        return list(self.eager_rows(minilm))

    def eager_rows(self, minilm: LoadedModel) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """(sentence, weights between its words of layer 1, head 3); words by the file's own pattern."""
        eager = copy.deepcopy(minilm.model)
        eager.set_attn_implementation("eager")
        pattern = re.compile(SENTENCES["word_pattern"])
        for item in SENTENCES["agreement"]:
            if item["half"] != HELD_OUT:
                continue
            spans = [match.span() for match in pattern.finditer(item["text"])]
            fed = minilm.tokenizer(item["text"], return_offsets_mapping=True, return_tensors="pt")
            offsets = fed.pop("offset_mapping")[0].tolist()
            with torch.inference_mode():
                weights = eager(**fed, output_attentions=True).attentions[1][0, 3].double().numpy()
            groups = [
                [index for index, (start, end) in enumerate(offsets) if end > start and first <= start < last]
                for first, last in spans
            ]
            yield (
                item,
                np.array([[weights[np.ix_(q, k)].sum(axis=1).mean() for k in groups] for q in groups]),
            )

    def test_every_word_row_is_the_same(
        self, rows: list[tuple[dict[str, Any], np.ndarray]], minilm: LoadedModel
    ) -> None:
        for item, expected in rows:
            np.testing.assert_allclose(word_rows(trace(minilm, item["text"]), 1, 3), expected, atol=1e-5)

    def test_who_is_meant_scores_the_same(self, rows: list[tuple[dict[str, Any], np.ndarray]]) -> None:
        above = [row[item["pronoun"], item["antecedent"]] > row[item["pronoun"], item["other"]] for item, row in rows]
        first = [row[item["pronoun"]].argmax() == item["antecedent"] for item, row in rows]
        nearest = [item["antecedent"] > item["other"] for item, _ in rows]
        recorded = shipped(MINILM, "agreement")
        for name, hits in (("above", above), ("first", first)):
            score = recorded[HELD_OUT, f"agrees in gender or number: {name}"]
            assert score["value"] == pytest.approx(np.mean(hits), abs=1e-9)
            assert score["baseline"] == pytest.approx(np.mean(nearest), abs=1e-9)
            assert score["n"] == len(hits)


class TestExamples:
    def test_each_example_has_its_caption_and_other_texts_have_none(self) -> None:
        for example in SENTENCES["examples"]:
            assert caption_of(example["text"]) == example["caption"]
        assert caption_of("Any other text.") == ""

    def test_only_examples_with_a_swap_offer_one(self) -> None:
        offered = [example["id"] for example in SENTENCES["examples"] if swap_of(example["text"])]
        assert offered == [example["id"] for example in SENTENCES["examples"] if "swap" in example] == ["alice"]

    def test_every_job_is_inside_its_model(self, minilm: LoadedModel, smollm: LoadedModel) -> None:
        for model in (minilm, smollm):
            for job in JOBS[model.id]:
                assert 0 <= job.layer < model.n_layers
                assert 0 <= job.head < model.layout.n_heads

    def test_a_model_without_named_heads_is_told_so(self) -> None:
        stranger = replace(tiny("bert"), id="tiny-bert")
        with pytest.raises(UserError, match="tiny-bert has no named heads"):
            measure(stranger, trace)
