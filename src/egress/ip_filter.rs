//! The allow-list as IP addresses, for systemd's filter `IPAddressAllow=`, which takes no names.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};

use super::address::{Host, HostPort};
use super::policy::EgressConfig;

/// The file with the addresses of the system's name servers.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The addresses of one line of the filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpFilterRule {
    /// The destination, in words.
    pub what: String,
    /// Its addresses, sorted.
    pub addresses: Vec<IpAddr>,
}

/// All current addresses of the allow-list, with those of the name servers if it has names; `resolver` is the text of
/// [`RESOLV_CONF`]. Destinations that only a proxy connects to have no addresses: this box may have no DNS besides the
/// proxy's, and could not resolve their names. Asks DNS. The error lists every name that has no address.
pub fn rules(
    config: &EgressConfig,
    behind_proxies: &BTreeMap<HostPort, HostPort>,
    resolver: &str,
) -> Result<Vec<IpFilterRule>, Vec<String>> {
    rules_with(config, behind_proxies, resolver, |name, port| {
        (name, port).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect())
    })
}

fn rules_with(
    config: &EgressConfig,
    behind_proxies: &BTreeMap<HostPort, HostPort>,
    resolver: &str,
    resolve: impl Fn(&str, u16) -> io::Result<Vec<IpAddr>>,
) -> Result<Vec<IpFilterRule>, Vec<String>> {
    let (mut all, mut problems, mut has_names) = (Vec::new(), Vec::new(), false);
    for entry in &config.allow {
        let region = &entry.region;
        if let Some(proxy) = behind_proxies.get(&entry.host) {
            all.push(IpFilterRule {
                what: format!("{}, in {region}: through {proxy}", entry.host),
                addresses: Vec::new(),
            });
            continue;
        }
        match &entry.host.host {
            // The filter allows loopback in any case.
            host if host.is_loopback() => {}
            Host::Ip(address) => {
                all.push(IpFilterRule { what: format!("{}, in {region}", entry.host), addresses: vec![*address] });
            }
            Host::Name(name) => {
                has_names = true;
                let mut addresses = match resolve(name, entry.host.port) {
                    Ok(found) if !found.is_empty() => found,
                    Ok(_) => {
                        problems.push(format!("{name} has no address"));
                        continue;
                    }
                    Err(error) => {
                        problems.push(format!("{name} has no address: {error}"));
                        continue;
                    }
                };
                addresses.sort_unstable();
                addresses.dedup();
                all.push(IpFilterRule {
                    what: format!("{}, in {region}: its current addresses", entry.host),
                    addresses,
                });
            }
        }
    }

    let servers = name_servers(resolver);
    if has_names && !servers.is_empty() {
        all.push(IpFilterRule { what: format!("the name servers of {RESOLV_CONF}"), addresses: servers });
    }
    if problems.is_empty() { Ok(all) } else { Err(problems) }
}

/// The name servers that are not on this machine.
fn name_servers(text: &str) -> Vec<IpAddr> {
    let words = text.lines().map(str::split_whitespace);
    let servers = words.filter_map(|mut words| words.next().filter(|word| *word == "nameserver").and(words.next()));
    // The filter takes a link-local address without its zone.
    let addresses = servers.filter_map(|server| server.split('%').next()?.parse::<IpAddr>().ok());
    addresses.filter(|address| !address.is_loopback()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::toml_check;

    const ALLOWED: &str = "[[allow]]\nhost = 'b.example:1'\nregion = 'eu'\n[[allow]]\nhost = '[2001:db8::1]:2'\nregion = \
                           'ch'\n[[allow]]\nhost = '127.0.0.1:3'\nregion = 'eu'";

    fn of(text: &str, resolver: &str) -> Result<Vec<(String, Vec<String>)>, Vec<String>> {
        behind(&[], text, resolver)
    }

    fn behind(proxies: &[[&str; 2]], text: &str, resolver: &str) -> Result<Vec<(String, Vec<String>)>, Vec<String>> {
        let config: EgressConfig = toml_check::parse("f", text).unwrap();
        let proxies = proxies.iter().map(|pair| pair.map(|text| text.parse().unwrap()).into()).collect();
        let passed = rules_with(&config, &proxies, resolver, |name, _| match name {
            "b.example" => Ok(["192.0.2.9", "192.0.2.1", "192.0.2.9"].map(|text| text.parse().unwrap()).into()),
            "empty.example" => Ok(Vec::new()),
            _ => Err(io::Error::other("unknown")),
        })?;
        let told = |of: IpFilterRule| (of.what, of.addresses.iter().map(ToString::to_string).collect());
        Ok(passed.into_iter().map(told).collect())
    }

    #[test]
    fn names_become_their_addresses_and_bring_the_name_servers_along() {
        let resolver = "# nameserver 192.0.2.1\nnameserver 127.0.0.53\n nameserver 192.0.2.53\nsearch example\n\
                        nameserver fe80::1%eth0\nnameserver\n";
        let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let expected = vec![
            ("b.example:1, in eu: its current addresses".to_owned(), texts(&["192.0.2.1", "192.0.2.9"])),
            ("[2001:db8::1]:2, in ch".to_owned(), texts(&["2001:db8::1"])),
            ("the name servers of /etc/resolv.conf".to_owned(), texts(&["192.0.2.53", "fe80::1"])),
        ];
        assert_eq!(of(ALLOWED, resolver).unwrap(), expected);
    }

    #[test]
    fn without_a_name_nobody_is_asked_for_one() {
        let passed = of("[[allow]]\nhost = '192.0.2.4:1'\nregion = 'eu'", "nameserver 192.0.2.53").unwrap();
        assert_eq!(passed, [("192.0.2.4:1, in eu".to_owned(), vec!["192.0.2.4".to_owned()])]);
        assert_eq!(of("", "nameserver 192.0.2.53").unwrap(), []);
    }

    #[test]
    fn what_is_reached_through_a_proxy_alone_needs_no_name_here_and_no_address() {
        let text =
            "[[allow]]\nhost = 'gone.example:443'\nregion = 'eu'\n[[allow]]\nhost = '192.0.2.3:3128'\nregion = 'eu'";
        let expected = [
            ("gone.example:443, in eu: through 192.0.2.3:3128".to_owned(), Vec::new()),
            ("192.0.2.3:3128, in eu".to_owned(), vec!["192.0.2.3".to_owned()]),
        ];
        let proxies = [["gone.example:443", "192.0.2.3:3128"]];
        assert_eq!(behind(&proxies, text, "nameserver 192.0.2.53").unwrap(), expected);
    }

    #[test]
    fn every_name_without_an_address_is_told() {
        let text =
            "[[allow]]\nhost = 'gone.example:1'\nregion = 'eu'\n[[allow]]\nhost = 'empty.example:1'\nregion = 'eu'";
        let expected = ["gone.example has no address: unknown", "empty.example has no address"];
        assert_eq!(of(text, "").unwrap_err(), expected);
    }
}
