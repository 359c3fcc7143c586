//! The node's own secret, which decides its draws: which requests explore, which of equal peers goes first, which
//! batches are audited. A peer that knew them could choose its key or its lies accordingly.

use slipstream_storage::Store;
use slipstream_types::Digest;

use crate::SyncError;

/// The key of the record in the store.
const KEY: &str = "sync/secret";
const BYTES: usize = 32;

/// Returns the seed of the draws. The seed comes from 32 random bytes, made at their first use and kept in the store.
///
/// # Errors
/// If the store fails, or the operating system lacks randomness.
pub(crate) fn seed(store: &Store) -> Result<u64, SyncError> {
    let secret = match store.record(KEY)?.and_then(|kept| <[u8; BYTES]>::try_from(kept).ok()) {
        Some(secret) => secret,
        None => {
            let mut secret = [0; BYTES];
            getrandom::fill(&mut secret).map_err(|error| SyncError::NoRandomness(error.to_string()))?;
            store.put_record(KEY, &secret)?;
            secret
        }
    };
    let seed = Digest::tagged("slipstream/draws/1", &secret).0;
    Ok(seed.as_chunks::<8>().0.iter().fold(0, |seed, chunk| seed ^ u64::from_le_bytes(*chunk)))
}

#[cfg(test)]
mod tests {
    use slipstream_storage::StorageConfig;

    use super::*;

    #[test]
    fn a_node_draws_alike_after_a_restart_and_no_other_draws_so() {
        let [one, other] = [(); 2].map(|()| Store::memory(&StorageConfig::default()));
        let first = seed(&one).unwrap();
        assert_eq!(seed(&one).unwrap(), first);
        assert_ne!(seed(&other).unwrap(), first);
        one.put_record(KEY, b"damaged").unwrap();
        assert_ne!(seed(&one).unwrap(), first);
    }
}
