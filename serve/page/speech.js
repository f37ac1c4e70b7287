// What somebody says, as it comes: code between fences gets a box, all else is shown as text.

const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*/g;

class Speech {
  constructor(element) {
    this.element = element;
    this.text = "";
    this.rest = ""; // of a line that may become a fence
    this.inLine = false; // whether some of this line has been shown
    this.code = null; // the box that is open
    this.prose = null; // the text that is open
  }

  add(delta) {
    this.text += delta;
    this.rest += delta;
    for (let end; (end = this.rest.indexOf("\n")) >= 0;) {
      const line = this.rest.slice(0, end + 1);
      this.rest = this.rest.slice(end + 1);
      if (!this.inLine && line.startsWith("```")) this.turn();
      else this.show(line);
      this.inLine = false;
    }
    if (this.rest && (this.inLine || !this.rest.startsWith("```".slice(0, this.rest.length)))) {
      this.show(this.rest);
      this.rest = "";
      this.inLine = true;
    }
    return this;
  }

  finish() {
    if (this.rest.startsWith("```")) this.turn();
    else if (this.rest) this.show(this.rest);
    this.rest = "";
    this.endProse();
    return this;
  }

  show(text) {
    if (!this.code && !this.prose) this.element.append((this.prose = el("span")));
    const box = this.code ?? this.prose;
    if (box.firstChild) box.firstChild.appendData(text); // one text, however many pieces
    else box.append(text);
  }

  // A fence opens a box of code, or closes it.
  turn() {
    this.endProse();
    if (this.code) {
      this.code = null;
      return;
    }
    const code = this.code = el("pre", { tabindex: 0, role: "region", "aria-label": "Code" }); // it scrolls
    const copy = el("button", { type: "button", class: "copy", text: "Copy", onclick: async () => {
      await copyText(code);
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    } });
    this.element.append(el("div", { class: "code" }, copy, code));
  }

  endProse() {
    if (!this.prose) return;
    const text = this.prose.textContent, parts = [];
    let at = 0;
    for (const found of text.matchAll(INLINE)) {
      parts.push(text.slice(at, found.index), el(found[1] ? "code" : "b", { text: found[1] ?? found[2] }));
      at = found.index + found[0].length;
    }
    if (parts.length) this.prose.replaceChildren(...parts, text.slice(at));
    this.prose = null;
  }
}

async function copyText(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
  } catch { // a page that came without TLS from elsewhere has no clipboard of its own
    getSelection().selectAllChildren(element);
    document.execCommand("copy");
  }
}
