"use strict";
// Parts of the page come from the file itself or, live, from the server; either way they are drawn by the same code.
const about = JSON.parse(document.getElementById("about").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 640px)");
const byId = (id) => document.getElementById(id);
const shown = new Map(); // figures on the page by element: drawn again when the colours change
const page = { overview: null, curves: null, detail: null, key: null, look: null, frames: {} };

function trouble(error) {
  const box = byId("trouble");
  box.textContent = `Something on this page could not be shown: ${error && error.message ? error.message : error}`;
  box.hidden = false;
  console.error(error);
}

function unpacked(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

// Where parts come from: this file. A live page puts its server in place of it.
let source = {
  async get(name) {
    const found = document.querySelector(`script[data-part="${name}"]`);
    return found ? unpacked(found).json() : null;
  },
};

// Plotly comes packed as well: it is two thirds of the file otherwise.
async function loadPlotly() {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser is older than 2023 and cannot unpack the figures; please open it in a newer one");
  }
  const script = document.createElement("script");
  script.textContent = await unpacked(byId("plotly")).text();
  document.head.append(script);
}

// ---- colours --------------------------------------------------------------------------------------------------

const swaps = new RegExp(Object.keys(about.dark).map((k) => k.replace(/[()]/g, "\\$&")).join("|"), "g");

function coloured(value) {
  return dark.matches ? JSON.parse(JSON.stringify(value).replace(swaps, (c) => about.dark[c])) : value;
}

function template() {
  const css = getComputedStyle(document.documentElement);
  const ink = css.getPropertyValue("--ink").trim(), line = css.getPropertyValue("--line").trim();
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line };
  return {
    layout: {
      font: { color: ink, size: narrow.matches ? 11 : 12.5, family: getComputedStyle(document.body).fontFamily },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
      hoverlabel: { bgcolor: css.getPropertyValue("--soft").trim(), bordercolor: line, font: { color: ink } },
    },
  };
}

