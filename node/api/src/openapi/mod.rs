//! `GET /v1/openapi.json`: this API in OpenAPI 3.1, for programs that generate clients or check answers. This module
//! lists the paths. The served types and their documentation describe the answers.

mod operator;

use std::sync::LazyLock;

use axum::{body::Bytes, http::header::CONTENT_TYPE, response::IntoResponse};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};
use slipstream_consensus::Proof;
use slipstream_status::{NodeStatus, events::Event, health::Health};

use super::{
    inspect::{DbStats, SnapshotEntry},
    settled::Settled,
};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
const EVENTS: &str = "text/event-stream";
const HTML: &str = "text/html";

/// Built once: it never changes while the program runs.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());

pub(super) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, JSON)], DOCUMENT.clone())
}

/// Builds the OpenAPI document.
fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let paths = paths(&mut schemas);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Slipstream node",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What a node reports about itself, and Ethereum's JSON-RPC. Programs match on enums; texts are for \
             people, and change.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": { operator::TOKEN: { "type": "http", "scheme": "bearer", "description": "The file operator.token in the data directory." } },
        },
    })
}

fn paths(schemas: &mut SchemaGenerator) -> Map<String, Value> {
    let health = content(JSON, schema::<Health>(schemas));
    let ready = |id| {
        let mut page = get(id, "Whether to send callers here, and if not, why", health.clone());
        page["get"]["responses"]["503"] = json!({ "description": "The node is not ready, or it is starting: then a text names the \
            current step.",
            "content": { JSON: health[JSON], TEXT: text()[TEXT] } });
        page
    };
    let mut settled = get(
        "settled",
        "A validator's statement about what it voted for",
        content(JSON, schema::<Settled>(schemas)),
    );
    settled["get"]["parameters"] = json!([
        parameter("after", "A batch that the head must also have reached"),
        parameter("epoch", "The last epoch whose validators the caller knows"),
    ]);
    settled["get"]["responses"]["404"] = failure("This node is not a validator.");
    let mut events = get("events", "Changes as they happen", content(EVENTS, schema::<Event>(schemas)));
    events["get"]["description"] = json!(
        "Server-sent events: `event` is the name, `data` is one of these documents on one line, `id` is its position. The event \
         `lost` has the data {\"event\":\"lost\",\"lost\":N}: the number of missed events, or null if it is unknown."
    );
    events["get"]["parameters"] = json!([{
        "name": "Last-Event-ID", "in": "header", "schema": { "type": "string" }, "description": "Resume after this event.",
    }]);
    let mut root = json_rpc();
    root["get"] = get(
        "page",
        "A page that shows what the node is and does",
        content(HTML, json!({ "type": "string" })),
    )["get"]
        .take();
    let pages = [
        ("/", root),
        (
            "/v1/status",
            get("status", "What the node is and does", content(JSON, schema::<NodeStatus>(schemas))),
        ),
        ("/v1/events", events),
        (
            "/v1/consensus/evidence",
            get("evidence", "Proofs that validators lied", content(JSON, schema::<Vec<Proof>>(schemas))),
        ),
        ("/v1/consensus/settled", settled),
        ("/ws", socket()),
        ("/v1/db", get("db", "What the database holds", content(JSON, schema::<DbStats>(schemas)))),
        (
            "/v1/snapshots",
            get(
                "snapshots",
                "The snapshots that are kept and served, newest first",
                content(JSON, schema::<Vec<SnapshotEntry>>(schemas)),
            ),
        ),
        ("/v1/openapi.json", get("openapi", "This document", content(JSON, json!({ "type": "object" })))),
        ("/metrics", get("metrics", "Metrics in Prometheus' text format", text())),
        ("/health", ready("health")),
        ("/health/ready", ready("ready")),
        ("/health/live", get("live", "Whether the process works", text())),
    ];
    let pages = pages.map(|(path, page)| (path.to_owned(), page));
    pages.into_iter().chain(operator::paths(schemas)).collect()
}

fn schema<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

/// A path that answers GET.
fn get(id: &str, summary: &str, content: Value) -> Value {
    json!({ "get": {
        "operationId": id,
        "summary": summary,
        "responses": {
            "200": { "description": summary, "content": content },
            "403": failure("The request names another host than this node's (`api.allowed_hosts`), or comes from another site's page."),
            "503": failure("The node is starting, or has no place for this request: retry after the time in `Retry-After`, or \
             after a second."),
        },
    } })
}

/// The WebSocket path. It is not a page; its use is described where the methods are.
fn socket() -> Value {
    let mut page = get("socket", "JSON-RPC and subscriptions over WebSocket; also at `/`", text());
    page["get"]["responses"]["101"] = json!({ "description": "The connection is a WebSocket." });
    if let Some(responses) = page["get"]["responses"].as_object_mut() {
        responses.remove("200");
    }
    page
}

