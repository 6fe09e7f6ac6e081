"use strict";
// Parts of the page come from the file itself or, live, from the server; either way they are drawn by the same code.
const about = JSON.parse(document.getElementById("about").textContent);
const byId = (id) => document.getElementById(id);
const page = { overview: null, curves: null, spread: null, detail: null, key: null, look: null, frames: {}, hidden: new Set(), left: new Set() };
const FEWEST_TRIED = 3, FEWEST_EXPLAINED = 6, MOST_PANELS = 24; // values that make a picture; methods that are drawn side by side
let plotly = null; // while it is being unpacked, and after

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
function loadPlotly() {
  plotly = plotly || unpackPlotly();
  return plotly;
}

async function unpackPlotly() {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser is older than 2023 and cannot unpack the figures; please open it in a newer one");
  }
  const script = document.createElement("script");
  script.textContent = await unpacked(byId("plotly")).text();
  document.head.append(script);
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

// Chips that leave things out of the page: one for each, pressed while it is shown.
function chips(box, title, items, left, change) {
  box.hidden = items.length < 2;
  box.title = "Click one to leave it out, again to take it back.";
  box.replaceChildren(title, ...items.map((item) => {
    const chip = Object.assign(document.createElement("button"), { type: "button", className: "chip" });
    if (item.colour !== undefined) {
      const mark = Object.assign(document.createElement("i"), { className: "swatch" });
      mark.dataset.colour = item.colour;
      chip.append(mark);
    }
    chip.append(item.title);
    chip.setAttribute("aria-pressed", String(!left.has(item.key)));
    chip.addEventListener("click", () => {
      if (left.has(item.key)) left.delete(item.key);
      else if (left.size < items.length - 1) left.add(item.key);
      chip.setAttribute("aria-pressed", String(!left.has(item.key)));
      change();
    });
    return chip;
  }));
}

// ---- parts ----------------------------------------------------------------------------------------------------

async function showOverview(part) {
  page.overview = part;
  byId("title").textContent = part.title;
  document.title = `${part.title} · espalier`;
  byId("about-line").textContent = part.about;
  const line = byId("connection");
  line.textContent = about.live ? part.state : "";
  line.classList.remove("lost");
  byId("runs-body").innerHTML = part.runs;
  byId("settings-body").innerHTML = part.settings;
  byId("runs").hidden = !about.live;
  byId("published").hidden = !part.published;
  byId("published-body").innerHTML = part.published || "";
  options(byId("run"), part.details, byId("run").value);
  byId("one").hidden = part.details.length === 0;
  const again = () => Promise.all([showVerdict(), showCurves(), showSpread()]).catch(trouble);
  chips(byId("methods"), "methods", part.methods.map((m) => ({ key: m.number, title: m.title, colour: m.number })), page.hidden, again);
  chips(byId("seeds"), "seeds", part.seeds.map((s) => ({ key: s, title: String(s) })), page.left, () => showCurves().catch(trouble));
  options(byId("verdict-measure"), part.measures, null);
  byId("verdict-measure").onchange = again;
  radios(byId("verdict-budget"), "budget", part.budgets, again);
  byId("verdict-controls").hidden = part.measures.length === 0;
  await showVerdict();
}

const chosen = (box) => (document.querySelector(`#${box} input:checked`) || {}).value;
const verdictShown = () => page.overview.verdicts[`${byId("verdict-measure").value}/${chosen("verdict-budget")}`];

