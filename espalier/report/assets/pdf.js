"use strict";
// An SVG picture as a PDF page, in vectors: paths, text in the fonts that every reader has, clips, images, opacity.
async function pdfOf(svgText) {
  const host = Object.assign(document.createElement("div"), { innerHTML: svgText });
  host.style.cssText = "position:absolute;left:-99999px;top:0";
  document.body.append(host);
  try {
    return await new PdfPage(host.querySelector("svg")).bytes();
  } finally {
    host.remove();
  }
}

const POINT = 0.75; // of a CSS pixel
const LATIN = { "–": 0x96, "—": 0x97, "−": 0x96, "…": 0x85, "€": 0x80, "•": 0x95, "‘": 0x91, "’": 0x92, "“": 0x93, "”": 0x94 };
const SYMBOL = { "≈": 0xbb, "→": 0xae, "≤": 0xa3, "≥": 0xb3, "∞": 0xa5, "√": 0xd6 };
[..."αβγδεζηθικλμνξοπρστυφχψω"].forEach((letter, i) => { SYMBOL[letter] = "abgdezhqiklmnxoprstufcyw".charCodeAt(i); });

class PdfPage {
  constructor(svg) {
    this.svg = svg;
    this.width = Number(svg.getAttribute("width"));
    this.height = Number(svg.getAttribute("height"));
    this.lines = [];
    this.opacities = new Map();
    this.images = [];
  }

  put(...parts) {
    this.lines.push(parts.map((p) => (typeof p === "number" ? Number(p.toFixed(3)) : p)).join(" "));
  }

  async walk(node, alpha) {
    if (node.nodeType !== Node.ELEMENT_NODE || ["defs", "clipPath", "style", "title"].includes(node.tagName)) return;
    const style = getComputedStyle(node);
    if (style.display === "none" || style.visibility === "hidden") return;
    const opacity = alpha * Number(style.opacity);
    if (opacity === 0) return;
    this.put("q");
    if (node !== this.svg && node.transform) {
      const found = node.transform.baseVal.consolidate();
      if (found) { const m = found.matrix; this.put(m.a, m.b, m.c, m.d, m.e, m.f, "cm"); }
    }
    if (node !== this.svg && node.tagName === "svg") this.put(1, 0, 0, 1, Number(node.getAttribute("x") || 0), Number(node.getAttribute("y") || 0), "cm");
    this.clip(node.getAttribute("clip-path"));
    if (node.tagName === "text") this.text(node, opacity);
    else if (node.tagName === "image") await this.image(node, opacity);
    else {
      const path = outline(node);
      if (path) this.shape(node, path, style, opacity);
      for (const child of node.children) await this.walk(child, opacity);
    }
    this.put("Q");
  }

  referred(url) {
    const found = /url\(["']?[^#]*#([^"')]+)["']?\)/.exec(url || "");
    return found ? [...this.svg.querySelectorAll("[id]")].find((e) => e.id === found[1]) : null;
  }

  clip(url) {
    const clip = this.referred(url);
    if (!clip) return;
    for (const child of clip.children) { const path = outline(child); if (path) this.put(path); }
    this.put("W n");
  }

  opacity(fill, stroke) {
    const key = `${fill.toFixed(3)} ${stroke.toFixed(3)}`;
    if (!this.opacities.has(key)) this.opacities.set(key, `G${this.opacities.size}`);
    this.put(`/${this.opacities.get(key)} gs`);
  }

  shape(node, path, style, alpha) {
    const gradient = this.referred(style.fill);
    if (gradient) return this.gradient(node, path, gradient);
    const fill = rgb(style.fill), stroke = rgb(style.stroke), width = parseFloat(style.strokeWidth);
    const fills = fill && fill[3] * Number(style.fillOpacity) > 0, strokes = stroke && width > 0 && stroke[3] * Number(style.strokeOpacity) > 0;
    if (!fills && !strokes) return;
    this.opacity(fills ? alpha * fill[3] * Number(style.fillOpacity) : 1, strokes ? alpha * stroke[3] * Number(style.strokeOpacity) : 1);
    if (fills) this.put(fill[0], fill[1], fill[2], "rg");
    if (strokes) {
      const dashes = style.strokeDasharray === "none" ? "" : style.strokeDasharray.replace(/px|,/g, " ");
      this.put(stroke[0], stroke[1], stroke[2], "RG", width, "w", { round: 1, square: 2 }[style.strokeLinecap] || 0, "J", { round: 1, bevel: 2 }[style.strokeLinejoin] || 0, "j", `[${dashes}] 0 d`);
    }
    this.put(path, fills ? (strokes ? "B" : "f") : "S");
  }

