// The timeline: a canvas beside the tree, with the same rows, and an overview of the run above it.

const canvas = $("timeline");
const ruler = $("ruler");
const overview = $("overview");
const tip = $("tip");
const MARGIN = 0.015; // before and after the run, as a part of its duration
const HEIGHT = { overview: 38, ruler: 23 }; // in pixels
const MIN_VISIBLE = 10; // microseconds

const WHOLE = { from: -Math.max(1, END) * MARGIN, to: Math.max(1, END) * (1 + 4 * MARGIN) };
const view = { ...WHOLE };
let pointer = null; // the time under the mouse pointer

// --- colours of the style sheet, for the current theme

let colours = new Map();
function colour(name) {
  if (!colours.has(name)) {
    $("probe").style.color = `var(--${name})`;
    colours.set(name, getComputedStyle($("probe")).color);
  }
  return colours.get(name);
}

function prepare(surface, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (surface.width !== w || surface.height !== h) {
    surface.width = w;
    surface.height = h;
    surface.style.width = `${width}px`;
    surface.style.height = `${height}px`;
  }
  const pen = surface.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = "middle";
  return pen;
}

const size = { width: 1, height: 1 };
const xOf = (time) => ((time - view.from) / (view.to - view.from)) * size.width;
const timeAt = (x) => view.from + (x / size.width) * (view.to - view.from);

// --- moving

function setView(from, to) {
  const most = WHOLE.to - WHOLE.from;
  const span = Math.min(most, Math.max(MIN_VISIBLE, to - from));
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - span / 2, WHOLE.from), WHOLE.to - span);
  view.to = view.from + span;
  drawAll();
}

function zoom(factor, at = (view.from + view.to) / 2) {
  const span = Math.min(WHOLE.to - WHOLE.from, Math.max(MIN_VISIBLE, (view.to - view.from) / factor));
  const share = (at - view.from) / (view.to - view.from);
  setView(at - span * share, at + span * (1 - share));
}

const fit = () => setView(WHOLE.from, WHOLE.to);
const pan = (share) => setView(view.from + (view.to - view.from) * share, view.to + (view.to - view.from) * share);

function boundsOf(entry) {
  if (!entry.members) return [entry.put, endOf(entry)];
  return [entry.members.reduce((least, node) => Math.min(least, node.put), Infinity),
    entry.members.reduce((most, node) => Math.max(most, endOf(node)), 0)];
}

function zoomTo(entry) {
  const [from, to] = boundsOf(entry);
  const spare = Math.max((to - from) * 0.08, 5);
  setView(from - spare, to + spare);
}

// Move the view to a node, without a change of scale.
function panTo(entry) {
  const [from, to] = boundsOf(entry);
  if (to < view.from || from > view.to) {
    const span = view.to - view.from;
    setView((from + to) / 2 - span / 2, (from + to) / 2 + span / 2);
  }
}

// --- drawing

function drawTimeline() {
  size.width = Math.max(40, Math.floor(scroller.clientWidth - tree.getBoundingClientRect().width - $("split").offsetWidth));
  size.height = scroller.clientHeight;
  const pen = prepare(canvas, size.width, size.height);
  const ticks = ticksOf();
  drawGrid(pen, ticks);
  const first = Math.floor(scroller.scrollTop / ROW_PIXELS);
  const last = Math.min(rows.length, Math.ceil((scroller.scrollTop + size.height) / ROW_PIXELS));
  for (let index = first; index < last; index++) {
    const row = rows[index];
    const top = index * ROW_PIXELS - scroller.scrollTop;
    if (row.key === active) {
      pen.fillStyle = colour("chosen");
      pen.fillRect(0, top, size.width, ROW_PIXELS);
    }
    pen.globalAlpha = row.dim ? 0.4 : 1;
    if (row.entry.members) drawGroup(pen, row.entry, top);
    else drawNode(pen, row.entry, top);
    pen.globalAlpha = 1;
  }
  if (pointer !== null) {
    pen.fillStyle = colour("dim");
    pen.fillRect(Math.round(xOf(pointer)), 0, 1, size.height);
  }
  drawRuler(ticks);
  drawOverview();
  $("range").textContent = `${duration(Math.max(0, view.from))} \u2013 ${duration(Math.min(END, view.to))}`;
}

