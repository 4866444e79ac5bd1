// Keyboard control where the libraries support only the mouse: cells of tables, points of figures, legends.
(function () {
  // Figures whose points lead somewhere. Arrows choose a point, Enter clicks it.
  const WALKED = "#stragglers-map .js-plotly-plot, #timeline-graph .js-plotly-plot";

  function decorate() {
    for (const plot of document.querySelectorAll(WALKED)) {
      if (!plot.hasAttribute("tabindex")) {
        plot.tabIndex = 0;
        plot.setAttribute("role", "application");
        plot.setAttribute("aria-label", "Figure: arrow keys choose a point, Enter opens it");
        plot.addEventListener("keydown", walk);
      }
    }
    for (const toggle of document.querySelectorAll(".legendtoggle:not([tabindex])")) {
      toggle.setAttribute("tabindex", "0");
      toggle.setAttribute("role", "button");
      toggle.setAttribute("aria-label", "Show or hide " + toggle.closest("g.traces").textContent);
    }
  }

  // Points of a heat map in rows and columns, of bars in lanes from left to right; only those in view.
  function lanes(plot) {
    const [low, high] = plot._fullLayout.xaxis.range;
    const rows = new Map();
    const add = (x, point) => {
      if (x >= low && x <= high) {
        rows.set(point.y, [...(rows.get(point.y) || []), { x, point }]);
      }
    };
    plot._fullData.forEach((trace, curveNumber) => {
      if (trace.type === "heatmap") {
        trace.z.forEach((row, r) =>
          Array.from(row).forEach((z, c) =>
            add(trace.x[c], { curveNumber, pointNumber: [r, c], x: trace.x[c], y: trace.y[r], z }),
          ),
        );
      } else if (trace.type === "bar" && trace.visible === true && trace.customdata) {
        Array.from(trace.customdata).forEach((customdata, i) => {
          if (customdata > 0) {
            const [begin, end] = [trace.base[i], trace.base[i] + trace.x[i]];
            const middle = (Math.max(begin, low) + Math.min(end, high)) / 2;
            add(begin <= high ? middle : begin, { curveNumber, pointNumber: i, x: end, y: trace.y[i], customdata });
          }
        });
      }
    });
    const place = (y) => plot._fullLayout.yaxis.d2p(y);
    const sorted = [...rows.entries()].sort((one, other) => place(one[0]) - place(other[0]));
    return sorted.map(([, points]) => points.sort((one, other) => one.x - other.x));
  }

  function walk(event) {
    const plot = event.currentTarget;
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.target !== plot || !(event.key in moves || event.key === "Enter")) {
      return;
    }
    const rows = lanes(plot);
    if (!rows.length) {
      return;
    }
    event.preventDefault();
    const held = plot.rtChosen;
    let row = held ? Math.min(held.row, rows.length - 1) : 0;
    let at = held ? nearest(rows[row], held.x) : 0;
    if (event.key === "Enter") {
      if (held) {
        plot.emit("plotly_click", { points: [rows[row][at].point], event });
      }
      return;
    }
    if (held) {
      const [down, right] = moves[event.key];
      row = Math.min(Math.max(row + down, 0), rows.length - 1);
      at = down ? nearest(rows[row], held.x) : Math.min(Math.max(at + right, 0), rows[row].length - 1);
    }
    const { x, point } = rows[row][at];
    plot.rtChosen = { row, x };
    window.Plotly.Fx.hover(plot, { xval: x, yval: plot._fullLayout.yaxis.d2c(point.y) });
  }

  function nearest(points, x) {
    return points.reduce((best, one, i) => (Math.abs(one.x - x) < Math.abs(points[best].x - x) ? i : best), 0);
  }

  function toggle(event) {
    const held = event.target.closest(".legendtoggle");
    const cell = event.target.classList.contains("ag-cell") ? event.target : null;
    if (event.key === "Enter" && cell) {
      (cell.querySelector("a") || cell).click();
    } else if ((event.key === "Enter" || event.key === " ") && held) {
      event.preventDefault();
      const trace = held.__data__[0].trace;
      const plot = held.closest(".js-plotly-plot");
      window.Plotly.restyle(plot, { visible: trace.visible === true ? "legendonly" : true }, [trace.index]).then(() => {
        decorate();
        const again = [...plot.querySelectorAll(".legendtoggle")].find((one) => one.__data__[0].trace.index === trace.index);
        if (again) {
          again.focus();
        }
      });
    }
  }

  let due = 0;
  function soon() {
    if (!due) {
      due = window.setTimeout(() => {
        due = 0;
        decorate();
      }, 200);
    }
  }
  new MutationObserver(soon).observe(document.documentElement, { childList: true, subtree: true });
  document.addEventListener("keydown", toggle);
})();
