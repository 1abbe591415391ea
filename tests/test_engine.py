"""The engine's door: equal requests run once, keys never collide, memory is bounded, logs hold no text."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention import Engine, LatentKV, MuteHeads, ShareKV, TraceRequest, UserError, default_engine, engine, tracing
from attention.models import LoadedModel
from attention.single_flight import SingleFlight

MINILM = "all-MiniLM-L6-v2"
HUNGRY = TraceRequest(MINILM, "Alice fed the cats because they were hungry.")
WAIT = 30


def byte_flight(max_bytes: int) -> SingleFlight:
    return SingleFlight(max_bytes, len)


# --- one flight for equal requests ---


def test_thirty_equal_requests_compute_once() -> None:
    flight = byte_flight(1000)
    runs: list[int] = []
    asked = threading.Semaphore(0)
    finish = threading.Event()

    def compute() -> bytes:
        runs.append(1)
        assert finish.wait(WAIT)
        return b"result"

    def visitor(_: int) -> bytes:
        asked.release()
        return flight.get("key", compute)

    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(visitor, number) for number in range(30)]
        for _ in range(30):
            assert asked.acquire(timeout=WAIT)
        finish.set()
        results = [one.result(WAIT) for one in waiting]
    assert runs == [1]
    assert all(result is results[0] for result in results)
    assert flight.get("key", compute) is results[0]
    assert runs == [1]


def test_different_requests_do_not_wait_for_each_other() -> None:
    flight = byte_flight(1000)
    both_inside = threading.Barrier(2, timeout=WAIT)

    def compute() -> bytes:
        both_inside.wait()
        return b"x"

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda key: flight.get(key, compute), ["a", "b"])) == [b"x", b"x"]


@pytest.mark.parametrize("failure", [UserError("wrong", "allowed", "next"), MemoryError(), KeyboardInterrupt()])
def test_a_failure_is_told_to_all_and_not_kept(failure: BaseException) -> None:
    flight = byte_flight(1000)
    inside, finish = threading.Event(), threading.Event()

    def fail() -> bytes:
        inside.set()
        assert finish.wait(WAIT)
        raise failure

    def visitor() -> BaseException | None:
        try:
            flight.get("key", fail)
        except BaseException as error:
            return error
        return None

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(visitor)
        assert inside.wait(WAIT)
        others = [pool.submit(visitor) for _ in range(3)]
        finish.set()
        assert [one.result(WAIT) for one in (first, *others)] == [failure] * 4
    assert flight.get("key", lambda: b"now it works") == b"now it works"
    assert flight.nbytes == 12


# --- memory bounded by bytes, least recently used first ---


@given(asked=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 12)), max_size=60), most=st.integers(1, 30))
def test_what_is_kept_equals_a_plain_least_recently_used_list(asked: list[tuple[int, int]], most: int) -> None:
    flight = byte_flight(most)
    kept: OrderedDict[str, int] = OrderedDict()
    sizes: dict[int, int] = {}
    for number, first_size in asked:
        size = sizes.setdefault(number, first_size)
        key = str(number)
        computed: list[int] = []
        result = flight.get(key, lambda size=size, computed=computed: (computed.append(1), b"x" * size)[1])
        assert len(result) == size
        assert bool(computed) is (key not in kept)
        if key in kept:
            kept.move_to_end(key)
        elif size <= most:
            kept[key] = size
            while sum(kept.values()) > most:
                kept.popitem(last=False)
        assert flight.nbytes == sum(kept.values()) <= most


def test_the_engine_keeps_traces_up_to_its_megabytes(minilm: LoadedModel) -> None:
    one = Engine(trace_mb=1)
    first = one.trace(HUNGRY)
    assert one.trace(HUNGRY) is first
    long = replace(HUNGRY, text="cat " * 40)
    for number in range(3):
        one.trace(replace(long, text=f"{long.text} {number}"))
    assert one.trace(HUNGRY) is not first
    assert one._traces.nbytes <= 2**20


# --- keys ---

WHAT_IFS: list[Any] = [
    ShareKV(1),
    ShareKV(2),
    ShareKV(1, how="first"),
    ShareKV(1, layers=(0,)),
    ShareKV(1, layers=(0, 1)),
    LatentKV(1),
    LatentKV(1, split=(1, 1)),
    LatentKV(1, whiten=False),
    MuteHeads(()),
    MuteHeads(((0, 1),)),
    MuteHeads(((1, 0),)),
    MuteHeads(((0, 1), (1, 0))),
    MuteHeads(((0, 1),), how="mean"),
]
texts = st.text(st.characters(codec="utf-8"), max_size=8)
requests = st.builds(
    TraceRequest,
    model=st.sampled_from(["a", "b"]),
    text=texts,
    pair=st.none() | texts,
    start=st.none() | texts,
    keep=st.sampled_from([(), ("q",), ("k",), ("q", "k")]),
    layer=st.none() | st.integers(0, 2),
    what_if=st.lists(st.sampled_from(WHAT_IFS), max_size=2).map(tuple),
    revision=st.sampled_from(["", "r"]),
)


@given(one=requests, other=requests)
def test_keys_are_equal_exactly_when_requests_are(one: TraceRequest, other: TraceRequest) -> None:
    assert (one.key == other.key) is (one == other)
    assert one.key == replace(one).key
    assert one.key.isascii()


def test_every_what_if_has_a_key_of_its_own() -> None:
    assert len({replace(HUNGRY, what_if=(what_if,)).key for what_if in WHAT_IFS}) == len(WHAT_IFS)
    # Same field values, another class: what a key without class names would confuse.
    assert replace(HUNGRY, what_if=(ShareKV(1),)).key != replace(HUNGRY, what_if=(LatentKV(1),)).key
    both = (ShareKV(1), MuteHeads(((0, 0),)))
    assert replace(HUNGRY, what_if=both).key != replace(HUNGRY, what_if=both[::-1]).key


def test_every_field_of_a_request_is_in_its_key() -> None:
    changed: dict[str, Any] = {
        "model": "other",
        "text": "other",
        "pair": "other",
        "start": "other",
        "keep": ("q",),
        "layer": 0,
        "what_if": (ShareKV(1),),
        "revision": "other",
    }
    assert {field.name for field in fields(TraceRequest)} == set(changed)
    keys = {HUNGRY.key} | {replace(HUNGRY, **{name: value}).key for name, value in changed.items()}
    assert len(keys) == 1 + len(changed)


def test_a_key_is_the_same_in_every_process() -> None:
    request = TraceRequest("m", "é\n", keep=("q",), layer=2, what_if=(MuteHeads(((0, 1),)),))
    assert request.key == (
        '{"class":"TraceRequest","keep":["q"],"layer":2,"model":"m","pair":null,"revision":"","start":null,'
        '"text":"\\u00e9\\n","what_if":[{"class":"MuteHeads","heads":[[0,1]],"how":"zero"}]}'
    )
    assert json.loads(request.key)["text"] == "é\n"


# --- the engine itself ---


def counting_trace(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ran: list[str] = []
    original = tracing.trace

    def counted(loaded: Any, text: str, **options: Any) -> Any:
        ran.append(text)
        return original(loaded, text, **options)

    monkeypatch.setattr(engine, "trace", counted)
    return ran


def test_thirty_visitors_with_one_sentence_cost_one_forward(
    minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = counting_trace(monkeypatch)
    one = Engine()
    together = threading.Barrier(30, timeout=WAIT)

    def visitor(_: int) -> Any:
        together.wait()
        return one.trace(HUNGRY)

    with ThreadPoolExecutor(30) as pool:
        traces = list(pool.map(visitor, range(30)))
    assert ran == [HUNGRY.text]
    assert all(traced is traces[0] for traced in traces)


def test_the_engine_gives_what_trace_gives(smollm: LoadedModel) -> None:
    request = TraceRequest(
        smollm.id, "The cat", start="<|im_start|>", keep=("k",), layer=3, what_if=(MuteHeads(((2, 1),)),)
    )
    through, direct = (
        Engine().trace(request),
        tracing.trace(smollm, "The cat", start="<|im_start|>", keep=("k",), layer=3, what_if=MuteHeads(((2, 1),))),
    )
    assert through.request == direct.request
    assert through.request.revision == smollm.revision
    np.testing.assert_array_equal(through.weights, direct.weights)
    np.testing.assert_array_equal(through.kept.tensors["k"], direct.kept.tensors["k"])
    assert pickle.loads(pickle.dumps(through)).tokens == direct.tokens


def test_new_weights_under_an_old_name_are_a_new_trace(minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = counting_trace(monkeypatch)
    one = Engine()
    first = one.trace(HUNGRY)
    monkeypatch.setattr(engine, "load_model", lambda _: replace(minilm, revision="retrained"))
    second = one.trace(HUNGRY)
    assert (first.request.revision, second.request.revision) == (minilm.revision, "retrained")
    assert len(ran) == 2


def test_a_pair_goes_through_the_engine(minilm: LoadedModel) -> None:
    traced = Engine().trace(TraceRequest(MINILM, "How old?", pair="Ten years."))
    assert {token.segment for token in traced.tokens} == {0, 1}


def test_different_what_ifs_are_different_results(minilm: LoadedModel) -> None:
    one = Engine()
    results = [one.trace(replace(HUNGRY, what_if=w)) for w in ((), (ShareKV(1),), (MuteHeads(((0, 0),)),))]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert np.abs(results[a].outputs.hidden - results[b].outputs.hidden).max() > 1e-3


def test_a_mistake_reaches_every_visitor_and_is_not_remembered(minilm: LoadedModel) -> None:
    one = Engine()
    for _ in range(2):
        with pytest.raises(UserError, match="empty"):
            one.trace(TraceRequest(MINILM, ""))
    with pytest.raises(UserError, match="no model 'nope'"):
        one.trace(TraceRequest("nope", "Hi"))
    assert one._traces.nbytes == 0
    assert not one._traces._running


def test_verify_runs_once_per_trace(minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Engine()
    runs: list[int] = []
    original = tracing.AttentionTrace.verify
    monkeypatch.setattr(tracing.AttentionTrace, "verify", lambda self: (runs.append(1), original(self))[1])
    first, second = one.verify(HUNGRY), one.verify(HUNGRY)
    assert first is second
    assert first.ok is True
    assert one.verify(replace(HUNGRY, what_if=(ShareKV(1),))).ok is None
    assert len(runs) == 2


def test_logs_hold_keys_never_text(minilm: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    secret, other = "My diary says xylophone", "and marzipan"
    with caplog.at_level(logging.DEBUG):
        Engine().trace(TraceRequest(MINILM, secret, pair=other))
        with pytest.raises(UserError):
            Engine().trace(TraceRequest(MINILM, secret + " again", layer=99))
    lines = [record.getMessage() for record in caplog.records if record.name == "headscope"]
    assert len(lines) == 1
    assert lines[0].startswith("trace ")
    everything = " ".join(record.getMessage() + repr(record.args) for record in caplog.records)
    assert not any(word in everything for word in ("xylophone", "diary", "marzipan"))


def test_the_default_engine_is_one() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len({id(one) for one in pool.map(lambda _: default_engine(), range(16))}) == 1
    assert default_engine().models()[:2] == (MINILM, "SmolLM2-135M-Instruct")
    assert default_engine().model(MINILM).n_layers == 6


def test_user_errors_survive_pickling() -> None:
    error = UserError(" wrong ", "allowed", "next")
    again = pickle.loads(pickle.dumps(error))
    assert (again.wrong, again.allowed, again.next_step, str(again)) == (
        "wrong",
        "allowed",
        "next",
        "wrong allowed next",
    )
    assert str(UserError("only wrong")) == "only wrong"
