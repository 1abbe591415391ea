"""Quick-check questions about shapes and bytes: fresh values from a seed, and their answers from the engine.

Every maker takes a seeded ``random.Random`` and returns ``Made``: what the wording needs, and the right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np

from attention.known_models import KnownModel, find_model, known_gpus, known_models
from attention.kv_budget import OVERHEAD_SHARE, Fit, fits
from attention.kv_cache import KVCache
from attention.kv_working import readable
from attention.layout import HeadLayout, divisors
from attention.multihead import multi_head_attention, random_inputs, score_rank
from attention.quiz_maps import HeadMap
from attention.step_plan import Sizes, StepPlan, plan_steps

GIB, KIB = 2**30, 2**10
# Sizes the Shapes page offers, so that its link shows exactly the question's numbers.
D_MODELS = (16, 24, 32, 48, 64, 96, 128)
N_HEADS = (4, 6, 8, 12, 16)
SEQ_LENS = range(3, 14)
FAMILIES = frozenset({"Llama", "Mistral", "Qwen", "Phi", "Gemma"})
LENGTHS = (2048, 4096, 8192, 16384, 32768)
USERS = (2, 4, 8, 16, 32)


@dataclass(frozen=True, eq=False)
class Made:
    """A question's fresh part. ``values`` fill the wording; ``answer`` is a number, a shape, or a choice's place.

    ``choices`` and ``maps`` stand in the right order, the right one first; ``shuffled=False`` keeps them so, and
    ``answer`` is then the right one's place. ``picture`` is a map to read, ``code`` lines to read; ``mark`` is the
    row and column of ``maps`` that the question is about.
    """

    values: Mapping[str, Any]
    answer: float | tuple[int, ...] = 0
    choices: tuple[str, ...] = ()
    maps: tuple[HeadMap, ...] = ()
    picture: HeadMap | None = None
    code: tuple[str, ...] = ()
    mark: tuple[int, int] | None = None
    shuffled: bool = True


Maker = Callable[[Random], Made]


@dataclass(frozen=True)
class Drawn:
    """Sizes drawn for a question about the steps, all different, so that no mix-up gives the right answer."""

    layout: HeadLayout
    seq_len: int
    causal: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """The sizes by the field's names."""
        one = self.layout
        return {
            "seq_len": self.seq_len,
            "d_model": one.d_model,
            "n_heads": one.n_heads,
            "n_kv_heads": one.n_kv_heads,
            "d_head": one.d_head,
            "q_per_kv": one.q_per_kv,
            "kv_width": one.n_kv_heads * one.d_head,
        }

    def step(self, key: str) -> StepPlan:
        """One step of the plan by its key, ``3.K``."""
        return next(
            step for step in plan_steps(Sizes(self.layout, self.seq_len, causal=self.causal)) if step.key == key
        )


