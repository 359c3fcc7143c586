//! [`Samples`]: the cost of each operation of a codec, measured one after another on one thread.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result, ensure};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use slipstream_coding::{Check, Codec, CodecKind, Parameters, Plan, Verifier, Work, encode, open, warm_up};
use slipstream_types::PublicKey;

/// The numbers of RLNC chunks that are verified together.
const BATCHES: [usize; 4] = [1, 5, 10, 40];
/// The number of sending peers.
const SENDERS: u8 = 200;

/// Microseconds of each operation, one sample per run.
#[derive(Default)]
pub struct Samples(Vec<(String, Vec<f64>)>);

impl Samples {
    /// Returns all operations with their samples, in the order in which they were first measured.
    pub fn into_all(self) -> impl Iterator<Item = (String, Vec<f64>)> {
        self.0.into_iter()
    }

    /// Adds a sample of an operation.
    pub fn add(&mut self, name: String, us: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, samples)) => samples.push(us),
            None => self.0.push((name, vec![us])),
        }
    }

    /// Returns the samples of one operation, in the order of the runs.
    ///
    /// # Errors
    /// If the operation was not measured.
    pub fn of(&self, name: &str) -> Result<&[f64]> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, samples)| samples.as_slice()).with_context(|| format!("{name} was not measured"))
    }

    /// Returns the sums of several operations, run by run.
    ///
    /// # Errors
    /// If one of them was not measured.
    pub fn sum(&self, names: &[String]) -> Result<Vec<f64>> {
        let mut sums = self.of(&names[0])?.to_vec();
        for name in &names[1..] {
            sums.iter_mut().zip(self.of(name)?).for_each(|(sum, sample)| *sum += sample);
        }
        Ok(sums)
    }
}

/// The costs of one codec's operations on one payload.
pub(super) struct Operations {
    kind: CodecKind,
    samples: Samples,
}

impl Operations {
    /// Measures each operation `runs` times, on a payload of random bytes.
    ///
    /// # Errors
    /// If a codec fails.
    pub(super) fn measure(kind: CodecKind, payload_bytes: usize, runs: usize) -> Result<Operations> {
        let (mut samples, mut rng) = (Samples::default(), StdRng::seed_from_u64(1));
        warm_up(payload_bytes, &Parameters::default_for(payload_bytes));
        let mut payload = vec![0; payload_bytes];
        rng.fill_bytes(&mut payload);
        let payload: Arc<[u8]> = payload.into();
        for _ in 0..runs {
            measure(&mut samples, "", kind, &payload, &mut rng)?;
        }
        Ok(Operations { kind, samples })
    }

    /// Returns the median of an operation, in microseconds.
    ///
    /// # Errors
    /// If the codec has no such operation.
    pub(super) fn median_us(&self, name: &str) -> Result<f64> {
        let mut samples = self.samples.of(&format!("{}.{name}.", self.kind))?.to_vec();
        samples.sort_by(f64::total_cmp);
        Ok(samples[samples.len() / 2])
    }
}

/// Returns an operation's result, and its microseconds.
pub fn timed<T>(operation: impl FnOnce() -> T) -> (T, f64) {
    let begin = Instant::now();
    let result = operation();
    (result, begin.elapsed().as_secs_f64() * 1e6)
}

