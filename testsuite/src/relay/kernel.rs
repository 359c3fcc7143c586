//! The kernel's handling of a relay's datagrams before the relay reads them.

use std::{collections::HashSet, fs, net::UdpSocket};

use rustix::net::sockopt;

/// The requested receive buffer of a socket. It holds 30 ms of a sender's burst at 1 Gbit/s, during which a node
/// occupies the relay's core.
const RECEIVE_BYTES: usize = 4 << 20;

/// Requests the receive buffer. If the kernel grants less, [`drops`] counts what it drops.
pub(super) fn make_room(socket: &UdpSocket) {
    // Only root may exceed the general limit.
    if sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BYTES);
    }
}

/// Returns the datagrams that the kernel dropped at full UDP sockets with these ports on this machine.
pub(super) fn drops(ports: &HashSet<u16>) -> u64 {
    let tables =
        ["/proc/net/udp", "/proc/net/udp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).filter_map(|line| dropped(line, ports)).sum()
}

/// Returns the last column of a table's line, if its socket has one of the ports.
fn dropped(line: &str, ports: &HashSet<u16>) -> Option<u64> {
    let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    ports.contains(&port).then(|| line.split_whitespace().next_back()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: losses of a full socket are counted, and only its own.
    #[test]
    fn drops_of_a_full_socket_are_counted() {
        let full = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        sockopt::set_socket_recv_buffer_size(&full, 4_096).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..100 {
            sender.send_to(&[0; 1_000], full.local_addr().unwrap()).unwrap();
        }
        let of = |socket: &UdpSocket| drops(&HashSet::from([socket.local_addr().unwrap().port()]));
        assert!((50..100).contains(&of(&full)), "{}", of(&full));
        assert_eq!(of(&other), 0);
        assert_eq!(dropped("  sl  local_address rem_address", &HashSet::new()), None);
    }
}
