//! `slipstream status`, word by word. `./x bless` writes the texts anew into `snapshots`.

use serde_json::{Value, json};
use slipstream_status::fixture::{consensus, status};

use super::table::table;

fn check(name: &str, changes: Value) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, table(&status(changes))));
}

/// Goal: nobody changes the text of a status without seeing it.
#[test]
fn the_status_is_worded_as_before() {
    check("status-fullnode", json!({}));
    check("status-validator", json!({ "role": "validator", "consensus": consensus() }));
    let blocker =
        json!({ "reason": "no_peers", "text": "no peer is connected", "alert": true, "retry_ms": 4_000 });
    let health = json!({ "ready": false, "state": "waiting_for_peers", "blocker": blocker, "syncing": true, "eta_seconds": null });
    let waiting = json!({ "reason": "no peer is available", "retry_ms": 4_000 });
    let sync = json!({ "phase": "waiting for peers", "reason": "no peer is available", "waiting": waiting });
    check("status-without-peers", json!({ "health": health, "sync": sync, "peers": [] }));
}
