//! [`Certified`]: certificates whose signatures were checked already.
//!
//! At the head every peer shows the same certificate, in summaries and in announcements, again and again. Its signatures are checked once.

use std::collections::VecDeque;

use slipstream_types::{Certificate, Digest, Epoch};

use crate::{Trust, TrustError};

/// Certificates that are remembered: those of the last batches, from all peers. Beyond it the oldest is forgotten and checked again.
const CERTIFICATES_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Certified {
    /// Digests of whole certificates, signatures included, oldest first.
    seen: VecDeque<Digest>,
    /// The last epoch that was known when they were checked. A later one may show that a batch is not in the epoch of its signers.
    known: Epoch,
}

impl Certified {
    /// As [`Trust::verify`], but the same certificate costs its signatures once.
    pub(super) fn verify(&mut self, certificate: &Certificate, trust: &Trust) -> Result<(), TrustError> {
        if self.known != trust.epoch() {
            (self.known, self.seen) = (trust.epoch(), VecDeque::new());
        }
        let bytes = bcs_of(certificate);
        let digest = bytes.map(|bytes| Digest::tagged("slipstream/certified/1", &bytes));
        if digest.is_some_and(|digest| self.seen.contains(&digest)) {
            return Ok(());
        }
        trust.verify(certificate)?;
        if let Some(digest) = digest {
            if self.seen.len() == CERTIFICATES_MAX {
                self.seen.pop_front();
            }
            self.seen.push_back(digest);
        }
        Ok(())
    }
}

/// Returns `None` for a certificate that cannot be encoded; it did not come from a peer.
fn bcs_of(certificate: &Certificate) -> Option<Vec<u8>> {
    slipstream_types::codec::encode("certificate", certificate).ok()
}

#[cfg(test)]
mod tests {
    use slipstream_types::{BatchNumber, Signature, bounded::BoundedVec};

    use super::*;
    use crate::engine::rig::{HEAD, chain};

    fn certificate(number: u64) -> Certificate {
        chain().store.certificate(BatchNumber::new(number)).unwrap().unwrap()
    }

    /// Goal: a certificate is checked once, any other one is checked, and a later epoch makes all of them unchecked.
    #[test]
    fn signatures_are_checked_once() {
        let trust = Trust::of(&chain().store).unwrap();
        let mut certified = Certified::default();
        for _ in 0..3 {
            certified.verify(&certificate(HEAD), &trust).unwrap();
        }
        assert_eq!(certified.seen.len(), 1, "it is known");
        let mut forged = certificate(HEAD);
        forged.signatures = BoundedVec::new((0..3).map(|i| (i, Signature([i as u8; 64]))).collect()).unwrap();
        certified.verify(&forged, &trust).unwrap_err();
        assert_eq!(certified.seen.len(), 1, "what is wrong is not remembered");
        (1..=HEAD).for_each(|number| certified.verify(&certificate(number), &trust).unwrap());
        assert_eq!(certified.seen.len(), HEAD as usize);
        certified.known = Epoch(7);
        certified.verify(&certificate(1), &trust).unwrap();
        assert_eq!(certified.seen.len(), 1);
    }
}
