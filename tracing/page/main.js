// The header, filters, tabs, theme and keys, and the first drawing.

let isDrawScheduled = false;
function drawAll() {
  if (isDrawScheduled) return;
  isDrawScheduled = true;
  requestAnimationFrame(drawNow);
}

function drawNow() {
  isDrawScheduled = false;
  drawTree();
  drawTimeline();
}

// --- header

const STATE_ORDER = ["failed", "lost", "running", "joining", "pending", "cancelled", "completed"];

function showHead() {
  $("when").textContent = date(0);
  document.title = `Run of ${date(0)}`;
  const sums = spending();
  const used = sumOf(sums.models);
  const cost = costOfAll(sums.models);
  const numbers = [[duration(END), "long"], [count(nodes.length - 1), "nodes"]];
  if (used[0] + used[1]) numbers.push([tokens(used[0] + used[1]), "tokens"]);
  if (cost !== null) numbers.push([money(cost), "cost"]);
  $("numbers").replaceChildren(...numbers.map(([value, name]) => el("span", {}, el("b", { text: value }), ` ${name}`)));
  const byState = new Map();
  for (const node of nodes.slice(1)) byState.set(node.state, (byState.get(node.state) ?? 0) + 1);
  $("states").replaceChildren(...STATE_ORDER.filter((state) => byState.has(state)).map((state) => el("button", {
    type: "button", class: `chip ${state}`, "data-state": state, "aria-pressed": "false",
    title: `Show only ${state} nodes`,
    onclick: () => setFilter({ state: filter.state === state ? "" : state }),
    "aria-label": `${count(byState.get(state))} ${state}`,
  }, icon(state), count(byState.get(state)), el("span", { class: "word", text: state }))));
  $("first").hidden = raw.first === null;
  $("problem-count").textContent = problems.failed.length + problems.unfinished.length || "";
  showNotes();
}

function showNotes() {
  const notes = [];
  const open = problems.unfinished.length;
  const ended = raw.executions.at(-1)?.ended ?? true;
  const are = open === 1 ? "is" : "are";
  if (raw.live) notes.push(`The run had not ended when this page was written: ${many(open, "node")} ${are} open.`);
  else if (!ended && !open) notes.push("The recording is incomplete: it was closed before the run ended, or its process was killed.");
  else if (!ended) notes.push(`The recording is incomplete: its process was killed. ${many(open, "node")} had not ended, and ${are} marked as lost.`);
  else if (open) notes.push(`${many(open, "node")} ${are} marked as lost, because the recording lacks the end.`);
  if (raw.missed) notes.push(`The recording lacks ${many(raw.missed, "event")}, because the recorder was too far behind. Sums are right. Lost nodes have ended, but their results are unknown.`);
  const executions = raw.executions.length > 1 ? el("span", {}, `One run, ${raw.executions.length} processes: `,
    ...raw.executions.map((execution, index) => el("button", {
      type: "button", class: "link", text: `execution ${index + 1} (pid ${execution.pid}, ${execution.host})`,
      onclick: () => {
        const to = raw.executions[index + 1]?.at ?? END;
        const last = nodes.reduce((most, node) => node.intervals.reduce((late, interval) =>
          (interval.start >= execution.at && interval.start < to ? Math.max(late, interval.until) : late), most), execution.at);
        const spare = Math.max(10, (last - execution.at) * 0.04);
        setView(execution.at - spare, last + spare);
      },
    }))) : null;
  $("notes").hidden = !notes.length && !executions;
  $("notes").replaceChildren(...notes.map((text) => el("span", { text })), executions ?? "");
}

// --- search and filters

function fillSelect(id, values, all) {
  const select = $(id);
  select.replaceChildren(el("option", { value: "", text: all }),
    ...values.map(([value, text]) => el("option", { value, text: clip(text, 60) })));
  select.disabled = !values.length;
  select.addEventListener("change", () => setFilter({ [id]: select.value }));
}

function fillFilters() {
  const agents = new Set();
  const models = new Set();
  const present = new Set();
  const kinds = [["failed", "failed"], ["open", "open or lost"], ["requests", "requests to models"], ["tools", "tool calls"],
    ["agents", "agents"], ["retried", "retried"], ["slow", "blocked the loop"], ["replayed", "from a journal"]];
  for (const node of nodes) {
    if (node.agent) agents.add(node.agent);
    for (const request of node.requests) models.add(request.model);
    for (const [model] of node.usage) models.add(model);
    for (const [kind] of kinds) if (!present.has(kind) && NODE_FILTERS[kind](node)) present.add(kind);
  }
  const byName = (names) => [...names].sort().map((name) => [name, name]);
  fillSelect("agent", agents.size ? [...byName(agents), ["\u2013", "(no agent)"]] : [], "all agents");
  fillSelect("model", byName(models), "all models");
  fillSelect("kind", kinds.filter(([kind]) => present.has(kind)), "all kinds");
}

