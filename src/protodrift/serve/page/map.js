"use strict";
/* The map: a canvas, for a thousand classes with arrows and circles are too many elements. Colors come from style.css. */

const COLORS = 10;
const BELOW = 44; // pixels below all classes, where the buttons are
const LABELS = 60; // names drawn at most; the others show when pointed at

class DriftMap {
  /** canvas: where to draw. onSelect(row or null): a class was pointed at or chosen. */
  constructor(canvas, onSelect) {
    this.canvas = canvas;
    this.onSelect = onSelect;
    this.data = null;
    this.step = 0;
    this.shown = 0; // between two steps while it moves
    this.selected = null;
    this.pinned = false;
    this.view = { scale: 1, x: 0, y: 0 };
    this.drag = null;
    this.asked = []; // pictures that were asked about: {place: [x, y] in the plane, name}; the last is the one pointed out
    this.labels = []; // boxes of the names as drawn: [left, top, right, bottom] in pixels
    canvas.addEventListener("pointermove", (event) => this.#pointed(event));
    canvas.addEventListener("pointerdown", (event) => this.#pressed(event));
    canvas.addEventListener("pointerup", (event) => this.#released(event));
    canvas.addEventListener("pointerleave", () => { if (!this.pinned) this.select(null); });
    canvas.addEventListener("wheel", (event) => this.#wheeled(event), { passive: false });
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(data) {
    this.data = data;
    this.step = this.shown = data.steps.length - 1;
    this.#bounds();
    this.fit();
  }

  /** Go to a step; the prototypes move there unless the reader wants no motion. */
  go(step) {
    const from = this.shown, to = step;
    this.step = step;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) { this.shown = to; this.draw(); return; }
    const began = performance.now();
    const tick = (now) => {
      if (this.step !== to) return;
      const t = Math.min(1, Math.max(0, now - began) / 500);
      this.shown = from + (to - from) * t * t * (3 - 2 * t);
      this.draw();
      if (t < 1) requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  /** Show where pictures are: a list of {place, name}; the last one is pointed out. */
  mark(pictures) { this.asked = pictures; this.draw(); }

  select(row, pinned = false) {
    this.pinned = pinned && row !== null;
    if (row === this.selected) return;
    this.selected = row;
    this.onSelect(row);
    this.draw();
  }

  zoom(factor, cx = this.canvas.clientWidth / 2, cy = this.canvas.clientHeight / 2) {
    const view = this.view, scale = Math.min(200, Math.max(1, view.scale * factor)), k = scale / view.scale;
    this.view = scale === 1 ? { scale: 1, x: 0, y: 0 } : { scale, x: cx - (cx - view.x) * k, y: cy - (cy - view.y) * k };
    this.draw();
  }

  fit() { this.view = { scale: 1, x: 0, y: 0 }; this.draw(); }

  /** Where a class is on the canvas at a step (which may lie between two), or null. */
  place(row, step) {
    const low = Math.floor(step), t = step - low, steps = this.data.steps;
    const a = steps[low], b = steps[Math.min(low + 1, steps.length - 1)];
    if (a.x[row] === null) return t > 0.5 && b.x[row] !== null ? this.#pixel(b.x[row], b.y[row]) : null;
    if (b.x[row] === null) return this.#pixel(a.x[row], a.y[row]);
    return this.#pixel(a.x[row] + (b.x[row] - a.x[row]) * t, a.y[row] + (b.y[row] - a.y[row]) * t);
  }

  /** The nearest class in a direction (dx, dy), seen from the one selected; for the keyboard. */
  neighbor(dx, dy) {
    const rows = this.#rows();
    if (!rows.length) return null;
    const from = this.selected === null ? null : this.place(this.selected, this.step);
    if (from === null) return rows[0];
    let best = this.selected, least = Infinity;
    for (const row of rows) {
      const p = this.place(row, this.step), along = (p[0] - from[0]) * dx + (p[1] - from[1]) * dy;
      const aside = Math.abs((p[0] - from[0]) * dy) + Math.abs((p[1] - from[1]) * dx);
      const cost = along + 2 * aside;
      if (row !== this.selected && along > 0.01 && cost < least) { best = row; least = cost; }
    }
    return best;
  }

  #rows() {
    if (!this.data) return [];
    return this.data.classes.map((_, row) => row).filter((row) => this.place(row, this.step) !== null);
  }

  #bounds() {
    const xs = [], ys = [];
    for (const step of this.data.steps) {
      step.x.forEach((x, row) => { if (x !== null) { xs.push(x); ys.push(step.y[row]); } });
    }
    const low = [xs.reduce((a, b) => Math.min(a, b), Infinity), ys.reduce((a, b) => Math.min(a, b), Infinity)];
    const high = [xs.reduce((a, b) => Math.max(a, b), -Infinity), ys.reduce((a, b) => Math.max(a, b), -Infinity)];
    this.center = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
    this.span = [Math.max(high[0] - low[0], 1e-6), Math.max(high[1] - low[1], 1e-6)];
  }

  /** Pixels a unit of the embedding; the same along both axes, so that distances can be compared. */
  get unit() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    return Math.min((width - 90) / this.span[0], (height - 60 - BELOW) / this.span[1]) * this.view.scale;
  }

  #pixel(x, y) {
    const unit = this.unit, { scale } = this.view;
    return [
      this.view.x + (this.canvas.clientWidth / 2) * scale + (x - this.center[0]) * unit,
      this.view.y + ((this.canvas.clientHeight - BELOW) / 2) * scale - (y - this.center[1]) * unit,
    ];
  }

  draw() {
    if (!this.data) return;
    const canvas = this.canvas, ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    this.palette = Array.from({ length: COLORS }, (_, i) => color(`--c${i}`));
    const ink = color("--ink"), paper = color("--paper");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const rows = this.data.classes.map((_, row) => row).filter((row) => this.place(row, this.shown) !== null);
    const many = rows.length > 150, radius = many ? 3 : 5.5;
    const own = (row) => this.palette[(this.data.learned_in[row] - 1) % COLORS];
    for (const row of rows) this.#doubt(pen, row, own(row), many);
    for (const row of rows) this.#arrow(pen, row, own(row), many);
    for (const row of rows) {
      const [x, y] = this.place(row, this.shown);
      pen.beginPath();
      pen.arc(x, y, row === this.selected ? radius + 3 : radius, 0, 2 * Math.PI);
      pen.fillStyle = own(row);
      pen.fill();
      pen.lineWidth = row === this.selected ? 2.5 : 1;
      pen.strokeStyle = row === this.selected ? ink : paper;
      pen.stroke();
    }
    const pictures = this.asked.map(({ place }) => this.#inside(this.#pixel(...place)));
    pictures.forEach((at, i) => this.#picture(pen, at, i === pictures.length - 1 ? 8 : 5, color("--accent"), paper));
    this.#names(pen, rows, pictures, ink, paper, radius);
  }

  /** A place on the canvas, or at its edge if it is outside. */
  #inside([x, y], edge = 12) {
    return [Math.min(this.canvas.clientWidth - edge, Math.max(edge, x)), Math.min(this.canvas.clientHeight - edge, Math.max(edge, y))];
  }

  /** A picture: a diamond. */
  #picture(pen, [x, y], size, color, paper) {
    pen.beginPath();
    for (const [dx, dy] of [[0, -size], [size, 0], [0, size], [-size, 0]]) pen.lineTo(x + dx, y + dy);
    pen.closePath();
    pen.fillStyle = color;
    pen.fill();
    pen.lineWidth = size > 6 ? 2 : 1;
    pen.strokeStyle = paper;
    pen.stroke();
  }

  /** The circle of radius u around a moved prototype: how far off it may be. */
  #doubt(pen, row, color, many) {
    const u = this.data.steps[this.step].uncertainty[row];
    if (u === null || u === undefined || (many && row !== this.selected)) return;
    const [x, y] = this.place(row, this.shown);
    pen.beginPath();
    pen.arc(x, y, u * this.unit, 0, 2 * Math.PI);
    pen.fillStyle = pen.strokeStyle = color;
    pen.globalAlpha = 0.16;
    if (row === this.selected) pen.fill(); // many filled circles would hide each other
    pen.globalAlpha = row === this.selected ? 0.9 : 0.35;
    pen.lineWidth = 1;
    pen.stroke();
    pen.globalAlpha = 1;
  }

  /** From where a prototype was after the task before. */
  #arrow(pen, row, color, many) {
    if (this.step === 0) return;
    const from = this.place(row, this.step - 1), to = this.place(row, this.shown);
    const before = this.data.steps[this.step - 1].x[row];
    if (from === null || before === null) return;
    const length = Math.hypot(to[0] - from[0], to[1] - from[1]);
    if (length < 2) return;
    const angle = Math.atan2(to[1] - from[1], to[0] - from[0]), head = Math.min(9, length * 0.5);
    pen.globalAlpha = row === this.selected ? 1 : many ? 0.45 : 0.85;
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineWidth = row === this.selected ? 2.5 : many ? 0.8 : 1.6;
    pen.beginPath();
    pen.moveTo(from[0], from[1]);
    pen.lineTo(to[0], to[1]);
    pen.stroke();
    pen.beginPath();
    pen.arc(from[0], from[1], many ? 1.3 : 2.6, 0, 2 * Math.PI); // hollow: here it was
    pen.stroke();
    const gap = Math.min(many ? 3 : 6, length * 0.4), tip = [to[0] - gap * Math.cos(angle), to[1] - gap * Math.sin(angle)];
    pen.beginPath();
    pen.moveTo(tip[0], tip[1]);
    for (const turn of [-0.42, 0.42]) pen.lineTo(tip[0] - head * Math.cos(angle + turn), tip[1] - head * Math.sin(angle + turn));
    pen.fill();
    pen.globalAlpha = 1;
  }

