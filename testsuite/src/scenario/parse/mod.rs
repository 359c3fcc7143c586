//! Parses a text to a checked [`Scenario`], or to an error with line, caret and advice.

use std::{cell::Cell, fmt, fs::File, io::Read, path::Path};

use serde::{
    Deserialize,
    de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_path_to_error::Segment;
use serde_saphyr::{Error, Spanned};
use slipstream_yaml::{Place, YamlError, mask::mask_text, options};

use super::{error::ScenarioError, model::Scenario, rules};
use crate::{load::access_lists_in, relay::KIB_PER_SECOND_MAX};

/// The longest scenario file. It keeps a wrong path (a log, a report) from being read into memory, and bounds every
/// list in the file.
pub const SCENARIO_BYTES_MAX: u64 = 256 << 10;

/// An unnamed part of the path to an error.
const UNKNOWN: &str = "?";

/// What is wrong with a value that was decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// The key, outermost part first; list items are named by their index.
    pub(super) key: Vec<String>,
    /// What is wrong, and what to write.
    pub(super) text: String,
}

/// Reads a file of at most [`SCENARIO_BYTES_MAX`] bytes.
pub(super) fn read(path: &Path) -> Result<String, ScenarioError> {
    let failed = |source| ScenarioError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    // The bytes are converted to text only now: the limit may cut a character.
    let length = file.take(SCENARIO_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if length as u64 > SCENARIO_BYTES_MAX {
        return Err(ScenarioError::TooLong { path: path.to_owned(), max: SCENARIO_BYTES_MAX });
    }
    String::from_utf8(bytes).map_err(|error| {
        let text = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + text.iter().filter(|byte| **byte == b'\n').count();
        ScenarioError::NoText { path: path.to_owned(), line }
    })
}

impl Scenario {
    /// Decodes and checks a text from, or for, the file `path`.
    ///
    /// # Errors
    /// If the text is not YAML, or has an unknown key or a value that cannot be run.
    pub fn parse(text: &str, path: &Path) -> Result<Scenario, ScenarioError> {
        let scenario = decode::<Scenario>(text, path)?;
        rules::check(&scenario).map_err(|problem| refused(text, path, problem))?;
        Ok(scenario)
    }

    /// Reads, decodes and checks a file.
    ///
    /// # Errors
    /// As [`Scenario::parse`], and if it cannot be read or is longer than [`SCENARIO_BYTES_MAX`].
    pub fn load(path: &Path) -> Result<Scenario, ScenarioError> {
        Scenario::parse(&read(path)?, path)
    }

    /// As [`Scenario::load`], on the machine where its loads will run: finds the directories that they read. A relative
    /// path starts at the file's directory.
    ///
    /// # Errors
    /// As [`Scenario::load`], and if such a directory is missing or has no access lists.
    pub fn load_whole(path: &Path) -> Result<Scenario, ScenarioError> {
        let text = read(path)?;
        let mut scenario = Scenario::parse(&text, path)?;
        for (index, phase) in scenario.workload.iter_mut().enumerate() {
            let Some(dir) = &mut phase.access_lists else { continue };
            *dir = lists_beside(path, dir).map_err(|problem| {
                let key = ["workload", &index.to_string(), "access_lists"].map(str::to_owned).to_vec();
                refused(&text, path, Problem { key, text: problem })
            })?;
        }
        Ok(scenario)
    }
}

/// Returns the directory of access lists that a file names. The error says what is wrong with it.
fn lists_beside(file: &Path, dir: &str) -> Result<String, String> {
    let found = file.parent().unwrap_or(Path::new("")).join(dir);
    access_lists_in(&found).map_err(|error| {
        format!("{error:#}; name a directory of NUMBER.rlp.gz files by its absolute path, or relative to the scenario's file")
    })?;
    found.into_os_string().into_string().map_err(|found| {
        format!("the path {} is not valid UTF-8: move the lists or the file", found.display())
    })
}

/// Decodes a whole file, strictly.
pub(super) fn decode<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ScenarioError> {
    let mut segments = Vec::new();
    serde_saphyr::with_deserializer_from_str_with_options(text, options(), |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            segments = error.path().iter().map(name).collect();
            error.into_inner()
        })
    })
    .map_err(|error: Error| {
        let mistake = YamlError::of(&error);
        // The parser gives the position of the key.
        let value = mistake.is_of_a_value().then(|| place_of(text, &segments));
        let (line, column) = value.flatten().unwrap_or((mistake.line, mistake.column));
        let (place, word) = Place::quote(text, line, column);
        let mut message = advised(mistake.found(&word), &segments, &word);
        if !segments.is_empty() && !segments.iter().any(|name| name == UNKNOWN) {
            message = format!("{}: {message}", segments.join("."));
        }
        let message = mask_text(&message).into_owned();
        ScenarioError::Wrong { path: path.to_owned(), place, message }
    })
}

