//! The cost of the codecs, operation by operation, beside the reference in the same run.

use std::sync::Arc;

use anyhow::{Result, ensure};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use slipnet::progress::Progress;
use slipnet_simulation::sim::broadcast::operations::{Samples, measure, timed};
use slipstream_coding::{CodecKind, Parameters, warm_up};

use super::{
    super::{Aim, Figure, harness::ratios},
    SIZES,
    reference::{self, Reference},
};

/// The number of pieces in the reference's figures.
const REFERENCE_PIECES: usize = 10;

/// Returns all figures of the codecs, each with `runs` samples.
pub(super) fn figures(runs: usize, progress: Progress) -> Result<Vec<Figure>> {
    let (mut samples, mut rng) = (Samples::default(), StdRng::seed_from_u64(1));
    for (size, bytes) in SIZES {
        warm_up(bytes, &Parameters::default_for(bytes));
        let mut payload = vec![0; bytes];
        rng.fill_bytes(&mut payload);
        let (payload, reference): (Arc<[u8]>, _) =
            (payload.clone().into(), Reference::new(&payload, REFERENCE_PIECES));
        for run in 1..=runs {
            progress.step(&format!("coding {bytes} bytes, run {run} of {runs}"));
            measure_reference(&mut samples, size, &reference, &mut rng)?;
            for &kind in CodecKind::ALL {
                measure(&mut samples, size, kind, &payload, &mut rng)?;
            }
        }
    }
    let mut figures = aimed(&samples)?;
    figures.extend(samples.into_all().map(|(name, samples)| Figure::new(name, "us", samples)));
    Ok(figures)
}

/// Measures the reference, which handles each piece, chunk and scalar separately.
fn measure_reference(
    samples: &mut Samples,
    size: &str,
    reference: &Reference,
    rng: &mut StdRng,
) -> Result<()> {
    let mut add = |operation: &str, us| samples.add(format!("reference.{operation}.{size}"), us);
    let (commitments, us) = timed(|| reference.commit());
    add("commit", us);
    let chunks: Vec<_> = (0..REFERENCE_PIECES).map(|_| reference.chunk(rng)).collect();
    let (is_right, us) = timed(|| reference.verify(&chunks[0], &commitments));
    ensure!(is_right, "the reference refuses its own chunk");
    add("verify_1", us);
    add("recombine", timed(|| reference::recombine(&chunks, rng)).1);
    let (pieces, us) = timed(|| reference::decode(chunks.clone()));
    ensure!(
        pieces.is_some_and(|pieces| reference.is_decoded(&pieces)),
        "the reference decodes something else"
    );
    add("decode", us);
    Ok(())
}

/// Returns the ratios that have aims. A receiver's work on a whole block is everything from opening the plan until the
/// receiver can serve all of the block.
fn aimed(samples: &Samples) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (size, _) in SIZES {
        let names = |codec: &str, operations: &[&str]| -> Vec<String> {
            operations.iter().map(|operation| format!("{codec}.{operation}.{size}")).collect()
        };
        let verify = samples.of(&format!("reference.verify_1.{size}"))?;
        let decode = samples.of(&format!("reference.decode.{size}"))?;
        let whole: Vec<_> = verify
            .iter()
            .zip(decode)
            .map(|(verify, decode)| REFERENCE_PIECES as f64 * verify + decode)
            .collect();
        let rlnc = samples.sum(&names("rlnc", &["open", "accept_all", "first", "decode", "vouch"]))?;
        let shards = samples.sum(&names("reed_solomon", &["open", "accept_all", "decode"]))?;
        let commits = samples.sum(&names("rlnc", &["commit"]))?;
        let theirs = samples.sum(&names("reference", &["commit"]))?;
        let ratio = |name: &str, of: &[f64], to: &[f64], aim: f64| {
            let figure = |name: String| Figure::new(name, "ratio", ratios(of, to));
            // The aims are for the paper's block.
            if size == SIZES[0].0 {
                figure(name.into()).aim(Aim::AtLeast(aim))
            } else {
                figure(format!("{name}.{size}"))
            }
        };
        figures.push(ratio("rlnc_verify_decode_vs_reference", &whole, &rlnc, 7.0));
        figures.push(ratio("rlnc_commit_vs_reference", &theirs, &commits, 2.0));
        figures.push(ratio("rs_verify_decode_vs_reference", &whole, &shards, 40.0));
    }
    Ok(figures)
}
