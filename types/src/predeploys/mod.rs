//! Contracts that Ethereum's tools expect at the same address on every chain, for inclusion in a genesis.
//!
//! On Ethereum each was deployed by a transaction that was signed once for all chains, so its address is the same
//! everywhere. Such transactions name no chain, and a chain admits them only if its genesis says so (EIP-155). Other
//! chains have these contracts from their genesis, or never. The transactions of the two public contracts are in files
//! beside this one; their signers determine the addresses.

use std::collections::BTreeMap;

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::{eip2718::Decodable2718, eip2935, eip4788};
use alloy_primitives::{Address, address, hex};

use crate::{
    delta::Code,
    genesis::{Genesis, GenesisAccount},
};

/// Deploys contracts at addresses that depend on their code and a salt alone (CREATE2). Foundry and others use it.
pub const CREATE2_DEPLOYER: Address = address!("0x4e59b44847b379578588920cA78FbF26c0B4956C");
/// Bundles many calls into one. ethers, viem and others use it.
pub const MULTICALL3: Address = address!("0xcA11bde05977b3631167028862bE2a173976CA11");
/// Keeps the parent of a batch by the batch's time in seconds (EIP-4788): see [`predeploys`].
pub const BEACON_ROOTS: Address = eip4788::BEACON_ROOTS_ADDRESS;
/// Keeps the digests of the last 8,191 batches (EIP-2935).
pub const HISTORY_STORAGE: Address = eip2935::HISTORY_STORAGE_ADDRESS;

/// A contract, given by the transaction that deploys it.
struct PublishedContract {
    transaction: &'static str,
    /// Bytes of init code before the code that the init code returns.
    constructor_bytes: usize,
}

/// Source: Arachnid's deterministic-deployment-proxy.
const CREATE2_DEPLOYER_PUBLISHED: PublishedContract = PublishedContract {
    transaction: include_str!("create2_deployer.transaction.hex"),
    constructor_bytes: 14,
};
/// Source: mds1's multicall (MIT licence).
const MULTICALL3_PUBLISHED: PublishedContract =
    PublishedContract { transaction: include_str!("multicall3.transaction.hex"), constructor_bytes: 32 };

impl PublishedContract {
    fn envelope(&self) -> TxEnvelope {
        let raw = hex::decode(self.transaction.trim()).expect("a test decodes it");
        TxEnvelope::decode_2718_exact(&raw).expect("a test decodes it")
    }

    fn code(&self) -> Vec<u8> {
        self.envelope().input()[self.constructor_bytes..].to_vec()
    }
}

/// Returns the four contracts: a CREATE2 deployer, Multicall3, and those of EIP-4788 and EIP-2935. The protocol itself
/// calls the last two before each batch.
///
/// The chain has no beacon. For a given time, EIP-4788's contract returns the digest of the parent of the last batch of
/// that second. Proofs against beacon roots therefore fail here. EIP-2935's contract returns the same digests as
/// BLOCKHASH.
pub fn predeploys() -> BTreeMap<Address, GenesisAccount> {
    let codes = [
        (CREATE2_DEPLOYER, CREATE2_DEPLOYER_PUBLISHED.code()),
        (MULTICALL3, MULTICALL3_PUBLISHED.code()),
        (BEACON_ROOTS, eip4788::BEACON_ROOTS_CODE.to_vec()),
        (HISTORY_STORAGE, eip2935::HISTORY_STORAGE_CODE.to_vec()),
    ];
    let account = |(address, code)| {
        let code = Code::new(code).expect("a few kilobytes");
        (address, GenesisAccount { nonce: 1, code, ..GenesisAccount::default() })
    };
    codes.into_iter().map(account).collect()
}

impl Genesis {
    /// Adds the [`predeploys`]. Accounts already in the genesis stay.
    pub fn with_predeploys(mut self) -> Genesis {
        for (address, account) in predeploys() {
            self.accounts.entry(address).or_insert(account);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::transaction::SignerRecoverable;
    use alloy_primitives::{b256, keccak256};

    use super::*;

    /// Goal: the transactions deploy at these addresses, and the code's hash is that of the code on Ethereum's mainnet.
    #[test]
    fn the_code_is_the_known_one() {
        let all = predeploys();
        for (published, address, hash) in [
            (
                CREATE2_DEPLOYER_PUBLISHED,
                CREATE2_DEPLOYER,
                b256!("0x2fa86add0aed31f33a762c9d88e807c475bd51d0f52bd0955754b2608f7e4989"),
            ),
            (
                MULTICALL3_PUBLISHED,
                MULTICALL3,
                b256!("0xd5c15df687b16f2ff992fc8d767b4216323184a2bbc6ee2f9c398c318e770891"),
            ),
        ] {
            let transaction = published.envelope();
            let signer = transaction.recover_signer().unwrap();
            assert_eq!(signer.create(transaction.nonce()), address);
            assert_eq!(transaction.chain_id(), None);
            assert_eq!(keccak256(&all[&address].code[..]), hash, "{address}");
        }
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn what_is_there_stays() {
        let mine = GenesisAccount { nonce: 7, ..GenesisAccount::default() };
        let accounts = BTreeMap::from([(MULTICALL3, mine.clone())]);
        let genesis = Genesis { accounts, ..Genesis::default() }.with_predeploys();
        assert_eq!(genesis.accounts.len(), 4);
        assert_eq!(genesis.accounts[&MULTICALL3], mine);
    }
}
