// The head of the page, filters, keys, and the first picture.

let waiting = false;
function drawAll() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(drawNow);
}

function drawNow() {
  waiting = false;
  drawTree();
  drawTimeline();
}

// --- head

const STATES = ["failed", "lost", "running", "joining", "pending", "cancelled", "completed"];

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
  $("states").replaceChildren(...STATES.filter((state) => byState.has(state)).map((state) => el("button", {
    type: "button", class: `chip ${state}`, "data-state": state, "aria-pressed": "false",
    title: `Show those that are ${state}`,
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
  const ended = raw.lives.at(-1)?.ended ?? true;
  if (raw.live) notes.push(`The run was going on when this page was written: ${many(open, "node")} open.`);
  else if (!ended && !open) notes.push("The recording has no end: it was closed before the run ended, or its process was killed.");
  else if (!ended) notes.push(`The recording has no end: its process was killed, or is gone. ${many(open, "node")} had not ended, and ${open === 1 ? "is" : "are"} marked as lost.`);
  else if (open) notes.push(`${many(open, "node")} ${open === 1 ? "is" : "are"} marked as lost: the end of ${open === 1 ? "it" : "each"} is not in the recording.`);
  if (raw.missed) notes.push(`${many(raw.missed, "event")} ${raw.missed === 1 ? "is" : "are"} missing: the recorder was too far behind. Sums are right, and what is marked as lost has ended, nobody knows how.`);
  const lives = raw.lives.length > 1 ? el("span", {}, `One run, ${raw.lives.length} processes: `,
    ...raw.lives.map((life, index) => el("button", {
      type: "button", class: "link", text: `life ${index + 1} (pid ${life.pid}, ${life.host})`,
      onclick: () => {
        const to = raw.lives[index + 1]?.at ?? END;
        const last = nodes.reduce((most, node) => node.spells.reduce((late, spell) =>
          (spell.start >= life.at && spell.start < to ? Math.max(late, spell.until) : late), most), life.at);
        const spare = Math.max(10, (last - life.at) * 0.04);
        setView(life.at - spare, last + spare);
      },
    }))) : null;
  $("notes").hidden = !notes.length && !lives;
  $("notes").replaceChildren(...notes.map((text) => el("span", { text })), lives ?? "");
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
  const kinds = [["failed", "failed"], ["open", "open or lost"], ["requests", "asked a model"], ["tools", "calls of tools"],
    ["agents", "agents"], ["retried", "tried again"], ["slow", "blocked the loop"], ["replayed", "from a journal"]];
  for (const node of nodes) {
    if (node.agent) agents.add(node.agent);
    for (const request of node.requests) models.add(request.model);
    for (const [model] of node.usage) models.add(model);
    for (const [kind] of kinds) if (!present.has(kind) && KINDS[kind](node)) present.add(kind);
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
  if (!isFiltered() && keep && !keep.members) openTo(keep); // what was found stays in sight
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
const filled = new Set(["node"]);
const FILL = { problems: showProblems, tokens: showTokens, time: showTime };

function showTab(name, focus = false) {
  for (const each of TABS) {
    const chosen = each === name;
    $(`tab-${each}`).setAttribute("aria-selected", chosen);
    $(`tab-${each}`).tabIndex = chosen ? 0 : -1;
    $(`pane-${each}`).hidden = !chosen;
  }
  if (!filled.has(name)) {
    filled.add(name);
    FILL[name]();
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
let theme = ""; // as the system has it
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

// --- begin

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
  window.anabranchReady = performance.now(); // milliseconds until the first picture was there
  document.documentElement.dataset.ready = window.anabranchReady; // a test can wait for it
}));
