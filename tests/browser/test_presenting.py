"""Teaching from the app in Chromium: a class that follows its teacher, and the page on a projector."""

from __future__ import annotations

import http.client
import io
import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import zxingcpp
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from benchmarks.chromium import wait_until_drawn
from benchmarks.server import AppServer, start_app
from pages.learn.lesson_text import parts
from tests.browser.conftest import Watch
from tests.browser.looks import violations

LONGEST = 60_000  # milliseconds; six pages share the machine
SEATED = 5
DOGS = "The dog chased the cats because they ran."


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Expectations wait as long as a busy machine needs."""
    expect.set_options(timeout=LONGEST)
    yield
    expect.set_options(timeout=5_000)


class Runs:
    """How often a page has asked the server to run the script."""

    def __init__(self, page: Page) -> None:
        self.count = 0
        page.on("websocket", lambda socket: socket.on("framesent", self._hear))

    def _hear(self, payload: str | bytes) -> None:
        from streamlit.proto.BackMsg_pb2 import BackMsg

        if isinstance(payload, bytes) and BackMsg.FromString(payload).WhichOneof("type") == "rerun_script":
            self.count += 1


def sentence_box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Sentence", exact=True)


def opener(page: Page) -> Locator:
    return page.locator(".room .opener")


def pill(page: Page) -> Locator:
    return page.locator(".room .pill")


def said(page: Page) -> Locator:
    """What the menu tells, in words that are read aloud."""
    return page.locator(".room .pill [role=status]")


def selection(page: Page) -> list[str | None]:
    return [page.locator(".hs").get_attribute(f"data-{name}") for name in ("layer", "head", "query")]


def visit(page: Page, url: str) -> None:
    page.goto(url)
    # By its attribute: by role nothing is found of a page that is presented, and so hidden but for its slide.
    expect(page.locator("[role='tab']").first).to_be_attached(timeout=120_000)
    wait_until_drawn(page, 90)


def go_to(page: Page, section: str, title: str) -> None:
    page.get_by_test_id("stTopNavSection").filter(has_text=section).click()
    page.get_by_test_id("stTopNavDropdownLink").filter(has_text=re.compile(f"^{title}$")).click()


def scanned(picture: Locator) -> str:
    """What a decoder of another maker reads from a code as it stands on the screen."""
    codes = zxingcpp.read_barcodes(Image.open(io.BytesIO(picture.screenshot())))
    assert len(codes) == 1
    return str(codes[0].text)


def join(page: Page, code: str) -> None:
    opener(page).click()
    page.get_by_label("Room code").fill(code)
    page.get_by_role("button", name="Join").click()


class Lesson:
    """One teacher, five who follow, and how often each of their pages ran."""

    def __init__(self, url: str, visitor: Callable[..., Page]) -> None:
        self.url = url
        self.teacher, *self.students = (visitor() for _ in range(1 + SEATED))
        self.runs = [Runs(student) for student in self.students]

    def settled(self) -> list[int]:
        """The number of runs of each student since the last call, once all pages are at rest."""
        for page in [self.teacher, *self.students]:
            wait_until_drawn(page, 90)
        counts = [runs.count for runs in self.runs]
        for runs in self.runs:
            runs.count = 0
        return counts


# Chromium logs every answer that is not "OK"; these are a wrong code and a closed room.
EXPECTED = {
    "Failed to load resource: the server responded with a status of 404 (Not Found)",
    "Failed to load resource: the server responded with a status of 410 (Gone)",
}


def _everyone_joins(lesson: Lesson) -> str:
    visit(lesson.teacher, lesson.url)
    opener(lesson.teacher).click()
    lesson.teacher.get_by_role("button", name="Open a room").click()
    shown = lesson.teacher.locator(".room .code")
    expect(shown).to_have_text(re.compile(r"^[B-DF-HJ-NP-TV-XZ]{4}$"))
    code = shown.inner_text()
    picture = lesson.teacher.get_by_role("img", name="QR code of")
    expect(picture).to_have_attribute("src", re.compile("^data:image/svg"))
    assert scanned(picture) == f"{lesson.url}/?room={code}"
    first, *others = lesson.students
    first.goto(f"{lesson.url}/quiz", wait_until="commit")
    for student in others:
        student.goto(f"{lesson.url}/?room={code}", wait_until="commit")  # as the QR code says
    for student in others:
        expect(said(student)).to_have_text(f"You follow room {code}.")
        assert "room=" not in student.url
    wait_until_drawn(first, 90)
    join(first, code.lower())
    for student in lesson.students:  # the first led away from where it was
        expect(student).to_have_url(re.compile(r"^http://[^/]+/(\?.*)?$"))
        expect(student.locator(".hs h2")).to_be_visible()
    expect(opener(lesson.teacher)).to_have_text(f"Room {code} · {SEATED}")
    return code


def _viewer_state_costs_no_run(lesson: Lesson) -> None:
    lesson.settled()
    viewer = lesson.teacher.locator(".hs .hs-scroll").first
    viewer.focus()
    layer, head, query = (int(value or "") for value in selection(lesson.teacher))
    lesson.teacher.keyboard.press("ArrowRight")
    lesson.teacher.keyboard.press("ArrowUp")
    led = [str(layer), str(head + 1), str(query - 1)]
    _expect_selection(lesson.teacher, led)  # the viewer shows a key in its next frame
    for student in lesson.students:
        _expect_selection(student, led)
    lesson.teacher.get_by_role("button", name="Map", exact=True).click()
    for student in lesson.students:
        expect(student.get_by_role("button", name="Map", exact=True)).to_have_attribute("aria-pressed", "true")
    lesson.teacher.get_by_role("button", name="Arcs", exact=True).click()
    for student in lesson.students:  # back to what the address leaves out
        expect(student.get_by_role("button", name="Arcs", exact=True)).to_have_attribute("aria-pressed", "true")
    assert lesson.settled() == [0] * SEATED


def _expect_selection(student: Page, led: list[str | None]) -> None:
    for name, value in zip(("layer", "head", "query"), led, strict=True):
        expect(student.locator(".hs")).to_have_attribute(f"data-{name}", str(value))


def _a_sentence_and_a_page_cost_one_run_each(lesson: Lesson) -> None:
    _write(lesson.teacher, DOGS)
    for student in lesson.students:
        expect(sentence_box(student)).to_have_value(DOGS)
        expect(student.locator(".hs")).to_contain_text("chased")
    assert lesson.settled() == [1] * SEATED
    for student in lesson.students:
        _expect_selection(student, selection(lesson.teacher))

    free = lesson.students[0]
    sentence_box(free).focus()  # a letter that is typed is a letter
    free.keyboard.press("End")
    free.keyboard.type(" f")
    expect(sentence_box(free)).to_have_value(f"{DOGS} f")
    free.keyboard.press("Enter")
    expect(said(free)).to_contain_text("You look around by yourself.")
    pill(free).get_by_role("button", name="Back to the teacher").click()
    expect(sentence_box(free)).to_have_value(DOGS)

    lesson.settled()
    go_to(lesson.teacher, "Learn", "Quick check")
    for student in lesson.students:
        expect(student).to_have_url(re.compile(r"/quiz(\?|$)"))
    assert lesson.settled() == [1] * SEATED


def _write(page: Page, text: str) -> None:
    sentence_box(page).fill(text)
    sentence_box(page).press("Enter")


def _one_looks_around_and_comes_back(lesson: Lesson) -> None:
    free, *others = lesson.students
    free.get_by_role("tab", name="Class plan").click()
    expect(said(free)).to_contain_text("You look around by yourself.")
    paper = lesson.teacher.get_by_role("spinbutton", name="Paper number")
    paper.fill("7")
    paper.press("Enter")
    for student in others:
        expect(student.get_by_role("spinbutton", name="Paper number")).to_have_value("7")
    counts = lesson.settled()
    assert counts[1:] == [1] * (SEATED - 1)
    expect(free.get_by_role("tab", name="Class plan")).to_have_attribute("aria-selected", "true")
    free.locator("body").press("f")
    expect(free.get_by_role("heading", name="Paper 7:")).to_be_visible()
    expect(said(free)).not_to_contain_text("by yourself")
    assert lesson.settled()[0] == 1


def _a_wrong_code_is_told(lesson: Lesson, code: str) -> None:
    lost = lesson.students[1]
    opener(lost).click()
    lost.get_by_role("button", name="Leave room").click()
    expect(opener(lesson.teacher)).to_have_text(f"Room {code} · {SEATED - 1}")
    wrong = "BBBB" if code != "BBBB" else "CCCC"
    join(lost, wrong)
    expect(lost.locator(".room .notice")).to_have_text(
        f"There is no room {wrong}. Check the letters with your teacher."
    )
    lost.get_by_label("Room code").fill("hm")
    lost.get_by_role("button", name="Join").click()
    expect(lost.locator(".room .notice")).to_contain_text("A room code has 4 letters, for example KXTR.")
    lost.get_by_label("Room code").fill(code)
    lost.get_by_role("button", name="Join").click()
    expect(opener(lesson.teacher)).to_have_text(f"Room {code} · {SEATED}")


def _two_windows_lead_one_after_the_other(lesson: Lesson, code: str) -> Page:
    with lesson.teacher.expect_popup() as opened:
        lesson.teacher.evaluate("void window.open(location.href)")  # as "Duplicate tab" does: storage is copied
    second = opened.value
    expect(opener(second)).to_have_text(f"Room {code} · {SEATED}")
    expect(said(lesson.teacher)).to_contain_text("Another window leads this room now.")
    pill(lesson.teacher).get_by_role("button", name="Lead here").click()
    expect(opener(lesson.teacher)).to_have_text(f"Room {code} · {SEATED}")
    expect(said(second)).to_contain_text("Another window leads this room now.")
    # Somebody else's room is another room: nothing here changes.
    other = lesson.students[4]
    opener(other).click()
    other.get_by_role("button", name="Leave room").click()
    opener(other).click()
    other.get_by_role("button", name="Open a room").click()
    expect(other.locator(".room .code")).not_to_have_text(code)
    expect(opener(other)).to_have_text(re.compile(r"^Room [A-Z]{4} · 0$"))
    expect(opener(lesson.teacher)).to_have_text(f"Room {code} · {SEATED - 1}")
    return second


def _the_teacher_goes_and_comes_back(lesson: Lesson, second: Page) -> None:
    lesson.teacher.close()
    for student in lesson.students[:4]:
        expect(said(student)).to_contain_text("The teacher's page is gone. You stay where you are.")
        expect(student.get_by_role("heading", name="Paper 7:")).to_be_visible()
    pill(second).get_by_role("button", name="Lead here").click()
    for student in lesson.students[:4]:
        expect(said(student)).not_to_contain_text("gone")


def _the_room_is_closed(lesson: Lesson, second: Page, code: str) -> None:
    opener(second).click()
    second.get_by_role("button", name="Close room").click()
    for student in lesson.students[:4]:
        expect(said(student)).to_have_text(re.compile(f"^The teacher closed room {code}. You stay where you are.$"))
    join(lesson.students[0], code)
    expect(lesson.students[0].locator(".room .notice")).to_contain_text(f"The teacher closed room {code}.")


def test_who_follows_is_told_of_a_sentence_no_link_can_hold(visitor: Callable[..., Page], app_url: str) -> None:
    teacher, student = visitor(), visitor()
    visit(teacher, app_url)
    opener(teacher).click()
    teacher.get_by_role("button", name="Open a room").click()
    expect(teacher.locator(".room .code")).to_have_text(re.compile(r"^[A-Z]{4}$"))
    code = teacher.locator(".room .code").inner_text()
    student.goto(f"{app_url}/?room={code}")
    expect(said(student)).to_have_text(f"You follow room {code}.")
    _write(teacher, f"The dog{' ' * 1400}ran.")  # three letters of an address for each space, few tokens
    expect(said(student)).to_have_text(
        "The teacher's sentence is too long for a link. You see the same page with another sentence."
    )
    expect(said(teacher)).to_have_text("Your sentence is too long for a link. Those who follow see another sentence.")
    _write(teacher, DOGS)
    expect(said(student)).to_have_text(f"You follow room {code}.")
    expect(sentence_box(student)).to_have_value(DOGS)
    expect(said(teacher)).to_have_text("")


def test_the_server_ends_with_followers_connected() -> None:
    server = start_app()
    try:
        host = urlsplit(server.url).netloc
        opened = _ask(host, "open", {})
        code, token = opened["code"], opened["token"]
        following = http.client.HTTPConnection(host, timeout=30)
        following.request("POST", "/room/follow", json.dumps({"code": code}), JSON)
        heard = following.getresponse()
        _ask(host, "show", {"code": code, "state": "/quiz"}, token)
        begun = time.monotonic()
        assert server.stop(timeout=30) != -signal.SIGKILL
        assert time.monotonic() - begun < 8
        assert b"The server was stopped. You stay where you are." in heard.read()
    finally:
        server.stop()
        server.log_path.unlink(missing_ok=True)


JSON = {"content-type": "application/json"}


def _ask(host: str, name: str, facts: dict[str, str], token: str = "") -> dict[str, Any]:
    line = http.client.HTTPConnection(host, timeout=30)
    line.request("POST", f"/room/{name}", json.dumps(facts), {**JSON, "x-room-token": token})
    answer: dict[str, Any] = json.loads(line.getresponse().read())
    line.close()
    return answer


# ---------------------------------------------------------------------------------------------------------------------


def frame(page: Page) -> Locator:
    return page.locator(".hs-frame")


def slide_box(page: Page) -> dict[str, float]:
    return page.evaluate(
        """() => { const {left, top, right, bottom} = document.querySelector('[data-hs-now]').getBoundingClientRect();
        return {left, top, right, bottom, bar: document.querySelector('.hs-frame').getBoundingClientRect().top,
          scale: Number(getComputedStyle(document.body).getPropertyValue('--hs-slide-scale'))}; }"""
    )


def test_the_page_on_a_projector(page: Page, app_url: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    visit(page, app_url)
    sentence_box(page).focus()
    page.keyboard.press("End")
    page.keyboard.type("p")
    assert page.locator("body[data-hs-present]").count() == 0  # a letter that is typed is a letter
    page.keyboard.press("Backspace")
    page.locator(".hs h2").click()
    page.keyboard.press("p")
    expect(page).to_have_url(re.compile("present=true"))
    expect(frame(page)).to_contain_text("1 of 3")
    wait_until_drawn(page)

    # One figure, half as large again, and the pointer finds what it is over.
    for width, height, least in ((1920, 1080, 2.0), (1280, 720, 1.5)):
        page.set_viewport_size({"width": width, "height": height})
        wait_until_drawn(page)
        box = slide_box(page)
        assert box["scale"] >= least
        assert 0 <= box["left"] < box["right"] <= width
        assert 0 <= box["top"] < box["bottom"] <= box["bar"]
    assert page.locator("[data-hs-now]").count() == 1
    assert not sentence_box(page).is_visible()
    word = page.locator('.hs .hs-word[data-side="query"]').nth(4)
    word.hover()
    expect(page.locator(".hs h2")).to_contain_text("cats looks at")
    halo = page.locator(".hs-halo").bounding_box()
    over = word.bounding_box()
    assert halo is not None
    assert over is not None
    assert abs(halo["x"] - over["x"] - over["width"] / 2) < 2

    # The clicker turns the slides, the arrows stay with the figure.
    page.locator(".hs .hs-scroll").first.focus()
    before = selection(page)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".hs")).not_to_have_attribute("data-head", str(before[1]))
    layer = selection(page)[0]
    page.keyboard.press("PageDown")
    expect(frame(page)).to_contain_text("2 of 3")
    assert selection(page)[0] == layer
    page.mouse.move(640, 400)
    page.keyboard.press("PageDown")
    expect(frame(page)).to_contain_text("each row is a word that looks")
    wait_until_drawn(page)
    svg = page.locator("[data-hs-now] svg.main-svg").first.bounding_box()
    assert svg is not None
    assert svg["width"] == pytest.approx(1248, abs=2)  # all of the chart, and nothing but the chart
    assert violations(page) == []

    # Past the last figure comes the next page of the lesson, and back is where one was.
    page.keyboard.press("PageDown")
    expect(page).to_have_url(re.compile(r"/finder\?.*present=true"))
    page.keyboard.press("PageUp")
    expect(frame(page)).to_contain_text("3 of 3")
    assert parse_qs(urlsplit(page.url).query)["present"] == ["true"]

    page.keyboard.press("q")
    expect(page.locator(".hs-board img")).to_be_visible()
    expect(page.locator(".hs-board p")).not_to_contain_text("present")
    page.keyboard.press("q")
    page.keyboard.press("p")
    expect(page).not_to_have_url(re.compile("present"))
    expect(sentence_box(page)).to_be_visible()


def fits_above_the_frame(page: Page) -> bool:
    """All of the slide is in sight: nothing of it lies behind the frame or has to be scrolled to."""
    return bool(
        page.evaluate(
            """() => { const now = document.querySelector('[data-hs-now]'), box = now.getBoundingClientRect();
            return box.bottom <= document.querySelector('.hs-frame').getBoundingClientRect().top && box.top >= 0
              && box.right <= innerWidth && now.scrollHeight <= now.clientHeight + 1; }"""
        )
    )


def test_a_clicker_goes_through_ladder_lesson_and_paper(page: Page, app_url: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    visit(page, f"{app_url}/ladder?present=true")
    headline, count = page.locator(".hs-title"), page.locator(".hs-count")

    # The board is four slides that fit, and the maps answer to what the pointer is over.
    expect(headline).to_have_text("Averaging the heads of a finished model breaks it.")
    for number, part in enumerate((".hsl-chart", ".hsl-groups", ".hsl-fates", ".hsl-maps"), 1):
        expect(count).to_have_text(f"{number} of 5")
        expect(page.locator(part)).to_be_visible()
        assert fits_above_the_frame(page)
        if number < 4:
            page.keyboard.press("PageDown")
    wait_until_drawn(page)  # the map may still be growing into its slide
    box = page.locator(".hsl-maps canvas").nth(1).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] - box["width"] * 0.1, steps=4)
    expect(page.locator(".hsl-maps")).to_have_attribute("data-cell", "4,1")  # the last of five words, the second
    page.keyboard.press("PageDown")
    expect(count).to_have_text("5 of 5")

    # The lesson part by part, its sentence over the figure.
    page.keyboard.press("PageDown")
    expect(headline).to_have_text(parts()[0].title)
    expect(page.locator(".hs-saying")).to_contain_text("one weighted blend of values")
    page.goto(f"{app_url}/lesson?n_part=6&present=true")
    for key, number, shown in (
        ("", 6, "1 of 2"),
        ("PageDown", 6, "2 of 2"),
        ("PageDown", 7, "1 of 1"),
        ("PageUp", 6, "2 of 2"),
        ("PageDown", 7, "1 of 1"),
        ("PageDown", 8, "1 of 1"),
        ("PageDown", 9, "1 of 1"),
    ):
        if key:
            page.keyboard.press(key)
        expect(headline).to_have_text(parts()[number - 1].title)
        expect(count).to_have_text(shown)
        expect(page.locator("[data-hs-now]")).to_have_count(1)
    assert fits_above_the_frame(page)

    # Past the last part comes the paper: what is asked is the slide. Back is the last part again.
    page.keyboard.press("PageDown")
    expect(page.locator("[data-hs-now] h2")).to_contain_text("Paper 1:")
    page.keyboard.press("PageUp")
    expect(headline).to_have_text(parts()[-1].title)
    assert parse_qs(urlsplit(page.url).query)["n_part"] == [str(len(parts()))]
    page.keyboard.press("PageDown")
    expect(page.locator("[data-hs-now] h2")).to_contain_text("Paper 1:")
    page.keyboard.press("PageDown")
    expect(page.locator("[data-hs-now] .hs-q-kind")).to_contain_text("Question 1 of 12")
    expect(page.locator("[data-hs-now]").get_by_role("radio").first).to_be_visible()
    first = page.locator("[data-hs-now] h2").inner_text()
    page.keyboard.press("PageDown")
    expect(page.locator("[data-hs-now] .hs-q-kind")).to_contain_text("Question 2 of 12")
    page.keyboard.press("PageUp")
    expect(page.locator("[data-hs-now] h2")).to_have_text(first)


def test_a_slide_of_the_plan_is_shown_exactly_whatever_was_done_to_the_page(page: Page, app_url: str) -> None:
    visit(page, f"{app_url}/quiz?q_tab=Class+plan")
    here = page.get_by_role("listitem").filter(has_text="Which word does each head look at?").get_by_text("Show here")
    slide = {"v.layer": ["1"], "v.head": ["3"], "v.query": ["6"]}
    here.click()
    expect(page.locator(".hs")).to_have_attribute("data-head", "3")
    assert parse_qs(urlsplit(page.url).query) == slide
    page.locator(".hs .hs-scroll").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".hs")).to_have_attribute("data-head", "4")
    _write(page, DOGS)
    expect(page.locator(".hs")).to_contain_text("chased")

    # The browser's Back keeps what was written where the bar is the same.
    go_to(page, "See", "Head finder")
    expect(page).to_have_url(re.compile(r"/finder\?text="))
    page.go_back()
    expect(page).to_have_url(re.compile(r"/\?text="))
    expect(sentence_box(page)).to_have_value(DOGS)

    go_to(page, "Learn", "Quick check")
    page.get_by_role("tab", name="Class plan").click()
    here.click()
    expect(sentence_box(page)).to_have_value("Alice fed the cats because they were hungry.")
    for name, value in (("layer", "1"), ("head", "3"), ("query", "6")):
        expect(page.locator(".hs")).to_have_attribute(f"data-{name}", value)
    assert parse_qs(urlsplit(page.url).query) == slide


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_scanner_reads_the_link_of_the_page_and_of_the_room(
    visitor: Callable[..., Page], app_url: str, theme: str
) -> None:
    page = visitor(color_scheme=theme)
    visit(page, f"{app_url}/quiz?q_seed=7&present=true")
    expect(frame(page)).to_contain_text("Quick check")
    page.keyboard.press("q")
    board = page.locator(".hs-board")
    expect(board.locator("img")).to_be_visible()
    assert scanned(board.locator("img")) == f"{app_url}/quiz?q_seed=7" == board.locator("p").inner_text()
    page.keyboard.press("q")
    page.keyboard.press("p")
    opener(page).click()
    page.get_by_role("button", name="Open a room").click()
    picture = page.locator(".room .qr")
    expect(picture).to_have_attribute("src", re.compile("^data:image/svg"))
    assert scanned(picture) == f"{app_url}/?room={page.locator('.room .code').inner_text()}"
    page.get_by_role("button", name="Close room").click()


def test_a_chart_fills_its_slide_and_knows_where_the_pointer_is(page: Page, app_url: str) -> None:
    for place in ("lesson?n_part=7&present=true", "cache?present=true"):
        page.set_viewport_size({"width": 1920, "height": 1080})
        page.goto(f"{app_url}/{place}")
        for width, height in ((1920, 1080), (1280, 720)):
            page.set_viewport_size({"width": width, "height": height})
            wait_until_drawn(page)
            drawing = page.locator("[data-hs-now] .main-svg").first
            expect(drawing).to_be_visible(timeout=LONGEST)
            page.wait_for_function(
                """([wide]) => Math.abs(document.querySelector("[data-hs-now] .main-svg").getBoundingClientRect().width
                - wide) < wide / 50""",
                arg=[width - 32],
                timeout=LONGEST,
            )
            box = drawing.bounding_box()
            assert box is not None
            assert 0.6 * height < box["height"] < height
            if place.startswith("cache"):
                _point_at_the_second_bar(page)


def _point_at_the_second_bar(page: Page) -> None:
    bar = page.locator("[data-hs-now] .barlayer .point path").nth(1).bounding_box()
    assert bar is not None
    page.mouse.move(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2, steps=3)
    expect(page.locator("[data-hs-now] .hoverlayer")).to_have_text("16 GiB", timeout=LONGEST)
    page.mouse.move(0, 0)


def test_a_presented_page_reloads_presented_and_prints_whole(page: Page, app_url: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    visit(page, f"{app_url}/cache?present=true")
    expect(frame(page)).to_contain_text("KV cache")
    page.emulate_media(media="print")
    shown = page.evaluate(
        """() => ['[data-testid=stHeader]', '.hs-frame', '.room', '[data-testid=stPlotlyChart]'].map((name) => {
        const shadow = document.querySelector('.st-key-room [data-testid=stBidiComponentIsolated]').shadowRoot;
        const node = document.querySelector(name) ?? shadow.querySelector(name);
        return node.checkVisibility({visibilityProperty: true}); })"""
    )
    assert shown == [False, False, False, True]
    main = page.evaluate("getComputedStyle(document.querySelector('[data-testid=stMain]')).overflow")
    assert main == "visible"  # all of the page reaches the paper, not a screenful


def test_the_menu_is_for_everyone(page: Page, app_url: str) -> None:
    visit(page, f"{app_url}/cache")
    opener(page).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Open a room")).to_be_visible()
    assert violations(page, {"include": [[".st-key-room"]]}) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Open a room")).not_to_be_visible()
    expect(opener(page)).to_be_focused()


# Last, because it needs six tabs: those that the tests before have warmed open a page in half the time.
def test_a_class_follows_its_teacher(visitor: Callable[..., Page], watch: Watch, app_server: AppServer) -> None:
    lesson = Lesson(app_server.url, visitor)
    code = _everyone_joins(lesson)
    _viewer_state_costs_no_run(lesson)
    _a_sentence_and_a_page_cost_one_run_each(lesson)
    _one_looks_around_and_comes_back(lesson)
    assert watch.faults() == []
    _a_wrong_code_is_told(lesson, code)
    second = _two_windows_lead_one_after_the_other(lesson, code)
    _the_teacher_goes_and_comes_back(lesson, second)
    _the_room_is_closed(lesson, second, code)
    assert watch.page_errors == []
    assert watch.foreign_requests == []
    assert {re.sub(r" http.*", "", line) for line in watch.console_errors} - EXPECTED == set()
    assert code not in app_server.log()
    watch.console_errors.clear()
