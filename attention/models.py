"""Bundled, local and Hub checkpoints -> LoadedModel, with our kernel inside and their safety checked first.

``python -m attention.models prepare`` does the one slow step (GGUF -> safetensors) ahead of time.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from attention import hub, kernel, weights_cache
from attention.errors import UserError
from attention.jobs import stop_if_left
from attention.kv_reader import shown
from attention.layout import HeadLayout
from attention.model_facts import (
    BUNDLED,
    UNTRAINED,
    BundledModel,
    Kind,
    ModelCard,
    local_folders,
    package_file,
    readiness,
)
from attention.settings import settings
from attention.tokens import start_choices

KEEP_LOADED = 4
# Without any of these transformers makes up an empty tokenizer, to which every word is unknown.
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model")
# Shapes beyond these are refused before a single module is built, so that a config cannot exhaust memory.
CONFIG_LIMITS = {
    "num_hidden_layers": 512,
    "hidden_size": 65_536,
    "num_attention_heads": 1_024,
    "num_key_value_heads": 1_024,
    "intermediate_size": 1_048_576,
    "vocab_size": 4_194_304,
    "num_local_experts": 1_024,
    "n_routed_experts": 1_024,
    "head_dim": 4_096,
}

# What Llama's kin, BERT's kin and DistilBERT call the two projections a layer's cache is filled from.
KV_PROJECTION_NAMES = (("k_proj", "v_proj"), ("key", "value"), ("k_lin", "v_lin"))

_lock = threading.RLock()
_reference_lock = threading.Lock()
_loaded: OrderedDict[str, LoadedModel] = OrderedDict()


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to trace: the torch module with our kernel inside, its tokenizer and its facts.

    Shared by every session, so nobody may change it: parameters carry no gradient and
    what-ifs live in the kernel's recorder. ``revision`` is the SHA-256 of the weights file.
    ``kv_projections`` holds each layer's K and V projection; none where they are fused.
    """

    id: str
    title: str
    kind: Kind
    layout: HeadLayout
    n_layers: int
    revision: str
    licence: str
    n_params: int
    model: Any
    tokenizer: Any
    max_positions: int
    kv_projections: tuple[tuple[torch.nn.Linear, torch.nn.Linear], ...] = ()

    @cached_property
    def card(self) -> ModelCard:
        """The facts without the module."""
        return ModelCard(
            self.id, self.title, self.kind, self.n_layers, self.layout, self.revision, self.licence, self.n_params
        )

    @cached_property
    def start_choices(self) -> tuple[str, ...]:
        """Special tokens that may stand before a decoder's text; empty for encoders."""
        return start_choices(self.tokenizer, self.kind)

    @cached_property
    def default_start(self) -> str | None:
        """``<|endoftext|>`` where there is one (what pretraining put between documents), else the first choice."""
        if "<|endoftext|>" in self.start_choices:
            return "<|endoftext|>"
        return self.start_choices[0] if self.start_choices else None

    @cached_property
    def reference(self) -> Any:
        """The same weights under torch's own SDPA (eager where the model has no SDPA path); never used to capture."""
        with _reference_lock:
            shared: dict[int, Any] = {id(t): t for t in [*self.model.parameters(), *self.model.buffers()]}
            twin = copy.deepcopy(self.model, shared)
            twin.set_attn_implementation("sdpa" if getattr(self.model, "_supports_sdpa", False) else "eager")
            return twin


def load_model(model: str | Path) -> LoadedModel:
    """The model of this id, loaded once and shared.

    A string is a bundled id, the name of a folder under HEADSCOPE_MODEL_FOLDERS, or, when
    HEADSCOPE_ALLOW_HUB=1, a Hub id; ``~untrained`` behind an id gives its untrained twin. A
    ``Path`` is a local folder. Only safetensors are read and no remote code runs.
    Raises UserError for an unknown id, a network failure, a model over the parameter limit
    or an architecture whose attention cannot be recorded.
    """
    key = str(model)
    here = _loaded.get(key)
    # A model that is there is given out even while the lock is held to load another one.
    if not _lock.acquire(blocking=here is None) and here is not None:
        return here
    try:
        return _kept_or_loaded(key, model)
    finally:
        _lock.release()


