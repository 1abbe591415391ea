"""The example notebook, run cell by cell as a reader would, without Jupyter."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "quickstart.ipynb"


def run(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; what its last line is worth, as a notebook would display it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_notebook_runs_and_says_what_it_should(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {}
    shown = [run("".join(cell["source"]), names) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    figures = [value for value in shown if isinstance(value, go.Figure)]
    assert len(figures) == 1
    assert figures[0].layout.title.text.startswith("Layer 1, head 3")
    said = capsys.readouterr().out
    assert "(6, 12, 11, 11)" in said
    assert "layer 1, head 3: 54%" in said
    assert re.search(r"384 numbers .* 1\.0000 LatentKV", said)
    assert re.search(r"384 numbers .* 0\.7\d\d\d ShareKV\(n_kv_heads=6, how='mean'", said)
    assert "131,072 bytes a token" in said
    assert "1.00 GiB for 8,192 tokens" in said
    page = names["page"]
    assert page.count("<script") >= 1
    assert not re.search(r"(?:src|href)\s*=\s*[\"']https?:", page)


def test_no_output_is_stored_in_it() -> None:
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
