"use strict";
// Figures: drawn in the page's colours, for its width, on paper too; small multiples and filters of curves.
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 640px)");
const shown = new Map(); // figures on the page by element: drawn again when the colours or the width change
const PRINT_WIDTH = 680; // A4 without its margins, in CSS pixels
let printing = false;

// Symbols of methods as shapes for legends outside figures, by the name that Plotly gives them.
const SHAPES = {
  circle: "circle(50%)", square: "inset(7%)", diamond: "polygon(50% 0,100% 50%,50% 100%,0 50%)",
  "triangle-up": "polygon(50% 5%,100% 95%,0 95%)", "triangle-down": "polygon(0 5%,100% 5%,50% 95%)",
  cross: "polygon(34% 0,66% 0,66% 34%,100% 34%,100% 66%,66% 66%,66% 100%,34% 100%,34% 66%,0 66%,0 34%,34% 34%)",
  x: "polygon(22% 0,50% 28%,78% 0,100% 22%,72% 50%,100% 78%,78% 100%,50% 72%,22% 100%,0 78%,28% 50%,0 22%)",
  star: "polygon(50% 0,62% 35%,100% 37%,70% 60%,81% 97%,50% 76%,19% 97%,30% 60%,0 37%,38% 35%)",
  pentagon: "polygon(50% 0,100% 38%,81% 98%,19% 98%,0 38%)", hexagon2: "polygon(25% 6%,75% 6%,100% 50%,75% 94%,25% 94%,0 50%)",
  hourglass: "polygon(0 0,100% 0,50% 50%,100% 100%,0 100%,50% 50%)", bowtie: "polygon(0 0,50% 50%,100% 0,100% 100%,50% 50%,0 100%)",
};

const swaps = new RegExp(Object.keys(about.dark).map((k) => k.replace(/[()]/g, "\\$&")).join("|"), "g");
const isDark = () => dark.matches && !printing;

function coloured(value) {
  return isDark() ? JSON.parse(JSON.stringify(value).replace(swaps, (c) => about.dark[c])) : value;
}

function template(ink, line, soft, size, family) {
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line, title: { font: { size }, standoff: 10 } };
  return {
    data: { heatmap: [{ colorbar: { title: { font: { size } } } }] },
    layout: {
      font: { color: ink, size, family }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: axis, yaxis: axis, hoverlabel: { bgcolor: soft, bordercolor: line, font: { color: ink } },
    },
  };
}

function pageTemplate() {
  if (printing) return template("#1b1f24", "#dfe3e8", "#f5f6f8", 10, "Helvetica, Arial, sans-serif");
  const css = getComputedStyle(document.documentElement), get = (name) => css.getPropertyValue(name).trim();
  return template(get("--ink"), get("--line"), get("--soft"), narrow.matches ? 11 : 12.5, getComputedStyle(document.body).fontFamily);
}

const LONG_TITLE = 36; // letters, of which a phone has room for about 40

// On a phone legends and long titles take several lines, a scale beside a figure takes half of it, and two panels do not fit.
function slim(data, layout, width) {
  if (layout.yaxis.scaleanchor) layout.height = Math.min(layout.height, width + 60);
  if (layout.xaxis2 && layout.xaxis2.domain && !layout.yaxis2) {
    data = data.filter((t) => t.xaxis !== "x2");
    layout.xaxis = { ...layout.xaxis, domain: [0, 1] };
    delete layout.xaxis2;
  }
  const title = (layout.xaxis.title || {}).text || "", middle = title.indexOf(" ", title.length / 2);
  if (title.length > LONG_TITLE && middle > 0) {
    layout.xaxis = { ...layout.xaxis, title: { ...layout.xaxis.title, text: `${title.slice(0, middle)}<br>${title.slice(middle + 1)}` } };
    layout.height += 14;
  }
  const named = data.filter((t) => t.name && t.showlegend !== false && t.type !== "heatmap").length;
  if (named > 1) layout.height += 20 * Math.ceil(named / 2);
  layout.legend = { ...layout.legend, font: { size: 10 } };
  if (layout.title) {
    layout.title = { ...layout.title, font: { size: 11 } };
    layout.margin = { ...layout.margin, t: layout.margin.t + 16 };
    layout.height += 16;
  }
  return data.map((trace) => {
    if (!trace.colorbar) return trace;
    layout.height += 50;
    const title = { text: trace.colorbar.title.text.replace("<br>", " "), side: "top" };
    const bar = { title, orientation: "h", thickness: 10, y: 1, yanchor: "bottom", x: 0.5, len: 0.9, tickfont: { size: 9 } };
    return { ...trace, colorbar: bar };
  });
}

async function draw(id, figure, revision) {
  const box = typeof id === "string" ? byId(id) : id;
  box.hidden = !figure;
  tools(box, figure);
  if (!figure) {
    shown.delete(box);
    Plotly.purge(box);
    return;
  }
  shown.set(box, [figure, revision]);
  const { data, layout } = coloured({ data: figure.data, layout: figure.layout });
  const width = printing ? PRINT_WIDTH : undefined;
  const full = { ...layout, template: pageTemplate(), uirevision: revision || "same", autosize: !printing, width };
  const traces = narrow.matches && !printing ? slim(data, full, box.clientWidth || 320) : data;
  await Plotly.react(box, traces, full, { displaylogo: false, displayModeBar: false });
  if (!box.dataset.drawn) box.dataset.drawn = "yes";
}

// Plotly changes colours in place; of another arrangement (a scale on another side) it would leave parts behind.
function redraw(anew) {
  for (const [box, [figure, revision]] of shown) {
    if (anew) Plotly.purge(box);
    draw(box, figure, revision).catch(trouble);
  }
  swatches();
}

