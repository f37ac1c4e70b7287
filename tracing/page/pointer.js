// Mouse, pen and touch on the timeline and on the overview.

const fingers = new Map();
let dragged = 0; // pixels since the press

const local = (event, surface) => event.clientX - surface.getBoundingClientRect().left;

function rowAt(event) {
  const top = event.clientY - canvas.getBoundingClientRect().top + scroller.scrollTop;
  return rows[Math.floor(top / ROW_PIXELS)];
}

canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const pixels = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? size.height : 1;
  const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((sideways * pixels) / size.width);
  else zoom(Math.exp(-event.deltaY * pixels * 0.002), timeAt(local(event, canvas)));
}, { passive: false });

canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, event);
  dragged = 0;
});

canvas.addEventListener("pointermove", (event) => {
  const before = fingers.get(event.pointerId);
  if (!before) return hover(event);
  const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
  if (fingers.size === 2) {
    const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
    const [was, is] = [before, event].map((each) => Math.max(20, Math.abs(each.clientX - other.clientX)));
    dragged = 99;
    zoom(is / was, timeAt((local(event, canvas) + local(other, canvas)) / 2));
    pan(-dx / 2 / size.width);
  } else {
    dragged += Math.abs(dx) + Math.abs(dy);
    if (dragged > 4) {
      canvas.classList.add("dragged");
      tip.hidden = true;
      pan(-dx / size.width);
      scroller.scrollTop -= dy;
    }
  }
  fingers.set(event.pointerId, event);
});

function lift(event) {
  const pressed = fingers.delete(event.pointerId);
  canvas.classList.remove("dragged");
  if (!pressed || dragged > 4 || event.type === "pointercancel") return;
  const row = rowAt(event);
  if (row) select(row.key, { show: false });
}
canvas.addEventListener("pointerup", lift);
canvas.addEventListener("pointercancel", lift);

canvas.addEventListener("dblclick", (event) => {
  const row = rowAt(event);
  if (row) zoomTo(row.entry);
});

canvas.addEventListener("pointerleave", () => {
  pointer = null;
  tip.hidden = true;
  drawAll();
});

function hover(event) {
  pointer = Math.max(0, Math.min(END, timeAt(local(event, canvas))));
  const row = rowAt(event);
  if (row && event.pointerType !== "touch") showTip(event, row.entry);
  else tip.hidden = true;
  drawAll();
}

function activityAt(node, time) {
  const grain = ((view.to - view.from) / size.width) * 3; // three pixels
  for (const [at, seconds, line] of node.slow) {
    if (time >= at - seconds * 1e6 - grain && time <= at + grain) {
      return `blocked the loop for ${duration(seconds * 1e6)}${line ? `, ${line}` : ""}`;
    }
  }
  for (const [at, error] of node.retried) if (Math.abs(at - time) < grain * 2) return `retried after ${error ? errorLine(error) : "a failure"}`;
  for (const request of node.requests) {
    const end = request.until;
    if (time < request.start - grain || time > end + grain) continue;
    const first = request.first === undefined ? "no chunk came" : `first chunk after ${duration(request.first - request.start)}`;
    return `request to ${request.model}, ${duration(end - request.start)}, ${first}`;
  }
  for (const interval of node.intervals) {
    if (time < interval.start - grain || time > (interval.until) + grain) continue;
    if (interval.joined !== null && time > interval.joined) return "its body has returned, children are running";
    return node.tool ? `call of ${node.tool.name}` : "its body is running";
  }
  if (time >= node.put && time <= endOf(node)) return node.intervals.length && time > node.intervals[0].start ? "waits for its next attempt" : "waits for its start";
  return "";
}

function showTip(event, entry) {
  const now = entry.members ? `${count(entry.members.length)} similar, ${entry.state}` : activityAt(entry, pointer);
  tip.replaceChildren(...[
    el("b", { text: entry.members ? entry.name : clip(label(entry), 80) }),
    el("span", { text: entry.members ? "" : [entry.state, timeOf(entry)].filter(Boolean).join(", ") }),
    now ? el("div", { text: clip(now, 200) }) : null,
    !entry.members && entry.error ? el("div", { class: "bad", text: clip(errorLine(entry.error), 200) }) : null,
  ].filter(Boolean));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  const lower = event.clientY + 18;
  tip.style.top = `${lower + box.height > innerHeight ? event.clientY - box.height - 10 : lower}px`;
}

// In the overview, a drag selects the visible part.
let chosenFrom = null;
const overviewTime = (event) => WHOLE.from + (local(event, overview) / size.width) * (WHOLE.to - WHOLE.from);

overview.addEventListener("pointerdown", (event) => {
  overview.setPointerCapture(event.pointerId);
  chosenFrom = overviewTime(event);
});
overview.addEventListener("pointermove", (event) => {
  if (chosenFrom === null) return;
  const to = overviewTime(event);
  if (Math.abs(overviewX(to, size.width) - overviewX(chosenFrom, size.width)) > 3) setView(Math.min(chosenFrom, to), Math.max(chosenFrom, to));
});
overview.addEventListener("pointerup", (event) => {
  const to = overviewTime(event);
  const span = view.to - view.from;
  if (chosenFrom !== null && Math.abs(overviewX(to, size.width) - overviewX(chosenFrom, size.width)) <= 3) setView(to - span / 2, to + span / 2);
  chosenFrom = null;
});
overview.addEventListener("dblclick", fit);
overview.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * 0.002), overviewTime(event));
}, { passive: false });

// The splitters between the panes; the pointer drags them, and arrow keys move them.
function splitter(handle, property, least, sign, measured) {
  const set = (width) => {
    const most = Math.max(least, $("main").clientWidth * 0.7);
    const chosen = Math.round(Math.max(least, Math.min(most, width)));
    document.documentElement.style.setProperty(property, `${chosen}px`);
    handle.setAttribute("aria-valuenow", chosen);
    drawAll();
  };
  let from = null;
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    from = { x: event.clientX, width: measured() };
    event.preventDefault();
  });
  handle.addEventListener("pointermove", (event) => { if (from) set(from.width + sign * (event.clientX - from.x)); });
  handle.addEventListener("pointerup", () => { from = null; });
  handle.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -24, ArrowRight: 24 }[event.key];
    if (!step) return;
    set(measured() + sign * step);
    event.preventDefault();
    event.stopPropagation();
  });
}
splitter($("split"), "--tree", 140, 1, () => tree.getBoundingClientRect().width);
splitter($("side-split"), "--side", 240, -1, () => $("side").getBoundingClientRect().width);