async function showVerdict() {
  const found = verdictShown(), body = byId("verdict-body");
  byId("verdict-export").hidden = !found;
  if (!found) {
    if (body.querySelector(".controls")) body.before(byId("verdict-controls"));
    body.replaceChildren(Object.assign(document.createElement("p"), { className: "loading", textContent: "No run has been evaluated yet." }));
    return;
  }
  const same = body.querySelectorAll(".block").length === found.blocks.length;
  if (!same) {
    body.replaceChildren(...found.blocks.map(blankBlock));
    body.querySelector(".detail").after(byId("verdict-controls")); // the sentence comes first
  }
  for (const [i, block] of found.blocks.entries()) {
    const box = body.children[i], open = [...box.querySelectorAll("details")].map((d) => d.open);
    box.querySelector("h3").textContent = block.name;
    box.querySelector("h3").hidden = !block.name;
    box.querySelector(".headline").textContent = block.headline.replace(/ ± /g, "\u00a0±\u00a0");
    box.querySelector(".detail").textContent = block.detail;
    const drawn = block.drawn < block.order.length ? ` The first ${block.drawn} are drawn; the table has all ${block.order.length}.` : "";
    box.querySelector(".drawn").textContent = drawn;
    box.querySelector(".key").hidden = page.overview.seeds.length < 3 || block.order.length < 2;
    box.querySelector(".table").innerHTML = block.table;
    box.querySelectorAll("details").forEach((d, n) => { d.open = Boolean(open[n]); });
    for (const row of box.querySelectorAll("tr[data-group]")) row.hidden = page.hidden.has(Number(row.dataset.group));
  }
  swatches();
  if (!plotly) return;
  await plotly;
  for (const [i, block] of found.blocks.entries()) {
    await showTried(body.children[i].querySelector(".tried"), block, byId("verdict-measure").selectedOptions[0].text);
    await draw(body.children[i].querySelector(".lead"), withoutHidden(block.figure), "lead");
  }
}

// What was tried of a method (a sweep's settings, an option's values): its score against each key that has several.
async function showTried(box, block, score) {
  const choices = new Map(page.overview.methods.map((m) => [m.number, m.choices]));
  const points = block.order.map((group, n) => ({ group, of: choices.get(group), method: choices.get(group)["method.name"] || "", ...block.scores[n] }));
  const values = (key, method) => new Set(points.filter((p) => p.method === method).map((p) => p.of[key]).filter(Number.isFinite));
  const several = (key, least) => points.some((p) => values(key, p.method).size >= least);
  const every = [...new Set(points.flatMap((p) => Object.keys(p.of)))];
  const weight = (key) => explained(points.filter((p) => p.mean !== null), key);
  const keys = every.some((k) => several(k, FEWEST_TRIED)) ? every.filter((k) => several(k, 2)) : [];
  keys.sort((a, b) => weight(b) - weight(a)); // what matters most comes first
  box.hidden = !keys.length;
  while (box.children.length < keys.length) { // all of them before one is drawn: they share the width
    const plot = Object.assign(document.createElement("div"), { className: "plot", id: `${box.parentNode.querySelector(".lead").id}-tried-${box.children.length + 1}` });
    box.append(document.createElement("div"));
    box.lastChild.append(plot);
  }
  for (const [i, key] of keys.entries()) {
    const share = keys.length > 1 ? weight(key) : NaN;
    await draw(box.children[i].firstChild, triedFigure(points, key, keys.length === 1, share, score), `tried/${key}`);
  }
}

// The share of the differences between settings of one method that a key alone explains: the variance between its
// values (of more than four, between their lower, middle and upper third), of all. NaN where there are too few settings.
function explained(points, key) {
  let between = 0, all = 0, count = 0;
  for (const method of new Set(points.map((p) => p.method))) {
    const own = points.filter((p) => p.method === method && Number.isFinite(p.of[key])).sort((a, b) => a.of[key] - b.of[key]);
    const distinct = new Set(own.map((p) => p.of[key])).size;
    const bin = (p, n) => (distinct > 4 ? Math.floor((3 * n) / own.length) : p.of[key]), bins = new Map();
    own.forEach((p, n) => bins.set(bin(p, n), [...(bins.get(bin(p, n)) || []), p.mean]));
    const mean = (of) => of.reduce((sum, y) => sum + y, 0) / of.length, middle = mean(own.map((p) => p.mean));
    for (const of of bins.values()) between += of.length * (mean(of) - middle) ** 2;
    for (const p of own) all += (p.mean - middle) ** 2;
    count = Math.max(count, own.length);
  }
  return count < FEWEST_EXPLAINED || all === 0 ? NaN : between / all;
}

