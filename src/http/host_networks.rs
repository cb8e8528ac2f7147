//! Networks that do not leave this machine: those between its containers. What is sent there without encryption passes
//! no wire.
//!
//! An address is in one of them if the route back to it is direct, and its interface is a bridge or one end of a pair,
//! without a device or a tunnel behind it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// The table of routes of IPv4. `proc(5)` has its form.
const ROUTES_V4: &str = "/proc/self/net/route";

/// The same of IPv6.
const ROUTES_V6: &str = "/proc/self/net/ipv6_route";

/// The folder with an entry for each interface.
const INTERFACES: &str = "/sys/class/net";

/// The type of an interface with frames of Ethernet (`ARPHRD_ETHER`).
const ETHERNET: &str = "1";

/// A route of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NetworkRoute<'t> {
    interface: &'t str,
    /// The leading bits of the addresses that it is for, over the full width.
    network: u128,
    prefix: u32,
    /// Set for a network that the interface is in, without a router.
    is_direct: bool,
}

/// Returns true if the other end of a connection is on this machine.
pub(super) fn is_on_this_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if address.is_loopback() {
        return true;
    }
    let (file, bits) = match address {
        IpAddr::V4(address) => (ROUTES_V4, u128::from(address.to_bits()) << 96),
        IpAddr::V6(address) => (ROUTES_V6, address.to_bits()),
    };
    let Ok(table) = fs::read_to_string(file) else { return false };
    let routes = table.lines().filter_map(|line| if address.is_ipv4() { route_v4(line) } else { route_v6(line) });
    let back = best(routes, bits).filter(|route| route.is_direct);
    back.is_some_and(|route| stays_here(&Path::new(INTERFACES).join(route.interface)))
}

/// The most specific route.
fn best<'t>(routes: impl Iterator<Item = NetworkRoute<'t>>, address: u128) -> Option<NetworkRoute<'t>> {
    let fits = |route: &NetworkRoute<'_>| {
        let mask = u128::MAX.checked_shl(128 - route.prefix).unwrap_or(0);
        address & mask == route.network & mask
    };
    routes.filter(fits).max_by_key(|route| route.prefix)
}

/// A line of [`ROUTES_V4`]; the numbers are in the order of this machine's bytes.
fn route_v4(line: &str) -> Option<NetworkRoute<'_>> {
    let columns: Vec<_> = line.split_ascii_whitespace().collect();
    let [interface, network, gateway, _, _, _, _, mask, ..] = *columns else { return None };
    let number = |text: &str| u32::from_str_radix(text, 16).map(u32::from_be).ok();
    let network = u128::from(number(network)?) << 96;
    Some(NetworkRoute { interface, network, prefix: number(mask)?.leading_ones(), is_direct: number(gateway)? == 0 })
}

/// A line of [`ROUTES_V6`].
fn route_v6(line: &str) -> Option<NetworkRoute<'_>> {
    let columns: Vec<_> = line.split_ascii_whitespace().collect();
    let [network, prefix, _, _, gateway, .., interface] = *columns else { return None };
    let number = |text: &str| u128::from_str_radix(text, 16).ok();
    let prefix = u32::from_str_radix(prefix, 16).ok().filter(|prefix| *prefix <= 128)?;
    Some(NetworkRoute { interface, network: number(network)?, prefix, is_direct: number(gateway)? == 0 })
}

/// Returns true if an interface, by its folder, has neither a device nor another interface behind it.
fn stays_here(folder: &Path) -> bool {
    let has = |start: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).any(|name| name.starts_with(start))
    };
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    let kind = read("uevent");
    let kind = kind.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).unwrap_or_default();
    if read("type").trim() != ETHERNET || has("device") {
        return false;
    }
    match kind {
        "bridge" => fs::read_dir(folder.join("brif")).into_iter().flatten().flatten().all(|port| {
            // A port is a link to a folder in that of its interface.
            let interface = folder.with_file_name(port.file_name());
            !interface.join("bridge").exists() && stays_here(&interface)
        }),
        // One end of a pair; an interface on top of another one, as of a VLAN, names it.
        "" | "veth" => !has("lower_"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::os::unix::fs::symlink;

    use super::*;

    const V4: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                      eth0 00000000 0102A8C0 0003 0 0 0 00000000 0 0 0\n\
                      eth0 0002A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n\
                      docker0 000011AC 00000000 0001 0 0 0 0000FFFF 0 0 0\n";

    fn interface_of(address: &str) -> Option<(&'static str, bool)> {
        let address: Ipv4Addr = address.parse().unwrap();
        let found = best(V4.lines().filter_map(route_v4), u128::from(address.to_bits()) << 96)?;
        Some((found.interface, found.is_direct))
    }

    #[test]
    fn the_route_back_is_the_most_specific_one() {
        assert_eq!(interface_of("172.17.0.9"), Some(("docker0", true)));
        assert_eq!(interface_of("192.168.2.7"), Some(("eth0", true)));
        assert_eq!(interface_of("8.8.8.8"), Some(("eth0", false)));
        let line = "fd000000000000010000000000000000 40 00000000000000000000000000000000 00 \
                    00000000000000000000000000000000 00000100 00000001 00000000 00000001  podman1";
        let route = route_v6(line).unwrap();
        assert_eq!((route.interface, route.prefix, route.is_direct), ("podman1", 64, true));
        let address: Ipv6Addr = "fd00:0:0:1::9".parse().unwrap();
        assert_eq!(best([route].into_iter(), address.to_bits()), Some(route));
        assert_eq!(route_v4("eth0 0"), None);
    }

    /// An interface as the kernel shows it.
    fn interface(root: &Path, name: &str, kind: &str, files: &[&str]) {
        let folder = root.join(name);
        for file in files {
            fs::create_dir_all(folder.join(file)).unwrap();
        }
        fs::create_dir_all(&folder).unwrap();
        ledge_base::durable::replace(&folder.join("type"), b"1\n").unwrap();
        ledge_base::durable::replace(&folder.join("uevent"), format!("DEVTYPE={kind}\n").as_bytes()).unwrap();
    }

    #[test]
    fn a_bridge_of_containers_stays_here_and_one_with_a_network_card_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        interface(root, "eth0", "", &["device"]);
        interface(root, "eth0.5", "vlan", &["lower_eth0"]);
        interface(root, "macvlan0", "", &["lower_eth0"]);
        interface(root, "vxlan0", "vxlan", &[]);
        interface(root, "veth1", "veth", &[]);
        for (bridge, ports) in [("docker0", &["veth1"][..]), ("br0", &["veth1", "eth0"]), ("br1", &["vxlan0"])] {
            interface(root, bridge, "bridge", &["brif", "bridge"]);
            for port in ports {
                symlink(root.join(port), root.join(bridge).join("brif").join(port)).unwrap();
            }
        }
        let stays = |name: &str| stays_here(&root.join(name));
        assert!(stays("veth1") && stays("docker0"));
        for leaves in ["eth0", "eth0.5", "macvlan0", "vxlan0", "br0", "br1", "none"] {
            assert!(!stays(leaves), "{leaves}");
        }
    }

    #[test]
    fn loopback_is_here() {
        assert!(is_on_this_host("127.0.0.1".parse().unwrap()) && is_on_this_host("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!is_on_this_host("192.0.2.1".parse().unwrap()));
    }
}