def _kept_or_loaded(key: str, model: str | Path) -> LoadedModel:
    if key in _loaded:
        _loaded.move_to_end(key)
        return _loaded[key]
    loaded = _load(model)
    _loaded[key] = loaded
    readiness(key).set()
    while len(_loaded) > KEEP_LOADED:
        _loaded.popitem(last=False)
    return loaded


def untrained_twin(model: LoadedModel, seed: int = 0) -> LoadedModel:
    """The same architecture with random weights (seeded): what attention looks like before any learning."""
    from_config = type(model.model)._from_config
    config = copy.deepcopy(model.model.config)
    with _lock, torch.random.fork_rng(devices=[]):  # one generator serves all threads
        torch.manual_seed(seed)
        twin = from_config(config, attn_implementation=kernel.NAME, dtype=torch.float32)
    return build(
        twin,
        model.tokenizer,
        id=model.id + UNTRAINED,
        title=f"{model.title.split(':')[0]}, untrained twin",
        kind=model.kind,
        revision=f"untrained-{seed}-{model.revision}",
        licence="random weights",
    )


def build(
    model: Any, tokenizer: Any, *, id: str, title: str = "", kind: Kind, revision: str, licence: str = ""
) -> LoadedModel:
    """Wrap a torch module whose attention goes through our kernel.

    The layout is read from real q, k and v tensors of a three-token probe, never from the
    config alone. Raises UserError when no layer calls the kernel.
    """
    model.eval().requires_grad_(False)
    recorder = kernel.Recorder()
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    with torch.inference_mode(), kernel.recording(recorder):
        first = model(input_ids=torch.tensor([[0, 1, 2]]))[0]
    if recorder.calls == 0:
        raise _own_attention(id)
    if not bool(torch.isfinite(first).all()):  # finite weights may overflow, and a config may hold NaN
        raise UserError(
            f"{id} computes NaN or infinite numbers for a plain text.",
            "Its weights and its config must give finite ones.",
            "Choose another model.",
        )
    heads = {(query[1], key[1]) for query, key, _ in recorder.shapes}
    if len(heads) > 1:
        found = ", ".join(f"{n_heads} query and {n_kv_heads} K/V heads" for n_heads, n_kv_heads in sorted(heads))
        raise UserError(
            f"The layers of {id} differ: {found}.",
            "Models with the same numbers of heads in every layer can be shown.",
            "Choose another model.",
        )
    # OPT's language model calls its decoder past its own trunk.
    trunk = model.get_decoder() if kind == "decoder" else model.base_model
    trunk.register_forward_hook(kernel.keep_hidden)
    for module in trunk.modules():
        for layer in module if isinstance(module, torch.nn.ModuleList) else ():
            layer.register_forward_pre_hook(_stop_if_left)  # a pass over a long text takes seconds; a layer does not
    projections = find_kv_projections(trunk, _layout(config, recorder.shapes[0]), recorder.calls)
    for layer, (of_key, of_value) in enumerate(projections):
        of_key.register_forward_hook(partial(kernel.on_key_projected, layer))
        of_value.register_forward_hook(partial(kernel.on_value_projected, layer))
    return LoadedModel(
        id=id,
        title=title or id,
        kind=kind,
        layout=_layout(config, recorder.shapes[0]),
        n_layers=recorder.calls,
        revision=revision,
        licence=licence,
        n_params=sum(p.numel() for p in model.parameters()),
        model=model,
        tokenizer=tokenizer,
        max_positions=positions - positions_before_text(model) if isinstance(positions, int) else sys.maxsize,
        kv_projections=projections,
    )


def _stop_if_left(*_: Any) -> None:
    stop_if_left()


def find_kv_projections(
    trunk: torch.nn.Module, layout: HeadLayout, n_layers: int
) -> tuple[tuple[torch.nn.Linear, torch.nn.Linear], ...]:
    """Each layer's K and V projection, in order; empty unless every layer has just one of each, of the right width."""
    widths = (layout.n_kv_heads * layout.d_head, layout.n_kv_heads * layout.d_head_v)
    for names in KV_PROJECTION_NAMES:
        pairs = [
            tuple(getattr(module, name) for name in names)
            for module in trunk.modules()
            if all(isinstance(getattr(module, name, None), torch.nn.Linear) for name in names)
        ]
        if len(pairs) == n_layers and all(tuple(p.out_features for p in pair) == widths for pair in pairs):
            return tuple((pair[0], pair[1]) for pair in pairs)
    return ()


