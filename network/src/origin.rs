//! [`Origin`]: the host and network that a connection comes from, by the sizes in which addresses are assigned.
//! Addresses that one party can get in any number for free count as one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The host and the network behind an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Origin {
    /// An IPv4 address, or an IPv6 network of 64 bits, in which a host chooses its addresses.
    pub(crate) host: IpAddr,
    /// An IPv4 network of 24 bits or an IPv6 network of 48. Smaller networks are not routed separately, so one customer
    /// owns the whole network.
    pub(crate) net: IpAddr,
}

impl Origin {
    pub(crate) fn of(address: IpAddr) -> Origin {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let net = Ipv4Addr::from_bits(address.to_bits() >> 8 << 8);
                Origin { host: address.into(), net: net.into() }
            }
            IpAddr::V6(address) => {
                let cut = |bits: u32| Ipv6Addr::from_bits(address.to_bits() >> (128 - bits) << (128 - bits));
                Origin { host: cut(64).into(), net: cut(48).into() }
            }
        }
    }

    /// The part that certainly belongs to one party: an IPv4 host, or an IPv6 network, whose hosts cost nothing.
    pub(crate) fn party(&self) -> IpAddr {
        if self.host.is_ipv4() { self.host } else { self.net }
    }

    /// As [`Origin::of`]; `None` for this machine's address, which a whole devnet shares. Other loopback addresses
    /// count as hosts.
    pub(crate) fn of_remote(address: IpAddr) -> Option<Origin> {
        (!is_this_machine(address)).then(|| Origin::of(address))
    }
}

/// The block of an address: the smallest range that a provider gets, an IPv4 network of 16 bits or an IPv6 network of
/// 32. Having many blocks costs something.
pub(crate) fn block_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() >> 16 << 16).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 96 << 96).into(),
    }
}

/// The address in its plain form: an IPv4 address that a dual-stack socket shows as IPv6 becomes IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether an address is 127.0.0.1 or ::1.
pub(crate) fn is_this_machine(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_party_have_one_origin() {
        let origin = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(origin("203.0.113.7"), origin("::ffff:203.0.113.7"));
        assert_eq!(origin("203.0.113.7").net, origin("203.0.113.200").net);
        assert_ne!(origin("203.0.113.7").host, origin("203.0.113.200").host);
        assert_ne!(origin("203.0.113.7").net, origin("203.0.114.7").net);
        assert_eq!(origin("2001:db8:1:2::3"), origin("2001:db8:1:2:ffff::"));
        assert_eq!(origin("2001:db8:1:2::3").net, origin("2001:db8:1:ffff::3").net);
        assert_ne!(origin("2001:db8:1::3").net, origin("2001:db8:2::3").net);
        assert_eq!(origin("203.0.113.7").party(), origin("203.0.113.7").host);
        assert_eq!(origin("2001:db8:1:2::3").party(), origin("2001:db8:1:9::3").party());
        for loopback in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(Origin::of_remote(loopback.parse().unwrap()), None);
        }
        assert!(Origin::of_remote("127.0.0.2".parse().unwrap()).is_some());
    }
}
