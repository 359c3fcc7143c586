// Unmodified hardhat against one node whose head moves: node hardhat.mjs API_URL SECRET_KEY ARTIFACTS_JSON
// Prints what it saw as one JSON object; the test compares it.
import { readFileSync, rmSync } from "node:fs";

const [url, key, artifacts] = process.argv.slice(2);
Object.assign(process.env, { API_URL: url, SECRET_KEY: key });
// It remembers states and deployments by the chain's id, and each run has a new chain.
for (const kept of ["cache", "ignition"]) {
  rmSync(kept, { recursive: true, force: true });
}
const { default: hre } = await import("hardhat");
const { buildModule } = await import("@nomicfoundation/hardhat-ignition/modules");

const { abi, bytecode } = JSON.parse(readFileSync(artifacts, "utf8")).contracts.Token;
const artifact = {
  _format: "hh3-artifact-1",
  contractName: "Token",
  sourceName: "Token.sol",
  abi,
  bytecode,
  deployedBytecode: "0x",
  linkReferences: {},
  deployedLinkReferences: {},
};
const bee = "0x00000000000000000000000000000000000bee01";
const seen = {};

// Two contracts, of which the second is told what the first came to.
const tokens = buildModule("Tokens", (m) => {
  const first = m.contract("Token", artifact, ["First", "ONE"], { id: "first" });
  const minted = m.call(first, "mint", [m.getAccount(0), 1_000n]);
  const supply = m.staticCall(first, "totalSupply", [], 0, { after: [minted] });
  const second = m.contract("Token", artifact, ["Second", "TWO"], { id: "second", after: [minted] });
  m.call(second, "mint", [m.getAccount(0), supply], { id: "copied" });
  return { first, second };
});
const node = await hre.network.connect("slipstream");
const { first, second } = await node.ignition.deploy(tokens);
seen.ignition = [await first.read.totalSupply(), await second.read.totalSupply()];

const [sender] = await node.viem.getWalletClients();
const client = await node.viem.getPublicClient({ pollingInterval: 50, cacheTime: 0 });
const mined = async (hash) => {
  await client.waitForTransactionReceipt({ hash });
  return hash;
};
const { assertions } = node.viem;
await assertions.balancesHaveChanged(mined(await sender.sendTransaction({ to: bee, value: 5n })), [{ address: bee, amount: 5n }]);
await assertions.emitWithArgs(mined(await first.write.transfer([bee, 7n])), first, "Transfer", [sender.account.address, bee, 7n]);
await assertions.revertWithCustomError(first.write.transfer([bee, 1_000n]), first, "InsufficientBalance");
seen.assertions = true;

// A fork is 128 blocks behind the head, where it expects no reorganisations.
const then = await client.getBlockNumber();
while ((await client.getBlockNumber()) <= then + 130n) {
  await new Promise((resolve) => setTimeout(resolve, 50));
}
const fork = await hre.network.connect("fork");
const forked = await fork.viem.getPublicClient();
const begin = await forked.getBlockNumber();
seen.fork = { behind: begin < (await client.getBlockNumber()) - 100n };
const balanceOf = (client, blockNumber) =>
  client.readContract({ address: first.address, abi, functionName: "balanceOf", args: [bee], blockNumber });
seen.fork.before = await balanceOf(forked);
await fork.provider.request({ method: "hardhat_impersonateAccount", params: [sender.account.address] });
const [anybody] = await fork.viem.getWalletClients();
const request = { address: first.address, abi, functionName: "transfer", args: [bee, 11n], account: sender.account.address };
const hash = await anybody.writeContract(request);
seen.fork.status = (await forked.getTransactionReceipt({ hash })).status;
seen.fork.after = [await balanceOf(forked), await balanceOf(forked, begin), await balanceOf(client)];
await fork.close();
console.log(JSON.stringify(seen, (_, value) => (typeof value === "bigint" ? value.toString() : value)));
process.exit(0);
