"""The benchmarks' arithmetic and table: a wrong ratio or a wrong "yes" would be believed. Nothing here is timed."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.models import LoadedModel
from benchmarks import growth, numpy_heads
from benchmarks.__main__ import MEASURES, keep, main
from benchmarks.peers.eager import EagerPeer
from benchmarks.ratios import COLUMNS, Effort, Row, Target, interleaved, quartiles, table
from benchmarks.server import ROOT
from benchmarks.texts import VOCABULARIES, counter, text_of
from benchmarks.viewer_bytes import REQUIREMENTS, message_bytes

PAIRS = st.lists(st.tuples(st.floats(0.01, 1e6), st.floats(0.01, 1e6)), min_size=1, max_size=30)


def row(ours: tuple[float, ...], peer: tuple[float, ...] = (), target: Target | None = None, note: str = "") -> Row:
    return Row("a measure", "ms", ours, peer, target, "somebody", note)


def body(rows: list[Row]) -> list[list[str]]:
    """The table's lines under the ruler, cell by cell."""
    lines = table(rows).split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


# --- ratios ----------------------------------------------------------------------------------------


def test_a_ratio_is_taken_pair_by_pair() -> None:
    # In the third pair the machine was busy and both took ten times as long: medians apart would say 22 / 20.
    one = row((11.0, 22.0, 220.0), (10.0, 20.0, 200.0))
    assert one.ratios == pytest.approx((1.1, 1.1, 1.1))
    assert row((10.0, 30.0, 50.0), (10.0, 10.0, 10.0)).ratio == 3.0
    mixed = row((10.0, 20.0, 90.0), (5.0, 40.0, 30.0))
    assert mixed.ratio == 2.0 != statistics.median(mixed.ours) / statistics.median(mixed.peer)


@given(PAIRS)
def test_a_gain_is_the_peer_over_ours(pairs: list[tuple[float, float]]) -> None:
    ours, peer = tuple(one for one, _ in pairs), tuple(other for _, other in pairs)
    cost, gain = row(ours, peer, Target(2.0)), row(ours, peer, Target(2.0, "gain"))
    assert gain.ratios == pytest.approx([1 / ratio for ratio in cost.ratios])
    assert gain.ratio == pytest.approx(row(peer, ours).ratio)


@pytest.mark.parametrize(
    ("ours", "peer", "target", "met"),
    [
        (115.0, 100.0, Target(1.15), True),
        (116.0, 100.0, Target(1.15), False),
        (10.0, 100.0, Target(10, "gain"), True),
        (10.1, 100.0, Target(10, "gain"), False),
        (1.1, 45.0, Target(1.1, "most"), True),
        (1.11, 45.0, Target(1.1, "most"), False),
        (500.0, 1.0, None, None),
    ],
)
def test_a_target_is_met_up_to_its_limit(ours: float, peer: float, target: Target | None, met: bool | None) -> None:
    assert row((ours,), (peer,), target).met is met


def test_a_limit_on_ours_needs_no_peer_and_a_ratio_does() -> None:
    assert row((1.0, 3.0, 1.05), target=Target(1.1, "most")).met is True
    assert row((1.0,), target=Target(1.15)).met is None
    assert row((1.0,)).ratio is None


def test_nothing_received_is_no_division_by_zero() -> None:
    assert row((0.0,), (300.0,), Target(10, "gain")).met is True
    assert "∞" in table([row((0.0,), (300.0,), Target(10, "gain"))])


def test_runs_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = row((1.0, 2.0), (1.0,)).ratios


# --- turns -----------------------------------------------------------------------------------------


def turns(effort: Effort, warm_up: int = 0) -> tuple[str, list[tuple[int, int]]]:
    order: list[str] = []
    count: Counter[str] = Counter()

    def run(name: str) -> int:
        order.append(name)
        count[name] += 1
        return count[name]

    pairs = interleaved(lambda: run("A"), lambda: run("B"), effort, warm_up)
    return "".join(order), pairs


