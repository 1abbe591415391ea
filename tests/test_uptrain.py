"""Healing a tiny model: it gets better, resumes where it stopped, leaves the model alone, and ships what it trained."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attention import LatentKV, LoadedModel, ShareKV, UserError, calibration, healed, kernel, trace, uptrain
from attention.rungs import shipped_sweep
from attention.uptrain import Recipe, heal
from tests.tiny_models import SENTENCE, random_module, tiny_config, wrapped

MINILM = "all-MiniLM-L6-v2"
STEPS = 8


@cache
def tiny(name: str) -> LoadedModel:
    kernel.register()
    loaded = wrapped(random_module(tiny_config(name), kernel.NAME), f"heal-{name}")
    return replace(loaded, max_positions=32)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "shipped" in request.node.name:
        return
    monkeypatch.setattr(calibration, "N_TOKENS", 600)
    for module in (healed, uptrain):
        monkeypatch.setattr(module, "HEALED", tmp_path)
    pieces = np.random.default_rng(0).integers(4, 40, (32, 12)).tolist()
    monkeypatch.setattr(uptrain, "training_pieces", lambda _: pieces)


def recipe(loaded: LoadedModel, what_if: ShareKV | LatentKV, **changes: Any) -> Recipe:
    return Recipe(loaded.id, what_if, steps=STEPS, learning_rate=1e-2, **changes)


CASES = [("bert", ShareKV(2, "healed")), ("llama", ShareKV(1, "healed")), ("llama", LatentKV(12, healed=True))]


@pytest.mark.parametrize(("name", "what_if"), CASES, ids=str)
def test_training_starts_at_the_untrained_what_if_and_ends_nearer_to_the_model(
    name: str, what_if: ShareKV | LatentKV
) -> None:
    loaded = tiny(name)
    before = {key: tensor.clone() for key, tensor in loaded.model.state_dict().items()}
    untrained = LatentKV(12) if isinstance(what_if, LatentKV) else ShareKV(what_if.n_kv_heads, "aligned")
    start = uptrain.start_point(loaded, what_if)
    recorder = kernel.Recorder(n_layers=3, plan=kernel.KVPlan(start))
    ids = torch.tensor([[token.id for token in trace(loaded, SENTENCE).tokens]])
    with torch.inference_mode(), kernel.recording(recorder):
        loaded.model(input_ids=ids)
    assert recorder.weights is not None
    np.testing.assert_allclose(
        recorder.weights[:, 0].numpy(), trace(loaded, SENTENCE, what_if=untrained).weights, atol=1e-5
    )
    losses = [loss for _, loss in heal(loaded, recipe(loaded, what_if))]
    assert len(losses) == STEPS
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert all(torch.equal(before[key], tensor) for key, tensor in loaded.model.state_dict().items())
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert healed.healed_settings(loaded.id) == (what_if,)
    after = trace(loaded, SENTENCE, what_if=what_if)
    assert np.abs(after.weights - trace(loaded, SENTENCE, what_if=untrained).weights).max() > 1e-4


@pytest.mark.parametrize(("name", "keys_learn"), [("bert", True), ("llama", False)])
def test_the_way_up_learns_within_a_group_and_never_through_rope(name: str, keys_learn: bool) -> None:
    loaded = tiny(name)
    what_if = ShareKV(2 if name == "bert" else 1, "healed")
    start = uptrain.start_point(loaded, what_if)[1].up
    list(heal(loaded, recipe(loaded, what_if, train_up=True)))
    up = healed.healed_arrays(loaded.id, loaded.revision, what_if)["1.up"]
    k_width = loaded.kv_projections[1][0].out_features
    moved = np.abs(up - start.numpy()) > 5e-3
    assert moved[k_width:].any()
    assert moved[:k_width].any() == keys_learn
    outside = uptrain._reach(loaded, recipe(loaded, what_if, train_up=True))[1].numpy()
    assert not up[~outside & (start.numpy() == 0)].any()
    assert healed.healed_facts(loaded.id, what_if)["command"].endswith("--up")


def test_a_run_that_was_stopped_goes_on_to_the_same_end(tmp_path: Path) -> None:
    loaded, what_if = tiny("bert"), ShareKV(2, "healed")
    whole = [loss for _, loss in heal(loaded, recipe(loaded, what_if))]
    ended = healed.healed_arrays(loaded.id, loaded.revision, what_if)
    checkpoint = tmp_path / "half.pt"
    uptrain_every, uptrain.CHECKPOINT_EVERY = uptrain.CHECKPOINT_EVERY, 5
    try:
        for step, _ in heal(loaded, recipe(loaded, what_if), checkpoint):
            if step == 5:
                break
        rest = [loss for _, loss in heal(loaded, recipe(loaded, what_if), checkpoint)]
    finally:
        uptrain.CHECKPOINT_EVERY = uptrain_every
    assert rest == pytest.approx(whole[5:], rel=1e-4)
    for name, array in healed.healed_arrays(loaded.id, loaded.revision, what_if).items():
        np.testing.assert_allclose(array, ended[name], atol=2e-3)


def test_a_healed_file_belongs_to_its_weights_and_is_not_changed() -> None:
    loaded, what_if = tiny("bert"), ShareKV(2, "healed")
    list(heal(loaded, recipe(loaded, what_if)))
    facts = healed.healed_facts(loaded.id, what_if)
    assert facts["command"] == f"python -m attention.uptrain {loaded.id} share 2 --steps {STEPS} --learning-rate 0.01"
    with pytest.raises(UserError, match="does not belong to these weights"):
        healed.healed_arrays(loaded.id, "others", what_if)
    with (healed.HEALED / loaded.id / "share-2.npz").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match="does not belong"):
        healed.healed_arrays(loaded.id, loaded.revision, what_if)
    with pytest.raises(UserError, match=r"No healed share-3.*Healed settings of this model: share-2"):
        healed.healed_facts(loaded.id, ShareKV(3, "healed"))


def test_the_shipped_healed_minilm_is_measured_small_and_traceable(minilm: LoadedModel) -> None:
    """On sentences of another kind than the training text, none of which was trained on."""
    points = {one.what_if: one.on("similarity").value for one in shipped_sweep(MINILM)}
    six, one = ShareKV(6, "healed"), ShareKV(1, "healed")
    assert points[six] >= 0.92 > points[ShareKV(6, "aligned")]
    assert points[one] >= 0.83 > points[ShareKV(1, "aligned")] + 0.15
    for what_if in (six, one):
        file = healed.HEALED / MINILM / f"{healed.delta_name(what_if)}.npz"
        assert file.stat().st_size < 10e6
        curve = healed.healed_facts(MINILM, what_if)["loss"]
        assert np.mean(curve[-5:]) < 0.6 * np.mean(curve[:5])
    assert json.dumps(healed.healed_facts(MINILM, six))
