// The tree: elements for the visible rows only, which a screen reader can walk too.

const ROW_PIXELS = 24;
const EXTRA_ROWS = 6; // drawn above and below the visible rows
const MAX_INDENT = 14; // levels
const MAX_NAME_CHARS = 160;

const scroller = $("scroller");
const tree = $("tree");
const drawn = new Map(); // elements of rows, by key
let active = root.index; // the key of the selected row

const activeRow = () => rowOf.get(active);

function drawTree() {
  tree.style.height = `${Math.max(1, rows.length) * ROW_PIXELS}px`;
  const first = Math.max(0, Math.floor(scroller.scrollTop / ROW_PIXELS) - EXTRA_ROWS);
  const last = Math.min(rows.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / ROW_PIXELS) + EXTRA_ROWS);
  const wanted = rows.slice(first, last);
  // The selected row keeps its element, because it has the focus.
  const at = activeRow();
  if (at && at.index < first) wanted.unshift(at);
  else if (at && at.index >= last) wanted.push(at);
  const keys = new Set(wanted.map((row) => row.key));
  const focused = tree.contains(document.activeElement);
  for (const [key, element] of drawn) {
    if (keys.has(key)) continue;
    element.remove();
    drawn.delete(key);
  }
  let before = null; // a screen reader reads in the order of the elements
  for (const row of wanted) {
    let element = drawn.get(row.key);
    if (!element) {
      element = row.entry.members ? groupElement(row.entry) : nodeElement(row.entry);
      element.dataset.key = row.key;
      drawn.set(row.key, element);
    }
    const next = before ? before.nextSibling : tree.firstChild;
    if (next !== element) tree.insertBefore(element, next);
    before = element;
    place(element, row);
  }
  if (focused && !tree.contains(document.activeElement)) drawn.get(active)?.focus({ preventScroll: true });
}

function place(element, row) {
  element.style.transform = `translateY(${row.index * ROW_PIXELS}px)`;
  element.style.setProperty("--indent", Math.min(row.level - 1, MAX_INDENT));
  element.classList.toggle("dim", row.dim);
  element.classList.toggle("folder", row.folder);
  const selected = row.key === active;
  element.tabIndex = selected ? 0 : -1;
  element.setAttribute("aria-selected", selected);
  element.setAttribute("aria-level", row.level);
  element.setAttribute("aria-posinset", row.place);
  element.setAttribute("aria-setsize", row.size);
  if (row.folder) element.setAttribute("aria-expanded", row.open);
  else element.removeAttribute("aria-expanded");
}

// The node of a durable run did not run between two processes.
const ranFor = (node) => (node.executions > 1 ? total(merge(node.intervals.map((each) => [each.start, each.until])))
  : endOf(node) - node.intervals[0].start);
const timeOf = (node) => (node.intervals.length ? duration(ranFor(node)) : "");

const signOf = (node) => (node.bad ? "failed" : node.state); // a failed tool call completes

function remark(node) {
  if (node.error) return ["bad", node.error[0]];
  if (node.bad) return ["bad", `${node.tool.name}: ${node.tool.status}`];
  if (node.waits && (node.open || node.state === "lost")) return ["wait", node.waits.text || "waits"];
  if (node.tool && node.tool.name !== node.name) return ["tool", node.tool.name];
  if (node.ownAgent && node.ownAgent !== node.name) return ["agent", node.ownAgent];
  if (node.requests.length) return ["model", node.requests[0].model];
  return null;
}

function nodeElement(node) {
  const about = remark(node);
  const spoken = [
    label(node), node.state, timeOf(node), node.agent && `agent ${node.agent}`,
    node.tool && `tool ${node.tool.name}`, node.requests.length && many(node.requests.length, "request"),
    node.tokens && `${count(node.tokens)} tokens`, about && (about[0] === "bad" || about[0] === "wait") && about[1],
    node.retried.length && `retried ${many(node.retried.length, "time")}`,
  ];
  return el("div", { role: "treeitem", class: `row ${node.state}`, "aria-label": clip(spoken.filter(Boolean).join(", "), 400) },
    el("span", { class: "twisty", "aria-hidden": "true" }, icon("chevron")),
    icon(signOf(node)),
    el("span", { class: "name", text: clip(node.name, MAX_NAME_CHARS) || "(no name)" }),
    node.number ? el("span", { class: "number", text: `#${node.number}` }) : null,
    el("span", { class: `remark ${about ? about[0] : ""}`, text: about ? clip(about[1], MAX_NAME_CHARS) : "" }),
    el("span", { class: "tokens", text: node.tokens ? tokens(node.tokens) : "" }),
    el("span", { class: "time", text: timeOf(node) }));
}

