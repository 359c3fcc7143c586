//! Predictors: no bytecode makes analysis or a run panic or pass its limits, and analysis gives one program for one code.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_executor::predict::{CODE_BYTES_MAX, JumpEdge, build};

/// A program is some times its code at most: copies of small blocks, and a table entry for each block.
const GROWTH_MAX: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let Some((count, rest)) = bytes.split_first() else { return };
    let edges = rest.chunks_exact(4).take(usize::from(*count % 16));
    let edges: Vec<JumpEdge> = edges
        .map(|edge| JumpEdge {
            from: u16::from_le_bytes([edge[0], edge[1]]).into(),
            to: u16::from_le_bytes([edge[2], edge[3]]).into(),
        })
        .collect();
    let code = &rest[edges.len() * 4..];
    let program = build(code, &edges);
    assert!(program.size_bytes() <= 1_024 + GROWTH_MAX * code.len().min(CODE_BYTES_MAX));
    assert_eq!(build(code, &edges), program, "two programs of one code");
});
