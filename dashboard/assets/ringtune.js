// The little that runs in the browser: the address follows the view, and cells of the table of runs.
window.dash_clientside = window.dash_clientside || {};
let asking = false;
let answered; // what was drawn when the last answered question was asked
const PATIENCE_MS = 60000; // a later answer is lost: the network changed, or the machine slept
// Returns the news since the last poll; nothing where the server has ended, which may start again.
async function ask(path, known, drawn, number) {
  try {
    const config = JSON.parse(document.getElementById("_dash-config").textContent);
    const answer = await fetch(config.requests_pathname_prefix + "_poll", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      // The last answer may be about another drawing than the present one, so the drawing is sent along.
      body: JSON.stringify({ path: path, known: (number === answered && known) || null, drawn: drawn || null }),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    return answer.status === 200 ? await answer.json() : null;
  } catch {
    return null;
  }
}
window.dash_clientside.ringtune = {
  // Writes a view into the address without a new entry in the history: the back button leaves the page.
  address: function (query) {
    if (!query || query.path !== window.location.pathname) {
      return window.dash_clientside.no_update;
    }
    const url = query.path + (query.search ? "?" + query.search : "");
    if (url !== window.location.pathname + window.location.search) {
      window.history.replaceState(window.history.state, "", url);
    }
    return window.dash_clientside.no_update;
  },
  // Asks at every poll whether something changed, and for the news; one question at a time. It has no output, since Dash
  // would hold back everything that depends on it until the answer has arrived, and would drop an answer that takes
  // longer than a poll.
  poll: function (_poll, known, path, drawn) {
    if (asking || !path) {
      return;
    }
    asking = true;
    const number = drawn ? drawn.number : null;
    ask(path, known, drawn, number).then((came) => {
      asking = false;
      if (came) {
        answered = number;
        window.dash_clientside.set_props("news", { data: came.news });
        window.dash_clientside.set_props("stamp", { data: came.stamp });
      }
    });
  },
  // The status of the run, which stands in front of the stamp, where it changed.
  status: function (stamp, known) {
    const status = (stamp || "").split(":")[0];
    return status === known ? window.dash_clientside.no_update : status;
  },
  // Follows the stamp, but no more often than every so many milliseconds; at once on another page, and soon where the
  // news do not fit onto the drawing.
  slowly: function (_poll, stamp, path, slow, news, drawn) {
    const now = Date.now();
    const same = slow.path === path;
    const anew = news && news.anew && drawn && news.anew === drawn.number && now - slow.at > 1000;
    if (!stamp || !news || (same && !anew && (slow.stamp === stamp || now - slow.at < news.every_ms))) {
      return window.dash_clientside.no_update;
    }
    return { stamp: stamp, path: path, at: now };
  },
  // Writes the numbers of a poll into the cards; where other cards are needed (a status, a problem, the first step),
  // asks the server for them, by their new shape.
  numbers: function (news, values, _notes, shape) {
    const none = window.dash_clientside.no_update;
    const rest = [values.map(() => none), values.map(() => none)];
    if (!news || !news.numbers || news.path !== window.location.pathname) {
      return [...rest, none];
    }
    if (news.shape !== shape || news.numbers.length !== values.length) {
      return [...rest, news.shape === shape ? none : news.shape];
    }
    return [news.numbers.map((one) => one[1]), news.numbers.map((one) => one[2] || "\u00a0"), none];
  },
  // Appends the news to the traces of figures, and remembers how far they are drawn now.
  grow: function (news, pages, drawn) {
    const none = window.dash_clientside.no_update;
    if (window.dash_clientside.callback_context.triggered.some((one) => one.prop_id.includes("page-drawn"))) {
      const page = pages.find((one) => one);
      return page ? Object.assign({}, page, { at: Date.now() }) : null;
    }
    const grown = news && news.grown;
    if (!grown || !drawn || drawn.page !== window.location.pathname || grown.number !== drawn.number) {
      return none;
    }
    const found = grown.figures.map((one) => [document.querySelector("#" + one.graph + " .js-plotly-plot"), one]);
    const places = (plot, one) => one.traces.map((trace) => plot.data.findIndex((own) => own.name === trace.name));
    if (found.some(([plot, one]) => !plot || places(plot, one).includes(-1))) {
      return none;
    }
    const moves = found.some(([plot]) =>
      drawn.range && drawn.range.some((end, at) => Math.abs(end - plot.layout.xaxis.range[at]) > 1e-6 * Math.abs(end)));
    if (moves) {
      return none; // the user is zooming
    }
    for (const [plot, one] of found) {
      const at = places(plot, one);
      one.traces.forEach((trace, number) => lengthen(plot, at[number], trace.columns));
      if (drawn.range) {
        plot.layout.xaxis.range = grown.drawn.range;
      }
      window.Plotly.redraw(plot);
    }
    return grown.drawn;
  },
  // Puts sentences, numbers and rows of a poll into their places.
  say: function (news) {
    if (news && news.path === window.location.pathname) {
      const texts = (news.texts || []).map(([where, text]) => [where, { children: text }]);
      for (const [where, props] of texts.concat(news.props || [])) {
        const named = typeof where === "string" ? where : JSON.stringify(where, Object.keys(where).sort());
        if (document.getElementById(named)) {
          window.dash_clientside.set_props(where, props);
        }
      }
    }
    return window.dash_clientside.no_update;
  },
  // When the timeline is drawn as a whole: at every stamp; where news are added to the drawing, only slowly, when they
  // do not fit onto it, and when the run has another status.
  timelinePoll: function (_poll, stamp, slow, news, drawn, known) {
    const status = (stamp || "").split(":")[0];
    const grows = drawn && drawn.page === window.location.pathname;
    const again = grows && news && news.again === drawn.number && Date.now() - drawn.at > news.poll_interval_ms;
    if (grows && status === drawn.status && !again && !(slow.at > drawn.at + 1000)) {
      return window.dash_clientside.no_update;
    }
    const now = again ? drawn.number + "|again" : grows ? status + "|" + slow.at : stamp;
    return now === known ? window.dash_clientside.no_update : now;
  },
  // Leads to another page, as a link does: Dash's own links notify its router in the same way.
  go: function (href) {
    if (href) {
      window.history.pushState({}, "", href);
      window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
      window.scrollTo(0, 0);
    }
    return window.dash_clientside.no_update;
  },
  // Saves the figure whose menu was used; the file is named after the page and the figure.
  saveFigure: function () {
    const asked = window.dash_clientside.callback_context.triggered.find((one) => one.value > 0);
    if (asked) {
      const { figure, as } = JSON.parse(asked.prop_id.replace(/\.n_clicks$/, ""));
      const plot = document.querySelector("#" + CSS.escape(figure) + " .js-plotly-plot");
      const run = decodeURIComponent(window.location.pathname.split("/run/")[1] || "").split("/")[0];
      const name = ["ringtune", run, figure].filter(Boolean).join("-").replace(/[^\w.-]+/g, "-");
      if (plot) {
        window.ringtuneExport.save(plot, as, name);
      }
    }
    return window.dash_clientside.no_update;
  },
  quickFilter: function (text, group, options) {
    const asked = Object.entries({ q: text, group: group }).filter(([, value]) => value);
    const query = new URLSearchParams(asked).toString();
    return [
      Object.assign({}, options, { quickFilterText: text || "" }),
      { path: window.location.pathname, search: query },
    ];
  },
  // Of a figure's moves those that chose another range; as with the timeline's below, others must not reach the server.
  zoomed: function (moved) {
    const asks = moved && ("xaxis.range[0]" in moved || "xaxis.range" in moved || moved["xaxis.autorange"]);
    return asks ? { moved: moved, at: performance.now() } : window.dash_clientside.no_update;
  },
  // Of the events of the timeline's figures those that ask for something. The others (a resize, a click beside the
  // spans) must not reach the server: an answer to them would supersede one under way that draws.
  timelineEvent: function (moved, clicked, selected, mapped, closed) {
    const point = (event) => (event && event.points && event.points[0]) || {};
    const asked = {
      "timeline-graph.relayoutData":
        moved && ("xaxis.range[0]" in moved || "xaxis.range" in moved || moved["xaxis.autorange"]) ? moved : null,
      "timeline-graph.clickData":
        point(clicked).customdata > 0 ? { points: [{ customdata: point(clicked).customdata }] } : null,
      "timeline-map.selectedData": selected && selected.range && selected.range.x ? { range: selected.range } : null,
      "timeline-map.clickData": "x" in point(mapped) ? { points: [{ x: point(mapped).x }] } : null,
      "timeline-unfollow.n_clicks": closed > 0 ? {} : null,
    };
    for (const one of window.dash_clientside.callback_context.triggered) {
      if (asked[one.prop_id]) {
        return { from: one.prop_id, value: asked[one.prop_id], at: performance.now() };
      }
    }
    return window.dash_clientside.no_update;
  },
  // Takes the sketch of the lanes away once plotly has drawn them.
  timelineSketch: async function () {
    const until = performance.now() + 10000;
    while (!document.querySelector("#timeline-graph .bars .point") && performance.now() < until) {
      await new Promise((done) => requestAnimationFrame(done));
    }
    return "rt-sketch rt-sketch-done";
  },
  title: function (words) {
    if (words) document.title = words;
  },
  // Light or dark: what the user chose last, else what the system prefers.
  scheme: function (clicks, known) {
    const preferred = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = known || preferred;
    const next = clicks ? (now === "dark" ? "light" : "dark") : now;
    return [next, next];
  },
};

// Columns of a trace: a list goes to the end, {at, values} or {at, rows} behind the first so many, all else in place.
function lengthen(plot, place, columns) {
  const held = (trace, path) => path.reduce((inside, part) => inside[part], trace);
  for (const [name, given] of Object.entries(columns)) {
    const path = name.split(".");
    // Packed values are only unpacked in the drawn trace.
    const before = () => Array.from(held(plot._fullData[place], path) || []);
    const now = Array.isArray(given) ? before().concat(given)
      : given !== null && typeof given === "object" && given.values ? before().slice(0, given.at).concat(given.values)
      : given !== null && typeof given === "object" && given.rows
        ? before().map((row, number) => Array.from(row).slice(0, given.at).concat(given.rows[number]))
      : given;
    held(plot.data[place], path.slice(0, -1))[path[path.length - 1]] = now;
  }
}

const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
function below(text) {
  // A word is broken only where a line does not hold it: an option stays in one piece.
  const words = (text || "").split(" ").map((word, at) => React.createElement("span", { key: at }, word));
  return text ? React.createElement("span", { className: "rt-below" }, ...words) : null;
}
cells.RunLink = function (props) {
  const link = React.createElement(
    window.dash_core_components.Link,
    { href: props.data.href, className: "rt-link", title: props.data.id },
    props.value,
  );
  return React.createElement("div", {}, link, below(props.data.command));
};
cells.Tags = function (props) {
  return React.createElement("div", {}, props.value, below(props.data.notes));
};
cells.Status = function (props) {
  return React.createElement(
    "span",
    { className: "rt-status rt-status-" + props.data.status, title: props.data.ending },
    (props.data.ending || props.value).replace(/(\d) (?=[a-zµ]+\b)/g, "$1\u00a0"),
  );
};
