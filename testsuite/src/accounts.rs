//! Test keys derived from a seed. Two tools with the same seed know the same accounts without talking to each other.

use alloy_primitives::Address;
use anyhow::{Context, Result};
use k256::ecdsa::SigningKey;
use slipstream_types::{Digest, SecretKey};

/// The seed of every devnet that sets no other.
pub const DEFAULT_SEED: &str = "slipnet";

/// An externally owned account of a test.
#[derive(Clone)]
pub struct Account {
    /// The account's address.
    pub address: Address,
    /// The account's secret key.
    pub key: SigningKey,
}

impl Account {
    /// Derives account number `index` of a seed.
    pub fn derive(seed: &str, index: u32) -> Account {
        // A digest is an invalid scalar with probability 2^-128. The first valid one of up to 256 digests is taken.
        let key = (0..=u8::MAX).find_map(|retry| {
            let secret = derive("slipnet/account/1", seed, index, retry);
            SigningKey::from_slice(secret.as_bytes()).ok()
        });
        Account::from_key(key.expect("one of 256 digests is a valid scalar"))
    }

    /// Derives the first `count` accounts of a seed.
    pub fn derive_many(seed: &str, count: u32) -> Vec<Account> {
        use rayon::prelude::*;
        (0..count).into_par_iter().map(|index| Account::derive(seed, index)).collect()
    }

    /// Derives the owner of a devnet's validators contract. No load uses it.
    pub fn owner(seed: &str) -> Account {
        Account::derive(seed, u32::MAX)
    }

    /// Parses the hexadecimal secret key of a manifest.
    pub fn from_hex(text: &str) -> Result<Account> {
        let bytes =
            hex::decode(text.strip_prefix("0x").unwrap_or(text)).context("a key is 64 hexadecimal digits")?;
        Ok(Account::from_key(SigningKey::from_slice(&bytes).context("not a secp256k1 secret key")?))
    }

    /// Returns the secret key as `0x` and 64 hexadecimal digits.
    pub fn key_hex(&self) -> String {
        format!("0x{}", hex::encode(self.key.to_bytes()))
    }

    fn from_key(key: SigningKey) -> Account {
        Account { address: Address::from_private_key(&key), key }
    }
}

/// Derives the ed25519 key of node number `index` of a seed.
pub fn node_key(seed: &str, index: u32) -> SecretKey {
    SecretKey::from_seed(derive("slipnet/node/1", seed, index, 0).0)
}

/// Derives the address that receives the fees of validator number `index`.
pub fn fee_recipient(seed: &str, index: u32) -> Address {
    Address::from_slice(&derive("slipnet/fees/1", seed, index, 0).0[12..])
}

/// A number for one use of a devnet's seed, such as the luck of a link, the choices of a load or the times of faults. Equal seeds
/// and uses give equal numbers.
pub fn number(seed: &str, purpose: &str) -> u64 {
    let mut text = (seed.len() as u64).to_le_bytes().to_vec();
    text.extend_from_slice(seed.as_bytes());
    text.extend_from_slice(purpose.as_bytes());
    let digest = Digest::tagged("slipnet/number/1", &text);
    u64::from_le_bytes(digest.0[..8].try_into().expect("a digest has 32 bytes"))
}

fn derive(tag: &str, seed: &str, index: u32, retry: u8) -> Digest {
    let mut text = seed.as_bytes().to_vec();
    text.extend_from_slice(&index.to_le_bytes());
    text.push(retry);
    Digest::tagged(tag, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_seed_and_index_alone() {
        let accounts = Account::derive_many("a", 3);
        assert_eq!(accounts[2].address, Account::derive("a", 2).address);
        assert_ne!(accounts[0].address, accounts[1].address);
        assert_ne!(accounts[0].address, Account::derive("b", 0).address);
        assert_ne!(node_key("a", 0).public(), node_key("a", 1).public());
        assert_ne!(fee_recipient("a", 0), fee_recipient("a", 1));
        assert_eq!(number("a", "load"), number("a", "load"));
        assert_ne!(number("a", "load"), number("a", "faults"));
        assert_ne!(number("a", "load"), number("al", "oad"));
    }

    #[test]
    fn a_key_survives_its_text() {
        let account = Account::derive("a", 7);
        let text = account.key_hex();
        assert_eq!(Account::from_hex(&text).unwrap().address, account.address);
        assert!(Account::from_hex("0x12").is_err());
        assert!(Account::from_hex(&format!("0x{}", "00".repeat(32))).is_err(), "zero is no key");
    }
}
