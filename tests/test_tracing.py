"""Traces of the two bundled models and of tiny ones: exact, unpadded, separate per thread, honest about themselves."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from attention import (
    AttentionTrace,
    MuteHeads,
    ShareKV,
    TraceRequest,
    UserError,
    kernel,
    trace,
    tracing,
    untrained_twin,
)
from attention.models import LoadedModel
from attention.tracing import facts_of, sdpa_check, self_checks
from tests.tiny_models import SENTENCE, tiny

EXACT = 1e-5
HUNGRY = "Alice fed the cats because they were hungry."
KIND = "Alice fed the cats because she was kind."
CAT = "The cat sat on the mat that the dog chased."
TWIN_CAT = "The cat that the dog chased sat on the mat."
START = "<|endoftext|>"


def weight(traced: AttentionTrace, layer: int, head: int, query: str, key: str) -> float:
    labels = [token.label for token in traced.tokens]
    assert labels.count(query) == labels.count(key) == 1
    return float(traced.weights[layer, head, labels.index(query), labels.index(key)])


def eager_copy(loaded: LoadedModel) -> Any:
    """The same weights under transformers' own eager attention, sharing the memory."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in loaded.model.parameters()}
    twin = copy.deepcopy(loaded.model, shared)
    twin.set_attn_implementation("eager")
    return twin


def ids_of(traced: AttentionTrace) -> torch.Tensor:
    return torch.tensor([[token.id for token in traced.tokens]])


# --- the bundled models, against transformers and against known numbers ---


@pytest.mark.parametrize(("fixture", "text", "start"), [("minilm", HUNGRY, None), ("smollm", CAT, START)])
def test_bundled_models_equal_eager(request: pytest.FixtureRequest, fixture: str, text: str, start: str | None) -> None:
    loaded: LoadedModel = request.getfixturevalue(fixture)
    traced = trace(loaded, text, start=start)
    with torch.inference_mode():
        own = eager_copy(loaded).base_model(ids_of(traced), output_attentions=True)
    np.testing.assert_allclose(traced.weights, torch.stack(own.attentions)[:, 0], atol=EXACT, rtol=0)
    theirs = own.last_hidden_state[0].numpy()
    assert np.abs(traced.outputs.hidden - theirs).max() <= EXACT * max(1, np.abs(theirs).max())


def test_minilm_heads_that_are_known(minilm: LoadedModel) -> None:
    hungry, kind = trace(minilm, HUNGRY), trace(minilm, KIND)
    assert weight(hungry, 0, 2, "they", "because") == pytest.approx(1.00, abs=0.01)
    assert weight(hungry, 2, 0, "cats", "fed") == pytest.approx(0.48, abs=0.01)
    assert weight(hungry, 1, 3, "they", "cats") == pytest.approx(0.54, abs=0.01)
    assert weight(kind, 1, 3, "she", "Alice") == pytest.approx(0.70, abs=0.01)
    assert weight(kind, 2, 0, "cats", "fed") == pytest.approx(0.45, abs=0.01)


def test_smollm_heads_that_are_known(smollm: LoadedModel) -> None:
    cat, twin = trace(smollm, CAT, start=START), trace(smollm, TWIN_CAT, start=START)
    assert weight(cat, 16, 0, "that", "mat") == pytest.approx(0.89, abs=0.01)
    assert weight(cat, 25, 2, "that", "mat") == pytest.approx(0.93, abs=0.01)
    assert weight(cat, 13, 5, "chased", "that") == pytest.approx(0.51, abs=0.01)
    assert weight(twin, 25, 2, "that", "cat") == pytest.approx(0.90, abs=0.01)


@pytest.mark.parametrize(
    ("start", "word", "probability"), [(START, " mat", 0.33), (None, " cat", 0.07), ("<|im_start|>", " edge", 0.12)]
)
def test_the_start_token_changes_the_next_word(
    smollm: LoadedModel, start: str | None, word: str, probability: float
) -> None:
    traced = trace(smollm, "The cat sat on the", start=start)
    first, p = traced.outputs.next_tokens[0]
    assert first == word
    assert p == pytest.approx(probability, abs=0.01)
    assert [token.label for token in traced.tokens if token.special] == ([start] if start else [])
    assert traced.tokens[-1].label == "the"


def test_the_capital_of_france(smollm: LoadedModel) -> None:
    for start in (START, None):
        assert trace(smollm, "The capital of France is", start=start).outputs.next_tokens[0][0] == " Paris"


