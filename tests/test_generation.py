"""Writing token by token: the same tokens, weights and bytes as transformers' own, in turns, and stopped cleanly."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attention import kernel, trace
from attention.errors import UserError
from attention.generation import (
    MAX_NEW_TOKENS,
    MOST_RECOMPUTED,
    RECORDED_PROMPT,
    RECORDED_TOKENS,
    Sampling,
    begin_run,
    generate,
    recompute_seconds,
    shares,
    spread_lengths,
)
from attention.kv_cache import KVCache
from attention.models import LoadedModel
from attention.turns import Turns
from attention.written import GenerationStep, Run, as_bytes, as_weights, from_json, shipped_recording, to_json
from tests.tiny_models import tiny, tiny_pair

ROOT = Path(__file__).parents[1]
PROMPT = "Alice fed the cats because they were hungry. The cats"
KIB = 2**10


@pytest.fixture(scope="module")
def start(smollm: LoadedModel) -> str | None:
    return smollm.default_start


@pytest.fixture(scope="module")
def steps(smollm: LoadedModel, start: str | None) -> list[GenerationStep]:
    return list(generate(smollm, PROMPT, start=start, max_new_tokens=10, head=(17, 4)))


@pytest.fixture(scope="module")
def prompt_ids(smollm: LoadedModel, start: str | None) -> list[int]:
    return list(begin_run(smollm, PROMPT, start=start).prompt_ids)


@pytest.fixture(scope="module")
def little() -> LoadedModel:
    """A random Llama with 2 layers, whose token takes a few milliseconds."""
    return tiny("llama")


def tiny_prompt(model: LoadedModel) -> str:
    return model.tokenizer.decode([6, 9, 11, 7], skip_special_tokens=True)


def uncached(model: Any, ids: list[int]) -> torch.Tensor:
    """Logits behind the last of ``ids``, nothing cached."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()


class TestAgainstTransformers:
    def test_greedy_writes_what_generate_writes(
        self, smollm: LoadedModel, steps: list[GenerationStep], prompt_ids: list[int]
    ) -> None:
        with torch.inference_mode():
            written = smollm.reference.generate(torch.tensor([prompt_ids]), max_new_tokens=10, do_sample=False)
        assert [step.id for step in steps] == written[0, len(prompt_ids) :].tolist()
        assert "".join(step.token for step in steps) == smollm.tokenizer.decode(written[0, len(prompt_ids) :])

    def test_the_cache_changes_no_probability(
        self, smollm: LoadedModel, steps: list[GenerationStep], prompt_ids: list[int]
    ) -> None:
        for number in (0, 1, 9):
            ids = prompt_ids + [step.id for step in steps[:number]]
            expected = uncached(smollm.reference, ids).log_softmax(dim=-1)
            step = steps[number]
            assert [one.id for one in step.alternatives] == expected.topk(5).indices.tolist()
            for one in step.alternatives:
                assert math.log(one.probability) == pytest.approx(float(expected[one.id]), abs=1e-4)
            assert step.probability == step.alternatives[0].probability
            assert (step.chance, step.alternatives[1].chance) == (1, 0)

    def test_the_rows_are_the_last_rows_of_a_full_pass(
        self, smollm: LoadedModel, steps: list[GenerationStep], prompt_ids: list[int], start: str | None
    ) -> None:
        traced = trace(smollm, PROMPT, start=start)
        assert steps[0].attention_row is not None
        np.testing.assert_allclose(steps[0].attention_row, traced.weights[17, 4, -1], atol=1e-5)
        np.testing.assert_allclose(as_weights(steps[0].row_bytes), traced.weights[:, :, -1], atol=0.005)
        recorder = kernel.Recorder(n_layers=smollm.n_layers)
        with torch.inference_mode(), kernel.recording(recorder):
            smollm.model(input_ids=torch.tensor([prompt_ids + [step.id for step in steps[:9]]]), use_cache=False)
        assert recorder.weights is not None
        full = recorder.weights[:, 0, :, -1].numpy()
        assert steps[9].attention_row is not None
        np.testing.assert_allclose(steps[9].attention_row, full[17, 4], atol=1e-5)
        np.testing.assert_allclose(steps[9].row(3, 8), full[3, 8], atol=0.005)
        np.testing.assert_allclose(as_weights(steps[9].row_bytes), full, atol=0.005)

    def test_rows_of_a_strange_model_equal_its_eager_attention(self) -> None:
        ours, eager = tiny_pair("llama")
        prompt = tiny_prompt(ours)
        ids = list(begin_run(ours, prompt).prompt_ids)
        for step in generate(ours, prompt, max_new_tokens=6, head=(1, 5)):
            with torch.inference_mode():
                output = eager(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False)
            assert step.attention_row is not None
            np.testing.assert_allclose(step.attention_row, output.attentions[1][0, 5, -1].numpy(), atol=1e-5)
            assert step.id == int(output.logits[0, -1].argmax())
            ids.append(step.id)

    def test_it_ends_where_the_model_ends(self, smollm: LoadedModel, start: str | None) -> None:
        written = list(generate(smollm, "The recipe needs flour, sugar and", start=start, max_new_tokens=40))
        assert len(written) < 40
        assert [step.ends for step in written] == [False] * (len(written) - 1) + [True]
        assert written[-1].token == "<|im_end|>"


