//! A node for tests, which answers JSON-RPC calls by a function.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::rpc::Rpc;

/// Starts a node that answers one call per connection: `answer` gets the request, and returns the body.
pub(super) async fn start(mut answer: impl FnMut(&str) -> Value + Send + 'static) -> Rpc {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rpc = Rpc::new(&listener.local_addr().unwrap().to_string()).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut request, mut part) = (String::new(), [0; 4_096]);
            while !request.contains("params") {
                match stream.read(&mut part).await {
                    Ok(0) | Err(_) => break,
                    Ok(length) => request += &String::from_utf8_lossy(&part[..length]),
                }
            }
            let body = answer(&request).to_string();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes()).await;
        }
    });
    rpc
}

/// The body of an answer with this result.
pub(super) fn result(value: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 0, "result": value })
}
