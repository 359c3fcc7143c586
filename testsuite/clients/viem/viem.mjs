// An unmodified viem client against one node, and for what both have to tell alike another: node viem.mjs API_URL SECRET_KEY OTHER_API_URL
// Prints what it saw as one JSON object; the test compares it.
import {
  concat,
  createPublicClient,
  createWalletClient,
  defineChain,
  getContractAddress,
  http,
  numberToHex,
  pad,
  parseAbi,
  parseAbiItem,
  toEventSelector,
  webSocket,
} from "viem";
import { generatePrivateKey, privateKeyToAccount } from "viem/accounts";

const [url, key, otherUrl] = process.argv.slice(2);
const chain = defineChain({
  id: 7357,
  name: "Slipstream devnet",
  nativeCurrency: { name: "Ether", symbol: "ETH", decimals: 18 },
  rpcUrls: { default: { http: [url] } },
});
const client = createPublicClient({ chain, transport: http(url), cacheTime: 0 });
const account = privateKeyToAccount(key);
const somebody = "0x00000000000000000000000000000000000bee02";
const seen = {};

// One HTTP body with a thousand requests.
const batching = createPublicClient({ chain, transport: http(url, { batch: { batchSize: 1000, wait: 50 } }) });
const address = (number) => pad(numberToHex(number), { size: 20 });
const asked = Array.from({ length: 1000 }, (_, number) => batching.getBalance({ address: address(0x10000 + number) }));
seen.batch = (await Promise.all(asked)).length;

// A call finds the state that its overrides name. Each code returns one word.
const returning = (code) => `0x${code}5f5260205ff3`;
const run = async (code, options = {}, account = {}) => {
  const stateOverride = [{ address: somebody, code: returning(code), ...account }];
  const { data } = await client.call({ to: somebody, stateOverride, ...options });
  return BigInt(data);
};
const slot = pad("0x1");
seen.balance = await run("47", {}, { balance: 77n });
seen.stateDiff = await run("600154", {}, { stateDiff: [{ slot, value: pad("0x63") }] });
seen.number = await run("43", { blockOverrides: { number: 123456789n } });
seen.time = await run("42", { blockOverrides: { time: 4102444800n } });
seen.baseFee = await run("48", { blockOverrides: { baseFeePerGas: 7n } });
const before = await client.getBlockNumber();
const within = await run("43");
seen.latest = before <= within && within <= (await client.getBlockNumber());
const pending = await client.getBlock({ blockTag: "pending" });
seen.pending = [pending.hash, pending.nonce, pending.transactions.length, pending.number > before];

// EIP-7702 without having to name the gas.
const contract = "0x00000000000000000000000000000000000000aa";
const authorization = await account.signAuthorization({ chainId: chain.id, nonce: 0, contractAddress: contract });
const gas = await client.estimateGas({ account: address(0x20000), to: account.address, authorizationList: [authorization] });
seen.authorization = gas >= 46000n;

// Calls that build on each other, each in a block behind the head, and what a call touches.
const simulated = await client.simulateBlocks({
  traceTransfers: true,
  blocks: [
    { stateOverrides: [{ address: somebody, code: "0x5f546001015f5500" }], calls: [{ account: account.address, to: somebody }] },
    {
      stateOverrides: [{ address: somebody, code: returning("5f54") }],
      calls: [{ account: account.address, to: somebody }, { account: account.address, to: contract, value: 5n }],
    },
  ],
});
seen.simulated = [
  simulated[1].number - simulated[0].number,
  BigInt(simulated[1].calls[0].data),
  simulated[1].calls[1].logs[0].address,
];
const { results, assetChanges } = await client.simulateCalls({
  account: account.address,
  traceAssetChanges: true,
  calls: [{ to: contract, value: 7n }],
});
seen.simulatedCalls = [results[0].status, assetChanges[0].value.diff];
const listed = await client.createAccessList({ account: account.address, data: "0x5f5460025f55" });
seen.accessList = [listed.accessList.length, listed.accessList[0].storageKeys.length];

// The contracts that a devnet begins with: many calls in one, and a deployment at an address that is known before.
const multicall3 = "0xcA11bde05977b3631167028862bE2a173976CA11";
const deployer = "0x4e59b44847b379578588920cA78FbF26c0B4956C";
const balanceOf = {
  address: multicall3,
  abi: parseAbi(["function getEthBalance(address) view returns (uint256)"]),
  functionName: "getEthBalance",
  args: [account.address],
};
const [first, second] = await client.multicall({
  contracts: [balanceOf, balanceOf],
  multicallAddress: multicall3,
  allowFailure: false,
});
seen.multicall = first === second && first > 0n;
const wallet = createWalletClient({ chain, transport: http(url), account });
const salt = pad("0x5a");
const initCode = "0x645f355f55005f526005601bf3";
const hash = await wallet.sendTransaction({ to: deployer, data: concat([salt, initCode]) });
await client.waitForTransactionReceipt({ hash, pollingInterval: 50 });
const there = getContractAddress({ opcode: "CREATE2", from: deployer, salt, bytecode: initCode });
seen.create2 = await client.getCode({ address: there });

