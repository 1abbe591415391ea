"""Sourced facts: the shapes of published models and the memory of GPUs, from assets/*.json.

Only models whose layers, heads and widths were read in a named file are listed;
``unverified_fields`` says what else about them was not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from attention.errors import UserError
from attention.kv_cache import KVCache
from attention.kv_config import ENCODER_REASON
from attention.kv_layers import LayerSpec
from attention.kv_reader import shown

ASSETS = Path(__file__).resolve().parent.parent / "assets"
_KINDS = {
    "full": "full",
    "sliding": "window",
    "chunked": "chunked",
    "shared": "shared",
    "mamba": "state",
    "linear": "state",
    "mlp": "none",
    "noop": "none",
}


Found = TypeVar("Found")


@dataclass(frozen=True)
class KnownModel:
    """A published model: its shape, who says so, and its cache.

    ``params`` is a count of weights (None: not published), ``max_context`` in tokens.
    ``refusal`` is a sentence when this model's cache cannot be counted; ``cache`` then
    raises UserError.
    """

    name: str
    hf_id: str | None
    family: str
    architecture: str
    rung: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    params: int | None
    max_context: int | None
    year: int | None
    licence: str | None
    sources: tuple[str, ...]
    notes: str
    unverified_fields: tuple[str, ...]
    refusal: str
    aliases: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False, hash=False)

    @property
    def q_per_kv(self) -> int:
        """Query heads that share one K/V head."""
        return self.n_heads // self.n_kv_heads

    @property
    def cache(self) -> KVCache:
        """This model's KVCache. Raises UserError with ``refusal`` when it cannot be counted."""
        if self.refusal:
            raise UserError(self.refusal, "Only caches that we could check are counted.", "Choose another model.")
        return _cache_of(self.name)

    def weights_bytes(self, bits: int = 16) -> int:
        """Bytes of the weights at ``bits`` per weight. Raises UserError when their number is not published."""
        if self.params is None:
            raise UserError(
                f"The number of weights of {self.name} is not in our sources.",
                "The other models have one.",
                "Give the bytes of the weights yourself.",
            )
        return self.params * bits // 8


@dataclass(frozen=True)
class Gpu:
    """A GPU: ``memory_bytes`` (its printed GB are GiB) and peak ``bandwidth`` in bytes a second, with the source."""

    name: str
    memory_bytes: int
    bandwidth: int
    source: str


@lru_cache(maxsize=1)
def known_models() -> tuple[KnownModel, ...]:
    """Every model whose shape was read in a named source, in the order of the file."""
    return tuple(_model(entry) for entry in _asset("models.json")["models"])


@lru_cache(maxsize=1)
def known_gpus() -> tuple[Gpu, ...]:
    """GPUs whose memory and bandwidth are sourced, in the order of the file."""
    return tuple(
        Gpu(entry["name"], entry["memory_gib"] * 2**30, entry["bandwidth_gb_s"] * 10**9, entry["source"])
        for entry in _asset("gpus.json")["gpus"]
    )


def find_model(name: str) -> KnownModel:
    """The model called ``name``: case, spaces, hyphens and underscores do not matter, a unique prefix is enough.

    A Hub id, with or without its owner, works too. Raises UserError listing near matches
    when nothing, or more than one model, fits.
    """
    return _find(name, {model.name: (model.name, *_ids(model)) for model in known_models()}, "model", _by_name())


def find_gpu(name: str) -> Gpu:
    """The GPU called ``name``, found like a model; the maker's name may be left out. Raises UserError otherwise."""
    gpus = {gpu.name: gpu for gpu in known_gpus()}
    spellings = {full: (full, *(full.split(" ", n)[-1] for n in (1, 2))) for full in gpus}
    return _find(name, spellings, "GPU", gpus)


def models_sharing(q_per_kv: int, limit: int = 6) -> tuple[KnownModel, ...]:
    """Models in which ``q_per_kv`` query heads share one K/V head, newest first; latent attention is left out."""
    fitting = [model for model in known_models() if model.rung != "MLA" and model.q_per_kv == q_per_kv]
    return tuple(sorted(fitting, key=lambda model: -(model.year or 0))[:limit])


def _by_name() -> dict[str, KnownModel]:
    return {model.name: model for model in known_models()}


def _ids(model: KnownModel) -> tuple[str, ...]:
    hub = (model.hf_id, model.hf_id.rsplit("/", 1)[-1]) if model.hf_id else ()
    return (*hub, *model.aliases)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter not in " -_")


def _find(name: object, spellings: Mapping[str, tuple[str, ...]], what: str, found: Mapping[str, Found]) -> Found:
    wanted = _plain(name) if isinstance(name, str) else ""
    if wanted:
        for fits in (str.__eq__, str.startswith):
            hits = [
                full for full, all_names in spellings.items() if any(fits(_plain(one), wanted) for one in all_names)
            ]
            if len(hits) == 1:
                return found[hits[0]]
            if hits:
                raise _ambiguous(str(name), hits, what)
    raise _unknown(name, wanted, spellings, what)


