"""Grids with one cell a head: by the weight on a link, by label, or as switches that mute.

Layers run down, heads across, both numbered from 0. A letter or number is printed wherever colour speaks.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attention.plots.colours import BROKEN, WEIGHT_SCALE, WEIGHT_SCALE_DARK, Colour
from attention.plots.numbers import percent
from attention.plots.scripts import script, style

if TYPE_CHECKING:
    from attention.atlas import AtlasRow, HeadAtlas
    from attention.layout import HeadLayout
    from attention.links import HeadLink

GREY = Colour("#5b6470", "#9aa3ad")
GROUND = Colour("#fdfdfc", "#15171a")
Head = tuple[int, int]


@dataclass(frozen=True)
class Family:
    """Labels of one kind: the letter printed in a cell, its words, the jobs it covers, the cell's ground and ink."""

    letter: str
    title: str
    jobs: frozenset[str]
    ground: Colour
    ink: Colour


# Quiet grounds, unlike the colours of query, key and value; every ink reads on its ground at 4.5 : 1 or more.
FAMILIES = (
    Family(
        "P", "Position", frozenset({"previous", "next", "current"}),
        Colour("#fde68a", "#5c4a0b"), Colour("#4a3703", "#fdecb0"),
    ),
    Family(
        "R", "Rests on a first or special token", frozenset({"rest"}),
        Colour("#d9dde3", "#3a4048"), Colour("#343a42", "#d5dae0"),
    ),
    Family(
        "W", "Who is meant", frozenset({"agreement", "agreement_person", "meaning_only"}),
        Colour("#f9c9df", "#6b1d45"), Colour("#701043", "#ffd3e6"),
    ),
    Family(
        "C", "Copying", frozenset({"induction", "duplicate"}),
        Colour("#b5ebe6", "#0e4f4a"), Colour("#08403c", "#bff3ee"),
    ),
)  # fmt: skip
GRAMMAR = Family("G", "Grammar", frozenset(), Colour("#cbd8fb", "#28407f"), Colour("#1b2f6b", "#d6e1ff"))
NONE = Family("·", "Unclear", frozenset({"unclear"}), Colour("#f7f7f5", "#1d2024"), Colour("#5b6470", "#9aa3ad"))


def family_of(job: str) -> Family:
    """The family a label belongs to; a job named nowhere else is one of grammar's."""
    return next((family for family in (*FAMILIES, NONE) if job in family.jobs), GRAMMAR)


@dataclass(frozen=True)
class GridCell:
    """One head in a grid. ``words`` is said of it; ``faint``: outside the filter; ``struck``: silenced."""

    text: str
    words: str
    ground: str
    ink: str
    faint: bool = False
    struck: bool = False
    chosen: bool = False


@dataclass(frozen=True)
class HeadGrid:
    """Every head of a model as one cell, row by row. ``shared`` query heads read one K/V head.

    ``toggles``: pressing a cell silences it or gives it its voice back, rather than choosing it.
    """

    label: str
    layers: int
    heads: int
    shared: int
    cells: tuple[GridCell, ...]
    chosen: Head | None = None
    toggles: bool = False
    hint: str = "Point at a cell to read it."

    def data(self) -> dict[str, Any]:
        """What the component in the browser takes."""
        return asdict(self)

    def cell(self, layer: int, head: int) -> GridCell:
        """One head's cell."""
        return self.cells[layer * self.heads + head]


def grid_js() -> str:
    """The grid's script, one ES module."""
    return script("head_grid.js")


def grid_css() -> str:
    """The grid's style."""
    return style("head_grid.css")


def link_grid(
    links: Sequence[HeadLink],
    n_layers: int,
    layout: HeadLayout,
    words: tuple[str, str],
    first: Sequence[Head],
    chosen: Head,
    theme: str,
) -> HeadGrid:
    """How much every head's first word looks at the second, on the fixed scale from 0 to 1; places 1 … printed."""
    places = {head: str(place) for place, head in enumerate(first, 1)}
    cells: dict[Head, GridCell] = {}
    for link in links:
        at = (link.layer, link.head)
        ground = shade(link.weight, theme)
        said = (
            f"Layer {link.layer}, head {link.head}: {words[0]} looks at {words[1]} with {percent(link.weight)}; "
            f"distance alone would give {percent(link.positional)}."
        )
        cells[at] = GridCell(places.get(at, ""), said, ground, _readable_on(ground), chosen=at == chosen)
    return _grid(f"Heads by how much {words[0]} looks at {words[1]}", n_layers, layout, cells, chosen)


