// Two turns with a tool by a client for Node: node_clients.mjs NAME FOLDER URL MODE...
// FOLDER has the clients among its node_modules. Prints, as a JSON object, the two answers by mode;
// the mode is also the name of the model. Ends with status 3 where the client is not installed.
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [name, folder, url, ...modes] = process.argv.slice(2);
const about = `${folder}/node_modules/${name}/package.json`;
if (!existsSync(about)) process.exit(3);
const { version } = JSON.parse(readFileSync(about));
const require = createRequire(pathToFileURL(`${folder}/x.js`));
const load = (module) => import(pathToFileURL(require.resolve(module)));

const QUESTIONS = ["How is it in Rome?", "How is it in Oslo?"];
const description = "The weather of a city.";
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const weather = ({ city }) => ({ Rome: "warm", Oslo: "cold" })[city];

// Messages and items go back as the client gives them.
async function openai(mode) {
  const { OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const stream = mode.endsWith("-stream");
  const own = mode.startsWith("agent-");
  const answers = [];
  let said = [];
  for (const content of QUESTIONS) {
    said.push({ role: "user", content });
    if (mode.includes("chat")) {
      const asked = { model: mode, messages: said, stream };
      if (own) {
        const made = stream
          ? await client.chat.completions.stream(asked).finalChatCompletion()
          : await client.chat.completions.create(asked);
        said.push(made.choices[0].message);
      } else {
        const fields = { name: "weather", description, parameters, parse: JSON.parse };
        const tools = [{ type: "function", function: { ...fields, function: weather } }];
        const runner = client.chat.completions.runTools({ ...asked, tools });
        await runner.done();
        said = runner.messages;
      }
      answers.push(said.at(-1).content);
      continue;
    }
    const tools = [{ type: "function", name: "weather", description, parameters, strict: true }];
    for (;;) {
      const asked = { model: mode, input: said, ...(own ? {} : { tools }) };
      const response = stream
        ? await client.responses.stream(asked).finalResponse()
        : await client.responses.create(asked);
      said.push(...response.output);
      const calls = response.output.filter((item) => item.type === "function_call");
      for (const { call_id, arguments: given } of calls) {
        const output = weather(JSON.parse(given));
        said.push({ type: "function_call_output", call_id, output });
      }
      if (calls.length) continue;
      answers.push(response.output_text);
      break;
    }
  }
  return answers;
}

// By its three providers: the default one sends references to items instead of the items.
async function ai(mode) {
  const { generateText, jsonSchema, stepCountIs, streamText, tool } = await load("ai");
  const settings = { baseURL: `${url}/v1`, apiKey: "none", name: "anabranch" };
  let model;
  if (mode.includes("compatible")) {
    const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
    model = createOpenAICompatible(settings)(mode);
  } else {
    const { createOpenAI } = await load("@ai-sdk/openai");
    const provider = createOpenAI(settings);
    model = mode.includes("chat") ? provider.chat(mode) : provider(mode);
  }
  const inputSchema = jsonSchema(parameters);
  const tools = { weather: tool({ description, inputSchema, execute: weather }) };
  const more = mode.startsWith("agent-") ? {} : { tools, stopWhen: stepCountIs(5) };
  const messages = [];
  const answers = [];
  for (const content of QUESTIONS) {
    messages.push({ role: "user", content });
    const asked = { model, messages, maxRetries: 0, ...more };
    let result;
    if (mode.endsWith("-stream")) {
      let failure;
      result = streamText({ ...asked, onError: ({ error }) => (failure = error) });
      await result.consumeStream();
      if (failure) throw failure;
    } else {
      result = await generateText(asked);
    }
    messages.push(...(await result.response).messages);
    answers.push(await result.text);
  }
  return answers;
}

const client = { openai, ai }[name];
const answers = {};
for (const mode of modes) answers[mode] = await client(mode);
console.log(JSON.stringify({ version, answers }));