function setFilter(changed) {
  const keep = activeRow()?.entry;
  Object.assign(filter, changed);
  folds.filterFolded.clear();
  for (const id of ["agent", "model", "kind"]) $(id).value = filter[id];
  if ($("search").value !== filter.text) $("search").value = filter.text;
  for (const chip of $("states").children) chip.setAttribute("aria-pressed", chip.dataset.state === filter.state);
  if (!isFiltered() && keep && !keep.members) openTo(keep); // the found node stays visible
  rebuild();
  const row = activeRow();
  if (row) reveal(row);
  const filtered = isFiltered();
  $("clear").hidden = !filtered;
  $("found").textContent = filtered ? `${count(matches.length)} of ${count(nodes.length)} match` : "";
  $("nothing").hidden = rows.length > 0;
}

const clearFilter = () => setFilter({ text: "", state: "", agent: "", model: "", kind: "" });

function nextMatch(step) {
  if (!matches.length) return;
  const here = activeRow()?.entry;
  const place = here && !here.members ? here.index : -1;
  const after = step > 0
    ? matches.find((node) => node.index > place) ?? matches[0]
    : matches.findLast((node) => node.index < place) ?? matches.at(-1);
  goTo(after, { focus: false });
}

$("search").addEventListener("input", () => setFilter({ text: $("search").value }));
$("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
  else if (event.key === "Escape") {
    if (filter.text) setFilter({ text: "" });
    else drawn.get(active)?.focus();
  } else if (event.key === "ArrowDown") drawn.get(active)?.focus();
  else return;
  event.preventDefault();
  event.stopPropagation();
});
$("clear").addEventListener("click", () => { clearFilter(); $("search").focus(); });

// --- tabs

const TABS = ["node", "problems", "tokens", "time"];
const filledTabs = new Set(["node"]);
const FILL_TAB = { problems: showProblems, tokens: showTokens, time: showTime };

function showTab(name, focus = false) {
  for (const each of TABS) {
    const chosen = each === name;
    $(`tab-${each}`).setAttribute("aria-selected", chosen);
    $(`tab-${each}`).tabIndex = chosen ? 0 : -1;
    $(`pane-${each}`).hidden = !chosen;
  }
  if (!filledTabs.has(name)) {
    filledTabs.add(name);
    FILL_TAB[name]();
  }
  if (focus) $(`tab-${name}`).focus();
}

for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => showTab(name));
$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const here = TABS.findIndex((name) => $(`tab-${name}`).getAttribute("aria-selected") === "true");
  showTab(TABS[(here + step + TABS.length) % TABS.length], true);
  event.preventDefault();
  event.stopPropagation();
});

// --- theme, help, keys

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = ""; // that of the system
function applyTheme() {
  document.documentElement.style.colorScheme = theme || "light dark";
  const isDark = theme ? theme === "dark" : dark.matches;
  $("theme").setAttribute("aria-label", isDark ? "Light colours" : "Dark colours");
  $("theme").title = $("theme").getAttribute("aria-label");
  colours = new Map();
  drawAll();
}
const toggleTheme = () => {
  theme = (theme ? theme === "dark" : dark.matches) ? "light" : "dark";
  applyTheme();
};
dark.addEventListener("change", applyTheme);
$("theme").addEventListener("click", toggleTheme);

const help = $("help");
const toggleHelp = () => (help.open ? help.close() : help.showModal());
$("ask").addEventListener("click", toggleHelp);
help.addEventListener("click", (event) => { if (event.target === help) help.close(); });

function firstFailure() {
  if (raw.first === null) return;
  showTab("node");
  goTo(nodes[raw.first]);
}
$("first").addEventListener("click", firstFailure);
$("zoom-in").addEventListener("click", () => zoom(1.6));
$("zoom-out").addEventListener("click", () => zoom(1 / 1.6));
$("fit").addEventListener("click", fit);

const chosenEntry = () => activeRow()?.entry ?? root;
const KEYS = {
  "+": () => zoom(1.6), "=": () => zoom(1.6), "-": () => zoom(1 / 1.6), _: () => zoom(1 / 1.6),
  0: fit, z: () => zoomTo(chosenEntry()), "[": () => pan(-0.25), "]": () => pan(0.25),
  f: firstFailure, n: () => nextMatch(1), N: () => nextMatch(-1),
  "/": () => { $("search").focus(); $("search").select(); },
  "?": toggleHelp, t: toggleTheme,
  1: () => showTab("node"), 2: () => showTab("problems"), 3: () => showTab("tokens"), 4: () => showTab("time"),
  Escape: () => { if (isFiltered()) clearFilter(); },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest("input, select, textarea") || (help.open && event.key !== "?")) return;
  const move = { ArrowLeft: -0.25, ArrowRight: 0.25 }[event.key];
  if (event.shiftKey && move) pan(move);
  else if (Object.hasOwn(KEYS, event.key)) KEYS[event.key]();
  else return;
  event.preventDefault();
});

// --- start

scroller.addEventListener("scroll", drawAll, { passive: true });
new ResizeObserver(drawAll).observe(scroller);
showHead();
fillFilters();
openAtStart();
buildRows();
showDetails(root);
applyTheme();
drawNow();
requestAnimationFrame(() => requestAnimationFrame(() => {
  window.anabranchReady = performance.now(); // milliseconds until the first drawing
  document.documentElement.dataset.ready = window.anabranchReady; // for tests that wait for it
}));
