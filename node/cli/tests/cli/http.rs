//! The API's HTTP side, as browsers, idle clients and libraries meet it.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    chain::{Chain, PATIENCE, Running},
    process::until,
};

/// The status code and body of one exchange; `head` is everything before the length.
fn exchange(node: &Running, head: &str, body: &str) -> (u16, String) {
    exchange_on(TcpStream::connect(&node.api).unwrap(), head, body)
}

fn exchange_on(stream: TcpStream, head: &str, body: &str) -> (u16, String) {
    try_exchange_on(stream, head, body).unwrap()
}

/// Fails if the connection is closed without an answer.
fn try_exchange_on(mut stream: TcpStream, head: &str, body: &str) -> io::Result<(u16, String)> {
    stream.set_read_timeout(Some(PATIENCE / 2))?;
    write!(stream, "{head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(ErrorKind::UnexpectedEof)?;
    assert!(!head.to_lowercase().contains("access-control-"), "{head}");
    Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned()))
}

/// Goal: a client that requests much and reads nothing does not delay a node's end. Its connection is cut, and so
/// releases the store.
#[test]
fn a_reader_that_takes_nothing_does_not_hold_the_end_up() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    // At least 1.5 MB: a connection buffers a third of it.
    let call =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_getBlockByNumber", "params": ["0x0", true] });
    let body = serde_json::Value::from(vec![call; 1_000]).to_string();
    let request = |stream: &mut TcpStream| {
        write!(
            stream,
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut deaf: Vec<TcpStream> = Vec::new();
    for _ in 0..2 {
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            // The kernel's buffer would read on behalf of the client.
            socket.set_recv_buffer_size(4 << 10).unwrap();
            socket.connect(node.api.parse().unwrap()).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        deaf.push(stream);
    }
    deaf.iter_mut().for_each(request);
    // The answer has started.
    deaf.iter_mut().for_each(|stream| stream.read_exact(&mut [0; 12]).unwrap());
    let log = node.log.clone();
    node.stop();
    let text = std::fs::read_to_string(log).unwrap();
    assert!(text.contains("stopped") && !text.contains("did not end in time"), "{text}");
    // The answer was cut, not sent.
    for stream in &mut deaf {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < 1_000_000, "{} bytes", rest.len());
    }
}

