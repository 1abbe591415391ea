"""What the KV cache page is asked about: a model (listed, pasted or from plain sizes), its use, and a GPU.

Every widget is bound to the URL under a name that begins with ``c_``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import streamlit as st

from attention.errors import UserError
from attention.hub import config_text
from attention.known_models import Gpu, KnownModel, find_gpu, find_model, known_gpus, known_models
from attention.kv_budget import OVERHEAD_SHARE, Fit, decode_floor_seconds, fits
from attention.kv_cache import KVCache
from attention.kv_layers import DS_MLA_LATENT, DS_MLA_ROPE, PRECISIONS
from attention.kv_reader import config_from_text
from attention.settings import settings
from pages.shared.errors import plain, show_error
from pages.shared.link_values import link_binding

DEFAULT_MODEL, DEFAULT_GPU = "Llama 3 8B", "NVIDIA H100 80 GB SXM"
MY_CONFIG, MY_SIZES = "My own config.json", "My own sizes"
GPU_COUNTS = (1, 2, 4, 8, 16)
WEIGHT_BITS = (16, 8, 4, 32)
LATENT_ONLY = "fp8_ds_mla"
BOUND: Any = {"bind": "query-params", "persist_state": "session"}
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_TEXT_PARTS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True)
class Subject:
    """The model asked about. ``params`` and ``d_model`` are None where nobody said them.

    ``code`` is the Python expression that makes the same KVCache.
    """

    name: str
    cache: KVCache
    params: int | None
    d_model: int | None
    code: str
    known: KnownModel | None = None


@dataclass(frozen=True)
class Choice:
    """What the inputs say: ``tokens`` per user, ``users`` at once, precisions, GPUs and overhead per GPU."""

    subject: Subject
    tokens: int
    users: int
    dtype: str
    weight_bits: int
    gpu: Gpu
    n_gpus: int
    overhead_percent: int

    @property
    def cache(self) -> KVCache:
        """The model's cache."""
        return self.subject.cache

    @property
    def weights(self) -> int:
        """Bytes of the weights at their precision; 0 where their number is not known."""
        return (self.subject.params or 0) * self.weight_bits // 8

    @property
    def overhead(self) -> int | None:
        """Bytes kept free on each GPU; None is the engine's own default."""
        if self.overhead_percent == round(OVERHEAD_SHARE * 100):
            return None
        return round(self.gpu.memory_bytes * self.overhead_percent / 100)

    def bytes(self, cache: KVCache | None = None) -> int:
        """Bytes of a cache (the model's own, or one as if) for these users and tokens."""
        counted = cache or self.cache
        return counted.bytes(self.tokens, self.users, self.dtype_for(counted))

    def dtype_for(self, cache: KVCache) -> str:
        """The precision to count ``cache`` at: the chosen one, or fp8 where that only fits this model's latent."""
        return "fp8" if self.dtype == LATENT_ONLY and cache is not self.cache else self.dtype

    def fit(self, cache: KVCache | None = None) -> Fit:
        """Whether it fits on these GPUs. Raises UserError where the heads cannot be split over them."""
        counted = cache or self.cache
        return fits(
            counted,
            self.weights,
            self.gpu,
            self.tokens,
            self.users,
            self.dtype_for(counted),
            self.n_gpus,
            self.overhead,
        )

    def floor(self, cache: KVCache | None = None) -> float:
        """Seconds one step takes at least, by memory traffic alone."""
        counted = cache or self.cache
        return decode_floor_seconds(
            counted,
            self.weights,
            self.gpu.bandwidth,
            self.tokens,
            self.users,
            self.dtype_for(counted),
            self.n_gpus,
        )


def model_label(name: str) -> str:
    """How a model stands in a picker, so that a search for its family, sharing or year finds it."""
    return _labels().get(name, name)


@lru_cache(maxsize=1)
def _labels() -> dict[str, str]:
    return {model.name: _label(model) for model in known_models()}


def _label(model: KnownModel) -> str:
    year = f", {model.year}" if model.year else ""
    family = "" if model.name.casefold().startswith(model.family.casefold()) else f", {model.family}"
    return f"{model.name}, {model.rung}{family}{year}"


def listed_names() -> list[str]:
    """Every model of the catalogue whose cache can be counted, in its order."""
    return [model.name for model in known_models() if not model.refusal]


