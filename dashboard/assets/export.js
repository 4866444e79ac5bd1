// Saves a figure as PNG, SVG or CSV, here in the browser: nothing is sent anywhere. Also part of every report.
window.ringtuneExport = (function () {
  const plain = (text) => {
    const lines = String(text).replace(/<br\s*\/?>/g, "; ").replace(/<[^>]*>/g, "");
    return lines.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  };
  const cell = (value) => {
    if (value === null || value === undefined || (typeof value === "number" && !Number.isFinite(value))) {
      return "";
    }
    if (typeof value === "number") {
      return String(value);
    }
    let text = plain(value);
    // Texts come from untrusted run folders: a spreadsheet must not take one for a formula.
    text = /^[=+\-@\t\r]/.test(text) && !Number.isFinite(Number(text)) ? "'" + text : text;
    return /[",\r\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  };
  const at = (column, n) => (Array.isArray(column) || ArrayBuffer.isView(column) ? column[n] : column);
  const title = (plot, trace, letter) => {
    const axis = plot._fullLayout[(trace[letter + "axis"] || letter).replace(letter, letter + "axis")];
    const text = axis && axis.title && axis.title.text;
    // Without a title plotly has a request to enter one, for figures that can be edited.
    const asks = plot._fullLayout._dfltTitle && text === plot._fullLayout._dfltTitle[letter];
    return text && !asks ? plain(text) : axis && axis.type === "category" ? "label" : letter;
  };

  function rows(trace) {
    const name = trace.name || "";
    if (trace.type === "heatmap" || trace.type === "contour") {
      return Array.from(trace.z).flatMap((row, i) =>
        Array.from(row).map((z, j) => ({
          series: name, x: at(trace.x, j), y: at(trace.y, i), value: z, text: trace.text && at(trace.text[i], j),
        })),
      );
    }
    const length = Math.max((trace.x || []).length, (trace.y || []).length);
    const texts = trace.hovertext || trace.text;
    return Array.from({ length }, (_, n) => {
      const row = { series: name, x: at(trace.x, n), y: at(trace.y, n), text: texts && at(texts, n) };
      for (const letter of ["x", "y"]) {
        const error = trace["error_" + letter];
        if (error && error.visible && error.array) {
          const below = error.symmetric === false ? at(error.arrayminus, n) : at(error.array, n);
          Object.assign(row, { low: row[letter] - below, high: row[letter] + at(error.array, n) });
        }
      }
      const color = trace.marker && trace.marker.color;
      const shaded = (Array.isArray(color) || ArrayBuffer.isView(color)) && typeof color[n] === "number";
      if (trace.base !== undefined) {
        // Of a bar that floats plotly's own value is its length.
        const letter = trace.orientation === "h" ? "x" : "y";
        Object.assign(row, { [letter]: at(trace.base, n), length: row[letter] });
      }
      return Object.assign(row, shaded ? { value: color[n] } : {});
    });
  }

  function csv(plot) {
    const shown = plot._fullData.filter((trace) => trace.visible === true && trace.mode !== "text"); // labels repeat bars
    const all = shown.flatMap(rows);
    const heads = { series: "series", x: "x", y: "y", length: "length", value: "value", low: "low", high: "high", text: "note" };
    if (shown.length) {
      heads.x = title(plot, shown[0], "x");
      heads.y = title(plot, shown[0], "y");
      const unit = heads[shown[0].orientation === "h" ? "x" : "y"].match(/ \([^()]*\)$/);
      heads.length += unit ? unit[0] : "";
      const scale = shown.map((trace) => trace.colorbar || (trace.marker && trace.marker.colorbar)).find(Boolean);
      heads.value = scale && scale.title && scale.title.text ? plain(scale.title.text).replace("; ", " ") : heads.value;
    }
    const used = Object.keys(heads).filter((key) => all.some((row) => row[key] !== undefined && row[key] !== ""));
    const lines = all.map((row) => used.map((key) => cell(row[key])).join(","));
    return [used.map((key) => cell(heads[key])).join(","), ...lines].join("\r\n") + "\r\n";
  }

  function surface(element) {
    for (let one = element; one; one = one.parentElement) {
      const color = window.getComputedStyle(one).backgroundColor;
      if (color && color !== "transparent" && !/, 0\)$/.test(color)) {
        return color;
      }
    }
    return "#ffffff";
  }

  function save(plot, format, name) {
    if (format !== "csv") {
      const color = surface(plot);
      const layout = Object.assign({}, plot.layout, { paper_bgcolor: color, plot_bgcolor: color });
      const size = { width: plot._fullLayout.width, height: plot._fullLayout.height, scale: format === "png" ? 2 : 1 };
      return Plotly.downloadImage({ data: plot.data, layout }, Object.assign({ format, filename: name }, size));
    }
    // The byte order mark makes spreadsheets read units such as µs as UTF-8.
    const url = URL.createObjectURL(new Blob(["\ufeff" + csv(plot)], { type: "text/csv" }));
    const link = document.createElement("a");
    Object.assign(link, { href: url, download: name + ".csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    return Promise.resolve();
  }

  return { csv, save };
})();
