//! Questions to a running node: one HTTP request each.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs},
    time::Duration,
};

use miette::{Result, miette};
use serde::Deserialize;
use serde_json::{Value, json};

use super::exit::{Exit, Failed, OrFail as _};
use crate::operator_token::OperatorToken;

/// A node that is alive answers at once.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest head of an answer that goes on.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest answer that is read: a status with thousands of peers fits.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The codes of JSON-RPC for a node that is busy: geth's number of "request timed out", and EIP-1474's of "limit exceeded".
const BUSY_CODES: [i64; 2] = [-32002, -32005];

/// Where a node is asked that listens there: one that listens on all addresses is asked on loopback.
pub(super) fn authority(mut listen: SocketAddr) -> String {
    if listen.ip().is_unspecified() {
        listen.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    listen.to_string()
}

/// The HOST:PORT of a node's API.
pub(super) fn authority_of(url: &str) -> Result<String> {
    let rest = url.strip_prefix("http://").ok_or_else(|| miette!("{url} is not a URL http://HOST:PORT"))?;
    Ok(rest.trim_end_matches('/').to_owned())
}

/// Asks the node at HOST:PORT for a page.
pub(super) fn ask(authority: &str, path: &str) -> Result<String> {
    ask_within(authority, path, TIMEOUT)
}

/// As [`ask`], with so much patience for each step.
pub(super) fn ask_within(authority: &str, path: &str, patience: Duration) -> Result<String> {
    open(authority, path, patience, request(authority, &format!("GET {path} HTTP/1.0"), "", patience))
}

/// Asks the node at HOST:PORT for a page, and takes every answer, with any status.
pub(super) fn page(authority: &str, path: &str) -> Result<String> {
    let answer = request(authority, &format!("GET {path} HTTP/1.0"), "", TIMEOUT);
    match answer.as_ref().ok().and_then(|answer| parts(answer)) {
        Some((_, body)) => Ok(body.to_owned()),
        None => open(authority, path, TIMEOUT, answer),
    }
}

/// Gives the node at HOST:PORT a JSON document, and takes its answer.
pub(super) fn post(authority: &str, path: &str, json: &str) -> Result<String> {
    let head =
        format!("POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}", json.len());
    open(authority, path, TIMEOUT, request(authority, &head, json, TIMEOUT))
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

/// One JSON-RPC call of the node at HOST:PORT; the text of its result.
pub(super) fn rpc(authority: &str, method: &str, params: &Value) -> Result<String> {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let Answer { result, error } = parse(&post(authority, "/", &request.to_string())?)?;
    match error {
        Some(error) => Err(refused(authority, method, &error).into()),
        None => Ok(result.to_string()),
    }
}

/// A call that a node does not answer: some for now, as their resources are in use.
fn refused(authority: &str, method: &str, RpcError { code, message }: &RpcError) -> Failed {
    let exit = if BUSY_CODES.contains(code) { Exit::TryAgain } else { Exit::Failure };
    Failed::new(exit, format!("http://{authority} refuses {method}: {message} (code {code})"))
}

/// Tells the node at HOST:PORT something in its operator's name, and takes its answer. The text of a node that refuses is shown
/// unchanged.
pub(super) fn order(
    authority: &str,
    method: &str,
    path: &str,
    token: &OperatorToken,
    json: &str,
) -> Result<String> {
    let length = json.len();
    let head = format!(
        "{method} {path} HTTP/1.0\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {length}",
        token.reveal()
    );
    let answer = request(authority, &head, json, TIMEOUT);
    if let Ok(answer) = &answer
        && let Some((line, body)) = parts(answer)
        && line.split_whitespace().nth(1).is_some_and(|code| code.starts_with('4') || code == "502")
    {
        return Err(Failed::new(Exit::Failure, body.trim()).into());
    }
    open(authority, path, TIMEOUT, answer)
}

/// Follows what the node at HOST:PORT tells at a path for as long as it tells, with further lines of the request's head. A read fails when
/// nothing came for so long.
pub(super) fn follow(
    authority: &str,
    path: &str,
    headers: &str,
    silence_max: Duration,
) -> Result<BufReader<TcpStream>> {
    let opened = || -> io::Result<(String, BufReader<TcpStream>)> {
        let mut stream = connect(authority, TIMEOUT)?;
        stream.set_read_timeout(Some(silence_max))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\n{headers}\r\n").as_bytes())?;
        let (mut reader, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
            if reader.by_ref().take(HEAD_BYTES_MAX as u64).read_line(&mut head)? == 0 {
                break;
            }
        }
        if !parts(&head).is_some_and(|(line, _)| is_ok(line)) {
            reader.by_ref().take(ANSWER_BYTES_MAX).read_to_string(&mut head)?;
        }
        Ok((head, reader))
    };
    let (head, reader) = opened().map_err(|error| unanswered(authority, &error, silence_max))?;
    open(authority, path, TIMEOUT, Ok(head)).map(|_| reader)
}

fn is_ok(line: &str) -> bool {
    line.split_whitespace().nth(1) == Some("200")
}

fn open(authority: &str, path: &str, patience: Duration, answer: io::Result<String>) -> Result<String> {
    let answer = answer.map_err(|error| unanswered(authority, &error, patience))?;
    let (line, body) = parts(&answer).ok_or_else(|| {
        Failed::new(
            Exit::Failure,
            format!("the program at http://{authority} is not a node: it does not speak HTTP"),
        )
    })?;
    match line.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        // A node that is starting answers this.
        Some("503") => {
            let text = format!("the node at http://{authority} is {}; try again later", body.trim());
            Err(Failed::new(Exit::TryAgain, text).into())
        }
        _ => {
            let text = format!("http://{authority}{path} answers `{line}`: {}", body.trim());
            Err(Failed::new(Exit::Failure, text).into())
        }
    }
}

/// The first line and the body.
fn parts(answer: &str) -> Option<(&str, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?, body)).filter(|(line, _)| line.starts_with("HTTP/"))
}

