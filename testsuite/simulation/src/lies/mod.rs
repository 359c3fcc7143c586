//! How the lies of [`PeerLie`](slipnet::scenario::fault::PeerLie) are told: by the simulator's peers, the siege's
//! servers and a bench's.
//!
//! Each function turns an honest answer, or a part of one, into a lie. It draws no random numbers: the caller decides
//! where to lie.

mod tell;

use std::collections::BTreeSet;

use anyhow::Result;
use slipstream_executor::{Transaction, hint_context};
use slipstream_storage::{RangeDeltaChunk, StateChunk};
use slipstream_sync::protocol::{Codes, RangeBatch, SnapshotOffer, Summary};
use slipstream_types::{
    AccountValue, Address, BatchNumber, Blob, BlobKind, Body, Certificate, Delta, Digest, Genesis, Hints,
    LedgerInfo, SecretKey, StateKey, StateValue, U256,
    bounded::BoundedVec,
    delta::{Code, DeltaEntry},
    genesis::GenesisAccount,
    hints::{self, AccountHints, HintContext, RowBefore},
    limits::STATE_CHUNK_ROWS_MAX,
    tree::StateRangeProof,
};

pub(crate) use tell::edited;
pub use tell::{Reach, tell};

/// A genesis digest that belongs to no chain.
const FOREIGN_GENESIS: Digest = Digest([7; 32]);
/// The number of literals from which LZ4 stores their length in bytes after the token.
const SHORT: usize = 15;
/// Accounts that a false genesis has beside the true ones.
const CROWD: u32 = 100_000;
/// Addresses that huge hints name.
const HUGE: u32 = 20_000;
/// The number of snapshots, before a head, that a liar promises.
const PROMISED: u64 = 3;

/// A lie about one row of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RowLie {
    /// The row is left out.
    Hidden,
    /// The row's account has one wei more, or its slot one more.
    Changed,
}

/// Gives the summary another chain's genesis.
fn foreign(summary: &mut Summary) {
    summary.genesis = FOREIGN_GENESIS;
}

/// Returns a certificate of another state, which one stranger signed in all of the validators' seats.
pub(crate) fn signed_by(stranger: &SecretKey, certificate: &Certificate) -> Result<Certificate> {
    let state_root = Digest::tagged("slipnet/made-up/1", certificate.info.state_root.as_bytes());
    let info = LedgerInfo { state_root, ..certificate.info.clone() };
    let seats = certificate.signatures.iter().map(|(seat, _)| (*seat, stranger));
    Ok(Certificate::signed(info, certificate.view, seats)?)
}

/// Returns the certificate with too few signatures: one, or zero if the certificate had only one.
fn under_signed(certificate: &Certificate) -> Result<Certificate> {
    let kept = usize::from(certificate.signatures.len() > 1);
    let signatures = BoundedVec::new(certificate.signatures[..kept].to_vec())?;
    Ok(Certificate { signatures, ..certificate.clone() })
}

/// Promises all batches, and a snapshot of each of the last batches up to `head`, as large as a true one. Without a
/// true snapshot it offers none.
fn promise_everything(summary: &mut Summary, head: BatchNumber) -> Result<()> {
    summary.bodies_from = Some(BatchNumber::GENESIS);
    summary.receipts_from = Some(BatchNumber::GENESIS);
    summary.deltas_from = Some(BatchNumber::GENESIS);
    summary.states_from = Some(BatchNumber::GENESIS);
    let like = summary.snapshots.first().copied();
    let offer = |number| Some(SnapshotOffer { number, ..like? });
    let invented = head.before(PROMISED).through(head).rev().filter_map(offer);
    summary.snapshots = BoundedVec::new(invented.collect())?;
    Ok(())
}

/// Swaps the siblings of a range's two ends.
fn swap_siblings(proof: &mut StateRangeProof) {
    std::mem::swap(&mut proof.left, &mut proof.right);
}

/// Returns code other than what was requested: it rotates the codes, or makes a code up if the answer has only one.
fn other_code(answer: &mut Codes) -> Result<()> {
    let mut codes = answer.codes.to_vec();
    codes.rotate_left(1);
    if codes.len() < 2 {
        codes = vec![Code::new(vec![1, 2, 3])?];
    }
    answer.codes = BoundedVec::new(codes)?;
    Ok(())
}