fn peer(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

/// Measures a codec once: at the source, at a receiver, and at a relay. Sample names are `CODEC.OPERATION.SIZE`.
///
/// # Errors
/// If the codec fails.
pub fn measure(
    samples: &mut Samples,
    size: &str,
    kind: CodecKind,
    payload: &Arc<[u8]>,
    rng: &mut StdRng,
) -> Result<()> {
    let mut add = |operation: &str, us| samples.add(format!("{kind}.{operation}.{size}"), us);
    let ((plan, mut source), us) =
        timed(|| encode(kind, payload.clone(), &Parameters::default_for(payload.len()))).swap()?;
    add("commit", us);
    let chunks = chunks(&mut *source, rng)?;
    let (_, us) = timed(|| source.next_chunk(&peer(SENDERS + 1), rng));
    add("source_chunk", us);
    if kind == CodecKind::Rlnc {
        let verifier = Verifier::new(&plan)?;
        for count in BATCHES {
            let batch: Vec<_> = chunks.iter().cycle().take(count).cloned().collect();
            let (forged, us) = timed(|| verifier.forged(&batch, rng));
            ensure!(!forged?.contains(&true), "an honest chunk is refused");
            add(&format!("verify_{count}"), us / count as f64);
        }
        let (mut relay, needed) = (open(&plan)?, source.chunks_needed());
        receive(&mut *relay, &chunks[..needed - 1], rng, &mut |_, _| ())?;
        let (chunk, us) = timed(|| relay.next_chunk(&peer(SENDERS + 1), rng));
        ensure!(chunk.is_some(), "a relay has nothing to pass on");
        add("recombine", us);
    }
    let receiver = receive_all(&plan, &chunks, rng, &mut add)?;
    ensure!(receiver.payload().as_ref() == Some(payload), "{kind} gives another payload");
    Ok(())
}

/// [`Result::transpose`] for a timed result.
trait Swap<T> {
    fn swap(self) -> Result<(T, f64)>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> Swap<T> for (Result<T, E>, f64) {
    fn swap(self) -> Result<(T, f64)> {
        Ok((self.0?, self.1))
    }
}

/// Returns enough chunks for any receiver. Of Reed-Solomon shards, the last come first: most of the decoded bytes must
/// then be reconstructed.
fn chunks(source: &mut dyn Codec, rng: &mut StdRng) -> Result<Vec<Vec<u8>>> {
    let chunk = |number| source.next_chunk(&peer(number), rng).context("the source has no chunk");
    let mut chunks = (0..SENDERS).map(chunk).collect::<Result<Vec<_>>>()?;
    if matches!(source.plan().commitment.kind(), CodecKind::ReedSolomon) {
        chunks.sort_by_key(|chunk| std::cmp::Reverse([chunk[1], chunk[0]]));
        chunks.dedup();
    }
    Ok(chunks)
}

/// Feeds chunks and runs the pending checks after the first chunk and after the last, like a node with a free worker.
fn receive(
    codec: &mut dyn Codec,
    chunks: &[Vec<u8>],
    rng: &mut StdRng,
    done: &mut dyn FnMut(Work, f64),
) -> Result<f64> {
    let mut accept_us = 0.0;
    for (number, chunk) in chunks.iter().enumerate() {
        let (accepted, us) = timed(|| codec.accept(peer(number as u8), chunk));
        ensure!(!matches!(accepted, slipstream_coding::Accepted::Malformed(_)), "{accepted:?}");
        accept_us += us;
        if number == 0 || number + 1 == chunks.len() {
            while let Some(check) = codec.check(rng) {
                let work = check.work();
                let (checked, us) = timed(|| Check::run(check));
                codec.checked(checked);
                done(work, us);
            }
        }
    }
    Ok(accept_us)
}

/// Feeds a receiver exactly what it needs.
fn receive_all(
    plan: &Plan,
    chunks: &[Vec<u8>],
    rng: &mut StdRng,
    add: &mut dyn FnMut(&str, f64),
) -> Result<Box<dyn Codec>> {
    let (codec, open_us) = timed(|| open(plan));
    let mut codec = codec?;
    add("open", open_us);
    let chunks = &chunks[..codec.chunks_needed()];
    let accept_us = receive(&mut *codec, chunks, rng, &mut |work, us| match work {
        Work::Verify { .. } => add("first", us),
        Work::Decode { .. } | Work::Compare => add("decode", us),
        Work::Vouch => add("vouch", us),
    })?;
    add("accept_all", accept_us);
    Ok(codec)
}
