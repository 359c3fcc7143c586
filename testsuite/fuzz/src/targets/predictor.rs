//! Predictors: no bytecode makes the analysis or a run panic or exceed its limits, and equal code gives equal programs.

use slipstream_predict::{CODE_BYTES_MAX, JumpEdge, build};

/// The largest program, as a multiple of its code: it has copies of small blocks, and a table entry for each block.
const GROWTH_MAX: usize = 64;

pub(crate) fn run(bytes: &[u8]) {
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
}

/// Returns a contract with a jump table, a loop over call data, and stores.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let code = [0x60, 0, 0x35, 0x60, 0xe0, 0x1c, 0x80, 0x63, 1, 2, 3, 4, 0x14, 0x60, 0x14, 0x57, 0x5f, 0x5f, 0xfd, 0x5b];
    let tail = [0x5b, 0x60, 4, 0x35, 0x54, 0x60, 1, 0x01, 0x60, 4, 0x35, 0x55, 0x00];
    vec![[&[0][..], &code, &tail].concat(), [&[1, 15, 0, 20, 0][..], &code, &tail].concat()]
}