  // A scale's colours run one way: sixty-four stripes are as smooth as eyes are.
  gradient(node, path, gradient) {
    const box = node.getBBox(), stops = [...gradient.querySelectorAll("stop")].map((s) => [parseFloat(s.getAttribute("offset")) / (s.getAttribute("offset").endsWith("%") ? 100 : 1), rgb(getComputedStyle(s).stopColor)]);
    const ends = ["x1", "y1", "x2", "y2"].map((k) => parseFloat(gradient.getAttribute(k) || 0)), upright = ends[1] !== ends[3], turned = upright ? ends[1] > ends[3] : ends[0] > ends[2];
    this.put("q", path, "W n");
    for (let i = 0; i < 64; i++) {
      const share = (i + 0.5) / 64, at = turned ? 1 - share : share;
      const after = Math.max(1, stops.findIndex(([offset]) => offset >= at)), [a, one] = stops[after - 1], [b, other] = stops[after] || stops[after - 1];
      const mix = b > a ? (at - a) / (b - a) : 0, tone = [0, 1, 2].map((c) => one[c] + mix * (other[c] - one[c]));
      const area = upright ? [box.x, box.y + (i * box.height) / 64, box.width, box.height / 64 + 0.3] : [box.x + (i * box.width) / 64, box.y, box.width / 64 + 0.3, box.height];
      this.put(...tone, "rg", ...area, "re f");
    }
    this.put("Q");
  }

  text(node, alpha) {
    const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
    for (let at = 0, leaf = walker.nextNode(); leaf; leaf = walker.nextNode()) {
      const style = getComputedStyle(leaf.parentElement), count = leaf.data.length, fill = rgb(style.fill);
      if (fill && count && at < node.getNumberOfChars()) {
        const start = node.getStartPositionOfChar(at), angle = (node.getRotationOfChar(at) * Math.PI) / 180;
        const [c, s] = [Math.cos(angle), Math.sin(angle)], font = Number(style.fontWeight) >= 600 ? "B" : "R";
        this.opacity(alpha * fill[3] * Number(style.fillOpacity), 1);
        this.put("BT", fill[0], fill[1], fill[2], "rg", c, s, s, -c, start.x, start.y, "Tm");
        for (const [greek, codes] of runs(leaf.data)) this.put(`/${greek ? "S" : font}`, parseFloat(style.fontSize), `Tf (${codes}) Tj`);
        this.put("ET");
      }
      at += count;
    }
  }

