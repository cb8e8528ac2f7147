//! The check of the systemd unit: its network filter must admit the addresses that the configuration needs. The filter
//! applies to the daemon, not to this process, so a connection from here proves nothing.

use std::net::IpAddr;
use std::process::Command;

use ledge_egress::ip_filter::{self, IpFilterRule};

use crate::cli::checks::Finding;
use crate::cli::config::open_listeners;
use crate::config::Config;

const CHECK_NAME: &str = "unit";

/// Checks the filter; `None` without systemd, without the unit, or for another configuration than the unit's.
pub fn check(config: &Config) -> Option<Finding> {
    if config.state.path != Config::packaged().state.path {
        return None;
    }
    let mut command = Command::new("systemctl");
    command.args(["show", "ledge.service", "-p", "LoadState", "-p", "IPAddressDeny", "-p", "IPAddressAllow"]);
    let output = command.output().ok().filter(|output| output.status.success())?;
    let shown = String::from_utf8_lossy(&output.stdout);
    if !shown.lines().any(|line| line == "LoadState=loaded") {
        return None;
    }
    let resolver = std::fs::read_to_string(ip_filter::RESOLV_CONF).unwrap_or_default();
    // Other checks report names without an address.
    let passed = ip_filter::rules(&config.egress, &config.behind_proxies(), &resolver).unwrap_or_default();
    Some(compare(&shown, &open_listeners(config), &passed))
}

/// Compares the output of `systemctl show` with the listeners for other machines, and with the destinations.
fn compare(shown: &str, open: &[String], passed: &[IpFilterRule]) -> Finding {
    let networks = |key: &str| -> Vec<IpNetwork> {
        let values = shown.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.flat_map(str::split_whitespace).filter_map(IpNetwork::parse).collect()
    };
    let (denied, allowed) = (networks("IPAddressDeny"), networks("IPAddressAllow"));
    let is_blocked = |address: IpAddr| {
        let is_in = |networks: &[IpNetwork]| networks.iter().any(|network| network.contains(address));
        is_in(&denied) && !is_in(&allowed)
    };

    let mut blocked: Vec<String> = Vec::new();
    for IpFilterRule { what, addresses } in passed {
        let addresses: Vec<_> =
            addresses.iter().filter(|address| is_blocked(**address)).map(ToString::to_string).collect();
        if !addresses.is_empty() {
            blocked.push(format!("{what}: the unit blocks {}", addresses.join(", ")));
        }
    }
    // The networks of clients are unknown; but if the filter admits only this machine and the destinations, it has no
    // network of clients.
    let is_of_clients = |network: &&IpNetwork| {
        let is_destination = passed.iter().flat_map(|of| &of.addresses).any(|address| network.is_only(*address));
        !network.address.is_loopback() && !is_destination
    };
    if !open.is_empty() && !denied.is_empty() && !allowed.iter().any(|network| is_of_clients(&network)) {
        blocked.push(format!("{}: the unit blocks every client on another machine", open.join(", ")));
    }

    if blocked.is_empty() {
        return Finding::ok(CHECK_NAME, "its network filter admits every address that the configuration needs");
    }
    let clients = if open.is_empty() { "" } else { " --clients 192.168.1.0/24" };
    let advice = format!(
        "ledge config systemd-drop-in{clients} > /etc/systemd/system/ledge.service.d/network.conf && \
         systemctl daemon-reload && systemctl restart ledge"
    );
    Finding::warn(CHECK_NAME, blocked.join("\n"), advice)
}

/// An IP network: the addresses with the same first bits.
struct IpNetwork {
    address: IpAddr,
    bits: u32,
}

impl IpNetwork {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        Some(Self { address, bits: bits.map_or(Some(width(address)), |bits| bits.parse().ok())? })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (own, other) = (number(self.address), number(address));
        let host_bits = width(self.address).saturating_sub(self.bits);
        self.address.is_ipv4() == address.is_ipv4() && own.checked_shr(host_bits) == other.checked_shr(host_bits)
    }

    fn is_only(&self, address: IpAddr) -> bool {
        self.bits == width(self.address) && self.address == address
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::checks::FindingStatus;

    const CLOSED: &str = "LoadState=loaded\nIPAddressDeny=::/0 0.0.0.0/0\nIPAddressAllow=";
    const LOCAL: &str = "127.0.0.0/8 ::1/128";

    fn checked(shown: &str, open: &[&str], to: &[&str]) -> (FindingStatus, String) {
        let addresses = to.iter().map(|text| text.parse().unwrap()).collect();
        let open: Vec<_> = open.iter().map(ToString::to_string).collect();
        let check = compare(shown, &open, &[IpFilterRule { what: "the broker".into(), addresses }]);
        (check.status, check.detail)
    }

    #[test]
    fn blocked_destinations_and_clients_are_reported() {
        let closed = format!("{CLOSED}{LOCAL}");
        let (status, detail) = checked(&closed, &["https://0.0.0.0:8443"], &["192.0.2.7", "2001:db8::7"]);
        let expected = "the broker: the unit blocks 192.0.2.7, 2001:db8::7\n\
                        https://0.0.0.0:8443: the unit blocks every client on another machine";
        assert_eq!((status, detail.as_str()), (FindingStatus::Warn, expected));
        // An admitted destination is not a client.
        let (status, detail) = checked(&format!("{closed} 192.0.2.7/32"), &["https://0.0.0.0:8443"], &["192.0.2.7"]);
        assert!(status == FindingStatus::Warn && !detail.contains("192.0.2.7"), "{detail}");
    }

    #[test]
    fn admitted_addresses_are_not_reported() {
        for (allowed, open, to) in [
            (LOCAL, &[][..], &[][..]),
            ("127.0.0.0/8 192.0.2.0/24 2001:db8::/32", &["https://0.0.0.0:8443"], &["192.0.2.7", "2001:db8::7"]),
            ("0.0.0.0/0 ::/0", &["https://[::]:8443"], &["192.0.2.7", "2001:db8::7"]),
        ] {
            assert_eq!(checked(&format!("{CLOSED}{allowed}"), open, to).0, FindingStatus::Ok, "{allowed}");
        }
        let none = "LoadState=loaded\nIPAddressDeny=\nIPAddressAllow=";
        assert_eq!(checked(none, &["https://0.0.0.0:8443"], &["192.0.2.7"]).0, FindingStatus::Ok);
    }
}
