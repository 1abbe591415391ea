"""Quality against cached numbers: the shipped points, their relations, and the same figures by other code."""

from __future__ import annotations

import copy
import json
import math
import random
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from attention import LatentKV, LoadedModel, ShareKV, UserError, calibration, kernel, ladder, plans
from attention.engine import Engine
from attention.healed import healed_settings
from attention.jobs import AbandonedError
from attention.ladder import evaluation_pieces, ladder_sweep, rank_correlation
from attention.ladder_view import ladder_view, possible_rungs, viewed_rungs
from attention.plots.ladder_board import Measure, board_bytes
from attention.rungs import (
    LadderPoint,
    SweepRequest,
    point_from,
    rung_name,
    rungs_of,
    shipped_points,
    shipped_sweep,
    sweep_facts,
    to_fact,
)
from attention.sharing import HOWS
from attention.texts import bundled_text, evaluation_texts
from tests.tiny_models import random_module, tiny_config, wrapped

MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
TEXTS = [text.id for text in evaluation_texts()]


def point(model: str, rung: Any) -> LadderPoint:
    return next(one for one in shipped_sweep(model) if one.what_if == rung)


def value(model: str, rung: Any, text: str) -> float:
    return point(model, rung).on(text).value


# --- relations ---


@pytest.mark.parametrize("text", TEXTS)
def test_at_equal_bytes_latent_beats_aligned_beats_mean_beats_random(text: str) -> None:
    latent, aligned, mean, drawn = (
        value(SMOLLM, rung, text) for rung in (LatentKV(128), ShareKV(1, "aligned"), ShareKV(1), ShareKV(1, "random"))
    )
    assert latent < aligned < mean < drawn
    assert latent * 20 < mean
    assert latent < value(SMOLLM, LatentKV(128, whiten=False), text)
    assert {point(SMOLLM, rung).numbers for rung in (LatentKV(128), ShareKV(1), ShareKV(1, "random"))} == {128}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("whiten", [True, False])
def test_surprise_falls_with_rank(text: str, whiten: bool) -> None:
    found = sorted(
        (one.numbers, one.on(text).value)
        for one in shipped_sweep(SMOLLM)
        if isinstance(one.what_if, LatentKV)
        and one.what_if.split is None
        and one.what_if.whiten == whiten
        and not one.what_if.healed
    )
    assert len(found) >= 7
    for (_, worse), (_, better) in pairwise(found):
        assert better < worse


def test_half_of_mha_is_free_without_rope_and_nothing_of_gqa_is() -> None:
    assert point(MINILM, LatentKV(384)).on("similarity").low >= 0.9999
    assert point(MINILM, LatentKV(256)).on("similarity").value < 0.999
    assert value(SMOLLM, LatentKV(320), "prose") > value(SMOLLM, None, "prose") * 1.001


def test_what_keeps_everything_is_the_model_to_four_digits() -> None:
    for text in TEXTS:
        assert value(SMOLLM, LatentKV(384), text) == pytest.approx(value(SMOLLM, None, text), rel=1e-4)
        assert point(SMOLLM, LatentKV(384)).on(text).agreement > 0.999
    assert point(MINILM, LatentKV(768)).on("similarity").low > 0.99999


def test_values_want_more_of_a_latent_than_keys() -> None:
    for text in TEXTS:
        assert value(SMOLLM, LatentKV(128, (42, 86)), text) < value(SMOLLM, LatentKV(128, (86, 42)), text)
    by_keys, by_values = (point(MINILM, LatentKV(256, split)) for split in ((171, 85), (85, 171)))
    assert by_values.on("similarity").value > by_keys.on("similarity").value + 0.03


def test_averaging_breaks_minilm_and_turning_first_helps() -> None:
    mean, aligned, alike = (
        point(MINILM, rung).on("similarity").value
        for rung in (ShareKV(6), ShareKV(6, "aligned"), ShareKV(6, "aligned", groups="by-similarity"))
    )
    assert mean < 0.75
    assert mean + 0.08 < aligned < alike


# --- the shipped files ---


@pytest.mark.parametrize("model", [MINILM, SMOLLM])
def test_the_shipped_sweep_says_how_it_was_made(model: str, request: pytest.FixtureRequest) -> None:
    loaded = request.getfixturevalue("minilm" if model == MINILM else "smollm")
    facts = sweep_facts(model)
    assert facts["command"] == "make ladder"
    assert facts["revision"] == loaded.revision
    assert facts["texts_sha256"]["calibration"] == bundled_text("calibration").sha256
    measured = [one.what_if for one in shipped_sweep(model)]
    assert set(rungs_of(loaded.layout)) <= set(measured)
    assert len({rung_name(rung) for rung in measured}) == len(measured)