function ticksOf() {
  const least = ((view.to - view.from) * 72) / size.width; // microseconds between two
  const power = 10 ** Math.floor(Math.log10(least));
  let step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= least);
  if (least > 2e7) {
    const clock = [3e7, 6e7, 1.2e8, 3e8, 6e8, 9e8, 1.8e9, 3.6e9, 7.2e9, 2.16e10, 4.32e10, 8.64e10];
    step = clock.find((each) => each >= least) ?? Math.ceil(least / 8.64e10) * 8.64e10;
  }
  step = Math.max(1, step);
  const ticks = [];
  for (let time = Math.max(0, Math.ceil(view.from / step) * step); time <= view.to; time += step) ticks.push(time);
  return { ticks, step };
}

function drawGrid(pen, { ticks }) {
  pen.fillStyle = colour("grid");
  for (const time of ticks) pen.fillRect(Math.round(xOf(time)), 0, 1, size.height);
  const end = xOf(END);
  if (end < size.width) {
    pen.fillStyle = colour("beyond");
    pen.fillRect(end, 0, size.width - end, size.height);
  }
  for (const execution of raw.executions.slice(1)) {
    pen.fillStyle = colour("lost");
    pen.fillRect(Math.round(xOf(execution.at)) - 1, 0, 2, size.height);
  }
}

// Return a label with enough decimal places to distinguish two ticks.
function tickLabel(time, step) {
  if (time === 0) return "0";
  if (step >= 3e7) return duration(time);
  const [unit, word] = time >= 1e6 ? [1e6, "s"] : time >= 1e3 ? [1e3, "ms"] : [1, "\u00b5s"];
  const places = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return `${(time / unit).toFixed(Math.min(6, places))} ${word}`;
}

function drawRuler({ ticks, step }) {
  const height = HEIGHT.ruler;
  const pen = prepare(ruler, size.width, height);
  pen.fillStyle = colour("dim");
  for (const time of ticks) {
    const x = Math.round(xOf(time));
    pen.fillRect(x, height - 5, 1, 5);
    const text = tickLabel(time, step);
    if (x + 4 + pen.measureText(text).width < size.width) pen.fillText(text, x + 4, height / 2);
  }
  raw.executions.slice(1).forEach((execution, index) => {
    const x = xOf(execution.at);
    const text = `execution ${index + 2}`;
    pen.fillStyle = colour("lost");
    pen.fillRect(x - 1, 0, 2, height);
    pen.fillRect(x, 0, pen.measureText(text).width + 8, 14);
    pen.fillStyle = colour("on-bar");
    pen.fillText(text, x + 4, 7);
  });
  if (pointer !== null) {
    const text = duration(pointer);
    const width = pen.measureText(text).width + 10;
    const x = Math.min(size.width - width, Math.max(0, xOf(pointer) - width / 2));
    pen.fillStyle = colour("text");
    pen.fillRect(x, 2, width, height - 4);
    pen.fillStyle = colour("panel");
    pen.fillText(text, x + 5, height / 2);
  }
}

// Draw a bar from one time to another, at least `least` pixels wide; return its place, null outside.
function bar(pen, from, to, top, height, least = 2) {
  let left = xOf(from);
  let right = Math.max(xOf(to), left + least);
  if (right < 0 || left > size.width) return null;
  left = Math.max(-2, left);
  right = Math.min(size.width + 2, right);
  pen.fillRect(left, top, right - left, height);
  return [left, right];
}

