// Compiles Token.sol and Amm.sol into artifacts.json, which is committed beside them: npm ci && npm run compile.
// Same source and same solc give the same bytes (no metadata hash in the code); the keccak256 of each source is
// written down too, and a Rust test compares it, so that a changed source cannot keep its old bytecode.
import { readFileSync, writeFileSync } from "node:fs";
import solc from "solc";

const here = new URL(".", import.meta.url);
const files = ["Amm.sol", "Token.sol"];
const sources = Object.fromEntries(files.map((file) => [file, { content: readFileSync(new URL(file, here), "utf8") }]));

const input = {
  language: "Solidity",
  sources,
  settings: {
    evmVersion: "prague",
    optimizer: { enabled: true, runs: 1000 },
    metadata: { bytecodeHash: "none", appendCBOR: false },
    outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "metadata"] } },
  },
};
const output = JSON.parse(solc.compile(JSON.stringify(input)));
for (const { severity, formattedMessage } of output.errors ?? []) {
  console.error(formattedMessage);
  if (severity === "error") process.exitCode = 1;
}
if (process.exitCode) process.exit();

const artifacts = { solc: solc.version(), evm_version: input.settings.evmVersion, contracts: {} };
for (const file of files) {
  const name = file.replace(".sol", "");
  const contract = output.contracts[file][name];
  artifacts.contracts[name] = {
    source_keccak256: JSON.parse(contract.metadata).sources[file].keccak256,
    bytecode: "0x" + contract.evm.bytecode.object,
    abi: contract.abi,
  };
}
writeFileSync(new URL("artifacts.json", here), JSON.stringify(artifacts, null, 1) + "\n");
console.log(`artifacts.json: ${Object.keys(artifacts.contracts).join(", ")} by solc ${artifacts.solc}`);
