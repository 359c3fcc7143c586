//! Finds the keys that a text sets, and their places, so that a value's origin and an error about it name the line.

use std::{cell::RefCell, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor},
};
use serde_saphyr::{NonFiniteFloatPolicy, Options, Spanned};

use crate::{
    decode::Nested,
    tree::{KNOWN, Tree, joined},
};

/// A key that a text sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    /// The key's full name.
    pub(crate) name: String,
    /// Where its value begins, counted from 1.
    pub(crate) line: u64,
    pub(crate) column: u64,
}

/// The keys that are set by a text that was decoded, where the text stands below the section or key `path`.
pub(crate) fn find(text: &str, path: &[&str]) -> Vec<Key> {
    let found = RefCell::new(Vec::new());
    // `.nan` is one of the values whose place is asked for.
    let options: Options = serde_saphyr::options! {
        with_snippet: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    let search = Search { below: &KNOWN, name: String::new(), found: &found };
    // Keys before an error would count too; this text was already decoded, so there is no error.
    let _ = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| match path {
        [] => search.deserialize(deserializer),
        path => search.deserialize(Nested { path, inner: deserializer }),
    });
    found.into_inner()
}

struct Search<'a> {
    /// The known keys below this place.
    below: &'a Tree,
    /// The full name of this place.
    name: String,
    found: &'a RefCell<Vec<Key>>,
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if let Tree::Section(_) = self.below {
            return deserializer.deserialize_map(self);
        }
        let place = Spanned::<IgnoredAny>::deserialize(deserializer)?.referenced;
        self.found.borrow_mut().push(Key { name: self.name, line: place.line(), column: place.column() });
        Ok(())
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a section")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut section: A) -> Result<(), A::Error> {
        while let Some(name) = section.next_key::<String>()? {
            match self.below.get(&name) {
                Some(below) => {
                    let name = joined(&self.name, &name);
                    section.next_value_seed(Search { below, name, found: self.found })?;
                }
                None => {
                    section.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}
