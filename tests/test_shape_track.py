"""The Shapes page's message: the browser receives exactly the engine's numbers, rules and program."""

from __future__ import annotations

import ast
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.errors import UserError
from attention.layout import HeadLayout, divisors
from attention.multihead import StepTrace, multi_head_attention, random_inputs, rope_tables
from attention.plots import colours
from attention.plots.broken import broken_maps
from attention.plots.shape_track import BYTE_LIMIT, read_track_bytes, track_bytes, track_css
from tests.styles import properties_in

LAYOUT = HeadLayout(24, 6, 2)


def traced(layout: HeadLayout = LAYOUT, seq_len: int = 5, causal: bool = True, rope: bool = True) -> StepTrace:
    x, weights = random_inputs(layout, seq_len, biases=True)
    tables = rope_tables(seq_len, layout.d_head) if rope else None
    return multi_head_attention(x, weights, layout, causal, rope=tables)


@st.composite
def runs(draw: st.DrawFn) -> StepTrace:
    d_model = draw(st.integers(1, 24))
    n_heads = draw(st.sampled_from(divisors(d_model)))
    layout = HeadLayout(d_model, n_heads, draw(st.sampled_from(divisors(n_heads))))
    rope = layout.d_head % 2 == 0 and draw(st.booleans())
    return traced(layout, draw(st.integers(1, 6)), draw(st.booleans()), rope)


@given(runs())
def test_every_tensor_arrives_with_the_engines_numbers(trace: StepTrace) -> None:
    header, arrays = read_track_bytes(track_bytes(trace, source="random"))
    assert [facts["key"] for facts in header["tensors"]] == [step.key for step in trace.steps]
    for step, facts in zip(trace.steps, header["tensors"], strict=True):
        np.testing.assert_array_equal(arrays[step.key], step.array.astype(np.float32))
        assert (tuple(facts["shape"]), tuple(facts["axes"])) == (step.shape, step.axes)
        assert (facts["number"], facts["name"], facts["sentence"]) == (step.number, step.name, step.sentence)


@given(runs())
def test_every_rule_arrives(trace: StepTrace) -> None:
    header, _ = read_track_bytes(track_bytes(trace, source="random"))
    known = {facts["key"] for facts in (*header["inputs"], *header["tensors"])}
    for step, facts in zip(trace.steps, header["tensors"], strict=True):
        sent = [(source, [tuple(rule) for rule in rules], gate) for source, rules, gate in facts["links"]]
        assert sent == [
            (link.source, [(rule.kind, rule.a, rule.b, rule.width) for rule in link.rules], link.gate)
            for link in step.links
        ]
        assert {source for source, _, _ in sent} <= known


@given(runs())
def test_each_steps_line_in_the_program_ends_with_its_real_shape(trace: StepTrace) -> None:
    header, _ = read_track_bytes(track_bytes(trace, source="random"))
    for flavour, program in header["code"].items():
        lines = program["text"].splitlines()
        for step, facts in zip(trace.steps, header["tensors"], strict=True):
            code, comment = lines[program["lines"][step.key]].rsplit("#", 1)
            assert code.strip() == facts["line"][flavour]
            assert ast.literal_eval(comment.strip()) == step.array.shape


def test_the_programs_are_those_of_the_three_dialects() -> None:
    header, _ = read_track_bytes(track_bytes(traced(), source="random", seed=7))
    assert set(header["code"]) == {"numpy", "torch", "einops"}
    for program in header["code"].values():
        assert "default_rng(7)" in program["text"]
        assert "b_q" in program["text"]  # biases
        assert "rotate_half" in program["text"]  # RoPE
    assert "import torch" in header["code"]["torch"]["text"]
    assert "from einops" in header["code"]["einops"]["text"]


def test_numbers_that_only_change_their_address_are_sent_once() -> None:
    trace = traced(HeadLayout(12, 3, 3), 4, causal=False, rope=False)
    header, _ = read_track_bytes(track_bytes(trace, source="random"))
    places = {facts["key"]: facts["at"] for facts in header["tensors"]}
    assert places["1.K"] == places["2.K"]  # reshape: the same order
    assert places["2.K"] != places["3.K"]  # transpose: another order
    assert places["6.heads_out"] == places["6.concat"]
    assert places["1.K"] != places["1.V"]


