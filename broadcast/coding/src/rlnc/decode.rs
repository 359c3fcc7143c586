//! Decodes the payload from as many independent chunks as it has pieces.

use std::sync::Arc;

use super::{
    chunk::Chunk,
    matrix,
    pieces::{Assembly, Shape},
    scalar::Matrix,
};

/// Returns the payload whose pieces the chunks combine, if the chunks are independent and such a payload exists. Wrong
/// chunks give another payload, as its digest shows.
pub(super) fn decode(shape: &Shape, chunks: &[Arc<Chunk>]) -> Option<Vec<u8>> {
    let inverse = matrix::inverse(chunks.iter().map(|chunk| chunk.coefficients.clone()).collect())?;
    let mut assembly = Assembly::new(*shape);
    let mut matrix = Matrix::new(&inverse);
    for index in 0..shape.scalars {
        let column = chunks.iter().map(|chunk| chunk.scalars[index]);
        matrix.multiply(column, |piece, scalar| assembly.place(piece * shape.scalars + index, &scalar));
    }
    assembly.finish()
}