def test_next_tokens_are_the_softmax_of_the_models_own_logits(smollm: LoadedModel) -> None:
    traced = trace(smollm, CAT, start=START)
    with torch.inference_mode():
        logits = eager_copy(smollm)(ids_of(traced)).logits[0, -1]
    exponentials = np.exp(logits.double().numpy() - float(logits.max()))
    order = np.argsort(-exponentials)[:10]
    assert [word for word, _ in traced.outputs.next_tokens] == [smollm.tokenizer.decode([int(i)]) for i in order]
    np.testing.assert_allclose(
        [p for _, p in traced.outputs.next_tokens], exponentials[order] / exponentials.sum(), atol=EXACT
    )


def test_the_embedding_is_the_unit_mean_of_the_hidden_states(minilm: LoadedModel) -> None:
    outputs = trace(minilm, HUNGRY).outputs
    mean = outputs.hidden.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(outputs.embedding, mean / np.linalg.norm(mean), atol=EXACT)
    assert outputs.next_tokens == ()


@pytest.mark.parametrize(("fixture", "start"), [("minilm", None), ("smollm", START)])
def test_verify_and_the_checks_hold(request: pytest.FixtureRequest, fixture: str, start: str | None) -> None:
    loaded: LoadedModel = request.getfixturevalue(fixture)
    traced = trace(loaded, HUNGRY, start=start)
    assert [check.ok for check in traced.checks] == [True] * 4
    check = traced.verify()
    assert check.ok is True
    assert 0 < check.value < 1e-4
    assert loaded.model.config._attn_implementation == kernel.NAME
    assert loaded.reference.config._attn_implementation == "sdpa"
    memory = {tensor.data_ptr() for tensor in loaded.model.parameters()}
    assert {tensor.data_ptr() for tensor in loaded.reference.parameters()} == memory


def test_verify_does_not_pass_another_models_output(minilm: LoadedModel) -> None:
    traced = trace(minilm, HUNGRY)
    hidden = traced.outputs.hidden.copy()
    hidden[3, 7] += 0.01
    forged = dataclasses.replace(traced, outputs=dataclasses.replace(traced.outputs, hidden=hidden))
    check = forged.verify()
    assert check.ok is False
    assert check.value == pytest.approx(0.01, abs=1e-4)


def test_verify_a_what_if_is_not_applicable(minilm: LoadedModel) -> None:
    check = trace(minilm, HUNGRY, what_if=ShareKV(3)).verify()
    assert check.ok is None
    assert "what-if" in check.meaning


def test_sdpa_check_is_relative_to_the_largest_value() -> None:
    large, small = np.array([[1000.0, 0.0]]), np.array([[1.0, 0.0]])
    assert sdpa_check(large, large + 0.05).ok
    assert not sdpa_check(small, small + 0.05).ok


# --- the untrained twin ---


def test_the_untrained_twin_is_seeded_and_flat(minilm: LoadedModel) -> None:
    twin, again, other = untrained_twin(minilm), untrained_twin(minilm), untrained_twin(minilm, seed=1)
    trained, flat = trace(minilm, HUNGRY), trace(twin, HUNGRY)
    assert (twin.layout, twin.n_layers, twin.n_params) == (minilm.layout, minilm.n_layers, minilm.n_params)
    assert flat.weights.shape == trained.weights.shape
    np.testing.assert_array_equal(trace(again, HUNGRY).weights, flat.weights)
    assert np.abs(trace(other, HUNGRY).weights - flat.weights).max() > 1e-3
    assert len({minilm.revision, twin.revision, other.revision}) == 3

    def entropy(weights: np.ndarray) -> float:
        return float(-(weights * np.log(np.maximum(weights, 1e-30))).sum(axis=-1).mean() / np.log(weights.shape[-1]))

    assert entropy(flat.weights) > 0.98
    assert entropy(trained.weights) < 0.8


def test_the_twin_leaves_the_random_numbers_of_others_alone() -> None:
    ours = tiny("llama")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    untrained_twin(ours)
    assert torch.equal(torch.rand(3), expected)


def test_twins_made_at_once_are_the_same_twin() -> None:
    ours = tiny("bert", hidden_size=192, num_hidden_layers=4)
    expected = untrained_twin(ours).model.state_dict()
    with ThreadPoolExecutor(8) as pool:
        twins = list(pool.map(lambda _: untrained_twin(ours).model.state_dict(), range(16)))
    assert all(torch.equal(twin[name], expected[name]) for twin in twins for name in expected)


