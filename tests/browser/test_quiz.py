"""Quick check in Chromium: a whole paper by keyboard alone, the files, axe in both themes, a phone."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from attention.quiz import Question, paper
from benchmarks.chromium import wait_until_drawn
from tests.browser.looks import MAIN, overflow, violations

PATIENCE = 60_000  # ms; two cores, many tests
SEED = 7


HEAD = next(place for place, asked in enumerate(paper(SEED).questions) if asked.form == "head")


def pick_third_map(page: Page) -> None:
    third = page.locator(".qm-map").nth(2)
    third.tap()
    expect(third).to_have_attribute("aria-pressed", "true", timeout=PATIENCE)
    page.get_by_role("button", name="Answer", exact=True).tap()


def opened(page: Page, url: str) -> None:
    page.goto(f"{url}/quiz?q_seed={SEED}")
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_visible(timeout=PATIENCE)


def press_until(page: Page, focused: Callable[[], bool], key: str = "Tab", most: int = 40) -> None:
    """Press a key until the focus is where it should be: no mouse, no jump by script."""
    for _ in range(most):
        if focused():
            return
        page.keyboard.press(key)
    raise AssertionError(f"not reached within {most} presses of {key}")


def has_focus(goal: Locator) -> bool:
    return bool(goal.evaluate("node => node.getRootNode().activeElement === node"))


def tab_to(page: Page, name: str) -> None:
    goal = page.get_by_role("button", name=name, exact=True)
    press_until(page, lambda: has_focus(goal))


def at(page: Page, place: int, state: str) -> None:
    """The question is there and has the focus: its text while open, its verdict once answered."""
    part = ".hs-q-text" if state == "open" else ".hs-q-verdict"
    expect(page.locator(f'{part}[data-at="{SEED} {place} {state}"]')).to_be_focused(timeout=PATIENCE)


def answer_by_keys(page: Page, asked: Question) -> None:
    """From the question's text, by Tab, arrows, letters and Enter."""
    keys = page.keyboard
    expect(page.get_by_role("button", name="Answer", exact=True)).to_be_visible(timeout=PATIENCE)
    if asked.form == "choose":
        radios = page.get_by_role("radio")
        expect(radios).to_have_count(len(asked.choices))
        press_until(page, lambda: page.evaluate("document.activeElement.type") == "radio")
        keys.press("Space")
        for _ in range(int(asked.answer)):  # type: ignore[arg-type]
            keys.press("ArrowDown")
        expect(radios.nth(int(asked.answer))).to_be_checked()  # type: ignore[arg-type]
    elif asked.form in ("number", "shape"):
        press_until(page, lambda: page.evaluate("document.activeElement.tagName") == "INPUT")
        keys.type(str(asked.answer))
        keys.press("Enter")
        return
    elif asked.form == "order":
        steps, here = page.locator(".st-key-q-steps").get_by_role("button"), -1
        for rank, place in enumerate(asked.answer, 1):  # type: ignore[arg-type]
            step, way = steps.nth(place), "Tab" if place > here else "Shift+Tab"
            press_until(page, lambda step=step: has_focus(step), way)  # type: ignore[misc]
            keys.press("Enter")
            expect(step).to_contain_text(f"{rank}. ", timeout=PATIENCE)
            here = place
    else:
        chosen = page.locator(".qm-map").nth(int(asked.answer))  # type: ignore[arg-type]
        press_until(page, lambda: has_focus(chosen))
        keys.press("Enter")
        expect(chosen).to_have_attribute("aria-pressed", "true", timeout=PATIENCE)
    tab_to(page, "Answer")
    keys.press("Enter")


