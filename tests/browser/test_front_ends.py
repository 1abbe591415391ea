"""Many visitors: who loses their process goes on at another in the same state; equal wishes are granted once."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import quote_plus, urlsplit

import pytest
from playwright.sync_api import Page, expect
from streamlit.proto.BackMsg_pb2 import BackMsg

from benchmarks.chromium import wait_until_drawn
from benchmarks.classroom import stampede, traces
from benchmarks.server import AppServer, free_port
from benchmarks.sessions import Growth, grown
from benchmarks.students import BROWSER, OPEN, Diary, Lesson, teach
from benchmarks.visitor import AppError, Visitor, later_files
from deploy.front_ends import COOKIE, FrontEnds, front_ends
from tests.browser.conftest import Watch

SENTENCE = "The dog chased the ball because it was red."
OTHER = "The keys to the cabinet are on the table."
Result = TypeVar("Result")
SLOW = 60_000
THINK = 0.3  # seconds; two who type this fast are as much work as a dozen students
# What Chromium says of a connection whose server was killed, and of asking for it again.
LOST = re.compile(r"_stcore/(stream|health|host-config)|ERR_CONNECTION|ERR_EMPTY_RESPONSE|WebSocket")


@pytest.fixture
def two() -> Iterator[FrontEnds]:
    with front_ends(2, free_port()) as ends:
        yield ends


class Crowd:
    """Two more visitors who type without a pause, in a thread of their own: Playwright has this one's event loop."""

    def __init__(self, url: str) -> None:
        self.visitors = [Visitor(url), Visitor(url)]
        self.errors: list[BaseException] = []
        self.ready, self.over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> Crowd:
        self._thread.start()
        assert self.ready.wait(SLOW / 1000)
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._thread.join()

    async def _all(self) -> None:
        for error in await asyncio.gather(*map(self._one, self.visitors), return_exceptions=True):
            if error is not None:
                self.errors.append(error)

    async def _one(self, visitor: Visitor) -> None:
        await visitor.open()
        turn = 0
        while not self.over.is_set():
            turn += 1
            await visitor.turn("text", f"Word number {turn} of this very sentence.")
            await asyncio.sleep(THINK)
            if all("viewer" in " ".join(other.widgets) for other in self.visitors):
                self.ready.set()
        await visitor.close()