function groupElement(group) {
  const words = `\u00d7 ${count(group.members.length)} ${group.state}`;
  const [from, to] = boundsOf(group);
  const all = group.members.reduce((sum, node) => sum + node.tokens, 0);
  const { error } = group.members[0];
  const spoken = [group.name, `${count(group.members.length)} similar`, group.state, error && error[0]].filter(Boolean).join(", ");
  return el("div", { role: "treeitem", class: `row group ${group.state}`, "aria-label": clip(spoken, 400) },
    el("span", { class: "twisty", "aria-hidden": "true" }, icon("chevron")),
    icon(group.state),
    el("span", { class: "name", text: clip(group.name, MAX_NAME_CHARS) || "(no name)" }),
    el("span", { class: "times", text: words }),
    el("span", { class: "remark bad", text: error ? error[0] : "" }),
    el("span", { class: "tokens", text: all ? tokens(all) : "" }),
    el("span", { class: "time", text: duration(to - from) }));
}

function rebuild() {
  const before = activeRow();
  buildRows();
  if (!activeRow() && rows.length) {
    // The selected row is in a folded part: select the nearest row above it.
    let entry = before ? before.entry : root;
    if (entry.members) entry = entry.parent;
    while (entry && !rowOf.has(entry.index)) entry = entry.parent;
    const visible = entry && rowOf.get(entry.index);
    const matching = rows.find((row) => !row.dim) ?? rows[0];
    select((visible && !visible.dim ? visible : matching).key, { focus: false, reveal: false });
  }
  drawAll();
}

function reveal(row) {
  const top = row.index * ROW_PIXELS;
  const room = scroller.clientHeight;
  if (top < scroller.scrollTop || top + ROW_PIXELS > scroller.scrollTop + room) {
    scroller.scrollTop = Math.max(0, top - Math.floor(room / 3));
  }
}

function select(key, { focus = true, show = true } = {}) {
  active = key;
  const row = activeRow();
  if (!row) return;
  if (show) reveal(row);
  drawAll();
  if (focus) {
    drawTree(); // it must have an element now: the next key needs the focus
    drawn.get(key).focus({ preventScroll: true });
  }
  showDetails(row.entry);
}

// Show a node: open the folded rows above it, and clear a filter that excludes it.
function goTo(node, { zoom = false, focus = true } = {}) {
  if (isFiltered() && !node.match) clearFilter();
  openTo(node);
  buildRows();
  select(node.index, { focus });
  if (zoom) zoomTo(node);
  else panTo(node);
}

function fold(row, open) {
  setFold(row, open);
  rebuild();
}

tree.addEventListener("click", (event) => {
  const element = event.target.closest(".row");
  if (!element) return;
  const row = rows.find((each) => String(each.key) === element.dataset.key);
  if (event.target.closest(".twisty") && row.folder) fold(row, !row.open);
  select(row.key, { show: false });
});

tree.addEventListener("dblclick", (event) => {
  const row = activeRow();
  if (event.target.closest(".row") && !event.target.closest(".twisty") && row) zoomTo(row.entry);
});

const walk = (event) => walkTree(event, rows, activeRow()?.index ?? -1, {
  isFolder: (row) => row.folder, isOpen: (row) => row.open, above: (row) => rowOf.get(row.parentKey),
  choose: (row) => select(row.key), fold,
  page: Math.max(1, Math.floor(scroller.clientHeight / ROW_PIXELS) - 1),
});

// Without a focused element, keys are for the tree.
document.addEventListener("keydown", (event) => {
  if (tree.contains(event.target) || event.target === document.body) walk(event);
});
