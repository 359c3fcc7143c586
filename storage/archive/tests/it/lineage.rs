//! Goal: nothing that ties a snapshot to its ledger is taken on trust: certificate, headers, genesis, and the ends of
//! all earlier epochs.

use slipstream_storage::Lineage;
use slipstream_types::{
    Address, BatchNumber, Certificate, Digest, Epoch, Failures, Genesis, SecretKey,
    accumulator::AccumulatorRangeProof, bounded::BoundedVec,
};

use super::{
    STAMP, export,
    ledger::{Ledger, genesis, keys, set},
    stage, verified,
};

/// Goal: the signatures in an archive's manifest are checked, because no object's name covers them.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_without_its_quorum_is_refused() {
    let (server, archive, ledger) = stage().await;
    export(&archive, &ledger).await;
    let manifest = &server.objects("/snapshots/")[0];
    let mut bytes = std::fs::read(manifest).unwrap();
    let signature = ledger.store.certificate(ledger.number()).unwrap().unwrap().signatures[0].1;
    let at = bytes.windows(signature.0.len()).position(|bytes| bytes == signature.0).unwrap();
    bytes[at] ^= 1;
    std::fs::write(manifest, bytes).unwrap();
    let error = verified(&archive, None).await.unwrap_err().to_string();
    assert!(error.contains("signature"), "{error}");
}

/// What an archive claims about a snapshot of epoch 5, and the genesis beside it.
#[derive(Clone)]
struct LineageClaim {
    lineage: Lineage,
    genesis: Genesis,
    genesis_proof: AccumulatorRangeProof,
}

const EPOCH: Epoch = Epoch(5);

impl LineageClaim {
    fn check(&self) -> Result<(), String> {
        self.lineage.check(&self.genesis, &self.genesis_proof)
    }

    /// Changes the end of an epoch, and has the validators of that epoch sign it.
    fn end(&mut self, epoch: usize, change: impl FnOnce(&mut Certificate)) {
        let mut ends = self.lineage.epoch_ends.to_vec();
        change(&mut ends[epoch]);
        sign(&mut ends[epoch], &keys(Epoch(epoch as u64))[..2]);
        self.lineage.epoch_ends = BoundedVec::new(ends).unwrap();
    }

    /// Changes the certificate, and has `signers` sign it.
    fn certify(&mut self, signers: &[SecretKey], change: impl FnOnce(&mut Certificate)) {
        change(&mut self.lineage.certificate);
        sign(&mut self.lineage.certificate, signers);
    }
}

fn sign(certificate: &mut Certificate, keys: &[SecretKey]) {
    *certificate = Certificate::signed(certificate.info.clone(), certificate.view, (0..).zip(keys)).unwrap();
}

type Lie = (&'static str, fn(&mut LineageClaim));

const LIES: [Lie; 16] = [
    ("another state", |it| it.certify(&keys(EPOCH)[..2], |end| end.info.state_root = Digest([1; 32]))),
    ("another ledger", |it| it.certify(&keys(EPOCH)[..2], |end| end.info.accumulator_root = Digest([1; 32]))),
    ("another batch", |it| it.certify(&keys(EPOCH)[..2], |end| end.info.number = end.info.number.next())),
    ("one signature of three", |it| it.certify(&keys(EPOCH)[..1], |_| {})),
    ("strangers' signatures", |it| it.certify(&keys(Epoch(40))[..2], |_| {})),
    ("the signatures of an earlier epoch", |it| it.certify(&keys(Epoch(4))[..2], |_| {})),
    ("no headers", |it| it.lineage.headers = BoundedVec::default()),
    ("a changed header", |it| {
        let mut headers = it.lineage.headers.to_vec();
        headers[2].gas_used += 1;
        it.lineage.headers = BoundedVec::new(headers).unwrap();
    }),
    ("headers of nowhere", |it| {
        it.lineage.headers = BoundedVec::new(it.lineage.headers[2..].to_vec()).unwrap();
        it.lineage.headers_proof = AccumulatorRangeProof::default();
    }),
    ("another genesis of the same validators", |it| it.genesis = genesis(STAMP + 1)),
    ("a genesis without a proof", |it| it.genesis_proof = AccumulatorRangeProof::default()),
    ("validators that nobody appointed", |it| {
        let mut ends = it.lineage.epoch_ends.to_vec();
        ends[4].info.next_validators = Some(slipstream_testkit::set(5, &keys(Epoch(40)), Address::ZERO));
        it.lineage.epoch_ends = BoundedVec::new(ends).unwrap();
        it.certify(&keys(Epoch(40)), |_| {});
    }),
    ("an epoch left out", |it| {
        let ends = [&it.lineage.epoch_ends[..2], &it.lineage.epoch_ends[3..]].concat();
        it.lineage.epoch_ends = BoundedVec::new(ends).unwrap();
    }),
    ("an epoch that ends behind the snapshot", |it| {
        it.end(3, |end| end.info.number = BatchNumber::new(99));
        it.end(4, |end| end.info.number = BatchNumber::new(100));
    }),
    ("an epoch that ends before it begins", |it| it.end(3, |end| end.info.number = BatchNumber::new(2))),
    ("a set that bears more than it can", |it| {
        let failures = Failures { any: 2, commission: 0 };
        it.end(4, |end| end.info.next_validators.as_mut().unwrap().failures = failures);
    }),
];

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_ties_a_snapshot_to_its_ledger_is_believed() {
    let mut ledger = Ledger::new(STAMP);
    (0..5).for_each(|account| ledger.touch([account]));
    let snapshot = ledger.store.snapshot(ledger.number()).unwrap().unwrap();
    let (_, genesis_proof) = Lineage::genesis_of(&snapshot).unwrap();
    let claim =
        LineageClaim { lineage: Lineage::of(&snapshot).unwrap(), genesis: genesis(STAMP), genesis_proof };
    assert_eq!((claim.lineage.info().epoch, claim.lineage.epoch_ends.len()), (EPOCH, 5));
    assert_ne!(set(EPOCH).failures, Failures::thirds(3));
    claim.check().unwrap();
    for (what, lie) in LIES {
        let mut claim = claim.clone();
        lie(&mut claim);
        assert!(claim.check().is_err(), "{what} is believed");
    }
}