function printed(now) {
  printing = now;
  for (const notes of document.querySelectorAll("details.lines")) notes.open = now;
  redraw(narrow.matches);
}

// Not Plotly's own answer to a window's new size, which forgets a figure's height.
let wasNarrow = narrow.matches, resizing = 0;
function resized() {
  if (printing) return;
  if (wasNarrow !== narrow.matches) redraw(true);
  else for (const box of shown.keys()) if (box.offsetParent) Plotly.relayout(box, { autosize: true }).catch(trouble);
  wasNarrow = narrow.matches;
}

function swatches() {
  for (const box of document.querySelectorAll(".swatch")) {
    const number = Number(box.dataset.colour), tone = about.colours[number % about.colours.length];
    box.style.background = isDark() ? about.dark[tone] : tone;
    box.style.clipPath = SHAPES[about.symbols[number % about.symbols.length]];
  }
}

// ---- curves ---------------------------------------------------------------------------------------------------

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const deviation = (values) => {
  const middle = mean(values);
  return values.length > 1 ? Math.sqrt(values.reduce((a, v) => a + (v - middle) ** 2, 0) / (values.length - 1)) : 0;
};

// The curves of some methods and seeds: a list per method of its traces (low, high, mean; or the mean alone).
function chosenCurves(figure, methods, seeds) {
  const groups = new Map();
  for (const trace of figure.data) {
    if (!methods.has(trace.meta.group)) continue;
    if (!groups.has(trace.meta.group)) groups.set(trace.meta.group, []);
    groups.get(trace.meta.group).push(trace);
  }
  const found = [];
  for (const traces of groups.values()) {
    const line = traces[traces.length - 1];
    const kept = Object.entries(line.meta.seeds).filter(([seed]) => seeds.has(Number(seed)));
    if (!kept.length) continue;
    const columns = line.x.map((_, i) => kept.map(([, values]) => values[i]).filter((v) => v !== null));
    const middle = columns.map((c) => (c.length ? mean(c) : null));
    const middleLine = { ...line, y: middle, meta: { ...line.meta, seeds: Object.fromEntries(kept) } };
    if (kept.length > 1) {
      middleLine.text = line.x.map((_, i) => kept.map(([seed, values]) => `seed ${seed}: ${values[i]}`).join("<br>"));
      middleLine.hovertemplate = line.hovertemplate.replace("<extra>", "<br>%{text}<extra>");
    }
    const side = (sign) => columns.map((c, i) => (c.length ? middle[i] + sign * deviation(c) : null));
    if (kept.length < 2 || traces.length < 3) found.push([middleLine]);
    else found.push([{ ...traces[0], y: side(-1) }, { ...traces[1], y: side(1) }, middleLine]);
  }
  return found;
}

// One panel per method, the others' lines in grey behind it; all panels have the same axes.
function multiples(figure, curves, width) {
  const across = Math.max(1, Math.min(curves.length, Math.floor(width / (width < 640 ? 150 : 250)))), down = Math.ceil(curves.length / across);
  const values = curves.flat().flatMap((t) => t.y).filter((v) => v !== null), ends = curves.flat().flatMap((t) => t.x);
  const low = Math.min(...values), high = Math.max(...values), pad = 0.05 * (high - low || 1);
  const { xaxis, yaxis } = figure.layout, height = 210 * down + 60;
  const layout = { ...figure.layout, height, annotations: [], showlegend: false, margin: { l: 62, r: 8, t: 28, b: 52 } };
  const data = [];
  const gap = 0.028, tall = 46 / (height - 80);
  curves.forEach((own, i) => {
    const n = i ? String(i + 1) : "", column = i % across, row = Math.floor(i / across);
    const wide = (1 - gap * (across - 1)) / across, high_ = (1 - tall * (down - 1)) / down;
    const x = [column * (wide + gap), column * (wide + gap) + wide], top = 1 - row * (high_ + tall);
    const bottom = i + across >= curves.length;
    layout[`xaxis${n}`] = { ...xaxis, domain: x, anchor: `y${n}`, range: [0, Math.max(...ends)], showticklabels: bottom, nticks: 5, title: { text: "" } };
    layout[`yaxis${n}`] = { ...yaxis, domain: [top - high_, top], anchor: `x${n}`, range: [low - pad, high + pad], showticklabels: column === 0, nticks: 5, title: { text: "" } };
    const line = own[own.length - 1];
    layout.annotations.push({ text: `<b>${line.name}</b>`, xref: "paper", yref: "paper", x: x[0], y: top, xanchor: "left", yanchor: "bottom", showarrow: false });
    for (const other of curves) {
      if (other === own) continue;
      const { x: ox, y: oy } = other[other.length - 1];
      data.push({ type: "scatter", mode: "lines", x: ox, y: oy, xaxis: `x${n}`, yaxis: `y${n}`, line: { color: about.muted, width: 1 }, opacity: 0.35, hoverinfo: "skip", meta: { behind: true } });
    }
    for (const trace of own) data.push({ ...trace, xaxis: `x${n}`, yaxis: `y${n}` });
  });
  const shared = { xref: "paper", yref: "paper", showarrow: false };
  layout.annotations.push({ ...shared, text: xaxis.title.text, x: 0.5, y: 0, yshift: -34, yanchor: "top" });
  layout.annotations.push({ ...shared, text: yaxis.title.text, x: 0, y: 0.5, xshift: -38, textangle: -90, xanchor: "right" });
  return { data, layout };
}

function together(figure, curves) {
  const bands = curves.length <= 4;
  return { data: curves.flatMap((traces) => (bands ? traces : traces.slice(-1))), layout: figure.layout };
}

dark.addEventListener("change", () => redraw(false));
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(resized, 100);
});
addEventListener("beforeprint", () => printed(true));
addEventListener("afterprint", () => printed(false));
