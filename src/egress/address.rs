//! `HOST:PORT`, the form of a destination in the allow-list.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest DNS name, in bytes (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 253;

/// The longest label of a name, between two dots, in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// The host of a destination: a name or an IP address. Equal hosts have one text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A DNS name, in lower case.
    Name(String),
    /// An address. An IPv4-mapped IPv6 address is stored as the IPv4 address.
    Ip(IpAddr),
}

/// A destination: host and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub host: Host,
    /// Never 0.
    pub port: u16,
}

/// A text that is not a destination. It does not repeat the text, which may hold the password of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected \"HOST:PORT\" with a name, an IPv4 address or an IPv6 address in brackets, and without an '@'")]
pub struct InvalidHostPort;

impl Host {
    /// True if it is this machine, so that nothing leaves it.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name == "localhost",
            Self::Ip(address) => address.is_loopback(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.parse::<IpAddr>() {
            Ok(address) => Some(Self::Ip(address.to_canonical())),
            Err(_) => is_name(text).then(|| Self::Name(text.to_ascii_lowercase())),
        }
    }
}

/// True if a text is a host name. A name with a number as its last label is refused: the system would read `127.1` or
/// `2130706433` as an address, which is not the one in the allow-list.
fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=LABEL_BYTES_MAX).contains(&label.len()) && !label.starts_with('-') && label.bytes().all(inside)
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X");
    text.len() <= NAME_BYTES_MAX && text.split('.').all(label) && !number
}

impl HostPort {
    /// A destination from host and port. An IPv6 address may have brackets.
    pub fn new(host: &str, port: u16) -> Result<Self, InvalidHostPort> {
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host_read = match inner {
            Some(inner) => inner.parse::<Ipv6Addr>().ok().map(|address| Host::Ip(IpAddr::V6(address).to_canonical())),
            None => Host::parse(host),
        };
        match host_read {
            Some(host) if port > 0 => Ok(Self { host, port }),
            _ => Err(InvalidHostPort),
        }
    }

    /// The addresses that need no DNS: an IP address itself, and those of `localhost`, whatever DNS says.
    pub(super) fn addresses(&self) -> Option<Vec<IpAddr>> {
        match &self.host {
            Host::Ip(address) => Some(vec![*address]),
            Host::Name(name) if name == "localhost" => {
                Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
            }
            Host::Name(_) => None,
        }
    }
}

impl FromStr for HostPort {
    type Err = InvalidHostPort;

    fn from_str(text: &str) -> Result<Self, InvalidHostPort> {
        let (host, port) = text.rsplit_once(':').ok_or(InvalidHostPort)?;
        // Without brackets the last group of an IPv6 address would be read as the port.
        let colons = host.contains(':') && !host.starts_with('[');
        let digits = port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
        let port = port.parse().ok().filter(|_| digits && !colons).ok_or(InvalidHostPort)?;
        Self::new(host, port)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Ip(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Serialize for HostPort {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_destination_has_one_way_to_be_written() {
        for (text, written) in [
            ("broker.shop.example:8883", "broker.shop.example:8883"),
            ("Broker.Shop.EXAMPLE:8883", "broker.shop.example:8883"),
            ("broker:1", "broker:1"),
            ("my_broker-2:65535", "my_broker-2:65535"),
            ("192.168.1.2:1883", "192.168.1.2:1883"),
            ("[2001:db8:0::1]:8883", "[2001:db8::1]:8883"),
            ("[::ffff:10.0.0.1]:1", "10.0.0.1:1"),
            ("1.example:1", "1.example:1"),
        ] {
            assert_eq!(text.parse::<HostPort>().map(|it| it.to_string()), Ok(written.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_names_no_host_or_no_port_is_refused() {
        let long = format!("{}x:1", "abcdefghi.".repeat(26));
        for text in [
            "",
            ":",
            ":1",
            "broker",
            "broker:",
            "broker:0",
            "broker:00",
            "broker:01",
            "broker:+1",
            "broker:65536",
            "broker:x",
            "broker :1",
            " broker:1",
            "bröker:1",
            "bro\0ker:1",
            "a/b:1",
            "mqtt://broker:1",
            "user@broker:1",
            "2001:db8::1:1",
            "[2001:db8::1]",
            "[]:1",
            "[broker]:1",
            "[10.0.0.1]:1",
            "[fe80::1%eth0]:1",
            "broker.:1",
            ".broker:1",
            "a..b:1",
            "-a:1",
            "127.1:1",
            "2130706433:1",
            "1.2.3.4.5:1",
            "256.1.1.1:1",
            "0x7f.0x1:1",
            "a.0x1:1",
            "*.example:1",
            &long,
        ] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
        assert!(
            HostPort::new("broker", 0).is_err() && HostPort::new("a:1", 1).is_err() && HostPort::new("", 1).is_err()
        );
    }

    #[test]
    fn an_address_of_version_6_may_come_without_brackets_in_two_parts() {
        assert_eq!(HostPort::new("2001:db8::1", 1), HostPort::new("[2001:db8::1]", 1));
    }

    #[test]
    fn loopback_is_this_machine_however_it_is_written() {
        for text in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "LocalHost:1", "[::ffff:127.0.0.1]:1"] {
            assert!(text.parse::<HostPort>().unwrap().host.is_loopback(), "{text}");
        }
        for text in ["128.0.0.1:1", "0.0.0.0:1", "[::]:1", "[::2]:1", "localhost.example:1", "local:1", "10.0.0.1:1"] {
            assert!(!text.parse::<HostPort>().unwrap().host.is_loopback(), "{text}");
        }
    }

    #[test]
    fn localhost_is_never_looked_up() {
        let addresses = |text: &str| text.parse::<HostPort>().unwrap().addresses();
        assert!(addresses("localhost:1").is_some_and(|found| found.iter().all(IpAddr::is_loopback)));
        assert_eq!(addresses("localhost.example:1"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read_as_what_it_is_written_as(text in "(\\[)?[a-zA-Z0-9:.%_-]{0,40}(\\])?(:[0-9]{0,6})?|\\PC*") {
            if let Ok(read) = text.parse::<HostPort>() {
                let written = read.to_string();
                prop_assert_eq!(written.parse::<HostPort>(), Ok(read), "{} from {}", written, text);
            }
        }

        #[test]
        fn every_address_and_port_is_a_destination(address: IpAddr, port in 1_u16..) {
            let read = std::net::SocketAddr::new(address, port).to_string().parse::<HostPort>();
            prop_assert_eq!(read, Ok(HostPort { host: Host::Ip(address.to_canonical()), port }));
        }
    }
}
