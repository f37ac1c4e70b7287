// The pane with all details of one node.

const details = $("pane-node");

const fact = (name, value) => (value === null || value === undefined || value === "" ? [] : [
  el("dt", { text: name }), value instanceof Node ? el("dd", {}, value) : el("dd", { text: String(value) })]);

const facts = (...pairs) => el("dl", {}, ...pairs.flat());
const section = (title, ...content) => el("section", {}, el("h3", { text: title }), ...content);
const block = (text, name) => el("pre", { tabindex: "0", "aria-label": name, text });

function link(node, text = label(node)) {
  return el("button", { class: `link ${node.state}`, type: "button", onclick: () => goTo(node) },
    icon(signOf(node), node.state), el("span", { text: clip(text, 80) }));
}

function errorBlock([type, at, message, inner], title) {
  return el("div", { class: "error" },
    title ? el("div", { class: "dim", text: title }) : null,
    el("b", { text: type }),
    message ? el("pre", { tabindex: "0", text: message }) : null,
    at ? el("div", { class: "at" }, "raised at ", el("code", { text: at })) : null,
    ...(inner ?? []).map((each) => errorBlock(each)));
}

function usageTable(sums, caption) {
  const table = el("table", {}, el("caption", { text: caption }), el("thead", {}, el("tr", {},
    ...["model", "input", "cached", "output", "reasoning", "cost"].map((name) => el("th", { scope: "col", text: name })))));
  const body = el("tbody");
  for (const [model, used] of sums) {
    const [input, output, cached, reasoning] = used;
    body.append(el("tr", {}, el("th", { scope: "row", text: model }),
      ...[input, cached, output, reasoning].map((each) => el("td", { text: count(each) })),
      el("td", { text: money(costOf(model, used)) })));
  }
  table.append(body);
  return el("div", { class: "wide" }, table);
}

function timeBar(node) {
  const split = splitTime(node);
  if (node.tool) [split.tool, split.own] = [split.own, 0];
  const parts = [["queued", "waiting to start, or between attempts"], ["own", "its body"], ["tool", "the call"],
    ["model", "requests to models"], ["below", "waiting for children"]];
  const shown = parts.filter(([name]) => split[name] > 0);
  return el("div", {},
    el("div", { class: "share", "aria-hidden": "true" }, ...shown.map(([name]) => {
      const part = el("span", { class: `part ${name}` });
      part.style.flexGrow = split[name];
      return part;
    })),
    facts(...shown.map(([name, meaning]) => [
      el("dt", {}, el("i", { class: `swatch ${name}` }), meaning),
      el("dd", { text: `${duration(split[name])}, ${Math.round((100 * split[name]) / Math.max(1, split.all))} %` })])));
}

function message({ role, content, reasoning, calls }) {
  return el("div", { class: "message" }, el("div", { class: "dim", text: role }),
    reasoning ? el("pre", { class: "dim", tabindex: "0", text: reasoning }) : null,
    content ? el("pre", { tabindex: "0", text: content }) : null,
    calls ? block(calls, "tool calls") : null);
}

function requestBlock(request, open) {
  const end = request.until;
  const how = request.error ? "failed" : request.left ? "reader stopped" : request.end === undefined ? "open" : request.finish ?? "";
  const made = el("details", { open }, el("summary", {},
    el("b", { text: request.model }), ` ${duration(end - request.start)}`, el("span", { class: "dim", text: how ? `, ${how}` : "" })));
  made.append(facts(
    fact("provider", request.provider),
    fact("sent at", duration(request.start)),
    fact("first chunk after", request.first === undefined ? "none arrived" : duration(request.first - request.start)),
    fact("took", duration(end - request.start)),
    fact("chunks", request.chunks),
    fact("finish reason", request.finish),
    fact("reader", request.left ? "stopped before the end" : ""),
    fact("replayed", request.replayed ? "from a journal, without a request" : ""),
    fact("messages", request.messages || ""),
    fact("tools", request.tools?.join(", ")),
    fact("options", request.options ? el("code", { text: request.options }) : "")));
  if (request.error) made.append(errorBlock(request.error));
  if (request.usage) made.append(usageTable(request.usage.map(([model, ...used]) => [model, used]), "Tokens of this request"));
  if (request.input) made.append(el("h4", { text: "Messages" }), ...request.input.map(message));
  if (request.output) made.append(el("h4", { text: "Reply" }), message(request.output));
  return made;
}

function timesOf(node) {
  const first = node.intervals[0];
  return facts(
    fact("put", `${duration(node.put)} \u00b7 ${date(node.put)}`),
    fact("started", first ? `${duration(first.start)}, after ${duration(first.start - node.put)}` : "never"),
    fact(node.open ? "running for" : "took", first ? timeOf(node) : duration(endOf(node) - node.put)),
    fact("ended", node.ended === null ? "not yet" : node.state === "lost" ? "the recording lacks its end" : duration(node.ended)),
    fact("attempts", node.retried.length ? node.retried.length + 1 : ""),
    fact("executions", node.executions > 1 ? `in ${node.executions} processes` : ""));
}

