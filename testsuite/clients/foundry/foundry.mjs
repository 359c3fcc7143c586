// Unmodified forge and anvil against one node whose head moves: node foundry.mjs API_URL SECRET_KEY
// Prints what they saw as one JSON object; the test compares it.
import { execFile, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { promisify } from "node:util";

const [url, key] = process.argv.slice(2);
const run = (name, args, env = {}) => promisify(execFile)(`node_modules/.bin/${name}`, args, { env: { ...process.env, ...env } });
const request = async (url, method, ...params) => {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const answer = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body });
  const { error, result } = await answer.json();
  if (error) throw new Error(`${method} ${JSON.stringify(params)}: ${JSON.stringify(error)}`);
  return result;
};
const account = ["--rpc-url", url, "--private-key", key];
const seen = {};

// A script sends what it simulated on a fork.
await run("forge", ["script", "script/Deploy.s.sol", ...account, "--broadcast"]);
const script = JSON.parse(readFileSync("broadcast/Deploy.s.sol/7357/run-latest.json", "utf8"));
seen.script = script.transactions.map(({ transactionType }) => transactionType);
seen.receipts = script.receipts.map(({ status }) => Number(status));
const [made, salted] = script.transactions.map(({ contractAddress }) => contractAddress);
const numberOf = async (url, address, block) => Number(await request(url, "eth_call", { to: address, data: "0x8381f58a" }, block));
seen.numbers = [await numberOf(url, made, "latest"), await numberOf(url, salted, "latest")];

const created = JSON.parse((await run("forge", ["create", "src/Counter.sol:Counter", ...account, "--broadcast", "--json"])).stdout);
const counter = created.deployedTo;
const sent = await run("cast", ["send", counter, "set(uint256)", "7", ...account, "--json"]);
const { transactionHash, blockNumber } = JSON.parse(sent.stdout);

// A fork lives on while the node goes on.
const anvil = spawn("node_modules/.bin/anvil", ["--fork-url", url, "--port", "0", "--no-storage-caching"], { stdio: ["ignore", "pipe", "inherit"] });
const fork = await new Promise((resolve, reject) => {
  let said = "";
  anvil.on("exit", () => reject(new Error(`anvil ended: ${said}`)));
  anvil.stdout.on("data", (data) => {
    said += data;
    const [, address] = said.match(/Listening on (\S+)/) ?? [];
    if (address) resolve(`http://${address}`);
  });
});
const begin = await request(fork, "eth_blockNumber");

// Tests run on forks of the head, of an earlier batch, and of the middle of a batch. The last kind runs in a forge of its own: forge finds a
// fork of the batch before again, with the number of the transaction's batch in it, for whichever test asks for that next.
const env = { COUNTER: counter, NUMBER: String(Number(blockNumber)), TRANSACTION: transactionHash, URL: url };
seen.tests = [];
for (const choice of ["--match-test", "--no-match-test"]) {
  const chosen = ["test", "--fork-url", url, "--json", choice, "BeforeATransaction"];
  const tested = await run("forge", chosen, env).catch((error) => error);
  const [suite] = Object.values(JSON.parse(tested.stdout));
  seen.tests.push(...Object.entries(suite.test_results).map(([name, { status, reason }]) => [name, reason ?? status]));
}

seen.fork = { number: await numberOf(fork, counter, "latest"), made: await numberOf(fork, made, begin) };
const [sender] = await request(fork, "eth_accounts");
const data = `0x60fe47b1${"9".padStart(64, "0")}`;
const hash = await request(fork, "eth_sendTransaction", { from: sender, to: counter, data });
let receipt;
do {
  receipt = await request(fork, "eth_getTransactionReceipt", hash);
} while (!receipt);
seen.fork.status = Number(receipt.status);
seen.fork.written = await numberOf(fork, counter, "latest");
seen.fork.before = await numberOf(fork, counter, begin);
seen.fork.node = await numberOf(url, counter, "latest");
seen.fork.logs = (await request(fork, "eth_getLogs", { address: counter, fromBlock: blockNumber })).map(({ data }) => Number(data));
anvil.removeAllListeners("exit");
anvil.kill();
console.log(JSON.stringify(seen));
