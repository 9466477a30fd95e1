// An MCP client with the official SDK for TypeScript: `mcp_client.mjs SDK URL KEY`. Prints what it saw, as JSON.
import { pathToFileURL } from "node:url";

const [sdk, url, key] = process.argv.slice(2);
const of = (name) => import(pathToFileURL(`${sdk}/dist/esm/${name}.js`));
const { Client } = await of("client/index");
const { StreamableHTTPClientTransport } = await of("client/streamableHttp");
const { CreateMessageRequestSchema, ElicitRequestSchema } = await of("types");

const client = new Client(
  { name: "test", version: "1" },
  { capabilities: { sampling: {}, elicitation: {} } },
);
client.setRequestHandler(CreateMessageRequestSchema, async (asked) => ({
  role: "assistant",
  model: "m",
  content: { type: "text", text: `42 to ${JSON.stringify(asked.params.messages[0].content.text)}` },
}));
client.setRequestHandler(ElicitRequestSchema, async () => ({ action: "accept", content: { name: "Ann" } }));
const transport = new StreamableHTTPClientTransport(new URL(url), {
  requestInit: { headers: { Authorization: `Bearer ${key}` } },
});
await client.connect(transport);

const call = async (name, args = {}, options = {}) => {
  const result = await client.callTool({ name, arguments: args }, undefined, options);
  return (result.isError ? "failed: " : "") + result.content[0].text;
};
const seen = { tools: (await client.listTools()).tools.map((tool) => tool.name).sort() };
seen.read = await call("read", { path: "a" });
seen.fails = await call("fails");
const together = [...Array(20).keys()].map((n) => call("read", { path: `p${n}`, takes_s: 0.05 }));
seen.together = await Promise.all(together);
seen.progress = [];
seen.counts = await call("counts", { to: 3 }, { onprogress: ({ progress }) => seen.progress.push(progress) });
seen.model = await call("asks_the_model", { question: "why?" });
seen.person = await call("asks_the_person");
seen.resumed = await call("hangs_up_and_goes_on");
const stopped = new AbortController();
setTimeout(() => stopped.abort(), 500);
seen.waits = await call("waits", {}, { signal: stopped.signal }).catch(() => "aborted");
seen.after = await call("read", { path: "b" });
await transport.terminateSession();
await client.close();
console.log(JSON.stringify(seen));
