"""Small readings of a trace: the working of one cell, averages, whole words, pairs, the chosen cell, files."""

from __future__ import annotations

import csv
import io
import json
import math
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import AttentionTrace, LoadedModel, TraceRequest, UserError, load_model, trace
from attention.exports import head_csv, head_npz, trace_npz
from attention.views import Opened, averages, cell_from, pair_blocks, still_asked, word_view
from attention.working import explain_cell
from tests.tiny_models import SENTENCE, tiny

ALICE = "Alice fed the cats because they were hungry."
MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
SHAPES = {MINILM: (6, 12, 12), SMOLLM: (30, 9, 3)}  # layers, query heads, K/V heads
START = "<|endoftext|>"
HOSTILE = 'say "x", שלום\n=1+1 @cmd +a -b \t<s> </script>'


@cache
def kept(model: str, layer: int) -> AttentionTrace:
    return trace(load_model(model), ALICE, start=START if model == SMOLLM else None, keep=("q", "k"), layer=layer)


class TestWorking:
    @settings(max_examples=40)
    @given(model=st.sampled_from(sorted(SHAPES)), data=st.data())
    def test_the_numbers_multiply_out_to_the_recorded_weight(self, model: str, data: st.DataObject) -> None:
        n_layers, n_heads, n_kv_heads = SHAPES[model]
        layer = data.draw(st.integers(0, n_layers - 1), label="layer")
        traced = kept(model, layer)
        head = data.draw(st.integers(0, n_heads - 1), label="head")
        query = data.draw(st.integers(0, len(traced.tokens) - 1), label="query")
        key = data.draw(st.integers(0, query if model == SMOLLM else len(traced.tokens) - 1), label="key")
        work = explain_cell(traced, head, query, key)

        kv_head = head // (n_heads // n_kv_heads)
        assert (work.layer, work.head, work.kv_head) == (layer, head, kv_head)
        assert traced.kept is not None
        q, k = traced.kept.tensors["q"][head, query], traced.kept.tensors["k"][kv_head, key]
        assert work.d_head == len(q) == len(k)
        assert work.key.dot == pytest.approx(math.fsum(float(a) * float(b) for a, b in zip(q, k, strict=True)))
        assert work.key.score == pytest.approx(work.key.dot / math.sqrt(work.d_head))
        largest = max(row.score for row in work.keys)
        assert work.key.exponential == pytest.approx(math.exp(work.key.score - largest))
        assert work.total == pytest.approx(math.fsum(row.exponential for row in work.keys))
        assert work.key.weight == pytest.approx(work.key.exponential / work.total)
        assert work.recorded == float(traced.weights[layer, head, query, key])
        assert work.key.weight == pytest.approx(work.recorded, abs=1e-5)

    def test_the_row_is_whole_and_sorted_and_named(self) -> None:
        work = explain_cell(kept(MINILM, 1), 3, 6, 4)
        assert (work.query_label, work.key.label) == ("they", "cats")
        assert work.recorded == pytest.approx(0.54, abs=0.01)
        assert sorted(row.index for row in work.keys) == list(range(11))
        shares = [row.weight for row in work.keys]
        assert shares == sorted(shares, reverse=True)
        assert math.fsum(shares) == pytest.approx(1)

    def test_a_left_to_right_row_holds_only_what_it_may_look_at(self) -> None:
        work = explain_cell(kept(SMOLLM, 16), 0, 3, 1)
        assert sorted(row.index for row in work.keys) == [0, 1, 2, 3]

    def test_scores_are_capped_where_the_model_caps_them(self) -> None:
        traced = trace(tiny("gemma2"), SENTENCE, keep=("q", "k"), layer=1)
        work = explain_cell(traced, 5, 9, 2)
        assert work.softcap == 2.0
        assert work.scaling == pytest.approx(7**-0.5)
        assert work.key.score == pytest.approx(2 * math.tanh(work.key.dot * 7**-0.5 / 2))
        assert work.key.weight == pytest.approx(work.recorded, abs=1e-5)

    def test_a_masked_cell_is_refused_by_name(self) -> None:
        with pytest.raises(UserError, match="Alice may not look at cats: the mask hides it"):
            explain_cell(kept(SMOLLM, 0), 0, 1, 4)

    def test_a_cell_beyond_the_window_is_refused(self) -> None:
        traced = trace(tiny("mistral"), SENTENCE, keep=("q", "k"), layer=0)
        with pytest.raises(UserError, match="the mask hides it"):
            explain_cell(traced, 0, 9, 2)
        assert explain_cell(traced, 0, 9, 6).recorded > 0

    @pytest.mark.parametrize("cell", [(12, 0, 0), (-1, 0, 0), (0, 11, 0), (0, 0, 11), (0, -1, 0)])
    def test_a_cell_outside_is_refused(self, cell: tuple[int, int, int]) -> None:
        with pytest.raises(UserError, match="There is no cell"):
            explain_cell(kept(MINILM, 0), *cell)

    def test_without_q_and_k_it_says_how_to_keep_them(self, minilm: LoadedModel) -> None:
        for traced in (trace(minilm, ALICE), trace(minilm, ALICE, keep=("q",), layer=0)):
            with pytest.raises(UserError, match="kept no q and k"):
                explain_cell(traced, 0, 0, 0)

    def test_a_model_with_learned_sinks_is_refused(self) -> None:
        traced = trace(tiny("gpt_oss"), SENTENCE, keep=("q", "k"), layer=1)
        sums = traced.weights[1].sum(axis=-1)
        head, query = np.unravel_index(sums.argmin(), sums.shape)
        assert sums[head, query] < 0.99
        with pytest.raises(UserError, match="adds something to its scores"):
            explain_cell(traced, int(head), int(query), int(query))


