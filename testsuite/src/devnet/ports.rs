//! Free ports. A node's peers must know its port before it runs, so ports are chosen here and not by the system.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use anyhow::{Result, bail};
use rand::Rng;

/// The searched range lies below 32768, where Linux starts to give ports to outgoing connections: a port that was free
/// here stays free until its node binds it, also while the node is being restarted.
const FIRST: u16 = 12_000;
const LAST: u16 = 32_000;
/// Attempts to find a free port before the machine counts as full.
const ATTEMPTS: usize = 1_000;

/// Hands out ports, none twice.
pub(super) struct Ports {
    next: u16,
    /// Whether a busy port is passed over. Ports that the user asked for are taken as they are, and the node says so
    /// when one is busy.
    search: bool,
}

impl Ports {
    pub(super) fn new(base: Option<u16>) -> Ports {
        match base {
            Some(next) => Ports { next, search: false },
            // A random start keeps devnets that start at the same moment apart.
            None => Ports { next: rand::rng().random_range(FIRST..LAST), search: true },
        }
    }

    pub(super) fn take(&mut self) -> Result<u16> {
        for _ in 0..ATTEMPTS {
            let port = self.next;
            self.next = match port.checked_add(1) {
                Some(next) if !self.search || next <= LAST => next,
                _ => FIRST,
            };
            if !self.search || is_free(port) {
                return Ok(port);
            }
        }
        bail!(
            "no free port between {FIRST} and {LAST} on 127.0.0.1; name a range of free ones with --base-port"
        );
    }
}

fn is_free(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_ports_are_passed_over_and_none_comes_twice() {
        let mut ports = Ports::new(None);
        let first = ports.take().unwrap();
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        let mut again = Ports { next: first, search: true };
        assert_ne!(again.take().unwrap(), first);
        drop(held);
        assert_ne!(ports.take().unwrap(), first);
    }

    #[test]
    fn a_given_base_is_followed_exactly() {
        let mut ports = Ports::new(Some(30_000));
        assert_eq!((ports.take().unwrap(), ports.take().unwrap()), (30_000, 30_001));
    }
}
