//! The layout that the library below a node shares with the engine of scenarios: a file of words of 64 bits, in this machine's
//! order of bytes.

use std::ffi::CStr;

/// The variable of the environment that names the file; without it the library is idle.
pub(crate) const VARIABLE: &CStr = c"SLIPNET_PRELOAD";
/// Words of the file.
pub(crate) const WORDS: usize = 3;
/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = 8;
/// The word that says by how many milliseconds the wall clock is ahead, negative if it is behind.
pub(crate) const CLOCK: usize = 0;
/// The word that says how many microseconds longer each flush to the disk takes.
pub(crate) const FLUSH: usize = 1;
/// The word that the library sets to 1 once it is in a process.
pub(crate) const LOADED: usize = 2;
