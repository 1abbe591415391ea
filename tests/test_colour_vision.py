"""Colours for eyes that see fewer: the concepts, the scales and the finder's families through a simulator.

The simulator is colorspacious' (Machado, Oliveira and Fernandes 2009, full severity); distances are those of its
CAM02-UCS space, in which about 1 can just be told apart side by side.
"""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import pytest
from colorspacious import cspace_convert

from attention.plots import colours
from attention.plots.head_grid import FAMILIES, GRAMMAR, NONE

CONCEPTS = ("QUERY", "KEY", "VALUE", "LATENT", "CACHE", "BROKEN")
EYES = ("usual", "protanomaly", "deuteranomaly", "tritanomaly")
TOLD_APART = 9  # in a chart's lines, not side by side


def seen(shade: str, eyes: str) -> npt.NDArray[np.floating]:
    """Where a colour lies in the uniform space for these eyes."""
    own = np.array([int(shade[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    if eyes != "usual":
        full = {"name": "sRGB1+CVD", "cvd_type": eyes, "severity": 100}
        own = np.clip(cspace_convert(own, full, "sRGB1"), 0, 1)
    return np.asarray(cspace_convert(own, "sRGB1", "CAM02-UCS"))


def test_the_simulator_takes_red_from_green() -> None:
    far = {eyes: float(np.linalg.norm(seen("#c85a5a", eyes) - seen("#7d8c3c", eyes))) for eyes in EYES}
    assert far["usual"] > 30 < far["tritanomaly"]
    assert far["deuteranomaly"] < TOLD_APART


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_no_two_concepts_look_alike(theme: str, eyes: str) -> None:
    places = {name: seen(getattr(colours, name).on(theme), eyes) for name in CONCEPTS}
    near = {
        f"{one} and {other}": float(np.linalg.norm(places[one] - places[other]))
        for one, other in combinations(CONCEPTS, 2)
    }
    assert {pair: far for pair, far in near.items() if far < TOLD_APART} == {}


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("name", ["WEIGHT_SCALE", "WEIGHT_SCALE_DARK"])
def test_more_weight_is_darker_or_lighter_all_the_way(name: str, eyes: str) -> None:
    light = [float(seen(shade, eyes)[0]) for _, shade in getattr(colours, name)]
    steps = np.diff(light) * (1 if name.endswith("DARK") else -1)
    assert steps.min() >= 10


@pytest.mark.parametrize("eyes", EYES)
def test_less_and_more_stay_apart_on_the_scale_of_differences(eyes: str) -> None:
    places = [seen(shade, eyes) for _, shade in colours.DIFFERENCE_SCALE]
    assert float(np.linalg.norm(places[0] - places[-1])) >= 40
    assert all(np.linalg.norm(one - other) >= 25 for one, other in pairwise(places))
    assert max(range(5), key=lambda at: float(places[at][0])) == 2  # nothing is lighter than "no difference"


def test_a_family_of_heads_prints_its_letter() -> None:
    """Six quiet grounds cannot all differ for all eyes: the letter in the cell does."""
    letters = [family.letter for family in (*FAMILIES, GRAMMAR, NONE)]
    assert len(set(letters)) == len(letters)