function originOf(node) {
  return facts(
    fact("agent", node.agent), fact("session", node.session),
    fact("run", node.run), fact("identity", node.id ? el("code", { text: node.id }) : ""),
    fact("host", node.host), fact("journal", node.recorded ? "its outcome comes from the journal" : ""));
}

function toolOf({ name, call, size: characters, status, resultSize, arguments: given, result }) {
  return section("Tool call", facts(
    fact("tool", name), fact("call", call), fact("status", status),
    fact("arguments", `${many(characters, "character")}`),
    fact("result", status ? `${many(resultSize, "character")}` : "none")),
  given ? block(given, "arguments") : null, result ? block(result, "result") : null);
}

function waitsOf({ text, on, at }) {
  return section("Waits for",
    text ? el("p", { text }) : null,
    at ? el("div", { class: "at" }, "at ", el("code", { text: at })) : null,
    on ? el("div", { class: "links" }, ...on.map((index) => link(nodes[index]))) : null);
}

function pathOf(node) {
  const above = [];
  for (let each = node.parent; each; each = each.parent) above.unshift(each);
  const shown = above.length > 5 ? [above[0], null, ...above.slice(-3)] : above;
  return el("nav", { class: "path", "aria-label": "Ancestors" }, ...shown.map((each) => (each ? link(each) : el("span", { text: "\u2026" }))));
}

function showNode(node) {
  const own = node.usage.length > 0;
  details.replaceChildren(
    pathOf(node),
    el("h2", {}, icon(signOf(node)), el("span", { text: label(node) }), el("span", { class: `state ${node.state}`, text: node.state })),
    el("div", { class: "actions" },
      el("button", { type: "button", onclick: () => zoomTo(node), text: "Zoom" }),
      node.children.length ? el("span", { class: "dim", text: `${many(node.children.length, "child", "children")}, ${count(node.size - 1)} below` }) : null),
    node.waits ? waitsOf(node.waits) : "",
    node.error ? section("Failed with", errorBlock(node.error)) : "",
    node.reason ? section("Cancelled", el("p", { text: node.reason })) : "",
    section("Times", timesOf(node), timeBar(node)),
    node.retried.length ? section("Retried", ...node.retried.map(([at, error]) => (error
      ? errorBlock(error, `at ${duration(at)}, after`) : el("p", { text: `at ${duration(at)}` })))) : "",
    node.agent || node.run || node.host || node.recorded ? section("Agent, run and machine", originOf(node)) : "",
    node.tool ? toolOf(node.tool) : "",
    node.slow.length ? section("Blocked the loop", ...node.slow.map(([at, seconds, line]) => el("p", {},
      `${duration(seconds * 1e6)} before ${duration(at)}`, line ? el("div", { class: "at" }, el("code", { text: line })) : null))) : "",
    node.requests.length ? section(many(node.requests.length, "request"),
      ...node.requests.slice(0, 50).map((request, place) => requestBlock(request, place === 0 && node.requests.length < 4)),
      node.requests.length > 50 ? el("p", { class: "dim", text: `and ${count(node.requests.length - 50)} more` }) : null) : "",
    node.tokens ? section("Tokens",
      own ? usageTable(node.usage.map(([model, ...used]) => [model, used]), "Without children") : "",
      node.children.length ? usageTable(usageBelow(node), own ? "With children" : "Of children") : "") : "",
    node.others.length ? section("Other amounts", facts(...node.others.map(([account, amount]) => fact(account, amount)))) : "",
    node.text ? section("Text to the user", block(node.text, "text to the user")) : "");
}

function showGroup(group) {
  const times = group.members.map((node) => endOf(node) - node.put).sort((a, b) => a - b);
  const slowest = [...group.members].sort((a, b) => (endOf(b) - b.put) - (endOf(a) - a.put)).slice(0, 8);
  details.replaceChildren(
    el("nav", { class: "path", "aria-label": "Ancestors" }, link(group.parent)),
    el("h2", {}, icon(group.state), el("span", { text: `${group.name} \u00d7 ${count(group.members.length)}` }),
      el("span", { class: `state ${group.state}`, text: group.state })),
    section("Times", facts(
      fact("median", duration(times[Math.floor(times.length / 2)])),
      fact("90 % within", duration(times[Math.min(times.length - 1, Math.floor(times.length * 0.9))])),
      fact("shortest", duration(times[0])), fact("longest", duration(times.at(-1))))),
    section("Longest", el("ul", { class: "list" }, ...slowest.map((node) => el("li", {}, link(node),
      el("span", { class: "dim", text: duration(endOf(node) - node.put) }))))));
}

let shownEntry = null;
function showDetails(entry) {
  if (shownEntry === entry) return;
  shownEntry = entry;
  if (entry.members) showGroup(entry);
  else showNode(entry);
  $("side").scrollTop = 0;
}
