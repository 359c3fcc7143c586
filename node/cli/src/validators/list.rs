//! `slipstream validators list`.

use std::collections::BTreeMap;

use alloy_primitives::Address;
use miette::Result;
use serde::Serialize;
use slipstream_executor::validators::interface::Validators as contract;
use slipstream_types::{Epoch, Failures, PublicKey};

use super::chain::{Chain, EpochStatus};
use crate::{exit::OrFail as _, output::print, rows::Rows, status::peers::named};

/// The current validators, and those of the contract.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Listing {
    /// The epoch of the batch after the head.
    epoch: Epoch,
    head: u64,
    quorum: usize,
    failures: Failures,
    /// The certifying validators, in the order in which they become primary.
    validators: Vec<PublicKey>,
    /// Their names in the node's configuration.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    names: BTreeMap<PublicKey, String>,
    /// `None` on a chain with fixed validators.
    contract: Option<Wanted>,
}

/// The validators that the contract specifies.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Wanted {
    address: Address,
    owner: Address,
    /// The batch that ends the epoch, if a change is pending.
    last_batch: Option<u64>,
    failures_any: u64,
    failures_commission: u64,
    validators: Vec<Member>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Member {
    public_key: PublicKey,
    fee_recipient: Address,
}

pub(super) fn list(rpc: &str, json: bool) -> Result<()> {
    let chain = Chain::ask(rpc)?;
    let wanted = chain.status.epoch.contract.map(|address| wanted(&chain, address)).transpose()?;
    let EpochStatus { number, validators, names, failures, quorum, .. } = &chain.status.epoch;
    let listing = Listing {
        epoch: *number,
        head: chain.status.head.number.get(),
        quorum: *quorum,
        failures: *failures,
        validators: validators.clone(),
        names: names.clone(),
        contract: wanted,
    };
    match json {
        true => print(&serde_json::to_string_pretty(&listing).or_fail()?),
        false => print(table(&listing).trim_end()),
    }
}

fn wanted(chain: &Chain, address: Address) -> Result<Wanted> {
    let last: u64 = chain.view(&contract::lastBatchCall {})?.saturating_to();
    let members = chain.view(&contract::validatorsCall {})?;
    let member = |it: contract::Validator| Member {
        public_key: PublicKey(it.publicKey.0),
        fee_recipient: it.feeRecipient,
    };
    Ok(Wanted {
        address,
        owner: chain.view(&contract::ownerCall {})?,
        last_batch: Some(last).filter(|last| *last > chain.status.head.number.get()),
        failures_any: chain.view(&contract::failuresAnyCall {})?.saturating_to(),
        failures_commission: chain.view(&contract::failuresCommissionCall {})?.saturating_to(),
        validators: members.into_iter().map(member).collect(),
    })
}

fn table(listing: &Listing) -> String {
    let mut rows = Rows::default();
    let Listing { epoch, head, quorum, failures, validators, names, contract } = listing;
    let called = |key: &PublicKey| named(names.get(key), key);
    rows.add("epoch", Some(format!("{epoch}, the last batch is {head}")));
    rows.add("quorum", Some(format!("{quorum} of {} validators", validators.len())));
    rows.add("may fail", Some(describe(failures.any.into(), failures.commission.into())));
    for (index, key) in validators.iter().enumerate() {
        rows.add(if index == 0 { "validators" } else { "" }, Some(called(key)));
    }
    let Some(wanted) = contract else {
        rows.add("changes", Some("never: the genesis names no validators_contract".into()));
        return rows.0;
    };
    rows.add("contract", Some(format!("{}, its owner is {}", wanted.address, wanted.owner)));
    let Some(last) = wanted.last_batch else {
        rows.add("changes", Some("none pending".into()));
        return rows.0;
    };
    rows.add(
        "changes",
        Some(format!("batch {last} ends the epoch, {} batches from now; after it:", last - head)),
    );
    rows.add("  may fail", Some(describe(wanted.failures_any, wanted.failures_commission)));
    for member in &wanted.validators {
        let is_new = !validators.contains(&member.public_key);
        let mark = if is_new { ", new" } else { "" };
        rows.add("", Some(format!("{}, fees to {}{mark}", called(&member.public_key), member.fee_recipient)));
    }
    for key in validators {
        if wanted.validators.iter().all(|member| member.public_key != *key) {
            rows.add("  leaves", Some(called(key)));
        }
    }
    rows.0
}

fn describe(any: u64, commission: u64) -> String {
    format!("{any} in any way, {commission} of them by signing conflicting statements")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey([byte; 32])
    }

    /// Goal: an operator sees the current validators, those who join and leave, and the batch of the change.
    #[test]
    fn the_table_tells_a_change_that_waits() {
        let member = |byte| Member { public_key: key(byte), fee_recipient: Address::repeat_byte(byte) };
        let mut listing = Listing {
            epoch: Epoch(2),
            head: 40,
            quorum: 1,
            failures: Failures { any: 1, commission: 0 },
            validators: vec![key(1), key(2)],
            names: BTreeMap::from([(key(1), "one".to_owned())]),
            contract: Some(Wanted {
                address: Address::repeat_byte(9),
                owner: Address::repeat_byte(8),
                last_batch: Some(50),
                failures_any: 0,
                failures_commission: 0,
                validators: vec![member(2), member(3)],
            }),
        };
        let text = table(&listing);
        for line in [
            "epoch        2, the last batch is 40\n",
            "quorum       1 of 2 validators\n",
            "changes      batch 50 ends the epoch, 10 batches from now; after it:\n",
            &format!("             {}, fees to {}, new\n", key(3), Address::repeat_byte(3)),
            &format!("validators   one {}\n             {}\n", key(1), key(2)),
            &format!("  leaves     one {}\n", key(1)),
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains(&format!("{}, fees to {}, new", key(2), Address::repeat_byte(2))));
        listing.contract.as_mut().unwrap().last_batch = None;
        assert!(table(&listing).ends_with("changes      none pending\n"));
        listing.contract = None;
        assert!(table(&listing).contains("changes      never: the genesis"));
    }
}