class TestAverages:
    def test_they_are_plain_means(self, smollm: LoadedModel) -> None:
        traced = trace(smollm, ALICE, start=START)
        layer, group, whole = averages(traced, 7, 4)
        assert [view.name for view in (layer, group, whole)] == ["This layer", "This K/V group", "The whole model"]
        np.testing.assert_allclose(layer.weights, np.mean([traced.weights[7, h] for h in range(9)], axis=0), atol=1e-6)
        np.testing.assert_allclose(group.weights, sum(traced.weights[7, h] for h in (3, 4, 5)) / 3, atol=1e-6)
        everything = traced.weights.astype(np.float64).reshape(270, *traced.weights.shape[2:]).sum(axis=0) / 270
        np.testing.assert_allclose(whole.weights, everything, atol=1e-6)
        assert "layer 7" in layer.title
        assert group.title == "Mean of layer 7, query heads 3 to 5 (K/V head 1)"

    def test_heads_that_share_nothing_have_no_group(self, minilm: LoadedModel) -> None:
        views = averages(trace(minilm, ALICE), 2, 0)
        assert [view.name for view in views] == ["This layer", "The whole model"]


class TestWords:
    def test_pieces_are_summed_when_looked_at_and_averaged_when_looking(self, minilm: LoadedModel) -> None:
        traced = trace(minilm, "Headscopes glow.")
        labels, weights = word_view(traced, 1, 2)
        assert labels == ["[CLS]", "Headscopes", "glow", ".", "[SEP]"]
        pieces = [index for index, token in enumerate(traced.tokens) if token.end <= 10 and not token.special]
        assert len(pieces) > 1
        last = len(traced.tokens) - 1
        raw = traced.weights[1, 2]
        assert weights[0, 1] == pytest.approx(raw[0, pieces].sum(), abs=1e-6)
        assert weights[1, 0] == pytest.approx(raw[pieces, 0].mean(), abs=1e-6)
        assert weights[1, 4] == pytest.approx(raw[pieces, last].mean(), abs=1e-6)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)

    def test_words_of_a_pair_are_named_from_their_own_sentence(self, minilm: LoadedModel) -> None:
        labels, _ = word_view(trace(minilm, "Headscopes glow.", pair="Unbelievable lighthouses"), 0, 0)
        assert labels == ["[CLS]", "Headscopes", "glow", ".", "[SEP]", "Unbelievable", "lighthouses", "[SEP]"]