def _own_attention(id: str) -> UserError:
    return UserError(
        f"{id} computes attention in its own code, so its heads cannot be recorded.",
        "Models on the shared attention interface of transformers can be shown (BERT, GPT-2, Llama, Qwen, …).",
        "Choose another model.",
    )


def positions_before_text(model: Any) -> int:
    """Learned positions that text never uses: RoBERTa's kin start counting behind their padding's number."""
    embeddings: Any = getattr(getattr(model, "base_model", model), "embeddings", None)
    if not hasattr(embeddings, "create_position_ids_from_input_ids"):
        return 0
    return int(embeddings.padding_idx) + 1


def kind_of(config: Any) -> Kind:
    """Whether a config is of an encoder or a decoder. Raises UserError for encoder-decoders and other modalities."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    name = getattr(config, "model_type", "")
    encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
    if not encoder_decoder and name in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        return "encoder"
    if not encoder_decoder and name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "decoder"
    raise UserError(
        f"A model of type {name or 'unknown'!r} is neither a text encoder nor a text decoder.",
        "Encoders such as BERT and decoders such as GPT-2 or Llama can be shown.",
        "Choose another model.",
    )


def check_size(config: Any, limit: int) -> int:
    """Parameters of a config, counted on the meta device without any weights. Raises UserError over ``limit``."""
    text_config = config.get_text_config()
    for name, most in CONFIG_LIMITS.items():
        value = getattr(text_config, name, None)
        if isinstance(value, int) and not 0 <= value <= most:
            raise UserError(
                f"The model's config says {name} {value:,}.", f"At most {most:,} is read.", "Choose another."
            )
    with torch.device("meta"):
        model = _auto_class(kind_of(config)).from_config(config)
    n_params = sum(p.numel() for p in model.parameters())
    if n_params > limit:
        raise UserError(
            f"The model has {n_params / 1e6:,.0f} million parameters.",
            f"This installation loads at most {limit / 1e6:,.0f} million (HEADSCOPE_MAX_PARAMS).",
            "Choose a smaller model, or raise the limit.",
        )
    return n_params


def _load(model: str | Path) -> LoadedModel:
    torch.set_num_threads(settings().threads)
    if isinstance(model, Path):
        return _from_folder(model, id=model.name, title=model.name)
    if model.endswith(UNTRAINED) and not model.removesuffix(UNTRAINED).endswith(UNTRAINED):
        return untrained_twin(load_model(model.removesuffix(UNTRAINED)))
    for bundled in BUNDLED:
        if bundled.id == model:
            return _from_bundle(bundled)
    folders = local_folders()
    if model in folders:
        return _from_folder(folders[model], id=model, title=model)
    return _from_hub(model)


def _from_bundle(bundled: BundledModel) -> LoadedModel:
    file = package_file(bundled)
    if file.suffix == ".gguf":
        folder, revision = weights_cache.converted_gguf(file, bundled.sha256)
    else:
        folder, revision = file.parent, weights_cache.checked_sha256(file, bundled.sha256)
    return _from_folder(folder, id=bundled.id, title=bundled.title, revision=revision, licence=bundled.licence)


def _from_hub(model: str) -> LoadedModel:
    config = _config(hub.fetched(model, ["config.json"]))
    _attempt(model, lambda: check_size(config, settings().max_params))
    folder = hub.fetched_weights(model)
    return _from_folder(folder, id=model, title=model, revision=folder.name)


def _from_folder(folder: Path, *, id: str, title: str, revision: str = "", licence: str = "") -> LoadedModel:
    if not folder.is_dir():
        raise UserError(f"There is no folder {str(folder)!r}.", "A model is a folder.", "Check the path.")
    config = _config(folder)
    kind = kind_of(config)
    _attempt(id, lambda: check_size(config, settings().max_params))
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(
            f"{id} has no safetensors file.",
            "Only safetensors weights are read.",
            "Convert the model, or choose another.",
        )
    _require_own_files(id, folder)
    if not any(file for pattern in VOCABULARIES for file in folder.glob(pattern)):
        raise UserError(
            f"{id} has no tokenizer.", f"It comes in one of {', '.join(VOCABULARIES)}.", "Fetch the model again."
        )
    kernel.register()
    from transformers import AutoTokenizer

    model, report = _attempt(
        id,
        lambda: _auto_class(kind).from_pretrained(
            folder,
            config=config,
            attn_implementation=kernel.NAME,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        ),
    )
    _require_complete(id, report["missing_keys"])
    tokenizer = _attempt(
        id, lambda: AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    )
    _require_finite(id, model)
    return _attempt(
        id,
        lambda: build(
            model,
            tokenizer,
            id=id,
            title=title,
            kind=kind,
            revision=revision or weights_cache.sha256_of_files(weights),
            licence=licence or "see the model's own files",
        ),
    )


def _attempt(id: str, step: Callable[[], Any]) -> Any:
    """Turn the many ways a stranger's files can fail to load into one sentence."""
    try:
        return step()
    except UserError:
        raise
    except Exception as error:
        # Falcon's kin look their attention class up by the implementation's name.
        if isinstance(error, KeyError) and error.args == (kernel.NAME,):
            raise _own_attention(id) from error
        reason = shown_reason(error)
        raise UserError(
            f"{id} could not be loaded: {reason}",
            "A folder needs config.json, a fast tokenizer and complete safetensors of an architecture that "
            "transformers supports with a custom attention function.",
            "Check the files, or choose another model.",
        ) from error