function write(pen, text, [left, right], top, name) {
  const room = Math.min(right, size.width) - Math.max(left, 0) - 8;
  if (room < 22) return;
  let shown = clip(text, 60);
  while (shown.length > 1 && pen.measureText(shown).width > room) shown = `${shown.slice(0, -2)}\u2026`;
  if (shown.length < 3 && text.length > 2) return;
  pen.fillStyle = colour(name);
  pen.fillText(shown, Math.max(left, 0) + 4, top + ROW_PIXELS / 2 + 0.5);
}

const BAR = 14; // the height of a bar, in pixels

function drawNode(pen, node, top) {
  const at = top + (ROW_PIXELS - BAR) / 2;
  if (xOf(endOf(node)) < -20 || xOf(node.put) > size.width + 20) return;
  drawWaits(pen, node, top);
  for (const interval of node.intervals) {
    const end = interval.until;
    const body = interval.joined ?? end;
    pen.fillStyle = colour(node.tool ? "tool" : node === root ? "root" : "own");
    const place = bar(pen, interval.start, body, at, BAR);
    if (node.children.length && node !== root) drawCovered(pen, node, interval.start, body, at);
    if (node.tool && place) write(pen, node.tool.name, place, top, "on-bar");
    if (end > body) drawJoin(pen, body, end, at);
  }
  drawRequests(pen, node, top);
  drawMarks(pen, node, top);
  drawEnd(pen, node, top);
}

// A thin dashed line while a node waits: from its put to its start, and between attempts.
function drawWaits(pen, node, top) {
  const edges = [node.put, ...node.intervals.flatMap((interval) => [interval.start, interval.until]), endOf(node)];
  pen.strokeStyle = colour("wait");
  pen.lineWidth = 1.5;
  pen.setLineDash([3, 3]);
  pen.beginPath();
  for (let i = 0; i + 1 < edges.length; i += 2) {
    const [left, right] = [Math.max(-10, xOf(edges[i])), Math.min(size.width + 10, xOf(edges[i + 1]))];
    if (right - left < 1) continue;
    pen.moveTo(left, top + ROW_PIXELS / 2);
    pen.lineTo(right, top + ROW_PIXELS / 2);
  }
  pen.stroke();
  pen.setLineDash([]);
  const x = xOf(node.put);
  if (node.intervals.length && xOf(node.intervals[0].start) - x > 3) pen.strokeRect(x, top + 7, 0.01, ROW_PIXELS - 14);
}

// Lighter while children are alive: the body may only await them.
function drawCovered(pen, node, from, to, at) {
  node.covered ??= merge(node.children.map((child) => [child.put, endOf(child)]));
  pen.fillStyle = colour("covered");
  for (const [left, right] of node.covered) {
    const [start, end] = [Math.max(from, left), Math.min(to, right)];
    if (end > start) bar(pen, start, end, at, BAR, 0);
  }
}

// Lighter and hatched after the body has returned, while children run.
function drawJoin(pen, from, to, at) {
  pen.fillStyle = colour("join");
  const place = bar(pen, from, to, at, BAR, 0);
  if (!place || place[1] - place[0] < 6) return;
  pen.save();
  pen.beginPath();
  pen.rect(place[0], at, place[1] - place[0], BAR);
  pen.clip();
  pen.strokeStyle = colour("hatch");
  pen.lineWidth = 1;
  pen.beginPath();
  const shift = xOf(0) % 7; // the pattern moves with the bar
  for (let x = Math.floor((place[0] - BAR) / 7) * 7 + shift; x < place[1] + BAR; x += 7) {
    pen.moveTo(x, at + BAR);
    pen.lineTo(x + BAR, at);
  }
  pen.stroke();
  pen.restore();
}

