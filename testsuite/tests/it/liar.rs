//! A node that lies: an HTTP server that forwards calls to a real node and alters the results.

use std::sync::Arc;

use alloy_primitives::U256;
use serde_json::{Value, json};
use slipnet::rpc::{Rpc, RpcError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// The most bytes of a request; those of the tests are far shorter.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The lie about a method's result.
pub(crate) type Lie = Arc<dyn Fn(&str, Value) -> Value + Send + Sync>;

/// Serves a lie until the test ends. Returns its address as a URL.
pub(crate) async fn serve(node: Rpc, lie: Lie) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, node.clone(), lie.clone()));
        }
    });
    url
}

/// Handles one request per connection.
async fn answer(mut stream: TcpStream, node: Rpc, lie: Lie) {
    let Some(request) = body(&mut stream).await else { return };
    let request: Value = serde_json::from_slice(&request).unwrap();
    let (method, id) = (request["method"].as_str().unwrap(), &request["id"]);
    let answer = match node.call::<Value>(method, request["params"].clone()).await {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": lie(method, result) }),
        Err(error) => {
            let RpcError { code, message } = error.downcast_ref::<RpcError>().expect("the node answers");
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
        }
    };
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    let _ = stream.write_all((head + &answer).as_bytes()).await;
}

async fn body(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
            let whole = head.len() + 4 + length.trim().parse::<usize>().ok()?;
            if request.len() >= whole {
                return Some(request[head.len() + 4..whole].to_vec());
            }
        }
        if request.len() > REQUEST_BYTES_MAX || stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
}

/// Alters one field of the answers to `slipstream_getProof`.
pub(crate) fn alter(change: impl Fn(&mut Value) + Send + Sync + 'static) -> Lie {
    Arc::new(move |method, mut result| {
        if method == "slipstream_getProof" {
            change(&mut result);
        }
        result
    })
}

/// Increments a quantity.
pub(crate) fn raise(value: &mut Value) {
    let number: U256 = value.as_str().unwrap().parse().unwrap();
    *value = format!("{:#x}", number + U256::from(1)).into();
}

/// Flips the last bit of a hexadecimal text.
pub(crate) fn flip(value: &mut Value) {
    let mut text = value.as_str().unwrap().to_owned();
    let last = text.pop().unwrap().to_digit(16).unwrap() ^ 1;
    text.push(char::from_digit(last, 16).unwrap());
    *value = text.into();
}
