//! [`LoggedRefusals`]: keeps a log from repeating the same text ten times a second.

use slipstream_types::BatchNumber;

/// Texts remembered for one batch; further ones are not logged.
const TEXTS_MAX: usize = 16;

/// Texts logged about the current batch.
#[derive(Default)]
pub(super) struct LoggedRefusals {
    number: Option<BatchNumber>,
    texts: Vec<String>,
}

impl LoggedRefusals {
    /// Whether to log the text: once per batch. Another batch begins anew.
    pub(super) fn is_new(&mut self, number: Option<BatchNumber>, text: &str) -> bool {
        if self.number != number {
            *self = LoggedRefusals { number, texts: Vec::new() };
        }
        if self.texts.len() >= TEXTS_MAX || self.texts.iter().any(|said| said == text) {
            return false;
        }
        self.texts.push(text.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each text is logged once per batch, whatever comes in between, and their number is bounded.
    #[test]
    fn each_text_once_per_batch() {
        let mut said = LoggedRefusals::default();
        let (one, two) = (Some(BatchNumber::new(1)), Some(BatchNumber::new(2)));
        let heard = [(one, "a"), (one, "b"), (one, "a"), (two, "a"), (two, "a")]
            .map(|(n, text)| said.is_new(n, text));
        assert_eq!(heard, [true, true, false, true, false]);
        let many = (0..100).filter(|n| said.is_new(two, &n.to_string())).count();
        assert_eq!(many, TEXTS_MAX - 1);
    }
}
