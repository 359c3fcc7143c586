//! Finds the program that holds a port, from `/proc`.

use std::{collections::HashSet, fs, path::Path};

/// The state of a listening TCP socket in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// Returns the program and process that listen on a TCP port or hold a UDP port; `None` if they belong to another user.
pub(super) fn holder(port: u16) -> Option<String> {
    let sockets = sockets(port);
    // `/proc/self` is skipped: it is a second name of one of the processes.
    let mut ids = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let id = ids.find(|id| has_one(Path::new(&format!("/proc/{id}")), &sockets))?;
    let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    Some(format!("{} (process {id})", name.trim()))
}

/// Whether no socket listens on this TCP port and none holds the UDP port of the same number. It reads `/proc` and does
/// not try to bind. A child that is started during a trial bind would inherit the socket, and hold the port until it
/// runs its program.
pub(super) fn is_free(port: u16) -> bool {
    sockets(port).is_empty()
}

/// Returns the sockets that listen on a TCP port or hold a UDP port, named as in a process's file descriptor links.
fn sockets(port: u16) -> HashSet<String> {
    let tables = ["tcp", "tcp6", "udp", "udp6"].into_iter();
    let found = tables.flat_map(|table| {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        text.lines().filter_map(|line| socket(line, port, table.starts_with("tcp"))).collect::<Vec<_>>()
    });
    found.collect()
}

/// Returns the socket in a line of a `/proc/net` table if it has the port, named as in a process's file descriptor
/// links.
fn socket(line: &str, port: u16, listens: bool) -> Option<String> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let (_, found) = local.rsplit_once(':')?;
    let is_it = u16::from_str_radix(found, 16) == Ok(port) && (!listens || *state == LISTENS);
    is_it.then(|| format!("socket:[{inode}]"))
}

fn has_one(process: &Path, sockets: &HashSet<String>) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    files
        .filter_map(|file| fs::read_link(file.path()).ok())
        .any(|target| target.to_str().is_some_and(|target| sockets.contains(target)))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn names_this_process() {
        let me = format!("(process {})", std::process::id());
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        assert!(!is_free(port));
        let found = holder(port).unwrap();
        assert!(found.ends_with(&me), "{found}");
        // Another test may take the port as soon as it is released.
        let is_let_go_of = (0..100).any(|_| {
            let udp = UdpSocket::bind("[::1]:0").or_else(|_| UdpSocket::bind("127.0.0.1:0")).unwrap();
            let port = udp.local_addr().unwrap().port();
            assert!(holder(port).unwrap().ends_with(&me));
            drop(udp);
            holder(port).is_none() && is_free(port)
        });
        assert!(is_let_go_of);
    }
}