/// Adds accounts to the genesis, so that its state root takes long to compute.
pub(crate) fn crowded(genesis: &Blob) -> Result<Blob> {
    let mut genesis = Genesis::decode(&genesis.content(BlobKind::Genesis)?)?;
    let address = |at: u32| Address::from_word(Digest::tagged("slipnet/crowd/1", &at.to_be_bytes()).0.into());
    let account = || GenesisAccount { balance: U256::from(1u8), ..GenesisAccount::default() };
    genesis.accounts.extend((0..CROWD).map(|at| (address(at), account())));
    Ok(Blob::compress(BlobKind::Genesis, &genesis.content()?)?)
}

/// Returns hints that name 20,000 further addresses.
pub(crate) fn huge_hints() -> Result<Blob> {
    let address = |at: u32| Address::left_padding_from(&at.to_be_bytes());
    let account = |at| AccountHints { address: address(at), code: true, slots: vec![] };
    let accounts = (0..HUGE).map(account).collect();
    let context = HintContext::new(Address::ZERO, std::iter::empty());
    Ok(Blob::compress(BlobKind::Hints, &hints::encode(&Hints { accounts }, &[], None, &context))?)
}

/// Returns a range delta that also names unchanged rows, out of `rows`. Their values are true, so no proof shows that
/// they are needless. Returns `None` if no such row lies between its ends, or if too many do.
pub(crate) fn pad(
    range_delta: &[u8],
    rows: impl IntoIterator<Item = (StateKey, StateValue)>,
) -> Result<Option<Vec<u8>>> {
    let mut chunk: RangeDeltaChunk = Blob::from_bytes(range_delta.to_vec())?.open(BlobKind::RangeDelta)?;
    let mut entries = chunk.entries.to_vec();
    let told: BTreeSet<_> = entries.iter().map(|entry| entry.key).collect();
    let unchanged = rows.into_iter().filter(|(key, _)| {
        let path = key.path();
        !told.contains(key) && chunk.first <= path && path <= chunk.last
    });
    entries.extend(unchanged.map(|(key, value)| DeltaEntry { key, value: Some(value) }));
    if entries.len() == told.len() || entries.len() > STATE_CHUNK_ROWS_MAX {
        return Ok(None);
    }
    entries.sort_by_key(|entry| entry.key.path());
    chunk.entries = BoundedVec::new(entries)?;
    Ok(Some(Blob::seal(BlobKind::RangeDelta, &chunk)?.into_bytes()))
}

/// Changes the first header, and links each later one to its predecessor: only the certified ledger reveals the change.
fn graft(batches: &mut [RangeBatch]) {
    let mut parent = None;
    for RangeBatch { header, .. } in batches {
        match parent {
            None => header.gas_used += 1,
            Some(parent) => header.parent = parent,
        }
        parent = Some(header.digest());
    }
}

/// Gives each account of the batch's delta one wei more. Returns false if the delta has no account.
fn give_money(batch: &mut RangeBatch) -> Result<bool> {
    let Some(blob) = &batch.delta else { return Ok(false) };
    let delta = Delta::open(blob)?;
    let mut entries = delta.entries().to_vec();
    let mut any = false;
    for entry in &mut entries {
        if let Some(StateValue::Account(account)) = &mut entry.value {
            account.balance += U256::from(1);
            any = true;
        }
    }
    let codes = delta.codes().iter().map(|code| code.to_vec()).collect();
    batch.delta = Some(Blob::seal(BlobKind::Delta, &Delta::new(entries, codes)?)?);
    Ok(any)
}

