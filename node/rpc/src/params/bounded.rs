//! [`AtMost`]: a list that keeps only as many elements as its limit allows.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};

/// The first elements of a list, up to the limit, and the list's length. A short text can be a list of very many
/// elements, each of which takes far more memory than its text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AtMost<T, const MAX: usize> {
    pub(crate) first: Vec<T>,
    /// The length of the whole list.
    pub(crate) len: usize,
}

impl<T, const MAX: usize> Default for AtMost<T, MAX> {
    fn default() -> Self {
        Self { first: Vec::new(), len: 0 }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for AtMost<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
            type Value = AtMost<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut first = Vec::new();
                while first.len() < MAX {
                    let Some(element) = list.next_element()? else {
                        return Ok(AtMost { len: first.len(), first });
                    };
                    first.push(element);
                }
                let mut len = MAX;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    len += 1;
                }
                Ok(AtMost { first, len })
            }
        }

        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_counted_and_not_kept() {
        let read = |text| serde_json::from_str::<AtMost<u8, 2>>(text).unwrap();
        assert_eq!(read("[]"), AtMost { first: vec![], len: 0 });
        assert_eq!(read("[1, 2]"), AtMost { first: vec![1, 2], len: 2 });
        assert_eq!(read("[1, 2, {}, 4]"), AtMost { first: vec![1, 2], len: 4 });
        assert!(serde_json::from_str::<AtMost<u8, 2>>("[1, {}]").is_err());
        assert!(serde_json::from_str::<AtMost<u8, 2>>("{}").is_err());
    }
}
