"""The named formulas on maps small enough to check by hand, against plain loops, and on the real models."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention import LoadedModel, UserError, head_scores, trace
from attention import formulas as f
from attention.importance import value_lengths
from attention.probes import copy_scores, detect_heads, repeated_copy
from tests.tiny_models import SENTENCE, tiny, tiny_pair

# The hand case: a causal map of four tokens.
HAND = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.3, 0.5, 0], [0.1, 0.15, 0.5, 0.25]])
CAUSAL = np.tril(np.ones((4, 4), bool))


class TestByHand:
    def test_offsets(self) -> None:
        assert f.offset_weight(HAND, -1) == pytest.approx((0.5 + 0.3 + 0.5) / 3)
        assert f.offset_weight(HAND, 0, [1, 3]) == pytest.approx((0.5 + 0.25) / 2)
        assert f.offset_share(HAND, -1) == pytest.approx(1 / 3)  # row 1 is a tie and no hit
        assert math.isnan(f.offset_weight(HAND, 4))

    def test_a_uniform_row_points_nowhere(self) -> None:
        uniform = np.full((6, 6), 1 / 6)
        assert [float(f.offset_share(uniform, offset)) for offset in (-1, 0, 1)] == [0, 0, 0]

    def test_sink(self) -> None:
        mass = f.sink_mass(HAND, CAUSAL)
        np.testing.assert_allclose(mass, [1.8 / 4, 0.95 / 3, 1.0 / 2, 0.25])
        np.testing.assert_allclose(f.sink_mass(HAND), HAND.mean(axis=0))

    def test_entropy_and_broadness(self) -> None:
        np.testing.assert_allclose(f.entropy(HAND)[:2], [0, math.log(2)], atol=1e-12)
        np.testing.assert_allclose(f.entropy(HAND / 2), f.entropy(HAND))  # a learned sink outside the text
        assert f.entropy(np.zeros((1, 3))).tolist() == [0]
        broad = f.broadness(HAND, CAUSAL)
        assert math.isnan(broad[0])
        assert broad[1] == pytest.approx(1)
        assert broad[3] == pytest.approx(math.exp(-sum(p * math.log(p) for p in HAND[3])) / 4)

    def test_detectors(self) -> None:
        previous = f.detection_pattern("previous", [7, 8, 9, 10])
        assert f.detector_score(HAND, previous) == pytest.approx(0.325)
        assert f.detector_score(HAND, previous, "abs") == pytest.approx(-0.1)
        both = {"exclude_first": True, "exclude_current": True}
        assert f.detector_score(HAND, previous, **both) == pytest.approx(0.8421, abs=1e-4)
        assert f.detector_score(HAND, previous, "abs", **both) == pytest.approx(0.6625)

    def test_ideal_maps(self) -> None:
        ids = [5, 6, 5, 6]
        assert np.argwhere(f.detection_pattern("duplicate", ids)).tolist() == [[2, 0], [3, 1]]
        assert np.argwhere(f.detection_pattern("induction", ids)).tolist() == [[2, 1], [3, 2]]

    def test_rollout_multiplies_later_layers_from_the_left(self) -> None:
        one = np.array([[1, 0, 0], [0.6, 0.4, 0], [0.2, 0.3, 0.5]])
        two = np.array([[1, 0, 0], [0.2, 0.8, 0], [0.5, 0.1, 0.4]])
        np.testing.assert_allclose(f.rollout(np.stack([one, two]))[2], [0.335, 0.140, 0.525])
        np.testing.assert_allclose(f.rollout(np.stack([two, one]))[2], [0.3025, 0.1725, 0.525])

    def test_value_norms(self) -> None:
        np.testing.assert_allclose(f.value_norms(np.array([[0.5, 0.5]]), np.array([[3.0, 4.0], [0, 1]])), [[2.5, 0.5]])

    def test_wrong_shapes_and_names_are_told(self) -> None:
        with pytest.raises(UserError, match=r"shape \(4, 4\)"):
            f.rollout(HAND)
        with pytest.raises(UserError, match=r"pattern \(3, 3\)"):
            f.detector_score(HAND, np.eye(3))
        with pytest.raises(UserError, match="'next' is not a kind of head"):
            f.detection_pattern("next", [1])  # type: ignore[arg-type]
        with pytest.raises(UserError, match="'sum' is not a measure"):
            f.detector_score(HAND, np.eye(4), "sum")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 3), min_size=2, max_size=9), st.integers(0, 2**32 - 1))
def test_copies_and_what_followed_them_are_found_as_plain_loops_find_them(ids: list[int], seed: int) -> None:
    maps = np.random.default_rng(seed).dirichlet(np.ones(len(ids)), size=(2, len(ids)))
    for head in maps:
        for job, step in ((f.duplicate_weight, 0), (f.induction_weight, 1)):
            rows = []
            for query, token in enumerate(ids):
                keys = [earlier + step for earlier in range(query) if ids[earlier] == token]
                if keys:
                    rows.append(sum(head[query, key] for key in keys))
            expected = np.mean(rows) if rows else np.nan
            np.testing.assert_allclose(job(head, ids), expected)
    np.testing.assert_allclose(f.duplicate_weight(maps, ids), [f.duplicate_weight(head, ids) for head in maps])


class TestSmolLM:
    """The repeated-copy recipe: four texts of 50 random tokens twice, seed 0, no start token."""

    @pytest.fixture(scope="class")
    def scores(self, smollm: LoadedModel) -> dict[str, np.ndarray]:
        return copy_scores(smollm, repeated_copy(smollm))

    def test_the_recipe_is_the_one_described(self, smollm: LoadedModel) -> None:
        probe = repeated_copy(smollm)
        expected = torch.randint(100, 20000, (4, 50), generator=torch.Generator().manual_seed(0))
        assert torch.equal(probe.ids, torch.cat([expected, expected], dim=1))
        assert probe.second.tolist() == list(range(50, 100))
        control = repeated_copy(smollm, copied=False).ids
        assert torch.equal(control[:, :50], expected)
        assert (control[:, :50] == control[:, 50:]).float().mean() < 0.02

    @pytest.mark.parametrize(
        ("name", "layer", "head", "value"),
        [
            ("induction", 18, 6, 0.92),
            ("induction", 17, 3, 0.80),
            ("induction", 17, 4, 0.78),
            ("previous", 16, 0, 0.91),
            ("previous", 11, 1, 0.84),
            ("duplicate", 8, 0, 0.77),
            ("duplicate", 14, 3, 0.78),
        ],
    )
    def test_known_heads(self, scores: dict[str, np.ndarray], name: str, layer: int, head: int, value: float) -> None:
        assert scores[name][layer, head] == pytest.approx(value, abs=0.03)

    def test_the_strongest_are_these(self, scores: dict[str, np.ndarray]) -> None:
        strongest = [divmod(int(index), 9) for index in np.argsort(-scores["induction"], axis=None)[:5]]
        assert strongest == [(18, 6), (17, 3), (17, 4), (17, 5), (18, 7)]
        assert divmod(int(scores["previous"].argmax()), 9) == (16, 0)

    def test_a_start_token_lowers_the_duplicate_scores(self, smollm: LoadedModel) -> None:
        begun = copy_scores(smollm, repeated_copy(smollm, start=smollm.tokenizer.bos_token))["duplicate"]
        assert begun[8, 0] == pytest.approx(0.73, abs=0.03)
        assert begun[14, 3] == pytest.approx(0.73, abs=0.03)


class TestMiniLM:
    def test_known_heads_and_a_source_for_every_score(self, minilm: LoadedModel) -> None:
        scores = head_scores(minilm)
        assert scores["previous"].values[0, 2] >= 0.99
        assert 0.62 <= scores["next"].values[1, 8] <= 0.70
        assert scores["next"].n >= 20
        for score in scores.scores:
            assert score.values.shape == (6, 12)
            assert np.isfinite(score.values).all(), score.name
            assert score.formula
            assert score.source
            assert score.rows
            assert not score.values.flags.writeable
        # What Kobayashi found: a resting place takes much weight and adds little.
        resting = scores["sink"].values > 0.6
        assert resting.sum() >= 5
        assert (scores["sink_by_length"].values[resting] < scores["sink"].values[resting]).mean() > 0.9


def test_a_trace_is_scored_as_the_library_would_score_its_maps() -> None:
    traced = trace(tiny("gpt2"), "the cat saw the cat")
    ids = [token.id for token in traced.tokens]
    found = detect_heads(traced, "duplicate", exclude_current=True)
    for layer, head in np.ndindex(found.shape):
        maps = traced.weights[layer, head]
        total = sum(maps[i, j] for i in range(5) for j in range(5) if i != j)
        assert found[layer, head] == pytest.approx((maps[3, ids.index(ids[3])] + maps[4, ids.index(ids[4])]) / total)


class TestAnyArchitecture:
    @pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2", "gpt_oss", "deepseek_v3"])
    def test_every_head_gets_every_score(self, name: str) -> None:
        model = tiny(name)
        scores = head_scores(model)
        assert {"previous", "sink", "induction", "importance", "entropy"} <= set(scores.names)
        for score in scores.scores:
            assert score.values.shape == (model.n_layers, 6)
            assert np.isfinite(score.values).all(), score.name

    @pytest.mark.parametrize(
        ("name", "mixing"),
        [
            ("llama", "model.layers.{}.self_attn.o_proj"),
            ("gpt2", "transformer.h.{}.attn.c_proj"),
            ("bert", "encoder.layer.{}.attention.output.dense"),
        ],
    )
    def test_lengths_are_those_of_value_times_output_weights(self, name: str, mixing: str) -> None:
        model, eager = tiny_pair(name)
        for layer in range(model.n_layers):
            traced = trace(model, SENTENCE, keep=("v",), layer=layer)
            matrix = eager.get_submodule(mixing.format(layer)).weight.detach().numpy()
            matrix = matrix if name == "gpt2" else matrix.T  # Conv1D holds (in, out)
            width = model.layout.d_head_v
            found = value_lengths(model, traced)
            assert found is not None
            for head in range(6):
                value = traced.kept.tensors["v"][model.layout.kv_head_of(head)]
                added = value @ matrix[head * width : (head + 1) * width]
                np.testing.assert_allclose(found[layer, head], np.linalg.norm(added, axis=-1), rtol=1e-4)
