//! Requests and answers of `/v1/operator/…`.

use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::{JSON, content, failure, schema, text};
use crate::operator::{AddBody, BanBody, Banned, FilterBody, Pong};

/// The name of the scheme by which an operator authenticates.
pub(super) const TOKEN: &str = "operator_token";

/// The operator's paths and their descriptions.
pub(super) fn paths(schemas: &mut SchemaGenerator) -> Map<String, Value> {
    let json = |schema: Value| content(JSON, schema);
    let nothing = || json(json!({ "type": "object" }));
    let filter = json(schema::<FilterBody>(schemas));
    let pages = [
        (
            "/v1/operator/log/filter",
            json!({
                "get": order("filter", "The log's filter", None, &filter),
                "put": order("set_filter", "Changes the log's filter; the answer has the previous one", Some(&filter), &filter),
            }),
        ),
        (
            "/v1/operator/log/recent",
            json!({ "get": order("recent", "The last lines of the log", None, &text()) }),
        ),
        (
            "/v1/operator/peers/{key}",
            of_a_peer(json!({
                "put": order("add", "Dials a peer and keeps a place for it", Some(&json(schema::<AddBody>(schemas))), &nothing()),
                "delete": order("remove", "Stops dialling and keeping a peer, even one of `network.peers`", None, &nothing()),
            })),
        ),
        (
            "/v1/operator/peers/{key}/ping",
            of_a_peer(json!({
                "get": order("ping", "Sends a peer a small request", None, &json(schema::<Pong>(schemas))),
            })),
        ),
        (
            "/v1/operator/bans/{key}",
            of_a_peer(json!({
                "put": order("ban", "Keeps a peer out, for a time or until it is unbanned", Some(&json(schema::<BanBody>(schemas))),
                    &json(schema::<Banned>(schemas))),
                "delete": order("unban", "Lifts a ban, even one that the node itself imposed", None, &nothing()),
            })),
        ),
    ];
    pages.map(|(path, page)| (path.to_owned(), page)).into_iter().collect()
}

/// Describes one order, with its request and its answer.
fn order(id: &str, summary: &str, takes: Option<&Value>, gives: &Value) -> Value {
    let mut order = json!({
        "operationId": id,
        "summary": summary,
        "security": [{ TOKEN: [] }],
        "responses": {
            "200": { "description": summary, "content": gives },
            "4XX": failure("The node refuses the order, and the text says why; 401 asks for the token."),
            "5XX": failure("The peer or this node cannot carry out the order now."),
        },
    });
    if let Some(takes) = takes {
        order["requestBody"] = json!({ "required": true, "content": takes });
    }
    order
}

fn of_a_peer(mut page: Value) -> Value {
    page["parameters"] = json!([{
        "name": "key", "in": "path", "required": true, "schema": { "type": "string" }, "description": "The peer's key.",
    }]);
    page
}