def test_runs_alternate_and_who_goes_first_does_too() -> None:
    order, pairs = turns(Effort(pairs=4, seconds=60))
    assert order == "ABBAABBA"
    assert pairs == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_warm_up_runs_are_thrown_away() -> None:
    order, pairs = turns(Effort(pairs=3, seconds=60), warm_up=2)
    assert len(order) == 10
    assert pairs == [(3, 3), (4, 4), (5, 5)]


def test_without_time_left_only_the_least_number_of_pairs_runs() -> None:
    _, pairs = turns(Effort(pairs=50, seconds=-1, least=4))
    assert len(pairs) == 4
    _, pairs = turns(Effort(pairs=2, seconds=-1, least=4))
    assert len(pairs) == 2


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_quartiles_are_numpys(values: list[float]) -> None:
    assert quartiles(values) == pytest.approx(np.percentile(values, [25, 75]), rel=1e-9, abs=1e-6)


# --- table -----------------------------------------------------------------------------------------


def test_the_table_says_what_was_measured() -> None:
    rows = [
        Row("trace", "ms", (110.0, 120.0, 130.0), (100.0, 100.0, 100.0), Target(1.15), "eager", "first"),
        Row("key press", "ms", (50.0,), (1234.5,), Target(10, "gain"), "Plotly", "second"),
        Row("bytes", "B", (1.0234,), target=Target(1.1, "most"), note="first"),
        Row("memory", "MiB", (1128.4,)),
    ]
    assert table(rows).splitlines()[0].split(" | ")[0].strip() == COLUMNS[0]
    assert body(rows) == [
        ["trace [1]", "120 (115–125) ms", "100 (100–100) ms eager", "1.20× (1.15–1.25)", "≤ 1.15×", "NO"],
        ["key press [2]", "50.0 ms", "1,234 ms Plotly", "24.7× less", "≥ 10× less", "yes"],
        ["bytes [1]", "1.02 B", "–", "–", "≤ 1.1 B", "yes"],
        ["memory", "1,128 MiB", "–", "–", "–", "report"],
    ]
    assert table(rows).endswith("\n\n[1] first\n[2] second")


def test_columns_stand_under_each_other() -> None:
    rows = [row((1.0,), (2.0,), Target(1.15)), Row("a much longer name", "B", (3.0,))]
    lines = table(rows).splitlines()
    places = [[at for at, letter in enumerate(line) if letter in "|+"] for line in lines if line]
    assert all(one == other for one, other in pairwise(places))
    assert len(places[0]) == len(COLUMNS) - 1


def test_every_run_is_kept(tmp_path: Path) -> None:
    path = keep([row((1.0, 2.0), (2.0, 2.0), Target(0.8))], quick=True, load=3.5, folder=tmp_path / "new")
    kept = json.loads(path.read_text())
    assert kept["quick"] is True
    assert kept["machine"]["load_at_start"] == 3.5
    assert "torch" in kept["machine"]
    (only,) = kept["rows"]
    assert (only["ours"], only["peer"], only["ratios"], only["ratio"]) == ([1.0, 2.0], [2.0, 2.0], [0.5, 1.0], 0.75)
    assert only["met"] is True


def test_an_unknown_part_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "speed"])
    said = capsys.readouterr().err
    assert all(name in said for name in MEASURES)


def test_a_part_that_breaks_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: bool) -> list[Row]:
        raise RuntimeError("no browser")

    def fine(_: bool) -> list[Row]:
        return [row((1.0,), (2.0,), Target(1.15))]

    measures = {"browser": broken, "tracing": fine, "memory": fine}
    parts = {f"benchmarks.{name}": SimpleNamespace(measure=measure) for name, measure in measures.items()}
    monkeypatch.setattr("benchmarks.__main__.keep", lambda rows, *_: ROOT / f"{len(rows)}.json")
    monkeypatch.setattr("importlib.import_module", parts.__getitem__)
    assert main(["--only", "tracing", "browser", "memory"]) == 1
    said = capsys.readouterr().out
    assert "Not measured, the error is above: browser (RuntimeError)" in said
    assert "0.500×" in said
    assert "2.json" in said, "rows of both parts that ran are kept"
    assert main(["--only", "tracing"]) == 0


