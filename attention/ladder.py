"""The ladder on a real model: how good it stays while its K/V cache shrinks, measured.

``python -m attention.ladder`` measures every setting the page offers and writes assets/sweeps/<model>.json.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from attention import kernel
from attention.healed import healed_settings
from attention.model_facts import BUNDLED
from attention.models import LoadedModel, load_model
from attention.patterns import sentences
from attention.rungs import ASSETS, LadderPoint, Quality, Rung, badge_of, rungs_of, to_fact
from attention.sharing import as_what_ifs, bytes_per_token, numbers_cached
from attention.texts import bundled_text, evaluation_texts
from attention.tracing import what_if_recorder

PIECE = 512
N_PIECES = 3
SENTENCES = "similarity"
COMMAND = "make ladder"


def ladder_sweep(
    model: LoadedModel | str, rungs: Iterable[Rung], *, say: Callable[[float], None] | None = None
) -> tuple[LadderPoint, ...]:
    """Measure rungs on the bundled evaluation texts: one LadderPoint each, in order.

    ``say`` hears the share done after every forward pass; an exception it raises stops the sweep.
    Nothing is drawn at random but ShareKV(how="random"), which is seeded: runs agree to float32 rounding.
    Raises UserError for a rung the model cannot take, before anything is measured.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    asked = tuple(rungs)
    for rung in asked:
        for one in as_what_ifs(rung):
            one.check(loaded.layout, loaded.n_layers)
    measure = _encoder_quality if loaded.kind == "encoder" else _decoder_quality
    qualities = measure(loaded, asked, say or (lambda _: None))
    return tuple(
        LadderPoint(
            rung,
            badge_of(rung),
            numbers_cached(loaded.layout, rung),
            bytes_per_token(loaded.layout, loaded.n_layers, rung),
            quality,
        )
        for rung, quality in zip(asked, qualities, strict=True)
    )


def _decoder_quality(
    loaded: LoadedModel, rungs: tuple[Rung, ...], say: Callable[[float], None]
) -> list[tuple[Quality, ...]]:
    pieces = {text.id: evaluation_pieces(loaded, text.text) for text in evaluation_texts()}
    total = sum(map(len, pieces.values())) * len(rungs)
    found: list[list[Quality]] = [[] for _ in rungs]
    done = 0
    for text, ids_of_pieces in pieces.items():
        measured: list[list[tuple[float, float, float]]] = [[] for _ in rungs]
        for ids in ids_of_pieces:
            original = next_token_logs(loaded, ids, None)
            for index, rung in enumerate(rungs):
                measured[index].append(_compare(loaded, ids, rung, original))
                done += 1
                say(done / total)
        for index, rows in enumerate(measured):
            found[index].append(_surprise(text, rows))
    return [tuple(qualities) for qualities in found]


def evaluation_pieces(loaded: LoadedModel, text: str) -> list[list[int]]:
    """The first 1,536 tokens of a text as three pieces of 512, each read by itself, without a start token."""
    ids = loaded.tokenizer(text, verbose=False)["input_ids"]
    most = min(PIECE, loaded.max_positions)
    return [ids[at : at + most] for at in range(0, min(len(ids), N_PIECES * most) - most + 1, most)] or [ids]


def next_token_logs(loaded: LoadedModel, ids: Sequence[int], rung: Rung) -> torch.Tensor:
    """Log-probabilities (seq_len - 1, vocabulary) of the next token at every place but the last."""
    recorder = what_if_recorder(loaded, as_what_ifs(rung))
    with kernel.forward_slot, torch.inference_mode(), kernel.recording(recorder):
        logits = loaded.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :-1].float()
        return logits.log_softmax(dim=-1)


def _compare(loaded: LoadedModel, ids: list[int], rung: Rung, original: torch.Tensor) -> tuple[float, float, float]:
    """Mean loss (nats), KL from the original (nats), share of equal likeliest tokens, over one piece."""
    logs = original if rung is None else next_token_logs(loaded, ids, rung)
    loss = -float(logs.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).mean())
    apart = float((original.exp() * (original - logs)).sum(dim=1).mean())
    return loss, apart, float((logs.argmax(1) == original.argmax(1)).float().mean())


