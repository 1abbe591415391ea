"""The scripts and styles of what the browser draws: joined from files of ``assets/``, none left over."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from attention.plots import scripts

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "assets"
BASES = {"CANVAS": scripts.CANVAS, "ELEMENTS": scripts.ELEMENTS}


def within(folder: str, names: str) -> list[str]:
    return [f"{folder}/{name}.js" for name in names.split()]


# Which module takes which files, in their order. What a page mounts as it is stands alone.
JOINED = {
    "attention/plots/head_grid.py": [("head_grid.js",), ("head_grid.css",)],
    "attention/plots/ladder_board.py": [
        (*scripts.CANVAS, *within("ladder_board", "view rungs memory build paint chart groups maps")),
        ("canvas.css", "ladder_board.css"),
    ],
    "attention/plots/quiz_maps.py": [("quiz_maps.js",), ("quiz_maps.css",)],
    "attention/plots/shape_track.py": [
        (*scripts.CANVAS, *within("shape_track", "view provenance words memory build show blocks act guess")),
        ("canvas.css", "shape_track.css"),
    ],
    "attention/plots/viewer.py": [
        (*scripts.CANVAS, *within("head_viewer", "view rows memory build paint arcs map grid strip choose")),
        ("canvas.css", "head_viewer.css"),
    ],
    "pages/entry.py": [("app.css",)],
    "pages/shared/present.py": [("present.js",), ("elements.js", "room.js"), ("room.css",), ("present.css",)],
}
SCRIPTS = [names for joins in JOINED.values() for names in joins if names[-1].endswith(".js")]
BASE_NAMES = {*scripts.CANVAS, "canvas.css"}


def joins_in(file: Path) -> set[tuple[str, ...]]:
    """The files each call of script() or style() names, and each style or script taken by ``ASSETS / name``."""
    found = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    own = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_SCRIPT"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("script", "style"):
            found.add(tuple(name for part in node.args for name in names_of(part, BASES | own)))
        if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
            found.add((str(node.right.value),))
    return {names for names in found if names and names[-1].endswith((".js", ".css"))}


def names_of(part: ast.expr, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    if isinstance(part, ast.Starred):
        assert isinstance(part.value, ast.Name)
        return known[part.value.id]
    return (str(ast.literal_eval(part)),)


def declared(script: str) -> list[str]:
    """The names a script declares in its outermost scope."""
    return re.findall(r"^(?:export default )?(?:async )?(?:function|const|let|var|class) (\w+)", script, re.MULTILINE)


def test_every_script_and_style_is_taken_where_it_is_meant_to_be() -> None:
    modules = [file for folder in ("attention", "pages") for file in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(file.relative_to(ROOT)): joins_in(file) for file in modules}
    assert {module: joins for module, joins in found.items() if joins} == {
        name: set(joins) for name, joins in JOINED.items()
    }
    taken = {name for joins in JOINED.values() for names in joins for name in names}
    assert taken == {str(file.relative_to(ASSETS)) for end in ("js", "css") for file in ASSETS.rglob(f"*.{end}")}


@pytest.mark.parametrize("names", SCRIPTS, ids=lambda names: names[-1].split("/")[0])
def test_a_joined_script_is_one_module_that_declares_each_name_once_and_uses_it(names: tuple[str, ...]) -> None:
    script = scripts.script(*names)
    assert len(re.findall(r"^export default function ", script, re.MULTILINE)) == 1
    assert len(re.findall(r"^(?:import|export)\b", script, re.MULTILINE)) == 1
    assert "\n" in script, "a v2 script without a newline is taken for a path"
    top = declared(script)
    assert [name for name, count in Counter(top).items() if count > 1] == []
    entry = re.findall(r"^export default function (\w+)", script, re.MULTILINE)
    own = declared(scripts.script(*(name for name in names if name not in BASE_NAMES)))
    used = Counter(re.findall(r"[\w$]+", script))
    assert [name for name in own if used[name] < 2 and name not in entry] == []


def test_what_stands_in_front_serves_at_least_two() -> None:
    bodies = [scripts.script(*names) for names in SCRIPTS]
    for base in sorted(scripts.CANVAS):
        for name in declared(scripts.script(base)):
            users = [body for body in bodies if len(re.findall(rf"\b{name}\b", body)) > 1]
            assert len(users) > 1, name


@pytest.mark.parametrize(
    ("names", "style"),
    [
        (names, next(other for other in joins if other[-1].endswith(".css")))
        for joins in JOINED.values()
        for names in joins
        if "canvas.js" in names
    ],
    ids=lambda names: names[-1].split("/")[0],
)
def test_every_colour_a_script_or_style_reads_is_in_the_style(names: tuple[str, ...], style: tuple[str, ...]) -> None:
    script, css = scripts.script(*names), scripts.style(*style)
    given = set(re.findall(r"--hs-([\w-]+):", css)) | set(re.findall(r"setProperty\(\"--hs-([\w-]+)\"", script))
    read = set(re.findall(r"var\(--hs-([\w-]+)[,)]", css + script)) | set(re.findall(r"\bread\(\"([\w-]+)\"\)", script))
    for names_read in re.findall(r"\breadAll\(\[(.*?)\]\)", script):
        read |= set(re.findall(r"\"([\w-]+)\"", names_read))
    assert len(read) > 10
    assert read <= given | {"share-ink", "latent-ink"}, "the two inks are set by the script, for either slider"


def test_comments_name_files_that_exist() -> None:
    places = [ROOT, ASSETS, ROOT / "attention", ROOT / "attention" / "plots"]
    code = [file for end in ("js", "css") for file in ASSETS.rglob(f"*.{end}")]
    code += [file for folder in ("attention", "pages") for file in (ROOT / folder).rglob("*.py")]
    for file in code:
        ends = "js|css" if file.suffix == ".py" else "py|js|css"  # modules also name others' files
        for name in re.findall(rf"[\w/]+\.(?:{ends})\b", "\n".join(comments_of(file))):
            assert any((place / name).exists() for place in [*places, file.parent]), f"{file.name}: {name}"


def comments_of(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        nodes = ast.walk(ast.parse(text))
        kinds = (ast.Module, ast.FunctionDef, ast.ClassDef)
        documented = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
        return [*documented, *re.findall(r"# .*", text)]
    return re.findall(r"/\*.*?\*/|(?<![:\"])//[^\n]*", text, re.DOTALL)