// On a phone legends take several lines and a scale beside a figure takes half of it: make room, put scales on top.
function slim(data, layout, width) {
  if (layout.yaxis.scaleanchor) layout.height = Math.min(layout.height, width + 60);
  const named = data.filter((t) => t.name && t.showlegend !== false && t.type !== "heatmap").length;
  if (named > 1) layout.height += 20 * Math.ceil(named / 2);
  layout.legend = { ...layout.legend, font: { size: 10 } };
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
  if (!figure) {
    shown.delete(box);
    Plotly.purge(box);
    return;
  }
  shown.set(box, [figure, revision]);
  const { data, layout } = coloured({ data: figure.data, layout: figure.layout });
  const full = { ...layout, template: template(), uirevision: revision || "same", autosize: true };
  const traces = narrow.matches ? slim(data, full, box.clientWidth || 320) : data;
  await Plotly.react(box, traces, full, { responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover" });
  if (!box.dataset.drawn) box.dataset.drawn = "yes";
}

function recolour() {
  for (const [box, [figure, revision]] of shown) draw(box, figure, revision).catch(trouble);
  swatches();
}

function swatches() {
  for (const box of document.querySelectorAll(".swatch")) {
    const tone = about.colours[Number(box.dataset.colour) % about.colours.length];
    box.style.background = dark.matches ? about.dark[tone] : tone;
  }
}

// ---- controls -------------------------------------------------------------------------------------------------

function options(select, items, chosen) {
  const keep = items.some((i) => i.key === select.value) ? select.value : chosen;
  select.replaceChildren(...items.map((i) => new Option(i.title, i.key)));
  select.value = keep && items.some((i) => i.key === keep) ? keep : (items[0] || {}).key || "";
  return select.value;
}

function radios(box, name, items, change) {
  if (box.querySelector("input")) return;
  items.forEach((item, n) => {
    const input = Object.assign(document.createElement("input"), { type: "radio", name, value: item.key, checked: n === 0 });
    input.addEventListener("change", change);
    const text = Object.assign(document.createElement("span"), { textContent: item.title });
    const label = document.createElement("label");
    label.append(input, text);
    box.append(label);
  });
}

// ---- parts ----------------------------------------------------------------------------------------------------

function showOverview(part) {
  page.overview = part;
  byId("title").textContent = part.title;
  document.title = `${part.title} · espalier`;
  byId("verdict-body").innerHTML = part.verdict;
  byId("runs-body").innerHTML = part.runs;
  byId("settings-body").innerHTML = part.settings;
  byId("runs").hidden = !about.live;
  byId("published").hidden = !part.published;
  byId("published-body").innerHTML = part.published || "";
  const before = byId("run").value;
  const chosen = options(byId("run"), part.details, before);
  byId("one").hidden = part.details.length === 0;
  swatches();
  return chosen;
}

async function showCurves(part) {
  if (part) page.curves = part;
  if (!page.curves) return;
  const again = () => showCurves().catch(trouble);
  radios(byId("curves-axis"), "axis", page.curves.axes, again);
  const measure = options(byId("curves-measure"), page.curves.measures, null);
  byId("curves-measure").onchange = again;
  const axis = document.querySelector("#curves-axis input:checked").value;
  await draw("plot-curves", page.curves.figures[`${axis}/${measure}`], `${axis}/${measure}`);
}

async function showSpread(part) {
  await draw("plot-spread-device", part.figures.device);
  await draw("plot-spread-edge", part.figures.edge);
}

function frameOf(figure, number, look) {
  const frame = (figure.frames || [])[number];
  if (!frame) return figure;
  let data = figure.data.slice();
  frame.traces.forEach((trace, i) => {
    const change = frame.data[i];
    const marker = change.marker ? { ...data[trace].marker, ...change.marker } : data[trace].marker;
    data[trace] = { ...data[trace], ...change, ...(marker ? { marker } : {}) };
  });
  const style = (figure.looks || {})[look];
  if (style) {
    data[1] = { ...data[1], marker: style.markers[style.markers.length > 1 ? number : 0] };
    data = data.slice(0, frame.traces.length).concat(style.legend);
  }
  return { data, layout: figure.layout };
}

// A slider that goes through a figure's frames; it stays at the end if it was there, so that live pages show the newest.
function sliding(name, figure, last) {
  const slider = byId(`${name}-time`), caption = byId(`${name}-caption`);
  const count = figure && figure.frames ? figure.frames.length : 0;
  const atEnd = slider.max === "0" ? last : Number(slider.value) >= Number(slider.max);
  slider.max = String(Math.max(0, count - 1));
  if (atEnd && (about.live || last)) slider.value = slider.max;
  slider.closest("label").hidden = count < 2;
  const again = async () => {
    const number = Number(slider.value);
    const frame = count ? figure.frames[number] : null;
    caption.textContent = frame ? frame.caption : "";
    await draw(`plot-${name}`, figure ? frameOf(figure, number, page.look) : null, name);
  };
  slider.oninput = () => again().catch(trouble);
  page.frames[name] = again;
  return again();
}

async function showTree(figure) {
  byId("tree").hidden = !figure;
  const titles = { label: "main label", cluster: "cluster", home: "home edge" };
  const looks = Object.keys((figure && figure.looks) || {}).map((key) => ({ key, title: titles[key] }));
  const select = byId("tree-look");
  select.closest("label").hidden = looks.length < 2;
  page.look = options(select, looks, looks.some((l) => l.key === "cluster") ? "cluster" : "label");
  select.onchange = () => {
    page.look = select.value;
    page.frames.tree().catch(trouble);
  };
  byId("tree-play").hidden = !figure || !figure.frames || figure.frames.length < 2;
  await sliding("tree", figure, about.live);
}

let playing = null;
byId("tree-play").addEventListener("click", () => {
  const button = byId("tree-play"), slider = byId("tree-time");
  const stop = () => {
    clearInterval(playing);
    playing = null;
    button.textContent = "play";
  };
  if (playing) return stop();
  if (slider.value === slider.max) slider.value = "0";
  button.textContent = "stop";
  playing = setInterval(() => {
    if (slider.value === slider.max) return stop();
    slider.value = String(Number(slider.value) + 1);
    slider.oninput();
  }, 400);
});

async function showDetail(part, key) {
  page.detail = part;
  page.key = key;
  if (!part) return;
  await draw("plot-spread", part.figures.spread);
  await draw("plot-edges", part.figures.edges);
  await showTree(part.figures.tree);
  await Timeline.show(part.timeline, key);
  byId("data").hidden = !part.figures.labels;
  await draw("plot-labels", part.figures.labels);
  await draw("plot-devices", part.figures.devices);
  byId("similarity").hidden = !part.figures.similarity;
  await sliding("similarity", part.figures.similarity, true);
  byId("notes").hidden = part.notes.length === 0;
  const body = byId("notes-body");
  while (body.children.length > part.notes.length) {
    shown.delete(body.lastChild);
    Plotly.purge(body.lastChild);
    body.lastChild.remove();
  }
  for (const [number, note] of part.notes.entries()) {
    if (!body.children[number]) body.append(Object.assign(document.createElement("div"), { className: "plot" }));
    await draw(body.children[number], note.figure, `${key}/${note.title}`);
  }
}

async function chooseRun() {
  const key = byId("run").value;
  if (key) await showDetail(await source.get(`detail/${key}`), key);
}

byId("run").addEventListener("change", () => chooseRun().catch(trouble));
dark.addEventListener("change", recolour);
narrow.addEventListener("change", recolour);
byId("version").textContent = about.version;

async function begin() {
  showOverview(await source.get("overview"));
  await showCurves(await source.get("curves"));
  await showSpread(await source.get("spread"));
  await chooseRun();
  document.body.dataset.ready = "yes";
}