  async image(node, alpha) {
    const picture = new Image();
    picture.src = node.getAttribute("href") || node.getAttribute("xlink:href");
    await picture.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: picture.naturalWidth, height: picture.naturalHeight });
    const context = canvas.getContext("2d");
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(picture, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height), plain = new Uint8Array((data.length / 4) * 3);
    for (let i = 0, j = 0; i < data.length; i += 4) { plain[j++] = data[i]; plain[j++] = data[i + 1]; plain[j++] = data[i + 2]; }
    const packed = new Response(new Blob([plain]).stream().pipeThrough(new CompressionStream("deflate")));
    this.images.push({ width: canvas.width, height: canvas.height, bytes: new Uint8Array(await packed.arrayBuffer()) });
    const [x, y, w, h] = ["x", "y", "width", "height"].map((k) => Number(node.getAttribute(k) || 0));
    this.opacity(alpha, 1);
    this.put("q", w, 0, 0, -h, x, y + h, `cm /I${this.images.length - 1} Do Q`);
  }

  async bytes() {
    this.put(POINT, 0, 0, -POINT, 0, POINT * this.height, "cm");
    await this.walk(this.svg, 1);
    const content = this.lines.join("\n"), first = 7 + this.opacities.size;
    const states = [...this.opacities.values()].map((name, i) => `/${name} ${7 + i} 0 R`).join(" ");
    const pictures = this.images.map((_, i) => `/I${i} ${first + i} 0 R`).join(" ");
    const font = (name) => `<< /Type /Font /Subtype /Type1 /BaseFont /${name}${name === "Symbol" ? "" : " /Encoding /WinAnsiEncoding"} >>`;
    const objects = [
      "<< /Type /Catalog /Pages 2 0 R >>",
      `<< /Type /Pages /Kids [3 0 R] /Count 1 /MediaBox [0 0 ${POINT * this.width} ${POINT * this.height}] >>`,
      `<< /Type /Page /Parent 2 0 R /Contents ${first + this.images.length} 0 R /Resources << /Font << /R 4 0 R /B 5 0 R /S 6 0 R >> /ExtGState << ${states} >> /XObject << ${pictures} >> >> >>`,
      font("Helvetica"), font("Helvetica-Bold"), font("Symbol"),
      ...[...this.opacities.keys()].map((key) => { const [fill, stroke] = key.split(" "); return `<< /ca ${fill} /CA ${stroke} >>`; }),
      ...this.images.map((i) => [`<< /Type /XObject /Subtype /Image /Width ${i.width} /Height ${i.height} /ColorSpace /DeviceRGB /BitsPerComponent 8 /Filter /FlateDecode /Length ${i.bytes.length} >>\nstream\n`, i.bytes, "\nendstream"]),
      `<< /Length ${content.length} >>\nstream\n${content}\nendstream`,
    ];
    return assembled(objects);
  }
}

// A file of numbered objects and the table of where each begins.
function assembled(objects) {
  const parts = [], places = [];
  let length = 0;
  const add = (part) => {
    const bytes = typeof part === "string" ? Uint8Array.from(part, (c) => c.charCodeAt(0) & 0xff) : part;
    parts.push(bytes);
    length += bytes.length;
  };
  add("%PDF-1.4\n");
  objects.forEach((object, i) => {
    places.push(length);
    add(`${i + 1} 0 obj\n`);
    [object].flat().forEach(add);
    add("\nendobj\n");
  });
  const table = length, row = (place) => `${String(place).padStart(10, "0")} 00000 n \n`;
  add(`xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${places.map(row).join("")}trailer\n<< /Size ${objects.length + 1} /Root 1 0 R >>\nstartxref\n${table}\n%%EOF\n`);
  const whole = new Uint8Array(length);
  parts.reduce((at, part) => { whole.set(part, at); return at + part.length; }, 0);
  return whole;
}

function rgb(text) {
  const found = /rgba?\(([^)]+)\)/.exec(text || "");
  if (!found) return null;
  const [r, g, b, a = 1] = found[1].split(/[\s,/]+/).map(Number);
  return [r / 255, g / 255, b / 255, a];
}

// Text as strings of one font each: letters of Western languages, or Greek and signs.
function runs(text) {
  const found = [];
  for (const letter of text) {
    const greek = letter in SYMBOL, code = greek ? SYMBOL[letter] : LATIN[letter] || (letter.charCodeAt(0) < 256 ? letter.charCodeAt(0) : 63);
    const written = `\\${code.toString(8).padStart(3, "0")}`, plain = code > 31 && code < 127 && !"()\\".includes(String.fromCharCode(code));
    if (!found.length || found[found.length - 1][0] !== greek) found.push([greek, ""]);
    found[found.length - 1][1] += plain ? String.fromCharCode(code) : written;
  }
  return found;
}

// An element's outline in PDF's operators; empty if it has none.
function outline(node) {
  const get = (name) => Number(node.getAttribute(name) || 0), n = (v) => Number(v.toFixed(3));
  if (node.tagName === "rect") return `${get("x")} ${get("y")} ${get("width")} ${get("height")} re`;
  if (node.tagName === "line") return `${get("x1")} ${get("y1")} m ${get("x2")} ${get("y2")} l`;
  if (node.tagName === "circle") return outlined(`M${get("cx") - get("r")},${get("cy")}a${get("r")},${get("r")} 0 1 0 ${2 * get("r")},0a${get("r")},${get("r")} 0 1 0 ${-2 * get("r")},0Z`, n);
  return node.tagName === "path" ? outlined(node.getAttribute("d") || "", n) : "";
}

