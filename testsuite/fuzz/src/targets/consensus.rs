//! Messages of validators, as bytes. Decoding and handling them never panics. A stranger's bytes never make a core
//! sign, decide or convict.

use std::time::Instant;

use slipstream_eve::{
    Ballot, Core, Evidence, Message, NewView, Order, Output, Settings, Setup, SignedOrder, Status, Verify,
    ViewChange, Vote,
};
use slipstream_testkit::{info, key, keys, set};
use slipstream_types::{Address, BatchNumber, Certificate, Digest, Epoch, LedgerInfo, codec};

const BYTES_MAX: usize = 1 << 20;

fn core(now: Instant) -> Core {
    let keys = keys(0..4);
    let (set, head) = (set(0, &keys, Address::ZERO), info(0, 0));
    let settings = Settings {
        view_timeout_ms: 1_000,
        rotate_after: 1_000,
        protect_after: 0,
        protect_wait_ms: 10,
        recalls_votes: true,
    };
    let key = keys[3].clone();
    let domain = Digest::ZERO;
    let (certificate, record, outcomes, kept) = (None, None, Vec::new(), Vec::new());
    Core::new(Setup { set, key, seat: 3, domain, settings, head, certificate, record, outcomes, kept }, now)
}

pub(crate) fn run(bytes: &[u8]) {
    let now = Instant::now();
    let mut core = core(now);
    let mut rest = bytes;
    // Each message follows its sender and its length.
    while let [from, high, low, tail @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (message, next) = tail.split_at(len);
        if let Ok(message) = codec::decode::<Message>("consensus message", message, BYTES_MAX) {
            core.handle_message(u16::from(*from), message, now);
        }
        rest = next;
    }
    while core.poll_effect().is_some() {}
    while let Some(flush) = core.poll_flush() {
        for output in flush.outputs {
            assert!(!matches!(output, Output::Commit(_) | Output::Convict(_)), "{output:?}");
        }
    }
    assert_eq!(core.decided(), BatchNumber::GENESIS);
}

/// Returns messages of another chain's validators with these keys: one of each kind that fits. They prove nothing here.
pub(super) fn messages() -> Vec<Message> {
    let (domain, key, number) = (Digest::tagged("fuzz", b"another chain"), key(1), BatchNumber::new(1));
    let order = Order {
        epoch: Epoch(0),
        view: 1,
        number,
        parent: Digest::ZERO,
        timestamp_ms: 1,
        transactions: Digest::ZERO,
    };
    let order = SignedOrder::new(order, &domain, &key);
    let info = LedgerInfo { accumulator_root: domain, ..info(0, 1) };
    let ballot = Ballot { view: 1, number, token: Digest::tagged("fuzz", b"token") };
    let vote = Vote { ballot, signature: ballot.sign_prepare(&domain, &key) };
    let change = ViewChange::new(1, 1, None, None, &domain, &key);
    let status = Status {
        view: 1,
        changing: false,
        complains: true,
        decided: number,
        ordered: number,
        neglected: true,
        silence: None,
    };
    vec![
        Message::Verify(Box::new(Verify { order: order.clone(), before: Digest::ZERO, info: info.clone(), took_ms: 7 })),
        Message::Prepare(vote),
        Message::Commit(Vote { signature: ballot.sign_commit(&key), ..vote }),
        Message::Decided(Box::new(Certificate::signed(info, 1, [(1, &key)]).expect("one signature"))),
        Message::ViewChange(Box::new(change.clone())),
        Message::NewView(Box::new(NewView::new(1, vec![change], &domain, &key))),
        Message::Status(status),
        Message::Evidence(Evidence::Orders(Box::new([order.clone(), order]))),
        Message::Evidence(Evidence::Prepares(1, Box::new([vote; 2]))),
    ]
}

/// Returns messages of another chain's validators: one of each kind that fits, after its sender and length.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let framed = |message: &Message| {
        let bytes = codec::encode("consensus message", message).expect("it encodes");
        [&[1][..], &(bytes.len() as u16).to_be_bytes(), &bytes].concat()
    };
    let each: Vec<Vec<u8>> = messages().iter().map(framed).collect();
    each.iter().cloned().chain([each.concat()]).collect()
}
