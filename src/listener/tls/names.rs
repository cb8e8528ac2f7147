//! The names and addresses of this box, as far as it knows them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::address::ListenAddress;

/// The names and addresses for a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CertificateNames {
    /// The host name first, if a certificate can have it; `localhost` last.
    pub names: Vec<String>,
    /// The addresses of the interfaces and of `http.listen`.
    pub addresses: BTreeSet<IpAddr>,
    /// The addresses of `http.listen`. The others may change with the network.
    pub listened: BTreeSet<IpAddr>,
}

impl CertificateNames {
    /// Reads them from the system. `root` is the folder that contains `proc`: `/`, except in tests.
    pub fn find(root: &Path, listen: &[ListenAddress]) -> Self {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let host = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        let mut names = Vec::from_iter(is_host_name(&host).then_some(host));
        if !names.iter().any(|name| name == "localhost") {
            names.push("localhost".to_owned());
        }
        // Read as text, because a sandboxed service has no netlink sockets.
        let mut addresses: BTreeSet<_> = ipv4_addresses(&read("proc/self/net/fib_trie")).map(IpAddr::from).collect();
        addresses.extend(ipv6_addresses(&read("proc/self/net/if_inet6")).map(IpAddr::from));
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

/// The addresses of the interfaces of this box, IPv4 first.
pub fn own_addresses() -> Vec<IpAddr> {
    CertificateNames::find(Path::new("/"), &[]).addresses.into_iter().collect()
}

/// Returns `true` if a text can be a DNS name in a certificate.
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

/// The addresses of the interfaces in `/proc/net/fib_trie`: each leaf `|-- ADDRESS` before a line with `host LOCAL`.
fn ipv4_addresses(trie: &str) -> impl Iterator<Item = Ipv4Addr> {
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

/// The permanent addresses in `/proc/net/if_inet6`: no link-local ones, which need a zone, and no temporary ones, which
/// the system changes each day (`IFA_F_TEMPORARY`).
fn ipv6_addresses(table: &str) -> impl Iterator<Item = Ipv6Addr> {
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
    fn the_permanent_addresses_of_the_interfaces_are_found() {
        assert_eq!(ipv4_addresses(TRIE).collect::<Vec<_>>(), [Ipv4Addr::new(192, 168, 1, 20)]);
        assert_eq!(ipv6_addresses(TABLE).collect::<Vec<_>>(), ["2001:db8::5".parse::<Ipv6Addr>().unwrap()]);
    }

    #[test]
    fn listen_addresses_are_included_except_unspecified_ones() {
        let listen = ["https://192.0.2.1:443", "https://0.0.0.0:1", "127.0.0.2:1"].map(|text| text.parse().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let found = CertificateNames::find(folder.path(), &listen);
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
        fn no_table_of_the_system_makes_a_reader_panic(text in "[ |/.:a-f0-9+\n-]{0,200}|\\PC{0,100}") {
            let _ = (ipv4_addresses(&text).count(), ipv6_addresses(&text).count());
        }
    }
}
