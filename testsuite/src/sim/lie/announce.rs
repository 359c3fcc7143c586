//! Announcements that are wrong.

use anyhow::Result;
use rand::{Rng, rngs::StdRng};
use slipstream_sync::protocol::{ANSWER_BYTES_MAX, Announcement};
use slipstream_types::{BatchNumber, codec};

use super::{super::chain::Chain, tell::flip};

/// An announcement that is wrong.
pub(in super::super) fn announcement(number: BatchNumber, rng: &mut StdRng) -> Result<Vec<u8>> {
    let canonical = Chain::canonical();
    let Some(made) = canonical.batch(number) else { return Ok(vec![0; 8]) };
    let mut announcement: Announcement = codec::decode("announcement", &made.announcement, ANSWER_BYTES_MAX)?;
    match rng.random_range(0..4) {
        0 => return Ok((0..rng.random_range(0..200)).map(|_| rng.random()).collect()),
        1 => {
            let forged = Chain::forged().batch(number).map(|made| made.announcement.clone());
            return Ok(forged.unwrap_or_default());
        }
        2 => announcement.header.gas_used += 1,
        _ => announcement.body = flip(announcement.body),
    }
    Ok(codec::encode("announcement", &announcement)?)
}
