//! Goal: every value survives a round trip, has exactly one encoding, and no byte of it can be changed unnoticed.

use crate::common::*;
use proptest::{collection::vec, prelude::*};
use serde::{Serialize, de::DeserializeOwned};
use slipstream_types::{
    Blob, BlobKind, Body, Certificate, Delta, Digest, Path, Receipts, SecretKey, StateKey,
    accumulator::{Accumulator, AccumulatorRangeProof},
    batch::content_digest,
    bounded::{BoundedBytes, BoundedVec},
    certificate::CertificateError,
    codec,
    tree::{Leaf, Sibling, SiblingNode, StateRangeError, StateRangeProof, Subtree, root, subtree},
};

/// Decoding succeeds only for the one encoding: other bytes that decode must give another value.
fn canonical<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T, flip: (usize, u8)) {
    let bytes = codec::encode("value", value).unwrap();
    assert_eq!(&codec::decode::<T>("value", &bytes, bytes.len()).unwrap(), value);
    assert!(codec::decode::<T>("value", &bytes, bytes.len() - 1).is_err(), "above its limit");
    let longer = [&bytes[..], &[0]].concat();
    assert!(codec::decode::<T>("value", &longer, longer.len()).is_err(), "trailing byte");
    let mut other = bytes.clone();
    let at = flip.0 % other.len();
    other[at] ^= flip.1;
    if let Ok(decoded) = codec::decode::<T>("value", &other, other.len()) {
        assert_ne!(&decoded, value, "two encodings of one value");
        assert_eq!(codec::encode("value", &decoded).unwrap(), other);
    }
}

