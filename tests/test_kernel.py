"""The kernel against SDPA and plain formulas, its masks against a canary, what-ifs against edited weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from attention import AttentionTrace, LatentKV, MuteHeads, ShareKV, UserError, kernel, trace
from attention.models import LoadedModel
from attention.sharing import as_what_ifs
from tests.tiny_models import SENTENCE, random_module, tiny, tiny_config, wrapped

EXACT = 1e-5
LOWEST = torch.finfo(torch.float32).min
B, H, G, T, D, V = 2, 6, 2, 5, 4, 7


def tensors(n_kv_heads: int = G, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(B, H, T, D, generator=generator),
        torch.randn(B, n_kv_heads, T, D, generator=generator),
        torch.randn(B, n_kv_heads, T, V, generator=generator),
    )


def causal_mask() -> torch.Tensor:
    return torch.full((T, T), LOWEST).triu(1)[None, None]


def run(*qkv: torch.Tensor, mask: torch.Tensor | None = None, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return kernel.attention_forward(torch.nn.Module(), *qkv, mask, **options)


# --- the formula ---


@given(n_kv_heads=st.sampled_from([1, 2, 3, 6]), masked=st.booleans(), scaling=st.sampled_from([None, 0.1, 1.0]))
def test_output_equals_sdpa_with_grouped_heads(n_kv_heads: int, masked: bool, scaling: float | None) -> None:
    query, key, value = tensors(n_kv_heads)
    mask = causal_mask() if masked else None
    output, weights = run(query, key, value, mask=mask, scaling=scaling)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True
    )
    assert output.shape == (B, T, H, V)
    assert output.is_contiguous()
    torch.testing.assert_close(output, theirs.transpose(1, 2), atol=EXACT, rtol=0)
    assert weights.shape == (B, H, T, T)


def test_weights_one_number_at_a_time() -> None:
    query, key, value = tensors()
    output, weights = run(query, key, value)
    for batch, head, row in [(0, 0, 0), (1, 2, 3), (0, 3, 4), (1, 5, 1)]:
        shared = head // 3
        scores = [float(query[batch, head, row] @ key[batch, shared, column]) / math.sqrt(D) for column in range(T)]
        exponentials = [math.exp(score) for score in scores]
        expected = [one / sum(exponentials) for one in exponentials]
        np.testing.assert_allclose(weights[batch, head, row], expected, atol=EXACT)
        mixed = sum(w * value[batch, shared, column] for column, w in enumerate(expected))
        torch.testing.assert_close(output[batch, row, head], mixed, atol=EXACT, rtol=0)


def test_inputs_are_left_alone() -> None:
    query, key, value = tensors()
    mask = causal_mask()
    before = [tensor.clone() for tensor in (query, key, value, mask)]
    recorder = kernel.Recorder(
        n_layers=1, plan=kernel.KVPlan(pools=({0: kernel.Pool(torch.tensor([0, 0]))},)), mutes=(MuteHeads(((0, 1),)),)
    )
    with kernel.recording(recorder):
        run(query, key, value, mask=mask, softcap=2.0)
    for tensor, old in zip((query, key, value, mask), before, strict=True):
        assert torch.equal(tensor, old)


def test_softcap_is_applied_after_scaling_and_before_the_mask() -> None:
    query, key, value = tensors()
    _, weights = run(query, key, value, mask=causal_mask(), scaling=0.7, softcap=1.5)
    scores = 1.5 * torch.tanh(query @ key.repeat_interleave(3, dim=1).mT * 0.7 / 1.5)
    blocked = torch.ones(T, T, dtype=torch.bool).triu(1)
    torch.testing.assert_close(weights, scores.masked_fill(blocked, -math.inf).softmax(-1), atol=EXACT, rtol=0)


def test_sinks_take_their_share_before_the_rows_are_kept() -> None:
    query, key, value = tensors()
    sinks = torch.linspace(-2, 3, H)
    output, weights = run(query, key, value, s_aux=sinks)
    exponentials = (query @ key.repeat_interleave(3, dim=1).mT / math.sqrt(D)).exp()
    whole = exponentials.sum(-1, keepdim=True) + sinks.exp()[None, :, None, None]
    torch.testing.assert_close(weights, exponentials / whole, atol=EXACT, rtol=0)
    mixed = (exponentials / whole) @ value.repeat_interleave(3, dim=1)
    torch.testing.assert_close(output, mixed.transpose(1, 2), atol=EXACT, rtol=0)


def test_sinks_are_recorded_like_any_weights() -> None:
    query, key, value = tensors()
    recorder = kernel.Recorder(n_layers=1)
    with kernel.recording(recorder):
        _, weights = run(query, key, value, s_aux=torch.ones(H))
    assert recorder.sinks
    assert torch.equal(recorder.weights[0], weights)


def test_position_bias_is_added_to_the_scores() -> None:
    query, key, value = tensors()
    bias = torch.randn(1, H, T, T, generator=torch.Generator().manual_seed(1))
    _, weights = run(query, key, value, position_bias=bias)
    scores = query @ key.repeat_interleave(3, dim=1).mT / math.sqrt(D) + bias
    torch.testing.assert_close(weights, scores.softmax(-1), atol=EXACT, rtol=0)


def test_a_boolean_mask_means_true_may_look() -> None:
    query, key, value = tensors()
    allowed = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    torch.testing.assert_close(run(query, key, value, mask=allowed), run(query, key, value, mask=causal_mask()))


def test_a_mask_longer_than_the_keys_is_cut() -> None:
    query, key, value = tensors()
    longer = torch.cat([causal_mask(), torch.zeros(1, 1, T, 3)], dim=-1)
    torch.testing.assert_close(run(query, key, value, mask=longer), run(query, key, value, mask=causal_mask()))


@pytest.mark.parametrize("blocked", [LOWEST, -math.inf])
def test_a_row_with_no_visible_key_is_zero_not_nan(blocked: float) -> None:
    query, key, value = tensors()
    mask = torch.zeros(B, 1, T, T)
    mask[1, 0, 2] = blocked
    mask[0, 0, 0, 1:] = blocked
    recorder = kernel.Recorder(n_layers=1)
    with kernel.recording(recorder):
        output, weights = run(query, key, value, mask=mask)
    assert torch.isfinite(weights).all()
    assert (weights[1, :, 2] == 0).all()
    assert (output[1, 2] == 0).all()
    assert torch.equal(recorder.weights[0], weights)
    expected = torch.ones(B, H, T)
    expected[1, :, 2] = 0
    torch.testing.assert_close(weights.sum(-1), expected)
    assert (weights[0, :, 0, 0] == 1).all()


def test_a_half_precision_model_gets_its_own_precision_back() -> None:
    query, key, value = (tensor.bfloat16() for tensor in tensors())
    recorder = kernel.Recorder(n_layers=1)
    with kernel.recording(recorder):
        output, _ = run(query, key, value)
    assert output.dtype == torch.bfloat16
    assert recorder.weights.dtype == torch.float32


# --- the masks really arrive ---


def test_the_kernel_is_registered_with_a_mask_function_of_the_same_name() -> None:
    kernel.register()
    assert AttentionInterface()[kernel.NAME] is kernel.attention_forward
    assert AttentionMaskInterface()[kernel.NAME] is eager_mask


@pytest.mark.parametrize("name", ["mistral", "gemma3_text", "modernbert", "llama", "bert"])
def test_canary_padding_and_windows_reach_every_layer(name: str) -> None:
    ours = tiny(name)
    ids = torch.tensor([[4, 5, 6, 7, 8, 9, 10, 11, 12], [4, 5, 6, 0, 0, 0, 0, 0, 0]])
    attend = (ids != 0).long()
    recorder = kernel.Recorder(n_layers=3)
    with torch.inference_mode(), kernel.recording(recorder):
        ours.model(input_ids=ids, attention_mask=attend)
    weights = recorder.weights
    assert (weights[:, 1, :, :3, 3:] == 0).all(), "the short text looked at its padding"
    assert (weights[:, 1, :, :3].sum(-1) - 1).abs().max() < EXACT
    decoder = ours.kind == "decoder"
    after = weights[:, 0].triu(1).sum()
    assert (after == 0) == decoder
    windowed = weights[0 if decoder else 1, 0, :, 8, :4].sum()
    assert (windowed == 0) == (name in {"mistral", "gemma3_text", "modernbert"})


def test_without_its_mask_function_the_canary_would_die(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tiny("mistral")
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, kernel.NAME)
    recorder = kernel.Recorder(n_layers=3)
    with torch.inference_mode(), kernel.recording(recorder):
        ours.model(input_ids=torch.tensor([[4, 5, 6, 7]]))
    assert recorder.weights[:, 0].triu(1).sum() > 0, "transformers now passes masks by another road: look again"


# --- recording ---


def test_nothing_is_recorded_outside_the_block() -> None:
    recorder = kernel.Recorder(n_layers=1)
    with kernel.recording(recorder):
        run(*tensors())
    run(*tensors(seed=1))
    assert recorder.calls == 1
    assert torch.equal(recorder.weights[0], run(*tensors())[1])


def test_recordings_nest() -> None:
    outer, inner = kernel.Recorder(n_layers=2), kernel.Recorder(n_layers=1)
    with kernel.recording(outer):
        run(*tensors())
        with kernel.recording(inner):
            run(*tensors(seed=1))
        run(*tensors(seed=2))
    assert (outer.calls, inner.calls) == (2, 1)
    assert torch.equal(outer.weights[1], run(*tensors(seed=2))[1])


def test_an_error_inside_ends_the_recording() -> None:
    recorder = kernel.Recorder(n_layers=1)
    with pytest.raises(RuntimeError, match="stop"), kernel.recording(recorder):
        raise RuntimeError("stop")
    run(*tensors())
    assert recorder.calls == 0


@pytest.mark.parametrize("name", ["llama", "gemma2", "bert", "deepseek_v3", "granite"])
@pytest.mark.parametrize("what_if", [None, ShareKV(1)])
def test_kept_tensors_reproduce_the_row_and_the_output(name: str, what_if: ShareKV | None) -> None:
    if name == "deepseek_v3" and what_if:
        what_if = None
    ours = tiny(name)
    seen: list[torch.Tensor] = []
    layers = ours.model.base_model.encoder.layer if name == "bert" else ours.model.model.layers
    last = layers[2].attention.output.dense if name == "bert" else layers[2].self_attn.o_proj
    handle = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    traced = trace(ours, SENTENCE, keep=("q", "k", "v"), layer=2, what_if=what_if)
    handle.remove()
    assert traced.kept is not None
    assert traced.kept.layer == 2
    q, k, v = (traced.kept.tensors[part] for part in "qkv")
    heads = q.shape[0] // k.shape[0]
    scores = np.einsum("hqd,hkd->hqk", q, np.repeat(k, heads, axis=0)) * traced.kept.scaling
    if traced.kept.softcap:
        scores = traced.kept.softcap * np.tanh(scores / traced.kept.softcap)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True)) * traced.visible(2)
    np.testing.assert_allclose(
        exponentials / exponentials.sum(axis=-1, keepdims=True), traced.weights[2], atol=EXACT, rtol=0
    )
    output = np.einsum("hqk,hkv->qhv", traced.weights[2], np.repeat(v, heads, axis=0))
    np.testing.assert_allclose(output.reshape(len(traced.tokens), -1), seen[0][0].numpy(), atol=1e-4, rtol=1e-4)


def test_only_what_was_asked_for_is_kept() -> None:
    kept = trace(tiny("llama"), SENTENCE, keep=("k",), layer=1).kept
    assert kept is not None
    assert set(kept.tensors) == {"k"}
    assert trace(tiny("llama"), SENTENCE).kept is None


# --- what-ifs, against weights edited by hand ---


def same(one: AttentionTrace, other: AttentionTrace) -> None:
    np.testing.assert_allclose(one.weights, other.weights, atol=EXACT, rtol=0)
    np.testing.assert_allclose(one.outputs.hidden, other.outputs.hidden, atol=1e-4, rtol=1e-4)


def differs(one: AttentionTrace, other: AttentionTrace) -> None:
    assert np.abs(one.outputs.hidden - other.outputs.hidden).max() > 0.01


def into_output_projection(ours: LoadedModel, layer: int) -> torch.nn.Module:
    if ours.id == "bert":
        return ours.model.encoder.layer[layer].attention.output.dense
    return ours.model.model.layers[layer].self_attn.o_proj


@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_muting_equals_editing_the_output_projections_input(name: str, how: Any) -> None:
    ours = tiny(name)
    width = ours.layout.d_head_v
    muted = ((0, 2), (2, 5), (2, 0))

    def edit(layer: int) -> Any:
        def hook(_: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            columns = inputs[0].clone()
            for head in (head for where, head in muted if where == layer):
                part = columns[..., head * width : (head + 1) * width]
                part.copy_(torch.zeros_like(part) if how == "zero" else part.mean(dim=1, keepdim=True).expand_as(part))
            return (columns,)

        return hook

    muted_by_kernel = trace(ours, SENTENCE, what_if=MuteHeads(muted, how=how))
    plain = trace(ours, SENTENCE)
    handles = [into_output_projection(ours, layer).register_forward_pre_hook(edit(layer)) for layer in range(3)]
    muted_by_hand = trace(ours, SENTENCE)
    for handle in handles:
        handle.remove()
    same(muted_by_kernel, muted_by_hand)
    differs(muted_by_kernel, plain)
    same(trace(ours, SENTENCE), plain)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("what_if", [MuteHeads(((0, 1), (1, 4)), how="mean"), MuteHeads(((1, 0),)), ShareKV(1)])
def test_a_what_if_does_not_feel_the_padding(what_if: Any, padding: Any) -> None:
    ours = tiny("llama")
    for one in trace(ours, ["the dog", SENTENCE], what_if=what_if, padding=padding):
        same(one, trace(ours, one.text, what_if=what_if))


def pooled(linear: torch.nn.Linear, groups: int, n_kv_heads: int, how: str) -> None:
    """Replace each head's rows of a projection by its group's mean (or first), for every head of the group."""
    for parameter in filter(lambda p: p is not None, (linear.weight, linear.bias)):
        heads = parameter.detach().unflatten(0, (groups, n_kv_heads // groups, -1))
        chosen = heads.mean(dim=1, keepdim=True) if how == "mean" else heads[:, :1]
        with torch.no_grad():
            parameter.copy_(chosen.expand_as(heads).flatten(0, 2))


@pytest.mark.parametrize("how", ["mean", "first"])
@pytest.mark.parametrize(
    ("name", "groups"), [("llama", 1), ("bert", 3), ("bert", 2), ("bert", 1), ("qwen2", 1), ("biased", 1)]
)
def test_sharing_equals_projections_pooled_by_hand(name: str, groups: int, how: Any) -> None:
    # qwen2 and bert have biases; the last case is Llama with K/V biases and 6 K/V heads.
    changes = {"num_key_value_heads": 6, "attention_bias": True} if name == "biased" else {}
    name = "llama" if changes else name
    config = tiny_config(name, **changes)
    kernel.register()
    ours = wrapped(random_module(config, kernel.NAME), name)
    by_hand = wrapped(random_module(config, kernel.NAME), name)
    for layer in range(3):
        if name == "bert":
            projections = by_hand.model.encoder.layer[layer].attention.self
            pair = (projections.key, projections.value)
        else:
            projections = by_hand.model.model.layers[layer].self_attn
            pair = (projections.k_proj, projections.v_proj)
        for linear in pair:
            pooled(linear, groups, ours.layout.n_kv_heads, how)
    shared = trace(ours, SENTENCE, what_if=ShareKV(groups, how=how))
    same(shared, trace(by_hand, SENTENCE))
    differs(shared, trace(ours, SENTENCE))


def test_sharing_only_some_layers_leaves_the_others() -> None:
    ours = tiny("bert")
    plain, one, every = (trace(ours, SENTENCE, what_if=w) for w in (None, ShareKV(1, layers=(1,)), ShareKV(1)))
    np.testing.assert_array_equal(one.weights[0], plain.weights[0])
    assert np.abs(one.weights[1] - plain.weights[1]).max() > 0.1
    assert np.abs(one.weights[0] - every.weights[0]).max() > 0.1


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize("how", ["mean", "first"])
def test_sharing_with_its_own_number_of_heads_changes_nothing(name: str, how: Any) -> None:
    ours = tiny(name)
    shared = trace(ours, SENTENCE, what_if=ShareKV(ours.layout.n_kv_heads, how=how))
    plain = trace(ours, SENTENCE)
    np.testing.assert_array_equal(shared.weights, plain.weights)
    np.testing.assert_array_equal(shared.outputs.hidden, plain.outputs.hidden)


def test_what_ifs_combine_in_order() -> None:
    ours = tiny("bert")
    both = trace(ours, SENTENCE, what_if=(ShareKV(3), MuteHeads(((1, 1),))))
    only_shared, only_muted = (
        trace(ours, SENTENCE, what_if=ShareKV(3)),
        trace(ours, SENTENCE, what_if=MuteHeads(((1, 1),))),
    )
    np.testing.assert_array_equal(both.weights[:2], only_shared.weights[:2])
    differs(both, only_shared)
    differs(both, only_muted)


@pytest.mark.parametrize(
    "what_if", [ShareKV(1), MuteHeads(((0, 0), (2, 3))), (ShareKV(2), MuteHeads(((1, 1),), how="mean"))]
)
def test_the_shared_model_is_untouched_bit_for_bit(what_if: Any) -> None:
    ours = tiny("bert")
    before = {name: tensor.clone() for name, tensor in ours.model.state_dict().items()}
    plain = trace(ours, SENTENCE)
    differs(trace(ours, SENTENCE, what_if=what_if), plain)
    after = ours.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    again = trace(ours, SENTENCE)
    np.testing.assert_array_equal(again.weights, plain.weights)
    assert ours.model.config._attn_implementation == kernel.NAME


# --- what-ifs that cannot be ---


@pytest.mark.parametrize("groups", [0, 4, 5, 7, 12, -1])
def test_groups_that_do_not_divide_name_the_ones_that_do(groups: int) -> None:
    with pytest.raises(UserError, match=rf"6 K/V heads .* into {groups}\..*1, 2, 3, 6\."):
        trace(tiny("bert"), SENTENCE, what_if=ShareKV(groups))


@pytest.mark.parametrize(
    ("what_if", "words"),
    [
        (LatentKV(0), "rank is 0.*1 to 96"),
        (LatentKV(97), "rank is 97.*1 to 96"),
        (LatentKV(8, split=(4, 5)), "4 \\+ 5 numbers is not a latent of 8"),
        (LatentKV(50, split=(49, 1)), "rank of K is 49.*1 to 48"),
        (LatentKV(4, layers=(3,)), "no layer 3"),
        ((ShareKV(1), ShareKV(2, layers=(1,))), "Two what-ifs share the K/V heads of layer 1"),
        ((LatentKV(4), LatentKV(5)), "Two what-ifs rebuild K and V of layer 0"),
        (MuteHeads(((3, 0),)), "no layer 3, head 0.*0 to 2.*0 to 5"),
        (MuteHeads(((0, 6),)), "no layer 0, head 6"),
        (MuteHeads(((-1, 0),)), "no layer -1"),
        (MuteHeads(((0, 0),), how="loud"), "how is 'loud'.*zero or mean"),
        (ShareKV(1, how="median"), "how is 'median'.*mean or first"),
        (ShareKV(1, layers=(3,)), "no layer 3"),
        ("ShareKV(1)", "not a what-if"),
        ([ShareKV(1)], "not a what-if"),
        ((ShareKV(1), 3), "3 is not a what-if"),
    ],
)
def test_a_what_if_that_cannot_be_is_one_sentence(what_if: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        trace(tiny("bert"), SENTENCE, what_if=what_if)


def test_sharing_a_latent_is_refused() -> None:
    with pytest.raises(UserError, match=r"latent.*no K/V heads to share"):
        trace(tiny("deepseek_v3"), SENTENCE, what_if=ShareKV(1))


def test_one_several_or_no_what_if() -> None:
    assert as_what_ifs(None) == ()
    assert as_what_ifs(ShareKV(1)) == (ShareKV(1),)
    assert as_what_ifs((ShareKV(1), MuteHeads(()))) == (ShareKV(1), MuteHeads(()))
