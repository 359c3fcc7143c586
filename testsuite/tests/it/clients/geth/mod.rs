//! geth, from the Go module proxy, compared with a fullnode.

mod differences;
mod programs;
mod questions;
mod server;

use slipnet::{devnet::DevnetOptions, rpc::Rpc};

use self::{differences::Differences, programs::programs, questions::questions, server::Geth};
use super::{fullnode_and_key, programs::geth};
use crate::common::pair;

/// Goal: a node traces, calls, estimates, simulates and lists as geth does. Both execute the same programs by overrides
/// of their state, and each part of their answers is equal or a difference in a table. Each difference of the table
/// occurs.
#[tokio::test(flavor = "multi_thread")]
async fn traces_are_those_of_geth() {
    let Some(program) = geth() else { return };
    let geth = Geth::start(&program).await;
    let devnet = pair(DevnetOptions { accounts: 1, ..DevnetOptions::default() }).await;
    let node = Rpc::new(&fullnode_and_key(&devnet).0).unwrap();
    let (programs, mut differences) = (programs(), Differences::default());
    for &(name, ref code) in &programs {
        for question in questions(code) {
            let params = std::slice::from_ref(&question.params);
            let asked = (geth.rpc.batch(question.method, params), node.batch(question.method, params));
            let (of_geth, of_node) = (asked.0.await.unwrap().remove(0), asked.1.await.unwrap().remove(0));
            differences.compare(name, question.name, of_geth, of_node);
        }
    }
    let names: Vec<_> = programs.iter().map(|(name, _)| *name).collect();
    differences.check(&names);
    devnet.stop().await.unwrap();
}
