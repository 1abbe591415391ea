"""The viewer's message: what goes in comes out, in one byte per weight, whatever the text says."""

from __future__ import annotations

import base64
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attention.errors import UserError
from attention.plots import colours
from attention.plots.viewer import (
    BYTE_LIMIT,
    Average,
    Card,
    ViewedTrace,
    ViewerScene,
    dequantise,
    max_pooled,
    quantise,
    read_viewer_bytes,
    sink_columns,
    viewer_bytes,
    viewer_css,
    viewer_html,
    viewer_js,
)
from tests.styles import properties_in
from tests.viewer_scenes import ALICE, FakeTrace, alice_scene, alice_trace, fake_trace, row_of

# Half a step of b is 1/510 of the square root; squared: 2 * sqrt(w) / 510 + 1 / 510**2, at most at w = 1.
WORST_ERROR = 2 / 510 + 1 / 510**2

HOSTILE = (
    "[CLS]",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\u2028",
    "مرحبا",
    "日本",
    "👩‍👩‍👧",
    "[SEP]",
)


def words(count: int) -> list[str]:
    return ["[CLS]", *(f"w{index}" for index in range(count - 2)), "[SEP]"]


@given(arrays(np.float32, (2, 3, 5, 7), elements=st.floats(0, 1, width=32)))
def test_a_byte_is_never_further_than_half_a_step_from_its_weight(weights: np.ndarray) -> None:
    values = quantise(weights)
    assert values.dtype == np.uint8
    assert values.shape == weights.shape
    bound = 2 * np.sqrt(weights.astype(np.float64)) / 510 + 1 / 510**2
    assert np.all(np.abs(dequantise(values) - weights) <= bound + 1e-6)


@pytest.mark.parametrize(("weight", "byte"), [(0.0, 0), (1.0, 255), (0.25, 128), (0.54, 187), (0.01, 26), (1e-6, 0)])
def test_a_byte_is_255_times_the_square_root_rounded(weight: float, byte: int) -> None:
    assert quantise(np.float32([weight]))[0] == byte


def test_odd_numbers_become_the_nearest_allowed_byte() -> None:
    odd = np.float32([np.nan, -0.5, 1.0000002, np.inf])
    assert quantise(odd).tolist() == [0, 0, 255, 255]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("count", [2, 3, 11, 64])
def test_every_head_comes_back(causal: bool, count: int) -> None:
    trace = fake_trace(words(count), 3, 4, 2, causal=causal, seed=count)
    header, (decoded,) = read_viewer_bytes(viewer_bytes(trace))
    assert header["traces"][0]["causal"] is causal
    assert sorted(decoded.heads) == [(layer, head) for layer in range(3) for head in range(4)]
    for (layer, head), weights in decoded.heads.items():
        assert np.abs(weights - trace.weights[layer, head]).max() <= WORST_ERROR
        np.testing.assert_allclose(
            decoded.tops[layer, head], trace.weights[layer, head].max(axis=-1), atol=0.5 / 65535 + 1e-7
        )
    assert decoded.pooled is None


