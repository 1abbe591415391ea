"""What-ifs against independent ways of getting the same numbers: changed checkpoints, eager attention, identities."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from attention import AttentionTrace, LatentKV, LoadedModel, ShareKV, UserError, calibration, kernel, plans, trace
from attention.calibration import Moments, calibration_pieces, measure, moments_of
from attention.sharing import WhatIf, bytes_per_token, numbers_cached
from attention.texts import bundled_text
from tests.tiny_models import SENTENCE, random_module, tiny_config, wrapped

EXACT = 1e-5


@pytest.fixture(autouse=True)
def _little_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Identities hold whatever the calibration text was; some 600 tokens are enough for random models."""
    monkeypatch.setattr(calibration, "N_TOKENS", 600)


@cache
def tiny(name: str, **changes: Any) -> LoadedModel:
    kernel.register()
    return wrapped(random_module(tiny_config(name, **changes), kernel.NAME), f"exact-{name}-{len(changes)}")


BIASED = {"attention_bias": True}


def same(one: AttentionTrace, other: AttentionTrace, within: float = EXACT) -> None:
    scale = max(1.0, float(np.abs(other.outputs.hidden).max()))
    np.testing.assert_allclose(one.weights, other.weights, atol=within, rtol=0)
    np.testing.assert_allclose(one.outputs.hidden, other.outputs.hidden, atol=within * scale, rtol=0)


def differs(one: AttentionTrace, other: AttentionTrace) -> None:
    assert np.abs(one.outputs.hidden - other.outputs.hidden).max() > 1e-2


def identities(layout: Any) -> list[WhatIf]:
    full = numbers_cached(layout)
    halves = (layout.n_kv_heads * layout.d_head, layout.n_kv_heads * layout.d_head_v)
    n = layout.n_kv_heads
    return [
        *(ShareKV(n, how) for how in ("mean", "first", "aligned")),
        ShareKV(n, "aligned", groups="by-similarity"),
        LatentKV(full),
        LatentKV(full, whiten=False),
        LatentKV(full, split=halves),
    ]


@pytest.mark.parametrize(("name", "changes"), [("llama", {}), ("llama", BIASED), ("bert", {}), ("mistral", {})])
def test_what_keeps_everything_changes_nothing(name: str, changes: dict[str, Any]) -> None:
    ours = tiny(name, **changes)
    plain = trace(ours, SENTENCE)
    for what_if in identities(ours.layout):
        same(trace(ours, SENTENCE, what_if=what_if), plain)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_turning_heads_without_pooling_changes_nothing(name: str) -> None:
    """Turns there and back, every head in a group of its own, real turns and not the identity."""
    ours = tiny(name)
    n = ours.layout.n_kv_heads
    apart = torch.arange(n)
    pools = {}
    for layer in range(ours.n_layers):
        turns = plans.head_turns(ours, (0,) * n, layer)
        assert (turns[0][1] - torch.eye(ours.layout.d_head)).abs().max() > 0.1
        pools[layer] = kernel.Pool(apart, turns=turns)
    recorder = kernel.Recorder(n_layers=3, plan=kernel.KVPlan(pools=(pools,)))
    ids = torch.tensor([[token.id for token in trace(ours, SENTENCE).tokens]])
    with torch.inference_mode(), kernel.recording(recorder):
        ours.model(input_ids=ids)
    assert recorder.weights is not None
    np.testing.assert_allclose(recorder.weights[:, 0].numpy(), trace(ours, SENTENCE).weights, atol=EXACT)


def test_gqa_as_mha_by_repetition_changes_nothing() -> None:
    """The GQA checkpoint with each K/V head written out three times is an MHA model that gives the same output."""
    gqa = tiny("llama")
    config = tiny_config("llama", num_key_value_heads=6)
    mha = random_module(config, kernel.NAME)
    state = {}
    for name, tensor in gqa.model.state_dict().items():
        if "k_proj" in name or "v_proj" in name:
            state[name] = tensor.unflatten(0, (2, 10)).repeat_interleave(3, dim=0).flatten(0, 1)
        else:
            state[name] = tensor
    mha.load_state_dict(state)
    repeated = wrapped(mha, "exact-repeated")
    assert repeated.layout.rung == "MHA"
    same(trace(repeated, SENTENCE), trace(gqa, SENTENCE))
    same(trace(repeated, SENTENCE, what_if=ShareKV(2)), trace(gqa, SENTENCE))