proptest! {
    #[test]
    fn values_have_one_encoding(body in any_body(), delta in any_delta(), at: usize, bit in 0..8u8) {
        let flip = (at, 1 << bit);
        canonical(&body, flip);
        canonical(&delta, flip);
        canonical(&receipts(), flip);
        canonical(&Ledger::new(5).certificate, flip);
        canonical(&header(3), flip);
    }

    #[test]
    fn a_blob_gives_back_its_content(body in any_body()) {
        let blob = Blob::seal(BlobKind::Body, &body).unwrap();
        prop_assert_eq!(blob.open::<Body>(BlobKind::Body).unwrap(), body);
        prop_assert!(blob.open::<Receipts>(BlobKind::Receipts).is_err(), "kinds must not be confused");
    }

    #[test]
    fn a_flipped_blob_never_matches_its_digest(body in any_body(), at: usize, bit in 0..8u8) {
        let content = body.content().unwrap();
        let digest = content_digest(BlobKind::Body, &content);
        let mut bytes = Blob::compress(BlobKind::Body, &content).unwrap().into_bytes();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        // LZ4 has several encodings of one content; it matters only that other content is never accepted.
        if let Ok(found) = Blob::from_bytes(bytes).unwrap().content(BlobKind::Body) {
            prop_assert_eq!(found == content, content_digest(BlobKind::Body, &found) == digest);
        }
    }

    #[test]
    fn garbage_is_refused_or_canonical(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Blob::from_bytes(bytes.clone()).unwrap().content(BlobKind::Delta);
        for ok in [
            codec::decode::<Body>("body", &bytes, 300).map(|v| codec::encode("body", &v).unwrap()),
            Delta::decode(&bytes).map(|v| v.content().unwrap()),
            codec::decode::<Certificate>("certificate", &bytes, 300).map(|v| codec::encode("c", &v).unwrap()),
        ].into_iter().flatten() {
            prop_assert_eq!(&ok, &bytes);
        }
    }

    #[test]
    fn any_change_of_a_header_range_is_refused(leaves in 1..70u64, a: u64, b: u64, at: usize, bit in 0..8u8) {
        let ledger = Ledger::new(leaves);
        let (a, b) = (a % leaves, b % leaves);
        let (first, count) = (a.min(b), (a.max(b) - a.min(b) + 1) as usize);
        let root = ledger.certificate.info.accumulator_root;
        let headers = &ledger.headers[first as usize..][..count];
        let digests: Vec<_> = headers.iter().map(|header| header.digest()).collect();
        let proof = ledger.prove(first, count);
        prop_assert!(proof.verify(root, leaves, first, &digests).is_ok());
        prop_assert!(proof.verify(root, leaves, first + 1, &digests).is_err());

        let mut bytes = bcs::to_bytes(&(headers, &proof)).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let decoded: Result<(Vec<_>, AccumulatorRangeProof), _> = bcs::from_bytes(&bytes);
        if let Ok((headers, proof)) = decoded {
            let digests: Vec<Digest> = headers.iter().map(slipstream_types::BatchHeader::digest).collect();
            prop_assert!(proof.verify(root, leaves, first, &digests).is_err());
        }
    }

    #[test]
    fn the_accumulator_is_rfc_6962s(leaves in 0..200u64) {
        fn naive(leaves: &[Digest]) -> Digest {
            match leaves {
                [] => Digest::ZERO,
                [leaf] => *leaf,
                _ => {
                    let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
                    let bytes = [naive(left).0, naive(right).0].concat();
                    Digest::tagged("slipstream/accumulator/1", &bytes)
                }
            }
        }
        let digests: Vec<_> = (0..leaves).map(digest).collect();
        let mut accumulator = Accumulator::default();
        let nodes: std::collections::HashMap<_, _> =
            digests.iter().flat_map(|digest| accumulator.append(*digest)).collect();
        prop_assert_eq!(accumulator.root(), naive(&digests));
        prop_assert_eq!((accumulator.len(), accumulator.is_empty()), (leaves, leaves == 0));
        prop_assert_eq!(Accumulator::load(leaves, |position| nodes.get(&position).copied()), Some(accumulator));
    }

    #[test]
    fn state_ranges_prove_all_and_only_their_rows(
        keys in proptest::collection::btree_set(any_path(), 0..60), ends in (any_path(), any_path()), pick: usize, victim: usize,
    ) {
        let leaves: Vec<_> = keys.iter().map(|path| Leaf { path: *path, value_hash: Digest(path.0) }).collect();
        // Ends on and off the leaves.
        let first = if pick % 3 == 0 && !leaves.is_empty() { leaves[pick % leaves.len()].path } else { ends.0 };
        let (first, last) = (first.min(ends.1), first.max(ends.1));
        let inside: Vec<_> = leaves.iter().filter(|l| first <= l.path && l.path <= last).copied().collect();
        let proof = prove_range(&leaves, first, last);
        let top = root(&leaves);
        prop_assert_eq!(proof.verify(top, first, last, &inside), Ok(()));
        prop_assert_eq!(proof.check_places(first, last), Ok(()));

        // A missing, surplus, altered, repeated or swapped row.
        if !inside.is_empty() {
            let at = victim % inside.len();
            let mut wrong = inside.clone();
            wrong.remove(at);
            prop_assert!(proof.verify(top, first, last, &wrong).is_err());
            let mut wrong = inside.clone();
            wrong[at].value_hash.0[0] ^= 1;
            prop_assert!(proof.verify(top, first, last, &wrong).is_err());
            let mut wrong = inside.clone();
            wrong.insert(at, inside[at]);
            prop_assert!(proof.verify(top, first, last, &wrong).is_err());
            if inside.len() > 1 {
                let mut wrong = inside.clone();
                wrong.swap(at, (at + 1) % inside.len());
                prop_assert!(proof.verify(top, first, last, &wrong).is_err());
            }
        }
        let new = Leaf { path: last, value_hash: Digest([1; 32]) };
        if inside.last().is_none_or(|leaf| leaf.path != last) {
            prop_assert!(proof.verify(top, first, last, &[&inside[..], &[new]].concat()).is_err());
        }
        // A sibling left out, or moved.
        if !proof.left.is_empty() {
            let mut left = proof.left.to_vec();
            let at = victim % left.len();
            let removed = vec![left.remove(at)];
            let wrong = StateRangeProof { left: BoundedVec::new(left).unwrap(), right: proof.right.clone() };
            prop_assert!(wrong.verify(top, first, last, &inside).is_err());
            let right = [&proof.right[..], &removed].concat();
            let wrong = StateRangeProof { left: proof.left.clone(), right: BoundedVec::new(right).unwrap() };
            prop_assert!(wrong.verify(top, first, last, &inside).is_err());
            // Out of place whatever the leaves are: repeated, and on the side where the end's bits allow no sibling.
            let left = [&proof.left[..], &removed].concat();
            let twice = StateRangeProof { left: BoundedVec::new(left).unwrap(), right: proof.right.clone() };
            let can_stand = !last.bit(removed[0].depth.into()) && matches!(removed[0].node, SiblingNode::Inner(_));
            let right = BoundedVec::new(removed).unwrap();
            let swapped = StateRangeProof { left: BoundedVec::default(), right };
            prop_assert_eq!(twice.check_places(first, last), Err(StateRangeError::BadSibling));
            if !can_stand {
                prop_assert_eq!(swapped.check_places(first, last), Err(StateRangeError::BadSibling));
            }
        }
        if first < last {
            prop_assert_eq!(proof.check_places(last, first), Err(StateRangeError::BadOrder));
        }
    }

    #[test]
    fn a_key_is_beside_its_account(key in any_key()) {
        let account = StateKey::Account(*key.address());
        prop_assert_eq!(key.path().0[..8].to_vec(), account.path().0[..8].to_vec());
        prop_assert_eq!(key == account, key.path() == account.path());
    }
}