const COUNTS = { M: 2, L: 2, H: 1, V: 1, C: 6, S: 4, Q: 4, T: 2, A: 7, Z: 0 };

function outlined(d, n) {
  const tokens = d.match(/[a-zA-Z]|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?/g) || [], out = [];
  let x = 0, y = 0, x0 = 0, y0 = 0, at = 0, command = "";
  const to = (letter, ...values) => { out.push(...values.map(n), letter); [x, y] = values.slice(-2); };
  while (at < tokens.length) {
    if (/[a-zA-Z]/.test(tokens[at])) command = tokens[at++];
    const kind = command.toUpperCase(), relative = command !== kind, v = tokens.slice(at, at + COUNTS[kind]).map(Number);
    at += COUNTS[kind];
    const dx = relative ? x : 0, dy = relative ? y : 0;
    if (kind === "M") { to("m", v[0] + dx, v[1] + dy); [x0, y0] = [x, y]; command = relative ? "l" : "L"; }
    else if (kind === "L") to("l", v[0] + dx, v[1] + dy);
    else if (kind === "H") to("l", v[0] + dx, y);
    else if (kind === "V") to("l", x, v[0] + dy);
    else if (kind === "C") to("c", v[0] + dx, v[1] + dy, v[2] + dx, v[3] + dy, v[4] + dx, v[5] + dy);
    else if (kind === "Q") {
      const [cx, cy, ex, ey] = [v[0] + dx, v[1] + dy, v[2] + dx, v[3] + dy];
      to("c", x + (2 / 3) * (cx - x), y + (2 / 3) * (cy - y), ex + (2 / 3) * (cx - ex), ey + (2 / 3) * (cy - ey), ex, ey);
    } else if (kind === "A") for (const part of arc(x, y, v, dx, dy)) to("c", ...part);
    else { out.push("h"); [x, y] = [x0, y0]; if (kind !== "Z") break; }
  }
  return out.join(" ");
}

// An elliptic arc as cubic curves of at most a quarter turn (SVG 1.1, appendix F.6).
function arc(x1, y1, [rx0, ry0, turn, large, sweep, ex, ey], dx, dy) {
  const [x2, y2] = [ex + dx, ey + dy], phi = (turn * Math.PI) / 180, [c, s] = [Math.cos(phi), Math.sin(phi)];
  const [hx, hy] = [(x1 - x2) / 2, (y1 - y2) / 2], [px, py] = [c * hx + s * hy, -s * hx + c * hy];
  const scale = Math.sqrt(Math.max(1, (px / rx0) ** 2 + (py / ry0) ** 2)), rx = Math.abs(rx0) * scale, ry = Math.abs(ry0) * scale;
  if (!rx || !ry) return [[x1, y1, x2, y2, x2, y2]];
  const rest = Math.max(0, (rx * ry) ** 2 - (rx * py) ** 2 - (ry * px) ** 2) / ((rx * py) ** 2 + (ry * px) ** 2);
  const k = (large === sweep ? -1 : 1) * Math.sqrt(rest), [qx, qy] = [(k * rx * py) / ry, (-k * ry * px) / rx];
  const [mx, my] = [c * qx - s * qy + (x1 + x2) / 2, s * qx + c * qy + (y1 + y2) / 2];
  const from = Math.atan2((py - qy) / ry, (px - qx) / rx);
  let sweepBy = Math.atan2((-py - qy) / ry, (-px - qx) / rx) - from;
  if (sweep && sweepBy < 0) sweepBy += 2 * Math.PI;
  if (!sweep && sweepBy > 0) sweepBy -= 2 * Math.PI;
  const parts = Math.max(1, Math.ceil(Math.abs(sweepBy) / (Math.PI / 2) - 1e-9)), step = sweepBy / parts, t = (4 / 3) * Math.tan(step / 4);
  const place = (u, v) => [mx + c * rx * u - s * ry * v, my + s * rx * u + c * ry * v];
  return Array.from({ length: parts }, (_, i) => {
    const a = from + i * step, b = a + step, [ca, sa, cb, sb] = [Math.cos(a), Math.sin(a), Math.cos(b), Math.sin(b)];
    return [...place(ca - t * sa, sa + t * ca), ...place(cb + t * sb, sb - t * cb), ...place(cb, sb)];
  });
}