/// Returns a snapshot's chunk with a lie about one row; `place` picks the row from the number of rows. Returns `None`
/// if the chunk has no row there.
fn row(chunk: &[u8], lie: RowLie, place: impl FnOnce(usize) -> usize) -> Result<Option<Vec<u8>>> {
    let mut chunk: StateChunk = Blob::from_bytes(chunk.to_vec())?.open(BlobKind::StateChunk)?;
    let mut rows = chunk.rows.to_vec();
    if rows.is_empty() {
        return Ok(None);
    }
    let at = place(rows.len());
    match (lie, rows.get_mut(at)) {
        (_, None) => return Ok(None),
        (RowLie::Changed, Some((_, StateValue::Account(account)))) => account.balance += U256::from(1),
        (RowLie::Changed, Some((_, StateValue::Slot(value)))) => *value += U256::from(1),
        (RowLie::Hidden, Some(_)) => {
            rows.remove(at);
        }
    }
    chunk.rows = BoundedVec::new(rows)?;
    Ok(Some(Blob::seal(BlobKind::StateChunk, &chunk)?.into_bytes()))
}

/// Gives every account a higher balance, or a nonce if it did not exist, and every slot another value.
pub(crate) fn falsify(rows: &mut [RowBefore]) {
    for (key, row) in rows {
        match (key, row) {
            (_, Some(StateValue::Account(account))) => account.balance += U256::from(1),
            (_, Some(StateValue::Slot(value))) => *value += U256::from(1),
            (StateKey::Slot(..), row) => *row = Some(StateValue::Slot(U256::from(1))),
            (StateKey::Account(_), row) => {
                *row = Some(StateValue::Account(AccountValue { nonce: 1, ..AccountValue::default() }))
            }
        }
    }
}

/// Returns hints of the same keys with a false value of each. No validator vouches for them. Returns `None` if the
/// batch comes without a body or hints.
fn false_hints(batch: &RangeBatch) -> Result<Option<Blob>> {
    let (Some(body), Some(true_hints)) = (&batch.body, &batch.hints) else { return Ok(None) };
    let body: Body = body.open(BlobKind::Body)?;
    let decoded = body.transactions.iter().map(|raw| Transaction::decode_any(&raw[..]));
    let transactions = decoded.collect::<Result<Vec<_>, _>>()?;
    let context = hint_context(batch.header.proposer, &transactions);
    let keys_max = hints::keys_max(batch.header.gas_used);
    let told = hints::decode(&true_hints.content(BlobKind::Hints)?, &context, keys_max)?;
    let mut rows: Vec<RowBefore> = told.hints.keys().map(|key| (key, None)).collect();
    falsify(&mut rows);
    let content = hints::encode_with_values(&told.hints, &[], told.conflicts.as_ref(), &rows, &context);
    Ok(Some(Blob::compress(BlobKind::Hints, &content)?))
}

/// Undoes the compression of all parts of a batch. Returns false if the batch has no parts.
fn undo_compression(batch: &mut RangeBatch) -> Result<bool> {
    each_part(batch, |kind, blob| literal(kind, &blob.content(kind)?))
}

/// Changes all parts of a batch that its header commits to. Returns false if the batch has no such part.
fn each_part(batch: &mut RangeBatch, change: impl Fn(BlobKind, &Blob) -> Result<Blob>) -> Result<bool> {
    let parts = [
        (BlobKind::Body, &mut batch.body),
        (BlobKind::Receipts, &mut batch.receipts),
        (BlobKind::Delta, &mut batch.delta),
    ];
    let mut any = false;
    for (kind, part) in parts {
        if let Some(blob) = part {
            *blob = change(kind, blob)?;
            any = true;
        }
    }
    Ok(any)
}

/// Returns a blob that is as long as its content. It is one LZ4 sequence of literals alone: a token, then the length as
/// bytes of 255 and a last byte below 255.
fn literal(kind: BlobKind, content: &[u8]) -> Result<Blob> {
    let mut bytes = vec![kind as u8];
    bytes.extend(u32::try_from(content.len())?.to_le_bytes());
    bytes.push((content.len().min(SHORT) as u8) << 4);
    if let Some(mut more) = content.len().checked_sub(SHORT) {
        while more >= 255 {
            bytes.push(255);
            more -= 255;
        }
        bytes.push(more as u8);
    }
    bytes.extend(content);
    Ok(Blob::from_bytes(bytes)?)
}

#[cfg(test)]
mod tests;
