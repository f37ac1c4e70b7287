// What is asked of the server: with a key where it needs one, and read as server-sent events.

const here = location.pathname.endsWith("/") ? location.href : `${location.origin}${location.pathname}/`;

// What a reload goes on with: this tab's alone.
const store = {
  get: (name) => { try { return JSON.parse(sessionStorage.getItem(name)); } catch { return null; } },
  set: (name, value) => { try { sessionStorage.setItem(name, JSON.stringify(value)); } catch {} },
};

async function ask(path, options = {}) {
  for (;;) {
    const key = store.get("key");
    const headers = {
      ...(options.body ? { "Content-Type": "application/json" } : {}),
      ...(key ? { Authorization: `Bearer ${key}` } : {}),
    };
    const answer = await fetch(new URL(path, here), { ...options, headers });
    if (answer.status !== 401) return answer;
    // Another request may have been given the key meanwhile.
    if (store.get("key") === key) await askKey(Boolean(key));
  }
}

const post = (path, body) => ask(path, { method: "POST", ...(body ? { body: JSON.stringify(body) } : {}) });

function askKey(wrong) {
  const dialog = $("key");
  if (!dialog.open) {
    $("key-wrong").hidden = !wrong;
    $("key-value").value = "";
    dialog.showModal();
  }
  return new Promise((done) => dialog.addEventListener("close", () => {
    if ($("key-value").value) store.set("key", $("key-value").value.trim());
    done();
  }, { once: true }));
}

async function refusal(answer) {
  try { return (await answer.json()).error.message; } catch { return `the server said ${answer.status}`; }
}

// Give the events of a stream; it ends where the connection ends, whyever that is.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const event = {};
      for (const line of frame.split("\n")) {
        const colon = line.indexOf(": ");
        if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 2);
      }
      if (event.data) yield event;
    }
  }
}

// Wait before the next attempt, longer each time; the network's coming back ends it.
function pause(attempt) {
  return new Promise((done) => {
    const timer = setTimeout(go, Math.min(250 * 2 ** attempt, 8000));
    function go() {
      clearTimeout(timer);
      removeEventListener("online", go);
      done();
    }
    addEventListener("online", go);
  });
}