def atlas_grid(atlas: HeadAtlas, shown: Collection[Head], chosen: Head, theme: str) -> HeadGrid:
    """Every head by its label's family; heads outside ``shown`` faint."""
    cells = {}
    for row in atlas.rows:
        at = (row.layer, row.head)
        family, faint = family_of(row.label), at not in shown
        cells[at] = GridCell(
            "" if faint else family.letter,
            f"Layer {row.layer}, head {row.head}: {_in_words(row)}",
            (GROUND if faint else family.ground).on(theme),
            family.ink.on(theme),
            faint=faint,
            chosen=at == chosen,
        )
    return _grid("Heads by label", atlas.model.n_layers, atlas.model.layout, cells, chosen)


def _in_words(row: AtlasRow) -> str:
    first = row.evidence[0]
    against = f"{percent(first.value)} against {percent(first.baseline)} by the best rule without words"
    return f"{row.title}. {against}, n = {first.n}." if first.passed else f"Unclear. Closest: {first.title}, {against}."


def mute_grid(
    n_layers: int, layout: HeadLayout, muted: Collection[Head], atlas: HeadAtlas | None, theme: str
) -> HeadGrid:
    """Every head as a switch, with its label's letter where an atlas is at hand; silenced ones struck."""
    cells = {}
    for at in np.ndindex(n_layers, layout.n_heads):
        row = atlas.row(*at) if atlas else None
        family = family_of(row.label) if row else NONE
        struck = at in muted
        cells[at] = GridCell(
            "×" if struck else family.letter if row else "",
            f"Layer {at[0]}, head {at[1]}{f', {row.title}' if row else ''}: {'muted' if struck else 'speaks'}.",
            GROUND.on(theme) if struck else family.ground.on(theme),
            BROKEN.on(theme) if struck else family.ink.on(theme),
            struck=struck,
        )
    grid = _grid("Heads to mute", n_layers, layout, cells, None)
    return replace(grid, toggles=True, hint="Press a head to mute it; press it again and it speaks.")


def _grid(label: str, n_layers: int, layout: HeadLayout, cells: dict[Head, GridCell], chosen: Head | None) -> HeadGrid:
    every = tuple(cells[at] for at in np.ndindex(n_layers, layout.n_heads))
    return HeadGrid(label, n_layers, layout.n_heads, layout.q_per_kv, every, chosen)


def shade(weight: float, theme: str) -> str:
    """The colour of a weight on the one scale from 0 to 1, as ``#rrggbb``."""
    scale = WEIGHT_SCALE_DARK if theme == "dark" else WEIGHT_SCALE
    stops = [stop for stop, _ in scale]
    parts = np.array([[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for _, colour in scale])
    mixed = [round(float(np.interp(weight, stops, parts[:, channel]))) for channel in range(3)]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _readable_on(ground: str) -> str:
    """Black or white, whichever reads better on a ground (WCAG 2.2 relative luminance)."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, ground))


def contrast(one: str, other: str) -> float:
    """Contrast of two ``#rrggbb`` colours, 1 to 21 (WCAG 2.2)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def legend_html(counts: dict[str, int], theme: str) -> str:
    """The families of an atlas with their letters, colours and numbers of heads; ``counts`` is by label."""
    items = []
    for family in (*FAMILIES, GRAMMAR, NONE):
        number = sum(many for job, many in counts.items() if family_of(job) is family)
        style = f"background:{family.ground.on(theme)};color:{family.ink.on(theme)}"
        items.append(
            f'<li><span class="hs-f-letter" style="{style}" aria-hidden="true">{family.letter}</span> '
            f"{html.escape(family.title)}: {number}</li>"
        )
    return f'<ul class="hs-f-legend">{"".join(items)}</ul>'
