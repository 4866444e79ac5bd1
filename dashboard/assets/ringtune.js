// The little that runs in the browser: the address follows the view, and cells of the table of runs.
window.dash_clientside = window.dash_clientside || {};
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
  quickFilter: function (text, options) {
    const query = text ? "q=" + encodeURIComponent(text) : "";
    return [
      Object.assign({}, options, { quickFilterText: text || "" }),
      { path: window.location.pathname, search: query },
    ];
  },
  // Light or dark: what the user chose last, else what the system prefers.
  scheme: function (clicks, known) {
    const preferred = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = known || preferred;
    const next = clicks ? (now === "dark" ? "light" : "dark") : now;
    return [next, next];
  },
};

const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
cells.RunLink = function (props) {
  return React.createElement(
    window.dash_core_components.Link,
    { href: props.data.href, className: "rt-link", title: props.data.id },
    props.value,
  );
};
cells.Status = function (props) {
  return React.createElement(
    "span",
    { className: "rt-status rt-status-" + props.data.status, title: props.data.ending },
    props.data.ending || props.value,
  );
};
