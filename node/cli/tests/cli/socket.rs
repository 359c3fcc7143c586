//! JSON-RPC over WebSocket, as programs, pages of other sites and attackers meet it.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{
    self, Error, Message, WebSocket,
    client::IntoClientRequest,
    error::ProtocolError,
    handshake::client::generate_key,
    protocol::{Role, frame::coding::CloseCode},
};

use crate::{
    chain::{Chain, PATIENCE, Running, quantity, wait},
    http::connect_from,
};

/// A socket, and the notifications that it received between answers.
struct Socket {
    inner: WebSocket<TcpStream>,
    news: Vec<Value>,
}

impl Socket {
    fn open(node: &Running, path: &str) -> Socket {
        Socket::on(TcpStream::connect(&node.api).unwrap(), &node.api, path).unwrap()
    }

    /// Opens a socket on a connection; returns the status code if it is refused.
    fn on(stream: TcpStream, host: &str, path: &str) -> Result<Socket, u16> {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("ws://{host}{path}").into_client_request().unwrap();
        match tungstenite::client::client(request, stream) {
            Ok((inner, answer)) => {
                assert!(answer.headers().get("sec-websocket-extensions").is_none(), "nothing is compressed");
                Ok(Socket { inner, news: Vec::new() })
            }
            Err(tungstenite::HandshakeError::Failure(Error::Http(answer))) => Err(answer.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    fn say(&mut self, value: &Value) {
        self.inner.send(Message::text(value.to_string())).unwrap();
    }

    fn hear(&mut self) -> Value {
        loop {
            match self.inner.read().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.say(&json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }));
        loop {
            let heard = self.hear();
            if heard.get("id").is_some() {
                assert_eq!(heard["id"], 7, "{heard}");
                return heard;
            }
            self.news.push(heard);
        }
    }

    /// The next notification of a subscription.
    fn next(&mut self, subscription: &Value) -> Value {
        loop {
            let mine = self.news.iter().position(|one| one["params"]["subscription"] == *subscription);
            match mine {
                Some(index) => return self.news.remove(index)["params"]["result"].take(),
                None => {
                    let heard = self.hear();
                    assert_eq!(heard["method"], "eth_subscription", "{heard}");
                    self.news.push(heard);
                }
            }
        }
    }

    /// The node's reason to close the socket; `None` if the connection ends without one.
    fn closed(&mut self) -> Option<(u16, String)> {
        loop {
            match self.inner.read() {
                Ok(Message::Close(Some(frame))) => {
                    return Some((frame.code.into(), frame.reason.to_string()));
                }
                Ok(_) => {}
                Err(
                    Error::Io(_)
                    | Error::ConnectionClosed
                    | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                ) => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Goal: everything available over HTTP is available over a socket, news arrives in order and without gaps, and a stop
/// is announced.
#[test]
fn subscriptions_over_a_socket() {
    let chain = Chain::new();
    chain.configure("consensus: { batch_interval_ms: 50, empty_batch_interval_ms: 50 }\n");
    let node = Running::start(&chain);
    let (mut socket, mut other) = (Socket::open(&node, "/"), Socket::open(&node, "/ws"));
    assert_eq!(socket.ask("eth_chainId", json!([]))["result"], "0x1cbd");
    assert_eq!(socket.ask("eth_nothing", json!([]))["error"]["code"], -32601);
    let call = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "net_version", "params": [] });
    socket.say(&json!([call(1), call(2)]));
    let both = json!([{ "jsonrpc": "2.0", "id": 1, "result": "7357" }, { "jsonrpc": "2.0", "id": 2, "result": "7357" }]);
    assert_eq!(socket.hear(), both);
    socket.inner.send(Message::binary(call(3).to_string())).unwrap();
    assert_eq!(socket.hear()["id"], 3);
    // A long answer, which arrives in several frames.
    socket.say(&json!(vec![json!({ "jsonrpc": "2.0", "id": 1, "method": "web3_clientVersion" }); 1_000]));
    let long = socket.hear();
    assert!(long.to_string().len() > 64 << 10 && long.as_array().unwrap().len() == 1_000);
    assert!(long.as_array().unwrap().iter().all(|one| one["result"] == long[0]["result"]), "{}", long[0]);
    socket.inner.send(Message::text("{")).unwrap();
    assert_eq!(socket.hear()["error"]["code"], -32700);
    // Many requests at once, each answered under its id.
    (0..100).for_each(|id| socket.say(&call(id)));
    let mut ids: Vec<_> = (0..100).map(|_| socket.hear()["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..100));

    let heads = socket.ask("eth_subscribe", json!(["newHeads"]))["result"].clone();
    let more = other.ask("eth_subscribe", json!(["newHeads"]))["result"].clone();
    let told: Vec<Value> = (0..20).map(|_| socket.next(&heads)).collect();
    let numbers: Vec<u64> = told.iter().map(|head| quantity(&head["number"])).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    assert!(told.windows(2).all(|pair| pair[1]["parentHash"] == pair[0]["hash"]));
    let block = socket.ask("eth_getBlockByNumber", json!([told[3]["number"], false]));
    assert_eq!(block["result"]["hash"], told[3]["hash"]);
    let first = other.next(&more);
    let same = told.iter().find(|head| head["number"] == first["number"]);
    assert!(same.is_none_or(|head| *head == first), "both are told the same");
    assert_eq!(socket.ask("eth_unsubscribe", json!([heads]))["result"], true);
    assert_eq!(socket.ask("eth_unsubscribe", json!([heads]))["error"]["message"], "subscription not found");
    assert_eq!(socket.ask("eth_unsubscribe", json!([more]))["error"]["code"], -32000, "it is another's");
    assert_eq!(node.rpc("eth_subscribe", json!(["newHeads"]))["error"]["code"], -32001);

    let metrics = node.http("GET /metrics", "");
    for line in ["slipstream_ws_sockets 2", "slipstream_ws_subscriptions{kind=\"newHeads\"} 1"] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    socket.inner.close(None).unwrap();
    // The node's close frame has no code, like the client's.
    let farewell = loop {
        match socket.inner.read().unwrap() {
            Message::Ping(_) => {}
            other => break other,
        }
    };
    assert_eq!(farewell, Message::Close(None));
    let deadline = Instant::now() + PATIENCE;
    while !node.http("GET /metrics", "").contains("slipstream_ws_closed_total{reason=\"client\"} 1") {
        assert!(Instant::now() < deadline, "it is not closed");
        wait();
    }
    let stopping = std::thread::spawn(move || node.stop());
    assert_eq!(other.closed(), Some((CloseCode::Away.into(), "this node stops".to_owned())));
    stopping.join().unwrap();
}

/// The status code of a request to become a socket.
fn upgraded(node: &Running, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(&node.api).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let key = generate_key();
    write!(
        stream,
        "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{headers}\r\n"
    )
    .unwrap();
    let mut answer = vec![0; 4_096];
    let len = stream.read(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer[..len]).into_owned();
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

/// Goal: pages of other sites cannot open a socket, under any name. Plain requests are told what to do, and the
/// operator may admit pages.
#[test]
fn pages_of_other_sites_are_refused() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    let host = format!("Host: {}\r\n", node.api);
    for (headers, status) in [
        (host.clone(), 101),
        (format!("{host}Origin: http://{}\r\n", node.api), 101),
        (format!("{host}Origin: https://evil.example\r\n"), 403),
        (format!("{host}Origin: http://localhost:3000\r\n"), 403),
        (format!("{host}Origin: null\r\n"), 403),
        ("Host: evil.example\r\nOrigin: http://evil.example\r\n".into(), 403),
    ] {
        assert_eq!(upgraded(&node, &headers).0, status, "{headers}");
    }
    let (_, text) = upgraded(&node, &format!("{host}Origin: https://evil.example\r\n"));
    assert!(text.contains("https://evil.example is not this node") && text.contains("`api.cors`"), "{text}");
    let (head, _) = node.answer("GET /ws", "");
    assert!(head.contains(" 405 ") && head.to_lowercase().contains("allow: post"), "{head}");
    node.stop();

    chain.configure("api: { listen: \"127.0.0.1:0\", cors: true }\n");
    let node = Running::start(&chain);
    let host = format!("Host: {}\r\n", node.api);
    assert_eq!(upgraded(&node, &format!("{host}Origin: https://dapp.example\r\n")).0, 101);
    assert_eq!(upgraded(&node, "Host: evil.example\r\nOrigin: https://dapp.example\r\n").0, 403);
    node.stop();
}

/// Goal: a socket whose message is too long, malformed or too frequent is closed with the matching code, and others
/// continue.
#[test]
fn bad_messages_end_their_socket() {
    let chain = Chain::new();
    chain.configure("api: { listen: \"127.0.0.1:0\", max_body_bytes: 300000 }\n");
    let node = Running::start(&chain);
    let mut honest = Socket::open(&node, "/");

    // The head of a 4 GiB frame is enough, and so are fragments that are too long together.
    let mut huge = Socket::open(&node, "/");
    huge.inner.get_mut().write_all(&[0x81, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4]).unwrap();
    let (code, reason) = huge.closed().unwrap();
    assert!(code == 1009 && reason.contains("`api.max_body_bytes`"), "{code} {reason}");
    let mut parts = Socket::open(&node, "/");
    let head = [0x7e | 0x80, 0xff, 0xff, 0, 0, 0, 0];
    for first in [0x01_u8, 0, 0, 0, 0] {
        let mut frame = vec![first];
        frame.extend(head);
        frame.extend(vec![b'['; 65_535]);
        let _ = parts.inner.get_mut().write_all(&frame);
    }
    assert!(parts.closed().is_none_or(|(code, _)| code == 1009));
    // Endless empty fragments: the node accepts only a limited number of their bytes.
    let mut empty = Socket::open(&node, "/");
    let frames: Vec<u8> = [0x00, 0x80, 0, 0, 0, 0].repeat(20_000);
    empty.inner.get_mut().write_all(&[0x01, 0x80, 0, 0, 0, 0]).unwrap();
    let sent = (0..100).take_while(|_| empty.inner.get_mut().write_all(&frames).is_ok()).count();
    assert!(sent < 100, "it is cut off");

    let mut garbage = Socket::open(&node, "/");
    garbage.inner.get_mut().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(garbage.closed().unwrap().0, 1002);
    let mut pinging = Socket::open(&node, "/");
    for _ in 0..100 {
        if pinging.inner.send(Message::Ping(Vec::new().into())).is_err() {
            break;
        }
    }
    assert!(pinging.closed().is_none_or(|(code, _)| code == 1008));
    assert_eq!(honest.ask("eth_chainId", json!([]))["result"], "0x1cbd");
    // A client may learn the reason before it is counted.
    let deadline = Instant::now() + PATIENCE;
    for reason in ["too_long", "malformed", "flood"] {
        let line = format!("slipstream_ws_closed_total{{reason=\"{reason}\"}}");
        while !node.http("GET /metrics", "").contains(&line) {
            assert!(Instant::now() < deadline, "{reason} is not counted");
            wait();
        }
    }
    node.stop();
}

/// A read-only stream: requests are written separately, and an answer to a ping would interfere.
struct Mute(TcpStream);

impl Read for Mute {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Mute {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sends many requests, and reads the answers late. Returns the longest time between two of them.
#[allow(clippy::disallowed_methods)] // who reads late does nothing else meanwhile
fn read_late(node: &Running) -> Duration {
    const MESSAGES: usize = 600;
    let socket = Socket::open(node, "/");
    let mut asking = socket.inner.get_ref().try_clone().unwrap();
    let mut reading = WebSocket::from_raw_socket(Mute(asking.try_clone().unwrap()), Role::Client, None);
    // The answers repeat the id: 6 MB, more than both ends buffer, unless they have grown their buffers.
    let id = "x".repeat(10_000);
    let text = json!({ "jsonrpc": "2.0", "id": id, "method": "net_version" }).to_string();
    let mut frame = vec![0x81, 0xfe];
    frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    let asked = std::thread::spawn(move || (0..MESSAGES).try_for_each(|_| asking.write_all(&frame)));
    std::thread::sleep(Duration::from_secs(1));
    let mut longest = Duration::ZERO;
    for _ in 0..MESSAGES {
        let begun = Instant::now();
        let heard = loop {
            match reading.read().unwrap() {
                Message::Text(text) => break serde_json::from_str::<Value>(&text).unwrap(),
                message => assert!(message.is_ping(), "{message:?}"),
            }
        };
        longest = longest.max(begun.elapsed());
        assert!(heard["id"] == *id && heard["result"] == "7357", "{heard}");
    }
    asked.join().unwrap().unwrap();
    longest
}

/// Goal: a client that sends many requests and reads the answers late gets all of them as fast as it reads. No answer
/// waits for a timer.
#[test]
fn a_late_reader_gets_all() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    // A ping comes every 15 seconds: an answer that waits for a ping waits for most of that time. A machine that paused
    // proves nothing.
    let is_at_once = (0..3).any(|_| read_late(&node) < Duration::from_secs(8));
    assert!(is_at_once, "each time an answer came as late as a ping");
    node.stop();
}

/// Goal: one address cannot take all sockets. An address with many gives way to one with none. The operator always gets
/// a socket, and requests over HTTP are answered meanwhile.
#[test]
fn sockets_are_shared_by_address() {
    let chain = Chain::new();
    chain.configure(
        "api: { listen: \"127.0.0.1:0\", max_connections: 32, max_connections_per_address: 32 }\n",
    );
    let node = Running::start(&chain);
    let open = |host: u16| Socket::on(connect_from(&node, host), &node.api, "/");
    let mut first: Vec<Socket> = std::iter::from_fn(|| open(2).ok()).take(32).collect();
    assert_eq!(first.len(), 5, "a third of 14");
    assert_eq!(open(2).err(), Some(503));
    let crowd: Vec<Socket> = (3..40).filter_map(|host| open(host).ok()).collect();
    assert!(crowd.len() > 10, "{}", crowd.len());
    let (code, reason) = first[0].closed().unwrap();
    assert!(code == 1013 && reason.starts_with("other addresses need the place"), "{code} {reason}");
    assert_eq!(Socket::open(&node, "/").ask("eth_chainId", json!([]))["result"], "0x1cbd");
    assert_eq!(node.rpc("eth_chainId", json!([]))["result"], "0x1cbd");
    drop((first, crowd));
    let deadline = Instant::now() + PATIENCE;
    while !node.http("GET /metrics", "").contains("slipstream_ws_sockets 0") {
        assert!(Instant::now() < deadline, "places do not come back");
        wait();
    }
    node.stop();
}