/// Adds advice to a decoder's error where it is known: by key for a value, and by the existing names for a name.
fn advised(message: String, key: &[String], word: &str) -> String {
    let is_of_a_value = message.starts_with("must be ") || message.starts_with("invalid ");
    match key.last().map(String::as_str) {
        Some("loss") if is_of_a_value => {
            return format!("must be a share from 0 to 1, such as 0.05 for 5 %, found `{word}`");
        }
        Some("kib_per_second") if is_of_a_value => {
            return format!("must be KiB per second, from 1 to {KIB_PER_SECOND_MAX}, found `{word}`");
        }
        _ => {}
    }
    if message.starts_with("a list stands where a name") && key.first().is_some_and(|key| key == "faults") {
        return format!("{message}, such as `{{ nodes: [validator-1] }}`");
    }
    let named =
        message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once("`, expected one of "));
    let Some((name, known)) = named else { return message };
    let known: Vec<&str> = known.split(", ").collect();
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let advice = if known.contains(&"one_of") {
        Some(format!("write `{{ nodes: [{name}] }}`"))
    } else if known.contains(&"saturation") && is_number {
        Some(format!("write `{{ constant: {name} }}`"))
    } else {
        nearest(name, &known).map(|nearest| format!("the nearest is `{nearest}`"))
    };
    advice.map_or_else(|| message.clone(), |advice| format!("{message}; {advice}"))
}

/// Returns the most similar name; `None` if no name is similar enough.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    const ALIKE: f64 = 0.8;
    let rated = known.iter().map(|other| (strsim::jaro_winkler(other, name), *other));
    let (likeness, nearest) = rated.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (likeness >= ALIKE).then_some(nearest)
}

/// Names a part of the path to an error, as errors of decoded values do.
fn name(segment: &Segment) -> String {
    match segment {
        Segment::Seq { index } => index.to_string(),
        Segment::Map { key } => key.clone(),
        Segment::Enum { variant } => variant.clone(),
        Segment::Unknown => UNKNOWN.to_owned(),
    }
}

/// Makes the error of a decoded value. Its position is the value, or the section that lacks it.
pub(super) fn refused(text: &str, path: &Path, problem: Problem) -> ScenarioError {
    let (line, column) = place(text, &problem.key);
    let (place, _) = Place::quote(text, line, column);
    let message = mask_text(&format!("{}: {}", problem.key.join("."), problem.text)).into_owned();
    ScenarioError::Wrong { path: path.to_owned(), place, message }
}

/// Returns the position of a value. For a default value, it is that of the innermost section around it in the file.
fn place(text: &str, key: &[String]) -> (u64, u64) {
    (0..=key.len()).rev().find_map(|depth| place_of(text, &key[..depth])).unwrap_or((1, 1))
}

/// Returns the position of a value, if it is in the file. The document itself has no position.
fn place_of(text: &str, key: &[String]) -> Option<(u64, u64)> {
    let found = Cell::new((1, 1));
    let search = Search { path: key, found: &found };
    // If the key is missing, the position stays unset.
    let _ = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |deserializer| {
        search.deserialize(deserializer)
    });
    Some(found.get()).filter(|place| *place != (1, 1))
}

#[derive(Clone, Copy)]
struct Search<'a> {
    path: &'a [String],
    found: &'a Cell<(u64, u64)>,
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.path.is_empty() {
            let place = Spanned::<IgnoredAny>::deserialize(deserializer)?.referenced;
            self.found.set((place.line(), place.column()));
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a section or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut section: A) -> Result<(), A::Error> {
        while let Some(name) = section.next_key::<String>()? {
            if name == self.path[0] {
                section.next_value_seed(Search { path: &self.path[1..], ..self })?;
            } else {
                section.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let wanted: Option<usize> = self.path[0].parse().ok();
        let mut index = 0;
        loop {
            let more = if Some(index) == wanted {
                list.next_element_seed(Search { path: &self.path[1..], ..self })?.is_some()
            } else {
                list.next_element::<IgnoredAny>()?.is_some()
            };
            if !more {
                return Ok(());
            }
            index += 1;
        }
    }

    // A scalar instead of a section has no inner positions.
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