# --- padding, pairs, batches ---


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(("fixture", "start"), [("minilm", None), ("smollm", START)])
def test_a_batch_equals_each_text_alone(
    request: pytest.FixtureRequest, fixture: str, start: str | None, padding: Any
) -> None:
    loaded: LoadedModel = request.getfixturevalue(fixture)
    texts = ["The cat sat", HUNGRY, "Hi"]
    for one in trace(loaded, texts, start=start, padding=padding):
        alone = trace(loaded, one.text, start=start)
        assert one.tokens == alone.tokens
        np.testing.assert_allclose(one.weights, alone.weights, atol=EXACT, rtol=0)
        np.testing.assert_allclose(one.outputs.hidden, alone.outputs.hidden, atol=1e-4, rtol=1e-4)
        assert one.checks[0].ok
        if alone.outputs.next_tokens:
            assert one.outputs.next_tokens[0][0] == alone.outputs.next_tokens[0][0]


def test_a_list_gives_a_list_in_order_and_an_empty_list_none(minilm: LoadedModel) -> None:
    assert [one.text for one in trace(minilm, ["b b", "a", "c c c"])] == ["b b", "a", "c c c"]
    assert [one.text for one in trace(minilm, ["only"])] == ["only"]
    assert trace(minilm, []) == []


def test_a_large_batch_is_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tiny("llama")
    texts = ["the dog", SENTENCE, "a cat", "the cat sat", "it ran"]
    whole = trace(ours, texts)
    runs: list[int] = []
    original = tracing._run

    def counted(loaded: Any, requests: Any, encodings: Any, padding: Any) -> Any:
        longest = max(len(encoding.ids) for encoding in encodings)
        runs.append(len(encodings) * 3 * 6 * longest**2 * 4)
        return original(loaded, requests, encodings, padding)

    monkeypatch.setattr(tracing, "_run", counted)
    monkeypatch.setattr(tracing, "BATCH_BYTES", 3 * 6 * 14**2 * 4 * 2)
    parts = trace(ours, texts)
    assert len(runs) > 1
    assert max(runs) <= tracing.BATCH_BYTES
    for one, same in zip(parts, whole, strict=True):
        assert one.text == same.text
        np.testing.assert_allclose(one.weights, same.weights, atol=EXACT)


def test_a_pair_reaches_the_model_with_its_segments(minilm: LoadedModel) -> None:
    first, second = "How old are you?", "What is your age?"
    traced = trace(minilm, first, pair=second)
    inputs = minilm.tokenizer(first, second, return_tensors="pt")
    assert [token.id for token in traced.tokens] == inputs["input_ids"][0].tolist()
    assert [token.segment for token in traced.tokens] == inputs["token_type_ids"][0].tolist()
    eager = eager_copy(minilm)
    with torch.inference_mode():
        own = eager(**inputs, output_attentions=True)
        without = eager(input_ids=inputs["input_ids"], output_attentions=True)
    np.testing.assert_allclose(traced.weights, torch.stack(own.attentions)[:, 0], atol=EXACT)
    assert np.abs(traced.weights - torch.stack(without.attentions)[:, 0].numpy()).max() > 0.05
    assert traced.verify().ok


@pytest.mark.parametrize("padding", ["left", "right"])
def test_pairs_in_a_padded_batch_keep_their_segments(minilm: LoadedModel, padding: Any) -> None:
    for one in trace(minilm, ["Hi", "How old are you, old friend of mine?"], pair="What is your age?", padding=padding):
        alone = trace(minilm, one.text, pair="What is your age?")
        np.testing.assert_allclose(one.weights, alone.weights, atol=EXACT)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "modernbert"])
def test_a_pair_is_taken_by_every_encoder(name: str) -> None:
    traced = trace(tiny(name), "the cat sat", pair="a dog ran")
    assert [token.segment for token in traced.tokens] == [0] * 5 + [1] * 4


def test_padding_uses_the_number_the_model_knows() -> None:
    ours = tiny("roberta")
    ours.tokenizer.pad_token = None
    object.__setattr__(ours.model.config, "pad_token_id", 0)
    alone, padded = trace(ours, "the dog"), trace(ours, ["the dog", SENTENCE], padding="left")[0]
    np.testing.assert_allclose(padded.weights, alone.weights, atol=EXACT)


def test_a_row_that_may_look_at_nothing_is_marked() -> None:
    ours = tiny("llama")
    closed = torch.zeros(1, 1, 3, 3)
    closed[0, 0, 1] = torch.finfo(torch.float32).min

    def close(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"attention_mask": closed}

    handles = [
        layer.self_attn.register_forward_pre_hook(close, with_kwargs=True) for layer in ours.model.model.layers[1:]
    ]
    traced = trace(ours, "the cat sat")
    for handle in handles:
        handle.remove()
    assert traced.blank_rows(0).tolist() == [False] * 3
    assert traced.blank_rows(1).tolist() == traced.blank_rows(2).tolist() == [False, True, False]
    assert (traced.weights[1:, :, 1] == 0).all()
    assert np.isfinite(traced.weights).all()
    assert [check.ok for check in traced.checks] == [True] * 4
    assert traced.mask_of_layer == (0, 1, 1)


