//! The bans that a node imposes itself, across its restarts.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use slipstream_network::{
    BoxFuture, Handler, Network, NetworkConfig, Payload, PeerId, Protocol, Refusal, Transport as _,
};

use crate::{
    among::{fullnode, peer_address},
    chain::{Chain, Running, printed},
    operator::has_peer,
    process::until,
};

/// A peer whose answers no honest peer gives, until it repents.
#[derive(Default)]
struct Liar {
    repents: AtomicBool,
}

impl Handler for Liar {
    fn request<'a>(
        &'a self,
        _peer: PeerId,
        protocol: Protocol,
        _payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        let lies = protocol == Protocol::SYNC && !self.repents.load(Ordering::SeqCst);
        Box::pin(async move {
            match lies {
                true => Ok(vec![0xff_u8; 100].into()),
                false => Err(Refusal::busy(Duration::from_secs(1), "later")),
            }
        })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// Goal: a peer that was proven wrong stays banned when the node is killed and restarted, until the operator lifts the
/// ban, which also lasts. A damaged file does not prevent a start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_liar_gains_nothing_by_a_restart() {
    let handler = Arc::new(Liar::default());
    let config =
        NetworkConfig { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), ..NetworkConfig::default() };
    let liar = Network::start(&config, &slipstream_testkit::key(40), handler.clone()).await.unwrap();
    let key = liar.local().to_string();
    let chain = Chain::new();
    let (home, node) = fullnode(&chain, &[&format!("{key}@{}", liar.local_address())], "");
    let (config, data) = (home.config(), home.path("data"));
    let file = data.join("node.bans.json");
    let is_kept = || fs::read_to_string(&file).is_ok_and(|text| text.contains(&key));
    let peers = |args: &[&str]| printed(&[&["peers"], args, &["--config", &config]].concat(), true);
    let list = || -> Value { serde_json::from_str(&peers(&["list", "--json"])).unwrap() };
    until("the lie is proved, and the ban is written", || is_kept().then_some(()));
    let before = list();
    // Killed, because a ban must be stored without an orderly stop.
    drop(node);

    let node = Running::start(&home);
    let after = list();
    for (at, value) in [
        ("/bans/0/id", Value::from(key.as_str())),
        ("/bans/0/by", "node".into()),
        ("/bans/0/reason", before["bans"][0]["reason"].clone()),
        ("/bans_count", 1.into()),
        ("/configured_peers/0/state", "banned".into()),
    ] {
        assert_eq!(after.pointer(at), Some(&value), "{at}: {after}");
    }
    let until_ms = |list: &Value| list["bans"][0]["until_ms"].as_u64().unwrap();
    assert!(until_ms(&before).abs_diff(until_ms(&after)) < 60_000, "{before} {after}");
    let text = peers(&["list"]);
    assert!(text.contains(&key) && text.contains("by this node: "), "{text}");
    liar.add_peer(peer_address(&node).parse().unwrap()).unwrap();
    let refused = || liar.contacts().configured[0].trouble().filter(|trouble| trouble.contains("banned"));
    until("it is refused when it comes by itself", refused);
    assert!(!has_peer(&node, &key));

    handler.repents.store(true, Ordering::SeqCst);
    peers(&["unban", &key]);
    assert!(!is_kept(), "written before the command ends");
    until("it is let in", || has_peer(&node, &key).then_some(()));
    node.stop();

    fs::write(&file, "{").unwrap();
    let node = Running::start(&home);
    until("it is let in after a restart too", || has_peer(&node, &key).then_some(()));
    assert_eq!(list()["bans_count"], 0);
    assert_eq!(fs::read_to_string(data.join("node.bans.damaged")).unwrap(), "{");
    // The log is written in the background.
    for words in ["node.bans.damaged", "peers ban"] {
        until("the log tells of the damage", || {
            fs::read_to_string(&node.log).unwrap().contains(words).then_some(())
        });
    }
    node.stop();
    liar.shutdown().await;
}
