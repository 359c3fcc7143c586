// An unmodified cast against one node: node cast.mjs API_URL SECRET_KEY
// Prints what it saw as one JSON object; the test compares it.
import { execFile } from "node:child_process";
import { promisify } from "node:util";

const [url, key] = process.argv.slice(2);
const cast = async (...args) => {
  const { stdout } = await promisify(execFile)("node_modules/.bin/cast", args, { env: { ...process.env, ETH_RPC_URL: url } });
  return stdout;
};
const json = async (...args) => JSON.parse(await cast(...args));
const send = (...args) => json("send", "--json", "--private-key", key, ...args);
const seen = {};

// Returns code that writes the first word of its call data to slot 0, and reverts with 42 if that is zero.
const runtime = "5f358015600a575f55005b602a5f5260205ffd";
const initCode = `0x72${runtime}5f526013600df3`;
const made = await send("--create", initCode);
const contract = made.contractAddress;
const seven = `0x${"7".padStart(64, "0")}`;
const written = await send(contract, seven);
seen.slot = (await cast("storage", contract, "0")).trim();
// The state before the last transaction.
const [before, sender] = [String(Number(written.blockNumber) - 1), written.from];
seen.before = [
  (await cast("storage", contract, "0", "--block", before)).trim(),
  (await cast("code", contract, "--block", String(Number(made.blockNumber) - 1))).trim(),
  (await cast("nonce", sender, "--block", before)).trim(),
];
seen.spent = BigInt(await cast("balance", sender, "--block", before)) > BigInt(await cast("balance", sender));

// Answered with the receipt.
const sync = await send("--sync", contract, seven);
seen.sync = Number(sync.status);
seen.pool = Object.keys(await json("tx-pool", "status")).sort();

// Executed again by cast itself, on states of the past.
const run = await cast("run", written.transactionHash);
seen.run = [run.includes("Transaction successfully executed"), run.includes(`Gas used: ${Number(written.gasUsed)}`)];
const traced = await cast("call", "--trace", contract, "--data", `0x${"0".repeat(64)}`).catch((error) => error.stdout + error.stderr);
seen.trace = traced.includes("Revert");
const listed = await json("access-list", "--json", contract, seven);
seen.accessList = listed.accessList.map((item) => item.storageKeys.length);

// Executed again by the node.
const calls = await json("rpc", "debug_traceTransaction", written.transactionHash, '{"tracer":"callTracer"}');
seen.calls = [calls.to === contract.toLowerCase(), Number(calls.gasUsed) === Number(written.gasUsed)];
const steps = await json("rpc", "debug_traceTransaction", made.transactionHash);
seen.steps = steps.structLogs.map((step) => step.op);
const [replayed] = await json("rpc", "trace_replayBlockTransactions", written.blockNumber, '["stateDiff"]');
seen.diff = Object.values(replayed.stateDiff[contract.toLowerCase()].storage).map((slot) => slot["+"] ?? slot["*"].to);
console.log(JSON.stringify(seen));
