import ignition from "@nomicfoundation/hardhat-ignition-viem";
import viem from "@nomicfoundation/hardhat-viem";
import assertions from "@nomicfoundation/hardhat-viem-assertions";

const { API_URL: url, SECRET_KEY: key } = process.env;

export default {
  plugins: [viem, assertions, ignition],
  ignition: { blockPollingInterval: 100, requiredConfirmations: 1 },
  // It knows the forks of known chains alone, and asks for them when a call is made on a forked state.
  chainDescriptors: { 7357: { name: "Slipstream devnet", chainType: "l1", hardforkHistory: { osaka: { blockNumber: 0 } } } },
  networks: {
    slipstream: { type: "http", url, accounts: [key] },
    fork: { type: "edr-simulated", chainType: "l1", chainId: 7357, forking: { url } },
  },
};