def test_a_whole_paper_by_keyboard_alone_and_the_files(page: Page, app_url: str) -> None:
    opened(page, app_url)
    tab_to(page, "Start")
    page.keyboard.press("Enter")
    questions = paper(SEED).questions
    assert {one.form for one in questions} == {"choose", "number", "shape", "order", "head"}
    for place, asked in enumerate(questions):
        at(page, place, "open")
        if place in (0, 1, 2, 5):
            wait_until_drawn(page)
            assert violations(page, MAIN) == [], asked.id
        answer_by_keys(page, asked)
        at(page, place, "closed")
        expect(page.locator(".hs-q-verdict")).to_contain_text("✓ Right.")
        tab_to(page, "Finish" if place == len(questions) - 1 else "Next")
        page.keyboard.press("Enter")
    expect(page.locator(".hs-q-score")).to_be_focused(timeout=PATIENCE)
    expect(page.locator(".hs-q-score")).to_have_text("12 of 12 right")
    with page.expect_download() as told:
        tab_to(page, "Result as CSV")
        page.keyboard.press("Enter")
    rows = list(csv.reader(io.StringIO(Path(told.value.path()).read_text(encoding="utf-8"))))
    assert rows[1] == ["paper", "7", "", ""]
    assert rows[3] == ["right", "12", "", ""]
    with page.expect_download() as drawn:
        tab_to(page, "Result as picture")
        page.keyboard.press("Enter")
    assert Path(drawn.value.path()).read_bytes().startswith(b"\x89PNG")
    expect(page).to_have_url(f"{app_url}/quiz?q_seed=7")


def test_a_link_opens_beside_the_paper_which_waits(page: Page, app_url: str) -> None:
    opened(page, app_url)
    page.get_by_role("button", name="Start", exact=True).click()
    place = next(place for place, asked in enumerate(paper(SEED).questions) if asked.form == "shape")
    for here in range(place):
        at(page, here, "open")
        page.get_by_role("button", name="Next", exact=True).click()
    at(page, place, "open")
    page.get_by_label("Your answer, a shape").fill("1, 2, 3")
    page.keyboard.press("Enter")
    at(page, place, "closed")
    assert violations(page, MAIN) == []
    with page.context.expect_page() as opening:
        page.get_by_role("link", name=paper(SEED).questions[place].link.words).click()
    shapes = opening.value
    state = dict(paper(SEED).questions[place].link.state)
    expect(shapes.get_by_role("combobox", name="d_model")).to_have_value(state["s_width"], timeout=PATIENCE)
    expect(shapes.get_by_role("combobox", name="n_heads")).to_have_value(state["s_heads"])
    shapes.close()
    expect(page.locator(".hs-q-verdict")).to_contain_text("✗ Not right.")


def test_a_phone_reads_plan_maps_and_result(phone: Page, app_url: str) -> None:
    opened(phone, app_url)
    phone.get_by_role("tab", name="Class plan").tap()
    expect(phone.get_by_role("link", name="Shapes: skip the permute")).to_be_visible(timeout=PATIENCE)
    assert violations(phone, MAIN) == []
    assert overflow(phone) == []
    phone.get_by_role("tab", name="Questions").tap()
    phone.get_by_role("button", name="Start", exact=True).tap()
    for place, asked in enumerate(paper(SEED).questions):
        at(phone, place, "open")
        assert phone.locator(".hs-q-text").bounding_box()["y"] > 60  # type: ignore[index]  # not behind the header
        if place == HEAD:
            pick_third_map(phone)
            at(phone, place, "closed")
        assert overflow(phone) == [], asked.id
        phone.get_by_role("button", name="Finish" if place == 11 else "Next", exact=True).tap()
    expect(phone.locator(".hs-q-score")).to_be_visible(timeout=PATIENCE)
    assert violations(phone, MAIN) == []
    assert overflow(phone) == []


def test_axe_finds_nothing_in_the_dark(visitor: Callable[..., Page], app_url: str) -> None:
    page = visitor(phone=True, color_scheme="dark")
    opened(page, app_url)
    assert violations(page, MAIN) == []
    page.get_by_role("button", name="Start", exact=True).tap()
    for place in range(HEAD):
        at(page, place, "open")
        assert violations(page, MAIN) == []
        page.get_by_role("button", name="Next", exact=True).tap()
    pick_third_map(page)
    at(page, HEAD, "closed")
    assert violations(page, MAIN) == []
