"""Peer: transformers' own eager attention with ``output_attentions=True``, the usual way to get at the weights."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from attention.models import LoadedModel


class EagerPeer:
    """The same weights in the same memory, under transformers' eager attention.

    ``run`` is the forward alone, on ids that are there already. It is spared what we spare ourselves: no K/V cache,
    no gradients, and of a decoder only the last position's next-token scores.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        shared: dict[int, Any] = {id(t): t for t in [*loaded.model.parameters(), *loaded.model.buffers()]}
        self._model: Any = copy.deepcopy(loaded.model, shared)
        self._model.set_attn_implementation("eager")
        self._options: dict[str, Any] = {} if loaded.kind == "encoder" else {"use_cache": False, "logits_to_keep": 1}

    def run(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(1, seq_len) -> one (1, head, query, key) tensor per layer."""
        with torch.inference_mode():
            attentions: tuple[torch.Tensor, ...] = self._model(
                input_ids=ids, output_attentions=True, **self._options
            ).attentions
        return attentions
