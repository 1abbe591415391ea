"""Point at two words, get the heads: the ranking, its baseline, its ranks, and every wrong way to ask."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch

from attention import HeadLink, LoadedModel, UserError, rank_heads_for_link, trace
from attention.links import OffsetProfile, find_word, heads_for_link, profile_of, words_in
from attention.patterns import PRESETS, Preset, sentences
from attention.probes import offset_profile
from tests.tiny_models import tiny

TIRED = "The cat sat on the mat because it was tired."
MAT = "The cat sat on the mat that the dog chased."


def at(links: tuple[HeadLink, ...], layer: int, head: int) -> HeadLink:
    return next(link for link in links if (link.layer, link.head) == (layer, head))


class TestPresets:
    @pytest.mark.parametrize("preset", PRESETS[:2], ids=lambda preset: preset.title)
    def test_who_is_meant(self, minilm: LoadedModel, preset: Preset) -> None:
        query, key = preset.title.split(" → ")
        found = at(rank_heads_for_link(minilm, preset.text, query, key), 1, 3)
        assert found == at(rank_heads_for_link(minilm, preset.text, preset.query, preset.key), 1, 3)
        assert found.weight > 0.5
        assert found.gain > 0.4

    def test_the_tired_cat(self, minilm: LoadedModel) -> None:
        links = rank_heads_for_link(minilm, TIRED, "it", "cat")
        assert [(link.layer, link.head) for link in links[:2]] == [(5, 11), (3, 1)]
        assert links[0].weight == pytest.approx(0.71, abs=0.01)
        assert links[1].weight == pytest.approx(0.49, abs=0.01)

    def test_the_trap_a_previous_word_head_wins_for_the_wrong_reason(self, smollm: LoadedModel) -> None:
        links = rank_heads_for_link(smollm, MAT, "that", "mat", start=smollm.default_start)
        trap, noun = at(links, 16, 0), at(links, 25, 2)
        assert links.index(trap) < 5
        assert trap.weight > 0.85
        assert trap.positional > 0.7
        assert trap.gain < 0.2
        assert noun.gain > 0.7
        assert {link.kv_head for link in links if link.head in (3, 4, 5)} == {1}

    @pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.title)
    def test_every_preset_names_a_head_among_the_first_five(
        self, preset: Preset, minilm: LoadedModel, smollm: LoadedModel
    ) -> None:
        model = {one.id: one for one in (minilm, smollm)}[preset.model]
        links = rank_heads_for_link(model, preset.text, preset.query, preset.key, start=model.default_start)
        found = at(links, preset.layer, preset.head)
        assert links.index(found) < 5
        assert found.rank == 1
        assert found.weight > 0.5
        words = re.findall(r"\w+", preset.text)
        assert preset.title.replace(",", "").split()[0] in {words[preset.query], "object", "previous", "repeated"}
        assert len(preset.caption.split()) <= 25
        assert (found.gain < 0.25) == (preset.title in {"previous word", "that → mat, a trap"})


class TestRanking:
    def test_every_head_once_strongest_first(self, minilm: LoadedModel) -> None:
        links = rank_heads_for_link(minilm, TIRED, "it", "cat")
        assert {(link.layer, link.head) for link in links} == set(np.ndindex(6, 12))
        assert len(links) == 72
        weights = [link.weight for link in links]
        assert weights == sorted(weights, reverse=True)

    def test_pieces_are_summed_over_keys_and_averaged_over_queries(self, minilm: LoadedModel) -> None:
        """Against transformers' eager attention, grouping pieces by hand."""
        text = "Zebrafishes outswam jellyfishes yesterday."
        eager = copy.deepcopy(minilm.model)
        eager.set_attn_implementation("eager")
        fed = minilm.tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        spans = fed.pop("offset_mapping")[0].tolist()
        with torch.inference_mode():
            maps = torch.stack(eager(**fed, output_attentions=True).attentions)[:, 0].double().numpy()
        words = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
        pieces = [[i for i, (a, b) in enumerate(spans) if b > a and first <= a < last] for first, last in words]
        assert min(len(pieces[0]), len(pieces[2])) >= 2
        by_word = np.array(
            [[maps[:, :, q][..., k].sum(axis=-1).mean(axis=-1) for k in pieces] for q in pieces]
        )  # (query, key, layer, head)
        for link in rank_heads_for_link(minilm, text, "Zebrafishes", "jellyfishes"):
            row = by_word[0, :, link.layer, link.head]
            assert link.weight == pytest.approx(row[2], abs=1e-5)
            assert link.rank == 1 + sum(row > row[2] + 1e-9)

    def test_positional_is_the_mean_at_that_distance_over_our_plain_sentences(self, minilm: LoadedModel) -> None:
        found = at(rank_heads_for_link(minilm, TIRED, "it", "cat"), 5, 11)
        cells = []
        for item in sentences()["previous_word"]:
            traced = trace(minilm, item["text"])
            words = words_in(traced)
            for query in range(6, len(words)):
                rows = traced.weights[5, 11][list(words[query].tokens)][:, list(words[query - 6].tokens)]
                cells.append(rows.sum(axis=1).mean())
        assert found.positional == pytest.approx(np.mean(cells), abs=1e-4)

    def test_a_profile_is_a_mean_per_distance_and_holds_its_farthest(self) -> None:
        maps = [np.arange(9.0).reshape(1, 1, 3, 3), np.array([[[[10.0, 20.0], [30.0, 40.0]]]])]
        profile = profile_of(maps, 1, 1, reach=2)
        assert [profile.at(offset).item() for offset in (-2, -1, 0, 1, 2)] == [
            6.0,
            pytest.approx((3 + 7 + 30) / 3),
            pytest.approx((0 + 4 + 8 + 10 + 40) / 5),
            pytest.approx((1 + 5 + 20) / 3),
            2.0,
        ]
        assert profile.counts.tolist() == [1, 3, 5, 3, 1]
        assert profile.at(-9).item() == 6.0


