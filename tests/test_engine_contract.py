"""One contract, two engines: the app's own, and the one Ray Serve serves, which also survives the death of a worker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest

from attention import Engine, LatentKV, MuteHeads, ShareKV, TraceRequest, UserError, trace
from attention.atlas import ScoresRequest, shipped_atlas
from attention.jobs import AbandonedError
from attention.links import rank_heads_for_link
from attention.models import LoadedModel
from attention.muting import CopyRequest, MuteRequest, muted_effect
from attention.reach import Reach
from attention.remote import RemoteEngine
from attention.rungs import SweepRequest, shipped_sweep
from benchmarks.engines import Served, served, stop

MINILM = "all-MiniLM-L6-v2"
HUNGRY = TraceRequest(MINILM, "Alice fed the cats because they were hungry.")
EXACT = 1e-5
WAIT = 60
SECRET = "xylophone"


class Refusing:
    """Stands where the app's own engine is: what the served one is asked must come from there."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was answered in this process")


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served(replicas=2) as running:
        yield running


@pytest.fixture(scope="module")
def clients(shared: Served) -> dict[str, Engine | RemoteEngine]:
    remote = RemoteEngine(shared.url, Refusing(), Reach())  # type: ignore[arg-type]
    return {"in-process": Engine(), "served": remote}


@pytest.fixture(params=["in-process", "served"])
def one(request: pytest.FixtureRequest, clients: dict[str, Engine | RemoteEngine]) -> Engine | RemoteEngine:
    return clients[request.param]


def state(shared: Served) -> dict[str, int]:
    found: dict[str, int] = json.loads(shared.get("/v1/state") or "{}")
    return found


def replicas(shared: Served) -> list[psutil.Process]:
    children = psutil.Process(shared.process.pid).children(recursive=True)
    return [child for child in children if "ServeReplica:headscope:engine" in " ".join(child.cmdline())]


# --- the contract ----------------------------------------------------------------------------------


def test_it_names_the_models(one: Engine | RemoteEngine) -> None:
    assert one.models()[:2] == (MINILM, "SmolLM2-135M-Instruct")


