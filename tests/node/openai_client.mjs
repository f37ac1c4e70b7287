// OpenAI's client for Node, unmodified, against a server: what it saw is written as one JSON object.
// node openai_client.mjs FOLDER URL, where FOLDER has the package among its node_modules.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url] = process.argv.slice(2);
const find = createRequire(pathToFileURL(`${folder}/x.js`));
const { OpenAI } = find("openai");
const { version } = JSON.parse(readFileSync(`${folder}/node_modules/openai/package.json`));
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const messages = [{ role: "user", content: "hi" }];
const parameters = { type: "object", properties: { city: { type: "string" } } };
const seen = { version };

seen.models = [];
for await (const model of client.models.list()) seen.models.push(model.id);

const whole = await client.chat.completions.create({ model: "writer", messages });
seen.whole = whole.choices[0].message.content;

seen.streamed = "";
const stream = await client.chat.completions.create({
  model: "writer", messages, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  seen.streamed += chunk.choices[0]?.delta.content ?? "";
  seen.tokens = chunk.usage?.total_tokens ?? seen.tokens;
}

// Tools that the client runs, by the client's own helper: calls, results and the answer to them.
const runner = client.chat.completions.runTools({
  model: "caller",
  messages,
  tools: [{
    type: "function",
    function: {
      name: "weather", parameters, parse: JSON.parse, function: ({ city }) => `warm in ${city}`,
    },
  }],
});
seen.tools = await runner.finalContent();

const response = await client.responses.create({ model: "writer", input: "hi" });
seen.response = response.output_text;
const final = await client.responses.stream({ model: "writer", input: "hi" }).finalResponse();
seen.final = final.output_text;

// In the background, left at every event.
seen.left = [];
for (let index = 0, length = 1; index < length; index++) {
  const events = [];
  const begun = await client.responses.create({
    model: "writer", input: "hi", background: true, stream: true,
  });
  for await (const event of begun) {
    events.push(event);
    if (events.length > index) break;
  }
  const rest = await client.responses.retrieve(events[0].response.id, {
    stream: true, starting_after: events.at(-1).sequence_number,
  });
  for await (const event of rest) events.push(event);
  length = events.length;
  seen.left.push({
    numbers: events.map((event) => event.sequence_number),
    text: events.at(-1).response.output.map((item) => item.content[0].text).join(""),
  });
}

const begun = await client.responses.create({ model: "waiting", input: "hi", background: true });
seen.cancelled = (await client.responses.cancel(begun.id)).status;

seen.errors = {};
const failing = {
  unknown: () => client.models.retrieve("nothing"),
  refused: () => client.chat.completions.create({ model: "writer", messages, n: 2 }),
  failed: () => client.chat.completions.create({ model: "failing", messages }),
  broken: async () => {
    const stream = await client.chat.completions.create({
      model: "failing", messages, stream: true,
    });
    for await (const _ of stream);
  },
};
for (const [name, fail] of Object.entries(failing)) {
  try {
    await fail();
  } catch (error) {
    seen.errors[name] = [error.constructor.name, error.status ?? null, error.param ?? null];
  }
}
console.log(JSON.stringify(seen));
