//! Requests to a running node, by HTTP.

mod node_url;
mod stream;

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    time::Duration,
};

use miette::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use slipstream_base::operator_token::OperatorToken;

pub(super) use self::node_url::NodeUrl;
use self::stream::{Stream, is_of_tls};
use super::exit::{CommandFailure, Exit, OrFail as _};

/// Time limit for an answer. A running node answers at once. A long answer gets more time: see [`Stream`].
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of the head of a streamed answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum bytes of an answer that are read: a status with thousands of peers fits.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The JSON-RPC error codes of a busy node: geth's "request timed out" and EIP-1474's "limit exceeded".
const BUSY_CODES: [i64; 2] = [-32002, -32005];

/// Requests a page of the node.
pub(super) fn ask(node: &NodeUrl, path: &str) -> Result<String> {
    ask_within(node, path, TIMEOUT)
}

/// As [`ask`], within `patience`.
pub(super) fn ask_within(node: &NodeUrl, path: &str, patience: Duration) -> Result<String> {
    let answer = request(node, &format!("GET {} HTTP/1.0", node.path(path)), "", patience);
    open(node, path, patience, answer)
}

/// Requests a page of the node, and returns its body whatever its status.
pub(super) fn page(node: &NodeUrl, path: &str) -> Result<String> {
    let answer = request(node, &format!("GET {} HTTP/1.0", node.path(path)), "", TIMEOUT);
    match answer.as_ref().ok().and_then(|answer| parts(answer)) {
        Some((_, body)) => Ok(body.to_owned()),
        None => open(node, path, TIMEOUT, answer),
    }
}

/// Posts a JSON document to the node, and returns the answer.
pub(super) fn post(node: &NodeUrl, path: &str, json: &str) -> Result<String> {
    let head = format!(
        "POST {} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}",
        node.path(path),
        json.len()
    );
    open(node, path, TIMEOUT, request(node, &head, json, TIMEOUT))
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

#[derive(Deserialize)]
struct RpcError {
    code: i64,
    message: String,
}

/// Makes one JSON-RPC call to the node, and returns the text of its result.
pub(super) fn rpc(node: &NodeUrl, method: &str, params: &Value) -> Result<String> {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let Answer { result, error } = parse(&post(node, "/", &request.to_string())?)?;
    match error {
        Some(error) => Err(refused(node, method, &error).into()),
        None => Ok(result.to_string()),
    }
}

/// The failure for a call that the node refuses. Some refusals are temporary: a resource is in use.
fn refused(node: &NodeUrl, method: &str, RpcError { code, message }: &RpcError) -> CommandFailure {
    let exit = if BUSY_CODES.contains(code) { Exit::TryAgain } else { Exit::Failure };
    CommandFailure::new(exit, format!("{node} refuses {method}: {} (code {code})", node.masked(message)))
}

/// Sends the node an order in its operator's name, and returns the answer. The text of a refusal is shown unchanged.
pub(super) fn order(
    node: &NodeUrl,
    method: &str,
    path: &str,
    token: &OperatorToken,
    json: &str,
) -> Result<String> {
    let (target, length) = (node.path(path), json.len());
    let head = format!(
        "{method} {target} HTTP/1.0\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {length}",
        token.reveal()
    );
    let answer = request(node, &head, json, TIMEOUT);
    if let Ok(answer) = &answer
        && let Some((line, body)) = parts(answer)
        && line.split_whitespace().nth(1).is_some_and(|code| code.starts_with('4') || code == "502")
    {
        return Err(CommandFailure::new(Exit::Failure, node.masked(body.trim())).into());
    }
    open(node, path, TIMEOUT, answer)
}

/// Follows the stream at a path until it ends, with extra header lines in the request. The head must arrive within
/// `silence_max`. From then on, a read fails after `silence_max` without data.
pub(super) fn follow(
    node: &NodeUrl,
    path: &str,
    headers: &str,
    silence_max: Duration,
) -> Result<BufReader<Stream>> {
    let opened = || -> io::Result<(String, BufReader<Stream>)> {
        let mut stream = Stream::connect(node, TIMEOUT)?;
        stream.end_within(silence_max);
        let (target, host) = (node.path(path), &node.authority);
        stream.write_all(format!("GET {target} HTTP/1.0\r\nHost: {host}\r\n{headers}\r\n").as_bytes())?;
        stream.flush()?;
        let (mut reader, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
            if reader.by_ref().take(HEAD_BYTES_MAX as u64).read_line(&mut head)? == 0 {
                break;
            }
        }
        if !parts(&head).is_some_and(|(line, _)| is_ok(line)) {
            reader.by_ref().take(ANSWER_BYTES_MAX).read_to_string(&mut head)?;
        }
        reader.get_mut().go_on(silence_max);
        Ok((head, reader))
    };
    let (head, reader) = opened().map_err(|error| unanswered(node, &error, silence_max))?;
    open(node, path, TIMEOUT, Ok(head)).map(|_| reader)
}

fn is_ok(line: &str) -> bool {
    line.split_whitespace().nth(1) == Some("200")
}

fn open(node: &NodeUrl, path: &str, patience: Duration, answer: io::Result<String>) -> Result<String> {
    let answer = answer.map_err(|error| unanswered(node, &error, patience))?;
    let (line, body) = parts(&answer).ok_or_else(|| {
        CommandFailure::new(
            Exit::Failure,
            format!("the program at {node} is not a node: it does not speak HTTP"),
        )
    })?;
    match line.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        // The answer of a node that is starting.
        Some("503") => {
            let text = format!("the node at {node} is {}; try again later", node.masked(body.trim()));
            Err(CommandFailure::new(Exit::TryAgain, text).into())
        }
        _ => {
            let said = node.masked(&format!("`{line}`: {}", body.trim()));
            let text = format!("{node}{path} answers {said}");
            Err(CommandFailure::new(Exit::Failure, text).into())
        }
    }
}

