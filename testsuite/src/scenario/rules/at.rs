//! [`At`]: a position in a scenario, which makes a [`Problem`] with the value there.

use std::ops::RangeInclusive;

use crate::scenario::{parse::Problem, span::Span};

/// The most entries of each list.
const LIST_MAX: usize = 256;
pub(super) const NAME_BYTES_MAX: usize = 48;

pub(super) type Checked = Result<(), Problem>;

/// The key path of a problem, outermost part first.
#[derive(Clone)]
pub(super) struct At(Vec<String>);

impl At {
    pub(super) fn key(key: &str) -> At {
        At(vec![key.to_owned()])
    }

    pub(super) fn item(&self, index: usize) -> At {
        self.then(&index.to_string())
    }

    pub(super) fn then(&self, key: &str) -> At {
        let mut path = self.0.clone();
        path.push(key.to_owned());
        At(path)
    }

    pub(super) fn wrong(&self, text: impl Into<String>) -> Problem {
        Problem { key: self.0.clone(), text: text.into() }
    }

    pub(super) fn within(&self, value: u64, range: RangeInclusive<u64>) -> Checked {
        if range.contains(&value) {
            return Ok(());
        }
        let (least, most) = (range.start(), range.end());
        Err(self.wrong(format!("must be from {least} to {most}, not {value}")))
    }

    pub(super) fn list(&self, length: usize) -> Checked {
        if length > LIST_MAX {
            return Err(self.wrong(format!("has {length} entries; at most {LIST_MAX} are allowed")));
        }
        Ok(())
    }

    pub(super) fn name(&self, name: &str) -> Checked {
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        if name.len() > NAME_BYTES_MAX || !name.split('-').all(is_word) {
            return Err(self.wrong(format!(
                "must be lower-case words and digits joined by `-`, at most {NAME_BYTES_MAX} bytes, such as `cold-joins`"
            )));
        }
        Ok(())
    }

    pub(super) fn span(&self, span: Span, least_ms: u64, most: Span) -> Checked {
        if (least_ms..=most.ms()).contains(&span.ms()) {
            return Ok(());
        }
        let least = Span::from_ms(least_ms);
        Err(self.wrong(format!("must be from {least} to {most}, not {span}")))
    }
}
