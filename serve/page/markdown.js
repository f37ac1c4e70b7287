// A reply as it arrives: code between fences gets a box, all other text is shown as text.

const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*/g;

class Reply {
  constructor(element) {
    this.element = element;
    this.text = "";
    this.rest = ""; // the start of a line that may become a fence
    this.isInLine = false; // a part of the current line is shown
    this.code = null; // the open box of code
    this.prose = null; // the open text
  }

  add(delta) {
    this.text += delta;
    this.rest += delta;
    for (let end; (end = this.rest.indexOf("\n")) >= 0;) {
      const line = this.rest.slice(0, end + 1);
      this.rest = this.rest.slice(end + 1);
      if (!this.isInLine && line.startsWith("```")) this.toggleCode();
      else this.show(line);
      this.isInLine = false;
    }
    if (this.rest && (this.isInLine || !this.rest.startsWith("```".slice(0, this.rest.length)))) {
      this.show(this.rest);
      this.rest = "";
      this.isInLine = true;
    }
    return this;
  }

  finish() {
    if (this.rest.startsWith("```")) this.toggleCode();
    else if (this.rest) this.show(this.rest);
    this.rest = "";
    this.endProse();
    return this;
  }

  show(text) {
    if (!this.code && !this.prose) this.element.append((this.prose = el("span")));
    const box = this.code ?? this.prose;
    if (box.firstChild) box.firstChild.appendData(text); // one text node for any number of deltas
    else box.append(text);
  }

  // A fence opens a box of code, or closes it.
  toggleCode() {
    this.endProse();
    if (this.code) {
      this.code = null;
      return;
    }
    const code = this.code = el("pre", { tabindex: 0, role: "region", "aria-label": "Code" }); // keys must scroll it
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
  } catch { // a page from another machine without TLS has no clipboard access
    getSelection().selectAllChildren(element);
    document.execCommand("copy");
  }
}
