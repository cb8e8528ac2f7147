//! Whether the network filter of the systemd unit lets through what the configuration asks for. It holds for the daemon, and
//! not for a command line that looks whether something can be reached.

use std::net::IpAddr;
use std::process::Command;

use ledge_egress::ip_filter::{self, FilterRule};

use crate::cli::checks::Check;
use crate::cli::config::open;
use crate::config::Config;

const NAME: &str = "unit";

/// Nothing where there is no systemd, no unit, or another configuration than the unit's.
pub fn check(config: &Config) -> Option<Check> {
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
    // Names without an address are for other checks to tell.
    let passed = ip_filter::rules(&config.egress, &config.behind_proxies(), &resolver).unwrap_or_default();
    Some(compare(&shown, &open(config), &passed))
}

/// Compares what `systemctl show` says with where others may connect and what is connected to.
fn compare(shown: &str, open: &[String], passed: &[FilterRule]) -> Check {
    let networks = |key: &str| -> Vec<Network> {
        let values = shown.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.flat_map(str::split_whitespace).filter_map(Network::parse).collect()
    };
    let (denied, allowed) = (networks("IPAddressDeny"), networks("IPAddressAllow"));
    let is_stopped = |address: IpAddr| {
        let is_in = |networks: &[Network]| networks.iter().any(|network| network.has(address));
        is_in(&denied) && !is_in(&allowed)
    };
    let mut stopped: Vec<String> = Vec::new();
    for FilterRule { what, addresses } in passed {
        let addresses: Vec<_> =
            addresses.iter().filter(|address| is_stopped(**address)).map(ToString::to_string).collect();
        if !addresses.is_empty() {
            stopped.push(format!("{what}: {} is not let through", addresses.join(", ")));
        }
    }
    // Who the clients are nobody knows; but without a network beside this machine and the destinations there are none.
    let is_of_clients = |network: &&Network| {
        let is_destination = passed.iter().flat_map(|of| &of.addresses).any(|address| network.is_only(*address));
        !network.address.is_loopback() && !is_destination
    };
    if !open.is_empty() && !denied.is_empty() && !allowed.iter().any(|network| is_of_clients(&network)) {
        stopped.push(format!("{}: nobody beyond this machine is let through", open.join(", ")));
    }
    if stopped.is_empty() {
        return Check::ok(NAME, "its network filter lets through what the configuration asks for");
    }
    let clients = if open.is_empty() { "" } else { " --clients 192.168.1.0/24" };
    let advice = format!(
        "ledge config systemd-drop-in{clients} > /etc/systemd/system/ledge.service.d/network.conf && systemctl daemon-reload && \
         systemctl restart ledge"
    );
    Check::warn(NAME, stopped.join("\n"), advice)
}

/// Addresses that begin alike.
struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        Some(Self { address, bits: bits.map_or(Some(width(address)), |bits| bits.parse().ok())? })
    }

    fn has(&self, address: IpAddr) -> bool {
        let (own, other) = (number(self.address), number(address));
        let behind = width(self.address).saturating_sub(self.bits);
        self.address.is_ipv4() == address.is_ipv4() && own.checked_shr(behind) == other.checked_shr(behind)
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
    use crate::cli::checks::Status;

    const CLOSED: &str = "LoadState=loaded\nIPAddressDeny=::/0 0.0.0.0/0\nIPAddressAllow=";
    const LOCAL: &str = "127.0.0.0/8 ::1/128";

    fn look(shown: &str, open: &[&str], to: &[&str]) -> (Status, String) {
        let addresses = to.iter().map(|text| text.parse().unwrap()).collect();
        let open: Vec<_> = open.iter().map(ToString::to_string).collect();
        let check = compare(shown, &open, &[FilterRule { what: "the broker".into(), addresses }]);
        (check.status, check.detail)
    }

    #[test]
    fn what_the_filter_stops_is_told() {
        let closed = format!("{CLOSED}{LOCAL}");
        let (status, detail) = look(&closed, &["https://0.0.0.0:8443"], &["192.0.2.7", "2001:db8::7"]);
        let told = "the broker: 192.0.2.7, 2001:db8::7 is not let through\n\
                    https://0.0.0.0:8443: nobody beyond this machine is let through";
        assert_eq!((status, detail.as_str()), (Status::Warn, told));
        // The destination alone is no client.
        let (status, detail) = look(&format!("{closed} 192.0.2.7/32"), &["https://0.0.0.0:8443"], &["192.0.2.7"]);
        assert!(status == Status::Warn && !detail.contains("192.0.2.7"), "{detail}");
    }

    #[test]
    fn what_it_lets_through_is_no_matter() {
        for (allowed, open, to) in [
            (LOCAL, &[][..], &[][..]),
            ("127.0.0.0/8 192.0.2.0/24 2001:db8::/32", &["https://0.0.0.0:8443"], &["192.0.2.7", "2001:db8::7"]),
            ("0.0.0.0/0 ::/0", &["https://[::]:8443"], &["192.0.2.7", "2001:db8::7"]),
        ] {
            assert_eq!(look(&format!("{CLOSED}{allowed}"), open, to).0, Status::Ok, "{allowed}");
        }
        let none = "LoadState=loaded\nIPAddressDeny=\nIPAddressAllow=";
        assert_eq!(look(none, &["https://0.0.0.0:8443"], &["192.0.2.7"]).0, Status::Ok);
    }
}
