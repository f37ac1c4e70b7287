// The data from `_page.py` as nodes. Times are whole microseconds since the recording began.

const raw = JSON.parse(document.getElementById("data").textContent);
const END = raw.end;
const OPEN_STATES = new Set(["pending", "running", "joining"]);
const PRICES = new Map(raw.prices.map(([model, ...price]) => [model, price]));

function readNodes() {
  const columns = raw.nodes;
  const nodes = [];
  let number = 0;
  let put = 0;
  for (let index = 0; index < columns.up.length; index++) {
    number += columns.number[index];
    put += columns.put[index];
    const start = columns.start[index] === null ? null : put + columns.start[index];
    const after = (start ?? put);
    const joined = columns.joined[index] === null ? null : after + columns.joined[index];
    const ended = columns.ended[index] === null ? null : after + columns.ended[index];
    nodes.push({
      index, number, put, ended,
      name: raw.names[columns.name[index]],
      state: raw.states[columns.state.charCodeAt(index) - 48],
      parent: index ? nodes[index - columns.up[index]] : null,
      children: [],
      intervals: start === null ? [] : [{ start, joined, end: ended }],
      requests: [], retried: [], slow: [], usage: [], others: [], executions: 1,
    });
  }
  for (const [index, more] of raw.more) Object.assign(nodes[index], more);
  return nodes;
}

const endOf = (node) => node.ended ?? END;
const nodes = readNodes();
const root = nodes[0];

// Parents come before their children, so one pass hands properties down, and a second one, in the
// other direction, adds sums up.
for (const node of nodes) {
  const { parent } = node;
  if (parent) parent.children.push(node);
  node.depth = parent ? parent.depth + 1 : 0;
  node.agent = node.ownAgent || (parent ? parent.agent : "");
  node.session = node.ownAgent ? node.ownSession : parent ? parent.session : "";
  for (const each of node.intervals) each.until = each.end ?? endOf(node);
  for (const each of node.requests) each.until = each.end ?? endOf(node); // the recording may lack its end
  node.open = OPEN_STATES.has(node.state);
  node.bad = node.state === "failed" || node.tool?.status === "failed" || node.tool?.status === "invalid";
  node.trouble = node !== root && (node.bad || node.open || node.state === "lost") ? 1 : 0;
  node.size = 1;
  node.tokens = 0;
  node.cost = null;
  for (const [model, ...used] of node.usage) {
    node.tokens += used[0] + used[1];
    const cost = costOf(model, used);
    if (cost !== null) node.cost = (node.cost ?? 0) + cost;
  }
}
for (let index = nodes.length - 1; index > 0; index--) {
  const node = nodes[index];
  const { parent } = node;
  parent.trouble += node.trouble;
  parent.size += node.size;
  parent.tokens += node.tokens;
  if (node.cost !== null) parent.cost = (parent.cost ?? 0) + node.cost;
}

// The same computation as `Price.of`; prices are for a million tokens.
function costOf(model, [input, output, cached]) {
  const price = PRICES.get(model);
  if (!price) return null;
  const fromCache = Math.max(0, Math.min(cached, input));
  return ((input - fromCache) * price[0] + fromCache * price[2] + output * price[1]) / 1e6;
}

const label = (node) => (node.number ? `${node.name || "(no name)"} #${node.number}` : node.name);

// Return the usage of `node` and all nodes below it, by model: [input, output, cached, reasoning].
function usageBelow(node) {
  const sums = new Map();
  for (let index = node.index; index < node.index + node.size; index++) addUsage(sums, nodes[index].usage);
  return sums;
}

function addUsage(sums, usage) {
  for (const [model, ...used] of usage) {
    const sum = sums.get(model);
    if (sum) used.forEach((tokens, place) => { sum[place] += tokens; });
    else sums.set(model, used);
  }
}

// --- the four parts of a node's time, which add up to the time from its put to its end

function merge(intervals) {
  const merged = [];
  for (const [from, to] of intervals.filter(([a, b]) => b > a).sort((a, b) => a[0] - b[0])) {
    const last = merged.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else merged.push([from, to]);
  }
  return merged;
}

function intersect(left, right) {
  const common = [];
  let i = 0;
  let j = 0;
  while (i < left.length && j < right.length) {
    const from = Math.max(left[i][0], right[j][0]);
    const to = Math.min(left[i][1], right[j][1]);
    if (from < to) common.push([from, to]);
    if (left[i][1] < right[j][1]) i++;
    else j++;
  }
  return common;
}

const total = (intervals) => intervals.reduce((sum, [from, to]) => sum + to - from, 0);

// `queued`: before its start and between attempts. `model`: while a request was open. `below`: while
// a child was alive, and no request open. `own`: the rest.
function splitTime(node) {
  const intervals = merge(node.intervals.map((interval) => [interval.start, interval.until]));
  const asked = node.requests.map((request) => [request.start, request.until]);
  const children = node.children.map((child) => [child.put, endOf(child)]);
  const ran = total(intervals);
  const model = total(intersect(merge(asked), intervals));
  const covered = total(intersect(merge([...asked, ...children]), intervals));
  return {
    queued: Math.max(0, endOf(node) - node.put - ran),
    own: ran - covered, model, below: covered - model, all: endOf(node) - node.put,
  };
}
