//! [`Draws`]: random choices from a secret, so that outsiders cannot predict them and a test can repeat them.

use slipstream_types::Digest;

/// A stream of pseudo-random numbers from a secret.
#[derive(Debug)]
pub(crate) struct Draws {
    secret: [u8; 32],
    drawn: u64,
}

impl Draws {
    pub(crate) fn new(secret: [u8; 32]) -> Draws {
        Draws { secret, drawn: 0 }
    }

    /// A number below `end`, which must not be 0. The bias of the remainder is `end` in 2^64.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.drawn += 1;
        let drawn = keyed(&self.secret, "slipstream/peer-draw/1", &[&self.drawn.to_le_bytes()]);
        (drawn % end as u64) as usize
    }
}

/// A number that can be computed only with the secret. Each part is preceded by its length.
pub(crate) fn keyed(secret: &[u8; 32], tag: &str, parts: &[&[u8]]) -> u64 {
    let mut bytes = secret.to_vec();
    for part in parts {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(*part);
    }
    let digest = Digest::tagged(tag, &bytes).0;
    digest.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_repeat_with_the_secret_and_reach_every_value() {
        let draw = |secret| {
            let mut draws = Draws::new([secret; 32]);
            (0..200).map(|_| draws.below(7)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!((0..7).all(|value| draw(1).contains(&value)));
        assert_ne!(keyed(&[0; 32], "a", &[b"x", b"yz"]), keyed(&[0; 32], "a", &[b"xy", b"z"]));
    }
}
