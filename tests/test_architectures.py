"""Weights and outputs of many architectures against transformers' own eager attention, and the ones outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attention import UserError, kernel, load_model, trace
from attention.models import build
from tests.tiny_models import (
    ARCHITECTURES,
    OUTSIDE,
    SENTENCE,
    random_module,
    save_tiny,
    tiny,
    tiny_config,
    tiny_pair,
    tiny_tokenizer,
)

EXACT = 1e-5
# What each tiny config must come out as: (n_heads, n_kv_heads, width of q and k, width of v).
WIDTHS = dict.fromkeys(("bert", "roberta", "electra", "distilbert", "modernbert"), (6, 6, 8, 8))
WIDTHS |= dict.fromkeys(("gpt2", "gptj", "gpt_neox", "opt"), (6, 6, 8, 8))
WIDTHS |= dict.fromkeys(("qwen2", "phi3", "olmo2", "starcoder2", "granite", "stablelm"), (6, 2, 8, 8))
WIDTHS |= dict.fromkeys(("llama", "mistral", "mixtral", "qwen3", "gemma", "gemma2", "gemma3_text"), (6, 2, 10, 10))
WIDTHS |= dict.fromkeys(("cohere2", "gpt_oss"), (6, 2, 10, 10))
WIDTHS |= dict.fromkeys(("deepseek_v2", "deepseek_v3"), (6, 6, 10, 9)) | {"gpt_bigcode": (6, 1, 8, 8)}
WINDOWED = {"modernbert": {1: 3, 2: 3}, "mistral": {0: 4, 1: 4, 2: 4}, "gemma2": {0: 4, 2: 4}, "gpt_oss": {0: 4, 2: 4}}
WINDOWED |= {name: {0: 4, 1: 4} for name in ("gemma3_text", "cohere2")}
TEXTS = ["the dog ran", SENTENCE, "a cat"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_and_hidden_states_equal_eager(name: str) -> None:
    ours, eager = tiny_pair(name)
    traced = trace(ours, SENTENCE)
    with torch.inference_mode():
        own = eager.base_model(torch.tensor([[token.id for token in traced.tokens]]), output_attentions=True)
    theirs = torch.stack(own.attentions)[:, 0].numpy()
    assert traced.weights.dtype == np.float32
    assert traced.weights.shape == (3, 6, len(traced.tokens), len(traced.tokens)) == theirs.shape
    np.testing.assert_allclose(traced.weights, theirs, atol=EXACT, rtol=0)
    np.testing.assert_allclose(traced.outputs.hidden, own.last_hidden_state[0].numpy(), atol=EXACT, rtol=EXACT)
    # The comparison means something only where heads differ from each other and from a uniform row.
    assert traced.weights.max(axis=-1)[..., 4:].max() > 0.5
    assert all(check.ok for check in traced.checks)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layout_is_read_from_the_tensors(name: str) -> None:
    layout = tiny(name).layout
    assert (layout.n_heads, layout.n_kv_heads, layout.d_head, layout.d_head_v) == WIDTHS[name]
    assert layout.d_model == 48
    expected = "MLA" if name.startswith("deepseek") else {6: "MHA", 2: "GQA", 1: "MQA"}[layout.n_kv_heads]
    assert layout.rung == expected


def test_latent_widths_come_from_the_config() -> None:
    layout = tiny("deepseek_v3").layout
    assert (layout.d_latent, layout.d_rope) == (14, 4)
    assert tiny("llama").layout.d_latent is None


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_padded_batch_equals_each_text_alone(name: str, padding: str) -> None:
    ours = tiny(name)
    together = trace(ours, TEXTS, padding=padding)
    for text, one in zip(TEXTS, together, strict=True):
        alone = trace(ours, text)
        assert one.tokens == alone.tokens
        assert "<pad>" not in {token.raw for token in one.tokens}
        np.testing.assert_allclose(one.weights, alone.weights, atol=EXACT, rtol=0)
        np.testing.assert_allclose(one.outputs.hidden, alone.outputs.hidden, atol=EXACT, rtol=EXACT)
        np.testing.assert_array_equal(one.masks[list(one.mask_of_layer)], alone.masks[list(alone.mask_of_layer)])
        for (word, p), (same_word, same_p) in zip(one.outputs.next_tokens, alone.outputs.next_tokens, strict=True):
            assert (word, p) == (same_word, pytest.approx(same_p, abs=EXACT))


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_reach_the_kernel_and_the_mask_says_so(name: str) -> None:
    traced = trace(tiny(name), SENTENCE)
    rows, columns = np.indices(traced.weights.shape[2:])
    encoder = name == "modernbert"
    for layer in range(3):
        reach = WINDOWED[name].get(layer)
        # A decoder's window counts the row itself; ModernBERT looks up to half a window to either side.
        near = np.abs(rows - columns) <= reach if encoder and reach else rows - columns < (reach or 99)
        expected = near if encoder else near & (columns <= rows)
        np.testing.assert_array_equal(traced.visible(layer), expected)
        assert traced.weights[layer][:, ~expected].sum() == 0
        assert (traced.weights[layer][:, expected] > 0).all()
    assert traced.masks.shape[0] == len(set(map(WINDOWED[name].get, range(3))))
    assert traced.causal is not encoder


def test_layers_of_one_kind_share_one_mask() -> None:
    assert trace(tiny("llama"), SENTENCE).masks.shape[0] == 1
    padded = trace(tiny("llama"), TEXTS)[1]
    assert padded.masks.shape[0] == 1
    assert padded.mask_of_layer == (0, 0, 0)


def test_sinks_leave_rows_below_one_and_the_trace_says_so() -> None:
    sinking, plain = trace(tiny("gpt_oss"), SENTENCE), trace(tiny("llama"), SENTENCE)
    assert sinking.sink_logits
    assert not plain.sink_logits
    sums = sinking.weights.sum(axis=-1)
    assert (sums < 1 + EXACT).all()
    assert (sums < 0.9).mean() > 0.1
    np.testing.assert_allclose(plain.weights.sum(axis=-1), 1, atol=EXACT)


def test_softcap_bounds_the_scores() -> None:
    # A cap of 2 keeps every score within ±2, so no two visible weights of a row differ by more than e^4.
    weights = trace(tiny("gemma2"), SENTENCE).weights[1, :, -1]
    assert 10 < (weights.max(axis=-1) / weights.min(axis=-1)).max() <= np.exp(4) * 1.001


@pytest.mark.parametrize("name", ["llama", "bert", "gpt_oss", "deepseek_v3"])
def test_verify_compares_with_the_models_own_path(name: str) -> None:
    ours = tiny(name)
    check = trace(ours, SENTENCE).verify(ours)
    assert check.ok is True
    assert check.value < 1e-4


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_architecture_outside_the_registry_is_one_clear_error(name: str, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / name, name)
    with pytest.raises(UserError, match="computes attention in its own code"):
        load_model(folder)


def test_a_model_that_never_calls_the_kernel_is_counted_out() -> None:
    kernel.register()
    module = random_module(tiny_config("bloom"), kernel.NAME)
    with pytest.raises(UserError, match="tiny-bloom computes attention in its own code"):
        build(module, tiny_tokenizer(encoder=False), id="tiny-bloom", kind="decoder", revision="r")


def test_layers_with_different_heads_are_refused() -> None:
    kernel.register()
    module = random_module(tiny_config("llama"), kernel.NAME)
    attention = module.model.layers[1].self_attn
    attention.k_proj = torch.nn.Linear(48, 10, bias=False)
    attention.v_proj = torch.nn.Linear(48, 10, bias=False)
    with pytest.raises(UserError, match="6 query and 1 K/V heads, 6 query and 2 K/V heads"):
        build(module, tiny_tokenizer(encoder=False), id="uneven", kind="decoder", revision="r")


def test_a_layer_that_skips_attention_later_is_refused() -> None:
    ours = tiny("llama")
    ours.model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(UserError, match="called attention 2 times instead of 3"):
        trace(ours, SENTENCE)
