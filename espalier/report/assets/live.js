"use strict";
// A live page: the server says which parts have changed (server-sent events), the page fetches those it shows.
const Live = (() => {
  const shows = { overview: showOverview, curves: showCurves, spread: showSpread };
  const parts = {}; // the versions that are shown
  let news = {}, detail = null, busy = false;

  const address = (path, more) => {
    const query = new URLSearchParams(location.search);
    for (const [k, v] of Object.entries(more || {})) query.set(k, v);
    const text = query.toString();
    return text ? `${path}?${text}` : path;
  };

  async function fetchJson(path, more) {
    const answer = await fetch(address(path, more));
    if (answer.status === 404) return null;
    if (!answer.ok) throw new Error(`the server answered ${answer.status} for ${path}`);
    return answer.json();
  }

  function lost() {
    const line = byId("connection");
    line.textContent = "the watcher cannot be reached: this is the last that it showed";
    line.classList.add("lost");
  }

  async function catchUp() {
    if (busy) return;
    busy = true;
    try {
      for (let again = true; again;) {
        again = false;
        for (const [name, show] of Object.entries(shows)) {
          if (!news[name] || news[name] === parts[name]) continue;
          parts[name] = news[name];
          const part = await source.get(name);
          if (part) await show(part);
          loadPlotly().then(() => (name === "overview" ? showVerdict() : null)).catch(trouble);
          again = true;
        }
        const key = byId("run").value, name = `detail/${key}`;
        if (key && news[name] && news[name] !== detail) {
          detail = news[name];
          const part = await source.get(name);
          if (part && byId("run").value === key) await showDetail(part, key);
          again = true;
        }
      }
      document.body.dataset.ready = "yes";
    } finally {
      busy = false;
    }
  }

  function begin() {
    source = {
      get: (name) => fetchJson(`section/${name}`),
      window: (key, start, stop) => fetchJson(`section/timeline/${key}`, { start, stop }),
    };
    const stream = new EventSource(address("events"));
    stream.addEventListener("news", (event) => {
      news = JSON.parse(event.data);
      document.body.dataset.news = String(Number(document.body.dataset.news || 0) + 1);
      catchUp().catch(trouble);
    });
    stream.onerror = lost;
  }

  return { begin };
})();

if (about.live) Live.begin();
else begin().catch(trouble);