function drawRequests(pen, node, top) {
  let last = -1;
  for (const request of node.requests) {
    const end = request.until;
    const right = xOf(end);
    if (right < last + 0.5 && request.error === undefined) continue; // they would cover each other
    last = right;
    pen.fillStyle = colour("first");
    bar(pen, request.start, request.first ?? end, top + (ROW_PIXELS - BAR) / 2, BAR);
    if (request.first !== undefined) {
      pen.fillStyle = colour("model");
      const place = bar(pen, request.first, end, top + (ROW_PIXELS - BAR) / 2, BAR);
      if (place) write(pen, request.model, place, top, "on-bar");
      if (xOf(end) - xOf(request.start) > 8) {
        pen.fillStyle = colour("text");
        pen.fillRect(Math.round(xOf(request.first)) - 1, top + 2, 1.5, ROW_PIXELS - 4);
        pen.beginPath(); // a small flag: the first chunk
        pen.moveTo(xOf(request.first), top + 2);
        pen.lineTo(xOf(request.first) + 5, top + 4.5);
        pen.lineTo(xOf(request.first), top + 7);
        pen.fill();
      }
    }
    if (request.error || request.left) mark(pen, request.error ? "cross" : "slash", right - 6, top, request.error ? "failed" : "cancelled");
  }
}

function drawMarks(pen, node, top) {
  for (const [time, seconds] of node.slow) {
    pen.fillStyle = colour("slow");
    const place = bar(pen, time - seconds * 1e6, time, top + 1, 4, 4);
    if (!place) continue;
    pen.beginPath();
    pen.moveTo(place[1], top + 1);
    pen.lineTo(place[1] - 8, top + 1);
    pen.lineTo(place[1] - 4, top + 9);
    pen.fill();
  }
  for (const [time] of node.retried) mark(pen, "again", xOf(time), top, "retry");
}

function drawEnd(pen, node, top) {
  const x = xOf(endOf(node));
  if (node.bad) mark(pen, "cross", x + 1, top, "failed");
  else if (node.state === "cancelled") mark(pen, "slash", x + 1, top, "cancelled");
  else if (node.state === "lost") mark(pen, "query", x + 1, top, "lost");
  else if (node.open) mark(pen, "arrow", x + 1, top, "own");
  else if (node.intervals.length) return drawTime(pen, node, x + 5, top);
  return drawTime(pen, node, x + 17, top);
}

function drawTime(pen, node, x, top) {
  if (!node.intervals.length || x < 0) return;
  const said = node.error ? `${timeOf(node)}  ${node.error[0]}` : timeOf(node);
  pen.fillStyle = colour(node.error ? "failed-text" : "dim");
  if (x + pen.measureText(said).width < size.width) pen.fillText(said, x, top + ROW_PIXELS / 2 + 0.5);
}

// Marks differ in shape, not only in colour.
function mark(pen, shape, x, top, name) {
  if (x < -14 || x > size.width + 2) return;
  const y = top + ROW_PIXELS / 2;
  pen.fillStyle = colour(name);
  pen.beginPath();
  pen.roundRect(x, y - 7, 14, 14, shape === "again" ? 7 : 3);
  pen.fill();
  pen.strokeStyle = pen.fillStyle = colour("on-bar");
  pen.lineWidth = 1.8;
  pen.beginPath();
  if (shape === "cross") {
    pen.moveTo(x + 4, y - 3); pen.lineTo(x + 10, y + 3);
    pen.moveTo(x + 10, y - 3); pen.lineTo(x + 4, y + 3);
  } else if (shape === "slash") {
    pen.moveTo(x + 3.5, y); pen.lineTo(x + 10.5, y);
  } else if (shape === "arrow") {
    pen.moveTo(x + 5, y - 4); pen.lineTo(x + 10, y); pen.lineTo(x + 5, y + 4);
  } else if (shape === "again") {
    pen.arc(x + 7, y, 3.6, 0.6, 5.4);
  } else {
    pen.font = `bold ${pen.font.replace(/^bold /, "")}`;
    pen.fillText("?", x + 4, y + 1);
    pen.font = pen.font.replace(/^bold /, "");
  }
  pen.stroke();
}

