//! Goal: what a quorum signed is still held against the rules: a ledger whose headers do not follow each other is refused wherever it comes
//! in, and not only by the check that happens to look first.

use std::collections::BTreeMap;

use slipstream_storage::Head;
use slipstream_sync::{
    Trust, TrustError,
    protocol::{Announcement, Headers, Parts, Range, RangeBatch, RangeRequest},
    verify::{self, VerifiedRange, Violation},
};
use slipstream_types::{
    Address, BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, ChainConfig, Digest, Epoch,
    Genesis, LedgerInfo, SecretKey, Validator,
    accumulator::{self, Accumulator},
    batch::content_digest,
    bounded::BoundedVec,
};

/// Batches of each ledger, from 1 on, behind a leaf for the genesis.
const BATCHES: u64 = 4;

fn key() -> SecretKey {
    SecretKey::from_seed([1; 32])
}

fn trust() -> Trust {
    let validator = Validator { public_key: key().public(), fee_recipient: Address::ZERO };
    Trust::of_genesis(&Genesis {
        chain: ChainConfig::default(),
        timestamp_ms: 1,
        validators: BoundedVec::new(vec![validator]).unwrap(),
        accounts: BTreeMap::new(),
        ..Genesis::default()
    })
}

fn body() -> Blob {
    Blob::compress(BlobKind::Body, &Body::new(Vec::new()).unwrap().content().unwrap()).unwrap()
}

fn header(number: u64, parent: Digest) -> BatchHeader {
    let content = Body::new(Vec::new()).unwrap().content().unwrap();
    BatchHeader {
        number: BatchNumber(number),
        epoch: Epoch(0),
        parent,
        timestamp_ms: 100 * number,
        proposer: Address::ZERO,
        tx_count: 0,
        tx_bytes: content.len() as u32,
        gas_used: 0,
        delta_bytes: 0,
        transactions_root: content_digest(BlobKind::Body, &content),
        receipts_root: Digest::ZERO,
        delta_digest: Digest::ZERO,
        state_root: Digest([number as u8; 32]),
    }
}

/// A ledger that a quorum signed, with its last certificate.
struct Ledger {
    headers: Vec<BatchHeader>,
    accumulator: Accumulator,
    nodes: BTreeMap<accumulator::NodePosition, Digest>,
    certificate: Certificate,
}

impl Ledger {
    /// Each header passes through `change` before it is certified; the next one stands on what came of it.
    fn new(change: impl Fn(&mut BatchHeader), certify: impl Fn(&mut LedgerInfo)) -> Ledger {
        let (mut accumulator, mut nodes) = (Accumulator::default(), BTreeMap::new());
        let (mut headers, mut parent) = (Vec::new(), Digest([9; 32]));
        nodes.extend(accumulator.append(parent));
        for number in 1..=BATCHES {
            let mut header = header(number, parent);
            change(&mut header);
            parent = header.digest();
            nodes.extend(accumulator.append(parent));
            headers.push(header);
        }
        let last = &headers[headers.len() - 1];
        let mut info = LedgerInfo {
            epoch: Epoch(0),
            number: BatchNumber(BATCHES),
            accumulator_root: accumulator.root(),
            state_root: last.state_root,
            timestamp_ms: last.timestamp_ms,
            next_validators: None,
        };
        certify(&mut info);
        let certificate = Certificate::signed(info, 0, [(0, &key())]).unwrap();
        Ledger { headers, accumulator, nodes, certificate }
    }

    fn proof(&self, first: u64, count: usize) -> accumulator::AccumulatorRangeProof {
        let node = |position| self.nodes.get(&position).copied();
        accumulator::prove(BATCHES + 1, first, count, &node).unwrap()
    }

    /// Asks for all batches, and checks them as a follower does.
    fn range(&self) -> Result<VerifiedRange, Violation> {
        let request = RangeRequest {
            first: BatchNumber(1),
            batches_max: BATCHES as u32,
            bytes_max: 1 << 20,
            parts: Parts::BODY,
        };
        let batch = |header: &BatchHeader| RangeBatch {
            header: header.clone(),
            body: Some(body()),
            receipts: None,
            delta: None,
            hints: None,
        };
        let batches = BoundedVec::new(self.headers.iter().map(batch).collect()).unwrap();
        let answer =
            Range { certificate: self.certificate.clone(), proof: self.proof(1, BATCHES as usize), batches };
        verify::range(answer, &request, BATCHES, &trust()).map_err(violation)
    }

    fn headers(&self) -> Result<(), Violation> {
        let answer = Headers {
            headers: BoundedVec::new(self.headers.clone()).unwrap(),
            proof: self.proof(1, BATCHES as usize),
        };
        verify::headers(&answer, BatchNumber(1), &self.certificate)
    }
}

fn violation(error: TrustError) -> Violation {
    match error {
        TrustError::Violation(violation) => violation,
        unknown => panic!("{unknown}"),
    }
}

