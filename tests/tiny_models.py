"""Tiny random models of many architectures, and the tokenizers to feed them: test material, no tests.

Sizes differ wherever the architecture lets them (6 query heads, 2 K/V heads, head width 10, d_model 48),
so that a swapped axis cannot go unnoticed.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, PreTrainedTokenizerFast

from attention import kernel
from attention.models import LoadedModel, build, kind_of

WORDS = ("the", "cat", "sat", "on", "mat", "that", "dog", "chased", "and", "ran", "away", "because", "it", "was")
WORDS += ("tired", "hungry", ".", *"abcdefghijklmnopqrstuvwxyz")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
VOCAB = 61
SENTENCE = "the cat sat on the mat that the dog chased and it ran away"

_PLAIN = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SHARED = _PLAIN | {"num_key_value_heads": 2}
_WIDE = _SHARED | {"head_dim": 10}
_GPT = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64} | {
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
_LATENT = _PLAIN | {
    "num_key_value_heads": 6,
    "q_lora_rank": 12,
    "kv_lora_rank": 14,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 9,
    "head_dim": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 20,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": _PLAIN,
    "roberta": _PLAIN,
    "electra": _PLAIN,
    "distilbert": {
        "vocab_size": VOCAB,
        "dim": 48,
        "n_layers": 3,
        "n_heads": 6,
        "hidden_dim": 40,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    },
    "modernbert": _PLAIN | {"local_attention": 6, "global_attn_every_n_layers": 3},
    "gpt2": _GPT,
    "gptj": _GPT | {"rotary_dim": 4},
    "gpt_bigcode": _GPT,
    "gpt_neox": _PLAIN,
    "opt": {key: value for key, value in _PLAIN.items() if key != "intermediate_size"}
    | {"ffn_dim": 40, "word_embed_proj_dim": 48},
    "llama": _WIDE,
    "mistral": _WIDE | {"sliding_window": 4},
    "mixtral": _WIDE | _EXPERTS | {"sliding_window": None},
    "qwen2": _SHARED,
    "qwen3": _WIDE,
    "gemma": _WIDE,
    "gemma2": _WIDE | {"sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 7},
    "gemma3_text": _WIDE | _WINDOWS | {"query_pre_attn_scalar": 7},
    "phi3": _SHARED,
    "olmo2": _SHARED,
    "starcoder2": _SHARED | {"sliding_window": None},
    "cohere2": _WIDE | _WINDOWS,
    "granite": _SHARED | {"attention_multiplier": 0.3},
    "gpt_oss": _WIDE | _EXPERTS | {"sliding_window": 4},
    "deepseek_v2": _LATENT | {"topk_method": "greedy"},
    "deepseek_v3": _LATENT,
    "stablelm": _SHARED,
}
# These compute attention in code of their own; transformers 5.24.
OUTSIDE: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 2, "n_head": 6},
    "mpt": {"vocab_size": VOCAB, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 64},
    "mpnet": _PLAIN,
    "deberta-v2": _PLAIN,
    "xlnet": {"vocab_size": VOCAB, "d_model": 48, "n_layer": 2, "n_head": 6, "d_inner": 40},
    "falcon": {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
    },
    "gpt_neo": {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "num_layers": 2,
        "num_heads": 6,
        "attention_types": [[["global", "local"], 1]],
        "max_position_embeddings": 64,
    },
}


def tiny_tokenizer(encoder: bool) -> PreTrainedTokenizerFast:
    """Whole words; an encoder's puts <s> and </s> round a text and numbers a pair's segments."""
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys((*SPECIAL, *WORDS)))}
    backend = Tokenizer(tokenizer_models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    if encoder:
        backend.post_processor = TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def tiny_config(name: str, **changes: Any) -> Any:
    """The tiny config of an architecture, with changes."""
    return AutoConfig.for_model(name, **((ARCHITECTURES | OUTSIDE)[name] | changes))


def random_module(config: Any, implementation: str = "eager", seed: int = 0) -> Any:
    """A torch module with weights large enough that heads are sharp and every bias and norm matters."""
    from transformers import AutoModel, AutoModelForCausalLM

    auto = AutoModelForCausalLM if kind_of(config) == "decoder" else AutoModel
    model = auto.from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name.lower() or "ln_" in name or "layernorm" in name.lower():
                parameter.copy_(parameter + 0.2 * noise)
            else:
                parameter.copy_(0.3 * noise)
    return model


def wrapped(model: Any, name: str = "tiny") -> LoadedModel:
    """A LoadedModel round a module built with attn_implementation="headscope"."""
    kind = kind_of(model.config)
    return build(model, tiny_tokenizer(kind == "encoder"), id=name, kind=kind, revision=f"{name}-random")


def tiny_pair(name: str, **changes: Any) -> tuple[LoadedModel, Any]:
    """The same random weights twice: behind our kernel, and under transformers' own eager attention."""
    kernel.register()
    config = tiny_config(name, **changes)
    ours, eager = random_module(config, kernel.NAME), random_module(config, "eager")
    eager.load_state_dict(ours.state_dict())
    return wrapped(ours, name), eager


def tiny(name: str, **changes: Any) -> LoadedModel:
    """A random model of this architecture behind our kernel."""
    kernel.register()
    return wrapped(random_module(tiny_config(name, **changes), kernel.NAME), name)


def save_tiny(folder: Path, name: str, **changes: Any) -> Path:
    """A random model of this architecture as a folder that load_model can read."""
    config = tiny_config(name, **changes)
    random_module(config).save_pretrained(folder)
    tiny_tokenizer(kind_of(config) == "encoder").save_pretrained(folder)
    return folder
