//! [`Costs`]: a node's CPU time for a payload of the real size, measured with the real codecs before the simulation
//! starts.

use anyhow::Result;
use slipstream_broadcast::{Done, Job, Part};
use slipstream_coding::{CodecKind, Parameters, Work, encode};
use slipstream_types::{Blob, BlobKind, batch::content_digest};

use super::{
    chain::{Chain, body_of},
    operations::{Operations, timed},
};

/// The time to handle a message apart from its chunk: decoding, lookups, queueing.
const MESSAGE_US: f64 = 5.0;
/// Runs of each measurement; the median counts.
const RUNS: usize = 5;

/// CPU times in microseconds on one thread, and the size of a chunk.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Coding at the source.
    pub encode_us: f64,
    /// Accepting a chunk, without the arithmetic.
    pub accept_us: f64,
    /// Making a chunk for a peer.
    pub next_us: f64,
    /// Verifying one chunk, and each further chunk of the same run.
    pub verify_us: (f64, f64),
    /// Decoding the payload.
    pub decode_us: f64,
    /// Comparing the whole payload with its commitment.
    pub vouch_us: f64,
    /// Comparing the body with its header.
    pub open_us: f64,
    /// The bytes of a chunk on the wire.
    pub chunk_bytes: usize,
    /// The chunks that suffice to decode.
    pub chunks_needed: usize,
}

impl Costs {
    /// Measures one codec at one size.
    ///
    /// # Errors
    /// If a codec fails.
    pub fn measure(kind: CodecKind, payload_bytes: usize) -> Result<Costs> {
        let operations = Operations::measure(kind, payload_bytes, RUNS)?;
        let us = |name: &str| operations.median_us(name);
        let blob = body_of(payload_bytes, 0);
        let (_, codec) = encode(kind, blob.as_bytes().into(), &Parameters::default_for(payload_bytes))?;
        let needed = codec.chunks_needed();
        let verify_us = match kind {
            CodecKind::Rlnc => {
                let (one, ten) = (us("verify_1")?, 10.0 * us("verify_10")?);
                (one, (ten - one).max(0.0) / 9.0)
            }
            CodecKind::Gossip | CodecKind::ReedSolomon => (0.0, 0.0),
        };
        let next = if kind == CodecKind::Rlnc { "recombine" } else { "source_chunk" };
        Ok(Costs {
            encode_us: us("commit")?,
            accept_us: us("accept_all")? / needed as f64,
            next_us: us(next)?,
            verify_us,
            decode_us: us("decode")?,
            vouch_us: us("vouch").unwrap_or(0.0),
            open_us: open_us(&blob)?,
            chunk_bytes: codec.chunk_bytes(),
            chunks_needed: needed,
        })
    }

    /// Returns the time to handle a message that may hold a chunk, and to make the chunks that it forwards.
    pub(super) fn message_us(&self, is_chunk: bool, chunks_sent: usize) -> f64 {
        let accept = if is_chunk { self.accept_us } else { 0.0 };
        MESSAGE_US + accept + chunks_sent as f64 * self.next_us
    }

    /// Returns the time of a job, in microseconds.
    pub(super) fn job_us(&self, job: &Job) -> f64 {
        match job {
            Job::Open { .. } => self.open_us,
            Job::Check(check) => match check.work() {
                Work::Verify { chunks } => {
                    self.verify_us.0 + chunks.saturating_sub(1) as f64 * self.verify_us.1
                }
                Work::Decode { .. } | Work::Compare => self.decode_us,
                Work::Vouch => self.vouch_us,
            },
        }
    }
}

/// Measures the comparison of a body with its header.
fn open_us(blob: &Blob) -> Result<f64> {
    let root = content_digest(BlobKind::Body, &blob.content(BlobKind::Body)?);
    let header = Chain::header(root);
    let mut samples = Vec::new();
    for _ in 0..RUNS {
        let job =
            Job::Open { part: Part::Body, header: header.clone().into(), payload: blob.as_bytes().into() };
        let (done, us) = timed(|| job.run());
        anyhow::ensure!(matches!(done, Done::Opened(Ok(_))), "a body is not its header's");
        samples.push(us);
    }
    samples.sort_by(f64::total_cmp);
    Ok(samples[RUNS / 2])
}
