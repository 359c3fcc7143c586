//! [`Origin`]: the owner to which a caller is attributed when callers share a resource.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

/// The addresses of this machine's own programs. Other loopback addresses are strangers: a caller chooses them
/// deliberately.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
/// The bits of an IPv6 address that identify one caller: the holder of a /64 has every address in it.
const V6_PREFIX_BITS: u32 = 64;

/// The owner to which a caller is attributed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// This machine, or a host that the operator named: it may take everything that is free, and has a reserve.
    Trusted,
    /// A stranger's IPv4 address.
    V4(Ipv4Addr),
    /// A stranger's IPv6 address without its last 64 bits.
    V6(Ipv6Addr),
}

impl Origin {
    /// Whether this caller must share with others.
    pub fn is_stranger(self) -> bool {
        self != Origin::Trusted
    }

    /// The address, or the prefix, of a stranger.
    pub fn stranger(self) -> Option<IpAddr> {
        match self {
            Origin::Trusted => None,
            Origin::V4(address) => Some(address.into()),
            Origin::V6(prefix) => Some(prefix.into()),
        }
    }

    /// Whether an origin that has `taken` may take `more` of the `free` rest: a stranger must leave twice as much as it
    /// then has. One address gets at most a third, the next one a third of the rest; a newcomer may take any part of
    /// the rest.
    pub fn may_take(self, taken: usize, more: usize, free: usize) -> bool {
        more <= free && (taken == 0 || !self.is_stranger() || 2 * (taken + more) <= free)
    }
}

/// The addresses that an operator vouches for. Cheap to clone.
#[derive(Clone, Default)]
pub struct Vouched(Arc<HashSet<IpAddr>>);

impl Vouched {
    /// The addresses for which the operator vouches.
    pub fn new(addresses: &[IpAddr]) -> Vouched {
        Vouched(Arc::new(addresses.iter().map(IpAddr::to_canonical).collect()))
    }

    /// The origin of an address.
    pub fn origin(&self, address: IpAddr) -> Origin {
        match address.to_canonical() {
            address if LOOPBACK.contains(&address) || self.0.contains(&address) => Origin::Trusted,
            IpAddr::V4(address) => Origin::V4(address),
            IpAddr::V6(address) => {
                let prefix = u128::from(address) & (u128::MAX << (128 - V6_PREFIX_BITS));
                Origin::V6(prefix.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_prefixes() {
        let vouched = Vouched::new(&["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()]);
        let origin = |text: &str| vouched.origin(text.parse().unwrap());
        assert!(origin("127.0.0.2").is_stranger(), "so that a test on one machine can have many addresses");
        for trusted in
            ["127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.7", "::ffff:192.0.2.7", "2001:db8::7"]
        {
            assert_eq!(origin(trusted), Origin::Trusted, "{trusted}");
        }
        assert_eq!(origin("192.0.2.8"), origin("::ffff:192.0.2.8"));
        assert_ne!(origin("192.0.2.8"), origin("192.0.2.9"));
        assert_eq!(origin("2001:db8::8"), origin("2001:db8::ffff:0:0:9"));
        assert_ne!(origin("2001:db8::8"), origin("2001:db8:0:1::8"));
        assert!(origin("2001:db8::8").is_stranger(), "the neighbour of a vouched address");
    }

    /// Goal: addresses that take as much as they can leave a share to the next one, which always gets something while
    /// anything is free.
    #[test]
    fn shares_halve() {
        let mut free: usize = 24;
        let shares: Vec<usize> = (1..=6)
            .map(|host| {
                let origin = Origin::V4(Ipv4Addr::new(192, 0, 2, host));
                let taken = (0..).take_while(|taken| origin.may_take(*taken, 1, free - taken)).count();
                free -= taken;
                taken
            })
            .collect();
        assert_eq!(shares, [8, 5, 4, 2, 2, 1]);
        assert!((0..24).all(|taken| Origin::Trusted.may_take(taken, 1, 24 - taken)));
        assert!(!Origin::Trusted.may_take(24, 1, 0));
    }
}
