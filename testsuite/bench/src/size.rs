//! Sizes as people write them: `1k` is 1,000, `1m` is 1,000,000.

/// Formats a number as in the names of figures.
pub(super) fn short(number: u64) -> String {
    match number {
        n if n >= 1_000_000 => format!("{}m", n / 1_000_000),
        n if n >= 1_000 => format!("{}k", n / 1_000),
        n => n.to_string(),
    }
}

/// Parses a size on the command line.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.to_ascii_lowercase() {
        text if text.ends_with('m') => (text[..text.len() - 1].to_owned(), 1_000_000),
        text if text.ends_with('k') => (text[..text.len() - 1].to_owned(), 1_000),
        text => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    // Rows are numbered with 32 bits while they are sorted.
    match number {
        Some(number) if (1_000..=u64::from(u32::MAX)).contains(&number) => Ok(number),
        _ => Err("a size is a number from 1k to 4294m, such as 250k or 10m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes can be given as the names of figures write them.
    #[test]
    fn sizes_are_read_as_they_are_printed() {
        for number in [1_000, 250_000, 1_000_000, 100_000_000] {
            assert_eq!(parse(&short(number)), Ok(number));
        }
        assert_eq!(parse("100M"), Ok(100_000_000));
        for text in ["", "m", "1g", "-1k", "5000m", "999"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