fn at(number: u64, change: fn(&mut BatchHeader)) -> impl Fn(&mut BatchHeader) {
    move |header| {
        if header.number.0 == number {
            change(header);
        }
    }
}

#[test]
fn a_ledger_in_order_passes() {
    let ledger = Ledger::new(|_| {}, |_| {});
    assert_eq!(ledger.range().unwrap().batches().len() as u64, BATCHES);
    ledger.headers().unwrap();
}

/// Goal: neither the accumulator, which binds places and not numbers, nor the parents stand in for the number.
#[test]
fn a_number_out_of_order_is_refused_under_a_good_certificate() {
    let wrong = Violation::WrongNumber { expected: BatchNumber(3), found: BatchNumber(7) };
    let ledger = Ledger::new(at(3, |header| header.number.0 = 7), |_| {});
    assert_eq!(ledger.range().unwrap_err(), wrong);
    assert_eq!(ledger.headers().unwrap_err(), wrong);
    let twice = Ledger::new(at(3, |header| header.number.0 = 2), |_| {});
    let wrong = Violation::WrongNumber { expected: BatchNumber(3), found: BatchNumber(2) };
    assert_eq!(twice.range().unwrap_err(), wrong);
}

/// Goal: a parent that is not the batch before is refused though the accumulator proves both.
#[test]
fn a_wrong_parent_is_refused_under_a_good_certificate() {
    for number in 2..=BATCHES {
        let ledger = Ledger::new(
            |header| {
                if header.number.0 == number {
                    header.parent = Digest::ZERO
                }
            },
            |_| {},
        );
        let wrong = Violation::WrongParent { number: BatchNumber(number) };
        assert_eq!(ledger.range().unwrap_err(), wrong);
    }
}

/// Goal: what the certificate repeats of its header is the header's.
#[test]
fn a_certificate_that_contradicts_its_header_is_refused() {
    type Change = fn(&mut LedgerInfo);
    let cases: [(&str, Change); 2] =
        [("state root", |info| info.state_root = Digest::ZERO), ("timestamp", |info| info.timestamp_ms += 1)];
    for (field, change) in cases {
        let ledger = Ledger::new(|_| {}, change);
        let wrong = Violation::Disagreement { number: BatchNumber(BATCHES), field };
        assert_eq!(ledger.range().unwrap_err(), wrong);
    }
    let ledger = Ledger::new(at(BATCHES, |header| header.epoch = Epoch(1)), |_| {});
    let wrong = Violation::Disagreement { number: BatchNumber(BATCHES), field: "epoch" };
    assert_eq!(ledger.range().unwrap_err(), wrong);
}

/// Goal: an announcement is of the batch after the head, on the head, and in the ledger that it certifies.
#[test]
fn an_announcement_follows_the_head() {
    let ledger = Ledger::new(|_| {}, |_| {});
    let (before, last) = (&ledger.headers[BATCHES as usize - 2], &ledger.headers[BATCHES as usize - 1]);
    let node = |position| ledger.nodes.get(&position).copied();
    let accumulator = Accumulator::load(BATCHES, node).unwrap();
    let head = Head { header: before.clone(), digest: before.digest(), accumulator };
    let announce = |head: &Head, header: &BatchHeader| {
        let info = LedgerInfo {
            number: header.number,
            accumulator_root: {
                let mut accumulator = head.accumulator.clone();
                accumulator.append(header.digest());
                accumulator.root()
            },
            ..ledger.certificate.info.clone()
        };
        let certificate = Certificate::signed(info, 0, [(0, &key())]).unwrap();
        let announcement = Announcement { header: header.clone(), certificate, body: body(), hints: None };
        verify::announced(announcement, head, &trust()).map_err(violation)
    };
    assert_eq!(announce(&head, last).unwrap().batches().len(), 1);

    let skipped = BatchHeader { number: BatchNumber(BATCHES + 1), ..last.clone() };
    let wrong = Violation::WrongNumber { expected: BatchNumber(BATCHES), found: BatchNumber(BATCHES + 1) };
    assert_eq!(announce(&head, &skipped).unwrap_err(), wrong);
    let orphan = BatchHeader { parent: Digest::ZERO, ..last.clone() };
    let wrong = Violation::WrongParent { number: BatchNumber(BATCHES) };
    assert_eq!(announce(&head, &orphan).unwrap_err(), wrong);
    // Another ledger before the head than the one that was certified.
    let elsewhere = Head { accumulator: Accumulator::default(), ..head.clone() };
    let announcement = Announcement {
        header: last.clone(),
        certificate: ledger.certificate.clone(),
        body: body(),
        hints: None,
    };
    let refused = verify::announced(announcement, &elsewhere, &trust()).map_err(violation).unwrap_err();
    let wrong = Violation::Disagreement { number: BatchNumber(BATCHES), field: "accumulator root" };
    assert_eq!(refused, wrong);
    assert_eq!(ledger.accumulator.root(), ledger.certificate.info.accumulator_root);
}
