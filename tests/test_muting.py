"""Silent heads: what the real models lose, against weights really set to zero, and gradients against differences."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attention import (
    CopyRequest,
    Engine,
    LoadedModel,
    MuteRequest,
    UserError,
    copy_effect,
    head_importance,
    muted_effect,
    pruning_curve,
    trace,
)
from attention.importance import importance_texts, loss_of
from attention.muting import outcome
from attention.sharing import MuteHeads
from attention.tokens import encode
from tests.tiny_models import SENTENCE, tiny, tiny_pair

FIVE = ((17, 3), (17, 4), (17, 5), (18, 6), (18, 7))
# The module that mixes the heads' outputs, and whether it keeps its weights as (in, out).
MIXING = {
    "llama": ("model.layers.{}.self_attn.o_proj", False),
    "gemma2": ("model.layers.{}.self_attn.o_proj", False),
    "gpt2": ("transformer.h.{}.attn.c_proj", True),
    "bert": ("encoder.layer.{}.attention.output.dense", False),
}


def scaled(eager: Any, name: str, layer: int, head: int, width: int, factor: float) -> Any:
    """A copy in which one head's columns of W_O are multiplied: the gate as somebody else would build it."""
    twin = copy.deepcopy(eager)
    path, in_out = MIXING[name]
    weight = twin.get_submodule(path.format(layer)).weight
    with torch.no_grad():
        columns = slice(head * width, (head + 1) * width)
        (weight[columns] if in_out else weight[:, columns]).mul_(factor)
    return twin


class TestInductionHeads:
    """The second copy's loss, in nats a token: SmolLM2, four texts of 50 random tokens twice."""

    def test_without_the_five_the_copy_is_lost(self, smollm: LoadedModel) -> None:
        effect = copy_effect(smollm, FIVE)
        assert effect.mean_before == pytest.approx(1.9, abs=0.1)
        assert effect.mean_after == pytest.approx(10.5, abs=0.3)
        assert effect.raises

    def test_three_of_the_five_read_the_same_keys_and_values(self, smollm: LoadedModel) -> None:
        assert [smollm.layout.kv_head_of(head) for layer, head in FIVE if layer == 17] == [1, 1, 1]

    def test_an_encoder_has_no_such_loss(self, minilm: LoadedModel) -> None:
        with pytest.raises(UserError, match="reads both ways and predicts no next token"):
            copy_effect(minilm, [(0, 0)])


class TestEffect:
    @pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
    def test_muting_is_what_zeros_in_the_output_weights_give(self, name: str) -> None:
        model, eager = tiny_pair(name)
        ids = torch.tensor([encode(model.tokenizer, SENTENCE).ids])
        twin = scaled(eager, name, 1, 4, model.layout.d_head_v, 0.0)
        found = outcome(model, SENTENCE, ((1, 4),))
        with torch.inference_mode():
            answer = twin(input_ids=ids, labels=ids)
        np.testing.assert_allclose(found.probabilities, answer.logits[0, -1].softmax(-1), atol=1e-5)
        assert found.loss == pytest.approx(float(answer.loss), rel=1e-4)

    def test_next_tokens_hold_both_top_tens_and_exact_probabilities(self) -> None:
        model, eager = tiny_pair("llama")
        effect = muted_effect(model, SENTENCE, [(0, 1), (2, 5), (0, 1)])
        assert effect.heads == ((0, 1), (2, 5))
        ids = torch.tensor([encode(model.tokenizer, SENTENCE).ids])
        with torch.inference_mode():
            before = eager(input_ids=ids).logits[0, -1].softmax(-1)
        shown = [change.before for change in effect.next_tokens]
        np.testing.assert_allclose(shown[:10], before.topk(10).values, atol=1e-5)
        assert shown == sorted(shown, reverse=True)
        after = outcome(model, SENTENCE, effect.heads).probabilities
        assert after is not None
        assert set(np.sort(after)[-10:].tolist()) <= {change.after for change in effect.next_tokens}
        assert effect.similarity is None
        assert effect.similarities == ()

    def test_an_embedding_moves_and_its_neighbours_with_it(self, minilm: LoadedModel) -> None:
        text, others = "The cat sat on the mat.", ("A dog slept on the rug.", "Share prices fell on Monday.")
        effect = muted_effect(minilm, text, [(5, 11), (5, 10)], others=others)
        plain, silent = (
            [one.outputs.embedding for one in (trace(minilm, line, what_if=what_if) for line in (text, *others))]
            for what_if in (None, MuteHeads(((5, 10), (5, 11))))
        )
        assert effect.similarity == pytest.approx(float(plain[0] @ silent[0]), abs=1e-5)
        assert 0.5 < effect.similarity < 0.9999
        for index, change in enumerate(effect.similarities, 1):
            assert change.text == others[index - 1]
            assert change.before == pytest.approx(float(plain[0] @ plain[index]), abs=1e-5)
            assert change.after == pytest.approx(float(silent[0] @ silent[index]), abs=1e-5)
        assert effect.next_tokens == ()
        assert effect.loss is None

    def test_wrong_heads_and_ways_are_told(self, minilm: LoadedModel) -> None:
        with pytest.raises(UserError, match="There is no layer 6, head 0"):
            muted_effect(minilm, "The cat sat.", [(6, 0)])
        with pytest.raises(UserError, match="how is 'half'"):
            muted_effect(minilm, "The cat sat.", [(0, 0)], "half")  # type: ignore[arg-type]

    def test_a_single_token_has_no_loss_of_its_own(self) -> None:
        effect = muted_effect(tiny("llama"), "cat", [(0, 0)])
        assert effect.loss is None
        assert len(effect.next_tokens) >= 10


