// One run at a time: it is begun here, followed to its end, and gone on with after a reload.

const CLOSED = ["completed", "failed", "cancelled"];

// What was said, as it is sent again with each question; what is shown of it after a reload, with
// tools and questions, null where that is more than a tab keeps; and the run that is being answered.
let said = store.get("said") ?? [];
let shown = store.get("talk") ?? (said.length ? null : []);
let current = store.get("run");
let asking = false;

const tree = new Tree($("tree"));

function tell(words) {
  $("status").textContent = words;
}

function busy(yes) {
  $("stop").hidden = !yes;
  $("send").hidden = yes;
  $("anew").disabled = yes;
  $("status").classList.toggle("unseen", !yes); // the talk shows how it ended
  $("talk").setAttribute("aria-busy", String(yes));
}

function keep(run) {
  current = run;
  store.set("run", run);
  store.set("talk", null); // it gives way to what is sent again
  store.set("said", said);
  store.set("talk", shown);
}

// Read the run's log to its end, by number, over as many connections as it takes.
async function follow(run) {
  const view = new View(), began = run.began;
  let after = 0, end = null, attempt = 0;
  busy(true);
  tell("Thinking …");
  const elapsed = () => Math.max(0, (Date.now() - began) / 1000);
  const tick = () => { $("clock").textContent = `${Math.floor(elapsed())} s`; tree.tick(); };
  const ticking = setInterval(tick, 1000);
  tick();
  followTree(run);
  while (end === null) {
    try {
      const answer = await ask(`runs/${run.id}/events?after=${after}`);
      if (answer.status === 404 || answer.status === 410) end = { kind: "gone", message: await refusal(answer) };
      else if (!answer.ok) throw new Error(await refusal(answer));
      else {
        if (attempt) tell(view.text ? "Answering …" : "Thinking …");
        for await (const event of events(answer)) {
          if (event.event === "gone") {
            end = { kind: "gone", message: "more was said than is kept" };
            break;
          }
          const data = JSON.parse(event.data);
          if (data.number <= after) continue;
          after = data.number;
          attempt = 0;
          if (event.event === "text" && !view.speech) tell("Answering …");
          else if (event.event === "called") tell(`${data.name} runs …`);
          view.show(event.event, data);
          if (CLOSED.includes(event.event)) end = { kind: event.event, ...data };
        }
      }
    } catch {}
    if (end === null) { // the connection was lost: what is missing is read when it is there again
      tell("The connection is lost; it is tried again …");
      await pause(attempt++);
    }
  }
  clearInterval(ticking);
  view.end();
  finish(view, end, elapsed());
}

function finish(view, end, took) {
  if (view.text) said.push({ role: "assistant", content: view.text });
  else if (end.kind !== "completed" && said.at(-1)?.role === "user") {
    const question = said.pop();
    if (!$("words").value) $("words").value = question.content; // to be sent again
    grow();
  }
  const hadFocus = [$("stop"), document.body].includes(document.activeElement);
  busy(false);
  $("clock").textContent = "";
  const spent = end.usage?.total_tokens
    ? `${count(end.usage.prompt_tokens)} tokens in, ${count(end.usage.completion_tokens)} out` : "";
  const facts = [seconds(took), spent].filter(Boolean).join(" · ");
  const note = end.kind === "completed" ? ["note spent", facts]
    : end.kind === "cancelled" ? ["note spent", `Stopped · ${facts}`]
    : ["note error", `It did not work: ${end.message}`];
  add(...note);
  shown?.push(...view.kept, ["note", note]);
  keep(null);
  tell({ completed: "Done.", cancelled: "Stopped." }[end.kind] ?? "It did not work.");
  // A finger is not given a keyboard that it has not asked for.
  if (hadFocus && matchMedia("(pointer: fine)").matches) $("words").focus();
}

let treeOf = null; // the id of the run whose tree is shown

