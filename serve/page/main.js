// The page's state, and what the user can do. One run at a time: it is started here, followed to its
// end, and resumed after a reload.

const LAST_KINDS = ["completed", "failed", "cancelled"];

// `messages` is the conversation, which each request sends. `entries` are shown again after a reload:
// also tools and questions; null if they are larger than a tab can store. `run` is the open run.
let messages = store.get("messages") ?? [];
let entries = store.get("entries") ?? (messages.length ? null : []);
let run = store.get("run");
let isSending = false;

const tree = new Tree($("tree"));

function setStatus(text) {
  $("status").textContent = text;
}

function setBusy(isBusy) {
  $("stop").hidden = !isBusy;
  $("send").hidden = isBusy;
  $("new-chat").disabled = isBusy;
  $("status").classList.toggle("hidden-text", !isBusy); // the conversation shows the end of the run
  $("conversation").setAttribute("aria-busy", String(isBusy));
}

function save(currentRun) {
  run = currentRun;
  store.set("run", currentRun);
  store.set("entries", null); // first free the space: the messages are more important
  store.set("messages", messages);
  store.set("entries", entries);
}

// Read the log of a run to its end, by number, over any number of connections.
async function follow(current) {
  const view = new RunView();
  let after = 0, end = null, attempt = 0;
  setBusy(true);
  setStatus("Thinking …");
  const elapsed = () => Math.max(0, (Date.now() - current.started) / 1000);
  const tick = () => { $("clock").textContent = `${Math.floor(elapsed())} s`; tree.tick(); };
  const ticking = setInterval(tick, 1000);
  tick();
  followTree(current);
  while (end === null) {
    try {
      const response = await request(`runs/${current.id}/events?after=${after}`);
      if (response.status === 404 || response.status === 410) end = { kind: "expired", message: await errorText(response) };
      else if (!response.ok) throw new Error(await errorText(response));
      else {
        if (attempt) setStatus(view.text ? "Answering …" : "Thinking …");
        for await (const event of events(response)) {
          if (event.event === "gone") {
            end = { kind: "expired", message: "The answer is longer than the server stores." };
            break;
          }
          const data = JSON.parse(event.data);
          if (data.number <= after) continue;
          after = data.number;
          attempt = 0;
          if (event.event === "text" && !view.reply) setStatus("Answering …");
          else if (event.event === "called") setStatus(`${data.name} is running …`);
          view.show(event.event, data);
          if (LAST_KINDS.includes(event.event)) end = { kind: event.event, ...data };
        }
      }
    } catch {}
    if (end === null) { // the connection was lost: the next one reads the missing entries
      setStatus("Connection lost. Reconnecting …");
      await pause(attempt++);
    }
  }
  clearInterval(ticking);
  view.end();
  finish(view, end, elapsed());
}

function finish(view, end, elapsed) {
  if (view.text) messages.push({ role: "assistant", content: view.text });
  else if (end.kind !== "completed" && messages.at(-1)?.role === "user") {
    const question = messages.pop();
    if (!$("message").value) $("message").value = question.content; // the user can send it again
    fitMessage();
  }
  const hadFocus = [$("stop"), document.body].includes(document.activeElement);
  setBusy(false);
  $("clock").textContent = "";
  const usage = end.usage?.total_tokens
    ? `${count(end.usage.prompt_tokens)} tokens in, ${count(end.usage.completion_tokens)} out` : "";
  const facts = [seconds(elapsed), usage].filter(Boolean).join(" · ");
  const note = end.kind === "completed" ? ["note usage", facts]
    : end.kind === "cancelled" ? ["note usage", `Stopped · ${facts}`]
    : ["note error", `Error: ${end.message}`];
  add(...note);
  entries?.push(...view.entries, ["note", note]);
  save(null);
  setStatus({ completed: "Done.", cancelled: "Stopped." }[end.kind] ?? "Error.");
  // On a touch screen the focus would open the keyboard.
  if (hadFocus && matchMedia("(pointer: fine)").matches) $("message").focus();
}

let treeRunId = null; // the run whose tree is shown

