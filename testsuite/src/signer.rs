//! Signs Ethereum transactions with an [`Account`]'s key.

use alloy_consensus::{SignableTransaction, TxEip1559, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bytes, Signature, TxKind, U256};
use k256::ecdsa::SigningKey;

use crate::accounts::Account;

/// The gas price that a transaction pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fees {
    /// The maximum fee per gas, in wei.
    pub max_fee_wei: u128,
    /// The proposer's tip per gas, in wei.
    pub tip_wei: u128,
}

/// The envelope of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envelope {
    /// The oldest form, replay-protected by EIP-155. Pays [`Fees::max_fee_wei`] in full.
    Legacy,
    /// The form of EIP-1559, with a tip.
    DynamicFee,
}

/// A transaction before it is signed.
#[derive(Clone, Debug)]
pub struct Request {
    /// The chain's id for EIP-155.
    pub chain_id: u64,
    /// The sender's nonce.
    pub nonce: u64,
    /// The recipient, or the creation of a contract.
    pub to: TxKind,
    /// The amount to send, in wei.
    pub value: U256,
    /// The most gas that it may use.
    pub gas_limit: u64,
    /// The fees that it pays.
    pub fees: Fees,
    /// Call data or init code.
    pub input: Bytes,
    /// The envelope to sign in.
    pub envelope: Envelope,
}

/// A signed transaction for `eth_sendRawTransaction`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The EIP-2718 encoding.
    pub raw: Bytes,
    /// The transaction's hash.
    pub hash: B256,
}

/// Signs the transaction with the account's key.
pub fn sign(account: &Account, request: Request) -> Signed {
    let Request { chain_id, nonce, to, value, gas_limit, fees, input, envelope } = request;
    match envelope {
        Envelope::Legacy => {
            let gas_price = fees.max_fee_wei;
            let chain_id = Some(chain_id);
            seal(&account.key, TxLegacy { chain_id, nonce, gas_price, gas_limit, to, value, input })
        }
        Envelope::DynamicFee => seal(
            &account.key,
            TxEip1559 {
                chain_id,
                nonce,
                gas_limit,
                max_fee_per_gas: fees.max_fee_wei,
                max_priority_fee_per_gas: fees.tip_wei,
                to,
                value,
                access_list: Default::default(),
                input,
            },
        ),
    }
}

/// Signs a transaction of any type.
pub fn seal<T>(key: &SigningKey, transaction: T) -> Signed
where
    T: SignableTransaction<Signature>,
    alloy_consensus::Signed<T>: Encodable2718,
{
    let hash = transaction.signature_hash();
    let signature = key.sign_prehash_recoverable(hash.as_slice()).expect("a 32-byte hash is always signable");
    let signed = transaction.into_signed(Signature::from(signature));
    Signed { raw: signed.encoded_2718().into(), hash: signed.trie_hash() }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::{Transaction, TxEnvelope, transaction::SignerRecoverable};
    use alloy_eips::eip2718::Decodable2718;

    use super::*;

    #[test]
    fn both_envelopes_decode_to_their_sender_and_hash() {
        let account = Account::derive("signer", 0);
        for envelope in [Envelope::Legacy, Envelope::DynamicFee] {
            let signed = sign(
                &account,
                Request {
                    chain_id: 7_357,
                    nonce: 3,
                    to: TxKind::Create,
                    value: U256::from(5),
                    gas_limit: 100_000,
                    fees: Fees { max_fee_wei: 20, tip_wei: 1 },
                    input: vec![0x60, 0x00].into(),
                    envelope,
                },
            );
            let decoded = TxEnvelope::decode_2718_exact(&signed.raw).unwrap();
            assert_eq!(decoded.recover_signer().unwrap(), account.address);
            assert_eq!(*decoded.tx_hash(), signed.hash);
            assert_eq!((decoded.chain_id(), decoded.nonce()), (Some(7_357), 3));
            assert_eq!(decoded.max_fee_per_gas(), 20);
        }
    }
}
