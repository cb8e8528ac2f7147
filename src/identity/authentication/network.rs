//! The network that failed attempts are counted for.

use std::net::{IpAddr, Ipv6Addr};

/// The network that a caller is counted as: over IPv6 one customer has 2^64 addresses. Loopback stays as it is.
pub fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}
