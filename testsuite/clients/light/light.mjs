// The JavaScript light client against nodes over HTTP: an honest one, and some that lie, by name.
//   node light.mjs MODULE NODE WAYPOINT LIARS ADDRESS SLOTS      LIARS, SLOTS: JSON

import { pathToFileURL } from "node:url";

const [module, node, waypoint, liars, address, slots] = process.argv.slice(2);
const { LightClient } = await import(pathToFileURL(module));

// "Try again": a commit that takes long has the tree.
const BUSY = -32005;

const at = (url) => async (method, params) => {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const ask = async () =>
    (await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body })).json();
  let answer = await ask();
  for (let again = 0; again < 20 && answer.error?.code === BUSY; again++) answer = await ask();
  if (answer.error) throw new Error(`${method}: ${answer.error.message}`);
  return answer.result;
};

const number = `0x${BigInt(waypoint.split(":")[0]).toString(16)}`;
const start = await at(node)("slipstream_getWaypoint", [number]);
const read = (url, ageMsMax) =>
  LightClient.fromWaypoint(waypoint, start).read(at(url), { address, slots: JSON.parse(slots), ageMsMax });

const { account, number: batch, slots: values } = await read(node, 60_000);
const refused = {};
for (const [lie, { url, ageMsMax }] of Object.entries(JSON.parse(liars))) {
  refused[lie] = await read(url, ageMsMax).then(() => "accepted", (error) => error.code ?? String(error));
}
const text = (value) => value.toString();
console.log(JSON.stringify({ batch: Number(batch), balance: text(account.balance), slots: values.map(text), refused }));