@pytest.mark.parametrize(
    "changes",
    [{}, {"pair": "Were they?"}, {"keep": ("q", "k"), "layer": 3}, {"what_if": (ShareKV(3), MuteHeads(((1, 2),)))}],
    ids=["plain", "pair", "kept", "what-if"],
)
def test_it_gives_what_trace_gives(one: Engine | RemoteEngine, minilm: LoadedModel, changes: dict[str, Any]) -> None:
    found, direct = one.trace(replace(HUNGRY, **changes)), trace(minilm, HUNGRY.text, **changes)
    assert found.request == direct.request
    assert (found.tokens, found.model, found.layout) == (direct.tokens, direct.model, direct.layout)
    assert [check.ok for check in found.checks] == [check.ok for check in direct.checks]
    np.testing.assert_allclose(found.weights, direct.weights, atol=EXACT, rtol=0)
    np.testing.assert_allclose(found.outputs.hidden, direct.outputs.hidden, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(found.masks, direct.masks)
    assert not found.weights.flags.writeable
    if direct.kept:
        assert found.kept is not None
        assert found.kept.tensors.keys() == direct.kept.tensors.keys()
        np.testing.assert_allclose(found.kept.tensors["q"], direct.kept.tensors["q"], atol=1e-4, rtol=0)
    assert one.trace(replace(HUNGRY, **changes)) is found


def test_it_verifies(one: Engine | RemoteEngine) -> None:
    check = one.verify(HUNGRY)
    assert check.ok is True
    assert 0 < check.value < 1e-4
    assert one.verify(replace(HUNGRY, what_if=(ShareKV(1),))).ok is None


def test_it_gives_the_shipped_atlas(one: Engine | RemoteEngine, minilm: LoadedModel) -> None:
    atlas, shipped = one.scores(ScoresRequest(MINILM)), shipped_atlas(MINILM, minilm.revision)
    assert shipped is not None
    assert atlas.rows == shipped.rows
    assert atlas.scores.names == shipped.scores.names
    for score in shipped.scores.scores:
        np.testing.assert_array_equal(atlas.scores[score.name].values, score.values)


def test_it_ranks_heads_for_a_link(one: Engine | RemoteEngine, minilm: LoadedModel) -> None:
    direct = rank_heads_for_link(minilm, HUNGRY.text, "they", "cats")
    found = one.link(HUNGRY, "they", "cats")
    assert [(link.layer, link.head) for link in found] == [(link.layer, link.head) for link in direct]
    assert found[0].weight == pytest.approx(direct[0].weight, abs=EXACT)


def test_it_mutes_heads(one: Engine | RemoteEngine, minilm: LoadedModel) -> None:
    others = ("Dogs eat.", "It rains.")
    found = one.muted(MuteRequest(MINILM, HUNGRY.text, ((2, 1), (0, 3)), others=others))
    direct = muted_effect(minilm, HUNGRY.text, ((0, 3), (2, 1)), others=others)
    assert found.heads == direct.heads
    assert found.similarity == pytest.approx(direct.similarity, abs=EXACT)
    assert [one.after for one in found.similarities] == pytest.approx(
        [one.after for one in direct.similarities], abs=EXACT
    )


def test_it_gives_the_shipped_sweep_also_as_a_job(one: Engine | RemoteEngine) -> None:
    points = shipped_sweep(MINILM)[:5]
    asked = SweepRequest(MINILM, tuple(point.what_if for point in points))
    assert one.sweep(asked) == points
    with one.sweep_job(asked) as job:
        assert job.done.wait(WAIT)
    assert (job.result, job.error) == (points, None)


@pytest.mark.parametrize(
    ("door", "asked"),
    [
        ("trace", (TraceRequest(MINILM, " \n "),)),
        ("trace", (TraceRequest(MINILM, "word " * 4_001),)),
        ("trace", (TraceRequest(MINILM, "Hi", layer=99),)),
        ("trace", (TraceRequest(MINILM, "Hi", start="<|im_start|>"),)),
        ("trace", (TraceRequest(f"../../{SECRET}", "Hi"),)),
        ("verify", (TraceRequest(MINILM, "Hi", what_if=(ShareKV(5),)),)),
        ("link", (HUNGRY, f"<b>{SECRET}</b>", "cats")),
        ("muted", (MuteRequest(MINILM, "Hi", ((6, 0),)),)),
        ("copied", (CopyRequest(MINILM),)),
        ("sweep", (SweepRequest(MINILM, (LatentKV(10**9),)),)),
    ],
)
def test_mistakes_are_told_in_the_same_words(
    clients: dict[str, Engine | RemoteEngine], door: str, asked: tuple[Any, ...]
) -> None:
    told = []
    for client in clients.values():
        with pytest.raises(UserError) as error:
            getattr(client, door)(*asked)
        told.append((error.value.wrong, error.value.allowed, error.value.next_step))
    assert told[0] == told[1]
    assert told[0][0]


def test_a_job_tells_how_far_it_is_and_stops_when_left(one: Engine | RemoteEngine, shared: Served) -> None:
    slow = SweepRequest(MINILM, tuple(LatentKV(rank) for rank in range(100, 768)))  # minutes, if it went on
    with one.sweep_job(slow) as job:
        deadline = time.monotonic() + WAIT
        while not 0 < job.share < 1:
            assert not job.done.wait(0.05)
            assert time.monotonic() < deadline
    assert job.done.wait(WAIT)
    assert isinstance(job.error, AbandonedError)
    workers = replicas(shared) if isinstance(one, RemoteEngine) else [psutil.Process()]
    resting = threading.Event()
    deadline = time.monotonic() + WAIT / 3
    while any(share_of_a_core(worker, resting) > 0.12 for worker in workers):
        assert time.monotonic() < deadline, "the work goes on"
    assert state(shared)["running"] == 0


def share_of_a_core(process: psutil.Process, resting: threading.Event) -> float:
    before, began = process.cpu_times(), time.monotonic()
    assert not resting.wait(1.5)  # long enough to see work that gets little of a busy machine
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began)