function triedFigure(points, key, alone, share, score) {
  const shown = points.filter((p) => Number.isFinite(p.of[key]) && p.mean !== null && !page.hidden.has(p.group));
  const all = shown.map((p) => p.of[key]), least = Math.min(...all), log = least > 0 && Math.max(...all) / least >= 8;
  const name = key.replace(/^method\./, ""), data = [], ticks = [...new Set(all)].sort((a, b) => a - b);
  const title = Number.isNaN(share) ? name : `${name}: ${Math.round(100 * share)} % of the differences`;
  for (const [n, method] of [...new Set(points.map((p) => p.method))].sort().entries()) {
    const own = shown.filter((p) => p.method === method).sort((a, b) => a.of[key] - b.of[key]);
    if (!own.length) continue;
    const color = about.colours[n % about.colours.length], symbol = about.symbols[n % about.symbols.length];
    const seeds = own.flatMap((p) => p.seeds.map((y) => [p.of[key], y])), shared = { type: "scatter", legendgroup: method };
    const joined = alone && new Set(own.map((p) => p.of[key])).size === own.length;
    if (seeds.length > own.length) data.push({
      ...shared, name: `${method}, every seed`, mode: "markers", showlegend: false, hoverinfo: "skip",
      x: seeds.map((s) => s[0]), y: seeds.map((s) => s[1]), marker: { color, size: 6, symbol: "line-ew-open", opacity: 0.7 },
    });
    data.push({
      ...shared, name: method, mode: joined ? "lines+markers" : "markers", x: own.map((p) => p.of[key]), y: own.map((p) => p.mean),
      line: { color, width: 1.5 }, marker: { color, size: 9, symbol }, hovertemplate: `${method}, ${name} %{x}: %{y:.4f}<extra></extra>`,
    });
  }
  const axis = (text) => ({ title: { text }, automargin: true, zeroline: false });
  return { data, layout: {
    xaxis: { ...axis(title), type: log ? "log" : "linear", ...(ticks.length <= 8 ? { tickvals: ticks, ticktext: ticks.map(String) } : log ? { dtick: 1 } : {}) },
    yaxis: axis(score), height: 340,
    margin: { l: 56, r: 16, t: 24, b: 48 }, hovermode: "closest", hoverlabel: { align: "left", namelength: -1 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left" },
  } };
}

function blankBlock(_, number) {
  const box = Object.assign(document.createElement("div"), { className: "block" });
  box.innerHTML = '<h3></h3><p class="headline"></p><p class="detail"></p><div class="tried pair" hidden></div><div class="plot lead"></div><p class="note key" hidden></p><div class="table"></div>';
  box.querySelector(".key").textContent = "Mark: mean over seeds; ticks: every seed.";
  const right = Object.assign(document.createElement("span"), { className: "not-on-phones", textContent: " Right: the mean difference with its 95\u00a0% interval, in grey where zero is in it." });
  box.querySelector(".key").append(right, Object.assign(document.createElement("span"), { className: "drawn" }));
  box.querySelector(".lead").id = number ? `plot-lead-${number + 1}` : "plot-lead";
  return box;
}

// The place of a method in the verdict that is shown: figures have the methods in this order.
function rankOf(group) {
  const found = page.overview && verdictShown();
  const orders = found ? found.blocks.flatMap((b) => b.order) : [];
  return orders.includes(group) ? orders.indexOf(group) : orders.length;
}

// A figure with one row per method, without the methods that are left out.
function withoutHidden(figure) {
  if (!figure || !page.hidden.size) return figure;
  const rows = new Set(figure.data.filter((t) => t.meta && page.hidden.has(t.meta.group)).flatMap((t) => t.y));
  const y = { ...figure.layout.yaxis };
  if (y.categoryarray) y.categoryarray = y.categoryarray.filter((name) => !rows.has(name));
  return { data: figure.data.filter((t) => !rows.has(t.y[0])), layout: { ...figure.layout, yaxis: y } };
}

byId("verdict-export").addEventListener("click", (event) => {
  const kind = event.target.dataset.table, found = verdictShown();
  if (kind === "csv") save(fileName("verdict.csv"), found.csv, "text/csv");
  if (kind === "latex") save(fileName("verdict.tex"), found.latex, "application/x-tex");
});

async function showCurves(part) {
  if (part) page.curves = part;
  if (!page.curves || !page.overview) return;
  const again = () => showCurves().catch(trouble);
  radios(byId("curves-axis"), "axis", page.curves.axes, again);
  const measure = options(byId("curves-measure"), page.curves.measures, null);
  byId("curves-measure").onchange = again;
  const axis = chosen("curves-axis"), figure = page.curves.figures[`${axis}/${measure}`];
  if (!figure) return;
  const methods = new Set(page.overview.methods.map((m) => m.number).filter((n) => !page.hidden.has(n)));
  const seeds = new Set(page.overview.seeds.filter((s) => !page.left.has(s)));
  const rank = (traces) => rankOf(traces[0].meta.group);
  const found = chosenCurves(figure, methods, seeds).sort((a, b) => rank(a) - rank(b)), crowded = found.length > 4 && found.length <= MOST_PANELS;
  const layouts = [{ key: "together", title: "together" }, { key: "apart", title: "side by side" }];
  radios(byId("curves-layout"), "layout", crowded ? layouts.reverse() : layouts, again);
  byId("curves-layout").hidden = found.length < 2;
  const apart = found.length > 1 && chosen("curves-layout") === "apart";
  await loadPlotly();
  const width = byId("plot-curves").clientWidth || 800;
  await draw("plot-curves", apart ? multiples(figure, found, width) : together(figure, found), `${axis}/${measure}/${apart}`);
  const several = seeds.size > 1;
  byId("curves-note").textContent = (several ? `Line: mean over ${seeds.size} seeds. ` : "")
    + (several && (apart || !crowded) ? "Band: ± one standard deviation. " : "")
    + (apart ? "Grey: the other methods. " : "") + (several ? "A line ends where the first of its seeds ends." : "");
  byId("seeds-hint").hidden = page.overview.seeds.length < 2;
}

async function showSpread(part) {
  if (part) page.spread = part;
  if (!page.spread) return;
  await loadPlotly();
  for (const scope of ["device", "edge"]) {
    const figure = withoutHidden(page.spread.figures[scope]); // boxes are drawn from the bottom up
    await draw(`plot-spread-${scope}`, figure && { ...figure, data: figure.data.slice().sort((a, b) => rankOf(b.meta.group) - rankOf(a.meta.group)) });
  }
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
  await sliding("tree", figure, true); // in some methods the tree is still to be built at the beginning
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
  await loadPlotly();
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
  const body = byId("notes-body"), was = body.children.length;
  while (body.children.length > part.notes.length) {
    const plot = body.lastChild.firstChild;
    shown.delete(plot);
    Plotly.purge(plot);
    body.lastChild.remove();
  }
  while (body.children.length < part.notes.length) { // all boxes first: how wide one is depends on how many there are
    const box = document.createElement("div");
    box.append(Object.assign(document.createElement("div"), { className: "plot", id: `plot-note-${body.children.length + 1}` }));
    body.append(box);
  }
  for (const [number, note] of part.notes.entries()) {
    if (body.children.length !== was) Plotly.purge(body.children[number].firstChild);
    await draw(body.children[number].firstChild, note.figure, `${key}/${note.title}`);
  }
}

async function chooseRun() {
  const key = byId("run").value;
  if (key) await showDetail(await source.get(`detail/${key}`), key);
}

byId("run").addEventListener("change", () => chooseRun().catch(trouble));
byId("version").textContent = about.version;

async function begin() {
  await showOverview(await source.get("overview")); // words first, figures when what draws them is unpacked
  await loadPlotly();
  await showVerdict();
  await showCurves(await source.get("curves"));
  await showSpread(await source.get("spread"));
  await chooseRun();
  document.body.dataset.ready = "yes";
}