/// HTTP/1.0, so that the answer ends where the connection does.
fn request(authority: &str, head: &str, body: &str, patience: Duration) -> io::Result<String> {
    let mut stream = connect(authority, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    // In one piece: a server that refuses a request by its first bytes and closes would break off the rest.
    stream.write_all(format!("{head}\r\nHost: {authority}\r\n\r\n{body}").as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// To the first address that answers: a name such as `localhost` has several.
fn connect(authority: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn unanswered(authority: &str, error: &io::Error, patience: Duration) -> Failed {
    let text = match error.kind() {
        // The first is the kernel's name for a timeout of a read.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
            "no answer in {} s from http://{authority}: the node is overloaded or halted, or another program listens there; \
             look at the node's log, and try again",
            patience.as_secs_f64()
        ),
        io::ErrorKind::ConnectionRefused => format!(
            "nobody listens at http://{authority}: the node does not run, or its api.listen is another address"
        ),
        _ => format!(
            "cannot ask the node at http://{authority} ({error}); is it running, and is this its api.listen?"
        ),
    };
    Failed::new(Exit::TryAgain, text)
}

/// Reads a node's JSON.
pub(super) fn parse<T: serde::de::DeserializeOwned>(body: &str) -> Result<T> {
    serde_json::from_str(body).map_err(Mistaken).or_fail()
}

/// The answer is none of this program's.
#[derive(Debug, thiserror::Error)]
#[error("the answer is not what this program expects ({0}); is the node of the same version?")]
struct Mistaken(#[source] serde_json::Error);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::{super::exit::is_temporary, *};

    /// The result of `ask` for a server with this answer.
    fn asked(answer: &'static str) -> Result<String> {
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
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let said = ask(&address.to_string(), "/v1/status");
        server.join().unwrap();
        said
    }

    #[test]
    fn answers_are_told_apart() {
        assert_eq!(asked("HTTP/1.0 200 OK\r\n\r\n{}").unwrap(), "{}");
        let text =
            asked("HTTP/1.1 503 Service Unavailable\r\n\r\nstarting: opening the store\n").unwrap_err();
        assert!(text.to_string().ends_with("is starting: opening the store; try again later"), "{text}");
        let text = asked("HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err();
        assert!(text.to_string().contains("/v1/status answers `HTTP/1.1 404 Not Found`"), "{text}");
        let text = asked("SSH-2.0-x\r\n\r\n").unwrap_err();
        assert!(text.to_string().contains("does not speak HTTP"), "{text}");
        assert!(parse::<Vec<u8>>("{}").unwrap_err().to_string().contains("same version"));
    }

    /// Goal: the user of a command can tell from its exit code that the same call may be answered later.
    #[test]
    fn a_call_that_is_refused_for_now_is_tried_again() {
        let error = |code| RpcError { code, message: "no".into() };
        for (code, exit) in [(-32005, true), (-32002, true), (-32000, false), (-32601, false)] {
            let failed = miette::Report::from(refused("here:1", "slipstream_getProof", &error(code)));
            assert_eq!(is_temporary(&failed), exit, "{failed}");
            assert!(failed.to_string().ends_with(&format!("getProof: no (code {code})")), "{failed}");
        }
    }

    #[test]
    fn silence_is_not_told_in_the_words_of_the_kernel() {
        let text = unanswered("here:1", &io::ErrorKind::WouldBlock.into(), TIMEOUT).to_string();
        assert!(text.starts_with("no answer in 5 s from http://here:1"), "{text}");
        // Bound, so that nobody else is given its port, and not listening.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = held.local_addr().unwrap().to_string();
        let text = ask(&closed, "/v1/status").unwrap_err().to_string();
        assert!(
            text.starts_with(&format!("nobody listens at http://{closed}: the node does not run")),
            "{text}"
        );
        assert_eq!(authority("0.0.0.0:7".parse().unwrap()), "127.0.0.1:7");
        assert_eq!(authority("192.0.2.1:7".parse().unwrap()), "192.0.2.1:7");
    }
}
