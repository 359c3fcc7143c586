// An unmodified ethers client against one node: node ethers.mjs API_URL SECRET_KEY ARTIFACTS_JSON
// Prints what it saw as one JSON object; the test compares it.
import { readFileSync } from "node:fs";
import { ContractFactory, JsonRpcProvider, Wallet, WebSocketProvider, getAddress, parseEther } from "ethers";

const [url, key, artifacts] = process.argv.slice(2);
const { Token } = JSON.parse(readFileSync(artifacts, "utf8")).contracts;
// ethers remembers answers for 250 ms; a batch takes less here, so that a remembered nonce would be an old one.
const provider = new JsonRpcProvider(url, undefined, { cacheTimeout: -1 });
provider.pollingInterval = 100;
const wallet = new Wallet(key, provider);
const seen = {};

seen.chainId = (await provider.getNetwork()).chainId;
const receiver = "0x00000000000000000000000000000000000bee01";
const before = await provider.getBalance(receiver);
const sent = await wallet.sendTransaction({ to: receiver, value: parseEther("1.5") });
const transfer = await sent.wait();
seen.transfer = { status: transfer.status, gasUsed: transfer.gasUsed, type: sent.type, from: transfer.from };
seen.received = (await provider.getBalance(receiver)) - before;

const legacy = await (await wallet.sendTransaction({ to: receiver, value: 1n, type: 0 })).wait();
seen.legacy = { status: legacy.status, type: legacy.type };

const block = await provider.getBlock(transfer.blockNumber, true);
seen.block = {
  hasTransaction: block.transactions.includes(sent.hash),
  hash: block.hash === transfer.blockHash,
  byHash: (await provider.getBlock(block.hash)).number === block.number,
  prefetchedFrom: block.prefetchedTransactions.find(({ hash }) => hash === sent.hash)?.from,
};
const pending = await provider.getBlock("pending");
seen.pending = { hash: pending.hash, nonce: pending.nonce ?? null, transactions: pending.transactions.length, ahead: pending.number > block.number };
seen.transaction = (await provider.getTransaction(sent.hash)).value;

const token = await new ContractFactory(Token.abi, Token.bytecode, wallet).deploy("Ethers Token", "ETT");
await token.waitForDeployment();
const address = await token.getAddress();
seen.deployed = (await token.deploymentTransaction().wait()).contractAddress === address;
seen.code = (await provider.getCode(address)).length > 1000;
seen.symbol = await token.symbol();

const minted = await (await token.mint(wallet.address, 1000n)).wait();
const moved = await (await token.transfer(receiver, 400n)).wait();
seen.logs = [...minted.logs, ...moved.logs].map((log) => {
  const { name, args } = token.interface.parseLog(log);
  return { name, from: args[0], to: args[1], value: args[2], address: log.address === address };
});
seen.balances = [await token.balanceOf(wallet.address), await token.balanceOf(receiver)];
seen.totalSupply = BigInt(await provider.getStorage(address, 2));
seen.nonce = await provider.getTransactionCount(wallet.address);

// A reverted call must come back with its data, or ethers cannot name the custom error.
seen.revert = await token.transfer.staticCall(receiver, 10_000n).then(
  () => "did not revert",
  (error) => `${error.code} ${error.revert?.name} ${error.revert?.args[1]}`,
);
seen.estimateRevert = await token.transfer.estimateGas(receiver, 10_000n).then(
  () => "did not revert",
  (error) => `${error.code} ${token.interface.parseError(error.data)?.name}`,
);
seen.lowNonce = await wallet.sendTransaction({ to: receiver, nonce: 0, value: 1n }).then(
  () => "was accepted",
  (error) => error.code,
);

// A listener is a filter at the node: it hears what comes, once, and can be removed.
const heard = [];
const rich = token.filters.Transfer(wallet.address);
const hears = new Promise((resolve) => {
  token.on(rich, ({ args, log }) => {
    heard.push(`${args.to} ${args.value} ${log.index}`);
    if (heard.length === 2) resolve();
  });
});
await new Promise((resolve) => provider.once("block", resolve));
const other = "0x00000000000000000000000000000000000bee02";
await (await token.transfer(receiver, 7n)).wait();
const last = await (await token.transfer(other, 8n)).wait();
await hears;
await token.off(rich);
seen.heard = heard;
seen.listeners = await token.listenerCount();

// The same over a WebSocket, where the node tells what is new. Nothing says when a subscription has begun: transfers go on until one is heard.
const socket = new WebSocketProvider(url.replace(/^http/, "ws"), undefined, { cacheTimeout: -1 });
const told = { blocks: [], transfers: [], pending: new Set() };
socket.on("block", (number) => told.blocks.push(number));
socket.on("pending", (hash) => told.pending.add(hash));
const live = token.connect(socket);
live.on(live.filters.Transfer(wallet.address), ({ args: [from, to, value] }) => told.transfers.push({ from, to, value }));
const third = getAddress("0x00000000000000000000000000000000000bee03");
let announced;
do {
  announced = await token.transfer(third, 1n);
  await announced.wait();
  await new Promise((resolve) => provider.once("block", resolve));
} while (!told.transfers.length || !told.pending.has(announced.hash) || told.blocks.length < 20);
const [one] = told.transfers;
seen.socket = {
  gaps: told.blocks.filter((number, index) => index && number !== told.blocks[index - 1] + 1),
  transfer: one.from === wallet.address && one.to === third && one.value === 1n,
  once: new Set(told.blocks).size === told.blocks.length,
  chainId: (await socket.getNetwork()).chainId,
};
await live.removeAllListeners();
await socket.destroy();

// All logs of a chain that is longer than what was once the longest range.
while ((await provider.getBlockNumber()) <= 1_100) {
  await new Promise((resolve) => provider.once("block", resolve));
}
const all = await token.queryFilter("Transfer");
seen.all = all.filter(({ args }) => args.to !== third).map(({ args }) => args.value);
seen.some = (await token.queryFilter(token.filters.Transfer(null, other))).map(({ blockNumber }) => blockNumber === last.blockNumber);
seen.none = await token.queryFilter(token.filters.Transfer(other));

console.log(JSON.stringify(seen, (_, value) => (typeof value === "bigint" ? value.toString() : value)));
provider.destroy();
