// Shared by both pages: elements, icons, counts, and the keys of a tree.

const $ = (id) => document.getElementById(id);

// It sets text as text only, so no text of a run becomes HTML.
function el(tag, props = {}, ...kids) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === false || value === null) continue;
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...kids.filter((kid) => kid !== null && kid !== undefined));
  return made;
}

function icon(name, title) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", `icon ${name}`);
  svg.setAttribute("viewBox", "0 0 16 16");
  if (title) {
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", title);
  } else svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

const count = (number) => number.toLocaleString("en");
const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;
const clip = (text, most) => (text.length > most ? `${text.slice(0, most)}\u2026` : text);

// Handle a key in a tree with these visible `items`, as ARIA describes it. `page` is the number of
// items that Page Up and Page Down skip; without it these keys scroll as usual.
function walkTree(event, items, at, { isFolder, isOpen, above, choose, fold, page }) {
  if (at < 0 || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  const item = items[at];
  const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1,
    ...(page && { PageDown: at + page, PageUp: at - page }) };
  if (event.key in moves) choose(items[Math.max(0, Math.min(items.length - 1, moves[event.key]))]);
  else if (event.key === "ArrowRight") {
    if (isOpen(item)) choose(items[at + 1]);
    else if (isFolder(item)) fold(item, true);
  } else if (event.key === "ArrowLeft") {
    if (isOpen(item)) fold(item, false);
    else if (above(item)) choose(above(item));
  } else if (event.key === "Enter" || event.key === " ") {
    if (isFolder(item)) fold(item, !isOpen(item));
  } else return;
  event.preventDefault();
}
