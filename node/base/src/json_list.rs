//! JSON arrays from outside: only a fixed number of elements is kept, however many there are.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The first elements of an array as raw JSON, and the array's length.
pub struct List<'a> {
    /// The first elements, as they were written.
    pub first: Vec<&'a RawValue>,
    /// The number of all elements.
    pub len: usize,
}

/// Parses an array and keeps at most `max` of its elements: a body of two-byte elements takes no more memory than any
/// other.
///
/// # Errors
/// If the text is not a single JSON array.
pub fn read(text: &str, max: usize) -> serde_json::Result<List<'_>> {
    let mut json = serde_json::Deserializer::from_str(text);
    let list = KeepFirst { max }.deserialize(&mut json)?;
    json.end()?;
    Ok(list)
}

struct KeepFirst {
    max: usize,
}

impl<'de> DeserializeSeed<'de> for KeepFirst {
    type Value = List<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<List<'de>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for KeepFirst {
    type Value = List<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<List<'de>, A::Error> {
        let mut list = List { first: Vec::new(), len: 0 };
        while list.first.len() < self.max {
            let Some(element) = elements.next_element()? else { break };
            list.first.push(element);
        }
        list.len = list.first.len();
        while elements.next_element::<IgnoredAny>()?.is_some() {
            list.len += 1;
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_some_and_counts_all() {
        let read_all = |text, max| {
            read(text, max).map(|list| {
                (list.first.iter().map(|one| one.get().to_owned()).collect::<Vec<_>>().join("|"), list.len)
            })
        };
        assert_eq!(read_all(" [1, {\"a\": [2]} ,\"x\"] ", 2).unwrap(), ("1|{\"a\": [2]}".to_owned(), 3));
        assert_eq!(read_all("[]", 2).unwrap(), (String::new(), 0));
        assert_eq!(read_all("[1,2]", 2).unwrap(), ("1|2".to_owned(), 2));
        assert_eq!(read_all("[1,2]", 0).unwrap(), (String::new(), 2));
        for wrong in ["{}", "[1,2", "[1] 2", "[1,]", "", "7"] {
            assert!(read_all(wrong, 1).is_err(), "{wrong}");
        }
    }
}