/// Paths that often share long prefixes, like keys ground by an attacker.
fn any_path() -> impl Strategy<Value = Path> {
    (0..4u8, 0..4u8, any::<u8>(), 0..3u8).prop_map(|(a, b, c, shape)| {
        let mut path = [0; 32];
        match shape {
            0 => (path[0], path[31]) = (c, a),
            1 => (path[0], path[1], path[2]) = (a << 6, b << 6, c),
            _ => (path[0], path[30], path[31]) = (a, b, c),
        }
        Path(path)
    })
}

/// The proof by its definition: every non-empty subtree adjacent to the path to an end.
fn prove_range(leaves: &[Leaf], first: Path, last: Path) -> StateRangeProof {
    let side = |end: Path, left: bool| {
        let siblings = (0..256).filter_map(|depth| {
            if end.bit(depth) != left {
                return None;
            }
            let agrees = |leaf: &&Leaf| (0..depth).all(|i| leaf.path.bit(i) == end.bit(i));
            let beside: Vec<_> =
                leaves.iter().filter(agrees).filter(|leaf| leaf.path.bit(depth) != left).copied().collect();
            let node = match (&beside[..], subtree(&beside, depth + 1)) {
                ([leaf], _) => SiblingNode::Leaf(*leaf),
                (_, Subtree::Inner(hash)) => SiblingNode::Inner(hash),
                _ => return None,
            };
            Some(Sibling { depth: depth as u8, node })
        });
        BoundedVec::new(siblings.collect()).unwrap()
    };
    StateRangeProof { left: side(first, true), right: side(last, false) }
}

#[test]
fn an_inner_node_cannot_pose_as_a_leaf() {
    // Goal: the attack that showing leaf preimages prevents. Rows a and b; the liar claims that [a, a] is empty.
    let leaf = |byte| Leaf { path: Path([byte; 32]), value_hash: Digest([byte; 32]) };
    let (a, b) = (leaf(0x10), leaf(0x11));
    let top = root(&[a, b]);
    let lie = Leaf { path: b.path, value_hash: top };
    for node in [SiblingNode::Inner(top), SiblingNode::Leaf(lie), SiblingNode::Leaf(b)] {
        for depth in 0..=255 {
            let right = BoundedVec::new(vec![Sibling { depth, node: node.clone() }]).unwrap();
            let proof = StateRangeProof { left: BoundedVec::default(), right };
            assert!(proof.verify(top, a.path, a.path, &[]).is_err());
        }
    }
}

