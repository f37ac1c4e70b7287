// The talk: what was said, which tools were called, and what a person is asked.

const NEAR = 80; // pixels from the end within which the talk follows what is added
const KEPT = 5000; // characters of a tool's text, or of reasoning, that are shown again after a reload

const isLow = () => $("talk").scrollHeight - $("talk").scrollTop - $("talk").clientHeight < NEAR;

let low = true; // whether its end was in sight, before its size has changed
let reached = 0; // how far it was scrolled
let due = false; // whether it is scrolled in the next frame

$("talk").addEventListener("scroll", () => {
  // Only who goes up leaves the end: it may have moved on since it was scrolled to.
  low = isLow() || (low && $("talk").scrollTop >= reached);
  reached = $("talk").scrollTop;
  if (low) $("newest").hidden = true;
});
new ResizeObserver(() => { if (low) scrollDown(); }).observe($("talk"));

function scrollDown() {
  $("talk").scrollTop = $("talk").scrollHeight;
  low = true;
  $("newest").hidden = true;
}

// Change the talk; who reads its end stays there, and who reads above is not moved. Nothing is
// measured here: to lay out a long answer for each word of it takes longer than the answer.
function keepLow(change) {
  const result = change();
  if (!low) $("newest").hidden = false;
  else if (!due) {
    due = true;
    requestAnimationFrame(() => {
      due = false;
      if (low) scrollDown();
    });
  }
  return result;
}

function add(className, text = "", tag = "div") {
  return keepLow(() => {
    $("hello")?.remove();
    const element = el(tag, { class: className, text });
    $("talk").append(element);
    return element;
  });
}

function addUser(text) {
  add("message user").append(el("span", { class: "unseen", text: "You: " }), text);
}

// Signs that change the order of others, or are not seen, would show a person another call.
const plain = (text) => text.replace(/\p{Cf}/gu, (sign) =>
  `\\u${sign.codePointAt(0).toString(16).padStart(4, "0")}`);

// What a tool was given and gave may be more than a tab can keep.
const shortened = (data) => Object.fromEntries(Object.entries(data).map(([name, value]) =>
  [name, value?.length > KEPT ? `${value.slice(0, KEPT)} …` : value]));

const MOST = 90; // characters of a call or its result in one line

// Show the entries of one run's log; each number comes once, whatever the connection does.
class View {
  constructor() {
    this.texts = [];
    this.speech = null; // what is being said
    this.speaker = null; // the number of the reply that it is part of
    this.thought = null; // where its reasoning stands
    this.thinker = null; // the number of the reply that it is part of
    this.broken = false; // whether it is no answer, unless it is the user who has stopped it
    this.calls = new Map();
    this.questions = new Map();
    this.kept = []; // all of it, to be shown again
  }

  get text() { return this.texts.map((each) => each.text).join("\n\n"); }

  show(kind, data) {
    if (kind === "items") return; // data for the model's provider
    this.keep(kind, data);
    keepLow(() => {
      if (this.broken && kind !== "cancelled") this.breakOff();
      if (kind === "text") this.say(data);
      else if (kind === "reasoning") this.reason(data);
      else if (kind === "broken") this.broken = true;
      else if (kind === "called") this.call(data);
      else if (kind === "answered") this.answer(data);
      else if (kind === "asked") this.question(data);
      else if (kind === "decided") this.settle(data.question, data.approved ? "You said yes." : "You said no.");
    });
  }

  keep(kind, data) {
    const last = this.kept.at(-1);
    const more = ["text", "reasoning"].includes(kind) && last?.[0] === kind && last[1].speech === data.speech;
    if (!more) this.kept.push([kind, kind === "text" ? { ...data } : shortened(data)]);
    else if (kind === "text") last[1].text += data.text;
    else if (last[1].text.length <= KEPT) last[1].text = shortened({ text: last[1].text + data.text }).text;
  }

  // The reasoning of one reply, folded. It pauses no speech: a reply may reason between two words.
  reason(data) {
    if (!this.thought || this.thinker !== data.speech) {
      this.thought = el("div");
      this.thinker = data.speech;
      add("thought", "", "details").append(el("summary", { text: "Reasoning" }), this.thought);
    }
    this.thought.append(data.text);
  }

  say(data) {
    if (!this.speech || this.speaker !== data.speech) {
      this.pauseSpeech();
      this.speech = new Speech(add("message assistant"));
      this.speaker = data.speech;
      this.texts.push(this.speech);
    }
    this.speech.add(data.text);
  }

  breakOff() {
    this.broken = false;
    this.pauseSpeech();
    this.texts.pop()?.element.classList.add("broken");
  }

  call(data) {
    this.pauseSpeech();
    const call = add("call running", "", "details");
    call.append(el("summary", {}, el("b", { text: data.name }), " ",
      el("code", { text: clip(data.arguments, MOST) }), el("span", { class: "outcome", text: " runs …" })),
    el("code", { text: data.arguments }));
    this.calls.set(data.call, call);
  }

  answer(data) {
    const call = this.calls.get(data.call);
    if (!call) return;
    call.classList.replace("running", data.status === "ok" ? "ok" : "failed");
    const verb = data.status === "ok" ? " → " : ` ${data.status}: `;
    call.querySelector(".outcome").textContent = verb + clip(data.text, MOST);
    call.append(el("code", { text: `→ ${data.text}` }));
  }

  question(data) {
    const card = add("ask"), row = el("div", { class: "row" });
    const words = `May ${plain(data.name)} run?`;
    card.setAttribute("role", "group");
    card.setAttribute("aria-label", words);
    for (const [label, approved] of [["Yes, run it", true], ["No", false]]) {
      row.append(el("button", { type: "button", class: approved ? "main" : "", text: label,
        onclick: () => this.decide(card, data.question, approved) }));
    }
    card.append(el("strong", { text: words }), el("code", { text: plain(data.arguments) }), row);
    this.questions.set(data.question, card);
    tell(words);
  }

  async decide(card, question, approved) {
    const buttons = card.querySelectorAll("button");
    for (const each of buttons) each.disabled = true;
    $("words").focus();
    try {
      const answer = await post(`runs/${current.id}/answers/${question}`, { approved });
      if (answer.ok || answer.status === 409) return; // the log says what was decided
    } catch {}
    for (const each of buttons) each.disabled = false;
    tell("Your answer did not reach the server.");
  }

  settle(question, words) {
    const card = this.questions.get(question);
    if (!card) return;
    this.questions.delete(question);
    card.querySelector(".row").replaceWith(el("span", { class: "note", text: words }));
    card.classList.add("settled");
  }

  pauseSpeech() {
    this.speech?.finish();
    this.speech = null;
  }

  end() {
    keepLow(() => {
      this.pauseSpeech();
      for (const question of [...this.questions.keys()]) this.settle(question, "Not answered.");
      for (const call of this.calls.values()) {
        if (!call.classList.contains("running")) continue;
        call.classList.replace("running", "failed");
        call.querySelector(".outcome").textContent = " was stopped";
      }
    });
  }
}
