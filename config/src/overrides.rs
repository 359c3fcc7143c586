//! [`Overrides`]: the settings of the environment and the command line, above the file.

use std::{ffi::OsString, num::NonZeroU8};

use crate::{
    ConfigError, Origin,
    mask::mask_text,
    tree::{KNOWN, Tree, joined},
};

/// The prefix of every variable that sets a key: `SLIPSTREAM__SYNC__MODE` sets `sync.mode`.
pub const VARIABLE_PREFIX: &str = "SLIPSTREAM__";
/// The separator between the levels of a key in a variable's name.
const LEVEL: &str = "__";
/// Maximum number of variables, and of flags. It exceeds the number of keys, so setting more is a mistake.
pub const OVERRIDES_MAX: usize = 256;
/// Maximum bytes of a value: a list of some hundred peers fits.
pub const OVERRIDE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of characters of a wrong name that an error shows.
const SHOWN_CHARS_MAX: usize = 120;

/// The layers above the configuration file: variables, and flags above them. It also has the number of the instance.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub(crate) assignments: Vec<Assignment>,
    pub(crate) instance: Option<NonZeroU8>,
}

/// A value for a key or a section.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Assignment {
    /// The full name of a known key or section.
    pub(crate) key: String,
    /// The value as YAML.
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

impl Overrides {
    /// Takes variables with [`VARIABLE_PREFIX`], and flags `KEY=VALUE` in their order: a later one overrides an earlier
    /// one. An empty variable counts as not set.
    pub fn new(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        flags: &[String],
    ) -> Result<Overrides, ConfigError> {
        let mut variables: Vec<_> = variables
            .into_iter()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, value)| name.starts_with(VARIABLE_PREFIX) && !value.is_empty())
            .collect();
        // The system returns them in any order.
        variables.sort();
        if variables.len() > OVERRIDES_MAX || flags.len() > OVERRIDES_MAX {
            return Err(ConfigError::TooManyOverrides { max: OVERRIDES_MAX });
        }
        let variables = variables.into_iter().map(|(name, value)| Assignment::of_variable(name, value));
        let mut assignments: Vec<Assignment> = variables.collect::<Result<_, _>>()?;
        // A section comes before its keys, which then override it.
        assignments.sort_by(|a, b| a.key.cmp(&b.key));
        let twice = assignments.windows(2).find(|pair| pair[0].key == pair[1].key);
        if let Some([one, other]) = twice {
            let problem = format!("it names the same key as the {}; set only one of the two", one.origin);
            return Err(refused(&other.origin, problem));
        }
        for flag in flags {
            assignments.push(Assignment::of_flag(flag)?);
        }
        Ok(Overrides { assignments, instance: None })
    }

    /// Sets the instance, which keeps nodes of the same configuration apart, as [`crate::load`] describes.
    pub fn with_instance(self, instance: Option<NonZeroU8>) -> Overrides {
        Overrides { instance, ..self }
    }
}

impl Assignment {
    fn of_variable(name: String, value: OsString) -> Result<Assignment, ConfigError> {
        let key = name[VARIABLE_PREFIX.len()..].replace(LEVEL, ".").to_lowercase();
        let origin = Origin::Variable { name: shown(&name) };
        let Ok(value) = value.into_string() else {
            return Err(refused(&origin, "its value is not UTF-8".into()));
        };
        Assignment { key, value, origin }
            .checked(|key| format!("{VARIABLE_PREFIX}{}", key.replace('.', LEVEL).to_uppercase()))
    }

    fn of_flag(flag: &str) -> Result<Assignment, ConfigError> {
        let (key, value) = flag.split_once('=').unwrap_or((flag, ""));
        let origin = Origin::Flag { key: shown(key) };
        if key.len() == flag.len() {
            let problem = "the value is missing; write --set KEY=VALUE, as in --set sync.mode=delta";
            return Err(refused(&origin, problem.into()));
        }
        Assignment { key: key.trim().to_owned(), value: value.to_owned(), origin }.checked(str::to_owned)
    }

    /// Refuses overrides that are too long or unknown; `write` returns a key as its origin spells it.
    fn checked(self, write: impl Fn(&str) -> String) -> Result<Assignment, ConfigError> {
        if self.value.len() > OVERRIDE_BYTES_MAX {
            return Err(refused(
                &self.origin,
                format!("its value is longer than {OVERRIDE_BYTES_MAX} bytes"),
            ));
        }
        if self.key.is_empty() || KNOWN.get(&self.key).is_none() {
            let nearest = write(&nearest(&self.key));
            let key = shown(&self.key);
            return Err(refused(&self.origin, format!("there is no key `{key}`; the nearest is {nearest}")));
        }
        Ok(self)
    }
}

