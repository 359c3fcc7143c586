//! Messages of validators, as bytes. Decoding and taking them never panics. A stranger's bytes never make a core sign, decide or
//! convict.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_eve::{Core, Message, Output, Settings, Setup};
use slipstream_types::{
    BatchNumber, Digest, Epoch, LedgerInfo, SecretKey, Validator, ValidatorSet, bounded::BoundedVec, codec,
};

const BYTES_MAX: usize = 1 << 20;

fn core() -> Core {
    let keys: Vec<_> = (0..4).map(|seed| SecretKey::from_seed([seed; 32])).collect();
    let validators =
        keys.iter().map(|key| Validator { public_key: key.public(), fee_recipient: Default::default() });
    let set = ValidatorSet::new(Epoch(0), BoundedVec::new(validators.collect()).expect("four"));
    let head = LedgerInfo {
        epoch: Epoch(0),
        number: BatchNumber::GENESIS,
        accumulator_root: Digest::ZERO,
        state_root: Digest::ZERO,
        timestamp_ms: 0,
        next_validators: None,
    };
    let settings =
        Settings { view_timeout_ms: 1_000, rotate_after: 0, protect_after: 0, protect_wait_ms: 10 };
    let key = keys[3].clone();
    let domain = Digest::ZERO;
    let (record, outcomes, orders) = (None, Vec::new(), Vec::new());
    Core::new(Setup { set, key, seat: 3, domain, settings, head, record, outcomes, orders })
}

fuzz_target!(|bytes: &[u8]| {
    let mut core = core();
    let mut rest = bytes;
    // Each message has its sender and its length before it.
    while let [from, high, low, tail @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (message, next) = tail.split_at(len);
        if let Ok(message) = codec::decode::<Message>("consensus message", message, BYTES_MAX) {
            core.handle_message(u16::from(*from), message);
        }
        rest = next;
    }
    while core.next_effect().is_some() {}
    while let Some(flush) = core.flush() {
        for output in flush.outputs {
            assert!(!matches!(output, Output::Commit(_) | Output::Convict(_)), "{output:?}");
        }
    }
    assert_eq!(core.decided(), BatchNumber::GENESIS);
});
