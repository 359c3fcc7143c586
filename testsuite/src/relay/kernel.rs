//! The kernel's part in a relay's datagrams, before the relay sees them.

use std::{collections::HashSet, fs, net::UdpSocket};

use rustix::net::sockopt;

/// The receive buffer of a socket, as far as the kernel allows. It holds the burst of a sender that is allowed 1 Gbit/s, for 30 ms
/// in which the relay's core is taken by a node.
const RECEIVE_BYTES: usize = 4 << 20;

/// Asks for room. Where the kernel gives less, what it drops is counted by [`drops`].
pub(super) fn make_room(socket: &UdpSocket) {
    // Above the limit for everybody only root is heard.
    if sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BYTES);
    }
}

/// Datagrams that the kernel has dropped at the UDP sockets of these ports of this machine, because they were full.
pub(super) fn drops(ports: &HashSet<u16>) -> u64 {
    let tables =
        ["/proc/net/udp", "/proc/net/udp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).filter_map(|line| dropped(line, ports)).sum()
}

/// The last column of a table's line, if its socket has one of the ports.
fn dropped(line: &str, ports: &HashSet<u16>) -> Option<u64> {
    let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    ports.contains(&port).then(|| line.split_whitespace().next_back()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a full socket loses is seen, and only there.
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
