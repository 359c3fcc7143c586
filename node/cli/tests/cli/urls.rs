//! The URL of a node's API on the command line: with TLS, below a path, and with parts that must stay hidden.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
    thread::JoinHandle,
};

use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::chain::{BINARY, ended};

type Connection = StreamOwned<ServerConnection, TcpStream>;

/// A file with a certificate for `localhost`, from an authority that no machine trusts, valid from 2020 to 2120. The
/// keys protect nothing.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/data").join(name)
}

fn server_config() -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_file(data("tls-certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(data("tls-key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(config.with_single_cert(vec![certificate], key).unwrap())
}

/// A TLS proxy with a node below a path: it answers each connection in turn, and returns the requests it got. The port
/// is its own.
fn proxy(answers: Vec<fn(&mut Connection)>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = server_config();
    let serving = std::thread::spawn(move || {
        let serve = |answer: fn(&mut Connection)| {
            let (tcp, _) = listener.accept().unwrap();
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), tcp);
            let (mut asked, mut byte) = (Vec::new(), [0]);
            // A client that does not trust the certificate reports it and disconnects.
            while !asked.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                asked.extend(byte);
            }
            if !asked.is_empty() {
                answer(&mut stream);
            }
            String::from_utf8(asked).unwrap()
        };
        answers.into_iter().map(serve).collect()
    });
    (port, serving)
}

fn whole(stream: &mut Connection) {
    stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n{\"whole\":1}").unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
}

/// Some servers declare the length of an answer instead of marking its end.
fn counted(stream: &mut Connection) {
    stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 13\r\n\r\n{\"counted\":1}").unwrap();
    stream.flush().unwrap();
}

fn cut(stream: &mut Connection) {
    stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 1300\r\n\r\n{\"cut\":1}").unwrap();
    stream.flush().unwrap();
}

/// The status at this URL, for a client that trusts these certificates.
fn status(url: &str, authorities: &Path) -> (i32, String) {
    let mut command = Command::new(BINARY);
    command
        .args(["status", "--json", "--api", url])
        .env("SSL_CERT_FILE", authorities)
        .env_remove("SSL_CERT_DIR");
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

/// Goal: a node behind a TLS proxy is reached below the proxy's path by clients that trust its certificate. No
/// intermediary can truncate an answer undetected.
#[test]
fn a_node_behind_tls_is_asked() {
    let (port, serving) = proxy(vec![whole, counted, cut, whole]);
    let url = format!("https://localhost:{port}/node1/");
    let authority = data("tls-authority.pem");
    assert_eq!(status(&url, &authority), (0, "{\"whole\":1}\n".into()));
    assert_eq!(status(&url, &authority), (0, "{\"counted\":1}\n".into()));
    let (code, text) = status(&url, &authority);
    assert!(code == 75 && text.contains("cannot ask the node at https://localhost:"), "{code}: {text}");
    assert!(!text.contains("{\"cut\""), "{text}");
    // Its own certificate is not an authority.
    let (code, text) = status(&url, &data("tls-certificate.pem"));
    assert!(code == 1 && text.contains("no TLS with https://localhost:"), "{code}: {text}");
    assert!(text.contains("/node1: invalid peer certificate"), "{text}");
    let asked = serving.join().unwrap();
    for asked in &asked[..3] {
        let head = format!("GET /node1/v1/status HTTP/1.0\r\nHost: localhost:{port}\r\n");
        assert!(asked.starts_with(&head), "{asked}");
    }
    assert_eq!(asked[3], "");
}

/// Goal: every command refuses a URL with more than a location, and none repeats it.
#[test]
fn credentials_in_a_url_are_not_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token").display().to_string();
    let waypoint = format!("0:0x{}", "11".repeat(32));
    let address = "0x0000000000000000000000000000000000000001";
    let key = "1".repeat(64);
    let (token, waypoint, key) = (token.as_str(), waypoint.as_str(), key.as_str());
    for url in ["https://user:canary@127.0.0.1:1", "http://127.0.0.1:1/?key=canary", "canary:1"] {
        for args in [
            &["status", "--api", url][..],
            &["status", "--watch", "--api", url],
            &["health", "--api", url],
            &["events", "--api", url],
            &["wait", "--for", "synced", "--timeout", "1s", "--api", url],
            &["top", "--api", url],
            &["peers", "list", "--api", url],
            &["peers", "unban", key, "--api", url, "--token-file", token],
            &["log", "filter", "--api", url, "--token-file", token],
            &["validators", "list", "--rpc", url],
            &["verify-account", address, "--waypoint", waypoint, "--api", url],
        ] {
            let (code, text) = ended(args);
            assert!(code == 2 && text.contains("the URL of a node's API "), "{args:?}: {code}: {text}");
            assert!(!text.contains("canary"), "{args:?}: {text}");
        }
    }
}
