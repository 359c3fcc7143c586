//! [`AnalysedCode`]: contract code that is ready to run.

use std::fmt;

use alloy_primitives::Bytes;
use revm::bytecode::Bytecode;

/// Contract code with its jump destinations. Finding the destinations takes about as long as reading the code. Cheap to
/// clone.
#[derive(Clone)]
pub struct AnalysedCode(pub(super) Bytecode);

impl AnalysedCode {
    pub(crate) fn new(code: Bytes) -> Self {
        // Code from before EIP-3541 may start like a delegation (EIP-7702) without being one.
        Self(Bytecode::new_raw_checked(code.clone()).unwrap_or_else(|_| Bytecode::new_legacy(code)))
    }

    /// The code as it was deployed.
    pub fn bytes(&self) -> Bytes {
        self.0.original_bytes()
    }

    /// Approximate memory in bytes: the code, and one bit for each of its bytes.
    pub fn memory_bytes(&self) -> usize {
        self.0.len() + self.0.len() / 8
    }
}

/// Compares the code alone, because the analysis follows from the code.
impl PartialEq for AnalysedCode {
    fn eq(&self, other: &Self) -> bool {
        self.0.original_byte_slice() == other.0.original_byte_slice()
    }
}

impl Eq for AnalysedCode {}

impl fmt::Debug for AnalysedCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnalysedCode({} bytes)", self.0.len())
    }
}
