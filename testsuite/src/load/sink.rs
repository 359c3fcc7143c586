//! [`Sink`]: a server that answers every call at once and does nothing. The rate at which a generator sends to it is
//! the generator's own limit. A sink slower than the generators understates their capacity; it never overstates it.

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The most bytes of a request: a hundred transactions of 128 KiB each, in hexadecimal digits.
const REQUEST_BYTES_MAX: usize = 32 << 20;
/// A text that each call contains once.
const METHOD: &[u8] = b"\"method\"";

/// A running sink; it ends when it is dropped.
pub(super) struct Sink {
    url: String,
    task: JoinHandle<()>,
}

impl Sink {
    /// Starts a sink on a free port of this machine.
    pub(super) async fn start() -> Result<Sink> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot open a port for the sink")?;
        let url = format!("http://{}", listener.local_addr()?);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Sink { url, task })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers until the connection closes or sends an invalid request.
async fn serve(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer: Vec<u8> = Vec::with_capacity(64 << 10);
    loop {
        let whole = request_len(&buffer);
        let Some(len) = whole.filter(|len| *len <= buffer.len()) else {
            if whole.is_some_and(|len| len > REQUEST_BYTES_MAX) || buffer.len() > REQUEST_BYTES_MAX {
                return;
            }
            match stream.read_buf(&mut buffer).await {
                Ok(count) if count > 0 => continue,
                _ => return,
            }
        };
        let calls = calls(&buffer[..len]);
        buffer.drain(..len);
        if stream.write_all(answer(calls).as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns the length of the first request, head and body; `None` while its head is incomplete.
fn request_len(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|part| part == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length =
        text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    Some(head.saturating_add(length.unwrap_or(0)))
}

fn calls(request: &[u8]) -> usize {
    request.windows(METHOD.len()).filter(|part| *part == METHOD).count()
}

/// Makes one answer per call, with the ids that [`crate::rpc::Rpc`] assigns.
fn answer(calls: usize) -> String {
    let answers = (0..calls).map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0x0"}}"#));
    let body = format!("[{}]", answers.collect::<Vec<_>>().join(","));
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rpc::Rpc;

    #[tokio::test]
    async fn every_call_of_a_batch_has_its_answer() {
        let sink = Sink::start().await.unwrap();
        let rpc = Rpc::new(sink.url()).unwrap();
        for count in [1, 100, 7] {
            let params = vec![json!(["0x".to_owned() + &"ab".repeat(500)]); count];
            let answers = rpc.batch("eth_sendRawTransaction", &params).await.unwrap();
            assert!(answers.len() == count && answers.iter().all(Result::is_ok));
        }
    }

    #[test]
    fn a_request_is_whole_when_its_body_is() {
        assert_eq!(request_len(b"POST / HTTP/1.1\r\ncontent-"), None);
        assert_eq!(request_len(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"), Some(43));
        assert_eq!(request_len(b"GET / HTTP/1.1\r\n\r\n"), Some(18));
    }
}