def model_picker() -> str:
    """The search box over the catalogue and the two ways to describe a model oneself."""
    # The default stands first: a default elsewhere in the list quarrels with a value set by code.
    options = [DEFAULT_MODEL, *(name for name in listed_names() if name != DEFAULT_MODEL), MY_CONFIG, MY_SIZES]
    _greet_free_spelling(options)
    return str(
        st.selectbox(
            "Model",
            options,
            format_func=model_label,
            key="c_model",
            help="Type to search: a name, a family, MHA, GQA, MQA, MLA or a year.",
            **BOUND,
        )
    )


def _greet_free_spelling(options: list[str]) -> None:
    """A link may name a model as people write it (llama-3-8b): offer the listed one, which then stands in the URL."""
    asked = st.query_params.get("c_model")
    if asked is not None and "c_model" not in st.session_state and asked not in map(model_label, options):
        st.session_state["c_asked"] = asked
    asked = st.session_state.get("c_asked")
    if asked is None or st.session_state.get("c_model", DEFAULT_MODEL) != DEFAULT_MODEL:
        return
    try:
        found = find_model(asked).name
    except UserError:
        found = ""
    if found in options:
        st.button(f"Show {found}, as the link asks", key="c_found", on_click=choose_model, args=(found,))
    else:
        st.info(plain(f"This link asks for a model that is not in the list. Showing {DEFAULT_MODEL}."))


def choose_model(name: str) -> None:
    """Put a model into the picker (a callback: before the picker is drawn)."""
    st.session_state["c_model"] = name
    st.session_state.pop("c_asked", None)


def dtypes_for(subject: Subject | None) -> list[str]:
    """The precisions a model's cache can have, fp16 first; one of them describes a latent of 512 + 64 only."""
    names = ["fp16", *(name for name in PRECISIONS if name != "fp16")]
    if subject is not None and any(
        (layer.d_latent, layer.d_rope) == (DS_MLA_LATENT, DS_MLA_ROPE) for layer in subject.cache.layers
    ):
        return names
    return [name for name in names if name != LATENT_ONLY]


def use_inputs(dtypes: list[str]) -> tuple[int, int, str, int, Gpu, int]:
    """Tokens, users, precision of the cache and of the weights, GPU and how many."""
    left, right = st.columns(2, gap="small", wrap=False)
    with left:
        tokens = _whole("Tokens each", "c_tokens", 8192, 100_000_000, 1024, "Tokens of one user's whole text.")
    with right:
        users = _whole("Users at once", "c_users", 16, 1_000_000, 1, "Texts kept in memory at the same time.")
    left, right = st.columns(2, gap="small", wrap=False)
    with left:
        dtype = st.selectbox(
            "Cache precision",
            dtypes,
            key="c_kv",
            help="What one stored number costs. " + ". ".join(PRECISIONS[name].label for name in dtypes) + ".",
            **BOUND,
        )
    with right:
        bits = st.selectbox(
            "Weights",
            WEIGHT_BITS,
            format_func="{} bit".format,
            key="c_bits",
            help="Bits of one weight. The weights' precision never sets the cache's.",
            **BOUND,
        )
    left, right = st.columns([2, 1], gap="small", wrap=False)
    with left:
        names = [DEFAULT_GPU, *(gpu.name for gpu in known_gpus() if gpu.name != DEFAULT_GPU)]
        gpu = st.selectbox(
            "GPU",
            names,
            key="c_gpu",
            help="Memory and bandwidth as the maker states them; the source is under “Show working”.",
            **BOUND,
        )
    with right:
        n_gpus = st.selectbox("How many", GPU_COUNTS, key="c_n", help="They share every layer's heads.", **BOUND)
    return tokens, users, dtype, bits, find_gpu(gpu), n_gpus


def overhead_input() -> int:
    """The share of each GPU kept free, in percent: an explicit line, to be edited."""
    return _whole(
        "Kept free on each GPU, %",
        "c_over",
        round(OVERHEAD_SHARE * 100),
        90,
        1,
        "For activations and the runtime. vLLM's gpu_memory_utilization of 0.9 leaves 10 %.",
        least=0,
    )


@dataclass(frozen=True)
class OwnModel:
    """What the tab “Paste a config” holds, read or not: the text, the sizes, and the weights if somebody said them."""

    text: str
    sizes: dict[str, int]
    billions: float


