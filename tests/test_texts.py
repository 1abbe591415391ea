"""The bundled texts: whole, unchanged, and nothing that is measured on was calibrated or trained on."""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from pathlib import Path

import pytest

from attention import UserError, texts
from attention.texts import bundled_text, bundled_texts, evaluation_texts

WINDOW = 40


def test_every_text_says_where_it_comes_from_and_is_what_its_hash_says() -> None:
    assert {text.role for text in bundled_texts()} == {"evaluation", "calibration", "training"}
    for text in bundled_texts():
        assert text.author
        assert text.licence
        assert text.source
        assert hashlib.sha256(text.text.encode()).hexdigest() == text.sha256
    assert [text.id for text in evaluation_texts()] == ["prose", "python_docs"]


def test_python_docs_are_the_topics_of_the_interpreter_that_wrote_them() -> None:
    assert bundled_text("python_docs").text.startswith('The "assert" statement\n')


PAIRS = [
    pair
    for pair in combinations([text.id for text in bundled_texts()], 2)
    if set(pair) & {text.id for text in evaluation_texts()}
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_passage_of_an_evaluation_text_stands_in_another(one: str, other: str) -> None:
    def passages(id: str) -> set[str]:
        flat = " ".join(bundled_text(id).text.split())
        return {flat[at : at + WINDOW] for at in range(len(flat) - WINDOW)}

    assert not passages(one) & passages(other)


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("changed")
    listed = {"id": "a", "file": "a.txt", "role": "training", "sha256": "0" * 64}
    (tmp_path / "texts.json").write_text(json.dumps({"texts": [listed]}))
    monkeypatch.setattr(texts, "FOLDER", tmp_path)
    with pytest.raises(UserError, match=r"a\.txt was changed"):
        texts.bundled_texts.__wrapped__()


def test_an_unknown_text_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no text 'poem'.*prose, python_docs"):
        bundled_text("poem")