@pytest.mark.parametrize("model", [MINILM, SMOLLM])
def test_points_survive_their_file(model: str) -> None:
    for one in shipped_sweep(model):
        assert point_from(json.loads(json.dumps(to_fact(one)))) == one


def by_hand(loaded: LoadedModel, rung: Any) -> Any:
    """A copy of the model under torch's own SDPA whose K and V projections hold the rung's effective weights."""
    shared: dict[int, Any] = {id(t): t for t in [*loaded.model.parameters(), *loaded.model.buffers()]}
    twin = copy.deepcopy(loaded.model, shared)
    twin.set_attn_implementation("sdpa")
    trunk = twin.get_decoder() if loaded.kind == "decoder" else twin
    names = ("k_proj", "v_proj") if loaded.kind == "decoder" else ("key", "value")
    holders = [module for module in trunk.modules() if all(hasattr(module, name) for name in names)]
    for layer, holder in enumerate(holders if rung is not None else []):
        at = loaded.kv_projections[layer][0].out_features
        weight, bias = effective(loaded, rung, layer)
        for name, rows in zip(names, (slice(None, at), slice(at, None)), strict=True):
            made = torch.nn.Linear(weight.shape[1], weight[rows].shape[0])
            made.weight.data, made.bias.data = weight[rows].clone(), bias[rows].clone()
            setattr(holder, name, made)
    return twin.requires_grad_(False)


def effective(loaded: LoadedModel, rung: Any, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    weight, bias = plans.projection_of(loaded, layer)
    if isinstance(rung, ShareKV) and rung.how in ("mean", "first"):
        groups = plans.head_groups(loaded, rung, layer)
        both = torch.cat([weight, bias.unsqueeze(1)], dim=1).unflatten(0, (2 * len(groups), -1))
        made = []
        for part in both.chunk(2):
            for group in groups:
                members = [head for head, of in enumerate(groups) if of == group]
                made.append(part[members].mean(0) if rung.how == "mean" else part[members[0]])
        rows = torch.cat(made)
        return rows[:, :-1], rows[:, -1]
    if isinstance(rung, ShareKV) and rung.how == "aligned":
        rebuild = plans.pooled_rebuild(loaded, rung, layer)
    else:
        rebuild = plans.kv_plan(loaded, (rung,)).rebuilds[layer]
    down_bias = 0 if rebuild.down_bias is None else rebuild.up @ rebuild.down_bias
    return rebuild.up @ rebuild.down, rebuild.up_bias + down_bias


def chosen(cells: list[Any], of: int) -> list[Any]:
    """One in so many of the cells, by a fixed seed."""
    return random.Random(20).sample(cells, math.ceil(len(cells) / of))


def test_a_twentieth_of_the_encoders_points_again_by_another_path(minilm: LoadedModel) -> None:
    texts = [entry["text"] for entry in ladder.sentences()["similarity"]]
    inputs = minilm.tokenizer(texts, padding=True, return_tensors="pt")
    attended = inputs["attention_mask"].unsqueeze(-1)

    def embedded(rung: Any) -> torch.Tensor:
        with torch.inference_mode():
            hidden = by_hand(minilm, rung)(**inputs).last_hidden_state
        return torch.nn.functional.normalize((hidden * attended).sum(1) / attended.sum(1), dim=-1)

    original = embedded(None)
    for one in chosen(list(shipped_sweep(MINILM)), 20):
        cosines = (embedded(one.what_if) * original).sum(1).numpy()
        np.testing.assert_allclose(cosines, one.on("similarity").pieces, atol=2e-4, err_msg=rung_name(one.what_if))


def test_a_fiftieth_of_the_decoders_points_again_by_another_path(smollm: LoadedModel) -> None:
    pieces = {text: evaluation_pieces(smollm, bundled_text(text).text) for text in TEXTS}
    cells = [(one, text, at) for one in shipped_sweep(SMOLLM) for text in TEXTS for at in range(len(pieces[text]))]
    for one, text, at in chosen(cells, 50):
        ids = torch.tensor([pieces[text][at]])
        with torch.inference_mode():
            loss = by_hand(smollm, one.what_if)(input_ids=ids, labels=ids, use_cache=False).loss
        assert float(loss) == pytest.approx(one.on(text).pieces[at], abs=2e-3), rung_name(one.what_if)


def test_healed_points_belong_to_the_files_shipped(minilm: LoadedModel, smollm: LoadedModel) -> None:
    """Trained again, a setting must be measured again: one piece of each, against the shipped pieces."""
    healed = [one.what_if for one in shipped_sweep(MINILM) if one.badge == "healed"]
    assert tuple(healed) == healed_settings(MINILM)
    for one in ladder_sweep(minilm, healed):
        assert one.on("similarity").pieces == pytest.approx(
            point(MINILM, one.what_if).on("similarity").pieces, abs=2e-4
        )
    assert healed_settings(SMOLLM)
    ids = evaluation_pieces(smollm, bundled_text("prose").text)[0]
    for rung in healed_settings(SMOLLM):
        logs = ladder.next_token_logs(smollm, ids, rung)
        loss = -float(logs.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).mean())
        assert loss == pytest.approx(point(SMOLLM, rung).on("prose").pieces[0], abs=2e-3)
        assert value(SMOLLM, rung, "prose") < value(SMOLLM, ShareKV(1, "aligned"), "prose") / 3


