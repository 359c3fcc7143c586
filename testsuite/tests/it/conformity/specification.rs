//! [`Specification`]: the schemas of Ethereum's execution APIs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use jsonschema::Validator;
use serde_json::{Value, json};

/// Reads all YAML files of a directory.
fn documents(dir: &Path) -> Vec<Value> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: &PathBuf| {
        serde_saphyr::from_str(&fs::read_to_string(file).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };
    files.iter().filter(|file| file.extension().is_some_and(|end| end == "yaml")).map(read).collect()
}

/// The schema of each method's result.
pub(super) struct Specification(pub(super) BTreeMap<String, Validator>);

impl Specification {
    pub(super) fn read(dir: &Path) -> Specification {
        let mut schemas = serde_json::Map::new();
        for document in documents(&dir.join("schemas")) {
            schemas.extend(document.as_object().unwrap().clone());
        }
        // An empty list of hashes and an empty list of logs are both `[]`, which matches twice and so fails `oneOf`.
        let results = schemas["FilterResults"].as_object_mut().unwrap();
        let kinds = results.remove("oneOf").unwrap();
        results.insert("anyOf".to_owned(), kinds);
        // The specification treats the texts of errors as suggestions, and only the codes as binding. Ours are geth's,
        // which clients match on.
        let failures = schemas["CallResultFailure"]["properties"]["error"]["oneOf"].as_array_mut().unwrap();
        let halt = failures.iter_mut().find(|error| error["properties"]["code"]["const"] == -32015).unwrap();
        halt["properties"]["message"].as_object_mut().unwrap().remove("pattern").unwrap();
        let components = json!({ "schemas": schemas });
        let methods = ["eth", "txpool", "debug"].iter().flat_map(|part| documents(&dir.join(part)));
        let methods = methods.flat_map(|document| document.as_array().unwrap().clone());
        let validator = |method: Value| {
            let schema = json!({ "components": components, "allOf": [method["result"]["schema"]] });
            (method["name"].as_str().unwrap().to_owned(), jsonschema::validator_for(&schema).unwrap())
        };
        Specification(methods.map(validator).collect())
    }

    pub(super) fn check(&self, method: &str, params: &Value, result: &Value) {
        let errors: Vec<_> = self.0[method]
            .iter_errors(result)
            .map(|error| format!("at {}: {error}", error.instance_path))
            .collect();
        assert!(errors.is_empty(), "{method} {params} answered {result}\n{}", errors.join("\n"));
    }
}
