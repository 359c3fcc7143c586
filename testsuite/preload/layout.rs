//! The layout that the preloaded library shares with the engine of scenarios: a file of 64-bit words, in native byte
//! order.

use std::ffi::CStr;

/// The environment variable that names the file; without it the library does nothing.
pub(crate) const VARIABLE: &CStr = c"SLIPNET_PRELOAD";
/// Words of the file.
pub(crate) const WORDS: usize = 3;
/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = 8;
/// The word with the milliseconds by which the wall clock is ahead; negative if it is behind.
pub(crate) const CLOCK: usize = 0;
/// The word with the microseconds by which each flush to disk takes longer.
pub(crate) const FLUSH: usize = 1;
/// The word that the library sets to 1 once it is loaded into a process.
pub(crate) const LOADED: usize = 2;