def _surprise(text: str, rows: list[tuple[float, float, float]]) -> Quality:
    losses, apart, agreement = (np.array(column) for column in zip(*rows, strict=True))
    return Quality(
        text,
        float(np.exp(losses.mean())),
        float(np.exp(losses.min())),
        float(np.exp(losses.max())),
        float(apart.mean()),
        float(agreement.mean()),
        tuple(losses.tolist()),
    )


def _encoder_quality(
    loaded: LoadedModel, rungs: tuple[Rung, ...], say: Callable[[float], None]
) -> list[tuple[Quality, ...]]:
    texts = [entry["text"] for entry in sentences()[SENTENCES]]
    original = embeddings(loaded, texts, None)
    found: list[tuple[Quality, ...]] = []
    for index, rung in enumerate(rungs):
        changed = original if rung is None else embeddings(loaded, texts, rung)
        found.append((_likeness(original, changed),))
        say((index + 1) / len(rungs))
    return found


def embeddings(loaded: LoadedModel, texts: Sequence[str], rung: Rung) -> np.ndarray:
    """Sentence embeddings (sentence, d_model) of unit length: the mean over a sentence's tokens."""
    inputs = loaded.tokenizer(list(texts), padding=True, return_tensors="pt")
    attended = inputs["attention_mask"]
    recorder = what_if_recorder(loaded, as_what_ifs(rung), attended=attended)
    with kernel.forward_slot, torch.inference_mode(), kernel.recording(recorder):
        loaded.model(**inputs)
    assert recorder.hidden is not None
    share = (attended / attended.sum(dim=1, keepdim=True)).unsqueeze(-1)
    return torch.nn.functional.normalize((recorder.hidden * share).sum(dim=1), dim=-1).double().numpy()


def _likeness(original: np.ndarray, changed: np.ndarray) -> Quality:
    cosines = (original * changed).sum(axis=1)
    pairs = np.triu_indices(len(original), k=1)
    agreement = rank_correlation((original @ original.T)[pairs], (changed @ changed.T)[pairs])
    mean = float(cosines.mean())
    return Quality(
        SENTENCES, mean, float(cosines.min()), float(cosines.max()), 1 - mean, agreement, tuple(cosines.tolist())
    )


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, ties sharing their mean rank."""
    return float(np.corrcoef(np.stack([_ranks(one), _ranks(other)]))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[where]


def code_sha256() -> str:
    """One hash over the source files whose change makes shipped points out of date."""
    files = ("ladder.py", "kernel.py", "plans.py", "alignment.py", "calibration.py", "sharing.py")
    return hashlib.sha256(b"".join((Path(__file__).parent / name).read_bytes() for name in files)).hexdigest()


def write_sweep(model_id: str, say: Callable[[float], None]) -> Path:
    """Measure every offered and healed rung of a bundled model and write the sweep file."""
    loaded = load_model(model_id)
    began = time.perf_counter()
    points = ladder_sweep(loaded, (*rungs_of(loaded.layout), *healed_settings(model_id)), say=say)
    used = {text.id: text.sha256 for text in (*evaluation_texts(), bundled_text("calibration"))}
    facts = {
        "command": COMMAND,
        "model": model_id,
        "revision": loaded.revision,
        "code_sha256": code_sha256(),
        "texts_sha256": used | {"sentences": hashlib.sha256((ASSETS / "sentences.json").read_bytes()).hexdigest()},
        "versions": {"torch": torch.__version__.split("+")[0], "numpy": np.__version__},
        "seconds": round(time.perf_counter() - began),
        "points": [to_fact(point) for point in points],
    }
    file = ASSETS / "sweeps" / f"{model_id}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return file


def main(arguments: list[str]) -> None:
    """Write the sweeps of the models named, or of all bundled ones."""
    for model_id in arguments or [model.id for model in BUNDLED]:

        def tell(share: float, of: str = model_id) -> None:
            sys.stderr.write(f"\r{of}: {share:.0%}  ")

        file = write_sweep(model_id, tell)
        sys.stderr.write(f"\n{file.relative_to(ASSETS.parent)} written\n")


if __name__ == "__main__":
    main(sys.argv[1:])
