//! [`Filter`]: selects the lines that are written, and can change while the node runs.

use parking_lot::Mutex;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// The longest filter in bytes: one level for each of a hundred modules.
const FILTER_BYTES_MAX: usize = 4_096;
/// Maximum characters of a wrong part that are quoted.
const PART_CHARS_MAX: usize = 80;

/// Why a filter was refused.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The text does not parse.
    #[error(
        "`{part}` is not a log filter ({reason}); write a level such as `info`, or `info,slipstream_sync=debug`"
    )]
    Malformed {
        /// The first wrong part.
        part: String,
        /// The character at which that part begins, counted from 1.
        column: usize,
        /// The parser's reason.
        reason: String,
    },
    /// The text is longer than any sensible filter.
    #[error("the log filter has {bytes} bytes, more than the limit of {FILTER_BYTES_MAX}")]
    TooLong {
        /// The length of the filter's text.
        bytes: usize,
    },
    /// The process has another log than this node's.
    #[error("this node runs inside another program: its log belongs to that program")]
    NotInstalled,
}

impl FilterError {
    /// The column at which the wrong part begins, if one does.
    pub fn column(&self) -> Option<usize> {
        match self {
            FilterError::Malformed { column, .. } => Some(*column),
            FilterError::TooLong { .. } | FilterError::NotInstalled => None,
        }
    }
}

/// Parses a filter, and refuses one that is too long.
pub fn parse(text: &str) -> Result<EnvFilter, FilterError> {
    if text.len() > FILTER_BYTES_MAX {
        return Err(FilterError::TooLong { bytes: text.len() });
    }
    EnvFilter::try_new(text).map_err(|error| {
        let mut column = 1;
        let mut part = text;
        for candidate in text.split(',') {
            if EnvFilter::try_new(candidate).is_err() {
                part = candidate;
                break;
            }
            column += candidate.chars().count() + 1;
        }
        // Each part may be valid on its own.
        let column = if part == text { 1 } else { column };
        let part = part.chars().take(PART_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        FilterError::Malformed { part, column, reason: error.to_string() }
    })
}

/// The filter of the process's log.
pub(super) struct Filter {
    handle: reload::Handle<EnvFilter, Registry>,
    /// The filter as it was written: the subscriber would display its parts in another order.
    text: Mutex<String>,
}

impl Filter {
    /// Returns the layer that filters, and the handle that changes it.
    pub(super) fn new(filter: EnvFilter, text: String) -> (reload::Layer<EnvFilter, Registry>, Filter) {
        let (layer, handle) = reload::Layer::new(filter);
        (layer, Filter { handle, text: Mutex::new(text) })
    }

    pub(super) fn text(&self) -> String {
        self.text.lock().clone()
    }

    pub(super) fn set(&self, text: &str) -> Result<String, FilterError> {
        let filter = parse(text)?;
        // Locked during both changes, so that the text always matches the filter.
        let mut shown = self.text.lock();
        // Fails only if the subscriber is gone, and a process's subscriber never is.
        self.handle.reload(filter).map_err(|_| FilterError::NotInstalled)?;
        Ok(std::mem::replace(&mut *shown, text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn a_wrong_filter_is_refused_with_its_place() {
        for (text, part, column) in [
            ("=x=", "=x=", 1),
            ("info,é=a=,b", "é=a=", 6),
            ("info,slipstream_sync=loud", "slipstream_sync=loud", 6),
        ] {
            match parse(text).unwrap_err() {
                FilterError::Malformed { part: found, column: at, .. } => {
                    assert_eq!((found.as_str(), at), (part, column), "{text}");
                }
                other => panic!("{other}"),
            }
        }
        assert!(matches!(parse(&"a".repeat(FILTER_BYTES_MAX + 1)), Err(FilterError::TooLong { .. })));
        parse("info,slipstream_sync=debug,[span{field=a}]=trace").unwrap();
    }

    /// Goal: a changed filter takes effect at once, and a refused one changes nothing.
    #[test]
    fn the_filter_changes_while_it_is_used() {
        let (layer, filter) = Filter::new(parse("info").unwrap(), "info".into());
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            assert!(!tracing::enabled!(target: "slipstream_sync", tracing::Level::DEBUG));
            assert_eq!(filter.set("info,slipstream_sync=debug").unwrap(), "info");
            assert!(tracing::enabled!(target: "slipstream_sync", tracing::Level::DEBUG));
            assert!(!tracing::enabled!(target: "slipstream_node", tracing::Level::DEBUG));
            assert!(filter.set("=x=").is_err());
            assert_eq!(filter.text(), "info,slipstream_sync=debug");
        });
        assert!(matches!(filter.set("info"), Err(FilterError::NotInstalled)), "the subscriber has gone");
    }
}
