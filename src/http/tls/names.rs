//! Under which names and addresses others reach this box, as far as it knows.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::config::ListenAddress;

/// Names for a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct BoxNames {
    /// The host name first, where it is one that a certificate can have; `localhost` last.
    pub names: Vec<String>,
    /// Those of its interfaces, and those that it listens on.
    pub addresses: BTreeSet<IpAddr>,
    /// Those that it is told to listen on. Others come and go with whatever is said in the network.
    pub listened: BTreeSet<IpAddr>,
}

impl BoxNames {
    /// Asks the system. `root` is the folder that `proc` is in: `/`, save in tests.
    pub fn find(root: &Path, listen: &[ListenAddress]) -> Self {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let host = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        let mut names = Vec::from_iter(is_host_name(&host).then_some(host));
        if !names.iter().any(|name| name == "localhost") {
            names.push("localhost".to_owned());
        }
        // Text, and not the calls that would answer the same: a service that is locked down has no netlink sockets.
        let mut addresses: BTreeSet<_> = v4(&read("proc/self/net/fib_trie")).map(IpAddr::from).collect();
        addresses.extend(v6(&read("proc/self/net/if_inet6")).map(IpAddr::from));
        let listened = listen.iter().filter_map(|address| match address {
            ListenAddress::Tls(at) => Some(at.ip().to_canonical()),
            _ => None,
        });
        let listened: BTreeSet<_> = listened.filter(|address| !address.is_unspecified()).collect();
        addresses.extend(&listened);
        addresses.extend([IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]);
        addresses.retain(|address| !address.is_unspecified());
        Self { names, addresses, listened }
    }
}

/// Whether a text can be a DNS name of a certificate.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // The common name has 64 characters at most (X.520, ub-common-name).
    text.len() <= 64 && text.split('.').all(is_label)
}

/// The addresses of the interfaces in `/proc/net/fib_trie`: each leaf `|-- ADDRESS` whose next line says `host LOCAL`.
fn v4(trie: &str) -> impl Iterator<Item = Ipv4Addr> {
    let leaf = |line: &str| line.trim().strip_prefix("|-- ").and_then(|text| text.parse::<Ipv4Addr>().ok());
    let mut last = None;
    trie.lines().filter_map(move |line| match leaf(line) {
        Some(address) => {
            last = Some(address);
            None
        }
        None if line.trim_end().ends_with("/32 host LOCAL") => last.filter(|address| !address.is_loopback()),
        None => None,
    })
}

/// The addresses in `/proc/net/if_inet6` that stay: no link-local ones, which need a zone, and none that the system changes
/// day by day (`IFA_F_TEMPORARY`).
fn v6(table: &str) -> impl Iterator<Item = Ipv6Addr> {
    const TEMPORARY: u32 = 0x01;
    table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let address = Ipv6Addr::from_bits(u128::from_str_radix(fields.next()?, 16).ok()?);
        let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
        (flags & TEMPORARY == 0 && !address.is_unicast_link_local() && !address.is_loopback()).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 192.168.1.0/24 2 0 2
        |-- 192.168.1.0
           /24 link UNICAST
        |-- 192.168.1.20
           /32 host LOCAL
        |-- 192.168.1.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
";
    const TABLE: &str = "\
00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000021122fffe334455 02 40 20 80     eth0
20010db8000000000000000000000005 02 40 00 80     eth0
20010db8000000001234567890abcdef 02 40 00 01     eth0
";

    #[test]
    fn the_addresses_of_the_interfaces_are_found_and_those_that_do_not_stay_are_not() {
        assert_eq!(v4(TRIE).collect::<Vec<_>>(), [Ipv4Addr::new(192, 168, 1, 20)]);
        assert_eq!(v6(TABLE).collect::<Vec<_>>(), ["2001:db8::5".parse::<Ipv6Addr>().unwrap()]);
    }

    #[test]
    fn what_is_listened_on_is_there_and_every_address_is_not() {
        let listen = ["https://192.0.2.1:443", "https://0.0.0.0:1", "127.0.0.2:1"].map(|text| text.parse().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let found = BoxNames::find(folder.path(), &listen);
        let expected = ["127.0.0.1", "192.0.2.1", "::1"].map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(found.addresses, BTreeSet::from(expected));
        assert_eq!(found.listened, BTreeSet::from([expected[1]]));
        assert_eq!(found.names.last().map(String::as_str), Some("localhost"));
    }

    #[test]
    fn a_host_name_has_labels() {
        for good in ["box", "box-1.lan", "a.b.c"] {
            assert!(is_host_name(good), "{good}");
        }
        for bad in ["", ".", "a..b", "-a", "a-", "a_b", "(none)", &"a".repeat(65)] {
            assert!(!is_host_name(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_table_of_the_system_is_too_odd(text in "[ |/.:a-f0-9+\n-]{0,200}|\\PC{0,100}") {
            let _ = (v4(&text).count(), v6(&text).count());
        }
    }
}
