"""One text on every rung of the ladder: what a head looks at, what comes next, what the sentence resembles.

``python -m attention.ladder_view`` writes assets/first_ladder_<model>.json, what the page opens on without a model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch

from attention import kernel
from attention.errors import UserError
from attention.healed import healed_settings
from attention.ladder import embeddings
from attention.models import LoadedModel, load_model
from attention.plans import turning
from attention.rung_views import LadderView, RungView, ViewRequest, Written, view_to_fact
from attention.rungs import ASSETS, Rung, rung_name, rungs_of
from attention.sharing import LatentKV, ShareKV, as_what_ifs, numbers_cached
from attention.tracing import AttentionTrace, trace, what_if_recorder

# Longer texts have maps too fine to compare by eye, and one trace a rung.
MOST_TOKENS = 48
N_WRITTEN = 8
# What the page opens on: text, layer, head. Read without a start token, as the texts that quality is measured on.
FIRST_VIEWS = {
    "all-MiniLM-L6-v2": ("Alice fed the cats because they were hungry.", 1, 3),
    "SmolLM2-135M-Instruct": ("The capital of Germany is", 16, 0),
}
COMPARED_WITH = (
    "A cat is sleeping on the sofa.",
    "The kittens wanted their dinner.",
    "The train to the coast was late.",
    "She paid for the coffee with a card.",
)


def possible_rungs(loaded: LoadedModel) -> tuple[Rung, ...]:
    """The rungs offered for a model's layout that its attention allows.

    Q, K and V in one piece (GPT-2) leave averaging and keeping the first; K normed before the scores (Qwen 3) leaves
    all but aligning.
    """
    return tuple(rung for rung in rungs_of(loaded.layout) if rung is None or _is_possible(loaded, rung))


def _is_possible(loaded: LoadedModel, rung: ShareKV | LatentKV) -> bool:
    if isinstance(rung, ShareKV) and rung.how in ("mean", "first") and rung.groups == "adjacent":
        return True
    if not loaded.kv_projections:
        return False
    return isinstance(rung, LatentKV) or rung.how != "aligned" or _turns(loaded)


def _turns(loaded: LoadedModel) -> bool:
    try:
        turning(loaded)
    except UserError:
        return False
    return True


def viewed_rungs(loaded: LoadedModel) -> tuple[Rung, ...]:
    """The rungs a text is shown on: as shipped, heads averaged and aligned, healed ones, whitened latents."""
    plain = [
        rung
        for rung in possible_rungs(loaded)
        if rung is None
        or (isinstance(rung, ShareKV) and rung.how in ("mean", "aligned") and rung.groups == "adjacent")
        or (isinstance(rung, LatentKV) and rung.whiten and rung.split is None)
    ]
    return (*plain, *healed_settings(loaded.id))


def ladder_view(
    model: LoadedModel | str,
    text: str,
    layer: int,
    head: int,
    *,
    start: str | None = None,
    say: Callable[[float], None] | None = None,
) -> LadderView:
    """Trace a text under every viewed rung. ``say`` hears the share done; an exception it raises stops the work.

    Raises UserError for a text of more than 48 tokens, and for what a trace cannot take.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    rungs = viewed_rungs(loaded)
    first = trace(loaded, text, start=start)
    _check(loaded, first, layer, head)
    found = []
    for index, rung in enumerate(rungs):
        traced = first if rung is None else trace(loaded, text, start=start, what_if=rung)
        found.append(_on_rung(loaded, first, traced, rung, layer, head))
        if say:
            say((index + 1) / len(rungs))
    layout = loaded.layout
    return LadderView(
        ViewRequest(loaded.id, first.text, layer, head, start, loaded.revision),
        tuple(token.label for token in first.tokens),
        loaded.kind,
        loaded.n_layers,
        layout.n_heads,
        layout.n_kv_heads,
        layout.d_head,
        first.causal,
        tuple(found),
        COMPARED_WITH if loaded.kind == "encoder" else (),
    )


def continued(loaded: LoadedModel, ids: tuple[int, ...], rung: Rung, n_tokens: int = N_WRITTEN) -> tuple[Written, ...]:
    """The likeliest continuation, token by token, under a rung. Every step reads the whole text again."""
    written: list[Written] = []
    so_far = list(ids)
    stop = {loaded.tokenizer.eos_token_id}
    for _ in range(n_tokens):
        recorder = what_if_recorder(loaded, as_what_ifs(rung))
        with kernel.forward_slot, torch.inference_mode(), kernel.recording(recorder):
            logits = loaded.model(input_ids=torch.tensor([so_far]), use_cache=False, logits_to_keep=1).logits[0, -1]
        chosen = int(logits.argmax())
        if chosen in stop:
            break
        so_far.append(chosen)
        written.append(Written(loaded.tokenizer.decode([chosen]), float(logits.float().softmax(-1)[chosen])))
    return tuple(written)


def _on_rung(
    loaded: LoadedModel, first: AttentionTrace, traced: AttentionTrace, rung: Rung, layer: int, head: int
) -> RungView:
    weights = traced.weights[layer, head].copy()
    weights.setflags(write=False)
    name, numbers = rung_name(rung), numbers_cached(loaded.layout, rung)
    if loaded.kind == "decoder":
        ids = tuple(token.id for token in traced.tokens)
        return RungView(rung, name, numbers, weights, traced.outputs.next_tokens[:5], continued(loaded, ids, rung))
    assert traced.outputs.embedding is not None
    assert first.outputs.embedding is not None
    others = embeddings(loaded, COMPARED_WITH, rung) @ traced.outputs.embedding
    cosine = float(traced.outputs.embedding @ first.outputs.embedding)
    return RungView(rung, name, numbers, weights, cosine=cosine, similar=tuple(others.tolist()))


def _check(loaded: LoadedModel, first: AttentionTrace, layer: int, head: int) -> None:
    if len(first.tokens) > MOST_TOKENS:
        raise UserError(
            f"The text has {len(first.tokens)} tokens.",
            f"On the ladder a text may have {MOST_TOKENS}: it is traced once for every rung.",
            "Shorten it, or look at it on the Heads page.",
        )
    if not (0 <= layer < loaded.n_layers and 0 <= head < loaded.layout.n_heads):
        raise UserError(
            f"There is no layer {layer}, head {head}.",
            f"Layers are numbered 0 to {loaded.n_layers - 1}, heads 0 to {loaded.layout.n_heads - 1}.",
            "Choose one of these.",
        )


def main(arguments: list[str]) -> None:
    """Write the first view of the models named, or of all that have one."""
    for model_id in arguments or list(FIRST_VIEWS):
        view = ladder_view(model_id, *FIRST_VIEWS[model_id])
        file = ASSETS / f"first_ladder_{model_id}.json"
        file.write_text(json.dumps(view_to_fact(view), ensure_ascii=True) + "\n", encoding="utf-8")
        sys.stderr.write(f"{file.relative_to(ASSETS.parent)} written\n")


if __name__ == "__main__":
    main(sys.argv[1:])
