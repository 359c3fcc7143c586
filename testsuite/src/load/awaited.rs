//! Waits for the nodes of a load that starts together with its chain.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::LoadOptions;
use crate::rpc::Rpc;

/// The interval between two checks of a node.
const POLL: Duration = Duration::from_millis(500);

/// Waits until each node of a load answers and has a batch.
///
/// # Errors
/// If a node has no batch in time; names the first such node and the reason.
pub(super) async fn all(options: &LoadOptions, longest: Duration) -> Result<()> {
    let begin = Instant::now();
    let followers = options.followers.iter().map(|(_, rpc)| rpc);
    for rpc in options.submit.iter().chain(followers) {
        while let Some(why) = lacks(rpc).await {
            ensure!(begin.elapsed() < longest, not_ready(rpc, longest, &why));
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

/// Returns why a load cannot begin with a node; `None` if it answers and has a batch.
async fn lacks(rpc: &Rpc) -> Option<String> {
    match rpc.head().await {
        Ok(0) => Some("it has no batch yet".to_owned()),
        Ok(_) => None,
        Err(error) => Some(format!("{error:#}")),
    }
}

fn not_ready(rpc: &Rpc, longest: Duration, why: &str) -> String {
    format!("{} was not ready within {} s (--wait): {why}", rpc.url(), longest.as_secs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::net::TcpSocket;

    use super::*;
    use crate::load::fake_node;

    fn options(submit: Vec<Rpc>) -> LoadOptions {
        LoadOptions { submit, ..LoadOptions::default() }
    }

    /// Returns an unreachable node. Its port is bound, so that nobody else gets it, but nobody listens.
    fn closed() -> (TcpSocket, Rpc) {
        let held = TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let rpc = Rpc::new(&held.local_addr().unwrap().to_string()).unwrap();
        (held, rpc)
    }

    /// Goal: a load with `--wait` names the node that never answered, and why.
    #[tokio::test]
    async fn a_load_waits_for_its_nodes() {
        let (_held, gone) = closed();
        let begin = Instant::now();
        let longest = Duration::from_secs(1);
        let error = all(&options(vec![gone.clone()]), longest).await.unwrap_err().to_string();
        assert!(error.contains(gone.url()) && error.contains("within 1 s (--wait)"), "{error}");
        assert!(begin.elapsed() >= longest);
    }

    /// Goal: a node that answers but has no batch yet is asked again until it has one.
    #[tokio::test]
    async fn a_load_begins_once_its_nodes_have_a_batch() {
        let mut heads = std::iter::once("0x0").chain(std::iter::repeat("0x1"));
        let rpc = fake_node::start(move |_| fake_node::result(json!(heads.next()))).await;
        let begin = Instant::now();
        all(&options(vec![rpc]), Duration::from_secs(60)).await.unwrap();
        assert!(begin.elapsed() >= POLL, "it did not wait for a batch");
    }
}
