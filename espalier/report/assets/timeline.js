"use strict";
// The timeline: what each node did for most of each column of a window. Spans are binned here, so that zooming
// into a window of 200,000 spans takes milliseconds; outside the window with spans the overview is shown.
const Timeline = (() => {
  const WAITS = 0, SENDS = 3, RECEIVES = 4, AWAY = 5;
  let material = null, key = null, view = null, asked = 0;

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

  function unpack(found) {
    const start = new Int32Array(bytes(found.spans.start).buffer), length = new Int32Array(bytes(found.spans.length).buffer);
    const spans = {
      row: new Int16Array(bytes(found.spans.row).buffer), state: bytes(found.spans.state),
      other: new Int16Array(bytes(found.spans.other).buffer),
      start: new Float64Array(start.length), stop: new Float64Array(start.length),
    };
    let ticks = 0;
    for (let i = 0; i < start.length; i++) {
      ticks += start[i];
      spans.start[i] = ticks * found.tick;
      spans.stop[i] = (ticks + length[i]) * found.tick;
    }
    return spans;
  }

  // What each row does by state, spans that overlap put together; the last list is anything at all.
  function merged(found) {
    const { row, state, start, stop, other } = found.unpacked, rows = found.rows.length;
    const lists = Array.from({ length: AWAY + 2 }, () => ({ row: [], start: [], stop: [] }));
    const latest = lists.map(() => new Int32Array(rows).fill(-1));
    const add = (kind, who, from, to) => {
      const list = lists[kind], at = latest[kind][who];
      if (at >= 0 && from <= list.stop[at]) list.stop[at] = Math.max(list.stop[at], to);
      else { latest[kind][who] = list.row.push(who) - 1; list.start.push(from); list.stop.push(to); }
    };
    const events = found.away.map(([who, from, to]) => [AWAY, who, from, to]);
    for (let i = 0; i < row.length; i++) {
      if (row[i] >= 0) events.push([state[i], row[i], start[i], stop[i]]);
      if (state[i] === SENDS && other[i] >= 0) events.push([RECEIVES, other[i], start[i], stop[i]]);
    }
    events.sort((a, b) => a[2] - b[2]);
    for (const [kind, who, from, to] of events) { add(kind, who, from, to); add(AWAY + 1, who, from, to); }
    return lists;
  }

  function cover(list, rows, start, stop, bins) {
    const share = new Float32Array(rows * bins), scale = bins / (stop - start);
    for (let i = 0; i < list.row.length && list.start[i] < stop; i++) {
      if (list.stop[i] <= start) continue;
      const a = Math.max(0, (list.start[i] - start) * scale), b = Math.min(bins, (list.stop[i] - start) * scale);
      for (let bin = Math.floor(a), at = list.row[i] * bins; bin < b; bin++) share[at + bin] += Math.min(b, bin + 1) - Math.max(a, bin);
    }
    return share;
  }

  function raster(start, stop, bins) {
    const rows = material.rows.length;
    const share = material.busy.map((list) => cover(list, rows, start, stop, bins));
    const picture = new Uint8Array(rows * bins);
    for (let cell = 0; cell < picture.length; cell++) {
      let best = WAITS, most = 1 - share[AWAY + 1][cell] - 1e-6;
      for (let state = 1; state <= AWAY; state++) if (share[state][cell] > most) { best = state; most = share[state][cell]; }
      picture[cell] = best;
    }
    return picture;
  }

  function fromOverview(start, stop, bins) {
    const rows = material.rows.length, whole = material.overview.bins, picture = new Uint8Array(rows * bins);
    for (let bin = 0; bin < bins; bin++) {
      const time = start + ((bin + 0.5) * (stop - start)) / bins;
      const at = Math.min(whole - 1, Math.floor((time / material.end) * whole));
      for (let row = 0; row < rows; row++) picture[row * bins + bin] = material.raster[row * whole + at];
    }
    return picture;
  }

  const exact = () => view[0] >= material.window[0] - 1e-9 && view[1] <= material.window[1] + 1e-9;

  function unitOf(longest) {
    return [["d", 86400], ["h", 3600], ["min", 60]].find(([, s]) => longest >= 3 * s) || ["s", 1];
  }

  async function redraw() {
    const box = byId("plot-timeline");
    const [unit, size] = unitOf(material.end);
    const bins = Math.max(100, Math.min(1000, Math.round(box.clientWidth || 800)));
    const rows = material.rows.length;
    const picture = exact() ? raster(view[0], view[1], bins) : fromOverview(view[0], view[1], bins);
    const step = (view[1] - view[0]) / bins / size;
    const last = material.states.length - 1;
    const scale = material.states.flatMap((s, i) => [[i / (last + 1), s.colour], [(i + 1) / (last + 1), s.colour]]);
    const data = [{
      type: "heatmap", x0: view[0] / size + step / 2, dx: step, y0: 0, dy: 1, zmin: 0, zmax: last, colorscale: scale,
      z: Array.from({ length: rows }, (_, r) => Array.from(picture.subarray(r * bins, (r + 1) * bins))),
      showscale: false, hoverinfo: "none", name: "nodes",
    }];
    for (const state of material.states) {
      data.push({
        type: "scatter", x: [null], y: [null], mode: "markers", name: state.name, hoverinfo: "skip",
        marker: { symbol: "square", size: 11, color: state.colour },
      });
    }
    for (const mark of Object.values(material.marks)) {
      const here = mark.time.map((t, i) => i).filter((i) => mark.time[i] >= view[0] && mark.time[i] <= view[1]);
      data.push({
        type: "scatter", mode: "markers", name: mark.title, x: here.map((i) => mark.time[i] / size),
        y: here.map((i) => mark.row[i]), text: here.map((i) => `${material.rows[mark.row[i]]}: ${mark.text[i]}`),
        hovertemplate: "%{text}<extra></extra>", marker: { symbol: mark.symbol, size: 8, color: about.colours[3] },
      });
    }
    const ticks = []; // labels that would cover each other share a line
    const apart = (13 * rows) / (material.height - 160), few = apart <= 1;
    material.rows.forEach((name, row) => {
      if (!few && material.leaves[row]) return;
      const before = ticks[ticks.length - 1];
      if (before && row - before.row < apart && before.count < 2) { before.name += `, ${name}`; before.count++; }
      else if (!before || row - before.row >= apart) ticks.push({ row, name, count: 1 });
    });
    const layout = {
      height: material.height, margin: { l: 70, r: 16, t: 24, b: 48 }, dragmode: "zoom", hovermode: "closest",
      legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0 },
      xaxis: { title: { text: `${material.clock} (${unit})` }, range: [view[0] / size, view[1] / size], zeroline: false, showgrid: false },
      yaxis: {
        title: { text: "node" }, range: [rows - 0.5, -0.5], fixedrange: true, tickvals: ticks.map((t) => t.row), ticktext: ticks.map((t) => t.name),
        zeroline: false, showgrid: false, automargin: true,
      },
    };
    byId("timeline-from").value = String(Number(view[0].toPrecision(4)));
    byId("timeline-to").value = String(Number(view[1].toPrecision(4)));
    await draw(box, { data, layout }, `${key}/${view}`);
    describe();
    if (!box.dataset.listening) {
      box.dataset.listening = "yes";
      box.on("plotly_relayout", (change) => {
        const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
        const [, now] = unitOf(material.end);
        if (from !== undefined && to !== undefined) look(from * now, to * now);
        else if (change["xaxis.autorange"]) look(0, material.end);
      });
      box.on("plotly_hover", (event) => read(event.points[0]));
    }
  }

  function describe() {
    const parts = ["Each column shows what a node did for most of that moment."];
    const seconds = (t) => `${Number(t.toPrecision(6)).toLocaleString("en")} s`;
    if (material.window[0] > 0 || material.window[1] < material.end - 1e-9) {
      parts.push(`Spans are here one by one from ${seconds(material.window[0])} to ${seconds(material.window[1])}; `
        + `outside, each column is one of ${material.overview.bins} parts of the run.`);
    }
    if (material.hidden) parts.push(`${material.hidden} devices are not shown.`);
    byId("timeline-note").textContent = parts.join(" ");
  }

  function read(point) {
    if (!point || point.data.type !== "heatmap") return;
    const [, size] = unitOf(material.end);
    const row = point.y, time = point.x * size, name = material.rows[row];
    let text = `${name} ${material.states[point.z].name} for most of the time around ${time.toPrecision(5)} s`;
    if (exact()) {
      const spans = material.unpacked, half = (view[1] - view[0]) / 2000, found = [];
      for (let i = 0; i < spans.row.length && spans.start[i] <= time + half && found.length < 4; i++) {
        if (spans.stop[i] < time - half) continue;
        const sends = spans.row[i] === row, receives = spans.state[i] === SENDS && spans.other[i] === row;
        if (!sends && !receives) continue;
        const what = sends ? material.states[spans.state[i]].name : material.states[RECEIVES].name;
        const peer = sends ? spans.other[i] : spans.row[i];
        const whom = peer >= 0 ? ` ${sends ? "to" : "from"} ${material.rows[peer]}` : "";
        found.push(`${what}${whom} ${spans.start[i].toPrecision(6)}–${spans.stop[i].toPrecision(6)} s`);
      }
      if (found.length) text = `${name}: ${found.join("; ")}`;
    }
    byId("timeline-caption").textContent = text;
  }

  function look(from, to) {
    if (!material) return;
    const end = material.end;
    let start = Math.max(0, Math.min(from, to)), stop = Math.min(end, Math.max(from, to));
    if (!(stop - start > end * 1e-6)) stop = Math.min(end, start + end * 1e-6);
    if (!(stop > start)) return;
    view = [start, stop];
    redraw().catch(trouble);
    if (!exact() && source.window) fetchWindow().catch(trouble);
  }

  // A live page asks the server for the spans of the window it looks at.
  async function fetchWindow() {
    const number = ++asked, wanted = view.slice(), of = key;
    const found = await source.window(of, wanted[0], wanted[1]);
    if (number !== asked || of !== key || !found || !material) return;
    Object.assign(material, { window: found.window, spans: found.spans, tick: found.tick });
    material.unpacked = unpack(material);
    material.busy = merged(material);
    await redraw();
  }

  function shift(by) {
    const width = view[1] - view[0];
    const start = Math.max(0, Math.min(material.end - width, view[0] + by * width));
    look(start, start + width);
  }

  async function show(found, of) {
    byId("timeline").hidden = !found;
    if (!found) { material = null; return; }
    const whole = !material || of !== key || (view[0] === 0 && view[1] >= material.end);
    material = found;
    key = of;
    material.unpacked = unpack(found);
    material.busy = merged(found);
    material.raster = bytes(found.overview.data);
    byId("timeline-caption").textContent = "";
    if (whole) view = [0, material.end];
    await redraw();
    if (!exact() && !whole && source.window) await fetchWindow();
  }

  const typed = () => look(Number(byId("timeline-from").value), Number(byId("timeline-to").value));
  byId("timeline-from").addEventListener("change", typed);
  byId("timeline-to").addEventListener("change", typed);
  byId("timeline-earlier").addEventListener("click", () => shift(-0.5));
  byId("timeline-later").addEventListener("click", () => shift(0.5));
  byId("timeline-in").addEventListener("click", () => look((3 * view[0] + view[1]) / 4, (view[0] + 3 * view[1]) / 4));
  byId("timeline-whole").addEventListener("click", () => look(0, material.end));
  return { show, look, get view() { return view; } };
})();
