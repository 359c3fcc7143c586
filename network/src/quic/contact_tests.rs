//! Tests the reports about peers that do not connect, and about keys that more than one node uses.

use std::{net::UdpSocket, time::Duration};

use super::tests::{Raw, address_of, dialling, start};
use crate::{
    ContactFailure, ContactState, Contacts, NetworkConfig, PeerAddress, PeerTarget, Transport,
    tests::{eventually, key, loopback},
};

/// Goal: each configured peer is listed with its state. An unreachable one has the reason and the time of the next
/// attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_configured_peer_has_a_state_with_its_reason() {
    let (a, _) = start(1, &loopback()).await;
    let (c, _) = start(3, &loopback()).await;
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let wrong = PeerAddress { id: key(7).public(), address: a.local_address() };
    let silent = PeerAddress { id: key(8).public(), address: nobody.local_addr().unwrap() };
    let peers = vec![address_of(&c), wrong, silent];
    let (b, _) = start(2, &NetworkConfig { handshake_timeout_ms: 3_000, ..dialling(peers.clone()) }).await;
    let names = |contacts: &Contacts| {
        contacts.configured.iter().map(|peer| peer.state.kind().name()).collect::<Vec<_>>()
    };
    // On a slow machine another attempt may end differently, so only this snapshot is checked.
    let mut contacts = b.contacts();
    eventually("the states", || {
        contacts = b.contacts();
        names(&contacts) == ["connected", "wrong key", "unreachable"]
    })
    .await;
    let told: Vec<_> = contacts.configured.iter().map(|it| it.peer.clone()).collect();
    assert_eq!(told, peers.into_iter().map(Into::into).collect::<Vec<PeerTarget>>());
    assert!(contacts.shared_keys.is_empty());
    let [fine, wrong, silent] = &contacts.configured[..] else { panic!("{contacts:?}") };
    assert_eq!(fine.trouble(), None);
    let text = wrong.trouble().unwrap();
    let expected = format!("the node at {} does not have the key {}", a.local_address(), key(7).public());
    assert!(text.starts_with(&expected) && text.ends_with("check network.peers"), "{text}");
    assert!(text.contains(&a.local().to_string()), "{text}");
    match &wrong.state {
        ContactState::Failing { failure, attempts, since, next_attempt } => {
            assert_eq!(*failure, ContactFailure::WrongKey(a.local()));
            assert!(*attempts >= 1 && next_attempt > since);
        }
        state => panic!("{state:?}"),
    }
    assert!(silent.trouble().unwrap().starts_with("no answer within 3s; is the peer running"), "{silent:?}");

    b.ban(c.local(), "a proven lie", Duration::from_secs(60));
    eventually("the ban", || names(&b.contacts())[0] == "banned").await;
}

/// Goal: if two nodes run with one key, a peer that both connect to reports the key. Each of the two learns of the
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_on_two_nodes_is_named_on_both_sides() {
    let (server, _) = start(9, &loopback()).await;
    let config = dialling(vec![address_of(&server)]);
    let ((one, _), (other, _)) = (start(1, &config).await, start(1, &config).await);
    eventually("the server names the key", || {
        let shared = server.contacts().shared_keys;
        shared.iter().any(|key| key.id == one.local() && !key.own && key.addresses.len() == 2)
    })
    .await;
    for node in [&one, &other] {
        eventually("the nodes know of each other", || {
            let shared = node.contacts().shared_keys;
            shared.iter().any(|key| key.id == node.local() && key.own)
        })
        .await;
    }
}

/// Goal: a connection with this node's own key proves that the key is in use elsewhere.
#[tokio::test]
async fn a_node_that_meets_its_own_key_says_so() {
    let (a, _) = start(1, &loopback()).await;
    let twin = Raw::connect(1, address_of(&a)).await;
    twin.connection.closed().await;
    let shared = a.contacts().shared_keys;
    assert!(shared.len() == 1 && shared[0].own && shared[0].addresses.len() == 1, "{shared:?}");
    assert!(a.peers().is_empty());
}
