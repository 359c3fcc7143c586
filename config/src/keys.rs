//! Finds the keys that a text sets, and their lines, for a value's origin and for errors about it.

use std::{cell::RefCell, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor},
};
use serde_saphyr::{NonFiniteFloatPolicy, Options, Spanned};

use crate::{
    decode::NestedValue,
    tree::{KNOWN, Tree, joined},
};

/// A key that a text sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    /// The key's full name.
    pub(crate) name: String,
    /// The line at which its value begins, counted from 1.
    pub(crate) line: u64,
    pub(crate) column: u64,
}

/// Returns the keys that an already decoded text sets, where the text is the content of the section or key `path`.
pub(crate) fn find(text: &str, path: &[&str]) -> Vec<Key> {
    let found = RefCell::new(Vec::new());
    // Without this policy the parser refuses a value `.nan`, whose line is needed too.
    let options: Options = serde_saphyr::options! {
        with_snippet: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    let search = Search { below: &KNOWN, name: String::new(), found: &found };
    // After an error, only the keys before it would be found; this text was already decoded, so no error occurs.
    let _ = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| match path {
        [] => search.deserialize(deserializer),
        path => search.deserialize(NestedValue { path, inner: deserializer }),
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
