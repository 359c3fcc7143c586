//! [`Tree`]: a configuration as sections and values, in the order of the types' fields. Layers are joined in this form, key by key.

use std::{fmt, sync::LazyLock};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use slipstream_types::{BatchNumber, Digest, Waypoint};

use crate::{LogConfig, LogFileConfig, NodeConfig, preset::Preset};

/// A section, or the value of a key. A list is one value: a layer that sets it replaces all of it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Tree {
    Section(Vec<(String, Tree)>),
    Value(Value),
}

/// All keys, with their defaults, or with an example where a key has no default.
pub(crate) static KNOWN: LazyLock<Tree> = LazyLock::new(|| {
    let example = NodeConfig {
        preset: Some(Preset::Fullnode),
        genesis: Some("genesis.json".into()),
        waypoint: Some(Waypoint { number: BatchNumber::GENESIS, hash: Digest([0; 32]) }),
        schedule: Some("schedule.json".into()),
        log: LogConfig {
            file: LogFileConfig { path: Some("node.log".into()), ..LogFileConfig::default() },
            ..LogConfig::default()
        },
        ..NodeConfig::default()
    };
    Tree::of(&example)
});

impl Tree {
    pub(crate) fn of(config: &NodeConfig) -> Tree {
        let text = serde_json::to_string(config).expect("a configuration that was read can be written");
        serde_json::from_str(&text).expect("the text just written is JSON")
    }

    /// Returns the section or value of a key such as `sync.mode`.
    pub(crate) fn get(&self, key: &str) -> Option<&Tree> {
        key.split('.').try_fold(self, |tree, name| match tree {
            Tree::Section(entries) => entries.iter().find(|(known, _)| known == name).map(|(_, tree)| tree),
            Tree::Value(_) => None,
        })
    }

    /// Replaces or removes the value of a key.
    pub(crate) fn put(&mut self, key: &str, value: Option<Tree>) {
        let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
        let Tree::Section(entries) = self else { return };
        let at = entries.iter().position(|(known, _)| known == first);
        match (at, rest, value) {
            (Some(at), Some(rest), value) => entries[at].1.put(rest, value),
            (Some(at), None, Some(value)) => entries[at].1 = value,
            (Some(at), None, None) => drop(entries.remove(at)),
            (None, None, Some(value)) => entries.push((first.to_owned(), value)),
            (None, ..) => {}
        }
    }

    /// Returns every key that has a value, by its full name.
    #[cfg(test)]
    pub(crate) fn values(&self) -> Vec<(String, &Value)> {
        match self {
            Tree::Value(value) => vec![(String::new(), value)],
            Tree::Section(entries) => entries
                .iter()
                .flat_map(|(name, tree)| {
                    tree.values().into_iter().map(move |(rest, value)| (joined(name, &rest), value))
                })
                .collect(),
        }
    }

    /// Decodes the tree to a configuration, or returns the wrong key and its fault.
    pub(crate) fn decode(&self) -> Result<NodeConfig, (String, String)> {
        let text = serde_json::to_string(self).expect("a tree is JSON");
        let mut deserializer = serde_json::Deserializer::from_str(&text);
        serde_path_to_error::deserialize(&mut deserializer)
            .map_err(|error| (error.path().to_string(), error.inner().to_string()))
    }
}

/// Returns the full name of a key in a section; either may be empty.
pub(crate) fn joined(section: &str, name: &str) -> String {
    match (section, name) {
        ("", name) => name.to_owned(),
        (section, "") => section.to_owned(),
        (section, name) => format!("{section}.{name}"),
    }
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Tree::Section(entries) => serializer.collect_map(entries.iter().map(|(name, tree)| (name, tree))),
            Tree::Value(value) => value.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        struct Node;
        impl<'de> Visitor<'de> for Node {
            type Value = Tree;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a section or a value")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut section: A) -> Result<Tree, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = section.next_entry()? {
                    entries.push(entry);
                }
                Ok(Tree::Section(entries))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element::<Value>()? {
                    items.push(item);
                }
                Ok(Tree::Value(items.into()))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Tree, E> {
                Ok(Tree::Value(value.into()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Tree, E> {
                Ok(Tree::Value(value.into()))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Tree, E> {
                Ok(Tree::Value(value.into()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Tree, E> {
                Ok(Tree::Value(value.into()))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Tree, E> {
                Ok(Tree::Value(value.into()))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Tree, E> {
                Ok(Tree::Value(Value::Null))
            }
        }
        deserializer.deserialize_any(Node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: joining layers as trees loses nothing of a configuration, and keeps the order in which its types name the keys.
    #[test]
    fn a_tree_is_a_configuration_in_the_order_of_its_fields() {
        let mut tree = KNOWN.clone();
        let config = tree.decode().unwrap();
        assert_eq!(Tree::of(&config), tree);
        let keys: Vec<_> = tree.values().into_iter().map(|(key, _)| key).collect();
        assert_eq!(&keys[..3], ["role", "preset", "data_dir"]);
        assert!(keys.contains(&"storage.prune.bodies".into()), "{keys:?}");
        tree.put("sync.mode", Some(Tree::Value("delta".into())));
        tree.put("schedule", None);
        let changed = tree.decode().unwrap();
        assert_eq!((changed.sync.mode, changed.schedule), (slipstream_sync::Mode::Delta, None));
        tree.put("sync.mode", Some(Tree::Value(7.into())));
        assert_eq!(tree.decode().unwrap_err().0, "sync.mode");
    }

    /// Goal: no present key is masked because its name only looks secret.
    #[test]
    fn no_key_is_secret() {
        let secret: Vec<_> = KNOWN
            .values()
            .into_iter()
            .map(|(key, _)| key)
            .filter(|key| crate::mask::is_secret(key))
            .collect();
        assert_eq!(secret, Vec::<String>::new());
    }
}