async function followTree({ id }) {
  treeRunId = id;
  store.set("tree-run", id);
  for (let attempt = 0, complete = false; !complete && treeRunId === id; attempt++) {
    tree.clear();
    try {
      const response = await request(`runs/${id}/trace`);
      if (!response.ok) return;
      for await (const event of events(response)) {
        if (treeRunId !== id) return;
        complete = tree.add(JSON.parse(event.data)) || complete;
      }
    } catch {}
    if (complete || run?.id !== id) break;
    await pause(attempt);
  }
  if (treeRunId === id) tree.end();
}

// Show the stored conversation again after a reload.
function showEntries() {
  let view = new RunView();
  for (const [kind, data] of entries) {
    if (kind === "user") addUserMessage(data);
    else if (kind === "note") {
      view.end();
      add(...data);
      view = new RunView();
    } else view.show(kind, data);
  }
  setStatus("");
}

// --- the user's actions

async function send() {
  const text = $("message").value.trim();
  if (!text || run || isSending) return;
  isSending = $("send").disabled = true;
  try {
    await ready;
    const input = [...messages, { role: "user", content: text }];
    const response = await post("runs", { model: $("model").value, input });
    if (response.ok) {
      const { id } = await response.json();
      messages = input;
      entries?.push(["user", text]);
      save({ id, started: Date.now() });
      $("message").value = "";
      fitMessage();
      addUserMessage(text);
      scrollDown();
      follow(run);
    } else add("note error", `Error: ${await errorText(response)}`);
  } catch {
    add("note error", "Cannot reach the server. Your message is still in the box.");
  } finally {
    isSending = $("send").disabled = false;
  }
}

function stop() {
  if (!run) return;
  setStatus("Stopping …");
  post(`runs/${run.id}/cancel`).catch(() => setStatus("Cannot reach the server. The run continues."));
}

function startNewChat() {
  messages = [];
  entries = [];
  save(null);
  store.set("tree-run", null);
  treeRunId = null;
  tree.clear();
  $("conversation").replaceChildren();
  setStatus("");
  showHint();
  $("message").focus();
}

function showHint() {
  if ($("conversation").childElementCount) return;
  $("conversation").append(el("div", { id: "hint" }, el("p", { text: `Ask ${$("model").value || "a question"}.` }),
    el("p", { class: "note", text: "Enter sends, Shift+Enter starts a new line, Escape stops an answer." })));
}

function showTree(isShown) {
  document.body.classList.toggle("no-tree", !isShown);
  $("show-tree").setAttribute("aria-pressed", String(isShown));
  store.set("tree", isShown);
}

function showModel() {
  document.title = `${$("model").value} · Anabranch`;
  store.set("model", $("model").value);
  $("hint")?.remove();
  showHint();
}

function fitMessage() {
  const box = $("message");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

$("send-form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("stop").addEventListener("click", stop);
$("new-chat").addEventListener("click", startNewChat);
$("newest").addEventListener("click", () => { scrollDown(); $("conversation").focus(); });
$("show-tree").addEventListener("click", () => showTree(document.body.classList.contains("no-tree")));
$("model").addEventListener("change", showModel);
$("message").addEventListener("input", fitMessage);
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("key").open) stop();
});
$("key").addEventListener("cancel", (event) => event.preventDefault()); // the page needs the key

async function start() {
  showTree(store.get("tree") ?? innerWidth > 830);
  if (entries) showEntries();
  else for (const { role, content } of messages) {
    if (role === "user") addUserMessage(content);
    else new Reply(add("message assistant")).add(content).finish();
  }
  scrollDown();
  const response = await request("v1/models");
  if (!response.ok) {
    add("note error", `Error: ${await errorText(response)}`);
    return;
  }
  const names = (await response.json()).data.map((each) => each.id);
  for (const name of names) $("model").append(new Option(name, name));
  if (names.includes(store.get("model"))) $("model").value = store.get("model");
  $("choice").hidden = names.length === 1;
  if (names.length === 1) $("title").textContent = names[0];
  showModel();
  $("message").focus();
  if (run) follow(run);
  else if (store.get("tree-run")) followTree({ id: store.get("tree-run") });
}

// Settled when the models are known. `send` waits for it.
const ready = start().catch(() => add("note error", "Cannot reach the server."));