/// Ethereum's JSON-RPC. Its methods are described where they are defined.
fn json_rpc() -> Value {
    let call = json!({
        "type": "object",
        "required": ["jsonrpc", "method"],
        "properties": { "jsonrpc": { "const": "2.0" }, "id": {}, "method": { "type": "string" }, "params": {} },
    });
    let body = json!({ "anyOf": [call, { "type": "array", "items": call }] });
    let answer = json!({ "type": ["object", "array"] });
    json!({ "post": {
        "operationId": "rpc",
        "summary": "Ethereum's JSON-RPC: a call, or a batch of them",
        "externalDocs": { "url": "https://ethereum.github.io/execution-apis/" },
        "requestBody": { "required": true, "content": content(JSON, body) },
        "responses": {
            "200": { "description": "The answer, which may be a JSON-RPC error.", "content": content(JSON, answer) },
            "204": { "description": "Notifications have no answer." },
            "413": failure("The body is longer than `api.max_body_bytes`."),
            "415": failure("The content type is not application/json, application/json-rpc or application/jsonrequest."),
            "503": failure("The node is starting, or has no place for this call: retry soon."),
        },
    } })
}

fn content(kind: &str, schema: Value) -> Value {
    json!({ kind: { "schema": schema } })
}

fn text() -> Value {
    content(TEXT, json!({ "type": "string" }))
}

fn failure(what: &str) -> Value {
    json!({ "description": what, "content": text() })
}

fn parameter(name: &str, what: &str) -> Value {
    json!({ "name": name, "in": "query", "schema": { "type": "integer", "minimum": 0, "default": 0 }, "description": what })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jsonschema::Validator;
    use slipstream_status::{
        events::PeerChange,
        fixture::{self, consensus},
        health::{Blocker, Reason, State},
    };
    use slipstream_types::BatchNumber;

    use super::*;

    /// A validator for the schema of this name in the document.
    fn validator(name: &str) -> Validator {
        let mut schema = document();
        schema["$ref"] = json!(format!("#/components/schemas/{name}"));
        jsonschema::validator_for(&schema).unwrap()
    }

    fn is_valid(validator: &Validator, document: &Value) -> Result<(), String> {
        let errors: Vec<_> = validator
            .iter_errors(document)
            .map(|error| format!("{}: {error}", error.instance_path))
            .collect();
        if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
    }

    /// Goal: the document describes exactly the paths that the node serves.
    #[test]
    fn every_route_is_described() {
        let sources = [include_str!("../lib.rs"), include_str!("../operator.rs")];
        let routes = sources.into_iter().flat_map(|source| source.split(".route(\"").skip(1));
        let routes: BTreeSet<_> = routes.filter_map(|rest| rest.split('"').next()).collect();
        let document = document();
        let described: BTreeSet<_> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        assert!(routes.len() > 10 && routes == described, "{routes:?} {described:?}");
    }

    /// Goal: a served status matches the document, down to each variant of an enum.
    #[test]
    fn a_status_is_as_described() {
        let validator = validator("NodeStatus");
        let peer = json!({
            "id": fixture::key(2), "head": 900, "heard_ms_ago": 10, "serves": { "replay_from": 1, "delta_from": null }, "mode": "delta",
            "mode_reason": "planned", "batches_replayed": 0, "batches_applied": 7, "verified_bytes": 0, "bytes_per_second": 900,
            "tail_ms": 40, "score": 87, "reasons": [{ "what": "it refused", "times": 1, "change": -20, "seconds_ago": 3 }],
            "failures": 0, "pause_ms": 0, "banned": false, "last_reason": null, "last_reason_seconds_ago": null,
        });
        let blocker = json!({ "reason": "no_peers", "text": "none", "alert": true, "retry_ms": 4_200 });
        for changes in [
            json!({}),
            json!({ "role": "validator", "consensus": consensus() }),
            json!({ "sync": { "phase": "range delta", "peers": [peer] }, "health": { "state": "restoring", "blocker": blocker } }),
        ] {
            let status = serde_json::to_value(fixture::status(changes)).unwrap();
            is_valid(&validator, &status).unwrap();
        }
        let status = serde_json::to_value(fixture::status(json!({}))).unwrap();
        for (place, wrong) in [
            ("/sync/phase", json!("asleep")),
            ("/progress/eta/state", json!("soon")),
            ("/head/digest", json!("0x12")),
            ("/health/head", json!(-1)),
            ("/waypoint", json!(null)),
        ] {
            let mut status = status.clone();
            *status.pointer_mut(place).unwrap() = wrong;
            assert!(is_valid(&validator, &status).is_err(), "{place}");
        }
    }

    #[test]
    fn each_event_is_as_described() {
        let validator = validator("Event");
        let status = fixture::status(json!({}));
        let blocker =
            Blocker { reason: Reason::Halted, text: "no batch".into(), alert: true, retry_ms: None };
        let number = BatchNumber::new(7);
        let events = [
            Event::Head { number, digest: status.head.digest, timestamp_ms: 1 },
            Event::Phase { state: State::AtHead, phase: status.sync.phase, progress: status.progress },
            Event::Blocker { blocker: Some(blocker) },
            Event::Blocker { blocker: None },
            Event::Peer {
                peer: status.peer_id,
                name: Some("alpha".into()),
                change: PeerChange::Banned,
                reason: Some("it lied".into()),
            },
            Event::Peer { peer: status.peer_id, name: None, change: PeerChange::Ended, reason: None },
            Event::Snapshot { number },
        ];
        for event in events {
            let mut document = serde_json::to_value(&event).unwrap();
            assert_eq!(document["event"], event.name());
            is_valid(&validator, &document).unwrap();
            document["event"] = json!("else");
            assert!(is_valid(&validator, &document).is_err(), "{event:?}");
        }
    }
}