def _hub_box() -> None:
    """An id of the Hub fills the text area with that model's config.json; its weights are not fetched."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input(
            "Hub id",
            key="c_hub",
            placeholder="owner/name",
            help="Fetches only the model's config.json, a few kilobytes.",
        )
        st.button("Fetch its config", on_click=_fetch_config, help="Put the model's config.json into the box below.")
    refused = st.session_state.pop("hub_refused", None)
    if refused:
        show_error(refused)


def _fetch_config() -> None:
    try:
        st.session_state["c_config"] = config_text((st.session_state.get("c_hub") or "").strip())
    except UserError as error:
        st.session_state["hub_refused"] = error


def own_inputs() -> OwnModel:
    """The text area and the free sizes. The text is kept whatever is wrong with it."""
    if settings().allow_hub:
        _hub_box()
    text = st.text_area(
        "A model's config.json",
        key="c_config",
        height=220,
        placeholder='{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, …}',
        help="The file lies beside every model's weights. Nothing is sent anywhere else.",
        bind=link_binding("c_config"),
        persist_state="session",
    )
    billions = st.number_input(
        "Weights of your model, in billions (0: not known)",
        min_value=0.0,
        max_value=10_000.0,
        value=0.0,
        step=1.0,
        key="c_params",
        help="A config does not say it; without it only the cache is counted.",
        **BOUND,
    )
    st.markdown("**Or plain sizes, every layer alike**")
    columns = st.columns(4, gap="small")
    fields = (
        ("Layers", "c_layers", "n_layers", 32, 1, 2_000),
        ("Query heads", "c_heads", "n_heads", 32, 1, 1_024),
        ("K/V heads", "c_kvheads", "n_kv_heads", 8, 1, 1_024),
        ("Width of a head", "c_dhead", "d_head", 128, 1, 4_096),
        ("Window (0: none)", "c_window", "window", 0, 0, 10_000_000),
        ("Latent (0: none)", "c_latent", "d_latent", 0, 0, 65_536),
        ("RoPE beside the latent", "c_rope", "d_rope", 64, 0, 4_096),
    )
    sizes = {}
    for place, (label, key, name, value, least, most) in enumerate(fields):
        with columns[place % 4]:
            sizes[name] = _whole(label, key, value, most, 1, None, least=least)
    return OwnModel(text or "", sizes, billions or 0.0)


def subject_of(name: str, own: OwnModel) -> Subject:
    """The model behind a picker's choice. Raises UserError when what was pasted or set cannot be counted."""
    params = round(own.billions * 1e9) or None
    if name == MY_CONFIG:
        return config_subject(own.text, params)
    if name == MY_SIZES:
        return sizes_subject(own.sizes, params)
    model = find_model(name)
    return Subject(name, model.cache, model.params, model.d_model, f'find_model("{name}").cache', model)


def config_subject(text: str, params: int | None) -> Subject:
    """A pasted config.json. Raises UserError with one sentence for whatever is wrong with it."""
    if not text.strip():
        raise UserError(
            "No config.json has been pasted yet.",
            "The tab “Paste a config” takes the whole file.",
            "Paste one there, or choose a listed model.",
        )
    config = config_from_text(text)
    return Subject(
        "Your config.json",
        KVCache.from_config(config, "Your config.json"),
        params,
        _hidden_width(config),
        'KVCache.from_config(json.load(open("config.json")))',
    )


def sizes_subject(sizes: dict[str, int], params: int | None) -> Subject:
    """A model from plain sizes. Raises UserError when its heads cannot share evenly."""
    given: dict[str, Any] = {name: sizes[name] for name in ("n_layers", "n_heads", "n_kv_heads", "d_head")}
    if sizes["window"]:
        given["window"] = sizes["window"]
    if sizes["d_latent"]:
        given |= {"d_latent": sizes["d_latent"], "d_rope": sizes["d_rope"]}
    code = ", ".join(f"{name}={value}" for name, value in given.items())
    return Subject(
        "Your own sizes",
        KVCache.from_sizes(**given),
        params,
        sizes["n_heads"] * sizes["d_head"],
        f"KVCache.from_sizes({code})",
    )


def _hidden_width(config: dict[str, Any]) -> int | None:
    inner = next((config[part] for part in _TEXT_PARTS if isinstance(config.get(part), dict)), config)
    widths = (inner.get(name) for name in _HIDDEN)
    return next((width for width in widths if isinstance(width, int) and width > 0), None)


def _whole(label: str, key: str, value: int, most: int, step: int, note: str | None, least: int = 1) -> int:
    """A box for a whole number; an emptied box means its smallest value."""
    number = st.number_input(
        label, min_value=least, max_value=most, value=value, step=step, key=key, help=note, **BOUND
    )
    return least if number is None else int(number)
