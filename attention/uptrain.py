"""Heal a converted model: train the few K/V numbers that are cached until the model answers like the original again.

    python -m attention.uptrain MODEL share 6 [--steps 600] [--resume]
    python -m attention.uptrain MODEL latent 128

The GQA paper trains a pooled model on for 5 % of its pretraining (arXiv 2305.13245, section 2.1). Here only the
shared K/V projections (or the latent's) learn, by distillation: the unchanged model is the teacher, the bundled
training text the only text. Nothing that quality is measured on is read. The result is a small file in
assets/healed/<model>/ and its loss curve beside it.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attention import kernel, plans
from attention.errors import UserError
from attention.healed import HEALED, delta_name
from attention.models import LoadedModel, load_model
from attention.settings import settings
from attention.sharing import LatentKV, ShareKV
from attention.texts import bundled_text

# Sentences for an encoder, pieces of running text for a decoder.
BATCH = {"encoder": 24, "decoder": 4}
PIECE = 128
CHECKPOINT_EVERY = 50


@dataclass(frozen=True)
class Recipe:
    """Everything a training run depends on."""

    model: str
    what_if: ShareKV | LatentKV
    steps: int = 600
    learning_rate: float = 1e-3
    seed: int = 0
    train_up: bool = False


@dataclass
class Progress:
    """Where a run stands: the trained tensors, the optimiser's state, and the loss of every step so far."""

    step: int
    tensors: list[torch.Tensor]
    optimiser: torch.optim.Optimizer
    losses: list[float]


def start_point(loaded: LoadedModel, what_if: ShareKV | LatentKV) -> dict[int, kernel.Rebuild]:
    """The untrained conversion as rebuilds: aligned and pooled heads, or the calibrated latent."""
    if isinstance(what_if, LatentKV):
        return dict(plans.kv_plan(loaded, (replace(what_if, healed=False),)).rebuilds)
    return {layer: plans.pooled_rebuild(loaded, what_if, layer) for layer in range(loaded.n_layers)}


def heal(loaded: LoadedModel, recipe: Recipe, checkpoint: Path | None = None) -> Iterator[tuple[int, float]]:
    """Train, yielding (step, loss); the caller stops when it likes. Ends by writing the healed file."""
    plan, reach = start_point(loaded, recipe.what_if), _reach(loaded, recipe)
    layers = sorted(plan)
    tensors = [t.detach().clone().requires_grad_(True) for layer in layers for t in _trained(plan[layer], recipe)]
    optimiser = torch.optim.AdamW(tensors, lr=recipe.learning_rate, weight_decay=0.0)
    progress = Progress(0, tensors, optimiser, [])
    if checkpoint is not None and checkpoint.exists():
        _resume(progress, checkpoint)
    batches = _batches(loaded, recipe)
    for _ in range(progress.step):
        next(batches)
    while progress.step < recipe.steps:
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(progress.step, recipe.steps)
        loss = _loss(loaded, _with(plan, tensors, recipe, reach), next(batches))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tensors, 1.0)
        optimiser.step()
        progress.step += 1
        progress.losses.append(float(loss.detach()))
        if checkpoint is not None and progress.step % CHECKPOINT_EVERY == 0:
            _save(progress, checkpoint)
        yield progress.step, progress.losses[-1]
    _write(loaded, recipe, _with(plan, [t.detach() for t in tensors], recipe, reach), progress.losses)


def _trained(rebuild: kernel.Rebuild, recipe: Recipe) -> list[torch.Tensor]:
    """What learns in one layer: the projection down to the cached numbers and its bias; the way up where asked."""
    bias = torch.zeros(len(rebuild.down)) if rebuild.down_bias is None else rebuild.down_bias
    return [rebuild.down, bias, rebuild.up] if recipe.train_up else [rebuild.down, bias]


def _with(
    plan: dict[int, kernel.Rebuild], tensors: list[torch.Tensor], recipe: Recipe, reach: dict[int, torch.Tensor]
) -> dict[int, kernel.Rebuild]:
    each = 3 if recipe.train_up else 2
    made = {}
    for index, layer in enumerate(sorted(plan)):
        down, bias, *up = tensors[index * each : (index + 1) * each]
        trained = torch.where(reach[layer], up[0], plan[layer].up) if up else plan[layer].up
        made[layer] = replace(plan[layer], down=down, down_bias=bias, up=trained)
    return made


