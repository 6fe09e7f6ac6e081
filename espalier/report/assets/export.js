"use strict";
// Downloads, made on this page: figures as SVG, PDF, PNG and CSV, tables as CSV and LaTeX. Nothing leaves the machine.
const EXPORT_WIDTH = 900;

function save(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const fileName = (name) => `${page.overview ? page.overview.title : "espalier"}-${name}`.toLowerCase().replace(/[^a-z0-9.]+/g, "-");

// Figures on paper are light, whatever the page is.
function forPaper(box) {
  const [figure] = shown.get(box);
  const layout = { ...figure.layout, template: template("#1b1f24", "#dfe3e8", "#f5f6f8", 13, "Helvetica, Arial, sans-serif"), autosize: false };
  const width = figure.layout.yaxis.scaleanchor ? figure.layout.height + 140 : EXPORT_WIDTH;
  return [{ data: figure.data, layout: { ...layout, paper_bgcolor: "#ffffff", width } }, { width, height: layout.height }];
}

async function svgOf(box) {
  const [figure, size] = forPaper(box);
  const address = await Plotly.toImage(figure, { format: "svg", ...size });
  return decodeURIComponent(address.slice(address.indexOf(",") + 1));
}

async function pngOf(box) {
  const [figure, size] = forPaper(box);
  const address = await Plotly.toImage(figure, { format: "png", scale: 2, ...size });
  return Uint8Array.from(atob(address.slice(address.indexOf(",") + 1)), (c) => c.charCodeAt(0));
}

const plainText = (text) => String(text ?? "").replace(/<br>/g, " ").replace(/<[^>]*>/g, "").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
const quoted = (value) => {
  const text = value === null || value === undefined ? "" : plainText(value);
  return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};

// A figure's numbers, one per line: what it is of, where, and the value.
function csvOf(box) {
  const [{ data }] = shown.get(box), rows = [["series", "seed", "x", "y", "value"]];
  for (const trace of data) {
    if ((trace.meta && trace.meta.behind) || trace.showlegend === false && trace.fill === undefined && trace.line && trace.line.width === 0) continue;
    const { name = "", x = [], y = [] } = trace;
    if (trace.type === "heatmap") {
      const column = (i) => (x.length ? x[i] : (trace.x0 ?? 0) + i * (trace.dx ?? 1)), row = (i) => (y.length ? y[i] : i);
      trace.z.forEach((line, r) => line.forEach((value, c) => rows.push([name, "", column(c), row(r), value])));
    } else if (trace.type === "box") {
      for (const key of ["lowerfence", "q1", "median", "mean", "q3", "upperfence"]) rows.push([name, "", key, "", trace[key][0]]);
    } else if (trace.meta && trace.meta.seeds) {
      x.forEach((at, i) => rows.push([name, "mean", at, y[i], ""]));
      for (const [seed, values] of Object.entries(trace.meta.seeds)) x.forEach((at, i) => rows.push([name, seed, at, values[i], ""]));
    } else if (!trace.fill) {
      const error = trace.error_x;
      x.forEach((at, i) => { if (at !== null) rows.push([name, "", at, y[i], error ? `${at - error.arrayminus[i]} … ${at + error.array[i]}` : ""]); });
    }
  }
  return rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

const EXPORTS = {
  SVG: async (box, name) => save(`${name}.svg`, await svgOf(box), "image/svg+xml"),
  PDF: async (box, name) => save(`${name}.pdf`, await pdfOf(await svgOf(box)), "application/pdf"),
  PNG: async (box, name) => save(`${name}.png`, await pngOf(box), "image/png"),
  CSV: async (box, name) => save(`${name}.csv`, csvOf(box), "text/csv"),
};

// Every figure has its downloads below it, out of the way of what it shows.
function tools(box, figure) {
  let bar = box.nextElementSibling;
  if (!bar || !bar.classList.contains("export")) {
    if (!figure) return;
    bar = Object.assign(document.createElement("div"), { className: "export" });
    for (const [title, write] of Object.entries(EXPORTS)) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: title });
      button.setAttribute("aria-label", `download this figure as ${title}`);
      button.addEventListener("click", () => write(box, fileName((box.id || "figure").replace("plot-", ""))).catch(trouble));
      bar.append(button);
    }
    box.after(bar);
  }
  bar.hidden = !figure;
}