class TestBytes:
    def test_measured_bytes_are_the_formula_at_every_step(
        self, steps: list[GenerationStep], prompt_ids: list[int]
    ) -> None:
        assert len(prompt_ids) == 12
        for number, step in enumerate(steps):
            assert step.n_cached == 12 + number
            assert step.cache_bytes == step.formula_bytes == step.n_cached * 45 * KIB
            assert step.formula_bytes_16bit * 2 == step.cache_bytes
            assert step.cache_bytes_per_layer == (step.n_cached * 1536,) * 30

    def test_measured_means_measured(self, monkeypatch: pytest.MonkeyPatch, little: LoadedModel) -> None:
        prompt = tiny_prompt(little)
        honest = next(generate(little, prompt)).cache_bytes
        assert honest > 0
        monkeypatch.setattr(KVCache, "bytes", lambda *_: -1)
        step = next(generate(little, prompt))
        assert (step.cache_bytes, step.formula_bytes) == (honest, -1)

    def test_a_window_drops_the_oldest_tokens_from_the_cache_and_from_the_rows(self) -> None:
        model = tiny("mistral", sliding_window=4)
        written = list(generate(model, tiny_prompt(model), max_new_tokens=6, head=(0, 0)))
        per_token = KVCache.from_config(model.model.config).bytes_per_token("fp32")
        for step in written[1:]:
            assert step.cache_bytes == 3 * per_token  # the dynamic cache holds a window less one
            row = step.attention_row
            assert row is not None
            assert row.shape == (step.n_cached,)
            assert not row[:-4].any()
            assert row.sum() == pytest.approx(1, abs=1e-5)