def test_the_order_of_the_body_is_layer_head_query_key() -> None:
    """Read by hand, without the decoder: each weight's byte sits at its place in C order."""
    trace = fake_trace(words(5), 2, 3)
    message = viewer_bytes(trace)
    header = json.loads(message[8 : 8 + int.from_bytes(message[4:8], "little")])
    facts = header["traces"][0]
    body = message[-(-(8 + int.from_bytes(message[4:8], "little")) // 8) * 8 :]
    for layer, head, query, key in [(0, 0, 0, 0), (0, 2, 1, 4), (1, 0, 4, 3), (1, 2, 4, 4)]:
        place = ((layer * 3 + head) * 5 + query) * 5 + key
        expected = round(255 * float(np.sqrt(trace.weights[layer, head, query, key])))
        assert body[facts["full_at"] + place] == expected


def test_a_causal_head_sends_its_lower_triangle_only() -> None:
    trace = fake_trace(words(6), 1, 2, causal=True)
    message = viewer_bytes(trace)
    header, _ = read_viewer_bytes(message)
    facts = header["traces"][0]
    length = int.from_bytes(message[4:8], "little")
    body = message[-(-(8 + length) // 8) * 8 :]
    assert len(body) == 2 * 2 * 6 + 2 * 21
    second = body[facts["full_at"] + 21 :]
    expected = [round(255 * float(np.sqrt(trace.weights[0, 1, q, k]))) for q in range(6) for k in range(q + 1)]
    assert list(second[:21]) == expected


def test_the_body_starts_on_a_multiple_of_eight_and_the_header_is_plain_json() -> None:
    for extra in range(9):
        message = viewer_bytes(alice_scene(swap_label="x" * extra))
        length = int.from_bytes(message[4:8], "little")
        assert message[:4] == b"HSV1"
        assert json.loads(message[8 : 8 + length].decode("utf-8"))["swap"] == "x" * extra
        padded = -(-(8 + length) // 8) * 8
        assert message[8 + length : padded] == b"\0" * (padded - 8 - length)


@pytest.mark.parametrize("count", [64, 256])
def test_at_most_one_and_a_tenth_bytes_per_weight(count: int) -> None:
    trace = fake_trace(words(count), 6, 12)
    cards = tuple(Card(str(head), "A job", 1, head, 6, "evidence of some length, measured") for head in range(3))
    scene = ViewerScene((ViewedTrace(trace),), cards, Average(((1, 0), (1, 1), (1, 2)), 6), (1, 3, 6))
    assert len(viewer_bytes(scene)) / trace.weights.size <= 1.1


@pytest.mark.parametrize(("n_heads", "causal"), [(12, False), (9, True)])
def test_long_texts_stay_under_four_mebibytes_and_keep_the_chosen_layer(n_heads: int, causal: bool) -> None:
    n_kv = 12 if n_heads == 12 else 3
    trace = fake_trace(words(512), 6 if n_heads == 12 else 10, n_heads, n_kv, causal=causal)
    scene = ViewerScene((ViewedTrace(trace),), start=(3, 2, 7))
    message = viewer_bytes(scene)
    header, (decoded,) = read_viewer_bytes(message)
    assert len(message) - int.from_bytes(message[4:8], "little") <= BYTE_LIMIT + 2 * 512 * n_heads + 16
    assert sorted(decoded.heads) == [(3, head) for head in range(n_heads)]
    assert np.abs(decoded.heads[3, 5] - trace.weights[3, 5]).max() <= WORST_ERROR
    assert decoded.pooled is not None
    assert decoded.pooled.shape == (len(trace.weights), n_heads, 29, 29)
    edges = range(0, 512, 18)
    blocks = [[trace.weights[1, 4, q : q + 18, k : k + 18].max() for k in edges] for q in edges]
    assert np.abs(decoded.pooled[1, 4] - blocks).max() <= WORST_ERROR
    assert header["start"] == [3, 2, 7]


def test_full_layers_decide_what_is_sent_in_full() -> None:
    trace = fake_trace(words(300), 6, 12)
    scene = ViewerScene((ViewedTrace(trace),), start=(0, 0, 1), full_layers=(4,))
    _, (decoded,) = read_viewer_bytes(viewer_bytes(scene))
    assert {layer for layer, _ in decoded.heads} == {4}


def test_when_not_even_a_layer_fits_the_heads_nearest_to_the_start_are_sent() -> None:
    trace = fake_trace(words(512), 2, 24)
    _, (decoded,) = read_viewer_bytes(viewer_bytes(ViewerScene((ViewedTrace(trace),), start=(1, 20, 3))))
    heads = sorted(head for _, head in decoded.heads)
    assert {layer for layer, _ in decoded.heads} == {1}
    assert 20 in heads
    assert len(heads) < 24
    assert heads == list(range(24 - len(heads), 24))


def test_two_traces_share_the_limit() -> None:
    main, twin = (fake_trace(words(400), 6, 12, seed=seed) for seed in (1, 2))
    scene = ViewerScene((ViewedTrace(main), ViewedTrace(twin, "twin")), start=(2, 5, 3))
    message = viewer_bytes(scene)
    header, decoded = read_viewer_bytes(message)
    assert [facts["role"] for facts in header["traces"]] == ["main", "twin"]
    for trace, back in zip((main, twin), decoded, strict=True):
        assert np.abs(back.heads[2, 5] - trace.weights[2, 5]).max() <= WORST_ERROR
    assert len(message) <= BYTE_LIMIT + 100_000


@given(st.integers(1, 200), st.integers(0, 5))
def test_pooling_keeps_every_heads_largest_weight(seq_len: int, seed: int) -> None:
    weights = np.random.default_rng(seed).random((1, 2, seq_len, seq_len), dtype=np.float32)
    pooled = max_pooled(weights)
    block = -(-seq_len // 30)
    assert pooled.shape[-1] == pooled.shape[-2] == -(-seq_len // block) <= 30
    for query in range(0, seq_len, max(1, seq_len // 7)):
        for key in range(0, seq_len, max(1, seq_len // 5)):
            rows = slice(query // block * block, query // block * block + block)
            keys = slice(key // block * block, key // block * block + block)
            assert pooled[0, 1, query // block, key // block] == weights[0, 1, rows, keys].max()


def test_the_header_tells_who_shares_whose_keys() -> None:
    """4 heads, 2 K/V heads: 0, 0, 1, 1, never 0, 1, 0, 1."""
    header, _ = read_viewer_bytes(viewer_bytes(fake_trace(words(5), 2, 4, 2, causal=True)))
    facts = header["traces"][0]
    assert (facts["n_layers"], facts["n_heads"], facts["n_kv_heads"]) == (2, 4, 2)
    assert facts["kv_of"] == [0, 0, 1, 1]


def test_card_rows_travel_with_four_decimals() -> None:
    header, _ = read_viewer_bytes(viewer_bytes(alice_scene()))
    rows = {tuple(cell): weights for *cell, weights in header["exact"]}
    trace = alice_trace()
    assert set(rows) == {(0, 2, 6), (2, 0, 4), (1, 3, 6), (2, 0, 6)}
    for (layer, head, query), weights in rows.items():
        np.testing.assert_allclose(weights, trace.weights[layer, head, query], atol=5.1e-5)
    assert rows[1, 3, 6][4] == 0.541


def test_repeated_and_hostile_words_stay_themselves() -> None:
    repeated = ("[CLS]", "the", "cat", "saw", "the", "cat", "[SEP]")
    header, _ = read_viewer_bytes(viewer_bytes(fake_trace(repeated, 2, 2)))
    assert header["traces"][0]["labels"] == list(repeated)
    header, _ = read_viewer_bytes(viewer_bytes(fake_trace(HOSTILE, 2, 2)))
    assert header["traces"][0]["labels"] == list(HOSTILE)
    assert header["traces"][0]["special"] == [0, len(HOSTILE) - 1]


def test_a_lone_surrogate_does_not_break_the_message() -> None:
    header, _ = read_viewer_bytes(viewer_bytes(fake_trace(("a", "\ud83d", "b"), 1, 1)))
    assert header["traces"][0]["labels"] == ["a", "?", "b"]


def test_resting_places_are_special_tokens_and_columns_with_more_than_three_tenths() -> None:
    trace = fake_trace(("[CLS]", "a", "b", "c", "[SEP]"), 1, 2)
    trace.weights[0, 0] = row_of(5, k0=0.2, k2=0.31, k4=0.1)
    trace.weights[0, 1] = row_of(5, k0=0.2, k2=0.29, k4=0.1)
    header, _ = read_viewer_bytes(viewer_bytes(trace))
    assert header["traces"][0]["resting"] == [[[0.61, 2], [0.3]]]
    assert not sink_columns(trace.weights[..., :3, :3]).any(), "three tokens: a third each is chance"


def test_rows_without_numbers_neither_warn_nor_spread() -> None:
    trace = fake_trace(words(6), 1, 2)
    trace.weights[0, 0, 3] = np.nan
    with np.errstate(all="raise"):
        header, (decoded,) = read_viewer_bytes(viewer_bytes(trace))
    assert not decoded.heads[0, 0][3].any()
    assert decoded.heads[0, 1][3].any()
    assert np.isfinite(header["traces"][0]["resting"][0][0][0])


def test_a_row_without_numbers_hides_no_neighbour_when_pooled() -> None:
    weights = np.full((1, 1, 128, 128), 0.25, np.float32)
    weights[0, 0, 4] = np.nan
    assert np.all(max_pooled(weights) == 0.25)


def test_twelve_heads_of_six_layers_at_512_tokens_take_well_under_a_second() -> None:
    trace = fake_trace(words(512), 6, 12)
    started = time.process_time()
    viewer_bytes(trace)
    assert time.process_time() - started < 1.0


def test_a_wrong_shape_says_what_came_and_what_was_expected() -> None:
    trace = fake_trace(words(5), 2, 4)
    wrong = replace(trace, weights=trace.weights[0])
    with pytest.raises(UserError, match=r"\(4, 5, 5\).*\(n_layers, 4, 5, 5\)"):
        viewer_bytes(wrong)
    with pytest.raises(UserError, match="no trace"):
        viewer_bytes(ViewerScene(()))


@pytest.mark.parametrize("cell", [(2, 0, 0), (0, 4, 0), (0, 0, 5), (-1, 0, 0)])
def test_a_start_or_a_card_outside_of_the_trace_is_refused(cell: tuple[int, int, int]) -> None:
    viewed = (ViewedTrace(fake_trace(words(5), 2, 4)),)
    with pytest.raises(UserError, match="2 layers, 4 heads and 5 tokens"):
        viewer_bytes(ViewerScene(viewed, start=cell))
    with pytest.raises(UserError, match="2 layers, 4 heads and 5 tokens"):
        viewer_bytes(ViewerScene(viewed, cards=(Card("x", "x", *cell, "x"),)))


def test_foreign_bytes_are_refused() -> None:
    with pytest.raises(UserError, match="HSV1"):
        read_viewer_bytes(b"PK\3\4 something else")


# The offline file


class _Outline(HTMLParser):
    """Which elements a browser would make of the file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))


def hostile_trace() -> FakeTrace:
    return fake_trace(HOSTILE, 2, 2)


def test_hostile_text_adds_no_element_to_the_offline_file() -> None:
    calm, hostile = _Outline(viewer_html(fake_trace(ALICE, 2, 2))), _Outline(viewer_html(hostile_trace()))
    assert hostile.tags == calm.tags
    assert hostile.tags.count("script") == 2
    assert "img" not in hostile.tags


def test_the_offline_file_names_no_address_and_forbids_the_network() -> None:
    text = viewer_html(hostile_trace())
    outline = _Outline(text)
    policies = [a["content"] for tag, a in outline.attributes if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert policies[0]
    assert policies[0].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policies[0]
    assert "http" not in policies[0]
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"(?m)^\s*//.*$|\s// .*$", "", text))
    assert all("src" not in a and "href" not in a for _, a in outline.attributes)


def test_the_offline_file_carries_the_same_message() -> None:
    text = viewer_html(alice_scene())
    packed = re.search(r'id="hs-data">([A-Za-z0-9+/=]+)<', text)
    assert packed
    header, (decoded,) = read_viewer_bytes(base64.b64decode(packed[1]))
    assert header["swap"] == "Change one word: they → she"
    assert len(decoded.heads) == 72


def test_the_offline_file_holds_every_layer_of_a_long_text_that_fits() -> None:
    trace = fake_trace(words(300), 6, 12)
    packed = re.search(r'id="hs-data">([A-Za-z0-9+/=]+)<', viewer_html(ViewerScene((ViewedTrace(trace),))))
    assert packed
    _, (decoded,) = read_viewer_bytes(base64.b64decode(packed[1]))
    assert len(decoded.heads) == 72


# Style and script


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_style_uses_the_colours_of_the_concepts(theme: str) -> None:
    properties = properties_in(viewer_css(), theme)
    for name in ("query", "key", "value", "broken"):
        assert properties[name] == getattr(colours, name.upper()).on(theme)
    scale = colours.WEIGHT_SCALE if theme == "light" else colours.WEIGHT_SCALE_DARK
    assert [place for place, _ in scale] == [0, 0.25, 0.5, 0.75, 1], "the script spaces its five stops evenly"
    assert [properties[f"w{stop}"] for stop in range(5)] == [colour for _, colour in scale]


def test_the_script_is_inline_text_for_streamlit_and_never_writes_html() -> None:
    script = viewer_js()
    assert "\n" in script, "a v2 script without a newline is taken for a path"
    assert script.count("export default function headViewer(") == 1
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", script)
    assert "</" not in script
    assert "</" not in viewer_css()
    assert not re.search(r"https?:/" + "/", script + viewer_css())
