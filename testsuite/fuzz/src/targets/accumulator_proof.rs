//! A range of headers that verifies against a known ledger holds exactly that ledger's headers, and proves no false
//! node.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, Serialize};
use slipstream_types::{
    Digest,
    accumulator::{Accumulator, AccumulatorRangeProof, NodePosition, prove},
};

use crate::claim::claim;
pub(super) use crate::claim::seeds;

const LEAVES: u64 = 53;

#[derive(Serialize, Deserialize)]
struct Claim {
    first: u64,
    items: Vec<Digest>,
    proof: AccumulatorRangeProof,
}

static LEDGER: LazyLock<(Accumulator, BTreeMap<NodePosition, Digest>)> = LazyLock::new(|| {
    let mut accumulator = Accumulator::default();
    let mut nodes = BTreeMap::new();
    for i in 0..LEAVES {
        nodes.extend(accumulator.append(Digest::tagged("fuzz", &i.to_le_bytes())));
    }
    (accumulator, nodes)
});

fn leaf(index: u64) -> Option<Digest> {
    LEDGER.1.get(&NodePosition { level: 0, index }).copied()
}

fn honest(a: u8, b: u8) -> Claim {
    let first = u64::from(a) % LEAVES;
    let count = 1 + u64::from(b) % (LEAVES - first);
    let items = (first..first + count).filter_map(leaf).collect();
    let proof = prove(LEAVES, first, count as usize, &|position| LEDGER.1.get(&position).copied());
    Claim { first, items, proof: proof.expect("a range of the ledger") }
}

pub(crate) fn run(bytes: &[u8]) {
    let (accumulator, nodes) = &*LEDGER;
    if let [1, a, b] = bytes {
        let Claim { first, items, proof } = honest(*a, *b);
        assert!(proof.verify(accumulator.root(), LEAVES, first, &items).is_ok(), "an honest proof is refused");
    }
    let Some(Claim { first, items, proof }) = claim(bytes, honest) else { return };
    if let Ok(proved) = proof.verify(accumulator.root(), LEAVES, first, &items) {
        for (index, item) in (first..).zip(&items) {
            assert_eq!(leaf(index), Some(*item), "a false header verifies");
        }
        for (position, digest) in proved {
            assert_eq!(nodes.get(&position), Some(&digest), "a false node is proved");
        }
    }
}