class TestSampling:
    def test_draws_follow_the_softmax_at_the_temperature_among_the_top_k(self, little: LoadedModel) -> None:
        prompt = tiny_prompt(little)
        logits = uncached(little.model, list(begin_run(little, prompt).prompt_ids)).numpy()
        top = np.argsort(-logits)[:4]
        weights = np.exp((logits[top] - logits[top].max()) / 1.7)
        expected = weights / weights.sum()
        n = 600
        counts = dict.fromkeys(top.tolist(), 0)
        for seed in range(n):
            step = next(generate(little, prompt, max_new_tokens=1, temperature=1.7, top_k=4, seed=seed))
            counts[step.id] += 1  # a KeyError here: drawn outside the top 4
            assert step.chance == pytest.approx(expected[top.tolist().index(step.id)], abs=1e-5)
        observed = np.array(list(counts.values()))
        chi_square = ((observed - n * expected) ** 2 / (n * expected)).sum()
        assert chi_square < 16.27  # 3 degrees of freedom, p = 0.001
        assert (observed > 0).sum() >= 2

    def test_equal_seeds_write_equal_texts_and_others_do_not(self, little: LoadedModel) -> None:
        def text(seed: int) -> list[int]:
            how = {"max_new_tokens": 8, "temperature": 3.0, "seed": seed}
            return [step.id for step in generate(little, tiny_prompt(little), **how)]

        assert text(5) == text(5)
        assert len({tuple(text(seed)) for seed in range(4)}) > 1

    @pytest.mark.parametrize("how", [{"temperature": 1e-9}, {"temperature": 2.0, "top_k": 1}])
    def test_the_edges_of_drawing_are_greedy(self, little: LoadedModel, how: dict[str, Any]) -> None:
        prompt = tiny_prompt(little)
        greedy = [step.id for step in generate(little, prompt, max_new_tokens=6)]
        assert [step.id for step in generate(little, prompt, max_new_tokens=6, seed=3, **how)] == greedy

    @given(
        arrays(np.float32, 9, elements=st.floats(-80, 80, width=32), unique=True),
        st.floats(1e-12, 5),
        st.integers(1, 9),
    )
    def test_shares_add_up_and_keep_only_the_top_k(self, logits: np.ndarray, temperature: float, top_k: int) -> None:
        found = shares(torch.from_numpy(logits), Sampling(temperature, top_k)).numpy()
        assert found.sum() == pytest.approx(1, abs=1e-9)
        kept = np.argsort(-logits, kind="stable")[:top_k]
        assert not np.delete(found, kept).any()
        assert (np.diff(found[kept]) <= 0).all()


class TestMistakes:
    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"temperature": -0.1}, "temperature is -0.1"),
            ({"temperature": math.nan}, "temperature is nan"),
            ({"temperature": math.inf}, "temperature is inf"),
            ({"temperature": 5.1}, "0 (always the likeliest token) to 5"),
            ({"temperature": "1"}, "temperature is '1'"),
            ({"temperature": True}, "temperature is True"),
            ({"top_k": 0}, "Top-k is 0"),
            ({"top_k": 49_153}, "1 to 49,152"),
            ({"top_k": 2.5}, "Top-k is 2.5"),
            ({"seed": -1}, "seed is -1"),
            ({"seed": 1.5}, "seed is 1.5"),
            ({"max_new_tokens": 0}, "0 new tokens"),
            ({"max_new_tokens": MAX_NEW_TOKENS + 1}, f"1 to {MAX_NEW_TOKENS} can be written"),
            ({"max_new_tokens": 2.0}, "2.0 new tokens"),
            ({"head": (30, 0)}, "There is no layer 30, head 0"),
            ({"head": (0, 9)}, "heads 0 to 8"),
            ({"head": (-1, 0)}, "There is no layer -1"),
            ({"start": "<s>"}, "<s>"),
            ({"prompt": " \n"}, "only spaces"),
            ({"prompt": "word " * 600}, "Shorten the prompt"),
        ],
    )
    def test_each_is_one_sentence_before_anything_is_computed(
        self, smollm: LoadedModel, changed: dict[str, Any], words: str
    ) -> None:
        how = {"prompt": PROMPT} | changed
        with pytest.raises(UserError) as caught:
            generate(smollm, how.pop("prompt"), **how)  # not iterated
        assert words in str(caught.value)

    def test_an_encoder_cannot_write(self, minilm: LoadedModel) -> None:
        with pytest.raises(UserError, match="both directions"):
            generate(minilm, PROMPT)

    def test_a_prompt_may_fill_the_room_exactly(self, smollm: LoadedModel) -> None:
        assert len(begin_run(smollm, "word" + " word" * 495, max_new_tokens=16).prompt_ids) == 496
        with pytest.raises(UserError, match="497 tokens and 16 more"):
            begin_run(smollm, "word" + " word" * 496, max_new_tokens=16)


