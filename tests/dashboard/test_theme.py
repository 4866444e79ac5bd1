"""The palette: marks stand out on both surfaces, and from one another also with a colour blindness."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from ringtune.dashboard import theme

MARKS = 3.0
"""The least contrast of graphical objects that WCAG 2.1 asks for (1.4.11)."""
APART = 13.0
"""Least CIE 1976 distance of two colours (Okabe and Ito, who have black and bright yellow as well, come to 16)."""

COLORS = {**{phase.label: phase.color for phase in theme.PHASES.values()}, "Computing": theme.COMPUTE_COLOR}
COLORS |= {f"rank {n}": color for n, color in enumerate(theme.RANK_COLORS)}

# Machado, Oliveira, Fernandes (2009), severity 1: what is left of linear red, green and blue.
SEEN = {
    "everybody": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}

Vector = NDArray[np.float64]


def linear(color: str) -> Vector:
    part = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def luminance(color: str) -> float:
    return float(linear(color) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: Vector) -> Vector:
    """CIE L*a*b* (D65) of linear red, green and blue."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089])  # none of these is dark enough for the toe
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_mark_stands_out_on_its_surface(scheme: str) -> None:
    found = {name: contrast(color, theme.INKS[scheme].surface) for name, color in COLORS.items()}
    assert {name: round(value, 2) for name, value in found.items() if value < MARKS} == {}


@pytest.mark.parametrize("eye", SEEN)
def test_colours_are_told_apart_with_every_common_colour_blindness(eye: str) -> None:
    seen = {color: lab(np.array(SEEN[eye]) @ linear(color)) for color in theme.RANK_COLORS}
    close = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in combinations(seen, 2)}
    assert {pair: round(value, 1) for pair, value in close.items() if value < APART} == {}


@pytest.mark.parametrize("eye", SEEN)
def test_computing_is_told_from_the_communication_it_stands_beside(eye: str) -> None:
    beside = (theme.OVERLAPPED_COLOR, theme.EXPOSED_COLOR, theme.GREY)
    seen = [lab(np.array(SEEN[eye]) @ linear(color)) for color in (theme.COMPUTE_COLOR, *beside)]
    assert min(float(np.linalg.norm(seen[0] - other)) for other in seen[1:]) >= APART
