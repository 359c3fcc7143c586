//! [`Chain`]: a genesis and certified batches whose bodies are random bytes.

use std::sync::Arc;

use anyhow::{Context, Result};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use slipstream_broadcast::{Announced, Head, Part, SignedPlan, Source};
use slipstream_coding::{CodecKind, Parameters, encode};
use slipstream_types::{
    Address, BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, Digest, SecretKey,
    accumulator::Accumulator, batch::content_digest, bounded::BoundedVec,
};

/// Bytes of one random transaction.
const NOISE_BYTES: usize = 10_000;
/// The longest body, in bytes, that is tried for a number of chunks.
const SMALL_BYTES_MAX: usize = 8_192;

/// The chain that the leader publishes.
pub(super) struct Chain {
    /// The nodes' heads: at the genesis, and after each batch.
    pub(super) heads: Vec<Head>,
    pub(super) batches: Vec<Certified>,
    pub(super) keys: Vec<SecretKey>,
}

/// One batch with its certificate.
pub(super) struct Certified {
    pub(super) header: BatchHeader,
    pub(super) certificate: Certificate,
    pub(super) body: Blob,
}

/// Returns a body of random bytes whose encoding takes about `bytes` bytes.
pub(super) fn body_of(bytes: usize, seed: u64) -> Blob {
    let mut rng = StdRng::seed_from_u64(seed + bytes as u64);
    let transaction = |bytes: usize| {
        let mut noise = vec![0; bytes];
        rng.fill_bytes(&mut noise);
        noise
    };
    let lengths = (0..bytes).step_by(NOISE_BYTES).map(|at| NOISE_BYTES.min(bytes - at));
    let body = Body::new(lengths.map(transaction).collect()).expect("as long as a body may be");
    let content = body.content().expect("it encodes");
    Blob::compress(BlobKind::Body, &content).expect("within its bounds")
}

/// Returns a small body that has as many chunks as a payload of `payload_bytes` bytes.
///
/// # Errors
/// If no small body has `chunks` chunks.
pub(super) fn small_body(kind: CodecKind, payload_bytes: usize, chunks: usize) -> Result<Blob> {
    let parameters = Parameters::default_for(payload_bytes);
    let fits = |blob: &Blob| {
        let coded = encode(kind, blob.as_bytes().into(), &parameters);
        coded.is_ok_and(|(_, codec)| codec.chunks_needed() == chunks)
    };
    let found = (1..SMALL_BYTES_MAX).map(|bytes| body_of(bytes, 0)).find(fits);
    found.with_context(|| format!("no small body has {chunks} chunks as {kind}"))
}

impl Chain {
    /// Makes a chain of `validators` validators (at most 255), with these bodies.
    ///
    /// # Errors
    /// If a blob is not a body.
    pub(super) fn new(validators: usize, bodies: Vec<Blob>) -> Result<Chain> {
        let keys = slipstream_testkit::keys(1..=validators as u8);
        let set = slipstream_testkit::set(0, &keys, Address::ZERO);
        let mut accumulator = Accumulator::default();
        accumulator.append(Digest([9; 32]));
        let genesis =
            Head { number: BatchNumber::GENESIS, digest: Digest([9; 32]), accumulator, set: Arc::new(set) };
        let mut chain = Chain { heads: vec![genesis], batches: Vec::new(), keys };
        for body in bodies {
            chain.extend(body)?;
        }
        Ok(chain)
    }

    fn extend(&mut self, body: Blob) -> Result<()> {
        let head = self.heads[self.batches.len()].clone();
        let content = body.content(BlobKind::Body)?;
        let header = BatchHeader {
            number: head.number.next(),
            parent: head.digest,
            tx_bytes: content.len() as u32,
            ..Chain::header(content_digest(BlobKind::Body, &content))
        };
        let mut accumulator = head.accumulator;
        let certificate = slipstream_testkit::certify(&accumulator, &header, None, &self.keys);
        accumulator.append(header.digest());
        self.heads.push(Head { number: header.number, digest: header.digest(), accumulator, set: head.set });
        self.batches.push(Certified { header, certificate, body });
        Ok(())
    }

    /// Returns a header of batch 1 with this transactions root.
    pub(super) fn header(transactions_root: Digest) -> BatchHeader {
        BatchHeader { timestamp_ms: 1, transactions_root, ..slipstream_testkit::header(1, Digest([9; 32])) }
    }

    /// Returns the messages with which the leader publishes batch 1, coded as a payload of `payload_bytes` bytes.
    ///
    /// # Errors
    /// If the payload cannot be coded.
    pub(super) fn published(
        &self,
        kind: CodecKind,
        payload_bytes: usize,
    ) -> Result<(Announced, Vec<Source>)> {
        let Certified { header, certificate, body } = &self.batches[0];
        let (plan, codec) = encode(kind, body.as_bytes().into(), &Parameters::default_for(payload_bytes))?;
        let signed = SignedPlan::sign(header, (Part::Body, plan), 0, (0, &self.keys[0]))?;
        let source = Source { id: signed.id(&header.digest())?, part: Part::Body, codec };
        let plans = BoundedVec::new(vec![signed])?;
        let (header, certificate) = (header.clone(), certificate.clone());
        Ok((Announced { header, certificate, plans }, vec![source]))
    }
}