class TestPairs:
    def test_blocks_are_mean_shares_that_sum_to_one(self, minilm: LoadedModel) -> None:
        traced = trace(minilm, "The cat sat.", pair="It was a very tired animal.")
        names = [token.label for token in traced.tokens]
        special = [index for index, name in enumerate(names) if name in ("[CLS]", "[SEP]")]
        middle = special[1]
        first, second = list(range(1, middle)), list(range(middle + 1, len(names) - 1))
        blocks = pair_blocks(traced, 3, 5)
        assert [name for name, _ in blocks] == ["first sentence", "second sentence"]
        for rows, (_, shares) in zip((first, second), blocks, strict=True):
            expected = [
                np.mean([sum(traced.weights[3, 5, row, col] for col in cols) for row in rows])
                for cols in (first, second, special)
            ]
            assert shares == pytest.approx(expected, abs=1e-6)
            assert sum(shares) == pytest.approx(1, abs=1e-5)


class TestChosenCell:
    START_CELL = (1, 3, 6)

    @pytest.fixture
    def alice(self, minilm: LoadedModel) -> AttentionTrace:
        return trace(minilm, ALICE)

    def test_the_lock_wins_over_the_link(self, alice: AttentionTrace) -> None:
        lock = {"layer": 2, "head": 0, "query": 4, "key": 2}
        params = {"v.layer": "5", "v.head": "5", "v.query": "5"}
        assert cell_from(alice, lock, params, self.START_CELL) == (2, 0, 4, 2)

    def test_the_link_wins_over_the_start_and_looks_at_its_strongest_key(self, alice: AttentionTrace) -> None:
        params = {"v.layer": "2", "v.head": "0", "v.query": "4"}
        assert cell_from(alice, None, params, self.START_CELL) == (2, 0, 4, 2)

    def test_nothing_chosen_is_the_start(self, alice: AttentionTrace) -> None:
        assert cell_from(alice, None, {}, self.START_CELL) == (1, 3, 6, 4)
        assert cell_from(alice, {}, {}, self.START_CELL) == (1, 3, 6, 4)

    @pytest.mark.parametrize("value", ["99", "-1", "x", "", None, "1.5", "١٢٣٤", [], {}])
    def test_an_invalid_part_falls_back_alone(self, alice: AttentionTrace, value: Any) -> None:
        assert cell_from(alice, None, {"v.layer": value, "v.head": "2"}, self.START_CELL)[:3] == (1, 2, 6)
        assert cell_from(alice, {"layer": 2, "head": value, "query": 4}, {}, self.START_CELL)[:3] == (2, 3, 4)
        assert cell_from(alice, {"layer": 2, "head": 0, "query": 4, "key": value}, {}, self.START_CELL)[3] == 2

    def test_a_masked_key_becomes_the_strongest(self, smollm: LoadedModel) -> None:
        traced = trace(smollm, ALICE, start=START)
        chosen = cell_from(traced, {"layer": 16, "head": 0, "query": 3, "key": 7}, {}, (0, 0, 1))
        assert chosen == (16, 0, 3, int(traced.weights[16, 0, 3].argmax()))