# --- what is measured ------------------------------------------------------------------------------


def test_texts_have_exactly_the_tokens_asked_for(minilm: LoadedModel, smollm: LoadedModel) -> None:
    for loaded in (minilm, smollm):
        for n_tokens in (16, 64, 512):
            text = text_of(counter(loaded.tokenizer), n_tokens, seed=3)
            assert len(loaded.tokenizer(text)["input_ids"]) == n_tokens


def test_neighbouring_seeds_share_no_word_and_no_seed_repeats(minilm: LoadedModel) -> None:
    count = counter(minilm.tokenizer)
    texts = [text_of(count, 64, seed) for seed in range(12)]
    assert len(set(texts)) == 12
    assert all(not set(one.split()) & set(other.split()) for one, other in pairwise(texts))
    assert not set(VOCABULARIES[0]) & set(VOCABULARIES[1])


def test_a_length_no_text_has_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly 5 tokens"):
        text_of(lambda text: 2 * len(text.split()), 5)


def test_the_eager_peer_does_the_same_work_on_the_same_weights(minilm: LoadedModel) -> None:
    import torch

    from attention import trace

    peer = EagerPeer(minilm)
    text = "The dog sat."
    layers = peer.run(torch.tensor([minilm.tokenizer(text)["input_ids"]]))
    assert len(layers) == minilm.n_layers
    assert np.abs(torch.cat(layers).numpy() - trace(minilm, text).weights).max() <= 1e-5
    assert minilm.model.config._attn_implementation == "headscope"


def test_a_long_page_counts_every_message_until_all_layers_were_shown(minilm: LoadedModel) -> None:
    from attention import trace

    short = trace(minilm, text_of(counter(minilm.tokenizer), 32))
    opening, everything = message_bytes(short)
    assert opening == everything > short.weights.size
    long = trace(minilm, text_of(counter(minilm.tokenizer), 256))
    opening, everything = message_bytes(long)
    assert opening < long.weights.size < everything


def test_the_peer_is_pinned_by_hash() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line and "--hash=sha256:" in line for line in lines)
    assert lines


class TestGrowth:
    def test_the_slope_is_the_exponent(self) -> None:
        sizes = (16, 32, 64, 128)
        assert growth.slope(sizes, [3 * size**2 for size in sizes]) == pytest.approx(2)
        assert growth.slope(sizes, [0.5 * size**1.5 for size in sizes]) == pytest.approx(1.5)
        assert growth.slope(sizes, [7.0] * 4) == pytest.approx(0, abs=1e-12)

    def test_the_last_doubling_is_told_apart_from_the_whole(self) -> None:
        curve = growth.Curve("time", "ms", "tokens", (1, 2, 4), (10.0, 10.0, 40.0))
        assert curve.last == pytest.approx(2)
        assert curve.slope == pytest.approx(1)
        figure = growth.chart([curve])
        assert figure.layout.annotations[0].text == "time with tokens: slope 1.00, last 2.00"
        assert {axis.type for axis in (figure.layout.xaxis, figure.layout.yaxis)} == {"log"}
        drawn, fitted = figure.data
        assert list(drawn.y) == [10, 10, 40]
        assert fitted.y[2] / fitted.y[0] == pytest.approx(4)

    def test_pytorch_s_layer_is_the_same_layer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, size in (("N_HEADS", 2), ("SEQ_LEN", 8), ("D_HEAD", 4)):
            monkeypatch.setattr(numpy_heads, name, size)
        (row,) = numpy_heads.measure(quick=True)
        assert row.details["difference"] < 1e-5
        assert len(row.ours) == len(row.peer) >= 3
