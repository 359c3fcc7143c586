// An unmodified viem client against one node: node viem.mjs API_URL SECRET_KEY
// Prints what it saw as one JSON object; the test compares it.
import { createPublicClient, createWalletClient, defineChain, http, numberToHex, pad } from "viem";
import { generatePrivateKey, privateKeyToAccount } from "viem/accounts";

const [url, key] = process.argv.slice(2);
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

// What a call finds is what it is told to find. Each code returns one word.
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

// EIP-7702 without having to name the gas.
const contract = "0x00000000000000000000000000000000000000aa";
const authorization = await account.signAuthorization({ chainId: chain.id, nonce: 0, contractAddress: contract });
const gas = await client.estimateGas({ account: address(0x20000), to: account.address, authorizationList: [authorization] });
seen.authorization = gas >= 46000n;

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

console.log(JSON.stringify(seen, (_, value) => (typeof value === "bigint" ? value.toString() : value)));
