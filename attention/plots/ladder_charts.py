"""Figures behind the ladder: what papers measured on models trained with shared heads, and how healing went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from attention.plots.cache_charts import DASHES, GREY, INK, LINES, Chart
from attention.plots.heatmaps import escaped
from attention.published import PublishedRow, PublishedTable

RUNGS = ("MHA", "GQA", "MQA", "MLA")
MARKS = ("circle", "square", "diamond", "triangle-up", "cross")
STEPS_A_POINT = 10  # a stored loss is the mean of ten steps


@dataclass(frozen=True)
class Healing:
    """One healed setting and the mean loss of every ten steps of its training."""

    name: str
    loss: Sequence[float]


def published_chart(tables: Sequence[PublishedTable], theme: str) -> Chart:
    """Scores of trained models as a share of the same paper's MHA model of the same size; one line a comparison."""
    figure = go.Figure()
    rows: list[tuple[str, str, float, float, str]] = []
    for index, (name, table, members) in enumerate(_comparisons(tables)):
        whole = next(row for row in members if row.rung == "MHA").scores[table.metric]
        shares = [100 * row.scores[table.metric] / whole for row in members]
        rows += [
            (name, row.label, row.scores[table.metric], round(share, 1), table.short)
            for row, share in zip(members, shares, strict=True)
        ]
        colour = LINES[index % len(LINES)].on(theme)
        figure.add_scatter(
            x=[RUNGS.index(row.rung) for row in members],
            y=shares,
            mode="lines+markers",
            name=escaped(f"{name}, {table.metric}"),
            line={"color": colour, "width": 2.5, "dash": DASHES[index % len(DASHES)]},
            marker={"size": 11, "symbol": MARKS[index % len(MARKS)]},
            text=[f"{escaped(row.label)}: {row.scores[table.metric]:g}" for row in members],
            hovertemplate="%{text} (%{y:.1f} % of MHA)<extra></extra>",
        )
    figure.add_hline(y=100, line={"color": GREY.on(theme), "width": 1, "dash": "dot"})
    figure.update_xaxes(
        tickvals=list(range(len(RUNGS))), ticktext=list(RUNGS), range=[-0.3, len(RUNGS) - 0.7], showgrid=False
    )
    figure.update_yaxes(title="score, % of the paper's own MHA model", ticksuffix=" %")
    _calm(figure, theme, 380)
    alt = "Scores of models trained with shared heads, in percent of their own MHA model: " + "; ".join(
        f"{label} {share:g} %" for _, label, _, share, _ in rows
    )
    return Chart(figure, alt + ".", ("comparison", "model", "score", "% of MHA", "source"), tuple(rows))


def healing_chart(runs: Sequence[Healing], theme: str) -> Chart:
    """Training loss against steps, one line a healed setting; both axes start where the data do."""
    figure = go.Figure()
    rows: list[tuple[str | int | float, ...]] = []
    for index, run in enumerate(runs):
        steps = [STEPS_A_POINT * (at + 1) for at in range(len(run.loss))]
        figure.add_scatter(
            x=steps,
            y=list(run.loss),
            mode="lines",
            name=escaped(run.name),
            line={
                "color": LINES[index % len(LINES)].on(theme),
                "width": 2,
                "dash": DASHES[index // len(LINES) % len(DASHES)],
            },
            hovertemplate="step %{x}: loss %{y:.4f}<extra></extra>",
        )
        rows += [(run.name, step, loss) for step, loss in zip(steps, run.loss, strict=True)]
    figure.update_xaxes(title="training step")
    figure.update_yaxes(title="training loss, mean of ten steps (log)", type="log", dtick="D2", exponentformat="none")
    _calm(figure, theme, 360)
    alt = "Training loss of the healed settings: " + "; ".join(
        f"{run.name} from {run.loss[0]:.3g} to {run.loss[-1]:.3g} in {STEPS_A_POINT * len(run.loss)} steps"
        for run in runs
    )
    return Chart(figure, alt + ".", ("setting", "step", "loss"), tuple(rows))


def _comparisons(tables: Sequence[PublishedTable]) -> list[tuple[str, PublishedTable, list[PublishedRow]]]:
    """The groups of a table that differ only in how they share: named by what their labels have in common."""
    found: list[tuple[str, PublishedTable, list[PublishedRow]]] = []
    for table in tables:
        names = list(dict.fromkeys(row.label.split(", ")[0] for row in table.rows))
        for name in names:
            members = [row for row in table.rows if row.label.split(", ")[0] == name]
            found.append((name, table, sorted(members, key=lambda row: RUNGS.index(row.rung))))
    return found


def _calm(figure: go.Figure, theme: str, height: int) -> None:
    figure.update_xaxes(automargin=True, tickfont={"size": 14, "color": INK.on(theme)})
    figure.update_yaxes(automargin=True)
    figure.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 12, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "y": -0.18, "yanchor": "top", "x": 0, "font": {"color": INK.on(theme)}},
    )
