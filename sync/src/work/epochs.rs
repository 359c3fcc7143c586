//! Checks a peer's answer about the ends of epochs.

use std::sync::Arc;

use slipstream_types::{Certificate, Epoch, codec};

use crate::{
    error::{Fault, Violation},
    protocol::{ANSWER_BYTES_MAX, EpochEnds},
    trust::Trust,
};

/// The true part of an answer about the ends of epochs.
#[derive(Debug)]
pub struct ProvedEnds {
    /// All that was known, plus what the answer adds.
    pub(crate) trust: Trust,
    /// The ends that it adds, in order.
    pub(crate) ends: Vec<Certificate>,
    /// The epoch behind its last true end, whether that end was known or not.
    pub(crate) next: Epoch,
    /// The fault behind these ends; what followed it was not checked.
    pub(crate) fault: Option<Fault>,
}

/// Checks the answer: first its order, which costs nothing, then end by end.
pub(super) fn check(answer: &[u8], first: Epoch, trust: &Arc<Trust>) -> ProvedEnds {
    let mut proved = ProvedEnds { trust: (**trust).clone(), ends: Vec::new(), next: first, fault: None };
    proved.fault = proved.take(answer, first).err();
    proved
}

impl ProvedEnds {
    /// Whether all of the answer is true.
    pub fn is_good(&self) -> bool {
        self.fault.is_none()
    }

    fn take(&mut self, answer: &[u8], first: Epoch) -> Result<(), Fault> {
        let ends: EpochEnds = codec::decode("epoch ends", answer, ANSWER_BYTES_MAX)?;
        let ends = ends.certificates.into_inner();
        let due = (0..).map(|passed| first.0.saturating_add(passed));
        if ends.iter().zip(due).any(|(end, due)| end.info.epoch.0 != due) {
            let rule = "it must have one end of each epoch, in order from the requested epoch on";
            return Err(Violation::Unrelated(rule).into());
        }
        for end in ends {
            let is_news = self.trust.learn_end(&end)?;
            self.next = Epoch(end.info.epoch.0.saturating_add(1));
            if is_news {
                self.ends.push(end);
            }
        }
        Ok(())
    }
}
