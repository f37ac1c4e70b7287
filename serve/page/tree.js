// The tree beside the conversation: the nodes of a run with their states, for keys and screen readers too.

const MAX_CHILDREN = 200; // shown children of one node, besides failed ones
const END_STATES = ["completed", "failed", "cancelled"];

const seconds = (value) => (value < 9.95 ? `${value.toFixed(1)} s`
  : value < 99.5 ? `${value.toFixed(0)} s` : `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`);

class Tree {
  constructor(list) {
    this.list = list;
    this.clear();
  }

  clear() {
    this.nodes = new Map([[0, { list: this.list, shown: 0, hidden: 0, level: 0, more: null }]]);
    this.open = new Set(); // running nodes
    this.clock = 0; // the value of `performance.now()` at the recording's start
    this.list.replaceChildren();
    this.list.hidden = true;
    $("no-tree").hidden = false;
  }

  // Add a line of the recording; return true for the last one.
  add(line) {
    if (line.recording) return false;
    this.clock = performance.now() - line.t * 1000;
    if (line.e === "put") this.put(line.n, line.p, line.name);
    else if (line.e === "gap") this.fillGap(line);
    const node = line.n && this.nodes.get(line.n);
    if (node) this.change(node, line);
    return line.e === "end";
  }

  put(number, parent, name) {
    const above = this.nodes.get(parent) ?? this.nodes.get(0);
    const node = { name, above, level: above.level + 1, element: null, list: null, shown: 0, hidden: 0,
      more: null, state: "pending", start: null, end: null, isBad: false };
    this.nodes.set(number, node);
    if (above.element || above.level === 0) {
      if (above.shown < MAX_CHILDREN) this.draw(node);
      else this.countHidden(above, 1);
    }
    return node;
  }

  fillGap(line) {
    const named = new Set();
    for (const [number, parent, name, state] of line.nodes) {
      named.add(number);
      if (!number) continue;
      const node = this.nodes.get(number) ?? this.put(number, parent, name);
      node.state = state;
      node.start ??= line.t;
      this.update(node);
    }
    for (const [number, node] of this.nodes) {
      if (!number || named.has(number) || END_STATES.includes(node.state)) continue;
      node.state = "lost";
      this.update(node);
    }
  }

  change(node, line) {
    if (line.e === "started") {
      node.state = "running";
      node.start ??= line.t;
      node.end = null;
    } else if (line.e === "joining") node.state = "joining";
    else if (line.e === "retried") node.state = "pending";
    else if (END_STATES.includes(line.e)) {
      node.state = line.e;
      node.end = line.t;
    } else if (line.e === "answered") node.isBad = line.status !== "ok";
    else if (line.e !== "put") return;
    if ((node.isBad || node.state === "failed") && !node.element && node.above.list && node.above.shown < 2 * MAX_CHILDREN) {
      this.countHidden(node.above, -1);
      this.draw(node);
    }
    this.update(node);
  }

  draw(node) {
    const { above } = node;
    if (!above.list) {
      above.list = el("ul", { role: "group" });
      above.element.append(above.list);
      above.element.setAttribute("aria-expanded", "true");
    }
    node.icon = icon("pending");
    node.icon.setAttribute("class", "icon"); // the item's class has the state
    node.time = el("span", { class: "time" });
    node.element = el("li", { role: "treeitem", "aria-level": node.level, tabindex: -1 },
      el("div", { class: "line", title: node.name }, node.icon, el("span", { class: "name", text: node.name }), node.time));
    above.list.insertBefore(node.element, above.more);
    above.shown++;
    if (!this.list.querySelector("[tabindex='0']")) node.element.tabIndex = 0;
    this.list.hidden = false;
    $("no-tree").hidden = true;
    this.update(node);
  }

  // Count the children of a node that are not shown.
  countHidden(above, change) {
    above.hidden += change;
    if (!above.more) {
      above.more = el("li", { class: "more note", role: "treeitem", "aria-level": above.level + 1, tabindex: -1 });
      above.list.append(above.more);
    }
    above.more.textContent = `… ${count(above.hidden)} more`;
    above.more.hidden = above.hidden === 0;
  }

  update(node) {
    if (["running", "joining"].includes(node.state)) this.open.add(node);
    else this.open.delete(node);
    if (!node.element) return;
    const state = node.isBad ? "failed" : node.state;
    node.element.className = state;
    node.icon.firstChild.setAttribute("href", `#i-${state}`);
    this.showTime(node);
    const time = node.end === null || node.start === null ? "" : `, ${seconds(node.end - node.start)}`;
    node.element.setAttribute("aria-label", `${node.name}, ${state}${time}`);
  }

  showTime(node) {
    if (!node.element || node.start === null) return;
    const until = node.end ?? (performance.now() - this.clock) / 1000;
    const time = Math.max(0, until - node.start);
    node.time.textContent =
      node.end !== null ? seconds(time) : time < 1 ? "" : seconds(Math.floor(time)).replace(".0", "");
  }

  tick() { for (const node of this.open) this.showTime(node); }

  // No more lines arrive: open nodes never ended.
  end() {
    for (const node of [...this.open]) {
      node.state = "lost";
      this.update(node);
    }
  }
}

// --- keys and pointer: one item has the focus, arrow keys move it

const itemOf = (element) => element.closest("[role=treeitem]");
const isFolder = (item) => item.hasAttribute("aria-expanded");
const isOpen = (item) => item.getAttribute("aria-expanded") === "true";

function fold(item, open) {
  if (!isFolder(item)) return;
  item.setAttribute("aria-expanded", open);
  item.querySelector(":scope > [role=group]").hidden = !open;
  // The focus must not stay in a folded part.
  if (!open && item.querySelector("[role=group] [tabindex='0']")) choose(item, false);
}

function choose(item, focus = true) {
  for (const each of $("tree").querySelectorAll("[tabindex='0']")) each.tabIndex = -1;
  item.tabIndex = 0;
  if (focus) item.focus();
}

$("tree").addEventListener("keydown", (event) => {
  const items = [...$("tree").querySelectorAll("[role=treeitem]")].filter((each) => each.offsetParent !== null);
  const above = (item) => itemOf(item.parentElement);
  walkTree(event, items, items.indexOf(itemOf(event.target)), { isFolder, isOpen, above, choose: (item) => choose(item), fold });
});

$("tree").addEventListener("click", (event) => {
  const item = itemOf(event.target);
  if (!item) return;
  choose(item);
  if (event.target.closest(".line")) fold(item, !isOpen(item));
});