def _reach(loaded: LoadedModel, recipe: Recipe) -> dict[int, torch.Tensor]:
    """Which entries of each layer's way up may learn, as booleans of its shape; only asked for with ``train_up``.

    A head may read its own group's shared head in another way than its neighbours do: that folds into W_q and W_o.
    Under RoPE this holds for V alone, since K is turned by position in between.
    """
    if not recipe.train_up:
        return {}
    found = {}
    free = plans.turning(loaded) == "free"
    for layer in range(loaded.n_layers):
        k_width = loaded.kv_projections[layer][0].out_features
        if isinstance(recipe.what_if, LatentKV):
            v_width = loaded.kv_projections[layer][1].out_features
            found[layer] = torch.ones(k_width + v_width, recipe.what_if.rank, dtype=torch.bool)
            continue
        groups = plans.head_groups(loaded, recipe.what_if, layer)
        blocks = [
            plans.given_back(groups, width, torch.full((len(groups), width, width), float(learns)))
            for width, learns in ((loaded.layout.d_head, free), (loaded.layout.d_head_v, True))
        ]
        found[layer] = torch.block_diag(*blocks) > 0
    return found


def _schedule(step: int, steps: int) -> float:
    """A short rise, then a cosine to a twentieth."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return float(0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * (step - warm) / max(1, steps - warm))))


def _batches(loaded: LoadedModel, recipe: Recipe) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of the training text without end, in an order fixed by the seed, pieces of like length together."""
    pieces = training_pieces(loaded)
    generator = np.random.default_rng(recipe.seed)
    size = BATCH[loaded.kind]
    while True:
        order = generator.permutation(len(pieces))
        chunks = [order[at : at + 8 * size] for at in range(0, len(order), 8 * size)]
        alike = np.concatenate([sorted(chunk, key=lambda index: len(pieces[index])) for chunk in chunks])
        for at in generator.permutation(len(alike) // size) * size:
            chosen = [pieces[index] for index in alike[at : at + size]]
            ids = torch.zeros(size, max(map(len, chosen)), dtype=torch.long)
            attend = torch.zeros_like(ids)
            for row, piece in enumerate(chosen):
                ids[row, : len(piece)] = torch.tensor(piece)
                attend[row, : len(piece)] = 1
            yield {"input_ids": ids, "attention_mask": attend}


def training_pieces(loaded: LoadedModel) -> list[list[int]]:
    """The training text as token ids: its sentences for an encoder, pieces of 128 tokens for a decoder."""
    text = bundled_text("training").text
    if loaded.kind == "encoder":
        sentences = [one.strip() for one in text.replace("\n\n", " ").replace("? ", ". ").split(". ")]
        kept = [one + "." for one in sentences if 20 <= len(one) <= 240]
        return list(loaded.tokenizer(kept, truncation=True, max_length=64)["input_ids"])
    ids = loaded.tokenizer(text, verbose=False)["input_ids"]
    return [ids[at : at + PIECE] for at in range(0, len(ids) - PIECE + 1, PIECE)]


def _loss(loaded: LoadedModel, rebuilds: dict[int, kernel.Rebuild], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """How far the hidden states of every layer are from the teacher's, and how far what is read off the last is.

    An encoder's sentence embedding by its cosine, a decoder's next-token distribution by its KL divergence.
    """
    with torch.no_grad():
        target = _outputs(loaded, {}, batch)
    ours = _outputs(loaded, rebuilds, batch)
    attended = batch["attention_mask"].unsqueeze(-1).float()
    apart = [_relative(mine, theirs, attended) for mine, theirs in zip(ours.hidden, target.hidden, strict=True)]
    loss = torch.stack(apart).mean() + apart[-1]
    if loaded.kind == "encoder":
        pooled = [(one.hidden[-1] * attended).sum(1) / attended.sum(1) for one in (ours, target)]
        return loss + 1 - torch.nn.functional.cosine_similarity(*pooled, dim=-1).mean()
    logs = [one.logits.log_softmax(-1) for one in (ours, target)]
    return loss + torch.nn.functional.kl_div(*logs, reduction="none", log_target=True).sum(-1).mean()


def _relative(mine: torch.Tensor, theirs: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    return ((mine - theirs) ** 2 * attended).sum() / (theirs**2 * attended).sum()


@dataclass(frozen=True)
class _Outputs:
    hidden: tuple[torch.Tensor, ...]
    logits: torch.Tensor


def _outputs(loaded: LoadedModel, rebuilds: dict[int, kernel.Rebuild], batch: dict[str, torch.Tensor]) -> _Outputs:
    with kernel.recording(kernel.Recorder(plan=kernel.KVPlan(rebuilds))):
        if loaded.kind == "encoder":
            found = loaded.model(**batch, output_hidden_states=True)
            return _Outputs(found.hidden_states[1:], torch.empty(0))
        found = loaded.model(input_ids=batch["input_ids"], use_cache=False, output_hidden_states=True)
        return _Outputs(found.hidden_states[1:], found.logits)


def _resume(progress: Progress, checkpoint: Path) -> None:
    kept: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    with torch.no_grad():
        for mine, saved in zip(progress.tensors, kept["tensors"], strict=True):
            mine.copy_(saved)
    progress.optimiser.load_state_dict(kept["optimiser"])
    progress.step, progress.losses = kept["step"], kept["losses"]


def _save(progress: Progress, checkpoint: Path) -> None:
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    temporary = checkpoint.with_suffix(".part")
    torch.save(
        {
            "step": progress.step,
            "tensors": [t.detach() for t in progress.tensors],
            "optimiser": progress.optimiser.state_dict(),
            "losses": progress.losses,
        },
        temporary,
    )
    temporary.replace(checkpoint)


def _write(loaded: LoadedModel, recipe: Recipe, plan: dict[int, kernel.Rebuild], losses: list[float]) -> None:
    folder = HEALED / loaded.id
    folder.mkdir(parents=True, exist_ok=True)
    name = delta_name(recipe.what_if)
    arrays: dict[str, Any] = {}
    for layer, rebuild in plan.items():
        assert rebuild.down_bias is not None
        for part, tensor in (("down", rebuild.down), ("bias", rebuild.down_bias), ("up", rebuild.up)):
            arrays[f"{layer}.{part}"] = tensor.half().numpy()
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    facts = {
        "command": command_of(recipe),
        "what_is_trained": "the K/V projections" + (", and each head's way to read them" if recipe.train_up else ""),
        "steps": recipe.steps,
        "learning_rate": recipe.learning_rate,
        "seed": recipe.seed,
        "revision": loaded.revision,
        "training_text_sha256": bundled_text("training").sha256,
        "sha256": hashlib.sha256((folder / f"{name}.npz").read_bytes()).hexdigest(),
        "made": datetime.date.today().isoformat(),
        "loss": [round(float(np.mean(losses[at : at + 10])), 5) for at in range(0, len(losses), 10)],
    }
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def command_of(recipe: Recipe) -> str:
    """The command that gives the same file again."""
    kind, number = delta_name(recipe.what_if).split("-")
    up = " --up" if recipe.train_up else ""
    return (
        f"python -m attention.uptrain {recipe.model} {kind} {number} --steps {recipe.steps} "
        f"--learning-rate {recipe.learning_rate:g}{up}"
    )


def main(arguments: list[str]) -> None:
    """Train one setting, with a line of progress; a run that was stopped goes on with --resume."""
    parser = argparse.ArgumentParser(prog="python -m attention.uptrain", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("kind", choices=("share", "latent"))
    parser.add_argument("number", type=int, help="K/V heads, or numbers in the latent")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--up", action="store_true", help="let each head learn its own way to read what is shared")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    asked = parser.parse_args(arguments)
    loaded = load_model(asked.model)
    what_if = ShareKV(asked.number, "healed") if asked.kind == "share" else LatentKV(asked.number, healed=True)
    recipe = Recipe(loaded.id, what_if, asked.steps, asked.learning_rate, train_up=asked.up)
    checkpoint = settings().cache_dir / "v1" / "uptrain" / f"{loaded.id}-{delta_name(what_if)}.pt"
    if not asked.resume:
        checkpoint.unlink(missing_ok=True)
    for step, loss in heal(loaded, recipe, checkpoint):
        sys.stderr.write(f"\r{step} of {recipe.steps}, loss {loss:.4f}   ")
    sys.stderr.write(f"\n{HEALED / loaded.id / delta_name(what_if)}.npz written\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(str(error))
