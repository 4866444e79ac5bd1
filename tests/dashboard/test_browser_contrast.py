"""Texts of every page stand out from what is below them, in both schemes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from ringtune.dashboard import theme
from ringtune.dashboard.theme import Scheme
from tests.dashboard.conftest import Visit
from tests.dashboard.test_browser_keyboard import PAGES

pytestmark = pytest.mark.slow

TEXT = 4.5
"""The least contrast of text that WCAG 2 asks for (AA)."""

FAINT = """(least) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const parts = [0.2126, 0.7152, 0.0722];
  const light = (color) => parts.reduce((sum, part, i) => sum + part * linear(color[i] / 255), 0);
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const own = walker.currentNode.parentElement, said = walker.currentNode.textContent.trim();
    const seen = own.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && own.getClientRects().length;
    if (!said || !seen || own.closest("script, style, svg, :disabled, [data-disabled]")) {
      continue;
    }
    const layers = [];
    let opacity = 1;
    for (let one = own; one; one = one.parentElement) {
      layers.unshift(parse(getComputedStyle(one).backgroundColor));
      opacity *= parseFloat(getComputedStyle(one).opacity);
    }
    const under = layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
    const ink = parse(getComputedStyle(own).color);
    const both = [light(over([...ink.slice(0, 3), ink[3] * opacity], under)), light(under)];
    const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    if (contrast < least) {
      found.add(`${contrast.toFixed(2)}: ${said.slice(0, 40)} (${own.className})`);
    }
  }
  return [...found];
}"""


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_texts_stand_out(visit: Visit, url: str, runs: dict[str, Path], scheme: str) -> None:
    page = visit.page
    page.emulate_media(color_scheme=scheme)
    page.add_init_script("localStorage.removeItem('scheme')")
    failed = {"run/" + quote(runs["failed"].name): "text=This run ended by SIGKILL"}
    for place, drawn in {**PAGES, **failed}.items():
        page.goto(f"{url}/{place.format(run=quote(runs['done'].name))}")
        page.wait_for_selector(f"html[data-mantine-color-scheme={scheme}]")
        page.wait_for_selector(drawn)
        assert (place, page.evaluate(FAINT, TEXT)) == (place, [])
    page.evaluate("localStorage.removeItem('scheme')")


def _light(color: str) -> float:
    """Relative luminance of ``#rrggbb``."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_of_figures_stand_out(scheme: Scheme) -> None:
    tint = theme.ink(scheme)
    for color in (tint.text, tint.faint):
        both = sorted((_light(color), _light(tint.surface)))
        assert (both[1] + 0.05) / (both[0] + 0.05) >= TEXT
