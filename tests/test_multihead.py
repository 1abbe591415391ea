"""The seven steps against torch, transformers, their own code lines, and a poke at every element."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attention.errors import UserError
from attention.layout import HeadLayout
from attention.models import LoadedModel
from attention.multihead import (
    Place,
    Sizes,
    Step,
    StepTrace,
    code_listing,
    compare_with_mha,
    d_head_guidance,
    multi_head_attention,
    plan_steps,
    random_inputs,
    rope_tables,
    rotate_half,
    score_rank,
    softmax,
)

ROOT = Path(__file__).resolve().parent.parent
ODD = HeadLayout(11, 6, 2, d_head=4, d_head_v=7)  # no two sizes agree, with batch 3 and seq 5


@st.composite
def layouts(draw: st.DrawFn, even: bool = False) -> HeadLayout:
    n_kv_heads = draw(st.integers(1, 3))
    d_head = draw(st.integers(1, 4)) * (2 if even else 1)
    return HeadLayout(
        draw(st.integers(1, 9)), n_kv_heads * draw(st.integers(1, 3)), n_kv_heads, d_head, draw(st.integers(1, 5))
    )


def sdpa_output(
    x: np.ndarray, weights: dict[str, np.ndarray], layout: HeadLayout, causal: bool, mask: np.ndarray | None = None
) -> np.ndarray:
    """The whole attention by torch's own fused function, which shares nothing with ours."""
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    rows = torch.from_numpy(x)

    def heads(name: str, count: int) -> torch.Tensor:
        made = rows @ tensors[f"W_{name}"] + tensors.get(f"b_{name}", torch.zeros(1, dtype=rows.dtype))
        return made.unflatten(-1, (count, -1)).movedim(-2, -3)

    mixed = F.scaled_dot_product_attention(
        heads("q", layout.n_heads),
        heads("k", layout.n_kv_heads),
        heads("v", layout.n_kv_heads),
        attn_mask=None if mask is None else torch.tensor(mask),
        is_causal=causal,
        enable_gqa=True,
    )
    joined = mixed.movedim(-3, -2).flatten(-2)
    return (joined @ tensors["W_o"] + tensors.get("b_o", torch.zeros(1, dtype=rows.dtype))).numpy()


# ---- the lesson's own numbers


def test_the_lesson_case_has_the_shapes_of_the_lesson() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 8))
    weights = {name: rng.standard_normal((8, 8)) for name in ("W_q", "W_k", "W_v", "W_o")}
    layout = HeadLayout(8, 2, 2)
    trace = multi_head_attention(x, weights, layout)
    assert {symbol: trace.step(f"3.{symbol}").shape for symbol in "QKV"} == dict.fromkeys("QKV", (2, 4, 4))
    assert trace.weights.shape == (2, 4, 4)
    assert trace.step("5.heads_out").shape == (2, 4, 4)
    assert trace.step("concat").shape == (4, 8)
    assert trace.output.shape == (4, 8)
    np.testing.assert_allclose(trace.output, sdpa_output(x, weights, layout, False), rtol=0, atol=1e-10)
    drawn_x, drawn = random_inputs(layout, 4, seed=0)
    np.testing.assert_array_equal(drawn_x, x)
    assert all(np.array_equal(drawn[name], weights[name]) for name in weights)


def test_biases_are_drawn_after_the_weights() -> None:
    x, plain = random_inputs(HeadLayout(6, 2, 1), 3, seed=4)
    x_too, more = random_inputs(HeadLayout(6, 2, 1), 3, seed=4, biases=True)
    np.testing.assert_array_equal(x, x_too)
    assert all(np.array_equal(plain[name], more[name]) for name in plain)
    assert [name for name in more if name not in plain] == ["b_q", "b_k", "b_v", "b_o"]


def test_known_widths_of_the_field() -> None:
    assert HeadLayout(512, 8, 8).d_head == 64
    llama = HeadLayout(4096, 32, 8)
    assert llama.q_per_kv == 4
    by_key = {step.key: step for step in plan_steps(Sizes(llama, 2048))}
    assert by_key["1.K"].shape == (2048, 8 * 128)
    assert by_key["1.K"].parameters == 4096 * 8 * 128 == by_key["1.V"].parameters
    assert by_key["1.Q"].parameters == 4096 * 4096


def test_steps_are_numbered_one_to_seven_in_order() -> None:
    x, weights = random_inputs(ODD, 5, batch_size=3)
    trace = multi_head_attention(x, weights, ODD, causal=True, rope=rope_tables(5, 4))
    numbers = list(dict.fromkeys(step.number for step in trace.steps))
    assert numbers == ["1", "2", "3", "3½", "4", "5", "6", "7"]
    plain = multi_head_attention(x, weights, ODD)
    assert "3½" not in {step.number for step in plain.steps}
    assert "mask" not in {step.symbol for step in plain.steps}
    assert len({step.key for step in trace.steps}) == len(trace.steps)


# ---- against torch


