//! The JSON Schema of the configuration. Editors use it to complete, check and explain keys, and the tables of
//! docs/configuration.md are generated from it.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::{NodeConfig, ranges};

/// Returns the schema (draft 2020-12) with the description, the default and the range of every key. It refuses the same
/// values of single keys as the node; `slipstream config check` checks the rules that concern several keys.
pub fn schema() -> Value {
    // Subschemas are inlined, so that each place has its own description and range.
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<NodeConfig>().to_value();
    schema["title"] = json!("Configuration of a Slipstream node");
    forget_section_defaults(&mut schema);
    // Serde's default is only for a layer that leaves the role to others.
    forget_default(at(&mut schema, "role"));
    for (key, range) in ranges::all() {
        let property = at(&mut schema, key);
        property["minimum"] = json!(range.start());
        property["maximum"] = json!(range.end());
    }
    let audit = at(&mut schema, "sync.audit");
    (audit["minimum"], audit["maximum"]) = (json!(0.0), json!(1.0));
    schema
}

/// Removes the defaults of whole sections, because each key has its own default.
fn forget_section_defaults(section: &mut Value) {
    let properties = section["properties"].as_object_mut().into_iter().flatten();
    for (_, property) in properties.filter(|(_, property)| property["properties"].is_object()) {
        forget_default(property);
        forget_section_defaults(property);
    }
}

fn forget_default(property: &mut Value) {
    if let Some(property) = property.as_object_mut() {
        property.remove("default");
    }
}

/// Returns the part of the schema for a key.
fn at<'a>(schema: &'a mut Value, key: &str) -> &'a mut Value {
    key.split('.').fold(schema, |schema, name| &mut schema["properties"][name])
}
