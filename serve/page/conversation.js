// The conversation: messages, tool calls, and questions to the user.

const END_PIXELS = 80; // within this distance from the end, the view follows new content
const STORED_CHARS = 5000; // stored characters of a tool's text, or of reasoning
const LINE_CHARS = 90; // shown characters of a call or its result in one line

const isNearEnd = () => $("conversation").scrollHeight - $("conversation").scrollTop - $("conversation").clientHeight < END_PIXELS;

let isFollowing = true; // the end was in sight before the last change of size
let lastTop = 0; // the last scroll position
let isScrollScheduled = false;

$("conversation").addEventListener("scroll", () => {
  // Only a user who scrolls up leaves the end: new content may have moved it since the last scroll.
  isFollowing = isNearEnd() || (isFollowing && $("conversation").scrollTop >= lastTop);
  lastTop = $("conversation").scrollTop;
  if (isFollowing) $("newest").hidden = true;
});
new ResizeObserver(() => { if (isFollowing) scrollDown(); }).observe($("conversation"));

function scrollDown() {
  $("conversation").scrollTop = $("conversation").scrollHeight;
  isFollowing = true;
  $("newest").hidden = true;
}

// Change the conversation. A user at the end stays there; a user who reads above is not moved. This
// measures nothing: a layout for each delta of a long answer would take longer than the answer.
function update(change) {
  const result = change();
  if (!isFollowing) $("newest").hidden = false;
  else if (!isScrollScheduled) {
    isScrollScheduled = true;
    requestAnimationFrame(() => {
      isScrollScheduled = false;
      if (isFollowing) scrollDown();
    });
  }
  return result;
}

function add(className, text = "", tag = "div") {
  return update(() => {
    $("hint")?.remove();
    const element = el(tag, { class: className, text });
    $("conversation").append(element);
    return element;
  });
}

function addUserMessage(text) {
  add("message user").append(el("span", { class: "hidden-text", text: "You: " }), text);
}

// Characters that are invisible, or change the order of others, would show the user another call.
const escapeInvisible = (text) => text.replace(/\p{Cf}/gu, (character) =>
  `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`);

// The texts of a tool call may be larger than a tab can store.
const shorten = (data) => Object.fromEntries(Object.entries(data).map(([name, value]) =>
  [name, value?.length > STORED_CHARS ? `${value.slice(0, STORED_CHARS)} …` : value]));

// Shows the entries of one run's log. The caller passes each entry once.
class RunView {
  constructor() {
    this.replies = [];
    this.reply = null; // the open reply, and its id in the log
    this.replyId = null;
    this.reasoning = null; // the element of the last reasoning, and its reply's id in the log
    this.reasoningId = null;
    this.isBroken = false; // the last reply broke off; it is shown as such, unless the user stopped it
    this.calls = new Map();
    this.questions = new Map();
    this.entries = []; // the entries to store
  }

  get text() { return this.replies.map((each) => each.text).join("\n\n"); }

  show(kind, data) {
    if (kind === "items") return; // data for the model's provider
    this.store(kind, data);
    update(() => {
      if (this.isBroken && kind !== "cancelled") this.markBroken();
      if (kind === "text") this.addText(data);
      else if (kind === "reasoning") this.addReasoning(data);
      else if (kind === "broken") this.isBroken = true;
      else if (kind === "called") this.addCall(data);
      else if (kind === "answered") this.addResult(data);
      else if (kind === "asked") this.addQuestion(data);
      else if (kind === "decided") this.closeQuestion(data.question, data.approved ? "You said yes." : "You said no.");
    });
  }

  store(kind, data) {
    const last = this.entries.at(-1);
    const continues = ["text", "reasoning"].includes(kind) && last?.[0] === kind && last[1].speech === data.speech;
    if (!continues) this.entries.push([kind, kind === "text" ? { ...data } : shorten(data)]);
    else if (kind === "text") last[1].text += data.text;
    else if (last[1].text.length <= STORED_CHARS) last[1].text = shorten({ text: last[1].text + data.text }).text;
  }

  // The reasoning of one reply, folded. It does not end the reply: a model may reason between two deltas.
  addReasoning(data) {
    if (!this.reasoning || this.reasoningId !== data.speech) {
      this.reasoning = el("div");
      this.reasoningId = data.speech;
      add("reasoning", "", "details").append(el("summary", { text: "Reasoning" }), this.reasoning);
    }
    this.reasoning.append(data.text);
  }

  addText(data) {
    if (!this.reply || this.replyId !== data.speech) {
      this.endReply();
      this.reply = new Reply(add("message assistant"));
      this.replyId = data.speech;
      this.replies.push(this.reply);
    }
    this.reply.add(data.text);
  }

  markBroken() {
    this.isBroken = false;
    this.endReply();
    this.replies.pop()?.element.classList.add("broken");
  }

  addCall(data) {
    this.endReply();
    const call = add("call running", "", "details");
    call.append(el("summary", {}, el("b", { text: data.name }), " ",
      el("code", { text: clip(data.arguments, LINE_CHARS) }), el("span", { class: "outcome", text: " is running …" })),
    el("code", { text: data.arguments }));
    this.calls.set(data.call, call);
  }

  addResult(data) {
    const call = this.calls.get(data.call);
    if (!call) return;
    call.classList.replace("running", data.status === "ok" ? "ok" : "failed");
    const prefix = data.status === "ok" ? " → " : ` ${data.status}: `;
    call.querySelector(".outcome").textContent = prefix + clip(data.text, LINE_CHARS);
    call.append(el("code", { text: `→ ${data.text}` }));
  }

  addQuestion(data) {
    const card = add("question"), row = el("div", { class: "row" });
    const text = `May ${escapeInvisible(data.name)} run?`;
    card.setAttribute("role", "group");
    card.setAttribute("aria-label", text);
    for (const [label, approved] of [["Yes, run it", true], ["No", false]]) {
      row.append(el("button", { type: "button", class: approved ? "main" : "", text: label,
        onclick: () => this.decide(card, data.question, approved) }));
    }
    card.append(el("strong", { text }), el("code", { text: escapeInvisible(data.arguments) }), row);
    this.questions.set(data.question, card);
    setStatus(text);
  }

  async decide(card, question, approved) {
    const buttons = card.querySelectorAll("button");
    for (const each of buttons) each.disabled = true;
    $("message").focus();
    try {
      const response = await post(`runs/${run.id}/answers/${question}`, { approved });
      if (response.ok || response.status === 409) return; // the log has the decision
    } catch {}
    for (const each of buttons) each.disabled = false;
    setStatus("Your answer did not reach the server. Try again.");
  }

  closeQuestion(question, text) {
    const card = this.questions.get(question);
    if (!card) return;
    this.questions.delete(question);
    card.querySelector(".row").replaceWith(el("span", { class: "note", text }));
    card.classList.add("closed");
  }

  endReply() {
    this.reply?.finish();
    this.reply = null;
  }

  end() {
    update(() => {
      this.endReply();
      for (const question of [...this.questions.keys()]) this.closeQuestion(question, "Not answered.");
      for (const call of this.calls.values()) {
        if (!call.classList.contains("running")) continue;
        call.classList.replace("running", "failed");
        call.querySelector(".outcome").textContent = " was stopped";
      }
    });
  }
}
