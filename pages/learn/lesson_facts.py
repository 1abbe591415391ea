"""The numbers the lesson's sentences carry, each computed from the engine or from what was measured and shipped."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from attention.atlas import UNCLEAR, HeadAtlas, shipped_atlas
from attention.formulas import offset_weight
from attention.known_models import KnownModel, find_model, known_models
from attention.kv_working import readable
from attention.layout import HeadLayout
from attention.model_facts import BUNDLED
from attention.plots.lesson_charts import USUAL, Shape, top_words
from attention.plots.numbers import percent
from attention.plots.viewer import read_viewer_bytes
from attention.published import published_tables
from attention.quiz_maps import HeadMap, shipped_maps
from attention.rungs import LadderPoint, shipped_sweep
from attention.sharing import LatentKV, ShareKV
from attention.written import shipped_recording
from pages.see.first_picture import FILE

MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
ASKING = "they"
TRAP_TEXT, TRAP_HEAD = "The cat sat on the mat that the dog chased.", (16, 0)
SHARED_MODEL, TOKENS = "Llama 3 8B", 8192
ABOVE = "Gemma 7B"
FIRST_TOKENS = 3
GROUPS_LAYER = 16
RUNGS = ("MHA", "GQA", "MQA", "MLA")
FEW_HEADS = 3  # with more, a latent of as many numbers would have room for the whole token
PAPER, SCRATCH = "gqa-1", "deepseek-v2-8"


@cache
def picture() -> tuple[dict[str, Any], npt.NDArray[np.float32]]:
    """Facts of the shipped picture's trace, and the weights (layer, head, query, key) of all of its heads."""
    header, (decoded,) = read_viewer_bytes(FILE.read_bytes())
    facts = header["traces"][0]
    weights = np.stack(
        [
            np.stack([decoded.heads[layer, head] for head in range(facts["n_heads"])])
            for layer in range(facts["n_layers"])
        ]
    )
    weights.setflags(write=False)
    return facts | {"cards": header["cards"], "average": header["average"]}, weights


def named_heads() -> tuple[tuple[int, int], ...]:
    """The three heads whose recipes are averaged, as the Heads page does it."""
    return tuple((layer, head) for layer, head in picture()[0]["average"]["heads"])


def question() -> dict[str, Any]:
    """Part 1: the recipes of three heads for “they”, and their average."""
    facts, weights = picture()
    at = facts["labels"].index(ASKING)
    rows = [weights[layer, head, at] for layer, head in named_heads()]
    recipes = ". ".join(
        f"Layer {layer}, head {head} takes {top_words(row, facts['labels'], 1 if row.max() > 0.5 else 2)}"
        for (layer, head), row in zip(named_heads(), rows, strict=True)
    )
    return {"recipes": recipes, "average": top_words(np.mean(rows, axis=0), facts["labels"])}


def steps(seq_len: int, layout: HeadLayout) -> dict[str, Any]:
    """Part 2: the sizes on the page."""
    return {"seq_len": seq_len, "d_model": layout.d_model, "n_heads": layout.n_heads, "d_head": layout.d_head}


@cache
def trap() -> HeadMap:
    """The shipped map of the head that seems to know grammar."""
    return next(one for one in shipped_maps() if (one.text, (one.layer, one.head)) == (TRAP_TEXT, TRAP_HEAD))


def lenses() -> dict[str, Any]:
    """Part 3: how many heads have a job that holds up, and what the trap's head does anyway."""
    atlas, one = _atlas(MINILM), trap()
    n_rest = atlas.labels["rest"]
    return {
        "n_heads": atlas.model.layout.n_heads,
        "n_all": len(atlas.rows),
        "n_jobs": len(atlas.rows) - atlas.labels[UNCLEAR] - n_rest,
        "n_rest": n_rest,
        "trap_share": percent(float(one.weights[one.place("that"), one.labels.index("mat")])),
        "trap_before": percent(float(offset_weight(one.weights, -1))),
        "trap_many": percent(_atlas(SMOLLM).row(*TRAP_HEAD).evidence[0].value),
    }


@cache
def decoders() -> tuple[KnownModel, ...]:
    """The catalogue's decoders."""
    return tuple(model for model in known_models() if model.architecture == "decoder")


def shapes() -> tuple[Shape, ...]:
    """Their widths and heads."""
    return tuple(Shape(one.name, one.d_model, one.n_heads, one.d_head) for one in decoders())