/// The status line and the body.
fn parts(answer: &str) -> Option<(&str, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?, body)).filter(|(line, _)| line.starts_with("HTTP/"))
}

/// Sends a request with HTTP/1.0, so that the answer ends with the connection.
fn request(node: &NodeUrl, head: &str, body: &str, patience: Duration) -> io::Result<String> {
    let mut stream = Stream::connect(node, patience)?;
    // Sent in one piece: a server that refuses a request by its first bytes and closes would interrupt the rest.
    stream.write_all(format!("{head}\r\nHost: {}\r\n\r\n{body}", node.authority).as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    match stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer) {
        // Some servers end TLS without a close_notify. Then an intermediary could have truncated the answer.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && is_whole(&answer) => {}
        read => {
            read?;
        }
    }
    String::from_utf8(answer)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the answer is not UTF-8"))
}

/// Whether an answer is as long as its header declares.
fn is_whole(answer: &[u8]) -> bool {
    let Some((head, body)) =
        std::str::from_utf8(answer).ok().and_then(|answer| answer.split_once("\r\n\r\n"))
    else {
        return false;
    };
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    length.is_some_and(|(_, length)| length.trim().parse::<usize>() == Ok(body.len()))
}

fn unanswered(node: &NodeUrl, error: &io::Error, patience: Duration) -> CommandFailure {
    if is_of_tls(error) {
        let text = format!(
            "no TLS with {node}: {error}; a node itself speaks only http, and a proxy needs a certificate that this machine \
             trusts, or that the variable SSL_CERT_FILE names"
        );
        return CommandFailure::new(Exit::Failure, text);
    }
    if error.kind() == io::ErrorKind::InvalidData {
        let text = format!("the program at {node} is not a node: its answer is not UTF-8");
        return CommandFailure::new(Exit::Failure, text);
    }
    let text = match error.kind() {
        // `WouldBlock` is the kernel's error for a read timeout.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
            "no answer in {} s from {node}: the node is overloaded or halted, or another program listens there; \
             look at the node's log, and try again",
            patience.as_secs_f64()
        ),
        io::ErrorKind::ConnectionRefused => {
            format!(
                "nothing listens at {node}: the node is not running, or its api.listen is another address"
            )
        }
        _ => format!("cannot ask the node at {node} ({error}); is it running, and is this its api.listen?"),
    };
    CommandFailure::new(Exit::TryAgain, text)
}

