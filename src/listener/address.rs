//! The addresses of listeners, and the networks that they serve.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ipnet::IpNet;
use ledge_base::toml_check::{ValueProblem, from_text};
use serde::de::{SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest path of a Unix socket on Linux, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Returns `true` if an address can be reached from the network. An IPv4 address may be written as IPv6.
fn is_beyond_loopback(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// The address of a listener: `HOST:PORT`, `https://HOST:PORT` or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// An address and port; port 0 lets the system choose.
    Tcp(SocketAddr),
    Tls(SocketAddr),
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns `true` if callers beyond this machine can reach it.
    pub fn is_exposed(&self) -> bool {
        match self {
            Self::Tcp(at) | Self::Tls(at) => is_beyond_loopback(at),
            Self::Unix(_) => false,
        }
    }

    /// Returns `true` if it is served with TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Returns `true` if both cannot be bound at once. Port 0 is another port each time.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one) | Self::Tls(one), Self::Tcp(other) | Self::Tls(other)) => one == other && one.port() != 0,
            _ => self == other,
        }
    }
}

/// The error for a text that is not a listen address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected \"HOST:PORT\" or \"https://HOST:PORT\" with an IP address or localhost, or \"unix:PATH\", got {text:?}"
)]
pub struct InvalidListenAddress {
    text: String,
}

impl FromStr for ListenAddress {
    type Err = InvalidListenAddress;

    fn from_str(text: &str) -> Result<Self, InvalidListenAddress> {
        let invalid = || InvalidListenAddress { text: text.chars().take(SOCKET_PATH_BYTES_MAX).collect() };
        match (text.strip_prefix("unix:"), text.strip_prefix("https://")) {
            (Some(path), _) if !path.is_empty() && !path.contains('\0') => Ok(Self::Unix(path.into())),
            (Some(_), _) => Err(invalid()),
            (None, Some(text)) => tcp(text).map(Self::Tls).ok_or_else(invalid),
            (None, None) => tcp(text).map(Self::Tcp).ok_or_else(invalid),
        }
    }
}

fn tcp(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().ok()?))),
        // A name is refused: it would be resolved only once, at the start.
        None => text.parse().ok(),
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Tls(address) => write!(f, "https://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for ListenAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The permissions of a file, as the octal digits that `chmod` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketMode(u32);

impl SocketMode {
    /// For the owner and the group.
    pub const GROUP: Self = Self(0o660);

    /// The bits, for `chmod`.
    pub fn bits(self) -> u32 {
        self.0
    }
}

/// The error for a text that is not a socket mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected three octal digits as for chmod, for example \"0660\", got {text:?}")]
pub struct InvalidSocketMode {
    text: String,
}

impl FromStr for SocketMode {
    type Err = InvalidSocketMode;

    fn from_str(text: &str) -> Result<Self, InvalidSocketMode> {
        let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
        let octal = digits.len() == 3 && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let bits = if octal { u32::from_str_radix(digits, 8).ok() } else { None };
        bits.map(Self).ok_or_else(|| InvalidSocketMode { text: text.chars().take(16).collect() })
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl<'de> Deserialize<'de> for SocketMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for SocketMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The mistakes in the addresses of a section, with keys within it.
pub fn problems(listen: &[ListenAddress]) -> Vec<ValueProblem> {
    let mut problems = Vec::new();
    for (index, address) in listen.iter().enumerate() {
        let problem = if listen.iter().take(index).any(|earlier| earlier.conflicts_with(address)) {
            format!("{address} is named twice")
        } else {
            match address {
                ListenAddress::Tcp(tcp) if is_beyond_loopback(tcp) => format!(
                    "{tcp} can be reached from the network without encryption: set it to https://{tcp} with a \
                     certificate in [http.tls], or to 127.0.0.1:{port}, [::1]:{port} or a unix: path",
                    port = tcp.port(),
                ),
                ListenAddress::Unix(path) if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX => {
                    format!(
                        "the path {} is longer than {SOCKET_PATH_BYTES_MAX} bytes, the limit for a Unix socket",
                        path.display()
                    )
                }
                _ => continue,
            }
        };
        problems.push(ValueProblem::new(format!("listen[{index}]"), problem));
    }
    problems
}

/// Makes the paths of Unix sockets relative to `root`.
pub fn resolve_sockets(listen: &mut [ListenAddress], root: &Path) {
    for address in listen {
        if let ListenAddress::Unix(path) = address {
            *path = root.join(&path);
        }
    }
}

/// Deserializes a list of addresses, or one address without brackets, as in `LEDGE_HTTP_LISTEN=127.0.0.1:8000`.
pub fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ListenAddress>, D::Error> {
    struct OneOrManyVisitor;

    impl<'de> Visitor<'de> for OneOrManyVisitor {
        type Value = Vec<ListenAddress>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of \"HOST:PORT\", \"https://HOST:PORT\" or \"unix:PATH\"")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
            text.parse().map(|address| vec![address]).map_err(E::custom)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, sequence: A) -> Result<Self::Value, A::Error> {
            Deserialize::deserialize(SeqAccessDeserializer::new(sequence))
        }
    }

    deserializer.deserialize_any(OneOrManyVisitor)
}

/// A network, `192.168.1.0/24`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerNetwork(IpNet);

/// The error for a text that is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a network such as \"192.168.1.0/24\", or one address, got {0:?}")]
pub struct InvalidPeerNetwork(String);

impl FromStr for PeerNetwork {
    type Err = InvalidPeerNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidPeerNetwork> {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(Self).map_err(|_| InvalidPeerNetwork(text.chars().take(64).collect()))
    }
}

impl fmt::Display for PeerNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for PeerNetwork {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for PeerNetwork {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PeerNetwork {
    /// Returns `true` if an address, IPv4 also when it is written as IPv6, is in the network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip.to_canonical())
    }

    /// The number of bits that the addresses of the network share.
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_with_port_localhost_or_a_socket_path() {
        for good in [
            "127.0.0.1:8000",
            "[::1]:0",
            "0.0.0.0:80",
            "https://0.0.0.0:8443",
            "https://[::]:0",
            "unix:ledge.sock",
            "unix:/run/ledge/ledge.sock",
        ] {
            assert_eq!(good.parse::<ListenAddress>().map(|address| address.to_string()), Ok(good.into()));
        }
        assert_eq!("localhost:1".parse(), Ok(ListenAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)))));
        assert_eq!("https://localhost:1".parse(), Ok(ListenAddress::Tls(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)))));
        for bad in [
            "",
            "localhost",
            "8000",
            ":8000",
            "example.com:80",
            "127.0.0.1",
            "127.0.0.1:65536",
            "https://",
            "https://127.0.0.1",
            "https://127.0.0.1:1/",
            "https://example.com:443",
            "http://127.0.0.1:1",
            "unix:",
            "unix:\0",
        ] {
            assert!(bad.parse::<ListenAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_mode_is_octal_and_keeps_its_digits() {
        assert_eq!("0660".parse::<SocketMode>().map(SocketMode::bits), Ok(0o660));
        assert_eq!("600".parse::<SocketMode>().map(|mode| mode.to_string()), Ok("0600".into()));
        for bad in ["", "0", "66", "0o660", "0688", "1777", "06600", "+660", "rw-"] {
            assert!(bad.parse::<SocketMode>().is_err(), "{bad}");
        }
    }
}