# --- what only the served one promises -------------------------------------------------------------


def test_equal_questions_of_many_apps_are_computed_once(shared: Served) -> None:
    before = state(shared)
    asked = replace(HUNGRY, text="Thirty apps ask this at once.")
    apps = [RemoteEngine(shared.url, Refusing(), Reach()) for _ in range(30)]  # type: ignore[arg-type]
    with ThreadPoolExecutor(30) as pool:
        found = list(pool.map(lambda app: app.trace(asked), apps))
    assert all(np.array_equal(traced.weights, found[0].weights) for traced in found)
    after = state(shared)
    assert (after["asked"] - before["asked"], after["computed"] - before["computed"]) == (30, 1)


def test_traces_that_run_together_equal_each_alone(
    clients: dict[str, Engine | RemoteEngine], minilm: LoadedModel
) -> None:
    texts = [f"Number {number} of {'very ' * (number % 3)}many sentences." for number in range(24)]
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda text: clients["served"].trace(TraceRequest(MINILM, text)), texts))
    for text, traced in zip(texts, found, strict=True):
        alone = trace(minilm, text)
        assert traced.tokens == alone.tokens
        np.testing.assert_allclose(traced.weights, alone.weights, atol=EXACT, rtol=0)


def test_it_listens_on_this_machine_only(shared: Served) -> None:
    family = [psutil.Process(shared.process.pid), *psutil.Process(shared.process.pid).children(recursive=True)]
    listening = [
        (process.name(), entry.laddr.ip, entry.laddr.port)
        for process in family
        for entry in process.net_connections("inet")
        if entry.status == psutil.CONN_LISTEN
    ]
    assert int(shared.url.rpartition(":")[2]) in {port for _, _, port in listening}
    assert [one for one in listening if one[1] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == []


def test_a_killed_worker_is_replaced_while_traces_run(
    clients: dict[str, Engine | RemoteEngine], shared: Served, minilm: LoadedModel
) -> None:
    requests = [TraceRequest(MINILM, f"{number} {SECRET} " + "word " * 400) for number in range(8)]
    before = state(shared)["asked_again"]
    with ThreadPoolExecutor(len(requests)) as pool:
        waiting = {pool.submit(clients["served"].trace, request): request for request in requests}
        next(as_completed(waiting))  # both replicas are at work now
        replicas(shared)[0].kill()
        found = {waiting[one].text: one.result(WAIT * 2) for one in as_completed(waiting)}
    assert state(shared)["asked_again"] > before
    for text in (requests[0].text, requests[-1].text):
        np.testing.assert_allclose(found[text].weights, trace(minilm, text).weights, atol=EXACT, rtol=0)
    assert len(found) == len(requests)


def test_no_word_that_was_asked_is_written_down(shared: Served) -> None:
    files = [path for path in shared.folder.rglob("*") if path.is_file()]
    written = {path: path.read_bytes() for path in files}
    assert sum(map(len, written.values())) > 10_000, "Ray's logs are where they were looked for"
    assert [path.name for path, words in written.items() if SECRET.encode() in words] == []


def test_it_ends_when_told_and_leaves_nothing(shared: Served) -> None:
    family = psutil.Process(shared.process.pid).children(recursive=True)
    assert stop(shared.process) == 0
    psutil.wait_procs(family, timeout=WAIT)
    assert [process for process in family if process.is_running()] == []
    assert list(shared.folder.glob("hsray*")) == []
    assert "Traceback" not in shared.log