WHAT_IFS = [
    ShareKV(1, "aligned"),
    ShareKV(1, "random"),
    ShareKV(2, "random"),
    LatentKV(11),
    LatentKV(11, whiten=False),
    LatentKV(11, split=(4, 7)),
    LatentKV(5, layers=(1,)),
]


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize("what_if", WHAT_IFS, ids=str)
def test_a_what_if_equals_a_checkpoint_with_changed_weights(name: str, what_if: ShareKV | LatentKV) -> None:
    """The effective W_K and W_V, written into a copy of the model that runs under transformers' eager attention."""
    ours = tiny(name)
    by_hand = copy.deepcopy(ours.model)
    by_hand.set_attn_implementation("eager")
    trunk = by_hand.get_decoder() if ours.kind == "decoder" else by_hand
    layers = trunk.layers if ours.kind == "decoder" else trunk.encoder.layer
    for layer in range(3) if what_if.layers is None else what_if.layers:
        attention = layers[layer].self_attn if ours.kind == "decoder" else layers[layer].attention.self
        names = ("k_proj", "v_proj") if ours.kind == "decoder" else ("key", "value")
        weight, bias = effective(ours, what_if, layer)
        at = ours.kv_projections[layer][0].out_features
        for projection, rows in zip(names, (slice(None, at), slice(at, None)), strict=True):
            made = torch.nn.Linear(weight.shape[1], weight[rows].shape[0])
            made.weight.data, made.bias.data = weight[rows].clone(), bias[rows].clone()
            setattr(attention, projection, made)
    changed = trace(ours, SENTENCE, what_if=what_if)
    with torch.inference_mode():
        expected = by_hand(
            input_ids=torch.tensor([[token.id for token in changed.tokens]]), output_attentions=True
        ).attentions
    for layer in range(3):
        np.testing.assert_allclose(changed.weights[layer], expected[layer][0].numpy(), atol=EXACT)
    differs(changed, trace(ours, SENTENCE))


def effective(ours: LoadedModel, what_if: ShareKV | LatentKV, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[W_K; W_V] and bias a what-if amounts to, by formulas of this test's own."""
    weight, bias = plans.projection_of(ours, layer)
    at = ours.kv_projections[layer][0].out_features
    if isinstance(what_if, LatentKV):
        energy = moments_of(ours).energy[layer] if what_if.whiten else (weight @ weight.T).double().numpy()
        keep = np.zeros_like(energy)
        parts = [(slice(None), what_if.rank)]
        if what_if.split is not None:
            parts = [(slice(None, at), what_if.split[0]), (slice(at, None), what_if.split[1])]
        for rows, rank in parts:
            left, _, _ = np.linalg.svd(energy[rows, rows])
            keep[rows, rows] = left[:, :rank] @ left[:, :rank].T
        return torch.from_numpy(keep).float() @ weight, bias
    if what_if.how == "random":
        rebuild = plans.kv_plan(ours, (what_if,)).rebuilds[layer]
        assert len(rebuild.down) == numbers_cached(ours.layout, what_if)
        return rebuild.up @ rebuild.down, torch.zeros_like(bias)
    return pooled_after_turns(ours, layer)


def pooled_after_turns(ours: LoadedModel, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    weight, bias = plans.projection_of(ours, layer)
    at, n = ours.kv_projections[layer][0].out_features, ours.layout.n_kv_heads
    both = torch.cat([weight, bias.unsqueeze(1)], dim=1)
    made = []
    turns = plans.head_turns(ours, (0,) * n, layer)
    for rows, turn in zip((both[:at], both[at:]), turns, strict=True):
        heads = [turn[g].T @ rows.unflatten(0, (n, -1))[g] for g in range(n)]
        shared = torch.stack(heads).mean(0)
        made.append(torch.cat([turn[g] @ shared for g in range(n)]))
    all_rows = torch.cat(made)
    return all_rows[:, :-1], all_rows[:, -1]


def test_the_latent_leaves_biases_outside() -> None:
    """A latent of rank d_model is exact for MHA although K and V are twice as wide, and only without the biases."""
    ours = tiny("bert")
    assert numbers_cached(ours.layout) == 2 * ours.layout.d_model == 96
    same(trace(ours, SENTENCE, what_if=LatentKV(48)), trace(ours, SENTENCE))
    differs(trace(ours, SENTENCE, what_if=LatentKV(24)), trace(ours, SENTENCE))


def test_pooling_projections_is_not_pooling_heads_under_qk_norm() -> None:
    """Averaging after a per-head norm is another thing than averaging before it: why the kernel does the former."""
    ours = tiny("qwen3")
    by_hand = copy.deepcopy(ours)
    for of_key, of_value in by_hand.kv_projections:
        for linear in (of_key, of_value):
            shared = linear.weight.unflatten(0, (2, -1)).mean(0, keepdim=True).expand(2, -1, -1).flatten(0, 1)
            linear.weight = torch.nn.Parameter(shared.clone())
    differs(trace(ours, SENTENCE, what_if=ShareKV(1)), trace(by_hand, SENTENCE))


@pytest.mark.parametrize(
    ("name", "what_if", "words"),
    [
        ("gpt2", LatentKV(8), "one piece"),
        ("gpt_neox", ShareKV(1, "random"), "one piece"),
        ("phi3", ShareKV(1, "aligned"), "one piece"),
        ("qwen3", ShareKV(1, "aligned"), "between its projection and the scores"),
        ("cohere2", ShareKV(1, "aligned"), "between its projection and the scores"),
        ("deepseek_v3", LatentKV(8), "caches a latent"),
        ("bert", ShareKV(2, "healed"), "No healed share-2"),
    ],
)
def test_what_the_mathematics_does_not_allow_is_one_sentence(name: str, what_if: WhatIf, words: str) -> None:
    with pytest.raises(UserError, match=words):
        trace(tiny(name), SENTENCE, what_if=what_if)


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "gpt_oss", "distilbert", "mixtral"])
def test_latents_of_other_architectures_are_exact_at_full_rank(name: str) -> None:
    ours = tiny(name)
    same(trace(ours, SENTENCE, what_if=LatentKV(numbers_cached(ours.layout))), trace(ours, SENTENCE), 5e-5)
    differs(trace(ours, SENTENCE, what_if=LatentKV(3)), trace(ours, SENTENCE))


