//! Finding a key in the text, so that an error about its value names the line.

use std::{cell::Cell, fmt};

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_saphyr::{NonFiniteFloatPolicy, Options, Spanned};

/// Line and column of the value of a key such as `sync.audit`; none if the file leaves the key out. For texts that were decoded.
pub(crate) fn locate(text: &str, key: &str) -> Option<(u64, u64)> {
    let path: Vec<_> = key.split('.').collect();
    let found = Cell::new(None);
    // `.nan` is one of the values whose place is asked for.
    let options: Options = serde_saphyr::options! {
        with_snippet: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    let search = Search { path: &path, found: &found };
    serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        search.deserialize(deserializer)
    })
    .ok()?;
    found.get()
}

#[derive(Clone, Copy)]
struct Search<'a> {
    /// What is left of the key below this value.
    path: &'a [&'a str],
    found: &'a Cell<Option<(u64, u64)>>,
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if !self.path.is_empty() {
            return deserializer.deserialize_map(self);
        }
        let place = Spanned::<IgnoredAny>::deserialize(deserializer)?.referenced;
        self.found.set(Some((place.line(), place.column())));
        Ok(())
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a section")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut section: A) -> Result<(), A::Error> {
        let Some((wanted, path)) = self.path.split_first() else {
            return Err(de::Error::custom("a section, not a value"));
        };
        while let Some(key) = section.next_key::<String>()? {
            if key == *wanted {
                section.next_value_seed(Search { path, ..self })?;
            } else {
                section.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}