// A group: the number of living nodes in each pixel.
function drawGroup(pen, group, top) {
  const steps = new Int32Array(Math.ceil(size.width) + 2);
  let any = false;
  for (const node of group.members) {
    const left = Math.max(0, Math.floor(xOf(node.intervals.length ? node.intervals[0].start : node.put)));
    const right = Math.min(size.width, Math.max(left + 1, Math.ceil(xOf(endOf(node)))));
    if (right <= left || left > size.width) continue;
    any = true;
    steps[left]++;
    steps[right]--;
  }
  if (!any) return;
  const most = steps.reduce(([sum, max], step) => [sum + step, Math.max(max, sum + step)], [0, 0])[1];
  pen.fillStyle = colour(["cancelled", "failed", "lost"].includes(group.state) ? group.state : group.members[0].tool ? "tool" : "own");
  const before = pen.globalAlpha;
  let alive = 0;
  for (let x = 0; x < size.width; x++) {
    alive += steps[x];
    if (!alive) continue;
    const height = Math.max(3, Math.round((ROW_PIXELS - 6) * (alive / most)));
    pen.globalAlpha = before * (0.55 + 0.45 * (alive / most));
    pen.fillRect(x, top + ROW_PIXELS - 3 - height, 1, height);
  }
  pen.globalAlpha = before;
}

// --- the overview: the activity of the run, and its failures

const busy = { width: 0, lines: [] };

function countBusy(width) {
  const of = (list) => {
    const steps = new Int32Array(width + 2);
    for (const [from, to] of list) {
      const left = Math.max(0, Math.min(width, Math.floor(overviewX(from, width))));
      steps[left]++;
      steps[Math.max(left + 1, Math.min(width + 1, Math.ceil(overviewX(to, width))))]--;
    }
    for (let x = 1; x < steps.length; x++) steps[x] += steps[x - 1];
    return steps;
  };
  const asked = [];
  const tools = [];
  const others = [];
  for (const node of nodes) {
    for (const request of node.requests) asked.push([request.start, request.until]);
    if (node.children.length || node.requests.length) continue;
    for (const interval of node.intervals) (node.tool ? tools : others).push([interval.start, interval.until]);
  }
  busy.width = width;
  busy.lines = [["own", of(others)], ["tool", of(tools)], ["model", of(asked)]];
}

const overviewX = (time, width) => ((time - WHOLE.from) / (WHOLE.to - WHOLE.from)) * width;

function drawOverview() {
  const width = size.width;
  const height = HEIGHT.overview;
  if (busy.width !== width) countBusy(width);
  const pen = prepare(overview, width, height);
  let most = 1;
  for (let x = 0; x < width; x++) most = Math.max(most, busy.lines.reduce((sum, [, line]) => sum + line[x], 0));
  for (let x = 0; x < width; x++) {
    let base = height - 1;
    for (const [name, line] of busy.lines) {
      if (!line[x]) continue;
      const part = Math.max(1, (line[x] / most) * (height - 8));
      pen.fillStyle = colour(name);
      pen.fillRect(x, base - part, 1, part);
      base -= part;
    }
  }
  pen.fillStyle = colour("failed");
  for (const node of problems.failed) {
    const x = overviewX(endOf(node), width);
    pen.beginPath();
    pen.moveTo(x - 4, 0);
    pen.lineTo(x + 4, 0);
    pen.lineTo(x, 7);
    pen.fill();
  }
  const [left, right] = [overviewX(view.from, width), overviewX(view.to, width)];
  pen.fillStyle = colour("veil");
  pen.fillRect(0, 0, left, height);
  pen.fillRect(right, 0, width - right, height);
  pen.strokeStyle = colour("accent");
  pen.lineWidth = 1;
  if (right - left < width - 2) pen.strokeRect(Math.round(left) + 0.5, 0.5, Math.max(2, Math.round(right - left) - 1), height - 1);
}