// Errors by the classes that viem makes of them.
const causes = (error) => {
  const names = [];
  for (let cause = error; cause; cause = cause.cause) names.push(cause.name);
  return names;
};
const failing = (promise) => promise.then(() => ["did not fail"], causes);
const poor = createWalletClient({ chain, transport: http(url), account: privateKeyToAccount(generatePrivateKey()) });
seen.unfunded = (await failing(poor.sendTransaction({ to: somebody, value: 1n }))).includes("InsufficientFundsError");
seen.unfundedCall = (await failing(client.call({ account: address(0x30000), to: somebody, value: 1n }))).includes(
  "InsufficientFundsError",
);
seen.missing = (await failing(client.request({ method: "eth_nothing" }))).includes("MethodNotFoundRpcError");
const blobs = `0x03${"00".repeat(140000)}`;
seen.blobs = await client.sendRawTransaction({ serializedTransaction: blobs }).then(
  () => "was taken",
  (error) => error.details.split(":")[0],
);

// A receipt with the answer, of a contract whose calls log Ping(42).
seen.blobBaseFee = await client.getBlobBaseFee();
const sendNow = async (transaction) => {
  const request = await wallet.prepareTransactionRequest({ account, ...transaction });
  return wallet.sendRawTransactionSync({ serializedTransaction: await account.signTransaction(request), timeout: 10_000 });
};
const ping = parseAbiItem("event Ping(uint256 value)");
const runtime = `602a5f527f${toEventSelector(ping).slice(2)}60205fa100`;
const deployed = await sendNow({ data: `0x602a8060095f395ff3${runtime}` });
seen.deployed = deployed.status;
const raw = await client.request({ method: "eth_getRawTransactionByHash", params: [deployed.transactionHash] });
seen.raw = raw.startsWith("0x02");
// A transaction in a batch leaves the pool soon after.
do {
  seen.txpool = await client.request({ method: "txpool_status" });
} while (seen.txpool.pending !== "0x0");
const ahead = await wallet.prepareTransactionRequest({ account, to: somebody, value: 1n, nonce: 1_000, gas: 21_000n });
seen.gap = await wallet.sendRawTransactionSync({ serializedTransaction: await account.signTransaction(ahead) }).then(
  () => "was processed",
  ({ cause, code }) => code ?? cause?.code,
);

// The news over WebSockets. Nothing says when a subscription has begun: pings go on until one is heard.
const open = (url) => createPublicClient({ chain, transport: webSocket(url.replace(/^http/, "ws")), cacheTime: 0 });
const [socket, other] = [open(url), open(otherUrl)];
const failed = (error) => {
  console.error(error);
  process.exit(1);
};
const headsOf = async (client) => {
  const heads = new Map();
  const onData = ({ result }) => heads.set(result.number, JSON.stringify(result));
  await client.transport.subscribe({ params: ["newHeads"], onData, onError: failed });
  return heads;
};
const [ours, theirs] = await Promise.all([headsOf(socket), headsOf(other)]);
const told = { blocks: [], logs: [], hashes: [] };
const stops = [
  socket.watchBlocks({ onBlock: ({ number }) => told.blocks.push(number), onError: failed }),
  socket.watchEvent({ address: deployed.contractAddress, event: ping, onLogs: (logs) => told.logs.push(...logs), onError: failed }),
  socket.watchPendingTransactions({ onTransactions: (hashes) => told.hashes.push(...hashes), onError: failed }),
];
const common = () => [...ours.keys()].filter((number) => theirs.has(number));
let last;
do {
  last = await sendNow({ to: deployed.contractAddress });
} while (!told.logs.length || told.blocks.length < 3 || !told.hashes.includes(last.transactionHash) || common().length < 5);
seen.watched = {
  blocks: told.blocks.every((number, index) => !index || number >= told.blocks[index - 1]),
  log: told.logs[0].args.value,
  gaps: [...ours.keys()].map(Number).filter((number, index, all) => index && number !== all[index - 1] + 1),
  same: common().every((number) => ours.get(number) === theirs.get(number)),
};
stops.forEach((stop) => stop());

console.log(JSON.stringify(seen, (_, value) => (typeof value === "bigint" ? value.toString() : value)));
process.exit(0);
