// The rows of the tree: folding, filters, and groups of similar siblings.

// From this number on, ended siblings with one name and no trouble below them form a group.
const MIN_GROUP = 8;
// From this number on, open or failed siblings without children form a group, by their error.
const MIN_TROUBLE_GROUP = 40;
// The rows that are open at the start; nodes with trouble below them have the higher limit.
const MAX_OPENED = 150;
const MAX_TROUBLE_OPENED = 2000;

const folds = { open: new Set(), filterFolded: new Set() };
const filter = { text: "", state: "", agent: "", model: "", kind: "" };
let rows = [];
let matches = [];
let rowOf = new Map(); // by key

const NODE_FILTERS = {
  requests: (node) => node.requests.length > 0,
  tools: (node) => node.tool !== undefined,
  agents: (node) => node.ownAgent !== undefined,
  failed: (node) => node.bad,
  open: (node) => node.open || node.state === "lost",
  retried: (node) => node.retried.length > 0,
  slow: (node) => node.slow.length > 0,
  replayed: (node) => node.recorded === true || node.requests.some((request) => request.replayed),
};

// Return the children of a node in the list: nodes, and groups of similar nodes.
function entriesOf(node) {
  if (node.entries) return node.entries;
  const sizes = new Map();
  const kindOf = (child) => {
    const kind = `${child.state}\n${child.name}`;
    if (!child.trouble) return kind;
    return child.children.length ? null : `${kind}\n${child.error?.[0] ?? child.tool?.status ?? ""}`;
  };
  for (const child of node.children) sizes.set(kindOf(child), (sizes.get(kindOf(child)) ?? 0) + 1);
  const groups = new Map();
  node.entries = [];
  for (const child of node.children) {
    const kind = kindOf(child);
    if (kind === null || sizes.get(kind) < (child.trouble ? MIN_TROUBLE_GROUP : MIN_GROUP)) {
      node.entries.push(child);
      continue;
    }
    let group = groups.get(kind);
    if (!group) {
      group = { key: `${node.index}\n${kind}`, parent: node, name: child.name, state: child.state, members: [] };
      groups.set(kind, group);
      node.entries.push(group);
    }
    group.members.push(child);
    child.group = group;
  }
  return node.entries;
}

const keyOf = (entry) => (entry.members ? entry.key : entry.index);
const below = (entry) => (entry.members ? entry.members : entriesOf(entry));

// Open level by level until there are enough rows, and further towards nodes with trouble.
function openAtStart() {
  let shown = 1;
  let level = [root];
  while (level.length) {
    const next = [];
    for (const node of level) {
      if (!node.children.length) continue;
      const entries = entriesOf(node);
      const bounds = node.trouble ? MAX_TROUBLE_OPENED : MAX_OPENED;
      if (node !== root && shown + entries.length > bounds) continue;
      folds.open.add(node.index);
      shown += entries.length;
      next.push(...entries.filter((entry) => !entry.members));
    }
    level = next;
  }
}

// --- the filter

const isFiltered = () => Object.values(filter).some((value) => value !== "");

function searchText(node) {
  node.haystack ??= [
    label(node), node.agent, node.tool?.name, node.host, node.reason, node.id, node.run,
    node.error && errorLine(node.error),
    ...node.requests.flatMap((request) => [request.model, request.provider, request.error && errorLine(request.error)]),
  ].filter(Boolean).join("\n").toLowerCase();
  return node.haystack;
}

function isMatch(node) {
  if (filter.state && node.state !== filter.state) return false;
  if (filter.agent && (node.agent || "\u2013") !== filter.agent) return false;
  if (filter.model && !node.usage.some(([model]) => model === filter.model)
    && !node.requests.some((request) => request.model === filter.model)) return false;
  if (filter.kind && !NODE_FILTERS[filter.kind](node)) return false;
  return !filter.text || searchText(node).includes(filter.text.toLowerCase());
}

function buildRows() {
  const filtered = isFiltered();
  const kept = new Set();
  matches = [];
  if (filtered) {
    for (const node of nodes) {
      node.match = isMatch(node);
      if (!node.match) continue;
      matches.push(node);
      for (let each = node; each && !kept.has(each); each = each.parent) kept.add(each);
    }
  }
  const listed = (entry) => (filtered ? entry.children.filter((child) => kept.has(child)) : below(entry));
  const isOpen = (entry) => (filtered ? !folds.filterFolded.has(entry.index) : folds.open.has(keyOf(entry)));
  rows = [];
  const stack = filtered && !kept.has(root) ? [] : [[root, 1, 1, 1, null]];
  while (stack.length) {
    const [entry, level, place, size, parentKey] = stack.pop();
    const row = { key: keyOf(entry), entry, level, place, size, parentKey, index: rows.length };
    row.folder = (entry.members ? entry.members : entry.children).length > 0
      && (!filtered || listed(entry).length > 0);
    row.open = row.folder && isOpen(entry);
    row.dim = filtered && !entry.match;
    rows.push(row);
    if (!row.open) continue;
    const inner = listed(entry);
    for (let i = inner.length - 1; i >= 0; i--) stack.push([inner[i], level + 1, i + 1, inner.length, row.key]);
  }
  rowOf = new Map(rows.map((row) => [row.key, row]));
}

function setFold(row, open) {
  if (!row.folder) return;
  const set = isFiltered() ? folds.filterFolded : folds.open;
  if (isFiltered() ? !open : open) set.add(row.key);
  else set.delete(row.key);
}

// Open everything above `node`, so that it has a row.
function openTo(node) {
  if (isFiltered()) {
    for (let each = node.parent; each; each = each.parent) folds.filterFolded.delete(each.index);
    return;
  }
  for (let each = node; each.parent; each = each.parent) {
    entriesOf(each.parent);
    folds.open.add(each.parent.index);
    if (each.group) folds.open.add(each.group.key);
  }
}