/// Goal: web pages cannot reach a node on loopback, and idle connections do not shut out others.
#[test]
fn strangers_and_idlers() {
    let chain = Chain::new();
    chain.configure("api: { listen: \"127.0.0.1:0\", max_connections: 1, allowed_hosts: [node1.example] }\n");
    let node = Running::start(&chain);
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_chainId" }).to_string();
    let post =
        |host: &str, rest: &str| exchange(&node, &format!("POST / HTTP/1.1\r\nHost: {host}{rest}"), &call);
    let json_type = "\r\nContent-Type: application/json";

    // The types that a form or a script of any page can send without a preflight: plain text, a form, and none.
    for kind in [
        "\r\nContent-Type: text/plain",
        "\r\nContent-Type: application/x-www-form-urlencoded",
        "\r\nContent-Type: application/json-seq",
        "",
    ] {
        let (status, text) = post("127.0.0.1", kind);
        assert_eq!(status, 415, "{kind}: {text}");
        assert!(text.contains("set the header Content-Type to application/json"), "{text}");
    }
    for kind in [
        json_type,
        "\r\ncontent-type: Application/JSON; charset=utf-8",
        "\r\nContent-Type: application/json-rpc",
        "\r\nContent-Type: application/jsonrequest",
    ] {
        assert_eq!(
            post("127.0.0.1", kind),
            (200, r#"{"jsonrpc":"2.0","id":1,"result":"0x1cbd"}"#.to_owned())
        );
    }
    // A page whose own name resolves to this node.
    for path in ["POST /", "GET /v1/status", "GET /metrics", "GET /health"] {
        let (status, text) =
            exchange(&node, &format!("{path} HTTP/1.1\r\nHost: evil.example:8545{json_type}"), &call);
        assert_eq!(status, 403, "{path}");
        assert!(
            text.contains("evil.example:8545 is not a name of this node")
                && text.contains("`api.allowed_hosts`"),
            "{text}"
        );
    }
    for host in ["localhost:8545", "[::1]:8545", "NODE1.example:8545", "192.0.2.1"] {
        assert_eq!(post(host, json_type).0, 200, "{host}");
    }
    // Before a script may send JSON, the browser sends a preflight; no answer permits it.
    let asks = "OPTIONS / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: POST";
    assert_eq!(exchange(&node, asks, "").0, 405);

    // Notifications are executed without an answer.
    let silent = r#"{"jsonrpc":"2.0","method":"eth_chainId"}"#;
    let head = format!("POST / HTTP/1.1\r\nHost: 127.0.0.1{json_type}");
    assert_eq!(exchange(&node, &head, silent), (204, String::new()));

    // Arrays are answered in the order of their requests.
    let call_of = |id: usize| json!({ "jsonrpc": "2.0", "id": id, "method": "net_version", "params": [] });
    let many = |len: usize| Value::from_iter((0..len).rev().map(call_of)).to_string();
    let answers: Value = serde_json::from_str(&exchange(&node, &head, &many(1_000)).1).unwrap();
    let answers = answers.as_array().unwrap();
    assert!(answers.iter().map(|answer| answer["id"].as_u64().unwrap()).eq((0..1_000).rev()));
    assert!(answers.iter().all(|answer| answer["result"] == "7357"));
    for (body, code) in
        [(&*many(1_001), -32600), ("[]", -32600), ("{", -32700), ("{}", -32600), ("[1", -32700)]
    {
        let answer: Value = serde_json::from_str(&exchange(&node, &head, body).1).unwrap();
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }

    // A caller that leaves its long answer unread occupies the only place for calls, and operators do not notice.
    let block = |id: usize| json!({ "jsonrpc": "2.0", "id": id, "method": "eth_getBlockByNumber", "params": ["earliest"] });
    let blocks = Value::from_iter((0..1_000).map(block)).to_string();
    let mut slow = TcpStream::connect(&node.api).unwrap();
    write!(slow, "{head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{blocks}", blocks.len()).unwrap();
    slow.peek(&mut [0; 1]).unwrap();
    let (status, text) = exchange(&node, &head, &call);
    assert!(status == 503 && text.contains("`api.max_connections`"), "{status} {text}");
    assert_eq!(exchange(&node, "GET /health HTTP/1.1\r\nHost: 127.0.0.1", "").0, 200);
    slow.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(exchange(&node, &head, &call).0, 200);

    // More silent connections than seats, some of them in the middle of a head or a body.
    let idlers: Vec<TcpStream> = (0..60)
        .map(|number| {
            let mut stream = TcpStream::connect(&node.api).unwrap();
            let begun =
                ["", "POST / HT", &format!("{head}\r\nContent-Length: 9\r\n\r\n[")][number % 3].to_owned();
            // A connection that was already dismissed may fail here.
            let _ = stream.write_all(begun.as_bytes());
            stream
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(
            exchange(&node, "GET /health/live HTTP/1.1\r\nHost: 127.0.0.1", ""),
            (200, "ok\n".to_owned())
        );
        assert_eq!(exchange(&node, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1", "").0, 200);
        assert_eq!(exchange(&node, &head, &call).0, 200);
    }
    // The first ones are gone, because this one has a seat.
    let mut first = &idlers[0];
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    let gone = first.read(&mut [0; 1]);
    assert!(
        matches!(&gone, Ok(0))
            || gone.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset),
        "{gone:?}"
    );
    drop(idlers);
    node.stop();
}

/// A connection from an address 127.0.x.y of this machine: all but 127.0.0.1 are strangers.
pub(crate) fn connect_from(node: &Running, host: u16) -> TcpStream {
    let [third, last] = host.to_be_bytes();
    let connect = async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, third, last), 0))).unwrap();
        socket.connect(node.api.parse().unwrap()).await.unwrap().into_std().unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(connect);
    stream.set_nonblocking(false).unwrap();
    stream
}

/// Goal: one address makes calls that run as long as allowed, and connections that wait. Another stranger and the
/// operator's own programs are still answered.
#[test]
fn one_address_cannot_take_the_api() {
    let chain = Chain::new();
    let keys = "max_connections: 16, max_connections_per_address: 8, call_time_max_ms: 1000";
    chain.configure(&format!("api: {{ listen: \"127.0.0.1:0\", {keys} }}\n"));
    let node = Running::start(&chain);
    let head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json";
    let endless =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [{ "data": "0x5b5a31505f56" }] });
    let flood: Vec<Value> = (0..20).map(|_| endless.clone()).collect();
    let flood = Value::from(flood).to_string();
    let taken: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = connect_from(&node, 2);
            // A connection without a seat is already closed.
            let _ = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{flood}", flood.len());
            stream
        })
        .collect();

    let call =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [{ "data": "0x" }] }).to_string();
    for host in [3, 4, 5] {
        let started = Instant::now();
        let (status, text) = exchange_on(connect_from(&node, host), head, &call);
        assert_eq!((status, text.contains("\"result\":\"0x\"")), (200, true), "{text}");
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }
    assert_eq!(exchange(&node, "GET /health/live HTTP/1.1\r\nHost: 127.0.0.1", "").0, 200);
    assert_eq!(exchange(&node, head, &call).0, 200);

    // Those beyond its limits are closed or refused: eight have seats, four may wait for one.
    let mut ends = vec![None; taken.len()];
    until("all others are refused", || {
        for (stream, end) in taken.iter().zip(&mut ends).filter(|(_, end)| end.is_none()) {
            *end = is_refused(stream);
        }
        (ends.iter().filter(|end| **end == Some(true)).count() >= 40 - 8 - 4).then_some(())
    });
    drop(taken);
    node.stop();
}