async function followTree(run) {
  treeOf = run.id;
  store.set("shown", run.id);
  for (let attempt = 0, whole = false; !whole && treeOf === run.id; attempt++) {
    tree.begin();
    try {
      const answer = await ask(`runs/${run.id}/trace`);
      if (!answer.ok) return;
      for await (const event of events(answer)) {
        if (treeOf !== run.id) return;
        whole = tree.take(JSON.parse(event.data)) || whole;
      }
    } catch {}
    if (whole || current?.id !== run.id) break;
    await pause(attempt);
  }
  if (treeOf === run.id) tree.end();
}

// Show what was shown before a reload.
function showAgain() {
  let view = new View();
  for (const [kind, data] of shown) {
    if (kind === "user") addUser(data);
    else if (kind === "note") {
      view.end();
      add(...data);
      view = new View();
    } else view.show(kind, data);
  }
  tell("");
}

// --- what the user does

async function send() {
  const words = $("words").value.trim();
  if (!words || current || asking) return;
  asking = $("send").disabled = true;
  try {
    await ready;
    const question = [...said, { role: "user", content: words }];
    const answer = await post("runs", { model: $("model").value, input: question });
    if (answer.ok) {
      const run = await answer.json();
      said = question;
      shown?.push(["user", words]);
      keep({ id: run.id, began: Date.now() });
      $("words").value = "";
      grow();
      addUser(words);
      scrollDown();
      follow(current);
    } else add("note error", `It did not work: ${await refusal(answer)}`);
  } catch {
    add("note error", "The server cannot be reached. Your message is still in the box.");
  } finally {
    asking = $("send").disabled = false;
  }
}

function stop() {
  if (!current) return;
  tell("Stopping …");
  post(`runs/${current.id}/cancel`).catch(() => tell("The server cannot be reached; it still runs."));
}

function beginAnew() {
  said = [];
  shown = [];
  keep(null);
  store.set("shown", null);
  treeOf = null;
  tree.begin();
  $("talk").replaceChildren();
  tell("");
  greet();
  $("words").focus();
}

function greet() {
  if ($("talk").childElementCount) return;
  $("talk").append(el("div", { id: "hello" }, el("p", { text: `Ask ${$("model").value || "away"}.` }),
    el("p", { class: "note", text: "Enter sends, Shift+Enter begins a new line, Escape stops an answer." })));
}

function showTree(yes) {
  document.body.classList.toggle("no-tree", !yes);
  $("show-tree").setAttribute("aria-pressed", String(yes));
  store.set("tree", yes);
}

function showModel() {
  document.title = `${$("model").value} · Anabranch`;
  store.set("model", $("model").value);
  $("hello")?.remove();
  greet();
}

function grow() {
  const box = $("words");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

$("say").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("stop").addEventListener("click", stop);
$("anew").addEventListener("click", beginAnew);
$("newest").addEventListener("click", () => { scrollDown(); $("talk").focus(); });
$("show-tree").addEventListener("click", () => showTree(document.body.classList.contains("no-tree")));
$("model").addEventListener("change", showModel);
$("words").addEventListener("input", grow);
$("words").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("key").open) stop();
});
$("key").addEventListener("cancel", (event) => event.preventDefault()); // nothing works without it

async function begin() {
  showTree(store.get("tree") ?? innerWidth > 830);
  if (shown) showAgain();
  else for (const { role, content } of said) {
    if (role === "user") addUser(content);
    else new Speech(add("message assistant")).add(content).finish();
  }
  scrollDown();
  const answer = await ask("v1/models");
  if (!answer.ok) {
    add("note error", await refusal(answer));
    return;
  }
  const names = (await answer.json()).data.map((each) => each.id);
  for (const name of names) $("model").append(new Option(name, name));
  if (names.includes(store.get("model"))) $("model").value = store.get("model");
  $("choice").hidden = names.length === 1;
  if (names.length === 1) $("title").textContent = names[0];
  showModel();
  $("words").focus();
  if (current) follow(current);
  else if (store.get("shown")) followTree({ id: store.get("shown") });
}

// Settled when the models are known; until then a question waits.
const ready = begin().catch(() => add("note error", "The server cannot be reached."));
