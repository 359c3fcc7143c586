//! Goal: the rules bind a quorum too. A ledger whose headers do not follow each other is refused wherever it arrives,
//! whichever check looks first.

use std::collections::BTreeMap;

use slipstream_storage::Head;
use slipstream_sync::{
    Trust, TrustError, Violation,
    protocol::{Announcement, Headers, Offer, Parts, PassedBatch, Range, RangeBatch, RangeRequest},
    verify::{self, VerifiedRange},
};
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, Digest, Epoch, LedgerInfo, SecretKey,
    Waypoint,
    accumulator::{self, Accumulator},
    batch::content_digest,
    bounded::BoundedVec,
    certificate::CertificateError,
};

/// Batches of each ledger, from 1 on, behind a leaf for the genesis.
const BATCHES: u64 = 4;
/// The leaf of the genesis.
const GENESIS: Digest = Digest([9; 32]);

fn key() -> SecretKey {
    slipstream_testkit::key(1)
}

fn trust() -> Trust {
    Trust::of_genesis(&slipstream_testkit::genesis(&[key()], 1))
}

fn body() -> Blob {
    Blob::compress(BlobKind::Body, &Body::new(Vec::new()).unwrap().content().unwrap()).unwrap()
}

fn header(number: u64, parent: Digest) -> BatchHeader {
    let content = Body::new(Vec::new()).unwrap().content().unwrap();
    BatchHeader {
        timestamp_ms: 100 * number,
        tx_bytes: content.len() as u32,
        transactions_root: content_digest(BlobKind::Body, &content),
        state_root: Digest([number as u8; 32]),
        ..slipstream_testkit::header(number, parent)
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
    /// Makes a ledger. Each header passes through `change` before it is certified, and the next header builds on the
    /// result.
    fn new(change: impl Fn(&mut BatchHeader), certify: impl Fn(&mut LedgerInfo)) -> Ledger {
        let (mut accumulator, mut nodes) = (Accumulator::default(), BTreeMap::new());
        let (mut headers, mut parent) = (Vec::new(), GENESIS);
        nodes.extend(accumulator.append(parent));
        for number in 1..=BATCHES {
            let mut header = header(number, parent);
            change(&mut header);
            parent = header.digest();
            nodes.extend(accumulator.append(parent));
            headers.push(header);
        }
        let last = &headers[headers.len() - 1];
        // The header may claim any epoch and number.
        let (epoch, number) = (Epoch(0), BatchNumber::new(BATCHES));
        let mut info = LedgerInfo { epoch, number, ..LedgerInfo::of(last, accumulator.root(), None) };
        certify(&mut info);
        let certificate = slipstream_testkit::sign(info, &[key()]);
        Ledger { headers, accumulator, nodes, certificate }
    }

    fn proof(&self, first: u64, count: usize) -> accumulator::AccumulatorRangeProof {
        let node = |position| self.nodes.get(&position).copied();
        accumulator::prove(BATCHES + 1, first, count, &node).unwrap()
    }

    /// Checks an answer with all batches as a follower does.
    fn range(&self) -> Result<VerifiedRange, Violation> {
        self.range_of(BATCHES as u32, 1 << 20, BATCHES)
    }

    /// Checks an answer with all batches to a request with these limits, from a peer that has `due` batches.
    fn range_of(&self, batches_max: u32, bytes_max: u32, due: u64) -> Result<VerifiedRange, Violation> {
        let request = RangeRequest { first: BatchNumber::new(1), batches_max, bytes_max, parts: Parts::BODY };
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
        verify::range(answer, &request, due, &trust()).map_err(violation)
    }

    /// An offer of the last batch, which proves the place of batch `passed`.
    fn offer(&self, passed: Option<u64>) -> Offer {
        let passed = passed.map(|number| PassedBatch {
            header: self.headers[number as usize - 1].clone(),
            proof: self.proof(number, 1),
        });
        let header = self.headers[BATCHES as usize - 1].clone();
        Offer { certificate: self.certificate.clone(), header, genesis_proof: self.proof(0, 1), passed }
    }

    /// The waypoint of the ledger up to a batch.
    fn waypoint(&self, number: u64) -> Waypoint {
        let header = &self.headers[number as usize - 1];
        let node = |position| self.nodes.get(&position).copied();
        Waypoint::of(&LedgerInfo {
            number: header.number,
            accumulator_root: Accumulator::load(number + 1, node).unwrap().root(),
            state_root: header.state_root,
            timestamp_ms: header.timestamp_ms,
            ..self.certificate.info.clone()
        })
    }

    fn headers(&self) -> Result<(), Violation> {
        let answer = Headers {
            headers: BoundedVec::new(self.headers.clone()).unwrap(),
            proof: self.proof(1, BATCHES as usize),
        };
        verify::headers(&answer, BatchNumber::new(1), &self.certificate)
    }
}

/// Checks an offer of the last batch, as a node that must pass `passing`.
fn check_offer(offer: &Offer, passing: Option<u64>) -> Result<Option<Waypoint>, Violation> {
    let passing = passing.map(BatchNumber::new);
    verify::offer(offer, BatchNumber::new(BATCHES), passing, GENESIS, &trust()).map_err(violation)
}

fn violation(error: TrustError) -> Violation {
    match error {
        TrustError::Violation(violation) => violation,
        unknown => panic!("{unknown}"),
    }
}

fn at(number: u64, change: fn(&mut BatchHeader)) -> impl Fn(&mut BatchHeader) {
    move |header| {
        if header.number.get() == number {
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

/// Goal: a range ends where the request, its peer's batches or the bytes end, and nowhere else.
#[test]
fn a_range_is_as_long_as_it_has_to_be() {
    let (ledger, batches) = (Ledger::new(|_| {}, |_| {}), BATCHES as u32);
    for (batches_max, bytes_max, due) in
        [(batches, 1 << 20, 9), (9, 1 << 20, BATCHES), (9, 1, 9), (batches, 1, 9)]
    {
        assert_eq!(ledger.range_of(batches_max, bytes_max, due).unwrap().batches().len() as u32, batches);
    }
    let short = Violation::ShortRange { first: BatchNumber::new(1), found: BATCHES as usize, wanted: 9 };
    assert_eq!(ledger.range_of(9, 1 << 20, 9).unwrap_err(), short);
    for bytes_max in [1, 1 << 20] {
        let longer = ledger.range_of(batches - 1, bytes_max, 9).unwrap_err();
        assert!(matches!(longer, Violation::Unrelated(_)), "{longer}");
    }
}

/// Goal: the accumulator and parents bind places but not numbers, so the number needs a check of its own.
#[test]
fn a_number_out_of_order_is_refused_under_a_good_certificate() {
    let wrong = Violation::WrongNumber { expected: BatchNumber::new(3), found: BatchNumber::new(7) };
    let ledger = Ledger::new(at(3, |header| header.number = BatchNumber::new(7)), |_| {});
    assert_eq!(ledger.range().unwrap_err(), wrong);
    assert_eq!(ledger.headers().unwrap_err(), wrong);
    let twice = Ledger::new(at(3, |header| header.number = BatchNumber::new(2)), |_| {});
    let wrong = Violation::WrongNumber { expected: BatchNumber::new(3), found: BatchNumber::new(2) };
    assert_eq!(twice.range().unwrap_err(), wrong);
}

/// Goal: a parent that is not the batch before is refused, even though the accumulator proves both.
#[test]
fn a_wrong_parent_is_refused_under_a_good_certificate() {
    for number in 2..=BATCHES {
        let ledger = Ledger::new(
            |header| {
                if header.number.get() == number {
                    header.parent = Digest::ZERO
                }
            },
            |_| {},
        );
        let wrong = Violation::WrongParent { number: BatchNumber::new(number) };
        assert_eq!(ledger.range().unwrap_err(), wrong);
    }
}

/// Goal: the fields that a certificate repeats equal its header's.
#[test]
fn a_certificate_that_contradicts_its_header_is_refused() {
    type Change = fn(&mut LedgerInfo);
    let cases: [(&str, Change); 2] =
        [("state root", |info| info.state_root = Digest::ZERO), ("timestamp", |info| info.timestamp_ms += 1)];
    for (field, change) in cases {
        let ledger = Ledger::new(|_| {}, change);
        let wrong = Violation::Disagreement { number: BatchNumber::new(BATCHES), field };
        assert_eq!(ledger.range().unwrap_err(), wrong);
    }
    let ledger = Ledger::new(at(BATCHES, |header| header.epoch = Epoch(1)), |_| {});
    let wrong = Violation::Disagreement { number: BatchNumber::new(BATCHES), field: "epoch" };
    assert_eq!(ledger.range().unwrap_err(), wrong);
}

/// Goal: an announcement must be of the batch after the head, build on the head, and lie in the ledger that it
/// certifies.
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
        let certificate = slipstream_testkit::sign(info, &[key()]);
        let announcement = Announcement { header: header.clone(), certificate, body: body(), hints: None };
        verify::announced(announcement, head, &trust()).map_err(violation)
    };
    assert_eq!(announce(&head, last).unwrap().batches().len(), 1);

    let skipped = BatchHeader { number: BatchNumber::new(BATCHES + 1), ..last.clone() };
    let wrong =
        Violation::WrongNumber { expected: BatchNumber::new(BATCHES), found: BatchNumber::new(BATCHES + 1) };
    assert_eq!(announce(&head, &skipped).unwrap_err(), wrong);
    let orphan = BatchHeader { parent: Digest::ZERO, ..last.clone() };
    let wrong = Violation::WrongParent { number: BatchNumber::new(BATCHES) };
    assert_eq!(announce(&head, &orphan).unwrap_err(), wrong);
    // The ledger before the head is not the one that was certified.
    let elsewhere = Head { accumulator: Accumulator::default(), ..head.clone() };
    let announcement = Announcement {
        header: last.clone(),
        certificate: ledger.certificate.clone(),
        body: body(),
        hints: None,
    };
    let refused = verify::announced(announcement, &elsewhere, &trust()).map_err(violation).unwrap_err();
    let wrong = Violation::Disagreement { number: BatchNumber::new(BATCHES), field: "accumulator root" };
    assert_eq!(refused, wrong);
    assert_eq!(ledger.accumulator.root(), ledger.certificate.info.accumulator_root);
}

/// Goal: an offer must be of the requested snapshot, by its header and by its certificate, in a ledger of this genesis.
#[test]
fn an_offer_is_of_the_snapshot_that_was_asked_for() {
    let ledger = Ledger::new(|_| {}, |_| {});
    assert_eq!(check_offer(&ledger.offer(None), None), Ok(None));
    let wrong = |found| Violation::WrongNumber {
        expected: BatchNumber::new(BATCHES),
        found: BatchNumber::new(found),
    };
    let of_another = Offer { header: ledger.headers[2].clone(), ..ledger.offer(None) };
    assert_eq!(check_offer(&of_another, None), Err(wrong(3)));
    for number in [BATCHES - 1, BATCHES + 1] {
        let certified = Ledger::new(|_| {}, |info| info.number = BatchNumber::new(number));
        assert_eq!(check_offer(&certified.offer(None), None), Err(wrong(number)));
    }
    let elsewhere =
        verify::offer(&ledger.offer(None), BatchNumber::new(BATCHES), None, Digest::ZERO, &trust());
    assert!(matches!(violation(elsewhere.unwrap_err()), Violation::Accumulator(_)));
    let mut unsigned = ledger.offer(None);
    unsigned.certificate.info.timestamp_ms += 1;
    unsigned.header.timestamp_ms += 1;
    let refused = check_offer(&unsigned, None).unwrap_err();
    assert!(matches!(refused, Violation::Certificate(CertificateError::BadSignature { .. })), "{refused}");
}

/// Goal: the waypoint that an offer shows is that of the requested batch, in the offered ledger.
#[test]
fn an_offer_shows_the_waypoint_that_was_asked_for() {
    let ledger = Ledger::new(|_| {}, |_| {});
    for number in 1..BATCHES {
        let shown = check_offer(&ledger.offer(Some(number)), Some(number));
        assert_eq!(shown, Ok(Some(ledger.waypoint(number))), "batch {number}");
        // A caller that did not ask gets no answer.
        assert_eq!(check_offer(&ledger.offer(Some(number)), None), Ok(None));
    }
    // The snapshot's own certificate gives its batch's waypoint, whatever stands beside it.
    for passed in [None, Some(1)] {
        let shown = check_offer(&ledger.offer(passed), Some(BATCHES));
        assert_eq!(shown, Ok(Some(ledger.waypoint(BATCHES))));
    }
    let missing = check_offer(&ledger.offer(None), Some(3)).unwrap_err();
    assert!(matches!(missing, Violation::Unrelated(_)), "{missing}");
    let wrong = Violation::WrongNumber { expected: BatchNumber::new(3), found: BatchNumber::new(2) };
    assert_eq!(check_offer(&ledger.offer(Some(2)), Some(3)), Err(wrong));
    let mut displaced = ledger.offer(Some(3));
    displaced.passed.as_mut().unwrap().proof = ledger.proof(2, 1);
    assert!(matches!(check_offer(&displaced, Some(3)), Err(Violation::Accumulator(_))));
}

/// Goal: before the ledger is here, an announcement is checked for a quorum's signatures and for the header that they
/// sign.
#[test]
fn an_announcement_is_of_the_header_that_a_quorum_signed() {
    let announce = |ledger: &Ledger| Announcement {
        header: ledger.headers[BATCHES as usize - 1].clone(),
        certificate: ledger.certificate.clone(),
        body: body(),
        hints: None,
    };
    let check = |announcement: &Announcement| verify::announcement(announcement, &trust()).map_err(violation);
    let ledger = Ledger::new(|_| {}, |_| {});
    assert_eq!(check(&announce(&ledger)), Ok(()));
    let other = Ledger::new(|_| {}, |info| info.number = BatchNumber::new(BATCHES + 1));
    let wrong =
        Violation::WrongNumber { expected: BatchNumber::new(BATCHES), found: BatchNumber::new(BATCHES + 1) };
    assert_eq!(check(&announce(&other)), Err(wrong));
    let other = Ledger::new(|_| {}, |info| info.state_root = Digest::ZERO);
    let wrong = Violation::Disagreement { number: BatchNumber::new(BATCHES), field: "state root" };
    assert_eq!(check(&announce(&other)), Err(wrong));
    let mut unsigned = announce(&ledger);
    unsigned.certificate.info.accumulator_root = Digest::ZERO;
    let refused = check(&unsigned).unwrap_err();
    assert!(matches!(refused, Violation::Certificate(CertificateError::BadSignature { .. })), "{refused}");
    let head = Head {
        header: ledger.headers[BATCHES as usize - 2].clone(),
        digest: ledger.headers[BATCHES as usize - 2].digest(),
        accumulator: Accumulator::default(),
    };
    let refused = violation(verify::announced(unsigned, &head, &trust()).unwrap_err());
    assert!(matches!(refused, Violation::Certificate(_)), "whoever looks at it again: {refused}");
}