class TestTurns:
    def test_slots_are_handed_on_in_the_order_of_asking(self) -> None:
        turns = Turns(2)
        tickets = [turns.join() for _ in range(5)]
        assert [ticket.wait(0) for ticket in tickets] == [True, True, False, False, False]
        assert [ticket.ahead for ticket in tickets] == [0, 0, 0, 1, 2]
        tickets[1].leave()
        assert [ticket.wait(0) for ticket in tickets[2:]] == [True, False, False]
        late = turns.join()
        tickets[3].leave()  # gives up while waiting
        tickets[0].leave()
        assert (tickets[3].wait(0), tickets[4].wait(0), late.wait(0)) == (False, True, False)
        assert (late.ahead, turns.busy) == (0, 2)
        for ticket in [*tickets, late, *tickets]:  # leaving twice gives nothing back twice
            ticket.leave()
        assert turns.busy == 0
        assert [turns.join().wait(0) for _ in range(3)] == [True, True, False]

    def test_a_second_user_waits_at_most_one_token(self, monkeypatch: pytest.MonkeyPatch, little: LoadedModel) -> None:
        turns = Turns(1)
        monkeypatch.setattr(kernel, "forward_slot", turns)
        written: list[int] = []
        began = threading.Event()

        def write() -> None:
            for step in generate(little, tiny_prompt(little), max_new_tokens=MAX_NEW_TOKENS - 60, temperature=1.0):
                written.append(step.id)
                began.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert began.wait(60)
        for _ in range(5):
            ticket = turns.join()
            before = len(written)
            assert ticket.wait(60)
            assert len(written) - before <= 1
            ticket.leave()
        writer.join()
        assert turns.busy == 0

    def test_between_two_tokens_nothing_is_held_and_closing_stops(self, little: LoadedModel) -> None:
        running = generate(little, tiny_prompt(little), max_new_tokens=20)
        next(running)
        assert isinstance(kernel.forward_slot, Turns)
        assert kernel.forward_slot.busy == 0
        running.close()
        assert list(running) == []

    def test_a_forward_that_fails_gives_its_turn_back(
        self, monkeypatch: pytest.MonkeyPatch, little: LoadedModel
    ) -> None:
        turns = Turns(1)
        monkeypatch.setattr(kernel, "forward_slot", turns)
        monkeypatch.setattr(kernel, "grouped_scores", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(generate(little, tiny_prompt(little)))
        assert turns.busy == 0


class TestWithoutTheCache:
    def test_every_length_is_read_whole(self, monkeypatch: pytest.MonkeyPatch, little: LoadedModel) -> None:
        seen: list[tuple[int, bool]] = []
        forward = little.model.forward

        def counted(input_ids: torch.Tensor, use_cache: bool, logits_to_keep: int) -> Any:
            seen.append((input_ids.shape[1], use_cache))
            return forward(input_ids=input_ids, use_cache=use_cache, logits_to_keep=logits_to_keep)

        monkeypatch.setattr(little.model, "forward", counted)
        timed = recompute_seconds(little, [5, 6, 7, 8, 9], (1, 3, 5))
        assert seen == [(1, False), (3, False), (5, False)]
        assert [length for length, _ in timed] == [1, 3, 5]
        assert all(seconds > 0 for _, seconds in timed)

    @pytest.mark.parametrize("lengths", [(0,), (6,), (1.5,), tuple(range(1, MOST_RECOMPUTED + 2))])
    def test_it_is_bounded(self, little: LoadedModel, lengths: tuple[int, ...]) -> None:
        with pytest.raises(UserError):
            recompute_seconds(little, [5] * 5, lengths)

    @given(st.integers(1, 600))
    def test_lengths_are_few_and_reach_the_end(self, n_tokens: int) -> None:
        lengths = spread_lengths(n_tokens)
        assert 1 <= len(lengths) <= MOST_RECOMPUTED
        assert lengths[-1] == n_tokens
        assert lengths[0] >= 1
        assert list(lengths) == sorted(set(lengths))


class TestRecording:
    def test_it_is_a_real_run(self, smollm: LoadedModel) -> None:
        recorded = shipped_recording()
        assert (recorded.prompt, len(recorded.steps), recorded.finished) == (RECORDED_PROMPT, RECORDED_TOKENS, True)
        live = begin_run(smollm, RECORDED_PROMPT, start=recorded.start)
        for name in ("prompt_ids", "prompt_labels", "prompt_tokens", "n_layers", "n_heads", "n_kv_heads", "working"):
            assert getattr(recorded, name) == getattr(live, name)
        again = generate(smollm, recorded.prompt, start=recorded.start, max_new_tokens=RECORDED_TOKENS)
        for kept, step in zip(recorded.steps, again, strict=True):
            same = ("token", "label", "id", "n_cached", "cache_bytes", "formula_bytes", "formula_bytes_16bit")
            assert [getattr(kept, name) for name in same] == [getattr(step, name) for name in same]
            assert kept.cache_bytes_per_layer == step.cache_bytes_per_layer
            assert kept.probability == pytest.approx(step.probability, abs=1e-4)
            assert [one.id for one in kept.alternatives] == [one.id for one in step.alternatives]
            np.testing.assert_allclose(kept.row_bytes.astype(int), step.row_bytes, atol=1)
        assert recorded.recomputed[-1][0] == recorded.steps[-1].n_cached
        # Why the cache exists: reading everything again takes longer than reading one token.
        assert recorded.recomputed[-1][1] > recorded.steps[-1].seconds_with_cache

    def test_json_and_back(self, smollm: LoadedModel, steps: list[GenerationStep], start: str | None) -> None:
        run = replace(
            begin_run(smollm, PROMPT, start=start, max_new_tokens=10), steps=tuple(steps), recomputed=((4, 0.5),)
        )
        back = from_json(to_json(run))
        assert back.finished
        assert (back.tokens, back.labels, back.ids, back.recomputed) == (
            run.tokens,
            run.labels,
            run.ids,
            run.recomputed,
        )
        for one, other in zip(back.steps, steps, strict=True):
            np.testing.assert_array_equal(one.row_bytes, other.row_bytes)
            assert (one.alternatives, one.seconds_with_cache) == (other.alternatives, other.seconds_with_cache)

    @pytest.mark.parametrize("broken", ["", "[]", "{}", "rows", "steps"])
    def test_anything_else_is_one_sentence(self, broken: str) -> None:
        text = broken
        if broken in ("rows", "steps"):
            facts = json.loads(to_json(shipped_recording()))
            facts["rows" if broken == "rows" else "title"] = facts.pop("rows" if broken == "rows" else "prompt")[:40]
            text = json.dumps(facts)
        with pytest.raises(UserError, match="not a recording"):
            from_json(text)

    @given(arrays(np.float32, (3, 5), elements=st.floats(0, 1, width=32)))
    def test_a_byte_keeps_a_weight_to_less_than_half_a_percent(self, weights: np.ndarray) -> None:
        assert np.abs(as_weights(as_bytes(weights)) - weights).max() <= 0.004

    def test_a_run_is_finished_when_written_out_or_ended(self) -> None:
        run: Run = shipped_recording()
        assert not replace(run, steps=run.steps[:5]).finished
        ended = (*run.steps[:4], replace(run.steps[4], ends=True))
        assert replace(run, steps=ended).finished

    def test_looking_at_it_loads_no_torch(self) -> None:
        code = (
            "import sys; from attention.written import shipped_recording; import attention.turns; "
            "import attention.plots.write_charts; shipped_recording(); print('torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "False"
