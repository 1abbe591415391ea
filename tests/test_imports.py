"""Three floors with imports only downward, light modules that stay light, and thirty cold visitors at once."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import attention

ROOT = Path(__file__).parents[1]
ENGINE = sorted((ROOT / "attention").glob("*.py"))
PLOTS = sorted((ROOT / "attention" / "plots").glob("*.py"))
PAGES = sorted((ROOT / "pages").rglob("*.py"))
HEAVY = {"torch", "transformers", "streamlit"}
# What a page of memory arithmetic or of NumPy steps may load; matched against what is there.
LIGHT = ["errors", "settings", "layout", "sharing", "kv_*", "known_models", "multihead", "mistakes", "step_plan"]
LIGHT += ["model_facts", "preload", "listings", "provenance", "written", "turns"]
LIGHT += ["formulas", "trials", "links", "atlas"]
LIGHT += ["quiz*", "texts", "healed", "rungs", "rung_views", "absorb", "alignment", "single_flight", "wire", "reach"]


def imported_by(file: Path) -> Iterator[str]:
    """Dotted names of every import anywhere in a file, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def roots(file: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_by(file)}


def run(code: str, timeout: float = 120) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def heavy_after(*imports: str) -> set[str]:
    code = "\n".join(f"import {name}" for name in imports) + "\nimport sys; print(*sys.modules)"
    return {name.split(".")[0] for name in run(code).split()} & (HEAVY | {"plotly"})


@pytest.mark.parametrize("file", ENGINE, ids=lambda file: file.stem)
def test_the_engine_knows_no_page_and_no_plot(file: Path) -> None:
    assert not roots(file) & {"streamlit", "plotly", "pages", "app"}
    assert not [name for name in imported_by(file) if name.startswith("attention.plots")]


@pytest.mark.parametrize("file", PLOTS, ids=lambda file: file.stem)
def test_plots_know_no_page_and_no_torch(file: Path) -> None:
    assert not roots(file) & {"streamlit", "pages", "app", "torch", "transformers"}


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_pages_leave_the_computing_to_the_engine(file: Path) -> None:
    assert not roots(file) & {"torch", "transformers", "tokenizers", "safetensors", "gguf"}


@pytest.mark.parametrize("file", [*ENGINE, *PLOTS, *PAGES], ids=lambda file: str(file.relative_to(ROOT)))
def test_only_settings_reads_the_environment(file: Path) -> None:
    reads = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
    if file.name != "settings.py":
        assert not reads & {"environ", "getenv", "environb", "putenv"}


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert heavy_after("attention") == set()


def test_plots_load_no_torch() -> None:
    names = [f"attention.plots.{file.stem}" for file in PLOTS if file.stem != "__init__"]
    assert heavy_after("attention.plots", *names) <= {"plotly"}


def test_memory_and_numpy_modules_load_no_torch() -> None:
    names = [file.stem for pattern in LIGHT for file in sorted((ROOT / "attention").glob(f"{pattern}.py"))]
    assert {"errors", "settings", "layout", "sharing"} <= set(names)
    assert heavy_after(*(f"attention.{name}" for name in names)) == set()


def test_every_public_name_resolves_and_none_other() -> None:
    for name in attention.__all__:
        value = getattr(attention, name)
        assert value is getattr(importlib.import_module(f"attention.{attention._HOME[name]}"), name)
        assert getattr(value, "__name__", name) == name
    assert dir(attention) == sorted(attention.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        attention.nonsense  # noqa: B018


def test_a_module_never_stands_in_for_the_function_of_its_name() -> None:
    code = "from attention.kv_budget import ladder\nimport attention\nprint(len(attention.known_models()) > 100)"
    assert run(code).strip() == "True"


COLD_VISITORS = """
import threading
together, failures, traces = threading.Barrier(30), [], []

def visitor(number):
    together.wait()
    try:
        import attention
        if number % 2:
            loaded = attention.load_model("all-MiniLM-L6-v2")
            traces.append(attention.trace(loaded, "The cat sat").weights.shape)
        else:
            loaded = attention.load_model("SmolLM2-135M-Instruct")
            traces.append(attention.trace(loaded, "The cat sat").weights.shape)
    except BaseException as error:
        failures.append(f"{type(error).__name__}: {error}")

visitors = [threading.Thread(target=visitor, args=(number,)) for number in range(30)]
for one in visitors:
    one.start()
for one in visitors:
    one.join()
print(failures, sorted(set(traces)), len(traces))
"""


def test_thirty_cold_visitors_at_once_all_get_their_trace() -> None:
    assert run(COLD_VISITORS).strip() == "[] [(6, 12, 5, 5), (30, 9, 3, 3)] 30"