class TestEngineDoor:
    def test_unmuting_gives_the_same_bits_again(self, smollm: LoadedModel) -> None:
        """Fresh engines, so that nothing kept can answer for the model."""
        request = MuteRequest(smollm.id, "The cat sat on the")
        muted = Engine().muted(replace(request, heads=FIVE))
        again = Engine().muted(request)
        assert any(change.before != change.after for change in muted.next_tokens)
        assert all(change.before == change.after for change in again.next_tokens)
        assert {change.text: change.before for change in again.next_tokens}.items() <= {
            change.text: change.before for change in muted.next_tokens
        }.items()
        assert muted.loss is not None
        assert again.loss is not None
        assert again.loss.after == muted.loss.before
        assert pickle.loads(pickle.dumps(muted)) == muted

    def test_equal_questions_are_answered_once_in_any_order_of_heads(
        self, minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def counted(*args: Any, **options: Any) -> Any:
            asked.append(args[2])
            return outcome(*args, **options)

        monkeypatch.setattr("attention.engine.outcome", counted)
        engine = Engine()
        first = engine.muted(MuteRequest(minilm.id, "The cat sat.", ((2, 1), (0, 2))))
        assert engine.muted(MuteRequest(minilm.id, "The cat sat.", ((0, 2), (2, 1), (2, 1)))) == first
        engine.muted(MuteRequest(minilm.id, "The cat sat.", ((3, 3),), "mean"))
        assert asked == [(), ((0, 2), (2, 1)), ((3, 3),)]
        assert CopyRequest("m").key != replace(MuteRequest("m", ""), text="m").key

    def test_the_copy_is_asked_through_the_same_door(
        self, smollm: LoadedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from attention.muting import CopyEffect

        calls = []

        def counted(model: LoadedModel, heads: Any, how: str, *, start: str | None, seed: int) -> CopyEffect:
            calls.append((model.id, heads, how, start, seed))
            return CopyEffect((2.0,), (3.0,))

        monkeypatch.setattr("attention.engine.copy_effect", counted)
        engine = Engine()
        first = engine.copied(CopyRequest(smollm.id, ((18, 6), (17, 3)), seed=4))
        assert engine.copied(CopyRequest(smollm.id, ((17, 3), (18, 6), (18, 6)), seed=4)) is first
        assert calls == [(smollm.id, ((17, 3), (18, 6)), "zero", None, 4)]


class TestImportance:
    """One backward pass against central differences through W_O in transformers' own eager model."""

    @pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
    def test_decoders(self, name: str) -> None:
        model, eager = tiny_pair(name)
        importance = head_importance(model)
        eager.double()
        texts = [item["text"] for item in importance_texts(model, "select")]
        ids = [torch.tensor([encode(model.tokenizer, text, start=model.default_start).ids]) for text in texts]
        for layer, head in ((0, 1), (2, 4)):
            losses = []
            for step in (5e-3, -5e-3):
                twin = scaled(eager, name, layer, head, model.layout.d_head_v, 1 + step)
                with torch.inference_mode():
                    losses.append([float(twin(input_ids=one, labels=one).loss) for one in ids])
            slopes = (np.array(losses[0]) - losses[1]) / 1e-2
            assert importance[layer, head] == pytest.approx(np.abs(slopes).mean(), rel=1e-2)

    def test_encoders(self) -> None:
        model, eager = tiny_pair("bert")
        importance = head_importance(model)
        eager.double()
        items = importance_texts(model, "select")
        ids = [torch.tensor([encode(model.tokenizer, item["text"]).ids]) for item in items]
        topics = np.array([item["topic"] for item in items])

        def embedded(module: Any) -> np.ndarray:
            with torch.inference_mode():
                means = [module(input_ids=one).last_hidden_state[0].mean(dim=0).numpy() for one in ids]
            return np.array([mean / np.linalg.norm(mean) for mean in means])

        def loss(embeddings: np.ndarray) -> float:
            mass = np.exp(20 * embeddings @ embeddings.T)
            np.fill_diagonal(mass, 0)
            same = topics[:, None] == topics[None, :]
            return float(-np.log((mass * same).sum(axis=1) / mass.sum(axis=1)).mean())

        plain = embedded(eager)
        moved = [embedded(scaled(eager, "bert", 1, 3, model.layout.d_head_v, 1 + step)) for step in (5e-3, -5e-3)]
        slopes = []
        for index in range(len(items)):
            either = []
            for side in moved:
                mixed = plain.copy()
                mixed[index] = side[index]
                either.append(loss(mixed))
            slopes.append(abs(either[0] - either[1]) / 1e-2)
        assert importance[1, 3] == pytest.approx(np.mean(slopes), rel=1e-2)

    def test_the_shared_model_is_left_alone(self) -> None:
        model = tiny("llama")
        before = trace(model, SENTENCE).weights.copy()
        head_importance(model)
        assert not any(parameter.requires_grad for parameter in model.model.parameters())
        assert all(parameter.grad is None for parameter in model.model.parameters())
        np.testing.assert_array_equal(trace(model, SENTENCE).weights, before)


class TestPruning:
    @pytest.mark.parametrize("name", ["bert", "gpt2"])
    def test_a_curve_goes_from_all_heads_to_none_each_head_once(self, name: str) -> None:
        model = tiny(name)
        curve = pruning_curve(model, steps=2)
        n_heads = model.n_layers * 6
        assert [point.n_muted for point in curve.points] == [0, n_heads // 2, n_heads]
        assert sorted(curve.order) == list(np.ndindex(model.n_layers, 6))
        assert curve.points[0].loss == pytest.approx(loss_of(model)[0])
        assert curve.points[1].loss == pytest.approx(loss_of(model, "held_out", curve.order[: n_heads // 2])[0])
        assert curve.points[2].random_loss == pytest.approx(curve.points[2].loss)
        first = head_importance(model)
        least = {divmod(int(i), 6) for i in np.argsort(first, axis=None)[: n_heads // 2]}
        assert set(curve.order[: n_heads // 2]) == least

    def test_a_muted_head_counts_nothing_further(self) -> None:
        model = tiny("gpt2")
        with_all, without = head_importance(model), head_importance(model, muted=[(0, 0)])
        assert without[2, 5] != with_all[2, 5]

    def test_free_heads_are_those_within_the_tolerance(self) -> None:
        from attention.atlas import PruningCurve, PruningPoint

        losses = (1.0, 1.2, 1.04, 1.06)
        points = tuple(PruningPoint(10 * i, loss, 0.5, loss) for i, loss in enumerate(losses))
        assert PruningCurve(points, (), 24, "say the next token").n_free == 20
