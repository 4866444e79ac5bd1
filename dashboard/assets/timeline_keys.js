// The timeline as in Perfetto: w/s or +/- zoom, a/d pan, f goes to the followed batch, and a notch of the wheel counts.
(function () {
  const MOVES = { w: "in", "+": "in", "=": "in", s: "out", "-": "out", _: "out", a: "left", d: "right", f: "batch" };
  const STEP = 1.6; // of a key that zooms
  const PAN = 0.2; // of the window
  const HELD_MS = 120; // a key that is held moves again after this time
  const LEAST_MS = 1e-5;
  const ROOM = 0.01; // of the run
  // Plotly counts at most 20 pixels of an event of the wheel, so a notch of 100 would be as little as a nudge.
  const PIECE = 20;
  const MOST_PIECES = 100; // a busy browser makes one event of several notches
  const PIXELS = [1, 33, 400]; // of a unit of deltaMode: pixels, lines, pages

  let pointer = null; // where the mouse is, in pixels of the window
  let moved = 0;

  const shown = (selector) => document.querySelector(selector + " .js-plotly-plot");

  // The place that a zoom keeps: below the mouse while it is over the lanes, else the middle of the window.
  function kept(plot, [low, high]) {
    const box = plot.querySelector(".nsewdrag").getBoundingClientRect();
    const over = pointer && pointer.x > box.left && pointer.x < box.right && pointer.y > box.top && pointer.y < box.bottom;
    return over ? low + ((pointer.x - box.left) / box.width) * (high - low) : (low + high) / 2;
  }

  // The time that a followed batch took on all ranks, from the frames around it, with some room beside it.
  function batch(plot) {
    const frames = (plot.layout.shapes || []).filter((one) => one.type === "rect" && one.yref !== "paper");
    if (!frames.length) {
      return null;
    }
    const low = Math.min(...frames.map((one) => one.x0));
    const high = Math.max(...frames.map((one) => one.x1));
    return [low - 0.2 * (high - low), high + 0.2 * (high - low)];
  }

  function next(plot, move) {
    const [low, high] = plot._fullLayout.xaxis.range;
    if (move === "batch") {
      return batch(plot);
    }
    if (move === "left" || move === "right") {
      const by = (move === "left" ? -PAN : PAN) * (high - low);
      return [low + by, high + by];
    }
    const at = kept(plot, [low, high]);
    const times = move === "in" ? 1 / STEP : STEP;
    return [at + (low - at) * times, at + (high - at) * times];
  }

  // Not beyond the run, whose ends are those of the minimap; beside them is as much room as "Whole run" leaves.
  function inside([low, high]) {
    const map = shown("#timeline-map");
    const ends = map && map._fullLayout ? map._fullLayout.xaxis.range : [low, high];
    const room = ROOM * (ends[1] - ends[0]);
    const [begin, end] = [ends[0] - room, ends[1] + room];
    const length = Math.min(Math.max(high - low, LEAST_MS), end - begin);
    const first = Math.min(Math.max(low, begin), end - length);
    return [first, first + length];
  }

  function press(event) {
    const plot = shown("#timeline-graph");
    const move = MOVES[event.key.toLowerCase()];
    const typing = event.target.closest && event.target.closest("input, textarea, select, [contenteditable]");
    if (!plot || !plot._fullLayout || !move || typing || event.ctrlKey || event.altKey || event.metaKey) {
      return;
    }
    event.preventDefault();
    if (event.repeat && performance.now() - moved < HELD_MS) {
      return;
    }
    const range = next(plot, move);
    if (range) {
      moved = performance.now();
      window.Plotly.relayout(plot, { "xaxis.range": inside(range) });
    }
  }

  function turn(event) {
    const pixels = event.deltaY * (PIXELS[event.deltaMode] || 1);
    if (!event.isTrusted || Math.abs(pixels) <= PIECE) {
      return; // plotly counts it in full
    }
    event.preventDefault();
    event.stopPropagation();
    const pieces = Math.min(MOST_PIECES, Math.round(Math.abs(pixels) / PIECE));
    for (let piece = 0; piece < pieces; piece += 1) {
      const { clientX, clientY } = event;
      const one = { clientX, clientY, deltaY: Math.sign(pixels) * PIECE, bubbles: true, cancelable: true };
      event.target.dispatchEvent(new WheelEvent("wheel", one));
    }
  }

  function point(event) {
    pointer = { x: event.clientX, y: event.clientY };
    const plot = event.target.closest && event.target.closest("#timeline-graph .js-plotly-plot");
    if (plot && !plot.rtTurns) {
      plot.rtTurns = true;
      plot.addEventListener("wheel", turn, { capture: true, passive: false });
    }
  }

  document.addEventListener("keydown", press);
  document.addEventListener("mousemove", point, { passive: true });
})();
