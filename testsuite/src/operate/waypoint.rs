//! [`config_of`]: the configuration of a node whose trust starts at a waypoint from another node, instead of the
//! genesis.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use super::rewritten::rewrite;
use crate::rpc::Rpc;

/// The name of the file, beside the node's data.
const FILE: &str = "waypoint.yaml";
const POLL: Duration = Duration::from_millis(500);

/// Returns the path of the configuration, which is made only once: a restarted node keeps its waypoint.
///
/// # Errors
/// If no waypoint comes in this time, or the file cannot be written.
pub(super) async fn config_of(config: &Path, data: &Path, from: &str, patience: Duration) -> Result<PathBuf> {
    let made = data.with_file_name(FILE);
    if made.exists() {
        return Ok(made);
    }
    let waypoint = told(&Rpc::new(from)?, patience).await?;
    rewrite(config, data, FILE, |keys| {
        keys.remove("genesis");
        keys.insert("waypoint".to_owned(), waypoint.into());
    })
}

/// Waits for a node's newest waypoint.
async fn told(rpc: &Rpc, patience: Duration) -> Result<String> {
    let begin = Instant::now();
    loop {
        let why = match rpc.page("/v1/status").await {
            Ok(status) => match status["waypoint"].as_str() {
                Some(waypoint) => return Ok(waypoint.to_owned()),
                None => "no batch is certified yet".to_owned(),
            },
            Err(error) => format!("{error:#}"),
        };
        if begin.elapsed() >= patience {
            bail!("{} told no waypoint within {} s: {why}", rpc.url(), patience.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use slipstream_config::Overrides;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::accounts::node_key;

    /// Goal: the node's own parser accepts the configuration, which has the waypoint, no genesis, and otherwise the
    /// same keys. A second start requests no waypoint.
    #[tokio::test]
    async fn a_waypoint_takes_the_place_of_the_genesis() {
        let dir = tempfile::tempdir().unwrap();
        let (config, data) = (dir.path().join("node.yaml"), dir.path().join("data"));
        let peer = node_key("s", 0).public();
        let text = format!(
            "role: fullnode\ngenesis: ../genesis.json\ndata_dir: data\nnetwork:\n  peers: ['{peer}@near:7400']\n"
        );
        fs::write(&config, text).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let from = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            for waypoint in ["null".to_owned(), format!("\"12:0x{}\"", "ab".repeat(32))] {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 4_096]).await.unwrap() > 0);
                let body = format!("{{\"waypoint\":{waypoint}}}");
                let length = body.len();
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                stream.write_all((head + &body).as_bytes()).await.unwrap();
            }
        });
        let made = config_of(&config, &data, &from, Duration::from_secs(60)).await.unwrap();
        server.await.unwrap();
        let loaded = slipstream_config::load(&made, &Overrides::default()).unwrap().config;
        assert_eq!((loaded.genesis, loaded.waypoint.unwrap().number.get()), (None, 12));
        assert_eq!((loaded.data_dir, loaded.network.peers.len()), (data.clone(), 1));
        let again = config_of(&config, &data, &from, Duration::ZERO).await.unwrap();
        assert_eq!(again, made);
    }

    #[tokio::test]
    async fn who_tells_no_waypoint_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (config, data) = (dir.path().join("node.yaml"), dir.path().join("data"));
        let error = config_of(&config, &data, "http://127.0.0.1:1", Duration::ZERO).await.unwrap_err();
        assert!(error.to_string().contains("http://127.0.0.1:1 told no waypoint within 0 s"), "{error}");
    }
}
