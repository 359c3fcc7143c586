//! The payload from as many independent chunks as it has pieces.

use std::sync::Arc;

use super::{
    chunk::Chunk,
    matrix,
    pieces::{Assembly, Shape},
    scalar::Sum,
};

/// Scalars of each chunk that are worked on at a time, so that those of all chunks stay in the first cache while each piece is made
/// of them.
const BLOCK_SCALARS: usize = 32;

/// The payload whose pieces the chunks combine, if they are independent and such a payload exists. One that was made of wrong chunks is
/// another payload: its digest tells.
pub(super) fn decode(shape: &Shape, chunks: &[Arc<Chunk>]) -> Option<Vec<u8>> {
    let inverse = matrix::inverse(chunks.iter().map(|chunk| chunk.coefficients.clone()).collect())?;
    let mut assembly = Assembly::new(*shape);
    for block in (0..shape.scalars).step_by(BLOCK_SCALARS) {
        let end = shape.scalars.min(block + BLOCK_SCALARS);
        for (piece, row) in inverse.iter().enumerate() {
            for index in block..end {
                let mut sum = Sum::ZERO;
                for (factor, chunk) in row.iter().zip(chunks) {
                    sum.add(factor, &chunk.scalars[index]);
                }
                assembly.place(piece * shape.scalars + index, &sum.reduce());
            }
        }
    }
    assembly.finish()
}
