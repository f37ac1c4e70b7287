// The panes with sums over the run: problems, tokens and cost, time.

const MAX_LISTED = 200;

const problems = {
  failed: nodes.filter((node) => node.bad).sort((a, b) => endOf(a) - endOf(b) || b.depth - a.depth),
  unfinished: nodes.filter((node) => node !== root && (node.open || node.state === "lost")),
  retried: nodes.filter((node) => node.retried.length),
  slow: nodes.filter((node) => node.slow.length),
};

function listing(title, list, about, kind) {
  if (!list.length) return "";
  return section(`${title} (${count(list.length)})`,
    el("ul", { class: "list" }, ...list.slice(0, MAX_LISTED).map((node) => el("li", {}, link(node), about(node)))),
    list.length > MAX_LISTED ? el("button", { type: "button", text: `Filter the tree: all ${count(list.length)}`,
      onclick: () => setFilter({ kind }) }) : null);
}

function showProblems() {
  const at = (time) => el("span", { class: "dim", text: duration(time) });
  const said = (text, kind = "dim") => el("div", { class: kind, text: clip(text, 300) });
  const failure = (node) => el("div", {}, at(endOf(node)),
    said(node.error ? errorLine(node.error) : `${node.tool.name} returned: ${node.tool.result ?? node.tool.status}`, "bad"),
    node.error?.[1] ? el("div", { class: "at" }, el("code", { text: node.error[1] })) : null);
  const all = [
    listing("Failed, in order of time", problems.failed, failure, "failed"),
    listing(raw.live ? "Still open" : "Lost: the recording lacks their end", problems.unfinished, (node) => el("div", {},
      node.waits ? said(node.waits.text || "waits") : said(`${raw.live ? "is" : "was"} ${node.intervals.length ? "running" : "not started yet"}`),
      node.waits?.at ? el("div", { class: "at" }, el("code", { text: node.waits.at })) : null), "open"),
    listing("Retried", problems.retried, (node) => el("div", {}, said(node.retried.map(([time, error]) =>
      `${duration(time)}${error ? ` after ${errorLine(error)}` : ""}`).join("; "))), "retried"),
    listing("Blocked the event loop", problems.slow, (node) => el("div", {}, ...node.slow.slice(0, 5).map(([time, seconds, line]) =>
      said(`${duration(seconds * 1e6)} before ${duration(time)}${line ? `, ${line}` : ""}`))), "slow"),
  ].filter(Boolean);
  $("pane-problems").replaceChildren(...(all.length ? all : [el("p", { class: "empty", text: "No node failed, was retried, or is open." })]));
}

// --- tokens and cost

function spending() {
  const models = new Map();
  const agents = new Map();
  const others = new Map();
  for (const node of nodes) {
    if (node.usage.length) {
      addUsage(models, node.usage);
      if (!agents.has(node.agent)) agents.set(node.agent, new Map());
      addUsage(agents.get(node.agent), node.usage);
    }
    for (const [account, amount] of node.others) others.set(account, (others.get(account) ?? 0) + amount);
  }
  return { models, agents, others };
}

const costOfAll = (sums) => {
  let cost = null;
  for (const [model, used] of sums) {
    const one = costOf(model, used);
    if (one !== null) cost = (cost ?? 0) + one;
  }
  return cost;
};

function sumOf(sums) {
  const all = [0, 0, 0, 0];
  for (const [, used] of sums) used.forEach((each, place) => { all[place] += each; });
  return all;
}

function usageRow(name, [input, output, cached, reasoning], cost, kind, choose) {
  const head = choose ? el("button", { class: "link", type: "button", text: name, onclick: choose }) : el("span", { text: name });
  return el("tr", { class: kind }, el("th", { scope: "row" }, head),
    ...[input, cached, output, reasoning].map((each) => el("td", { text: count(each) })), el("td", { text: money(cost) }));
}

