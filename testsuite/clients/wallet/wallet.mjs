// MetaMask's middleware, unmodified, between a page and one node whose head moves: node wallet.mjs API_URL SECRET_KEY ARTIFACTS_JSON
// It asks for `latest` at the number that it polled last. Prints what the page saw as one JSON object; the test compares it.
import { readFileSync } from "node:fs";
import { PollingBlockTracker } from "@metamask/eth-block-tracker";
import {
  createBlockCacheMiddleware,
  createBlockRefRewriteMiddleware,
  createBlockTrackerInspectorMiddleware,
  createFetchMiddleware,
  createInflightCacheMiddleware,
} from "@metamask/eth-json-rpc-middleware";
import { JsonRpcEngine } from "@metamask/json-rpc-engine";
import { BrowserProvider, ContractFactory, JsonRpcProvider, Wallet } from "ethers";

const [url, key, artifacts] = process.argv.slice(2);
const { Token } = JSON.parse(readFileSync(artifacts, "utf8")).contracts;
const asked = [];
const post = async ({ method, params = [] }) => {
  asked.push({ method, params });
  const body = JSON.stringify({ jsonrpc: "2.0", id: asked.length, method, params });
  const answer = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body });
  return answer.json();
};
const opened = ({ error, result }) => {
  if (error) throw Object.assign(new Error(error.message), error);
  return result;
};

// In the order of MetaMask's network controller, with its interval of 20 s.
const blockTracker = new PollingBlockTracker({ provider: { request: async (request) => opened(await post(request)) } });
const engine = new JsonRpcEngine();
engine.push(createBlockRefRewriteMiddleware({ blockTracker }));
engine.push(createBlockCacheMiddleware({ blockTracker }));
engine.push(createInflightCacheMiddleware());
engine.push(createBlockTrackerInspectorMiddleware({ blockTracker }));
engine.push(createFetchMiddleware({ rpcService: { request: post } }));
let id = 0;
const request = async ({ method, params = [] }) => opened(await engine.handle({ jsonrpc: "2.0", id: ++id, method, params }));
const page = new BrowserProvider({ request }, undefined, { cacheTimeout: -1 });

// Somebody else sends, past this wallet.
const other = new JsonRpcProvider(url, undefined, { cacheTimeout: -1, pollingInterval: 50 });
const sender = new Wallet(key, other);
const token = await new ContractFactory(Token.abi, Token.bytecode, sender).deploy("Test", "TST");
await token.waitForDeployment();
await (await token.mint(sender.address, 1000n)).wait();
const bee = "0x00000000000000000000000000000000000bee01";
const address = await token.getAddress();

const polled = await blockTracker.checkForLatestBlock();
await (await sender.sendTransaction({ to: bee, value: 5n })).wait();
await (await token.mint(bee, 400n)).wait();
// At ten batches a second this is half of the time between two polls.
while ((await other.getBlockNumber()) < Number(polled) + 100) {
  await new Promise((resolve) => setTimeout(resolve, 50));
}

const supplySlot = 2;
const state = async () => ({
  balance: await page.getBalance(bee),
  nonce: await page.getTransactionCount(sender.address),
  code: (await page.getCode(address)) === (await other.getCode(address)),
  slot: BigInt(await page.getStorage(address, supplySlot)),
  call: await token.connect(page).balanceOf(bee),
});
const seen = {};
asked.length = 0;
seen.polled = await state();
const pinned = asked.filter(({ params }) => params.includes(polled)).map(({ method }) => method);
seen.asked = pinned.sort();
await blockTracker.checkForLatestBlock();
seen.head = await state();

// The wallet's questions before people confirm a transaction.
const nonce = await request({ method: "eth_getTransactionCount", params: [sender.address, "pending"] });
const fees = await request({ method: "eth_feeHistory", params: ["0x5", "latest", [10, 50, 95]] });
seen.confirm = {
  nonce: Number(nonce),
  fees: [fees.reward.length, fees.baseFeePerGas.length],
  gas: await page.estimateGas({ from: sender.address, to: bee, value: 1n }),
  network: await request({ method: "net_version" }),
};
console.log(JSON.stringify(seen, (_, value) => (typeof value === "bigint" ? value.toString() : value)));
process.exit(0);