def test_blocked_scores_arrive_as_minus_infinity_and_leave_the_colour_range_alone() -> None:
    trace = traced()
    header, arrays = read_track_bytes(track_bytes(trace, source="random"))
    masked = next(facts for facts in header["tensors"] if facts["key"] == "4.masked")
    finite = trace.step("masked").array[np.isfinite(trace.step("masked").array)]
    assert np.isneginf(arrays["4.masked"][0, 0, 1])
    np.testing.assert_allclose(masked["range"], [finite.min(), finite.max()], rtol=1e-6)


def test_the_steps_are_numbered_as_everywhere_and_the_page_opens_on_the_permute() -> None:
    header, _ = read_track_bytes(track_bytes(traced(), source="random"))
    assert [number for number, _ in header["stops"]] == ["1", "2", "3", "3½", "4", "5", "6", "7"]
    assert header["start"] == {"step": "3.K", "letter": "K", "pick": ["3.K", [1, 2, 3]]}
    small, _ = read_track_bytes(track_bytes(traced(HeadLayout(2, 1, 1), 1, rope=False), source="random"))
    assert small["start"]["pick"] == ["3.K", [0, 0, 1]]


def test_what_is_said_arrives() -> None:
    message = track_bytes(
        traced(), source="MiniLM, layer 2", tokens=["<b>", "ü", "a", "b", "c"], remarks=["one"], code_note="two"
    )
    header, _ = read_track_bytes(message)
    assert (header["source"], header["tokens"]) == ("MiniLM, layer 2", ["<b>", "ü", "a", "b", "c"])
    assert (header["notes"], header["code_note"]) == (["one"], "two")
    assert header["sizes"] == {"seq_len": 5, "d_model": 24, "n_heads": 6, "n_kv_heads": 2, "d_head": 4, "q_per_kv": 3}


def test_memory_is_told_as_it_is() -> None:
    header, _ = read_track_bytes(track_bytes(traced(rope=False), source="random"))
    told = {facts["key"]: facts["memory"] for facts in header["tensors"]}
    assert told["2.K"] == "No number moved in memory: strides (8, 4, 1), in order."
    assert told["3.K"] == "No number moved in memory: strides (4, 8, 1), no longer in order: reshape would copy."
    assert told["4.K"].startswith("New numbers in memory")


def test_the_header_is_plain_json() -> None:
    message = track_bytes(traced(), source="random")
    end = 8 + int.from_bytes(message[4:8], "little")
    json.loads(message[8:end], parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_a_batch_and_a_run_too_large_are_refused_in_a_sentence() -> None:
    layout = HeadLayout(4, 2, 2)
    x, weights = random_inputs(layout, 3, batch_size=2)
    with pytest.raises(UserError, match="batch"):
        track_bytes(multi_head_attention(x, weights, layout), source="random")
    wide = HeadLayout(256, 16, 16)
    x, weights = random_inputs(wide, 512)
    with pytest.raises(UserError, match=f"At most {BYTE_LIMIT // 2**20} MiB"):
        track_bytes(multi_head_attention(x, weights, wide), source="random")


def test_other_bytes_are_refused() -> None:
    with pytest.raises(UserError, match="HST1"):
        read_track_bytes(b"HSV1" + bytes(20))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_style_has_the_concepts_colours(theme: str) -> None:
    properties = properties_in(track_css(), theme)
    for name in ("query", "key", "value", "broken"):
        assert properties[name] == getattr(colours, name.upper()).on(theme)


def test_maps_of_a_mistake_leave_infinity_blank_and_print_words_literally() -> None:
    correct = np.array([[1.0, -np.inf], [3.0, 4.0]])
    wrong = np.array([[1.0, 2.0], [3.0, 6.0]])
    figure = broken_maps(correct, wrong, np.array([False, True]), ["<b>", "cat"], "key")
    assert np.isnan(figure.data[0].z[0, 1])
    assert np.isnan(figure.data[2].z[0, 1])
    assert (figure.data[0].zmin, figure.data[0].zmax) == (figure.data[1].zmin, figure.data[1].zmax) == (1.0, 6.0)
    np.testing.assert_array_equal(figure.data[2].z[1], [0.0, 2.0])
    assert list(figure.layout.yaxis.ticktext) == ["&lt;b&gt;", "cat"]
    assert list(figure.layout.yaxis2.ticktext) == ["&lt;b&gt;", "✗ cat"]
    assert [(frame.y0, frame.y1) for frame in figure.layout.shapes] == [(0.5, 1.5)]
