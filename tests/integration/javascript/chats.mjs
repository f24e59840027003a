// SPDX-License-Identifier: Apache-2.0
// OpenAI's JavaScript client in front of the router: `node chats.mjs URL MODEL FAR`. Prints what it got as JSON.
import OpenAI from "openai";

const [url, model, far] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0, timeout: 30000 });
const ask = (...steps) => ({ model, messages: [{ role: "user", content: JSON.stringify(steps) }] });
const told = {};

const whole = await client.chat.completions.create(ask(["say", "Hel"], ["say", "lo ü!"]));
told.whole = [whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.total_tokens];

const stream = await client.chat.completions.create({
  ...ask(["say", "Hel"], ["wait", 0.5], ["say", "lo ü!"]),
  stream: true,
  stream_options: { include_usage: true },
});
const chunks = [];
for await (const chunk of stream) chunks.push(chunk);
told.stream = [
  chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""),
  chunks.at(-1).usage.total_tokens,
  new Set(chunks.map((chunk) => chunk.id)).size,
];

const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
const question = { model: far, messages: [{ role: "user", content: "Where is it warm?" }], tools };
const called = await client.chat.completions.stream(question).finalChatCompletion();
told.tools = called.choices[0].message.tool_calls.map((call) => [call.function.name, call.function.arguments]);

const response = await client.responses.create({ model, input: JSON.stringify([["say", "ok"]]) });
told.response = response.output_text;

// This client asks for base64 unasked, and reads it as little-endian float32.
const floats = await client.embeddings.create({ model: far, input: ["a", "bcd"] });
told.vectors = floats.data.map((one) => Array.from(one.embedding));
const plain = await client.embeddings.create({ model: far, input: "ab", encoding_format: "float" });
told.floats = plain.data[0].embedding;

told.models = (await client.models.list()).data.map((one) => one.id);

try {
  await client.chat.completions.create({ ...ask(), response_format: { type: "json_object" } });
} catch (error) {
  told.refused = [error.constructor.name, error.status, error.param];
}
try {
  const failing = await client.chat.completions.create({
    ...ask(["say", "a"], ["wait", 0.3], ["error", "io.syntrop.Runtime1.GenerationFailed", { reason: "r" }]),
    stream: true,
  });
  for await (const _ of failing);
} catch (error) {
  told.failed = [error.constructor.name, error.code];
}

const endless = await client.chat.completions.create({ ...ask(["repeat", "x", 0.01]), stream: true });
for await (const _ of endless) break;
console.log(JSON.stringify(told));