def apart(work: Callable[[], Result]) -> Result:
    """In a thread of its own: Playwright has this one's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def process_of(page: Page) -> str:
    return next(str(cookie["value"]) for cookie in page.context.cookies() if cookie["name"] == COOKIE)


def test_a_page_whose_process_is_killed_goes_on_at_the_other_in_the_same_state(
    two: FrontEnds, page: Page, watch: Watch
) -> None:
    watch.own_hosts.add(urlsplit(two.url).netloc)
    page.goto(f"{two.url}/?text={quote_plus(SENTENCE)}&v.layer=2&v.head=5")
    wait_until_drawn(page, SLOW / 1000)
    page.locator(".hs-scroll[role=application]").first.focus()
    page.keyboard.press("Enter")
    locked = page.get_by_text("locked: L2 H5")
    expect(locked).to_be_visible(timeout=SLOW)
    before, address = process_of(page), page.url
    app = page.get_by_test_id("stApp")

    with Crowd(two.url) as crowd:
        cut_off = [visitor for visitor in crowd.visitors if visitor.cookies[COOKIE] == before]
        assert len({visitor.cookies[COOKIE] for visitor in crowd.visitors} | {before}) == 2  # both processes have work
        two.named(before).process.send_signal(signal.SIGKILL)
        expect(app).not_to_have_attribute("data-test-connection-state", "CONNECTED", timeout=SLOW)
        expect(app).to_have_attribute("data-test-connection-state", "CONNECTED", timeout=SLOW)
        wait_until_drawn(page, SLOW / 1000)

        assert process_of(page) != before
        assert page.url == address
        expect(locked).to_be_visible()
        box = page.get_by_label("Sentence", exact=True)
        expect(box).to_have_value(SENTENCE)
        # The other process answers for the state it has never seen: the page, the sentence and the head are its own.
        box.fill(OTHER)
        box.press("Enter")
        expect(page.locator(".hs-word", has_text="cabinet").first).to_be_visible(timeout=SLOW)
        expect(page.locator("section.hs").first).to_have_attribute("data-layer", "2")

    assert not crowd.errors
    assert all(visitor.reconnects >= 1 and visitor.cookies[COOKIE] != before for visitor in cut_off)
    watch.console_errors[:] = [line for line in watch.console_errors if not LOST.search(line)]


def test_a_visitor_without_a_browser_sends_what_chromium_sends(page: Page, app_url: str) -> None:
    """Sentence, lock, other page: the same messages but for the hashes of scripts both were told to cache."""
    sent: list[BackMsg] = []
    page.on("websocket", lambda stream: stream.on("framesent", lambda data: sent.append(BackMsg.FromString(data))))
    page.goto(app_url)
    wait_until_drawn(page, SLOW / 1000)
    box = page.get_by_label("Sentence", exact=True)
    box.fill(SENTENCE)
    box.press("Enter")
    expect(page.locator(".hs-word", has_text="chased").first).to_be_visible(timeout=SLOW)
    page.get_by_role("link", name="Next: Head finder").click()
    expect(page.get_by_role("heading", name="Link to heads").or_(page.get_by_text("Rank heads by"))).to_be_visible(
        timeout=SLOW
    )

    ours: list[BackMsg] = []

    class Noting(Visitor):
        async def _send(self, message: BackMsg) -> None:
            ours.append(message)
            await super()._send(message)

    async def same() -> None:
        visitor = Noting(app_url)
        await visitor.open()
        await visitor.turn("text", SENTENCE)
        await visitor.go("finder")
        await visitor.close()

    apart(lambda: asyncio.run(same()))
    runs = [message for message in sent if message.WhichOneof("type") == "rerun_script"]
    assert [told(message) for message in ours] == [told(message) for message in runs]


def told(message: BackMsg) -> dict[str, object]:
    run = message.rerun_script
    values = {state.id: state.SerializeToString() for state in run.widget_states.widgets}
    return {
        "query": run.query_string,
        "page": run.page_script_hash,
        "name": run.page_name,
        "fragment": run.fragment_id,
        "values": values,
        "cached": len(run.cached_message_hashes) > 0,
        "where": (run.context_info.locale, run.context_info.timezone, run.context_info.color_scheme),
    }


def test_equal_sentences_at_one_moment_cost_one_trace(app_server: AppServer) -> None:
    assert apart(lambda: stampede(app_server, visitors=10))[0] == 1
    assert apart(lambda: stampede(app_server, visitors=3))[0] == 0  # kept
    before = traces(app_server)
    assert apart(lambda: stampede(app_server, visitors=2, text="A text that nobody has typed before."))[0] == 1
    assert traces(app_server) == before + 1


def test_a_small_class_on_the_real_app_makes_no_errors(app_server: AppServer) -> None:
    async def held() -> tuple[Diary, Lesson]:
        lesson = Lesson(3, 4.0)
        return await teach(app_server.url, 3, lesson, ramp=0.1), lesson

    diary, lesson = apart(lambda: asyncio.run(held()))
    assert diary.errors == []
    assert len(diary.took[OPEN]) == 3
    assert diary.between(lesson.begin, lesson.end)[BROWSER]


def test_the_visitor_sees_a_page_as_it_is(app_server: AppServer) -> None:
    async def toured() -> None:
        visitor = Visitor(app_server.url)
        assert await visitor.fetch_files() > len(later_files()) > 10
        assert visitor.file_bytes > 5_000_000
        await visitor.open()
        assert "plotly_chart" in visitor.drawn
        await visitor.go("cache")
        assert visitor.widget("c_tokens").value == ("int_value", 8192)
        await visitor.turn("c_tokens", 4096)
        assert visitor.link() == "c_tokens=4096"
        with pytest.raises(AppError, match="no control 'text'"):
            visitor.widget("text")
        await visitor.close()
        growth = await grown(app_server.url, lambda: 1.0, visitors=1)
        assert growth == Growth((1.0, 1.0), 1.0)

    apart(lambda: asyncio.run(toured()))
