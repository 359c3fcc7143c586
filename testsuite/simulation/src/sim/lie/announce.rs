//! False announcements, and useless ones.

use anyhow::Result;
use rand::{Rng, rngs::StdRng};
use slipstream_sync::protocol::{ANSWER_BYTES_MAX, Announcement};
use slipstream_types::{BatchNumber, Epoch, codec};

use super::{super::chain::Chain, expired, tell::flip};

/// Makes a false announcement for nodes that all know the validators of `known`. The returned flag says whether the
/// announcement uses expired keys.
pub(in super::super) fn announcement(
    number: BatchNumber,
    known: Epoch,
    rng: &mut StdRng,
) -> Result<(Vec<u8>, bool)> {
    let Some(mut announcement) = announced(number)? else { return Ok((vec![0; 8], false)) };
    let mut is_expired = false;
    match rng.random_range(0..5) {
        0 => return Ok(((0..rng.random_range(0..200)).map(|_| rng.random()).collect(), false)),
        1 => {
            let forged = Chain::forged().batch(number).map(|made| made.announcement.clone());
            return Ok((forged.unwrap_or_default(), false));
        }
        2 if expired::announce(&mut announcement, known)? => is_expired = true,
        2 | 3 => announcement.header.gas_used += 1,
        _ => announcement.body = flip(announcement.body.clone()),
    }
    Ok((codec::encode("announcement", &announcement)?, is_expired))
}

/// Makes one message of a flood: an old batch, a batch of an unknown epoch, or a recent batch with another header or
/// body under its own certificate.
pub(in super::super) fn junk(certified: BatchNumber, rng: &mut StdRng) -> Result<Vec<u8>> {
    let old = BatchNumber::new(rng.random_range(1..=certified.get()));
    let late = certified.before(rng.random_range(0..8)).max(BatchNumber::new(1));
    let drawn = rng.random_range(0..4);
    let Some(mut announcement) = announced(if drawn == 0 { old } else { late })? else {
        return Ok(Vec::new());
    };
    match drawn {
        0 => {}
        1 => announcement.header.gas_used += rng.random_range(1..1_000),
        2 => announcement.body = flip(announcement.body.clone()),
        _ => {
            let Announcement { header, certificate, .. } = &mut announcement;
            header.number = header.number.after(1_000);
            certificate.info.number = certificate.info.number.after(1_000);
            certificate.info.epoch.0 += rng.random_range(1..100);
        }
    }
    Ok(codec::encode("announcement", &announcement)?)
}

fn announced(number: BatchNumber) -> Result<Option<Announcement>> {
    let Some(made) = Chain::canonical().batch(number) else { return Ok(None) };
    Ok(Some(codec::decode("announcement", &made.announcement, ANSWER_BYTES_MAX)?))
}