/// Whether a connection was closed or answered with 503, rather than answered otherwise; `None` if nothing has arrived
/// yet.
fn is_refused(stream: &TcpStream) -> Option<bool> {
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut status = [0; 12];
    match stream.peek(&mut status) {
        Ok(0) => Some(true),
        Ok(read) => (read == status.len()).then_some(status == *b"HTTP/1.1 503"),
        Err(error) => (error.kind() == ErrorKind::ConnectionReset).then_some(true),
    }
}

/// Goal: calls that run as long as allowed, from more addresses than there are places, leave places to callers with
/// small requests.
#[test]
fn long_calls_of_many_addresses_refuse_no_short_one() {
    let chain = Chain::new();
    chain.configure(
        "api: { listen: \"127.0.0.1:0\", max_connections: 16, max_connections_per_address: 8, call_time_max_ms: 1000 }\n",
    );
    let node = Running::start(&chain);
    let head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json";
    let endless =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [{ "data": "0x5b5a31505f56" }] });
    // Each takes many seconds.
    let flood = Value::from(vec![endless.clone(); 500]).to_string();
    let taken: Vec<TcpStream> = (0..20)
        .map(|number| {
            let mut stream = connect_from(&node, 100 + number);
            write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{flood}", flood.len()).unwrap();
            stream
        })
        .collect();
    // Of 16, four are for short ones and two for probation. One of the rest is the operator's.
    until("all but nine are refused", || {
        (taken.iter().filter(|stream| is_refused(stream) == Some(true)).count() == 20 - 9).then_some(())
    });
    let short = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_chainId" }).to_string();
    for host in 200..210 {
        assert_eq!(exchange_on(connect_from(&node, host), head, &short).0, 200, "{host}");
    }
    // Its method may take long, but this call does not.
    let block =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_getBlockByNumber", "params": ["latest", true] });
    // If the machine pauses during a call, the caller counts as known for long ones.
    let is_answered = |host| {
        (0..2).all(|_| {
            let (status, text) = exchange_on(connect_from(&node, host), head, &block.to_string());
            status == 200 && text.contains("\"result\"")
        })
    };
    assert!((210..213).any(is_answered));
    // This call is long: its caller is told so once, and is known for long calls afterwards.
    let (status, text) = exchange_on(connect_from(&node, 220), head, &endless.to_string());
    assert!(status == 200 && text.contains("-32005") && text.contains("takes long"), "{status} {text}");
    let (status, text) = exchange_on(connect_from(&node, 220), head, &endless.to_string());
    assert!(status == 503 && text.contains("take long") && text.contains("`api.max_connections`"), "{text}");
    assert_eq!(exchange(&node, head, &short).0, 200);
    drop(taken);
    node.stop();
}

/// Goal: silent connections from ever new addresses give way at once, however many arrive.
#[test]
fn silent_connections_of_many_addresses_keep_nobody_out() {
    let chain = Chain::new();
    chain.configure("api: { listen: \"127.0.0.1:0\", max_connections: 64 }\n");
    let node = Running::start(&chain);
    let head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json";
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_chainId" }).to_string();
    let mut silent: Vec<TcpStream> = Vec::new();
    let mut hosts = 1_024..;
    for round in 0..4 {
        // After five seconds, silent connections end by themselves, and those that waited for a seat are closed. A
        // machine that pauses for that long gets two more tries.
        let made_way = (0..3).any(|_| {
            // The previous ones are dropped once these exist.
            silent = hosts.by_ref().take(150).map(|host| connect_from(&node, host)).collect();
            let started = Instant::now();
            let status = try_exchange_on(connect_from(&node, 3), head, &call).map(|(status, _)| status);
            status.is_ok_and(|status| status == 200) && started.elapsed() < Duration::from_millis(4_500)
        });
        assert!(made_way, "round {round}");
    }
    assert_eq!(exchange(&node, "GET /health/live HTTP/1.1\r\nHost: 127.0.0.1", "").0, 200);
    drop(silent);
    node.stop();
}

/// Goal: one connection is one caller: nobody gets a second stream with HTTP/2, although the server's library supports
/// it.
#[test]
fn http_2_is_not_spoken() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    let mut stream = TcpStream::connect(&node.api).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    // No settings; then GET http://127.0.0.1/v1/status as stream 1.
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
    let mut head = vec![0x82, 0x86, 0x04, 10];
    head.extend(b"/v1/status");
    head.extend([0x41, 9]);
    head.extend(b"127.0.0.1");
    stream.write_all(&[0, 0, head.len() as u8, 1, 5, 0, 0, 0, 1]).unwrap();
    stream.write_all(&head).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("this node speaks only HTTP/1.1") && !answer.contains("chain_id"), "{answer}");
    node.stop();
}