@cache
def _layouts() -> tuple[HeadLayout, ...]:
    return tuple(
        HeadLayout(width, heads, kv)
        for width in D_MODELS
        for heads in N_HEADS
        if width % heads == 0 and width > 2 * heads
        for kv in divisors(heads)
        if len({width, heads, kv, width // heads}) == 4
    )


def draw_sizes(draw: Random, shared: bool = True, causal: bool = False) -> Drawn:
    """A layout and a length. ``shared``: several K/V heads, each read by several query heads; else MHA."""
    layout = draw.choice([one for one in _layouts() if 1 < one.n_kv_heads < one.n_heads])
    if not shared:
        layout = HeadLayout(layout.d_model, layout.n_heads, layout.n_heads)
    taken = {layout.d_model, layout.n_heads, layout.n_kv_heads, layout.d_head}
    return Drawn(layout, draw.choice([length for length in SEQ_LENS if length not in taken]), causal)


def _shape(key: str) -> Maker:
    def make(draw: Random) -> Made:
        drawn = draw_sizes(draw)
        return Made(drawn.values, drawn.step(key).shape)

    return make


def _weights_of_k(draw: Random) -> Made:
    drawn = draw_sizes(draw)
    return Made(drawn.values, drawn.step("1.K").parameters)


def _d_head(draw: Random) -> Made:
    drawn = draw_sizes(draw)
    return Made(drawn.values, drawn.layout.d_head)


def _kv_head(draw: Random) -> Made:
    drawn = draw_sizes(draw)
    # A head whose group would differ if K/V heads were tiled: 0, 1, 0, 1.
    telling = [q for q in range(drawn.layout.n_heads) if q // drawn.layout.q_per_kv != q % drawn.layout.n_kv_heads]
    query_head = draw.choice(telling)
    own = drawn.layout.kv_head_of(query_head)
    mates = drawn.layout.query_heads_of(own)
    values = drawn.values | {"query_head": query_head, "first": mates[0], "last": mates[-1]}
    return Made(values | {"tiled": query_head % drawn.layout.n_kv_heads}, own)


def _q_per_kv(draw: Random) -> Made:
    model = draw.choice([one for one in plain_models() if one.rung == "GQA"])
    return Made(_model_values(model), model.q_per_kv)


def _rank(draw: Random) -> Made:
    drawn = draw_sizes(draw, shared=False)
    x, weights = random_inputs(drawn.layout, drawn.seq_len)
    trace = multi_head_attention(x, weights, drawn.layout)
    return Made(drawn.values, score_rank(trace.scores, drawn.layout.d_head).bound)


def _scale(draw: Random) -> Made:
    n_heads, d_head = draw.choice([(4, 4), (2, 16), (8, 4), (4, 16), (6, 16), (8, 16)])
    dot = draw.choice([number for number in range(-20, 60) if number % 2 == 0 and abs(number) > 4])
    layout = HeadLayout(d_head, 1, 1)
    x = np.eye(1, d_head)
    query, key = np.zeros((d_head, d_head)), np.zeros((d_head, d_head))
    query[0, 0], key[0, 0] = dot, 1.0
    trace = multi_head_attention(x, {"W_q": query, "W_k": key, "W_v": key, "W_o": key}, layout)
    values = {"dot": dot, "d_head": d_head, "n_heads": n_heads, "d_model": n_heads * d_head, "root": round(d_head**0.5)}
    return Made(values, float(trace.scores[0, 0, 0]))


def _causal_share(draw: Random) -> Made:
    seq_len = draw.randint(5, 12)
    row = draw.randint(2, seq_len - 2)
    layout = HeadLayout(8, 2, 2)
    _, weights = random_inputs(layout, seq_len)
    even = multi_head_attention(np.zeros((seq_len, 8)), weights, layout, causal=True)  # x = 0: every score is 0
    return Made({"seq_len": seq_len, "row": row, "seen": row + 1}, 100 * float(even.weights[0, row, 0]))


# ---- bytes


@cache
def plain_models() -> tuple[KnownModel, ...]:
    """Well-known decoders in which every layer keeps every token, with a verified number of weights."""
    return tuple(
        one
        for one in known_models()
        if one.family in FAMILIES
        and one.architecture == "decoder"
        and not one.refusal
        and one.params is not None
        and "params_b" not in one.unverified_fields
        and [spec.kind for spec, _ in one.cache.groups] == ["full"]
    )


def _model_values(model: KnownModel) -> dict[str, Any]:
    return {
        "model": model.name,
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "n_kv_heads": model.n_kv_heads,
        "d_head": model.d_head,
        "per_token": readable(model.cache.bytes_per_token()),
    }


def _token_kib(draw: Random) -> Made:
    model = draw.choice(plain_models())
    size = model.cache.bytes_per_token()
    return Made(_model_values(model) | {"bytes": size}, size / KIB)


def _cache_gib(draw: Random) -> Made:
    model, tokens, users = draw.choice(plain_models()), draw.choice(LENGTHS), draw.choice(USERS)
    size = model.cache.bytes(tokens, users)
    return Made(_model_values(model) | {"tokens": tokens, "users": users, "bytes": size}, size / GIB)


def _saved(draw: Random) -> Made:
    model = draw.choice([one for one in plain_models() if one.rung != "MHA"])
    as_mha = model.cache.as_if("MHA").bytes(1)
    values = _model_values(model) | {"as_mha": readable(as_mha)}
    return Made(values, as_mha / model.cache.bytes(1))


def _fp8_gib(draw: Random) -> Made:
    model, tokens, users = draw.choice(plain_models()), draw.choice(LENGTHS), draw.choice(USERS)
    wide, narrow = (model.cache.bytes(tokens, users, dtype) for dtype in ("fp16", "fp8"))
    return Made(_model_values(model) | {"tokens": tokens, "users": users, "fp16": readable(wide)}, narrow / GIB)


@cache
def _roomy() -> tuple[tuple[KnownModel, Any], ...]:
    """Models and GPUs with room for a cache: the weights leave at least a tenth of the memory that may be used."""
    return tuple(
        (model, gpu)
        for model in plain_models()
        for gpu in known_gpus()
        if 0.3 < model.weights_bytes() / (gpu.memory_bytes * (1 - OVERHEAD_SHARE)) < 0.85
    )


def _fitted(draw: Random, tokens: int) -> tuple[dict[str, Any], Fit]:
    model, gpu = draw.choice(_roomy())
    values = _model_values(model) | {
        "gpu": gpu.name,
        "gpu_gib": gpu.memory_bytes // GIB,
        "weights": readable(model.weights_bytes()),
        "tokens": tokens,
    }
    return values, fits(model.cache, model.weights_bytes(), gpu, tokens)


def _max_context(draw: Random) -> Made:
    values, fit = _fitted(draw, 8192)
    room = fit.capacity - fit.overhead - fit.weights
    return Made(values | {"room": readable(room)}, float(fit.max_context or 0))


def _max_users(draw: Random) -> Made:
    values, fit = _fitted(draw, draw.choice((1024, 2048)))
    room = fit.capacity - fit.overhead - fit.weights
    one = find_model(values["model"]).cache.bytes(values["tokens"])
    return Made(values | {"room": readable(room), "one": readable(one)}, float(fit.max_batch or 0))


def _window(draw: Random) -> Made:
    window, tokens = draw.choice((512, 1024, 4096)), draw.choice((300, 900, 3000, 6000, 20000, 50000))
    n_kv, d_head = draw.choice((2, 4, 8)), draw.choice((64, 128))
    sizes = {"n_layers": 1, "n_heads": 16, "n_kv_heads": n_kv, "d_head": d_head, "window": window}
    cache = KVCache.from_sizes(**sizes)
    return Made(sizes | {"tokens": tokens}, cache.bytes(tokens) / cache.bytes(1))


def _latent(draw: Random) -> Made:
    sizes = {
        "n_layers": draw.choice((24, 27, 32, 60)),
        "n_heads": draw.choice((16, 32, 64)),
        "n_kv_heads": 1,
        "d_head": 128,
        "d_latent": draw.choice((128, 256, 384, 512, 768)),
        "d_rope": draw.choice((16, 32, 64)),
    }
    return Made(sizes, KVCache.from_sizes(**sizes).layers[0].elements_per_token)


def _rung_order(draw: Random) -> Made:
    n_heads, d_head, n_kv = draw.choice((16, 32, 64)), draw.choice((64, 128)), draw.choice((4, 8))
    own = KVCache.from_sizes(n_layers=32, n_heads=n_heads, n_kv_heads=n_kv, d_head=d_head)
    latent = own.as_if("MLA").layers[0]
    rungs = {
        "MHA": own.as_if("MHA"),
        f"GQA with {n_kv} K/V heads": own,
        f"MLA with a latent of {latent.d_latent} and {latent.d_rope} RoPE numbers": own.as_if("MLA"),
        "MQA": own.as_if("MQA"),
    }
    ordered = sorted(rungs, key=lambda name: -rungs[name].bytes_per_token())
    values = {"n_heads": n_heads, "d_head": d_head, "n_kv_heads": n_kv, "n_layers": 32}
    told = "; ".join(f"{name}: {rungs[name].elements_per_token // 32:,}" for name in ordered)
    return Made(values | {"told": told}, choices=tuple(ordered))


def _weights_bits(draw: Random) -> Made:
    model, tokens = draw.choice(plain_models()), draw.choice(LENGTHS)
    size = model.cache.bytes(tokens)
    values = _model_values(model) | {"tokens": tokens, "size": readable(size)}
    same = f"It stays at {readable(size)}."
    return Made(values, choices=(same, *(f"It becomes {readable(size * by // 4)}." for by in (1, 2, 8))))


def _encoder(draw: Random) -> Made:
    model = find_model("all-MiniLM-L6-v2")
    size = model.cache.bytes(512)
    pretended = KVCache.from_sizes(model.n_layers, model.n_heads, model.n_kv_heads, model.d_head).bytes(512)
    wrong = (
        f"{readable(pretended)}, as its sizes say.",
        f"{readable(pretended // 2)}: K only.",
        "As many as its weights.",
    )
    return Made({"model": model.name, "size": readable(size)}, choices=(f"{readable(size)}: it has none.", *wrong))


def _order(keys: Sequence[str], causal: bool = False) -> Maker:
    """Steps to put in order; ``keys`` name the plan's steps, in any order."""

    def make(draw: Random) -> Made:
        drawn = draw_sizes(draw, shared=False, causal=causal)
        steps = [step for step in plan_steps(Sizes(drawn.layout, drawn.seq_len, causal=causal)) if step.key in keys]
        return Made(drawn.values, choices=tuple(step.name for step in steps))

    return make


NUMBERS: dict[str, Maker] = {
    "split_shape": _shape("2.Q"),
    "kv_shape": _shape("3.K"),
    "scores_shape": _shape("4.scores"),
    "concat_shape": _shape("6.concat"),
    "weights_of_k": _weights_of_k,
    "d_head": _d_head,
    "kv_head": _kv_head,
    "q_per_kv": _q_per_kv,
    "rank": _rank,
    "scale": _scale,
    "causal_share": _causal_share,
    "token_kib": _token_kib,
    "cache_gib": _cache_gib,
    "saved": _saved,
    "fp8_gib": _fp8_gib,
    "max_context": _max_context,
    "max_users": _max_users,
    "window": _window,
    "latent": _latent,
    "rung_order": _rung_order,
    "weights_bits": _weights_bits,
    "encoder": _encoder,
    "step_order": _order(("1.Q", "2.Q", "3.Q", "4.scores", "5.heads_out", "6.concat", "7.output")),
    "mask_order": _order(("4.scores", "4.masked", "4.weights", "5.heads_out", "6.heads_out", "6.concat"), causal=True),
}