class TestMistakes:
    @pytest.mark.parametrize(
        ("query", "key", "sentence"),
        [
            ("dog", "cat", "The query word 'dog' is not in the text. Its words are The, cat, sat, on, the, mat"),
            ("it", "the", "The key word 'tHe'"),
            ("it", 99, "There is no key word number 99. The text has 11 words, numbered 0 to 10."),
            ("it", -1, "There is no key word number -1."),
            ("it", "it", "Both ends of the link are word number 7, 'it'."),
        ],
    )
    def test_each_is_told(self, minilm: LoadedModel, query: str, key: str | int, sentence: str) -> None:
        wanted = "tHe" if key == "the" else key
        with pytest.raises(UserError) as told:
            rank_heads_for_link(minilm, TIRED, query, wanted)
        assert str(told.value).startswith(sentence)

    def test_a_word_that_stands_twice_is_listed_with_its_numbers(self, minilm: LoadedModel) -> None:
        words = words_in(trace(minilm, "the dog saw the cat"))
        with pytest.raises(UserError, match=r"stands in the text 2 times\. It is word number 0 and 3"):
            find_word(words, "the")

    def test_capitals_tell_words_apart_only_when_one_is_left(self, minilm: LoadedModel) -> None:
        words = words_in(trace(minilm, TIRED))
        assert (find_word(words, "The"), find_word(words, "the"), find_word(words, "CAT")) == (0, 4, 1)

    def test_a_model_that_reads_left_to_right_cannot_look_ahead(self, smollm: LoadedModel) -> None:
        with pytest.raises(UserError, match=r"'chased' \(word 9\) stands after 'mat' \(word 5\)"):
            rank_heads_for_link(smollm, MAT, "mat", "chased")

    def test_true_is_no_word_number(self, minilm: LoadedModel) -> None:
        with pytest.raises(UserError, match="True is not in the text"):
            rank_heads_for_link(minilm, TIRED, "it", True)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "mistral", "gpt_oss", "deepseek_v3"])
def test_any_architecture(name: str) -> None:
    model = tiny(name)
    traced = trace(model, "the cat sat on the mat that ran")
    profile = offset_profile(model)
    assert isinstance(profile, OffsetProfile)
    links = heads_for_link(traced, "that", "cat", profile)
    assert len(links) == 6 * model.n_layers
    first = int(traced.tokens[0].special)
    for link in links:
        assert link.weight == pytest.approx(traced.weights[link.layer, link.head, 6 + first, 1 + first], abs=1e-6)
        assert link.kv_head == model.layout.kv_head_of(link.head)
    assert links == rank_heads_for_link(model, "the cat sat on the mat that ran", "that", "cat")