pub(crate) fn refused(origin: &Origin, problem: String) -> ConfigError {
    ConfigError::Override { origin: origin.clone(), problem }
}

fn shown(name: &str) -> String {
    mask_text(&name.chars().take(SHOWN_CHARS_MAX).collect::<String>()).into_owned()
}

/// Returns the known key or section most similar to a name: to all of it, or to its last part, which people remember
/// best.
fn nearest(name: &str) -> String {
    let name = shown(name);
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let likeness = |key: &str| {
        let whole = strsim::jaro_winkler(key, &name);
        whole.max(0.99 * strsim::jaro_winkler(&last(key), &last(&name)))
    };
    let best = |best: (f64, String), key: String| {
        let likeness = likeness(&key);
        if likeness > best.0 { (likeness, key) } else { best }
    };
    names(&KNOWN).into_iter().fold((-1.0, String::new()), best).1
}

/// Returns every key and every section.
fn names(tree: &Tree) -> Vec<String> {
    let Tree::Section(entries) = tree else { return Vec::new() };
    let below = |(name, tree): &(String, Tree)| {
        let deeper = names(tree).into_iter().map(|deeper| joined(name, &deeper)).collect::<Vec<_>>();
        [vec![name.clone()], deeper].concat()
    };
    entries.iter().flat_map(below).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn variables(list: &[(&str, &str)]) -> Result<Overrides, ConfigError> {
        Overrides::new(list.iter().map(|(name, value)| (name.into(), value.into())), &[])
    }

    fn flags(list: &[&str]) -> Result<Overrides, ConfigError> {
        let list: Vec<_> = list.iter().map(ToString::to_string).collect();
        Overrides::new([], &list)
    }

    #[test]
    fn names_are_keys() {
        let overrides = variables(&[
            ("SLIPSTREAM__SYNC__MODE", "delta"),
            ("SLIPSTREAM__Storage__prune__BODIES", "7d"),
            ("SLIPSTREAM__LOG__FILTER", ""),
            ("SLIPSTREAM_DATA", "x"),
            ("PATH", "y"),
        ]);
        let keys: Vec<_> =
            overrides.unwrap().assignments.into_iter().map(|one| (one.key, one.value)).collect();
        assert_eq!(
            keys,
            [("storage.prune.bodies".into(), "7d".into()), ("sync.mode".into(), "delta".into())]
        );
    }

    /// Goal: a misspelt key is never ignored, and the error names the right one.
    #[test]
    fn what_nobody_knows_is_refused_with_what_is_near() {
        for (name, text) in [
            ("SLIPSTREAM__SYNC__MOD", "there is no key `sync.mod`; the nearest is SLIPSTREAM__SYNC__MODE"),
            ("SLIPSTREAM__SYNC_MODE", "there is no key `sync_mode`; the nearest is SLIPSTREAM__SYNC__MODE"),
            ("SLIPSTREAM__", "there is no key ``; the nearest is "),
        ] {
            let error = variables(&[(name, "delta")]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("the environment variable {name}: {text}")), "{error}");
        }
        for (flag, text) in [
            ("mode=delta", "--set mode: there is no key `mode`; the nearest is sync.mode"),
            (
                "storage.prune.body=1",
                "--set storage.prune.body: there is no key `storage.prune.body`; the nearest is storage.prune.bodies",
            ),
            ("sync.mode.x=1", "--set sync.mode.x: there is no key `sync.mode.x`; the nearest is sync.mode"),
            ("sync.mode", "--set sync.mode: the value is missing; write --set KEY=VALUE"),
            ("=1", "--set : there is no key ``"),
        ] {
            let error = flags(&[flag]).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
        let error = variables(&[("SLIPSTREAM__SYNC__MODE", "auto"), ("SLIPSTREAM__sync__mode", "delta")]);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("it names the same key as the environment variable SLIPSTREAM__SYNC__MODE"),
            "{error}"
        );
    }

    /// Goal: overrides that are too many, too long or garbled are refused.
    #[test]
    fn overrides_are_bounded() {
        let many = vec!["sync.mode=auto"; OVERRIDES_MAX + 1];
        assert!(matches!(flags(&many), Err(ConfigError::TooManyOverrides { .. })));
        let long = format!("log.filter={}", "x".repeat(OVERRIDE_BYTES_MAX + 1));
        assert!(flags(&[&long]).unwrap_err().to_string().contains("longer than 65536 bytes"));
        let garbled = (OsString::from("SLIPSTREAM__LOG__FILTER"), OsString::from_vec(vec![0xff]));
        assert!(Overrides::new([garbled], &[]).unwrap_err().to_string().contains("is not UTF-8"));
        let secret = flags(&["https://user:canary@host=1"]).unwrap_err().to_string();
        assert!(!secret.contains("canary"), "{secret}");
    }
}
