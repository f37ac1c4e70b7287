// Requests to the server, with a key if it needs one, and server-sent events.

const base = location.pathname.endsWith("/") ? location.href : `${location.origin}${location.pathname}/`;

// State that survives a reload, for this tab only.
const store = {
  get: (name) => { try { return JSON.parse(sessionStorage.getItem(name)); } catch { return null; } },
  set: (name, value) => { try { sessionStorage.setItem(name, JSON.stringify(value)); } catch {} },
};

async function request(path, options = {}) {
  for (;;) {
    const key = store.get("key");
    const headers = {
      ...(options.body ? { "Content-Type": "application/json" } : {}),
      ...(key ? { Authorization: `Bearer ${key}` } : {}),
    };
    const response = await fetch(new URL(path, base), { ...options, headers });
    if (response.status !== 401) return response;
    // The user may have entered the key for another request during this one.
    if (store.get("key") === key) await askForKey(Boolean(key));
  }
}

const post = (path, body) => request(path, { method: "POST", ...(body ? { body: JSON.stringify(body) } : {}) });

function askForKey(isWrong) {
  const dialog = $("key");
  if (!dialog.open) {
    $("key-wrong").hidden = !isWrong;
    $("key-value").value = "";
    dialog.showModal();
  }
  return new Promise((done) => dialog.addEventListener("close", () => {
    if ($("key-value").value) store.set("key", $("key-value").value.trim());
    done();
  }, { once: true }));
}

async function errorText(response) {
  try { return (await response.json()).error.message; } catch { return `the server answered with status ${response.status}`; }
}

// Yield the events of a stream, until the connection ends for any reason.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
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

// Wait before the next attempt, longer each time, at most until the network is back.
function pause(attempt) {
  return new Promise((done) => {
    const timer = setTimeout(resume, Math.min(250 * 2 ** attempt, 8000));
    function resume() {
      clearTimeout(timer);
      removeEventListener("online", resume);
      done();
    }
    addEventListener("online", resume);
  });
}
