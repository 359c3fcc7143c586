//! Free ports. A node's peers must know its port before it runs, so ports are chosen here and not by the system. A port
//! stays the node's as long as its devnet runs, even while the node is stopped.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rand::Rng;

use super::holder::{holder, is_free};

/// The searched range lies below 32768, where Linux starts to assign ports to outgoing connections. Only listening
/// programs take ports here.
const FIRST: u16 = 12_000;
const LAST: u16 = 32_000;
/// Attempts to find a free port before the machine counts as full.
const ATTEMPTS: usize = 1_000;
/// How long to wait for a port of another devnet. A devnet that has just ended may still be releasing it; so may a
/// process that was being started at that time.
const CLAIM_PATIENCE: Duration = Duration::from_secs(2);
const CLAIM_POLL: Duration = Duration::from_millis(20);

/// Hands out ports: each only once, and none that another devnet on this machine holds.
pub(super) struct Ports {
    next: u16,
    /// Whether a busy port is skipped. A port that the user asked for is not skipped: the error names its holder.
    search: bool,
    /// Held until the devnet ends: see [`reserve`].
    reserved: Vec<UnixDatagram>,
}

impl Ports {
    pub(super) fn new(base: Option<u16>) -> Ports {
        match base {
            Some(next) => Ports { next, search: false, reserved: Vec::new() },
            // The start is random: devnets that start at the same moment rarely try the same port.
            None => Ports { next: rand::rng().random_range(FIRST..LAST), search: true, reserved: Vec::new() },
        }
    }

    /// Whether ports are searched, or counted up from the user's base port.
    pub(super) fn search(&self) -> bool {
        self.search
    }

    /// Takes the next port.
    pub(super) fn take(&mut self) -> Result<u16> {
        for _ in 0..ATTEMPTS {
            let port = self.next;
            self.next = match port.checked_add(1) {
                Some(next) if !self.search || next <= LAST => next,
                _ => FIRST,
            };
            if !self.search {
                return self.claim(port);
            }
            if let Some(reserved) = reserve(port)?
                && is_free(port)
            {
                self.reserved.push(reserved);
                return Ok(port);
            }
        }
        bail!(
            "no free port between {FIRST} and {LAST} on 127.0.0.1; name the first port of a free range with --base-port"
        );
    }

    /// Takes exactly this port.
    pub(super) fn claim(&mut self, port: u16) -> Result<u16> {
        let advice = "stop it, or name other ports with --base-port";
        let deadline = Instant::now() + CLAIM_PATIENCE;
        let reserved = loop {
            match reserve(port)? {
                Some(reserved) => break reserved,
                None if Instant::now() < deadline => thread::park_timeout(CLAIM_POLL),
                None => {
                    bail!("port {port} on 127.0.0.1 belongs to another devnet that slipnet runs: {advice}")
                }
            }
        };
        if !is_free(port) {
            let holder = holder(port).unwrap_or_else(|| "another program".to_owned());
            bail!("port {port} on 127.0.0.1 is taken by {holder}: {advice}");
        }
        self.reserved.push(reserved);
        Ok(port)
    }
}

/// A free port for a program other than a devnet's node. While this value lives, no devnet takes the port, and Linux
/// assigns it to no outgoing connection.
pub struct FreePort {
    number: u16,
    _reserved: Ports,
}

impl FreePort {
    /// Finds a free port.
    ///
    /// # Errors
    /// If none is free.
    pub fn find() -> Result<FreePort> {
        let mut ports = Ports::new(None);
        Ok(FreePort { number: ports.take()?, _reserved: ports })
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Reserves a port for this devnet while the returned socket lives; `None` if another devnet holds it. A node binds its
/// port some time after the check, and releases it when it stops, so another devnet could choose it meanwhile. A socket
/// of that name in Linux's abstract namespace prevents this. The socket ends with its process, however that dies, and
/// has the same scope as ports: the network namespace.
fn reserve(port: u16) -> Result<Option<UnixDatagram>> {
    let name = SocketAddr::from_abstract_name(format!("slipnet-port-{port}"));
    match name.and_then(|name| UnixDatagram::bind_addr(&name)) {
        Ok(reserved) => Ok(Some(reserved)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot reserve port {port}")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    fn from(first: u16) -> Ports {
        Ports { next: first, search: true, reserved: Vec::new() }
    }

    /// Claims a port that no devnet holds any more. A child that another test starts inherits open sockets until it
    /// runs its program, which may take longer than a claim waits.
    fn claimed(port: u16) -> Result<(Ports, u16)> {
        let claim = || -> Result<(Ports, u16)> {
            let mut ports = Ports::new(Some(port));
            let taken = ports.take()?;
            Ok((ports, taken))
        };
        let is_settled = |claim: &Result<(Ports, u16)>| {
            claim.as_ref().err().is_none_or(|error| !error.to_string().contains("another devnet"))
        };
        (0..30).map(|_| claim()).find(is_settled).expect("the port belongs to no devnet")
    }

    #[test]
    fn busy_ports_are_passed_over_and_none_comes_twice() {
        let first = Ports::new(None).take().unwrap();
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        assert_ne!(from(first).take().unwrap(), first);
        let error = claimed(first).err().unwrap().to_string();
        assert!(
            error.contains(&format!("port {first} ")) && error.contains(&std::process::id().to_string()),
            "{error}"
        );
        drop(held);
        let mut ports = from(first);
        assert_ne!(ports.take().unwrap(), ports.take().unwrap());
    }

    /// Goal: two devnets that look at the same moment choose different ports, even while both ports are still unbound.
    #[test]
    fn a_port_belongs_to_one_devnet() {
        let mut ports = Ports::new(None);
        let port = ports.take().unwrap();
        assert_ne!(from(port).take().unwrap(), port);
        let error = Ports::new(Some(port)).take().unwrap_err().to_string();
        assert!(error.contains("another devnet"), "{error}");
        drop(ports);
        assert_eq!(claimed(port).unwrap().1, port);
        let free = FreePort::find().unwrap();
        assert_ne!(from(free.number()).take().unwrap(), free.number());
    }

    #[test]
    fn a_given_base_is_followed_exactly() {
        let base = Ports::new(None).take().unwrap();
        let (mut ports, first) = claimed(base).unwrap();
        assert_eq!(first, base);
        // The next port may be somebody else's; it is not skipped.
        if let Ok(next) = ports.take() {
            assert_eq!(next, base + 1);
        }
    }
}