/// Parses a node's JSON.
pub(super) fn parse<T: serde::de::DeserializeOwned>(body: &str) -> Result<T> {
    serde_json::from_str(body).map_err(Mistaken).or_fail()
}

/// The answer has another form than this program expects.
#[derive(Debug, thiserror::Error)]
#[error("the answer is not what this program expects ({0}); does the node run the same version?")]
struct Mistaken(#[source] serde_json::Error);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::{
        super::{exit::is_temporary, output::pause},
        *,
    };

    fn here() -> NodeUrl {
        NodeUrl::parse("http://here:1").unwrap()
    }

    /// Goal: a truncated answer is not mistaken for a complete one.
    #[test]
    fn a_whole_answer_is_as_long_as_it_says() {
        assert!(is_whole(b"HTTP/1.0 200 OK\r\nContent-length: 2\r\n\r\n{}"));
        for cut in ["HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}", "HTTP/1.0 200 OK\r\n\r\n{}", "HTTP/1.0"]
        {
            assert!(!is_whole(cut.as_bytes()), "{cut}");
        }
    }

    /// The result of `ask` for a server with this answer.
    fn asked(answer: &'static [u8]) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(answer).unwrap();
        });
        let said = ask(&NodeUrl::of(address), "/v1/status");
        server.join().unwrap();
        said
    }

    #[test]
    fn answers_are_told_apart() {
        assert_eq!(asked(b"HTTP/1.0 200 OK\r\n\r\n{}").unwrap(), "{}");
        let text =
            asked(b"HTTP/1.1 503 Service Unavailable\r\n\r\nstarting: opening the store\n").unwrap_err();
        assert!(text.to_string().ends_with("is starting: opening the store; try again later"), "{text}");
        let text = asked(b"HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err();
        assert!(text.to_string().contains("/v1/status answers `HTTP/1.1 404 Not Found`"), "{text}");
        let text = asked(b"SSH-2.0-x\r\n\r\n").unwrap_err();
        assert!(text.to_string().contains("does not speak HTTP"), "{text}");
        let text = asked(b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe").unwrap_err();
        assert!(text.to_string().ends_with("is not UTF-8") && !is_temporary(&text), "{text}");
        assert!(parse::<Vec<u8>>("{}").unwrap_err().to_string().contains("same version"));
    }

    /// Goal: a server that sends a byte now and then blocks nobody beyond the time of the whole request.
    #[test]
    fn an_answer_that_drips_ends_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = NodeUrl::of(listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Until the client disconnects, which it does.
            for _ in 0..500 {
                if stream.write_all(b"H").is_err() {
                    return;
                }
                pause(Duration::from_millis(20));
            }
        });
        let text = ask_within(&node, "/v1/status", Duration::from_millis(300)).unwrap_err();
        assert!(text.to_string().starts_with("no answer in 0.3 s from "), "{text}");
        assert!(is_temporary(&text));
        server.join().unwrap();
    }

    /// Goal: a command's exit code shows its user that the same call may succeed later.
    #[test]
    fn a_call_that_is_refused_for_now_is_tried_again() {
        let error = |code| RpcError { code, message: "no".into() };
        for (code, exit) in [(-32005, true), (-32002, true), (-32000, false), (-32601, false)] {
            let failed = miette::Report::from(refused(&here(), "slipstream_getProof", &error(code)));
            assert_eq!(is_temporary(&failed), exit, "{failed}");
            assert!(failed.to_string().ends_with(&format!("getProof: no (code {code})")), "{failed}");
        }
    }

    #[test]
    fn silence_is_not_told_in_the_words_of_the_kernel() {
        let text = unanswered(&here(), &io::ErrorKind::WouldBlock.into(), TIMEOUT).to_string();
        assert!(text.starts_with("no answer in 5 s from http://here:1"), "{text}");
        // Bound but not listening, so that no other process gets its port.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = NodeUrl::of(held.local_addr().unwrap());
        let text = ask(&closed, "/v1/status").unwrap_err().to_string();
        assert!(text.starts_with(&format!("nothing listens at {closed}: the node is not running")), "{text}");
    }
}
