"""Every mistake is really wrong where it says so, right where it says so, and caught by the test it names."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.errors import UserError
from attention.layout import HeadLayout
from attention.mistakes import MISTAKES, MistakeReport, run_mistake
from attention.multihead import multi_head_attention, random_inputs, rope_tables, rotate_half

KEYS = [mistake.key for mistake in MISTAKES]
CLASSICS = ["skip_permute", "concat_without_permute", "no_scale", "wrong_softmax_axis", "tile_kv", "mask_after_softmax"]
GQA = HeadLayout(11, 6, 2, d_head=4, d_head_v=7)


def report(key: str, layout: HeadLayout = GQA, seq_len: int = 5, **options: object) -> MistakeReport:
    rope = rope_tables(seq_len, layout.d_head) if options.pop("rope", False) else None
    seed, batch_size = options.pop("seed", 0), options.pop("batch_size", None)
    x, weights = random_inputs(layout, seq_len, seed, batch_size=batch_size, biases=options.pop("biases", False))
    return run_mistake(key, x, weights, layout, rope=rope, **options)


def test_the_six_classics_come_first() -> None:
    assert KEYS[:6] == CLASSICS
    assert KEYS[6:] == ["drop_transpose"]


# ---- oracle: the whole attention, written anew in torch with the wrong line in it


def wrong_attention(
    key: str, x: np.ndarray, weights: dict[str, np.ndarray], layout: HeadLayout, causal: bool, rope: bool
) -> np.ndarray:
    t = {name: torch.from_numpy(array) for name, array in weights.items()}
    rows = torch.from_numpy(x)
    n, kv, seq = layout.n_heads, layout.n_kv_heads, x.shape[-2]
    lead = x.shape[:-2]

    def heads(name: str, count: int) -> torch.Tensor:
        flat = rows @ t[f"W_{name}"] + t[f"b_{name}"]
        if key == "skip_permute":
            return flat.reshape(*lead, count, seq, -1)
        return flat.reshape(*lead, seq, count, -1).movedim(-2, -3)

    Q, K, V = heads("q", n), heads("k", kv), heads("v", kv)
    if rope:
        cos, sin = (torch.from_numpy(table) for table in rope_tables(seq, layout.d_head))
        half = layout.d_head // 2
        Q, K = (r * cos + torch.cat((-r[..., half:], r[..., :half]), -1) * sin for r in (Q, K))
    share = (
        (lambda r: torch.cat([r] * layout.q_per_kv, -3))
        if key == "tile_kv"
        else (lambda r: r.repeat_interleave(layout.q_per_kv, -3))
    )
    K, V = share(K), share(V)
    scores = Q @ K.mT
    if key != "no_scale":
        scores = scores / np.sqrt(layout.d_head)
    open_ = torch.ones(seq, seq, dtype=torch.bool).tril() if causal else torch.ones(seq, seq, dtype=torch.bool)
    if key == "mask_after_softmax":
        shares = scores.softmax(-1) * open_
    else:
        shares = scores.masked_fill(~open_, -torch.inf).softmax(-2 if key == "wrong_softmax_axis" else -1)
    mixed = shares @ V
    joined = mixed if key == "concat_without_permute" else mixed.movedim(-3, -2)
    return (joined.reshape(*lead, seq, -1) @ t["W_o"] + t["b_o"]).numpy()


@settings(max_examples=80)
@given(
    st.sampled_from(CLASSICS),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 6),
    st.none() | st.integers(1, 2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9999),
)
def test_wrong_output_is_what_torch_makes_of_the_wrong_line(
    key: str, kv: int, group: int, half: int, seq_len: int, batch: int | None, causal: bool, rope: bool, seed: int
) -> None:
    layout = HeadLayout(5, kv * group, kv, d_head=2 * half, d_head_v=3)
    x, weights = random_inputs(layout, seq_len, seed, batch_size=batch, biases=True)
    tables = rope_tables(seq_len, layout.d_head) if rope else None
    found = run_mistake(key, x, weights, layout, causal, rope=tables)
    right = multi_head_attention(x, weights, layout, causal, rope=tables).output
    expected = wrong_attention(key, x, weights, layout, causal, rope)
    scale = max(1.0, float(np.abs(expected).max()))
    limit = 1e-9 * max(1.0, float(np.abs(right).max()))
    rows = (np.abs(expected - right) > limit).any(-1)
    assert found.error is None
    assert found.rows_wrong == rows.sum()
    if found.output is None:
        assert not found.visible
    else:
        np.testing.assert_allclose(found.output.wrong / scale, expected / scale, rtol=0, atol=1e-10)
        np.testing.assert_array_equal(found.output.correct, right)
        np.testing.assert_allclose(found.output.difference, found.output.wrong - right, rtol=0, atol=0)
        assert found.output.largest == np.abs(found.output.difference).max()
        assert found.rows_total == rows.size
    if rows.any():
        assert found.visible
        assert f"{rows.sum()} of {rows.size} row" in found.sentence


@pytest.mark.parametrize("key", CLASSICS)
def test_every_classic_is_silent_and_wrong_somewhere(key: str) -> None:
    found = report(key, causal=True, batch_size=3)
    assert found.visible
    assert found.error is None
    assert found.sentence.startswith("Runs without an error. ")
    assert 0 < found.rows_wrong <= found.rows_total == 15
    assert found.at_step is not None
    assert found.at_step.correct.shape == found.at_step.wrong.shape
    assert found.at_step.rows_wrong > 0
    assert found.wrong_line != found.right_line
    assert not found.output.wrong.flags.writeable


def test_a_causal_first_row_survives_the_two_milder_mistakes() -> None:
    # token 0 sees only itself: its weight is 1 with or without the scale
    assert report("no_scale", causal=True).rows_wrong == 4
    assert report("no_scale", causal=False).rows_wrong == 5
    # the last token sees all keys, so a late mask takes nothing from it
    assert report("mask_after_softmax", causal=True).rows_wrong == 4


@pytest.mark.parametrize(
    ("key", "layout", "seq_len", "options", "why"),
    [
        ("tile_kv", HeadLayout(8, 4, 4), 5, {}, "MHA"),
        ("tile_kv", HeadLayout(8, 4, 1), 5, {"causal": True}, "MQA"),
        ("mask_after_softmax", GQA, 5, {}, "Turn causal on"),
        ("mask_after_softmax", GQA, 5, {"mask": np.ones((5, 5), bool)}, "hides nothing"),
        ("mask_after_softmax", GQA, 1, {"causal": True}, "one token"),
        ("skip_permute", HeadLayout(8, 1, 1), 5, {}, "one head"),
        ("skip_permute", GQA, 1, {}, "one token"),
        ("concat_without_permute", HeadLayout(8, 1, 1), 5, {"causal": True}, "one head"),
        ("concat_without_permute", GQA, 1, {}, "one token"),
        ("drop_transpose", HeadLayout(8, 1, 1), 1, {}, "one token"),
        ("no_scale", HeadLayout(8, 4, 2, d_head=1), 5, {}, "√1"),
        ("wrong_softmax_axis", GQA, 1, {}, "one token"),
    ],
)
def test_a_mistake_nobody_can_see_says_why(key: str, layout: HeadLayout, seq_len: int, options: dict, why: str) -> None:
    found = report(key, layout, seq_len, **options)
    assert not found.visible
    assert found.sentence.startswith("Not visible at these settings: ")
    assert why in found.sentence
    assert found.rows_wrong == 0
    assert found.mixed == ()
    assert found.wrong_line
    assert found.right_line


# ---- the lines shown are the lines run


@pytest.mark.parametrize("key", CLASSICS)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_the_lines_shown_make_the_tensors_shown(key: str, batch_size: int | None) -> None:
    x, weights = random_inputs(GQA, 5, seed=1, batch_size=batch_size)
    found = run_mistake(key, x, weights, GQA, causal=True)
    trace = multi_head_attention(x, weights, GQA, causal=True)
    before = {
        "skip_permute": ["1.K"],
        "concat_without_permute": ["5.heads_out"],
        "no_scale": ["3.Q", "4.K"],
        "wrong_softmax_axis": ["4.masked"],
        "tile_kv": ["3.K"],
        "mask_after_softmax": ["4.scores", "4.mask"],
    }[key]
    from attention.multihead import softmax

    for line, expected in ((found.wrong_line, found.at_step.wrong), (found.right_line, found.at_step.correct)):
        names = {trace.step(step).symbol: trace.step(step).array for step in before}
        names |= {"np": np, "softmax": softmax, "rotate_half": rotate_half, "seq_len": 5, "batch_size": batch_size}
        names |= {"n_heads": 6, "n_kv_heads": 2, "d_head": 4, "d_head_v": 7, "q_per_kv": 3}
        exec(line, names)
        np.testing.assert_allclose(names[found.at_step.symbol], expected, rtol=0, atol=1e-12)


# ---- who got mixed with whom: token and head numbers sent through the wrong line instead of values


@pytest.mark.parametrize(("heads", "seq_len"), [(2, 4), (3, 5), (4, 4), (6, 3)])
def test_mixed_rows_of_the_skipped_permute(heads: int, seq_len: int) -> None:
    found = report("skip_permute", HeadLayout(12, heads, heads, d_head=2), seq_len)
    label = np.array([[f"token {t}, head {h}" for h in range(heads)] for t in range(seq_len)])
    wrong = label.reshape(heads, seq_len)
    right = label.T
    expected = {
        f"K[head {h}, token {t}]": (right[h, t], wrong[h, t])
        for h in range(heads)
        for t in range(seq_len)
        if right[h, t] != wrong[h, t]
    }
    assert {mix.row: (mix.expected, mix.got) for mix in found.mixed} == expected
    assert found.at_step.rows_wrong == len(expected)
    assert all(mix.tokens == (int(re.findall(r"token (\d+)", mix.got)[0]),) for mix in found.mixed)


def test_the_skipped_permute_of_shared_heads_names_kv_heads_and_falls_back_to_queries() -> None:
    assert all(mix.row.startswith("K[KV head ") for mix in report("skip_permute").mixed)
    single = report("skip_permute", HeadLayout(8, 4, 1))
    assert single.visible
    assert single.wrong_line == "Q = Q.reshape(n_heads, seq_len, d_head)"


@pytest.mark.parametrize(("heads", "seq_len"), [(2, 4), (3, 5), (5, 3)])
def test_mixed_tokens_of_the_skipped_permute_back(heads: int, seq_len: int) -> None:
    found = report("concat_without_permute", HeadLayout(12, heads, heads, d_head=2), seq_len)
    tokens = np.broadcast_to(np.arange(seq_len), (heads, seq_len)).reshape(seq_len, heads)
    owners = np.repeat(np.arange(heads), seq_len).reshape(seq_len, heads)
    expected = {
        f"concat[token {row}]": tuple(sorted(set(tokens[row].tolist())))
        for row in range(seq_len)
        if (tokens[row] != row).any() or (owners[row] != np.arange(heads)).any()
    }
    assert {mix.row: mix.tokens for mix in found.mixed} == expected
    assert found.at_step.rows_wrong == len(expected)


def test_tiled_heads_read_the_wrong_kv_head() -> None:
    found = report("tile_kv", HeadLayout(8, 4, 2))
    assert [(mix.row, mix.expected, mix.got) for mix in found.mixed] == [
        ("query head 1", "KV 0", "KV 1"),
        ("query head 2", "KV 1", "KV 0"),
    ]


def test_rows_that_do_not_add_up_are_named() -> None:
    late = report("mask_after_softmax", causal=True)
    assert [mix.tokens for mix in late.mixed] == [(1, 2, 3, 4), (2, 3, 4), (3, 4), (4,)]
    sums = late.at_step.wrong[0].sum(-1)
    assert [mix.got.split()[0] for mix in late.mixed] == [f"{total:.2f}" for total in sums[:4]]
    axis = report("wrong_softmax_axis")
    assert [mix.got.split()[0] for mix in axis.mixed] == [f"{total:.2f}" for total in axis.at_step.wrong[0].sum(-1)]


def test_a_float_mask_applied_late_still_adds_its_finite_numbers() -> None:
    rng = np.random.default_rng(0)
    mask = np.where(np.tril(np.ones((5, 5), bool)), rng.standard_normal((5, 5)), -np.inf)
    found = report("mask_after_softmax", mask=mask)
    assert found.visible
    np.testing.assert_allclose(found.at_step.wrong[:, 4], found.at_step.correct[:, 4], rtol=0, atol=1e-12)
    assert found.rows_wrong == 4


# ---- NumPy's refusals


@pytest.mark.parametrize(
    ("layout", "seq_len", "options", "axis"),
    [
        (GQA, 5, {}, "Q's axis seq is 5, K's axis seq is 15"),
        (HeadLayout(12, 3, 3), 5, {"causal": True}, "scores's axis head is 3, mask's axis key is 5"),
        (HeadLayout(12, 3, 3), 5, {"rope": True}, "Q's axis head is 3, cos's axis seq is 5"),
        (HeadLayout(8, 1, 1), 3, {"causal": True}, "weights's last axis is 3, V's axis head is 1"),
    ],
)
def test_the_left_out_transpose_is_refused_with_the_axis(
    layout: HeadLayout, seq_len: int, options: dict, axis: str
) -> None:
    found = report("drop_transpose", layout, seq_len, **options)
    assert found.visible
    assert found.mismatched_axis == axis
    assert axis in found.sentence
    assert "broadcast" in found.error or "mismatch" in found.error  # NumPy's own words
    assert found.output is None
    assert found.rows_wrong == found.rows_total == 0


@pytest.mark.parametrize("causal", [False, True])
def test_the_left_out_transpose_is_silent_where_heads_and_tokens_are_as_many(causal: bool) -> None:
    layout = HeadLayout(12, 4, 4)
    x, weights = random_inputs(layout, 4, seed=2)
    found = run_mistake("drop_transpose", x, weights, layout, causal)
    late = {name: (x @ weights[f"W_{name}"]).reshape(4, 4, 3) for name in "qkv"}
    scores = np.einsum("thd,tgd->thg", late["q"], late["k"]) / np.sqrt(3)
    if causal:
        scores = np.where(np.tril(np.ones((4, 4), bool)), scores, -np.inf)
    shares = np.exp(scores)
    shares /= shares.sum(-1, keepdims=True)
    mixed = np.einsum("thg,tgd->thd", shares, late["v"])
    expected = mixed.transpose(1, 0, 2).reshape(4, 12) @ weights["W_o"]
    np.testing.assert_allclose(found.output.wrong, expected, rtol=0, atol=1e-10)
    assert found.rows_wrong == 4
    assert found.at_step is None
    (mix,) = found.mixed
    assert mix.got.endswith("tokens never meet")


@settings(max_examples=60)
@given(
    st.sampled_from(KEYS),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.none() | st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_no_setting_ends_without_a_sentence(
    key: str, kv: int, group: int, seq_len: int, batch: int | None, causal: bool, rope: bool, single: bool
) -> None:
    layout = HeadLayout(6, kv * group, kv, d_head=2)
    x, weights = random_inputs(layout, seq_len, 3, batch_size=batch)
    if single:
        x, weights = x.astype(np.float32), {name: array.astype(np.float32) for name, array in weights.items()}
    found = run_mistake(key, x, weights, layout, causal, rope=rope_tables(seq_len, 2) if rope else None)
    starts = ("Runs without an error.", "Not visible at these settings:", "NumPy refuses:")
    assert found.sentence.startswith(starts)
    assert found.visible == (not found.sentence.startswith(starts[1]))
    assert (found.error is None) == (found.mismatched_axis is None) == (not found.sentence.startswith(starts[2]))
    assert found.mistake.caught_by


# ---- each mistake fails the test it says would catch it, and the right code passes it


def test_caught_by_sdpa_with_shared_heads() -> None:
    layout = HeadLayout(11, 4, 2, d_head=3)
    x, weights = random_inputs(layout, 5, seed=9)
    rows = torch.from_numpy(x)
    heads = [
        (rows @ torch.from_numpy(weights[f"W_{name}"])).unflatten(-1, (count, 3)).transpose(0, 1)
        for name, count in (("q", 4), ("k", 2), ("v", 2))
    ]
    fused = F.scaled_dot_product_attention(*heads, enable_gqa=True).transpose(0, 1).flatten(1)
    expected = (fused @ torch.from_numpy(weights["W_o"])).numpy()
    for key in ("skip_permute", "no_scale", "tile_kv"):
        output = run_mistake(key, x, weights, layout).output
        np.testing.assert_allclose(output.correct, expected, rtol=0, atol=1e-10)
        assert np.abs(output.wrong - expected).max() > 0.1


def test_caught_by_a_changed_last_token() -> None:
    layout = HeadLayout(8, 2, 2)
    x, weights = random_inputs(layout, 4)
    other = x.copy()
    other[-1] += 1
    one, two = (run_mistake("skip_permute", rows, weights, layout).at_step for rows in (x, other))
    np.testing.assert_array_equal(one.correct[:, :3], two.correct[:, :3])
    assert (one.wrong[:, :3] != two.wrong[:, :3]).any()


def test_caught_by_copying_weights_and_selfish_tokens() -> None:
    layout = HeadLayout(8, 2, 2)
    x = random_inputs(layout, 4)[0]
    weights = dict.fromkeys(("W_q", "W_k", "W_v", "W_o"), np.eye(8))
    output = run_mistake("concat_without_permute", x, weights, layout, mask=np.eye(4, dtype=bool)).output
    np.testing.assert_allclose(output.correct, x, rtol=0, atol=1e-12)
    assert np.abs(output.wrong - x).max() > 0.1


def test_caught_by_ones() -> None:
    layout = HeadLayout(1, 1, 1, d_head=9)
    weights = {name: np.ones((1, 9)) for name in ("W_q", "W_k", "W_v")} | {"W_o": np.ones((9, 1))}
    found = run_mistake("no_scale", np.ones((3, 1)), weights, layout)
    np.testing.assert_allclose(found.at_step.correct, 3.0)
    np.testing.assert_allclose(found.at_step.wrong, 9.0)


@pytest.mark.parametrize("key", ["wrong_softmax_axis", "mask_after_softmax"])
def test_caught_by_rows_that_add_up_to_one(key: str) -> None:
    found = report(key, causal=True)
    np.testing.assert_allclose(found.at_step.correct.sum(-1), 1, rtol=0, atol=1e-12)
    assert np.abs(found.at_step.wrong.sum(-1) - 1).max() > 0.1


def test_caught_by_a_future_token_that_moves_the_past() -> None:
    x, weights = random_inputs(GQA, 5)
    other = x.copy()
    other[-1] += 1
    one, two = (run_mistake("mask_after_softmax", rows, weights, GQA, True).output for rows in (x, other))
    np.testing.assert_array_equal(one.correct[0], two.correct[0])
    assert np.abs(one.wrong[0] - two.wrong[0]).max() > 1e-3


def test_caught_by_the_shape_of_the_weights() -> None:
    (mix,) = report("drop_transpose", HeadLayout(12, 3, 3), 5).mixed
    assert mix.expected.endswith("(3, 5, 5)")
    assert "(5, 3, 3)" in mix.got


def test_unknown_mistakes_and_wrong_inputs_are_refused() -> None:
    with pytest.raises(UserError, match="skip_permute, concat_without_permute"):
        report("forget_everything")
    with pytest.raises(UserError, match=r"W_q .*axis 0 \(d_model\) expected 11, got 3"):
        run_mistake("no_scale", np.ones((5, 11)), random_inputs(GQA, 5)[1] | {"W_q": np.ones((3, 24))}, GQA)