# --- text over the limit ---


def test_a_long_text_is_cut_with_a_notice(minilm: LoadedModel) -> None:
    traced = trace(minilm, "word " * 600)
    assert traced.weights.shape == (6, 12, 512, 512)
    assert len(traced.tokens) == 512
    assert traced.n_cut == 90
    assert "602" in traced.notice
    assert "512" in traced.notice
    cut = next(check for check in traced.checks if check.name == "Tokens cut")
    assert cut.ok is False
    assert cut.meaning == traced.notice


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "opt"])
def test_learned_positions_are_never_overrun(name: str) -> None:
    traced = trace(tiny(name), "cat " * 200)
    assert len(traced.tokens) == (63 if name == "roberta" else 64)
    assert np.isfinite(traced.weights).all()


# --- threads: nobody sees another's capture ---


def test_two_sessions_at_once_never_see_each_others_capture(
    minilm: LoadedModel, smollm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = threading.BoundedSemaphore(8)
    monkeypatch.setattr(kernel, "forward_slot", wide)
    jobs = [(minilm, HUNGRY, None), (minilm, "A bird sang.", None), (smollm, "The cat sat", START)]
    expected = [trace(loaded, text, start=start) for loaded, text, start in jobs]
    calls: list[int] = []
    counted = threading.Lock()
    original = kernel.grouped_scores

    def counting(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        with counted:
            calls.append(query.shape[2])
        return original(query, key)

    monkeypatch.setattr(kernel, "grouped_scores", counting)
    together = threading.Barrier(6)

    def session(number: int) -> None:
        loaded, text, start = jobs[number % 3]
        together.wait()
        for _ in range(4):
            traced = trace(loaded, text, start=start)
            np.testing.assert_array_equal(traced.weights, expected[number % 3].weights)
            assert traced.tokens == expected[number % 3].tokens

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(session, range(6)))
    # Six sessions, four traces each, every layer called exactly once per trace.
    assert len(calls) == 2 * 4 * (6 + 6 + 30)


def test_two_forwards_interleaved_layer_by_layer_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer of one forward waits for the same layer of the other: a shared recorder would mix them surely."""
    ours = tiny("llama")
    texts = ("the cat sat on the mat", "a dog ran away because")
    expected = [trace(ours, text) for text in texts]
    in_step = threading.Barrier(2, timeout=30)
    original = kernel.grouped_scores

    def stepping(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        in_step.wait()
        return original(query, key)

    monkeypatch.setattr(kernel, "forward_slot", threading.BoundedSemaphore(2))
    monkeypatch.setattr(kernel, "grouped_scores", stepping)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda text: trace(ours, text), texts))
    for one, alone in zip(both, expected, strict=True):
        np.testing.assert_array_equal(one.weights, alone.weights)
        np.testing.assert_array_equal(one.outputs.hidden, alone.outputs.hidden)


def test_a_what_if_in_one_thread_does_not_reach_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tiny("bert")
    what_ifs: tuple[Any, ...] = (None, ShareKV(1), MuteHeads(((0, 0), (1, 1))))
    expected = [trace(ours, SENTENCE, what_if=what_if) for what_if in what_ifs]
    in_step = threading.Barrier(3, timeout=30)
    original = kernel.grouped_scores

    def stepping(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        in_step.wait()
        return original(query, key)

    monkeypatch.setattr(kernel, "forward_slot", threading.BoundedSemaphore(3))
    monkeypatch.setattr(kernel, "grouped_scores", stepping)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda what_if: trace(ours, SENTENCE, what_if=what_if), what_ifs))
    for one, alone in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.weights, alone.weights)
    assert np.abs(found[0].weights - found[1].weights).max() > 0.1


def test_no_more_forwards_at_once_than_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tiny("llama")
    inside, most, lock = 0, 0, threading.Lock()
    original = tracing._forward

    def watched(*args: Any) -> Any:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        try:
            return original(*args)
        finally:
            with lock:
                inside -= 1

    monkeypatch.setattr(tracing, "_forward", watched)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: trace(ours, SENTENCE), range(36)))
    assert 1 <= most <= 2


# --- what a trace is ---


def test_a_trace_is_read_only_and_picklable(minilm: LoadedModel) -> None:
    traced = trace(minilm, HUNGRY, keep=("q", "v"), layer=3)
    arrays = [traced.weights, traced.masks, traced.outputs.hidden, traced.outputs.embedding]
    arrays += list(traced.kept.tensors.values())
    assert not any(array.flags.writeable for array in arrays)
    with pytest.raises(ValueError, match="read-only"):
        traced.weights[0, 0, 0, 0] = 1
    again = pickle.loads(pickle.dumps(traced))
    np.testing.assert_array_equal(again.weights, traced.weights)
    assert (again.tokens, again.request, again.layout) == (traced.tokens, traced.request, traced.layout)
    held = traced.weights.nbytes + traced.masks.nbytes + traced.outputs.hidden.nbytes
    assert traced.nbytes == held + sum(array.nbytes for array in traced.kept.tensors.values())


def test_a_trace_from_a_batch_does_not_hold_the_whole_batch() -> None:
    for one in trace(tiny("llama"), ["the dog", SENTENCE], keep=("q", "k", "v"), layer=0):
        assert one.kept is not None
        arrays = [one.weights, one.outputs.hidden, *one.kept.tensors.values()]
        assert all(array.flags.owndata for array in arrays)


def test_a_trace_holds_no_torch_and_its_card_is_json(minilm: LoadedModel) -> None:
    traced = trace(minilm, HUNGRY)
    assert b"torch" not in pickle.dumps(traced)
    facts = json.loads(json.dumps(facts_of(traced.model)))
    assert facts["layout"]["n_heads"] == 12
    assert facts["n_layers"] == 6
    assert facts["n_params"] == 22_713_216


def test_the_checks_tell_wrong_weights_apart(minilm: LoadedModel, smollm: LoadedModel) -> None:
    def verdicts(traced: AttentionTrace, change: Any) -> dict[str, bool | None]:
        weights = traced.weights.copy()
        change(weights)
        return {check.name: check.ok for check in self_checks(dataclasses.replace(traced, weights=weights))}

    traced = trace(smollm, CAT)
    assert set(verdicts(traced, lambda _: None).values()) == {True}
    assert verdicts(traced, lambda w: w.__setitem__((3, 2, 4, 1), w[3, 2, 4, 1] + 1e-3))["Row sums"] is False
    assert verdicts(traced, lambda w: w.__setitem__((3, 2, 4, 1), w[3, 2, 4, 1] - 1e-3))["Row sums"] is False
    assert verdicts(traced, lambda w: w.__setitem__((29, 8, 0, 5), 1e-7))["Mask leak"] is False
    broken = verdicts(traced, lambda w: w.__setitem__((7, 0, 3, 1), np.nan))
    assert broken["Finite"] is False
    assert broken["Row sums"] is False
    assert verdicts(trace(minilm, HUNGRY), lambda w: w.__setitem__((0, 0, 0, 5), 0.9))["Row sums"] is False


def test_sinks_may_lower_a_row_but_not_raise_it() -> None:
    traced = trace(tiny("gpt_oss"), SENTENCE)
    assert traced.checks[0].ok
    raised = dataclasses.replace(traced, weights=traced.weights + np.float32(0.5) * traced.masks[1])
    assert self_checks(raised)[0].ok is False


# --- requests ---


def test_the_request_travels_with_the_trace(smollm: LoadedModel) -> None:
    what_if = MuteHeads(((0, 0),))
    traced = trace(smollm, "Hi\r\nthere", start=START, keep=("q",), layer=4, what_if=what_if)
    wanted = TraceRequest(smollm.id, "Hi\nthere", None, START, ("q",), 4, (what_if,), revision=smollm.revision)
    assert traced.request == wanted
    assert traced.text == "Hi\nthere"
    assert traced.model == smollm.card


def test_a_model_may_be_named() -> None:
    assert trace("all-MiniLM-L6-v2", "Hi").model.id == "all-MiniLM-L6-v2"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"keep": ("q",)}, "one layer must be named"),
        ({"keep": ("w",), "layer": 0}, "'w' cannot be kept"),
        ({"layer": 6}, "no layer 6.*0 to 5"),
        ({"layer": -1}, "no layer -1"),
        ({"start": START}, "start token"),
        ({"start": "nonsense"}, "start token"),
        ({"pair": "  "}, "second sentence"),
    ],
)
def test_what_a_model_cannot_take_is_one_sentence(minilm: LoadedModel, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        trace(minilm, HUNGRY, **asked)


def test_a_tokenizer_of_another_model_is_told_apart() -> None:
    with pytest.raises(UserError, match=r"makes token number 2\d of .*numbers 0 to 19"):
        trace(tiny("llama", vocab_size=20), "the cat was a b c d")