@settings(max_examples=60)
@given(
    layouts(), st.integers(1, 6), st.none() | st.integers(1, 3), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1)
)
def test_equals_sdpa_in_float64(
    layout: HeadLayout, seq_len: int, batch_size: int | None, causal: bool, biases: bool, seed: int
) -> None:
    x, weights = random_inputs(layout, seq_len, seed, batch_size=batch_size, biases=biases)
    trace = multi_head_attention(x, weights, layout, causal)
    expected = sdpa_output(x, weights, layout, causal)
    assert trace.output.shape == expected.shape
    assert trace.output.dtype == np.float64
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(trace.output / scale, expected / scale, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trace.weights.sum(-1), 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("batched_mask", ["pairs", "keys", "heads", "full"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_mean_what_sdpa_means(batched_mask: str, causal: bool, kind: str) -> None:
    x, weights = random_inputs(ODD, 5, seed=2, batch_size=3)
    rng = np.random.default_rng(8)
    shape = {"pairs": (5, 5), "keys": (3, 1, 1, 5), "heads": (1, 6, 5, 5), "full": (3, 6, 5, 5)}[batched_mask]
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True  # key 0 stays open, so that no row is empty
    if kind == "float":
        mask = np.where(mask, rng.standard_normal(shape), -np.inf)
    trace = multi_head_attention(x, weights, ODD, causal, mask)
    full = np.broadcast_to(mask, (3, 6, 5, 5))
    lower = np.tril(np.ones((5, 5), bool))
    if causal:
        full = full & lower if kind == "bool" else np.where(lower, full, -np.inf)
    expected = sdpa_output(x, weights, ODD, False, np.ascontiguousarray(full))
    np.testing.assert_allclose(trace.output, expected, rtol=0, atol=1e-10)
    hidden = ~full if kind == "bool" else np.isneginf(full)
    assert hidden.any()
    assert (trace.weights[hidden] == 0).all()
    assert (trace.weights[~hidden] > 0).all()
    assert trace.notes == ()


def test_causal_rows_hold_exact_zeros() -> None:
    x, weights = random_inputs(ODD, 5, seed=1)
    trace = multi_head_attention(x, weights, ODD, causal=True)
    upper = ~np.tril(np.ones((5, 5), bool))
    assert (trace.weights[:, upper] == 0).all()
    assert (trace.weights[:, ~upper] > 0).all()


def test_a_query_that_may_look_at_nothing_gets_zeros_and_a_note() -> None:
    x, weights = random_inputs(ODD, 5, seed=1)
    mask = np.ones((5, 5), bool)
    mask[3] = False
    trace = multi_head_attention(x, weights, ODD, mask=mask)
    assert (trace.weights[:, 3] == 0).all()
    np.testing.assert_allclose(trace.output, sdpa_output(x, weights, ODD, False, mask), rtol=0, atol=1e-10)
    (note,) = trace.notes
    assert "query 3" in note
    assert "6 rows" in note


def test_scores_in_the_thousands_do_not_overflow() -> None:
    x, weights = random_inputs(HeadLayout(8, 2, 2), 4)
    trace = multi_head_attention(x * 30, weights, HeadLayout(8, 2, 2))
    assert np.abs(trace.scores).max() > 1000  # e to the 1000th is infinite
    expected = sdpa_output(x * 30, weights, HeadLayout(8, 2, 2), False)
    np.testing.assert_allclose(trace.output, expected, rtol=1e-10, atol=1e-10)


def test_half_precision_is_computed_in_float32() -> None:
    x, weights = random_inputs(HeadLayout(8, 2, 2), 4)
    halves = {name: array.astype(np.float16) for name, array in weights.items()}
    trace = multi_head_attention(x.astype(np.float16), halves, HeadLayout(8, 2, 2))
    assert {step.array.dtype for step in trace.steps} == {np.dtype(np.float32)}


@pytest.mark.parametrize("biases", [False, True])
def test_equals_nn_multihead_attention(biases: bool) -> None:
    layout = HeadLayout(12, 3, 3)
    x, weights = random_inputs(layout, 5, seed=3, batch_size=2, biases=biases)
    x, weights = x.astype(np.float32), {name: array.astype(np.float32) / 4 for name, array in weights.items()}
    module = torch.nn.MultiheadAttention(12, 3, bias=biases, batch_first=True).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.from_numpy(np.concatenate([weights[f"W_{n}"].T for n in "qkv"])))
        module.out_proj.weight.copy_(torch.from_numpy(weights["W_o"].T))
        if biases:
            module.in_proj_bias.copy_(torch.from_numpy(np.concatenate([weights[f"b_{n}"] for n in "qkv"])))
            module.out_proj.bias.copy_(torch.from_numpy(weights["b_o"]))
        rows = torch.from_numpy(x)
        expected, shares = module(rows, rows, rows, average_attn_weights=False)
    trace = multi_head_attention(x, weights, layout)
    assert trace.output.dtype == np.float32
    np.testing.assert_allclose(trace.output, expected.numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(trace.weights, shares.numpy(), rtol=0, atol=1e-6)


@settings(max_examples=30)
@given(layouts(), st.integers(1, 5), st.booleans(), st.integers(0, 9999))
def test_shared_heads_equal_mha_with_repeated_projections(
    layout: HeadLayout, seq_len: int, causal: bool, seed: int
) -> None:
    x, weights = random_inputs(layout, seq_len, seed, biases=True)

    def repeated(name: str, width: int) -> np.ndarray:
        pieces = np.split(weights[name], layout.n_kv_heads, axis=-1)
        assert pieces[0].shape[-1] == width
        return np.concatenate([pieces[layout.kv_head_of(head)] for head in range(layout.n_heads)], axis=-1)

    full = HeadLayout(layout.d_model, layout.n_heads, layout.n_heads, layout.d_head, layout.d_head_v)
    wide = weights | {name: repeated(name, layout.d_head) for name in ("W_k", "b_k")}
    wide |= {name: repeated(name, layout.d_head_v) for name in ("W_v", "b_v")}
    ours = multi_head_attention(x, weights, layout, causal).output
    theirs = multi_head_attention(x, wide, full, causal).output
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-10)


@settings(max_examples=30)
@given(st.permutations(range(4)), st.integers(0, 9999))
def test_permuting_heads_permutes_outputs(order: list[int], seed: int) -> None:
    layout = HeadLayout(5, 4, 4, d_head=3)
    x, weights = random_inputs(layout, 6, seed)
    cols = np.concatenate([np.arange(3) + 3 * head for head in order])
    moved = {name: weights[name][:, cols] for name in ("W_q", "W_k", "W_v")} | {"W_o": weights["W_o"][cols]}
    plain, other = multi_head_attention(x, weights, layout), multi_head_attention(x, moved, layout)
    np.testing.assert_allclose(other.weights, plain.weights[order], rtol=0, atol=1e-12)
    heads_out = plain.step("5.heads_out").array
    np.testing.assert_allclose(other.step("5.heads_out").array, heads_out[order], rtol=0, atol=1e-11)
    np.testing.assert_allclose(other.output, plain.output, rtol=0, atol=1e-10)


def test_a_batch_is_its_sequences_one_by_one() -> None:
    x, weights = random_inputs(ODD, 5, seed=6, batch_size=3, biases=True)
    rope = rope_tables(5, 4)
    whole = multi_head_attention(x, weights, ODD, True, rope=rope)
    for at in range(3):
        alone = multi_head_attention(x[at], weights, ODD, True, rope=rope)
        for step in alone.steps:
            if step.symbol != "mask":
                np.testing.assert_allclose(whole.step(step.key).array[at], step.array, rtol=0, atol=1e-12)


# ---- against transformers' own modules


def test_reproduces_bert_attention() -> None:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertSelfAttention

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=24, num_attention_heads=3, attention_probs_dropout_prob=0.0, attn_implementation="eager"
    )
    module = BertSelfAttention(config).eval().double()
    dense = torch.nn.Linear(24, 24).double()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    with torch.no_grad():
        mixed, shares = module(x)[:2]
        expected = dense(mixed)
    weights: dict[str, np.ndarray] = {}
    for letter, linear in (("q", module.query), ("k", module.key), ("v", module.value), ("o", dense)):
        weights[f"W_{letter}"] = linear.weight.detach().numpy().T
        weights[f"b_{letter}"] = linear.bias.detach().numpy()
    trace = multi_head_attention(x.numpy(), weights, HeadLayout(24, 3, 3))
    np.testing.assert_allclose(trace.output, expected.numpy(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(trace.weights, shares.numpy(), rtol=0, atol=1e-10)


def test_reproduces_llama_attention_with_rope_and_shared_heads() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=18, num_attention_heads=6, num_key_value_heads=2, head_dim=8, attn_implementation="eager"
    )
    module = LlamaAttention(config, layer_idx=0).eval().double()
    x = torch.randn(2, 5, 18, dtype=torch.float64)
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(5)[None])
    hidden = torch.full((5, 5), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    with torch.no_grad():
        expected, shares = module(x, position_embeddings=(cos, sin), attention_mask=hidden)
    linears = {"q": module.q_proj, "k": module.k_proj, "v": module.v_proj, "o": module.o_proj}
    weights = {f"W_{letter}": linear.weight.detach().numpy().T for letter, linear in linears.items()}
    layout = HeadLayout(18, 6, 2, d_head=8)
    trace = multi_head_attention(x.numpy(), weights, layout, causal=True, rope=(cos.numpy(), sin.numpy()))
    np.testing.assert_allclose(
        trace.output, expected.numpy(), rtol=0, atol=1e-6
    )  # Llama's eager path takes its softmax in float32
    np.testing.assert_allclose(trace.weights, shares.numpy(), rtol=0, atol=1e-6)
    own = multi_head_attention(x.numpy(), weights, layout, causal=True, rope=rope_tables(5, 8))
    np.testing.assert_allclose(own.output, expected.numpy(), rtol=0, atol=1e-5)


def test_rope_scores_depend_on_the_distance_only() -> None:
    layout = HeadLayout(6, 2, 1, d_head=8)
    x, weights = random_inputs(layout, 1, seed=5)
    same = np.repeat(x, 7, axis=0)  # one token seven times: only the position differs
    scores = multi_head_attention(same, weights, layout, rope=rope_tables(7, 8)).scores
    for distance in range(-6, 7):
        diagonal = np.diagonal(scores, distance, 1, 2)
        np.testing.assert_allclose(diagonal, diagonal[:, :1].repeat(diagonal.shape[1], 1), rtol=0, atol=1e-9)
    assert np.ptp(scores[0, 0]) > 1e-3


# ---- what is recorded about each step


def namespace(trace: StepTrace) -> dict[str, object]:
    layout = trace.layout
    names: dict[str, object] = {step.symbol: step.array for step in trace.inputs}
    return names | {
        "np": np,
        "softmax": softmax,
        "rotate_half": rotate_half,
        "seq_len": trace.sizes.seq_len,
        "batch_size": trace.sizes.batch_size,
        "n_heads": layout.n_heads,
        "n_kv_heads": layout.n_kv_heads,
        "d_head": layout.d_head,
        "d_head_v": layout.d_head_v,
        "q_per_kv": layout.q_per_kv,
    }


def run(layout: HeadLayout, batch_size: int | None, causal: bool, mask: str, rope: bool, biases: bool) -> StepTrace:
    x, weights = random_inputs(layout, 5, seed=7, batch_size=batch_size, biases=biases)
    x = x / 3
    lead = () if batch_size is None else (batch_size,)
    shape = {"none": None, "bool": (*lead, 1, 5, 5), "float": (5, 5), "keys": (*lead, 1, 1, 5)}[mask]
    given_mask = None
    if shape is not None:
        rng = np.random.default_rng(3)
        given_mask = rng.random(shape) < 0.6
        given_mask[..., 0] = True
        if mask == "float":
            given_mask = np.where(given_mask, rng.standard_normal(shape), -np.inf)
    # positions 1 to 5: at position 0 the angle is 0 and the partner dimension has no say
    tables = tuple(table[1:] for table in rope_tables(6, layout.d_head)) if rope else None
    return multi_head_attention(x, weights, layout, causal, given_mask, tables)


RUNS = [
    (ODD, 3, True, "none", False, True),
    (ODD, None, False, "none", True, False),
    (ODD, 3, True, "bool", True, True),
    (ODD, 2, True, "float", False, False),
    (ODD, None, False, "keys", False, False),
    (ODD, None, False, "float", False, False),
    (ODD, None, True, "bool", False, False),
    (HeadLayout(8, 2, 2), None, False, "none", False, False),
    (HeadLayout(6, 3, 1, d_head=4), 2, True, "none", True, True),
]


@pytest.mark.parametrize("setting", RUNS)
def test_the_code_line_of_every_step_makes_its_array(setting: tuple) -> None:
    trace = run(*setting)
    names = namespace(trace)
    for step in trace.steps:
        exec(step.code, names)
        np.testing.assert_array_equal(names[step.symbol], step.array, err_msg=step.code)


@pytest.mark.parametrize("setting", RUNS)
def test_the_pytorch_line_of_every_step_makes_its_array(setting: tuple) -> None:
    trace = run(*setting)
    names = {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in namespace(trace).items()
    }
    names |= {
        "torch": torch,
        "rotate_half": lambda rows: torch.cat((-rows.chunk(2, -1)[1], rows.chunk(2, -1)[0]), -1),
    }
    for step in trace.steps:
        exec(step.torch, names)
        np.testing.assert_allclose(names[step.symbol].numpy(), step.array, rtol=0, atol=1e-11, err_msg=step.torch)


@pytest.mark.parametrize("setting", RUNS)
def test_plans_shapes_axes_and_memory_are_those_of_the_arrays(setting: tuple) -> None:
    trace = run(*setting)
    plans = plan_steps(trace.sizes)
    assert [plan.key for plan in plans] == [step.key for step in trace.steps]
    for plan, step in zip(plans, trace.steps, strict=True):
        assert plan.shape == step.shape == step.array.shape
        assert len(step.axes) == step.array.ndim
        assert step.strides == tuple(stride // 8 for stride in step.array.strides) or step.symbol == "mask"
        assert step.contiguous == step.array.flags.c_contiguous
        assert not step.array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            step.array[...] = 0
        for axis, size in zip(step.axes, step.shape, strict=True):
            expected = {"seq": 5, "d_model": trace.layout.d_model, "kv_head": trace.layout.n_kv_heads}
            assert size == expected.get(axis, size)
    kinds = {step.key: (step.copied, step.contiguous) for step in trace.steps}
    assert kinds["2.Q"] == (False, True)  # a reshape only re-reads the same memory
    assert kinds["3.Q"] == (False, False)  # a transpose does too, and leaves it out of order
    assert kinds["6.concat"] == (True, True)  # after a transpose the reshape has to write
    assert {step.key: step.strides for step in trace.steps}["3.Q"][-1] == 1


def test_inputs_are_neither_frozen_nor_followed() -> None:
    layout = HeadLayout(4, 2, 1)
    x, weights = random_inputs(layout, 3)
    trace = multi_head_attention(x, weights, layout)
    before = trace.step("x").array.copy()
    x[0, 0] = 99.0
    np.testing.assert_array_equal(trace.step("x").array, before)


def test_a_trace_survives_pickling_read_only() -> None:
    trace = run(*RUNS[0])
    again = pickle.loads(pickle.dumps(trace))
    for step, other in zip(trace.steps, again.steps, strict=True):
        np.testing.assert_array_equal(step.array, other.array)
        assert (step.strides, step.contiguous, step.copied) == (other.strides, other.contiguous, other.copied)
        assert not other.array.flags.writeable
    assert again.where_from("weights", (0, 0, 1, 0)) == trace.where_from("weights", (0, 0, 1, 0))


def test_float32_stays_float32_at_every_step() -> None:
    x, weights = random_inputs(ODD, 5, biases=True)
    trace = multi_head_attention(
        x.astype(np.float32),
        {name: array.astype(np.float32) for name, array in weights.items()},
        ODD,
        causal=True,
        mask=np.zeros((5, 5)),
        rope=tuple(table.astype(np.float32) for table in rope_tables(5, 4)),
    )
    assert {step.array.dtype for step in trace.steps} == {np.dtype(np.float32)}


def test_whole_numbers_are_computed_in_float64() -> None:
    layout = HeadLayout(2, 1, 1)
    eye = np.eye(2, dtype=int)
    trace = multi_head_attention([[1, 0], [0, 1]], dict.fromkeys(("W_q", "W_k", "W_v", "W_o"), eye), layout)
    share = np.exp(1 / np.sqrt(2)) / (1 + np.exp(1 / np.sqrt(2)))
    np.testing.assert_allclose(trace.output, [[share, 1 - share], [1 - share, share]], rtol=0, atol=1e-15)


# ---- provenance: poke every element of every source and see what moves


def poked(array: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
    changed = array.copy()
    if array.dtype == bool:
        changed[at] = not changed[at]
    else:
        changed[at] = 0.37 if np.isinf(changed[at]) else changed[at] + 0.73
    return changed


def moved_by(step: Step, source: Step, at: tuple[int, ...], names: dict[str, object]) -> np.ndarray:
    """Which elements of a step change when one element of a source does."""
    base = np.asarray(names[source.symbol])
    trials = [poked(base, at)]
    if source.symbol == "masked":  # the only open key of a row holds weight 1 until it is closed too
        trials.append(base.copy())
        trials[-1][at] = -np.inf
    moved = np.zeros(step.shape, bool)
    for trial in trials:
        scope = names | {source.symbol: trial}
        exec(step.code, scope)
        moved |= scope[step.symbol] != step.array
    return moved


@pytest.mark.parametrize("setting", RUNS)
def test_provenance_is_what_poking_an_element_moves(setting: tuple) -> None:
    trace = run(*setting)
    names = namespace(trace)
    current = {step.symbol: step for step in trace.inputs}
    for step in trace.steps:
        sources = {link.source for link in step.links}
        read = step.code.split(" = ", 1)[1]
        for source in [current[symbol] for symbol in current if re.search(rf"\b{symbol}\b", read)]:
            depends = np.zeros((*source.shape, *step.shape), bool)
            for at in np.ndindex(source.shape):
                depends[at] = moved_by(step, source, at, names)
            key = source.symbol if source.number == "0" else source.key
            assert key in sources, f"{step.code} reads {key}"
            check_links(trace, step, key, depends, source.array.ndim)
            sources.discard(key)
        assert not sources, f"{step.code} does not read {sources}"
        exec(step.code, names)
        current[step.symbol] = step


def check_links(trace: StepTrace, step: Step, key: str, depends: np.ndarray, rank: int) -> None:
    rng = np.random.default_rng(0)
    for to in picks(rng, step.shape):
        expected = depends[(slice(None),) * rank + to]
        found = {place.key: place for place in trace.where_from(step, to)}
        assert_place(found.get(key), expected, f"{key} -> {step.key}{to}")
    for at in picks(rng, depends.shape[:rank]):
        found = {place.key: place for place in trace.where_to(key, at)}
        assert_place(found.get(step.key), depends[at], f"{key}{at} -> {step.key}")


def picks(rng: np.random.Generator, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every element of a small tensor, forty of a large one."""
    size = prod(shape)
    flat = range(size) if size <= 40 else rng.choice(size, 40, replace=False)
    return [tuple(int(part) for part in np.unravel_index(at, shape)) for at in flat]


def assert_place(place: Place | None, expected: np.ndarray, what: str) -> None:
    if place is None:
        assert not expected.any(), what
        return
    named = np.zeros(expected.shape, bool)
    # a region is a block: the product of its axes
    named[
        np.ix_(
            *(
                np.arange(n)[part].ravel() if isinstance(part, slice) else np.atleast_1d(part)
                for part, n in zip(place.region, expected.shape, strict=True)
            )
        )
    ] = True
    np.testing.assert_array_equal(named, expected, err_msg=what)
    assert place.count == expected.sum()


def test_the_sketch_story_of_one_number() -> None:
    x, weights = random_inputs(HeadLayout(8, 2, 2), 4)
    trace = multi_head_attention(x, weights, HeadLayout(8, 2, 2))
    story = trace.story("3.K", (1, 2, 3))
    assert story.startswith(
        "K[head 1, token 2, dim 3] was K[token 2, head 1, dim 3], and before that K[token 2, column 7]."
    )
    assert "x[token 2, columns 0 to 7]" in story
    assert story.endswith("It goes into scores[head 1, queries 0 to 3, key 2].")
    assert trace.story("x", (0, 0)).startswith("x[token 0, column 0] was given.")
    (last,) = (step for step in trace.steps if step.key == "7.output")
    assert "It goes into" not in trace.story(last, (0, 0))
    assert trace.steps.index(last) == len(trace.steps) - 1


def test_lit_follows_one_element_both_ways_and_respects_the_causal_mask() -> None:
    trace = run(ODD, None, True, "none", False, False)
    lit = trace.lit("7.output", (2, 0))
    assert lit["x"][:3].all()
    assert not lit["x"][3:].any()  # the past only
    assert lit["W_o"][:, 0].all()
    assert not lit["W_o"][:, 1:].any()
    onward = trace.lit("3.V", (1, 3, 2))
    heads = list(ODD.query_heads_of(1))
    assert set(np.argwhere(onward["5.heads_out"]).tolist()[0]) <= {3, 4, 5, 2}
    expected = np.zeros((6, 5, 7), bool)
    expected[heads, 3:, 2] = True
    np.testing.assert_array_equal(onward["5.heads_out"], expected)
    assert onward["7.output"][3:].all()
    assert not onward["7.output"][:3].any()
    assert set(lit) == {*("x", "W_q", "W_k", "W_v", "W_o"), *(step.key for step in trace.steps)}


@settings(max_examples=25)
@given(st.data())
def test_lit_is_what_poking_moves_all_the_way_to_the_output(data: st.DataObject) -> None:
    trace = run(*data.draw(st.sampled_from(RUNS)))
    place = tuple(data.draw(st.integers(0, size - 1)) for size in trace.step("x").shape)
    arrays = {step.symbol: step.array for step in trace.inputs}
    arrays["x"] = poked(arrays["x"], place)
    rope = (arrays.pop("cos"), arrays.pop("sin")) if trace.sizes.rope else None
    mask, x = arrays.pop("mask", None), arrays.pop("x")
    other = multi_head_attention(x, arrays, trace.layout, trace.sizes.causal, mask, rope)
    lit = trace.lit("x", place)
    for step in trace.steps:
        moved = ~np.isclose(other.step(step.key).array, step.array, rtol=0, atol=1e-12)
        if step.symbol != "weights":  # a weight can be too small to move visibly
            np.testing.assert_array_equal(moved & ~lit[step.key], False, err_msg=step.key)
        if step.number in "123":
            np.testing.assert_array_equal(moved, lit[step.key], err_msg=step.key)


@pytest.mark.parametrize(
    ("step", "index", "words"),
    [
        ("3.K", (2, 0, 0), "KV head 2 (axis kv_head)"),
        ("3.K", (0, 0), "3 axes"),
        ("3.K", (0, -1, 0), "token -1"),
        ("9.K", (0, 0, 0), "no tensor '9.K'"),
        (99, (0,), "position 99"),
    ],
)
def test_a_wrong_address_is_refused_in_words(step: str | int, index: tuple[int, ...], words: str) -> None:
    trace = run(ODD, None, False, "none", False, False)
    with pytest.raises(UserError, match=re.escape(words)):
        trace.where_from(step, index)


# ---- listings


def executed(listing: str) -> dict[str, object]:
    """Run a listing line by line; every shape it prints must be the shape of what the line made."""
    names: dict[str, object] = {}
    seen = 0
    for block in re.split(r"\n(?=\S)", listing):
        exec(block, names)
        found = re.match(r"(\w+) = .*  # (\(.*\))$", block)
        if found:
            assert tuple(names[found[1]].shape) == eval(found[2]), block
            seen += 1
    assert seen >= 17
    return names


LISTED = [
    (HeadLayout(8, 2, 2), 4, {}),
    (HeadLayout(11, 6, 2, d_head=4, d_head_v=7), 5, {"batch_size": 3, "causal": True, "rope": True, "biases": True}),
    (HeadLayout(9, 3, 1, d_head=2), 4, {"causal": True, "seed": 5}),
    (HeadLayout(6, 3, 3), 1, {"batch_size": 1, "rope": True, "biases": True}),
]


@pytest.mark.parametrize("flavour", ["numpy", "torch"])
@pytest.mark.parametrize(("layout", "seq_len", "options"), LISTED)
def test_listings_run_print_real_shapes_and_agree_with_the_engine(
    flavour: str, layout: HeadLayout, seq_len: int, options: dict
) -> None:
    listing = code_listing(layout, seq_len, flavour, **options)
    names = executed(listing)
    check_against_engine(names, layout, seq_len, options)
    assert ("import torch" in listing) == (flavour == "torch")


def check_against_engine(names: dict, layout: HeadLayout, seq_len: int, options: dict) -> None:
    x, weights = random_inputs(
        layout,
        seq_len,
        options.get("seed", 0),
        batch_size=options.get("batch_size"),
        biases=options.get("biases", False),
    )
    rope = rope_tables(seq_len, layout.d_head) if options.get("rope") else None
    trace = multi_head_attention(x, weights, layout, options.get("causal", False), rope=rope)
    np.testing.assert_allclose(np.asarray(names["output"]), trace.output, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.asarray(names["weights"]), trace.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layout", "seq_len", "options"), LISTED)
def test_the_einops_listing_runs_on_a_reader_of_its_patterns(
    layout: HeadLayout, seq_len: int, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    import types

    stand_in = types.ModuleType("einops")
    stand_in.rearrange, stand_in.repeat, stand_in.einsum = rearrange, rearrange, einsum
    monkeypatch.setitem(sys.modules, "einops", stand_in)
    names = executed(code_listing(layout, seq_len, "einops", **options))
    check_against_engine(names, layout, seq_len, options)


def parsed(side: str) -> list[list[str]]:
    return [part.strip("()").split() for part in re.findall(r"\([^)]*\)|\S+", side)]


def rearrange(array: np.ndarray, pattern: str, **known: int) -> np.ndarray:
    """einops' rearrange and repeat, as far as the listings use them: names and one level of brackets."""
    left, right = (parsed(side) for side in pattern.split("->"))
    sizes = dict(known)
    for group, size in zip(left, array.shape, strict=True):
        unknown = [name for name in group if name not in sizes]
        assert len(unknown) <= 1, pattern
        if unknown:
            sizes[unknown[0]] = size // prod(sizes[name] for name in group if name in sizes)
        assert prod(sizes[name] for name in group) == size, pattern
    flat_left, flat_right = ([name for group in side for name in group] for side in (left, right))
    new = [name for name in flat_right if name not in flat_left]
    wide = array.reshape([sizes[name] for name in flat_left] + [1] * len(new))
    order = [[*flat_left, *new].index(name) for name in flat_right]
    full = np.broadcast_to(wide.transpose(order), [sizes[name] for name in flat_right])
    return full.reshape([prod(sizes[name] for name in group) for group in right])


def einsum(one: np.ndarray, two: np.ndarray, pattern: str) -> np.ndarray:
    """einops' einsum on whole-word axis names, through NumPy's on letters."""
    names = dict.fromkeys(re.findall(r"\w+", pattern))
    letters = dict(zip(names, "abcdefghij", strict=False))
    return np.einsum(re.sub(r"\w+", lambda name: letters[name[0]], pattern).replace(" ", ""), one, two)


@settings(max_examples=25)
@given(layouts(even=True), st.integers(1, 5), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_both_runnable_listings_print_the_same_numbers(
    layout: HeadLayout, seq_len: int, batched: bool, causal: bool, rope: bool, biases: bool
) -> None:
    options = {"batch_size": 2 if batched else None, "causal": causal, "rope": rope, "biases": biases}
    ours, theirs = (executed(code_listing(layout, seq_len, flavour, **options)) for flavour in ("numpy", "torch"))
    scale = max(1.0, float(np.abs(ours["output"]).max()))
    np.testing.assert_allclose(theirs["output"].numpy() / scale, ours["output"] / scale, rtol=0, atol=1e-10)


def test_an_unknown_flavour_is_refused() -> None:
    with pytest.raises(UserError, match="numpy, torch, einops"):
        code_listing(HeadLayout(8, 2, 2), 4, "jax")


# ---- cost


@settings(max_examples=40)
@given(layouts(even=True), st.integers(1, 6), st.none() | st.integers(1, 3), st.booleans(), st.booleans())
def test_parameters_are_the_weights_given_and_formulas_give_their_number(
    layout: HeadLayout, seq_len: int, batch_size: int | None, biases: bool, rope: bool
) -> None:
    x, weights = random_inputs(layout, seq_len, batch_size=batch_size, biases=biases)
    trace = multi_head_attention(x, weights, layout, rope=rope_tables(seq_len, layout.d_head) if rope else None)
    assert sum(step.parameters for step in trace.steps) == sum(array.size for array in weights.values())
    for step in trace.steps:
        for count, formula in ((step.flops, step.flops_formula), (step.parameters, step.parameters_formula)):
            if count == 0:
                assert formula.startswith("0: ")
            else:
                parts = formula.split(":")[0].split(" = ")
                assert eval(parts[1].replace("·", "*")) == count
                assert parts[2] == f"{count:,}"


def test_flops_count_every_multiplication_and_addition() -> None:
    layout = HeadLayout(11, 6, 2, d_head=4, d_head_v=7)
    by_key = {step.key: step.flops for step in plan_steps(Sizes(layout, 5, 3, rope=True))}
    assert by_key["1.Q"] == 2 * (3 * 5) * 11 * 24
    assert by_key["1.V"] == 2 * (3 * 5) * 11 * 14
    assert by_key["3½.K"] == 3 * (3 * 2 * 5 * 4)
    assert by_key["4.scores"] == 3 * 6 * 5 * 5 * (2 * 4 + 1)
    assert by_key["4.weights"] == 5 * 3 * 6 * 5 * 5
    assert by_key["5.heads_out"] == 2 * 3 * 6 * 5 * 5 * 7
    assert by_key["7.output"] == 2 * 3 * 5 * 42 * 11
    assert by_key["2.Q"] == by_key["3.Q"] == by_key["6.concat"] == by_key["4.K"] == 0


def test_sharing_saves_parameters_only_in_k_and_v() -> None:
    rows = compare_with_mha(Sizes(HeadLayout(64, 8, 2), 16))
    saved = {row.symbol: row.parameters_mha / row.parameters for row in rows if row.parameters}
    assert saved == {"Q": 1, "K": 4, "V": 4, "output": 1}
    assert [row.flops_mha / row.flops for row in rows if row.number == "1"] == [1, 4, 4]
    assert all(row.flops == row.flops_mha for row in rows if row.number in "4567")


# ---- rank bound and head width


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from([np.float32, np.float64]), st.integers(0, 9999))
def test_score_rank_meets_its_bound(d_head: int, seq_len: int, dtype: type, seed: int) -> None:
    layout = HeadLayout(12, 3, 3, d_head=d_head)
    x, weights = random_inputs(layout, seq_len, seed)
    trace = multi_head_attention(x.astype(dtype), {n: a.astype(dtype) for n, a in weights.items()}, layout)
    report = score_rank(trace.scores, d_head)
    assert report.bound == min(d_head, seq_len)
    assert len(report.ranks) == 3
    assert max(report.ranks) <= report.bound
    singular = np.linalg.svd(trace.scores.astype(np.float64), compute_uv=False)
    assume((singular[:, report.bound - 1] > 1e-4 * singular[:, 0]).all())
    assert report.ranks == (report.bound,) * 3
    assert str(report.bound) in report.sentence


def test_score_rank_sees_lower_ranks_and_says_so() -> None:
    one = np.outer(np.arange(1.0, 7), np.arange(2.0, 8))
    two = one + np.outer(np.ones(6), np.eye(6)[0])
    report = score_rank(np.stack([one, two, np.zeros((6, 6))]), d_head=4)
    assert report.ranks == (1, 2, 0)
    assert "ranks 0 to 2" in report.sentence
    assert "cannot exceed 4 (d_head)" in report.sentence
    assert score_rank(one.astype(int), 4).ranks == (1,)
    assert "the number of tokens" in score_rank(one, 64).sentence


def test_score_rank_refuses_masked_scores_and_vectors() -> None:
    with pytest.raises(UserError, match="before the mask"):
        score_rank(np.array([[0.0, -np.inf], [0.0, 0.0]]), 2)
    with pytest.raises(UserError, match="no matrix"):
        score_rank(np.zeros(3), 2)


@pytest.mark.parametrize(
    ("d_head", "level", "words"),
    [
        (1, "warning", "MiniLM manages with 32"),
        (31, "warning", "at most 31"),
        (32, "note", "MiniLM itself uses 32"),
        (63, "note", "below the usual"),
        (64, "usual", "64 to 128"),
        (128, "usual", "64 to 128"),
        (129, "note", "above the usual"),
    ],
)
def test_head_width_guidance(d_head: int, level: str, words: str) -> None:
    guidance = d_head_guidance(d_head)
    assert guidance.level == level
    assert words in guidance.sentence
    assert str(d_head) in guidance.sentence


def test_head_width_guidance_refuses_zero() -> None:
    with pytest.raises(UserError, match="d_head is 0"):
        d_head_guidance(0)


# ---- what is refused


def refused(match: str, layout: HeadLayout = ODD, **changes: object) -> None:
    x, weights = random_inputs(ODD, 5)
    arguments: dict = {"x": x, "weights": weights} | changes
    if "weights" in changes:
        arguments["weights"] = {k: v for k, v in (weights | changes["weights"]).items() if v is not None}
    with pytest.raises(UserError, match=match) as caught:
        multi_head_attention(layout=layout, **arguments)
    assert caught.value.wrong
    assert caught.value.allowed
    assert caught.value.next_step


def test_impossible_layouts_name_the_valid_divisors() -> None:
    with pytest.raises(UserError, match=r"d_model 10 .*4 equal heads.*axis d_model.*1, 2, 5, 10"):
        HeadLayout(10, 4, 4)
    with pytest.raises(UserError, match=r"axis head.*got 4.*1, 2, 3, 6"):
        HeadLayout(12, 6, 4)


def test_wrong_shapes_name_axis_expected_and_got() -> None:
    weights = random_inputs(ODD, 5)[1]
    refused(r"W_q has shape \(11, 8\): axis 1 \(n_heads·d_head\) expected 24, got 8", weights={"W_q": np.ones((11, 8))})
    refused(r"W_k .*axis 0 \(d_model\) expected 11, got 8.*transposed", weights={"W_k": weights["W_k"].T})
    refused(r"W_v .*\(n_kv_heads·d_head_v\) expected 14, got 42", weights={"W_v": np.ones((11, 42))})
    refused(r"b_o has 2 axes", weights={"b_o": np.ones((1, 11))})
    refused(r"b_k .*axis 0 .*expected 8, got 24", weights={"b_k": np.ones(24)})
    refused(r"x has shape \(5, 7\): axis 1 \(d_model\) expected 11, got 7", x=np.ones((5, 7)))
    refused(r"x has shape \(2, 3, 5, 11\)", x=np.ones((2, 3, 5, 11)))
    refused(r"x has shape \(0, 11\)", x=np.ones((0, 11)))
    refused(r"sin has shape \(4, 4\): axis 0 \(seq\) expected 5, got 4", rope=(np.ones((5, 4)), np.ones((4, 4))))


def test_wrong_masks_name_axis_expected_and_got() -> None:
    x, _ = random_inputs(ODD, 5, batch_size=3)
    refused(r"mask has shape \(5, 6\): axis 1 \(key\) expected 5, got 6", mask=np.ones((5, 6), bool))
    refused(r"mask has shape \(2, 5, 5\): axis 0 \(head\) expected 6, got 2", mask=np.ones((2, 5, 5), bool))
    refused(r"mask has 1 axes", mask=np.ones(5, bool))
    refused(r"three axes could mean batches or heads", x=x, mask=np.ones((3, 5, 5), bool))
    refused(r"mask has shape .*axis 0 \(batch\) expected 3, got 2", x=x, mask=np.ones((2, 1, 5, 5), bool))
    refused(r"mask has 4 axes", mask=np.ones((1, 1, 5, 5), bool))
    refused(r"mask holds int64", mask=np.ones((5, 5), int))
    refused(r"NaN or \+∞", mask=np.full((5, 5), np.nan))


def test_wrong_contents_and_names_are_refused() -> None:
    x, _ = random_inputs(ODD, 5)
    refused(r"W_q missing", weights={"W_q": None})
    refused(r"'W_Q' unknown", weights={"W_Q": np.ones((2, 2))})
    refused(r"x holds complex128", x=x.astype(complex))
    refused(r"x holds NaN", x=np.where(x > 1, np.nan, x))
    refused(r"latent", layout=HeadLayout(11, 6, 2, d_head=4, d_latent=3))
    refused(r"d_head 3 is odd", layout=HeadLayout(11, 6, 2, d_head=3), rope=(np.ones((5, 3)), np.ones((5, 3))))
    with pytest.raises(UserError, match="odd"):
        rope_tables(4, 3)
    with pytest.raises(UserError, match="seq_len is 0"):
        Sizes(ODD, 0)
    with pytest.raises(UserError, match="batch_size is 0"):
        Sizes(ODD, 3, 0)


# ---- the floor it stands on


@pytest.mark.parametrize("module", ["multihead", "mistakes"])
def test_runs_where_only_numpy_is_installed(module: str) -> None:
    program = f"""
import sys
for name in ("torch", "streamlit", "plotly", "transformers", "einops", "pandas", "scipy"):
    sys.modules[name] = None  # importing it now raises ImportError
import attention.{module}
from attention.layout import HeadLayout
from attention.multihead import multi_head_attention, random_inputs
x, weights = random_inputs(HeadLayout(8, 4, 2), 3)
print(multi_head_attention(x, weights, HeadLayout(8, 4, 2), causal=True).output.shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.strip() == "(3, 8)", done.stderr


# ---- every layer of the two real models


def seen_inside(loaded: LoadedModel, modules: list[torch.nn.Module], sentence: str) -> list[tuple[Any, Any, Any]]:
    """What went into and came out of each module while the model read a sentence."""
    seen: list[tuple[Any, Any, Any]] = []
    hooks = [
        module.register_forward_hook(
            lambda _module, given, named, made: seen.append((given, named, made)), with_kwargs=True
        )
        for module in modules
    ]
    try:
        with torch.inference_mode():
            loaded.model(**loaded.tokenizer(sentence, return_tensors="pt"))
    finally:
        for hook in hooks:
            hook.remove()
    assert len(seen) == len(modules)
    return seen


def projections(linears: dict[str, torch.nn.Linear]) -> dict[str, np.ndarray]:
    weights = {f"W_{letter}": linear.weight.detach().double().numpy().T for letter, linear in linears.items()}
    return weights | {
        f"b_{letter}": linear.bias.detach().double().numpy()
        for letter, linear in linears.items()
        if linear.bias is not None
    }


def test_every_layer_of_minilm_is_reproduced(minilm: LoadedModel) -> None:
    layers = [layer.attention for layer in minilm.model.encoder.layer]
    assert len(layers) == 6
    inside = seen_inside(minilm, [layer.self for layer in layers], "Alice fed the cats because they were hungry.")
    after = seen_inside(
        minilm, [layer.output.dense for layer in layers], "Alice fed the cats because they were hungry."
    )
    for layer, (given_in, named, _), (_, _, expected) in zip(layers, inside, after, strict=True):
        hidden = (given_in[0] if given_in else named["hidden_states"]).numpy()
        own = layer.self
        linears = {"q": own.query, "k": own.key, "v": own.value, "o": layer.output.dense}
        trace = multi_head_attention(hidden, projections(linears), HeadLayout(384, 12, 12))
        np.testing.assert_allclose(trace.output, expected.numpy(), rtol=0, atol=1e-5)
        assert np.abs(expected.numpy()).max() > 0.1


def test_every_layer_of_smollm_is_reproduced(smollm: LoadedModel) -> None:
    layers = [layer.self_attn for layer in smollm.model.model.layers]
    assert len(layers) == 30
    for own, (given_in, named, made) in zip(
        layers, seen_inside(smollm, layers, "Alice fed the cats because they were hungry."), strict=True
    ):
        hidden = (given_in[0] if given_in else named["hidden_states"]).numpy()
        cos, sin = (table.numpy() for table in named["position_embeddings"])
        linears = {"q": own.q_proj, "k": own.k_proj, "v": own.v_proj, "o": own.o_proj}
        trace = multi_head_attention(hidden, projections(linears), HeadLayout(576, 9, 3), causal=True, rope=(cos, sin))
        # one layer's outputs reach 177, where float32 itself only knows steps of 1e-5
        scale = max(1.0, float(made[0].abs().max()))
        np.testing.assert_allclose(trace.output / scale, made[0].numpy() / scale, rtol=0, atol=1e-5)