def _ambiguous(name: str, hits: list[str], what: str) -> UserError:
    return UserError(
        f"{shown(name)} fits {len(hits)} {what}s.",
        f"Among them: {', '.join(hits[:8])}{', …' if len(hits) > 8 else ''}.",
        "Write more of the name.",
    )


def _unknown(name: object, wanted: str, spellings: Mapping[str, tuple[str, ...]], what: str) -> UserError:
    plain = {_plain(one): full for full, names in spellings.items() for one in names}
    near = dict.fromkeys(plain[hit] for hit in get_close_matches(wanted, plain, n=8, cutoff=0.5))
    inside = dict.fromkeys(full for one, full in plain.items() if len(wanted) > 2 and wanted in one)
    listed = [*inside, *(full for full in near if full not in inside)][:5]
    return UserError(
        f"There is no {what} called {shown(name)} in the list.",
        f"Near it: {', '.join(listed)}." if listed else f"The list has {len(spellings)} {what}s.",
        "Choose one of these, or paste a config.json." if what == "model" else "Choose one of these.",
    )


@lru_cache(maxsize=2)
def _asset(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ASSETS / name).read_text(encoding="utf-8"))
    return loaded


def _model(entry: Mapping[str, Any]) -> KnownModel:
    kinds = [kind for kind in entry["layer_counts"] if kind not in _KINDS]
    refusal = f"No number is given for {entry['name']}: it keeps compressed blocks beside a window." if kinds else ""
    return KnownModel(
        name=entry["name"],
        hf_id=entry["hf_id"],
        family=entry["family"],
        architecture=entry["architecture"],
        rung=entry["head_sharing"],
        n_layers=entry["n_layers"],
        d_model=entry["d_model"],
        n_heads=entry["n_heads"],
        n_kv_heads=entry["n_kv_heads"],
        d_head=entry["head_dim"],
        params=None if entry["params_b"] is None else round(entry["params_b"] * 10**9),
        max_context=entry["max_context"],
        year=entry["release_year"],
        licence=entry["license"],
        sources=tuple(entry["source"]),
        notes=entry.get("notes", ""),
        unverified_fields=tuple(entry["unverified_fields"]),
        refusal=refusal,
        aliases=tuple(entry.get("aliases", ())),
        facts=entry,
    )


@lru_cache(maxsize=256)
def _cache_of(name: str) -> KVCache:
    model = _by_name()[name]
    entry = model.facts
    if model.architecture == "encoder":
        layers: tuple[LayerSpec, ...] = (LayerSpec("none"),) * model.n_layers
        return KVCache(layers, model.n_heads, name, trained_context=model.max_context, reason=ENCODER_REASON)
    specs = {kind: _spec(kind, entry) for kind in entry["layer_counts"]}
    layers = tuple(specs[kind] for kind in layer_order(entry))
    crossed = model.architecture == "encoder-decoder"
    return KVCache(
        layers,
        model.n_heads,
        name,
        cross_layers=layers if crossed else (),
        trained_context=model.max_context,
        source_len=model.max_context if crossed else None,
    )


def layer_order(entry: Mapping[str, Any]) -> list[str]:
    """The kind of every layer of a catalogue entry, first to last; unsourced orders stand in groups."""
    counts: Mapping[str, int] = entry["layer_counts"]
    n_layers, order = sum(counts.values()), entry.get("layer_order", {})
    if "repeat" in order:
        group, shared = order["repeat"], order.get("shared_last", 0)
        return [group[i % len(group)] for i in range(n_layers - shared)] + ["shared"] * shared
    if "full_at" in order:
        return ["full" if i in order["full_at"] else order["others"] for i in range(n_layers)]
    return [kind for kind, count in counts.items() for _ in range(count)]


def _spec(kind: str, entry: Mapping[str, Any]) -> LayerSpec:
    word: Any = _KINDS[kind]
    if word in ("shared", "none"):
        return LayerSpec(word)
    if word == "state":
        return _state(entry)
    mla = entry.get("mla")
    if mla:
        return LayerSpec(
            "latent",
            n_kv_heads=entry["n_heads"],
            d_key=entry["head_dim"],
            d_value=mla["v_head_dim"],
            d_latent=mla["kv_lora_rank"],
            d_rope=mla["qk_rope_head_dim"],
            d_index=entry.get("index_head_dim", 0),
        )
    if kind != "full":
        return LayerSpec(word, entry["n_kv_heads"], entry["head_dim"], entry["v_head_dim"], window=entry["window"])
    own = entry.get("full_layers") or entry
    return LayerSpec(word, own["n_kv_heads"], own["head_dim"], own.get("v_head_dim", own["head_dim"]))


def _state(entry: Mapping[str, Any]) -> LayerSpec:
    state = entry.get("recurrent_state")
    if not state:
        return LayerSpec("state")
    recurrent = 1
    for size in state["recurrent_shape"]:
        recurrent *= size
    return LayerSpec(
        "state", state_elements=state["conv_channels"] * state["conv_kernel"], state_elements_fp32=recurrent
    )