def test_moments_are_those_of_the_projections_outputs() -> None:
    """Against hooks of this test's own on the same pieces, one layer, with plain NumPy."""
    ours = tiny("llama", **BIASED)
    text = bundled_text("calibration")
    found = measure(ours, text)
    seen: list[list[np.ndarray]] = [[], []]
    handles = [
        linear.register_forward_hook(
            lambda module, _, output, at=at: seen[at].append((output - module.bias)[0].numpy())
        )
        for at, linear in enumerate(ours.kv_projections[1])
    ]
    pieces = calibration_pieces(ours, text)
    with torch.inference_mode():
        for piece in pieces:
            ours.model(input_ids=torch.tensor([piece]))
    for handle in handles:
        handle.remove()
    y = np.concatenate([np.concatenate(part) for part in seen], axis=1).astype(float)
    assert found.n_tokens == len(y) == sum(map(len, pieces))
    np.testing.assert_allclose(found.energy[1], y.T @ y / len(y), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.mean[1], y.mean(axis=0), rtol=1e-4, atol=1e-5)


def test_moments_come_from_disk_unless_the_file_was_touched(tmp_path: Any, monkeypatch: Any) -> None:
    ours = tiny("llama")
    width = sum(projection.out_features for projection in ours.kv_projections[0])
    monkeypatch.setattr(calibration, "_folder", lambda *_: tmp_path / "moments")
    measured: list[int] = []

    def counted(*_: Any) -> Moments:
        measured.append(1)
        return Moments(np.ones((ours.n_layers, width, width)), np.ones((ours.n_layers, width)), 7, "")

    monkeypatch.setattr(calibration, "measure", counted)
    first = calibration._from_disk_or_measured(ours, None)
    again = calibration._from_disk_or_measured(ours, None)
    assert len(measured) == 1
    np.testing.assert_array_equal(first.energy, again.energy)
    with (tmp_path / "moments" / "moments.npz").open("ab") as file:
        file.write(b"x")
    calibration._from_disk_or_measured(ours, None)
    assert len(measured) == 2


def test_numbers_and_bytes_would_be_cached_from_the_formula(minilm: LoadedModel) -> None:
    layout = minilm.layout
    assert numbers_cached(layout) == 768
    assert numbers_cached(layout, ShareKV(3)) == 192
    assert numbers_cached(layout, LatentKV(100)) == 100
    assert bytes_per_token(layout, 6) == 6 * 768 * 2
    assert bytes_per_token(layout, 6, ShareKV(1, layers=(0, 5))) == (4 * 768 + 2 * 64) * 2
    assert bytes_per_token(layout, 6, LatentKV(384), bytes_per_number=4) == 6 * 384 * 4


def test_what_one_person_asks_never_reaches_another() -> None:
    """No caches of traces here: every call runs the kernel, and everyone gets what they would get alone, bit by bit."""
    ours = tiny("llama")
    asked: list[WhatIf | None] = [None, ShareKV(1), ShareKV(1, "aligned"), ShareKV(1, "random"), LatentKV(11)]
    alone = [trace(ours, SENTENCE, what_if=what_if) for what_if in asked]
    ran: list[int] = []
    forward = kernel.grouped_scores

    def counted(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return forward(query, key)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(8) as pool:
        patch.setattr(kernel, "grouped_scores", counted)
        together = list(pool.map(lambda what_if: trace(ours, SENTENCE, what_if=what_if), asked * 6))
    assert len(ran) == 3 * len(asked) * 6
    for number, found in enumerate(together):
        np.testing.assert_array_equal(found.weights, alone[number % len(asked)].weights)
        np.testing.assert_array_equal(found.outputs.hidden, alone[number % len(asked)].outputs.hidden)
    for one, other in combinations(alone, 2):
        differs(one, other)