class TestFiles:
    def test_csv_reads_back_equal(self, minilm: LoadedModel) -> None:
        traced = trace(minilm, ALICE)
        header, *lines = csv.reader(io.StringIO(head_csv(traced, 1, 3)))
        read = np.array([[float(cell) for cell in line[1:]] for line in lines], dtype=np.float32)
        np.testing.assert_array_equal(read, traced.weights[1, 3])
        assert header[0] == "layer 1 head 3: query \\ key"
        assert header[7] == "6: they"
        assert [line[0] for line in lines] == header[1:]

    @pytest.mark.parametrize("model", [MINILM, SMOLLM])
    def test_csv_survives_any_words_and_starts_no_formula(self, model: str) -> None:
        traced = trace(load_model(model), HOSTILE)
        rows = list(csv.reader(io.StringIO(head_csv(traced, 0, 0))))
        assert [len(row) for row in rows] == [len(traced.tokens) + 1] * (len(traced.tokens) + 1)
        assert [cell.split(": ", 1)[1] for cell in rows[0][1:]] == [token.label for token in traced.tokens]
        assert any("ש" in cell for cell in rows[0])
        assert not any(cell[:1] in ("=", "+", "-", "@", "\t", "\r", "") for row in rows for cell in row)

    def test_head_npz_reads_back_equal_without_pickle(self, smollm: LoadedModel) -> None:
        traced = trace(smollm, HOSTILE, start=START)
        with np.load(io.BytesIO(head_npz(traced, 4, 2)), allow_pickle=False) as read:
            assert set(read.files) == {"weights", "visible", "tokens", "facts"}
            assert read["weights"].dtype == np.float32
            np.testing.assert_array_equal(read["weights"], traced.weights[4, 2])
            np.testing.assert_array_equal(read["visible"], np.tri(len(traced.tokens), dtype=bool))
            assert read["tokens"].tolist() == [token.label for token in traced.tokens]
            facts = json.loads(str(read["facts"]))
        assert (facts["layer"], facts["head"], facts["start"], facts["text"]) == (4, 2, START, HOSTILE)
        assert facts["model"]["layout"]["n_kv_heads"] == 3

    def test_trace_npz_reads_back_equal_without_pickle(self, minilm: LoadedModel) -> None:
        traced = trace(minilm, ALICE, pair="They ate.")
        with np.load(io.BytesIO(trace_npz(traced)), allow_pickle=False) as read:
            np.testing.assert_array_equal(read["weights"], traced.weights)
            np.testing.assert_array_equal(read["hidden"], traced.outputs.hidden)
            np.testing.assert_array_equal(read["masks"], traced.masks)
            assert read["mask_of_layer"].tolist() == [0] * 6
            assert read["token_ids"].tolist() == [token.id for token in traced.tokens]
            facts = json.loads(str(read["facts"]))
        assert (facts["text"], facts["pair"], facts["axes"]) == (ALICE, "They ate.", ["layer", "head", "query", "key"])
        assert facts["checks"] == {check.name: check.value for check in traced.checks}
        assert TraceRequest(MINILM, ALICE).model == facts["model"]["id"]


class TestStillAsked:
    LINK: ClassVar = {"v.layer": "2", "v.head": "0", "v.query": "4", "text": "x"}

    def test_a_first_visit_keeps_the_whole_link(self) -> None:
        assert still_asked(self.LINK, None, Opened("m", 11, (1, 3, 6))) == self.LINK

    def test_the_same_start_keeps_the_persons_own_choice(self) -> None:
        now = Opened("m", 11, (1, 3, 6))
        assert still_asked(self.LINK, now, now) == self.LINK

    @pytest.mark.parametrize(
        ("now", "gone"),
        [
            (Opened("m", 11, (1, 3, 5)), {"v.query"}),
            (Opened("m", 12, (1, 3, 6)), {"v.query"}),
            (Opened("m", 11, (2, 0, 6)), {"v.layer", "v.head"}),
            (Opened("other", 11, (1, 3, 6)), {"v.layer", "v.head"}),
            (Opened("other", 9, (1, 3, 2)), {"v.layer", "v.head", "v.query"}),
        ],
    )
    def test_what_a_new_text_or_model_moves_is_no_longer_asked(self, now: Opened, gone: set[str]) -> None:
        kept = still_asked(self.LINK, Opened("m", 11, (1, 3, 6)), now)
        assert set(self.LINK) - set(kept) == gone
