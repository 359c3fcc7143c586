//! Time as an input, so that a test or a simulation controls it.

/// Wall-clock time in milliseconds since 1970. `node` has the real one.
pub trait Clock: Send + Sync + 'static {
    /// The current time, in milliseconds since 1970.
    fn now_ms(&self) -> u64;
}