# --- measuring ---


@cache
def tiny(name: str) -> LoadedModel:
    kernel.register()
    return wrapped(random_module(tiny_config(name), kernel.NAME), f"ladder-{name}")


@pytest.fixture(autouse=True)
def _little_calibration(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not {"minilm", "smollm"} & set(request.fixturenames):
        monkeypatch.setattr(calibration, "N_TOKENS", 600)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_every_rung_of_a_tiny_model_is_measured(name: str) -> None:
    loaded = tiny(name)
    heard: list[float] = []
    rungs = rungs_of(loaded.layout)
    points = ladder_sweep(loaded, rungs, say=heard.append)
    assert [one.what_if for one in points] == list(rungs)
    assert heard == sorted(heard)
    assert heard[-1] == 1
    shipped = points[0].quality[0]
    assert (points[0].badge, shipped.agreement) == ("as shipped", pytest.approx(1))
    assert shipped.apart == pytest.approx(0, abs=1e-6)
    for one in points[1:]:
        assert one.badge == "no training"
        for quality in one.quality:
            assert quality.apart > -1e-6
            worst, best = (quality.high, quality.low) if name == "llama" else (quality.low, quality.high)
            assert min(worst, best) - 1e-9 <= quality.value <= max(worst, best) + 1e-9


@pytest.mark.parametrize(
    ("name", "ways", "latents"),
    [("gpt2", {"mean", "first"}, False), ("qwen3", {"mean", "first", "random"}, True), ("llama", set(HOWS[:4]), True)],
)
def test_a_model_is_shown_and_measured_on_the_rungs_its_attention_allows(
    name: str, ways: set[str], latents: bool
) -> None:
    loaded = tiny(name)
    rungs = possible_rungs(loaded)
    assert {one.how for one in rungs if isinstance(one, ShareKV)} == ways
    assert any(isinstance(one, LatentKV) for one in rungs) == latents
    view = ladder_view(loaded, "the cat sat", 1, 2)
    assert [one.rung for one in view.rungs] == [one for one in viewed_rungs(loaded) if one in rungs]
    assert board_bytes(view, (), Measure("", "", ""), title=name)
    if name == "gpt2":
        assert len(ladder_sweep(loaded, rungs)) == len(rungs) == 1 + 2 * 3


def test_a_sweep_stops_when_told() -> None:
    heard: list[float] = []

    def leave(share: float) -> None:
        heard.append(share)
        if len(heard) == 2:
            raise AbandonedError

    with pytest.raises(AbandonedError):
        ladder_sweep(tiny("bert"), rungs_of(tiny("bert").layout), say=leave)
    assert len(heard) == 2


def test_a_rung_that_cannot_be_is_refused_before_anything_is_measured() -> None:
    heard: list[float] = []
    with pytest.raises(UserError, match=r"6 K/V heads .* into 4\."):
        ladder_sweep(tiny("bert"), [None, ShareKV(4)], say=heard.append)
    assert heard == []


def test_nine_heads_cannot_become_two(smollm: LoadedModel) -> None:
    with pytest.raises(UserError, match=r"3 K/V heads cannot be pooled evenly into 2\..*may be 1, 3\."):
        ladder_sweep(smollm, [ShareKV(2)])


def test_ranks_share_their_mean_on_ties() -> None:
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 40])) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1)
    # By hand: ranks 1.5 1.5 3 and 1 2 3 -> covariance 1.5, variances 1.5 and 2.
    assert rank_correlation(np.array([5.0, 5, 9]), np.array([1.0, 2, 3])) == pytest.approx(1.5 / math.sqrt(3))


def test_the_engine_gives_shipped_points_without_measuring(minilm: LoadedModel, monkeypatch: Any) -> None:
    monkeypatch.setattr("attention.engine.ladder_sweep", None)
    request = SweepRequest(MINILM, (None, LatentKV(384)))
    assert Engine().sweep(request) == (point(MINILM, None), point(MINILM, LatentKV(384)))
    assert shipped_points(MINILM, "other weights", request.rungs) is None
    assert shipped_points(MINILM, minilm.revision, (LatentKV(100),)) is None
    with Engine().sweep_job(request) as job:
        assert job.done.wait(5)
        assert job.result == Engine().sweep(request)