def shown_reason(error: Exception) -> str:
    """An exception's message as visitors may see it: short, and without the folders of this machine."""
    words = [re.sub(r"/(?:[^/\s'\"]+/)+", "", word) for word in str(error).split()]
    return " ".join(words)[:200] or type(error).__name__


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    return _attempt(
        folder.name, lambda: AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    )


def _auto_class(kind: Kind) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM

    return AutoModelForCausalLM if kind == "decoder" else AutoModel


def _require_own_files(id: str, folder: Path) -> None:
    """Refuse a list of weight files that leads out of the model's folder; transformers would follow it."""
    for index in folder.glob("*.safetensors.index.json"):
        named = _attempt(id, lambda index=index: json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())  # type: ignore[misc]
        for name in named:
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise UserError(
                    f"{index.name} of {id} names the weight file {shown(name)}.",
                    "Weight files are safetensors in the model's own folder.",
                    "Fetch the model again, or choose another.",
                )


def _require_complete(id: str, missing: set[str]) -> None:
    """Refuse weights that transformers filled with random numbers; no attention passes through a pooler."""
    absent = sorted(name for name in missing if "pooler" not in name)
    if absent:
        raise UserError(
            f"{id} lacks {len(absent)} of its weights, the first being {absent[0]}.",
            "Every weight the config speaks of must be in the safetensors.",
            "Fetch the model again, or choose another.",
        )


def _require_finite(id: str, model: Any) -> None:
    for name, tensor in model.named_parameters():
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(
                f"{id} holds NaN or infinite numbers in {name}.", "Weights must be finite.", "Choose another."
            )


def _layout(config: Any, shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]) -> HeadLayout:
    query, key, value = shapes
    return HeadLayout(
        d_model=int(config.hidden_size),
        n_heads=query[1],
        n_kv_heads=key[1],
        d_head=query[3],
        d_head_v=value[3],
        d_latent=getattr(config, "kv_lora_rank", None),
        d_rope=getattr(config, "qk_rope_head_dim", None) if getattr(config, "kv_lora_rank", None) else None,
    )


def prepare(say: Callable[[str], None] = print) -> None:
    """Load every bundled model once, converting and measuring what needs it, with a line for each long step."""
    from attention.calibration import is_measured, moments_of

    for bundled in BUNDLED:
        file = package_file(bundled)
        if file.suffix == ".gguf" and not weights_cache.is_converted(file):
            say(f"Converting {bundled.id} to float32 safetensors (once, about 20 seconds)…")
        loaded = load_model(bundled.id)
        if not is_measured(loaded):
            say(f"Measuring the keys and values of {bundled.id} on the calibration text (once, about 20 seconds)…")
            moments_of(loaded)
        say(f"{bundled.id}: {loaded.n_layers} layers × {loaded.layout.n_heads} heads, {loaded.layout.rung}, ready.")


if __name__ == "__main__":
    if sys.argv[1:] != ["prepare"]:
        sys.exit("Usage: python -m attention.models prepare")
    try:
        prepare()
    except UserError as error:
        sys.exit(str(error))
