//! The description of the API that a node serves, compared with its answers.

use serde_json::Value;

use crate::chain::{Chain, Running, printed};

/// Goal: a client generated from the document gets the documented answers from a running node.
#[test]
fn a_node_answers_as_its_document_says() {
    let chain = Chain::new();
    chain.configure(
        "consensus: { empty_batch_interval_ms: 100 }\nstorage: { snapshot_interval_batches: 5 }\n",
    );
    let node = Running::start(&chain);
    printed(&["wait", "--for", "batch=12", "--api", &format!("http://{}", node.api)], true);
    let get = |path: &str| -> Value {
        let answer = node.http(&format!("GET {path}"), "");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
    };
    let document = get("/v1/openapi.json");
    assert_eq!(document["openapi"], "3.1.0");
    let mut checked = Vec::new();
    for (path, page) in document["paths"].as_object().unwrap() {
        let schema = page.pointer("/get/responses/200/content/application~1json/schema");
        // Answers for operators only are tested where the token is available.
        let Some(schema) = schema.filter(|_| page.pointer("/get/security").is_none()) else {
            continue;
        };
        // References point into the document that contains them.
        let mut whole = document.clone();
        whole.as_object_mut().unwrap().extend(schema.as_object().unwrap().clone());
        let validator = jsonschema::validator_for(&whole).unwrap();
        let answer = get(path);
        let errors: Vec<_> = validator.iter_errors(&answer).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{path}: {errors:#?} in {answer}");
        checked.push(path.as_str());
    }
    for path in ["/health", "/v1/consensus/settled", "/v1/db", "/v1/snapshots", "/v1/status"] {
        assert!(checked.contains(&path), "{path} is not among {checked:?}");
    }
    node.stop();
}
