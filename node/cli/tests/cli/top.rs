//! `slipstream top` on a terminal, and the page's raw files: the testsuite tests them in a browser.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::unix::ffi::OsStrExt,
    process::{Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Instant,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use crate::chain::{BINARY, Chain, PATIENCE, Running, ended};

/// Both ends of a new terminal: the viewer's, and the program's.
fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = OpenOptions::new().read(true).write(true).open(OsStr::from_bytes(name.to_bytes())).unwrap();
    tcsetwinsize(&slave, Winsize { ws_row: 60, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (master.into(), slave)
}

/// The terminal's input, piece by piece.
fn told(mut master: File) -> Receiver<String> {
    let (tells, told) = channel();
    thread::spawn(move || {
        let mut piece = [0; 4096];
        // An error means the end: nobody holds the other side any more.
        while let Ok(len @ 1..) = master.read(&mut piece) {
            if tells.send(String::from_utf8_lossy(&piece[..len]).into_owned()).is_err() {
                return;
            }
        }
    });
    told
}

/// Reads until all of these words have arrived.
fn until(told: &Receiver<String>, text: &mut String, words: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    while !words.iter().all(|word| text.contains(word)) {
        let left = deadline.saturating_duration_since(Instant::now());
        let piece = told.recv_timeout(left);
        text.push_str(&piece.unwrap_or_else(|_| panic!("{words:?} did not all come: {text:?}")));
    }
}

/// Goal: a running node is drawn, and the terminal is restored afterwards, whether a key or a signal ends the command.
#[test]
fn top_draws_and_gives_the_terminal_back() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    for ends_by_key in [true, false] {
        let (mut master, slave) = terminal();
        let told = told(master.try_clone().unwrap());
        let cooked = LocalModes::ICANON | LocalModes::ECHO;
        assert!(tcgetattr(&slave).unwrap().local_modes.contains(cooked));
        let mut top = Command::new(BINARY);
        top.args(["top", "--api", &format!("http://{}", node.api)]).env("TERM", "xterm-256color");
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let mut top = top.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let mut text = String::new();
        until(
            &told,
            &mut text,
            &["\x1b[?1049h", "Slipstream", "Progress", "Pipeline", "Consensus", "memory"],
        );
        assert!(!tcgetattr(&slave).unwrap().local_modes.intersects(cooked));
        match ends_by_key {
            true => master.write_all(b"q").unwrap(),
            false => kill_process(Pid::from_child(&top), Signal::TERM).unwrap(),
        }
        until(&told, &mut text, &["\x1b[?1049l"]);
        assert!(top.wait().unwrap().success(), "{text:?}");
        assert!(tcgetattr(&slave).unwrap().local_modes.contains(cooked));
    }
    let (code, text) = ended(&["top", "--api", &format!("http://{}", node.api)]);
    assert!(code == 1 && text.contains("draws on a terminal"), "{code} {text}");
    node.stop();
}

/// Goal: a browser gets the page and its files, each with its type and with the policy that keeps others out. JSON-RPC
/// stays at its path.
#[test]
fn the_page_and_its_files_are_served() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    for (path, kind) in [
        ("/", "text/html"),
        ("/page/page.css", "text/css"),
        ("/page/page.js", "text/javascript"),
        ("/page/sections.js", "text/javascript"),
        ("/page/dom.js", "text/javascript"),
        ("/page/text.js", "text/javascript"),
    ] {
        let (head, body) = node.answer(&format!("GET {path}"), "");
        let head = head.to_lowercase();
        assert!(head.starts_with("http/1.1 200") || head.starts_with("http/1.0 200"), "{path}: {head}");
        for line in [
            &format!("content-type: {kind}; charset=utf-8"),
            "content-security-policy: default-src 'none'; script-src 'self';",
            "x-content-type-options: nosniff",
        ] {
            assert!(head.contains(line), "{path}: {line} is not in {head}");
        }
        assert!(body.len() > 500, "{path}: {body}");
    }
    let (head, _) = node.answer("GET /page/mod.rs", "");
    assert!(head.contains(" 404"), "{head}");
    assert_eq!(node.rpc("net_version", serde_json::json!([]))["result"], "7357");
    node.stop();
}
