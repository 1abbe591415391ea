"""A real layer taken out: the seven steps give what the model itself gives, in every layer of both models."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from attention.errors import UserError
from attention.layout import HeadLayout
from attention.models import LoadedModel
from attention.multihead import multi_head_attention
from attention.real_layer import MOST_TOKENS, real_layer
from tests.tiny_models import SENTENCE, tiny

ALICE = "Alice fed the cats because they were hungry."
START = "<|endoftext|>"


def hidden_states(model: LoadedModel, ids: list[int]) -> list[np.ndarray]:
    """What transformers itself says enters each layer."""
    with torch.inference_mode():
        made = model.reference(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return [state[0].numpy() for state in made.hidden_states]


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


def test_every_layer_of_minilm(minilm: LoadedModel) -> None:
    states = hidden_states(minilm, minilm.tokenizer(ALICE)["input_ids"])
    for layer in range(6):
        taken = real_layer(minilm, ALICE, layer)
        block = minilm.model.encoder.layer[layer].attention
        np.testing.assert_allclose(taken.x, states[layer], rtol=0, atol=1e-5)
        with torch.inference_mode():  # the model's own attention, called by hand on what enters the layer
            theirs = block.output.dense(block.self(torch.tensor(states[layer])[None])[0])[0].numpy()
        assert relative(taken.run().output, theirs) < 1e-5
        assert taken.difference(taken.run().output) < 1e-5
        assert np.abs(theirs).max() > 0.1


def test_every_layer_of_smollm(smollm: LoadedModel) -> None:
    ids = [smollm.tokenizer.convert_tokens_to_ids(START), *smollm.tokenizer(ALICE)["input_ids"]]
    states = hidden_states(smollm, ids)
    trunk = smollm.reference.model
    positions = torch.arange(len(ids))[None]
    blocked = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
    for layer in range(30):
        taken = real_layer(smollm, ALICE, layer, start=START)
        block = trunk.layers[layer]
        with torch.inference_mode():
            entering = block.input_layernorm(torch.tensor(states[layer])[None])
            tables = trunk.rotary_emb(entering, positions)
            theirs = block.self_attn(entering, position_embeddings=tables, attention_mask=blocked)[0][0].numpy()
        assert relative(taken.x, entering[0].numpy()) < 1e-5
        assert relative(taken.run().output, theirs) < 1e-5
        assert taken.difference(taken.run().output) < 1e-5


def test_smollm_brings_rope_and_its_shared_heads(smollm: LoadedModel) -> None:
    taken = real_layer(smollm, ALICE, 3, start=START)
    assert (taken.causal, taken.layout) == (True, HeadLayout(576, 9, 3))
    assert taken.tokens == (START, "Alice", "fed", "the", "cats", "because", "they", "were", "hungry", ".")
    assert {step.number for step in taken.run().steps} == {"1", "2", "3", "3½", "4", "5", "6", "7"}
    without = multi_head_attention(taken.x, taken.weights, taken.layout, causal=True)
    assert taken.difference(without.output) > 1e-2  # RoPE matters


def test_minilm_has_biases_and_no_rope(minilm: LoadedModel) -> None:
    taken = real_layer(minilm, ALICE, 0)
    assert set(taken.weights) == {f"{kind}_{letter}" for kind in "Wb" for letter in "qkvo"}
    assert (taken.causal, taken.rope) == (False, None)
    own = minilm.model.encoder.layer[0].attention.self
    np.testing.assert_array_equal(taken.weights["W_q"], own.query.weight.numpy().T)
    np.testing.assert_array_equal(taken.weights["b_k"], own.key.bias.numpy())


def test_arrays_are_read_only_and_the_shared_model_keeps_no_trace(minilm: LoadedModel) -> None:
    def hooks() -> int:
        parts = (*minilm.model.modules(), *minilm.reference.modules())
        return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in parts)

    before = hooks()
    taken = real_layer(minilm, ALICE, 1)
    assert hooks() == before
    for array in (taken.x, taken.expected, *taken.weights.values()):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert not np.shares_memory(taken.weights["b_q"], minilm.model.encoder.layer[1].attention.self.query.bias.numpy())


def test_two_texts_at_once_do_not_mix(minilm: LoadedModel) -> None:
    texts = (ALICE, "The cat sat on the mat that the dog chased.")
    alone = [real_layer(minilm, text, 2) for text in texts]
    found: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda at=at: found.update({at: real_layer(minilm, texts[at % 2], 2).x}))
        for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at in range(4):
        np.testing.assert_array_equal(found[at], alone[at % 2].x)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "llama", "qwen2"])
def test_kin_of_bert_and_llama_are_walked(name: str) -> None:
    model = tiny(name)
    for layer in range(model.n_layers):
        taken = real_layer(model, SENTENCE, layer)
        assert taken.difference(taken.run().output) < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "mistral", "qwen3", "granite", "gemma2", "deepseek_v3", "stablelm", "opt"])
def test_a_model_that_does_more_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UserError) as refused:
        real_layer(tiny(name), SENTENCE, 0)
    assert len(str(refused.value)) > 40


@pytest.mark.parametrize("layer", [-1, 6])
def test_a_layer_the_model_has_not(minilm: LoadedModel, layer: int) -> None:
    with pytest.raises(UserError, match=f"no layer {layer}.*0 to 5"):
        real_layer(minilm, ALICE, layer)


def test_a_text_too_long_or_empty(minilm: LoadedModel) -> None:
    assert len(real_layer(minilm, "a " * (MOST_TOKENS - 2), 0).tokens) == MOST_TOKENS
    with pytest.raises(UserError, match="65 tokens"):
        real_layer(minilm, "a " * (MOST_TOKENS - 1), 0)
    with pytest.raises(UserError):
        real_layer(minilm, "  ", 0)