  /** Names beside their dots. A name covers neither another name nor a dot: it goes to the nearest free place, with a line to
   * its dot if that is not beside it, and is left out if there is none (pointing at the dot tells it). */
  #names(pen, rows, pictures, ink, paper, radius) {
    const family = getComputedStyle(document.body).fontFamily, width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    const dots = rows.map((row) => ({ row, at: this.place(row, this.shown), text: String(this.data.classes[row]) }));
    const chosen = dots.filter((dot) => dot.row === this.selected), rest = dots.filter((dot) => dot.row !== this.selected);
    const last = this.asked.length - 1;
    const asked = last < 0 ? [] : [{ row: -1, at: pictures[last], text: this.asked[last].name }];
    const obstacles = [...dots.map((dot) => dot.at), ...pictures].map(([x, y]) => [x - radius, y - radius, x + radius, y + radius]);
    const meet = (a, b) => a[0] < b[2] && a[2] > b[0] && a[1] < b[3] && a[3] > b[1];
    this.labels = [];
    pen.lineJoin = "round";
    for (const { row, at, text: whole } of [...chosen, ...asked, ...rest]) {
      const big = row === this.selected;
      pen.font = `${big ? 650 : row < 0 ? "italic 500" : 500} ${big ? 14 : 12}px ${family}`;
      const text = whole.length > 28 && !big ? `${whole.slice(0, 27)}…` : whole;
      const wide = pen.measureText(text).width, own = row < 0 ? obstacles.length - 1 : rows.indexOf(row);
      let free = null;
      for (const away of dots.length > 150 ? [0] : [0, 16, 32]) {
        for (const [dx, dy] of [[1, 0], [-1, 0], [1, -1], [1, 1], [-1, -1], [-1, 1], [0, -1], [0, 1]]) {
          const gap = radius + (big ? 7 : 4) + away;
          const left = dx > 0 ? at[0] + gap : dx < 0 ? at[0] - gap - wide : at[0] - wide / 2;
          const middle = at[1] + dy * (dx ? 10 + away : radius + 9 + away);
          const box = [left - 1, middle - 8, left + wide + 1, middle + 8];
          if (box[0] < 0 || box[2] > width || box[1] < 0 || box[3] > height - (box[2] > width - 130 ? BELOW : 0)) continue;
          if (this.labels.some((other) => meet(box, other))) continue;
          if (obstacles.some((other, i) => i !== own && meet(box, other))) continue;
          free = { box, left, middle, away, dx, dy };
          break;
        }
        if (free) break;
      }
      if (!free && big) { // the chosen one is named, whatever it covers
        const left = Math.min(at[0] + radius + 7, width - wide);
        free = { box: [left, at[1] - 8, left + wide, at[1] + 8], left, middle: at[1], away: 0 };
      }
      if (!free) continue;
      this.labels.push(free.box);
      if (free.away) {
        pen.beginPath();
        pen.moveTo(at[0], at[1]);
        pen.lineTo(free.dx > 0 ? free.left - 2 : free.dx < 0 ? free.left + wide + 2 : at[0], free.middle - (free.dx ? 0 : 8 * free.dy));
        pen.lineWidth = 1;
        pen.globalAlpha = 0.5;
        pen.strokeStyle = ink;
        pen.stroke();
        pen.globalAlpha = 1;
      }
      pen.lineWidth = 3.5;
      pen.strokeStyle = paper;
      pen.strokeText(text, free.left, free.middle + 4);
      pen.fillStyle = ink;
      pen.fillText(text, free.left, free.middle + 4);
      if (this.labels.length >= LABELS) return;
    }
  }

  #nearest(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, least = 18;
    for (const row of this.#rows()) {
      const p = this.place(row, this.step), d = Math.hypot(p[0] - x, p[1] - y);
      if (d < least) { best = row; least = d; }
    }
    return best;
  }

  #pressed(event) {
    this.drag = { x: event.clientX, y: event.clientY, moved: false };
    if (event.pointerType === "mouse") this.canvas.setPointerCapture(event.pointerId);
  }

  #pointed(event) {
    if (!this.data) return;
    if (this.drag && event.buttons && this.view.scale > 1) {
      const dx = event.clientX - this.drag.x, dy = event.clientY - this.drag.y;
      if (!this.drag.moved && Math.hypot(dx, dy) < 4) return;
      this.view = { ...this.view, x: this.view.x + dx, y: this.view.y + dy };
      this.drag = { x: event.clientX, y: event.clientY, moved: true };
      this.draw();
    } else if (!this.pinned) {
      this.select(this.#nearest(event));
    }
  }

  #released(event) {
    if (this.data && !this.drag?.moved) {
      const row = this.#nearest(event);
      this.select(row, true);
    }
    this.drag = null;
  }

  #wheeled(event) {
    if (document.activeElement !== this.canvas && !event.ctrlKey) return; // the page scrolls, unless the map has focus
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
  }
}
