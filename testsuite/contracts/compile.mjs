// Compiles Amm.sol, Lists.sol and Token.sol into artifacts.json, and the system contract of the types crate into Validators.json
// beside its source. Both are committed: npm ci && npm run compile. Same source and same solc give the same bytes (no metadata hash
// in the code). The keccak256 of each source is written down too, and a Rust test compares it. So a changed source cannot keep its
// old bytecode.
import { readFileSync, writeFileSync } from "node:fs";
import solc from "solc";

const here = new URL(".", import.meta.url);
const system = new URL("../../types/contracts/", import.meta.url);
const evmVersion = "prague";

function compile(folder, files) {
  const sources = Object.fromEntries(
    files.map((file) => [file, { content: readFileSync(new URL(file, folder), "utf8") }]),
  );
  const input = {
    language: "Solidity",
    sources,
    settings: {
      evmVersion,
      optimizer: { enabled: true, runs: 1000 },
      metadata: { bytecodeHash: "none", appendCBOR: false },
      outputSelection: {
        "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object", "storageLayout", "metadata"] },
      },
    },
  };
  const output = JSON.parse(solc.compile(JSON.stringify(input)));
  for (const { severity, formattedMessage } of output.errors ?? []) {
    console.error(formattedMessage);
    if (severity === "error") process.exitCode = 1;
  }
  if (process.exitCode) process.exit();
  return files.map((file) => {
    const name = file.replace(".sol", "");
    const contract = output.contracts[file][name];
    return { name, contract, source_keccak256: JSON.parse(contract.metadata).sources[file].keccak256 };
  });
}

function write(url, artifacts) {
  writeFileSync(url, JSON.stringify(artifacts, null, 1) + "\n");
  console.log(`${url.pathname} by solc ${artifacts.solc}`);
}

const artifacts = { solc: solc.version(), evm_version: evmVersion, contracts: {} };
for (const { name, contract, source_keccak256 } of compile(here, ["Amm.sol", "Lists.sol", "Token.sol"])) {
  artifacts.contracts[name] = { source_keccak256, bytecode: "0x" + contract.evm.bytecode.object, abi: contract.abi };
}
write(new URL("artifacts.json", here), artifacts);

// The genesis places its code as it runs; nobody deploys it.
for (const { name, contract, source_keccak256 } of compile(system, ["Validators.sol"])) {
  const code = contract.evm.deployedBytecode.object;
  writeFileSync(new URL(`${name}.hex`, system), code + "\n");
  const storage = contract.storageLayout.storage.map(({ label, slot, offset }) => ({ label, slot, offset }));
  write(new URL(`${name}.json`, system), {
    solc: solc.version(), evm_version: evmVersion, source_keccak256, code, storage, abi: contract.abi,
  });
}
