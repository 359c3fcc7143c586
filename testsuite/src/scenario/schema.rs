//! The JSON Schemas of scenarios and twins, by which editors complete and check. They cover the rules of single keys;
//! rules about several keys are left to `slipnet scenarios check`.

use clap::ValueEnum;
use schemars::{Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Value, json};

use super::{Scenario, Twin};
use crate::load::Workload;

/// Returns the schema (draft 2020-12) of a scenario, or of a twin.
pub fn schema(of_twin: bool) -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let (schema, title) = match of_twin {
        false => (generator.into_root_schema_for::<Scenario>(), "Scenario of slipnet run"),
        true => (generator.into_root_schema_for::<Twin>(), "Planted defect of a scenario of slipnet run"),
    };
    let mut schema = schema.to_value();
    schema["title"] = json!(title);
    schema
}

/// Returns the schema of a mix: weights by existing kind of load.
pub(super) fn mix(_: &mut SchemaGenerator) -> Schema {
    let kinds: Vec<&str> = Workload::value_variants().iter().map(|kind| kind.name()).collect();
    json_schema!({
        "type": "object",
        "minProperties": 1,
        "propertyNames": { "enum": kinds },
        "additionalProperties": { "type": "integer", "minimum": 1, "maximum": 1_000 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::shipped;

    /// Goal: the schema accepts every built-in scenario, and refuses an unknown key.
    #[test]
    fn the_schema_takes_what_ships_and_refuses_what_nobody_knows() {
        for (of_twin, texts) in [
            (false, shipped::ALL.iter().map(|shipped| shipped.text).collect::<Vec<_>>()),
            (true, shipped::ALL.iter().map(|shipped| shipped.twin).collect()),
        ] {
            let validator = jsonschema::validator_for(&schema(of_twin)).unwrap();
            for text in texts {
                let mut value: Value = serde_saphyr::from_str(text).unwrap();
                let errors: Vec<_> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
                assert!(errors.is_empty(), "{errors:?}\n{text}");
                value["nonsense"] = json!(1);
                assert!(!validator.is_valid(&value));
            }
        }
    }
}