function spendTable(caption, first, ...content) {
  const names = [first, "input", "cached", "output", "reasoning", "cost"];
  return el("div", { class: "wide" }, el("table", {}, el("caption", { text: caption }),
    el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col", text: name })))), el("tbody", {}, ...content)));
}

function showTokens() {
  const { models, agents, others } = spending();
  const pane = $("pane-tokens");
  if (!models.size && !others.size) {
    pane.replaceChildren(el("p", { class: "empty", text: "No tokens were counted." }));
    return;
  }
  const cost = (sums) => costOfAll(sums) ?? 0;
  const order = (list) => [...list].sort((a, b) => cost(b[1]) - cost(a[1]) || sumOf(b[1])[0] - sumOf(a[1])[0]);
  const everything = usageRow("all", sumOf(models), costOfAll(models), "all");
  const byModel = [...models].sort((a, b) => b[1][0] + b[1][1] - a[1][0] - a[1][1]).map(([model, used]) =>
    usageRow(model, used, costOf(model, used), "", () => setFilter({ model })));
  const byAgent = order(agents).flatMap(([agent, sums]) => [
    usageRow(agent || "(no agent)", sumOf(sums), costOfAll(sums), "", () => setFilter({ agent: agent || "\u2013" })),
    ...(sums.size > 1 ? [...sums].map(([model, used]) => usageRow(model, used, costOf(model, used), "inner")) : [])]);
  const unpriced = [...models.keys()].filter((model) => !PRICES.has(model));
  pane.replaceChildren(
    spendTable("By agent", "agent", ...byAgent, everything),
    spendTable("By model", "model", ...byModel, everything.cloneNode(true)),
    unpriced.length ? el("p", { class: "dim", text: `The cost excludes ${unpriced.join(", ")}, because the price is unknown.` }) : "",
    others.size ? section("Other amounts", facts(...[...others].map(([account, amount]) => fact(account, amount)))) : "",
    raw.missed ? el("p", { class: "dim", text: "The sums include lost events; their usage is listed at the commander." }) : "");
}

// --- time

function timeByName() {
  const names = new Map();
  for (const node of nodes) {
    if (node === root) continue;
    const split = splitTime(node);
    let sum = names.get(node.name);
    if (!sum) names.set(node.name, sum = { name: node.name, count: 0, own: 0, tool: 0, model: 0, below: 0, queued: 0, most: node });
    sum.count++;
    sum[node.tool ? "tool" : "own"] += split.own;
    sum.model += split.model;
    sum.below += split.below;
    sum.queued += split.queued;
    if (split.all > endOf(sum.most) - sum.most.put) sum.most = node;
  }
  const busyTime = (sum) => sum.own + sum.tool + sum.model;
  return [...names.values()].sort((a, b) => busyTime(b) - busyTime(a));
}

const TIME_PARTS = [["own", "own"], ["tool", "tools"], ["model", "models"], ["below", "children"], ["queued", "queued"]];

function showTime() {
  const sums = timeByName();
  const most = Math.max(1, ...sums.slice(0, MAX_LISTED).map((sum) => sum.own + sum.tool + sum.model));
  const all = Object.fromEntries(TIME_PARTS.map(([name]) => [name, sums.reduce((total, sum) => total + sum[name], 0)]));
  const cells = (sum) => TIME_PARTS.map(([name]) => el("td", { class: sum[name] ? "" : "none", text: sum[name] ? duration(sum[name]) : "\u2013" }));
  const lines = sums.slice(0, MAX_LISTED).flatMap((sum) => {
    const share = el("div", { class: "share" }, ...["own", "tool", "model"].filter((name) => sum[name]).map((name) => {
      const part = el("span", { class: `part ${name}` });
      part.style.width = `${(100 * sum[name]) / most}%`;
      return part;
    }));
    return [el("tr", {}, el("th", { scope: "row" },
      el("button", { class: "link", type: "button", text: clip(sum.name, 80) || "(no name)", onclick: () => setFilter({ text: sum.name }) }),
      " ", el("span", { class: "dim whole", text: `\u00d7 ${count(sum.count)}` })), ...cells(sum)),
    el("tr", { class: "bars", "aria-hidden": "true" }, el("td", { colspan: "6" }, share))];
  });
  $("pane-time").replaceChildren(
    el("p", { class: "dim", text: "Sums over all nodes with one name. Nodes run concurrently, so a sum may be longer than the run. \"Own\" is the time in which a body computes, or awaits something else than a node. While a child is alive, time counts as waiting for children." }),
    el("div", { class: "wide" }, el("table", {}, el("caption", { text: "By name of node" }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "node" }),
        ...TIME_PARTS.map(([name, title]) => el("th", { scope: "col" }, el("i", { class: `swatch ${name}` }), title)))),
      el("tbody", {}, ...lines, el("tr", { class: "all" }, el("th", { scope: "row", text: "all" }), ...cells(all))))),
    sums.length > MAX_LISTED ? el("p", { class: "dim", text: `and ${count(sums.length - MAX_LISTED)} more names` }) : "");
}