def widths() -> dict[str, Any]:
    """Part 4: how many decoders keep to the usual head width."""
    every = [model.d_head for model in decoders()]
    return {
        "n_decoders": len(every),
        "n_inside": sum(USUAL[0] <= width <= USUAL[1] for width in every),
        "n_above": sum(width > USUAL[1] for width in every),
        "above_name": ABOVE,
        "above_d_head": find_model(ABOVE).d_head,
        "minilm_d_head": find_model(MINILM).d_head,
    }


def cache_grows() -> dict[str, Any]:
    """Part 5: what a token adds in the shipped recording, and the time with and without the cache."""
    run = shipped_recording()
    first, third = run.steps[0], run.steps[FIRST_TOKENS - 1]
    far, without = run.recomputed[-1]
    near = min(run.steps, key=lambda step: abs(step.n_cached - far))
    per_token = first.cache_bytes // first.n_cached
    bytes_each = 4 if run.dtype == "fp32" else 2
    return {
        "per_token": readable(per_token),
        "layers": run.n_layers,
        "n_kv_heads": run.n_kv_heads,
        "numbers": per_token // (run.n_layers * run.n_kv_heads * bytes_each),
        "bytes": bytes_each,
        "three_tokens": third.n_cached,
        "three_bytes": readable(third.cache_bytes),
        "n_far": near.n_cached,
        "without": f"{without * 1000:.0f} ms",
        "with": f"{near.seconds_with_cache * 1000:.0f} ms",
        "machine": run.machine.split(",")[0],
        "date": run.recorded_on,
    }


def sharing() -> dict[str, Any]:
    """Part 6: the lesson's own model as it is and as MHA."""
    model, run = find_model(SHARED_MODEL), shipped_recording()
    own, mha = model.cache.bytes(TOKENS), model.cache.as_if("MHA").bytes(TOKENS)
    return {
        "model": model.name,
        "n_heads": model.n_heads,
        "n_kv_heads": model.n_kv_heads,
        "tokens": f"{TOKENS:,}",
        "tokens_plain": TOKENS,
        "own": readable(own),
        "mha": readable(mha),
        "times": f"{mha / own:.3g}",
        "s_layer": GROUPS_LAYER,
        "s_heads": run.n_heads,
        "s_kv_heads": run.n_kv_heads,
    }


def on_rung(rung: str) -> tuple[KnownModel, ...]:
    """The catalogue's models on one rung, oldest first; those without a verified year last."""
    return tuple(
        sorted((one for one in known_models() if one.rung == rung), key=lambda one: verified_year(one) or 9999)
    )


def verified_year(model: KnownModel) -> int | None:
    """The year, where a source names it."""
    return None if "release_year" in model.unverified_fields else model.year


def ladder() -> dict[str, Any]:
    """Part 7: measured points of MiniLM, and how many models stand on which rung."""
    few, one = point(ShareKV(FEW_HEADS)), point(ShareKV(1))
    counts = Counter(model.rung for model in known_models())
    return {
        "few": FEW_HEADS,
        "few_numbers": few.numbers,
        "few_quality": _likeness(few),
        "latent_quality": _likeness(point(LatentKV(few.numbers))),
        "one_quality": _likeness(one),
        "healed_quality": _likeness(point(ShareKV(1, "healed"))),
        **_paper(PAPER, "paper"),
        **_paper(SCRATCH, "scratch"),
        "n_models": f"{len(known_models())} models",
        "counts": ", ".join(
            f"{counts[rung]} stand on {rung}" if not at else f"{counts[rung]} on {rung}"
            for at, rung in enumerate(RUNGS)
        ),
    }


def _paper(table_id: str, name: str) -> dict[str, Any]:
    """What a paper reports for its largest model on each rung."""
    table = next(one for one in published_tables() if one.id == table_id)
    largest = max(table.rows, key=lambda row: row.params).label.split(",")[0]
    rows = {row.rung: row for row in table.rows if row.label.startswith(largest)}
    scores = {rung: f"{row.scores[table.metric]:g}" for rung, row in rows.items()}
    return {
        name: largest,
        f"{name}_metric": table.metric,
        **{f"{name}_{rung.lower()}": score for rung, score in scores.items()},
        f"{name}_source": table.source,
    }


def point(rung: ShareKV | LatentKV | None, model: str = MINILM) -> LadderPoint:
    """One shipped point of a sweep."""
    return next(one for one in shipped_sweep(model) if one.what_if == rung)


def _likeness(one: LadderPoint) -> str:
    return f"{one.quality[0].value:.2f}"


def _atlas(model: str) -> HeadAtlas:
    revision = next(one.sha256 for one in BUNDLED if one.id == model)
    atlas = shipped_atlas(model, revision)
    assert atlas is not None, f"the atlas of {model} ships with the app"
    return atlas


def stacked(rows: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Rows of several heads as (head, key)."""
    return np.stack(rows)
