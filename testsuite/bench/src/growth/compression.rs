//! The compression ratio and the cost of each way to pack contents.

use std::hint::black_box;

use anyhow::{Result, ensure};
use slipstream_types::BlobKind;

use super::{
    Figure, fields,
    samples::Samples,
    ways::{Dictionary, Packed, Packer, Way},
};
use slipnet::cpu;

/// Contents packed in one way, with their measurements.
struct Measured<'a> {
    packer: Packer<'a>,
    packed: Vec<Packed>,
    /// CPU seconds of packing and unpacking, run by run.
    seconds: [Vec<f64>; 2],
}

/// Returns the figures of one kind of blob of one traffic; `None` if the batches lack it.
pub(super) fn measure(samples: &Samples, runs: usize) -> Result<Vec<Figure>> {
    if samples.test.is_empty() {
        return Ok(Vec::new());
    }
    let dictionary = Dictionary::train(&samples.train)?;
    let mut all: Vec<Measured<'_>> = Vec::new();
    for way in Way::of(samples.kind) {
        all.push(Measured::new(Packer::new(way, samples.kind, &dictionary)?, samples)?);
    }
    for _ in 0..runs {
        all.iter_mut().try_for_each(|measured| measured.run(samples))?;
    }
    let content = samples.test.iter().map(Vec::len).sum::<usize>() as f64;
    let per_transaction = content / samples.transactions as f64;
    let name = &samples.name;
    let mut figures =
        vec![Figure::new(format!("content_bytes_per_transaction.{name}"), "B", vec![per_transaction])];
    figures.extend(signatures(samples, content)?);
    for Measured { packer, packed, seconds } in all {
        let (name, batches) = (format!("{name}.{}", packer.way().name()), packer.way().batches());
        let stored = packed.iter().map(|packed| packed.bytes(batches)).sum::<usize>() as f64;
        let [into, out] = seconds.map(|runs| runs.iter().map(|seconds| seconds * 1e9 / content).collect());
        figures.extend([
            Figure::new(format!("ratio.{name}"), "ratio", vec![content / stored]),
            Figure::new(format!("in_ns_per_byte.{name}"), "ns", into),
            Figure::new(format!("out_ns_per_byte.{name}"), "ns", out),
        ]);
    }
    Ok(figures)
}

/// Returns, for bodies, the incompressible bytes, and the ratio that they limit.
fn signatures(samples: &Samples, content: f64) -> Result<Vec<Figure>> {
    if samples.kind != BlobKind::Body {
        return Ok(Vec::new());
    }
    let mut bytes = 0;
    for body in &samples.test {
        bytes += fields::cut_signatures(body)?.signatures.len();
    }
    let per_transaction = bytes as f64 / samples.transactions as f64;
    let name = &samples.name;
    Ok(vec![
        Figure::new(format!("signature_bytes_per_transaction.{name}"), "B", vec![per_transaction]),
        Figure::new(format!("signature_bound.{name}"), "ratio", vec![content / bytes as f64]),
    ])
}

impl<'a> Measured<'a> {
    /// Packs all contents once, and checks that unpacking restores them.
    fn new(mut packer: Packer<'a>, samples: &Samples) -> Result<Measured<'a>> {
        let mut all = Vec::new();
        for contents in samples.test.chunks(packer.way().batches()) {
            let content = contents.concat();
            let packed = packer.pack(&content)?;
            let is_whole = packer.unpack(&packed)? == content;
            ensure!(is_whole, "{} of {}: the unpacked content differs", packer.way().name(), samples.name);
            all.push(packed);
        }
        Ok(Measured { packer, packed: all, seconds: Default::default() })
    }

    /// Packs and unpacks all contents on this thread.
    fn run(&mut self, samples: &Samples) -> Result<()> {
        let Measured { packer, packed, seconds } = self;
        let start = cpu::of_this_thread();
        for contents in samples.test.chunks(packer.way().batches()) {
            match contents {
                [content] => black_box(packer.pack(content)?),
                // A store of groups must concatenate them.
                contents => black_box(packer.pack(&contents.concat())?),
            };
        }
        let middle = cpu::of_this_thread();
        for packed in packed.iter() {
            black_box(packer.unpack(packed)?);
        }
        let end = cpu::of_this_thread();
        let [into, out] = seconds;
        into.push(middle - start);
        out.push(end - middle);
        Ok(())
    }
}