#[test]
fn certificates_need_a_quorum_of_distinct_validators() {
    let ledger = Ledger::new(3);
    let keys = keys(4);
    let with = |signers: &[u16]| certify(ledger.certificate.info.clone(), &keys, signers).verify(&ledger.set);
    assert_eq!(with(&[0, 1, 3]), Ok(()));
    assert_eq!(with(&[0, 1, 2, 3]), Ok(()));
    assert!(matches!(with(&[0, 1]), Err(CertificateError::NoQuorum { found: 2, quorum: 3, .. })));
    assert!(matches!(with(&[0, 1, 1]), Err(CertificateError::BadIndex { index: 1, .. })));
    assert!(matches!(with(&[1, 0, 2]), Err(CertificateError::BadIndex { index: 0, .. })));
    let mut other = ledger.set.clone();
    other.epoch.0 += 1;
    assert!(matches!(ledger.certificate.verify(&other), Err(CertificateError::WrongEpoch { .. })));
}

#[test]
fn no_byte_of_a_certificate_can_be_changed() {
    let ledger = Ledger::new(3);
    let bytes = bcs::to_bytes(&ledger.certificate).unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x41;
        if let Ok(certificate) = bcs::from_bytes::<Certificate>(&changed) {
            assert!(certificate.verify(&ledger.set).is_err(), "byte {at}");
        }
    }
}

#[test]
fn no_byte_of_a_header_can_be_changed() {
    let header = header(5);
    let bytes = bcs::to_bytes(&header).unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let changed: slipstream_types::BatchHeader = bcs::from_bytes(&changed).unwrap();
        assert_ne!(changed.digest(), header.digest(), "byte {at}");
    }
}

#[test]
fn quorums_of_small_sets() {
    for (n, quorum) in [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (10, 7)] {
        assert_eq!(validators(&keys(n)).quorum(), quorum, "{n} validators");
    }
}

#[test]
fn announced_lengths_are_refused_before_they_are_allocated() {
    // Two bytes of message announce 2^28 elements; the limits answer, not the allocator.
    let announce = [0xff, 0xff, 0xff, 0x7f];
    assert!(codec::decode::<Body>("body", &announce, 100).is_err());
    assert!(codec::decode::<BoundedVec<u8, 10>>("bytes", &[11; 12], 100).is_err());
    assert!(codec::decode::<BoundedBytes<10>>("bytes", &[11; 12], 100).is_err());
    // A blob that claims 16 MiB in ten bytes, and one above its kind's limit.
    let mut lie = vec![BlobKind::Body as u8];
    lie.extend_from_slice(&(16u32 << 20).to_le_bytes());
    lie.extend_from_slice(&[0; 5]);
    assert!(Blob::from_bytes(lie.clone()).unwrap().content(BlobKind::Body).is_err());
    lie[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(
        Blob::from_bytes(lie).unwrap().content(BlobKind::Body).unwrap_err().to_string().contains("limit")
    );
}

#[test]
fn signatures_are_checked() {
    let key = SecretKey::from_seed([5; 32]);
    let signature = key.sign(b"message");
    assert!(key.public().verify(b"message", &signature));
    assert!(!key.public().verify(b"massage", &signature));
    assert!(!SecretKey::from_seed([6; 32]).public().verify(b"message", &signature));
    assert!(!format!("{key:?}").contains(&"05".repeat(8)), "the secret is never printed");
}

#[test]
fn deltas_out_of_order_are_refused() {
    let keys: Vec<_> =
        (1..4u8).map(|i| StateKey::Account(slipstream_types::Address::repeat_byte(i))).collect();
    let entries: Vec<_> =
        keys.iter().map(|key| slipstream_types::delta::DeltaEntry { key: *key, value: None }).collect();
    let sorted = Delta::new(entries, vec![]).unwrap();
    for order in [[1, 0, 2], [0, 2, 1], [0, 0, 1]] {
        let entries: Vec<_> = order.iter().map(|&i: &usize| sorted.entries()[i]).collect();
        let bytes = bcs::to_bytes(&(entries, Vec::<Vec<u8>>::new())).unwrap();
        assert!(Delta::decode(&bytes).unwrap_err().to_string().contains("sorted by path"));
    }
}
