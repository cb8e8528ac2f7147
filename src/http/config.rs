//! The section `[http]` of the configuration.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ledge_base::toml_check::{Problem, from_text, in_range};
use ledge_part::check::Check;
use ledge_part::handler_context::BodyLimits;
use ledge_part::section::{DoctorContext, Section};
use serde::de::{SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::browser::HostName;
use super::handover::Endpoint;
use super::local_plain::{self, LocalPlain};
use super::tls::config::HttpTlsConfig;
use crate::doctor;

/// The longest path of a Unix socket on Linux, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The listeners of the HTTP interface and the limits on callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    #[serde(deserialize_with = "one_or_many")]
    pub listen: Vec<ListenAddress>,
    /// The permissions of a Unix socket.
    pub socket_mode: SocketMode,
    /// The names by which callers on this machine reach it, besides its addresses and `localhost`.
    pub allowed_hosts: Vec<HostName>,
    /// The largest request body after decompression, in bytes.
    #[serde(deserialize_with = "in_range::<1024, 4_294_967_296, _, _>")]
    pub max_body_bytes: usize,
    /// The memory that all requests and answers may take together, by whatever way they come, with the data that is made
    /// of them (tensors, decoded pictures, rows), in bytes.
    #[serde(deserialize_with = "in_range::<1_048_576, 1_099_511_627_776, _, _>")]
    pub max_memory_bytes: usize,
    /// The largest photograph, in pixels.
    #[serde(deserialize_with = "in_range::<1, 1_000_000_000, _, _>")]
    pub max_pixels: u64,
    /// The most open connections.
    #[serde(deserialize_with = "in_range::<1, 65_536, _, _>")]
    pub max_connections: usize,
    /// The time that a connection may be idle, or a caller may take to send the head of a request, in milliseconds.
    #[serde(deserialize_with = "in_range::<100, 600_000, _, _>")]
    pub header_timeout_ms: u64,
    /// The time that a caller may take to send the body of a request, in milliseconds.
    #[serde(deserialize_with = "in_range::<100, 3_600_000, _, _>")]
    pub body_timeout_ms: u64,
    /// The time that a caller may take to read the next 64 KiB of an answer, or its rest, in milliseconds. After this
    /// time its average rate must be 256 KiB a second.
    #[serde(deserialize_with = "in_range::<100, 3_600_000, _, _>")]
    pub write_timeout_ms: u64,
    /// The section `[http.tls]`: for addresses that start with `https://`.
    pub tls: HttpTlsConfig,
    /// The sections `[[http.local_plain]]`.
    pub local_plain: Vec<LocalPlain>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: vec![
                ListenAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 8000))),
                ListenAddress::Unix("ledge.sock".into()),
            ],
            socket_mode: SocketMode(0o660),
            allowed_hosts: Vec::new(),
            max_body_bytes: 64 << 20,
            max_memory_bytes: 512 << 20,
            max_pixels: 50_000_000,
            max_connections: 1024,
            header_timeout_ms: 30_000,
            body_timeout_ms: 60_000,
            write_timeout_ms: 30_000,
            tls: HttpTlsConfig::default(),
            local_plain: Vec::new(),
        }
    }
}

impl HttpConfig {
    /// [`Self::header_timeout_ms`].
    pub fn header_timeout(&self) -> Duration {
        Duration::from_millis(self.header_timeout_ms)
    }

    /// The bytes of [`Self::max_memory_bytes`] that calls may hold. An eighth is left for what nobody counts: freed memory
    /// that the allocator has not returned yet, buffers of connections, and the runs in the processes of models.
    pub fn counted_memory_bytes(&self) -> usize {
        (self.max_memory_bytes - self.max_memory_bytes / 8).max(self.max_body_bytes)
    }

    /// Every listener.
    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        let listen = self.listen.iter().map(|address| (address.clone(), None));
        listen.chain(self.local_plain.iter().map(|plain| (plain.address(), Some(plain.clone())))).collect()
    }

    /// The limits of one body.
    pub fn body_limits(&self) -> BodyLimits {
        BodyLimits { max_bytes: self.max_body_bytes, timeout: Duration::from_millis(self.body_timeout_ms) }
    }

    /// [`Self::write_timeout_ms`].
    pub fn write_timeout(&self) -> Duration {
        Duration::from_millis(self.write_timeout_ms)
    }

    /// Makes the paths of Unix sockets relative to `root`.
    pub fn resolve_sockets(&mut self, root: &Path) {
        for address in &mut self.listen {
            if let ListenAddress::Unix(path) = address {
                *path = root.join(&path);
            }
        }
    }

    /// Returns `true` if it listens beyond loopback, where callers need a credential.
    pub fn is_exposed(&self) -> bool {
        self.endpoints().iter().any(|(address, _)| match address {
            ListenAddress::Tcp(at) | ListenAddress::Tls(at) => is_beyond_loopback(at),
            ListenAddress::Unix(_) => false,
        })
    }

    /// The number of files that connections may have open, over TCP and over Unix sockets.
    pub fn open_files_max(&self) -> u64 {
        2 * self.max_connections as u64
    }

    /// Returns `true` if an address is served with TLS.
    pub fn serves_tls(&self) -> bool {
        self.listen.iter().any(|address| matches!(address, ListenAddress::Tls(_)))
    }
}

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
    /// Returns `true` if both cannot be bound at once. Port 0 is another port each time.
    pub(super) fn conflicts_with(&self, other: &Self) -> bool {
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

/// Deserializes a list of addresses, or one address without brackets, as in `LEDGE_HTTP_LISTEN=127.0.0.1:8000`.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ListenAddress>, D::Error> {
    struct OneOrMany;

    impl<'de> Visitor<'de> for OneOrMany {
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

    deserializer.deserialize_any(OneOrMany)
}

impl Section for HttpConfig {
    fn resolve(&mut self, root: &Path) {
        self.resolve_sockets(root);
        self.tls.resolve(root);
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.listen.is_empty() {
            problems.push(Problem::new("listen", "is empty: add at least one address"));
        }

        for (index, address) in self.listen.iter().enumerate() {
            let problem = if self.listen.iter().take(index).any(|earlier| earlier.conflicts_with(address)) {
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
            problems.push(Problem::new(format!("listen[{index}]"), problem));
        }

        if self.max_memory_bytes < self.max_body_bytes {
            let reason = format!(
                "is smaller than http.max_body_bytes ({}), so the largest body would always be refused: set it to a \
                 multiple of http.max_body_bytes",
                self.max_body_bytes
            );
            problems.push(Problem::new("max_memory_bytes", reason));
        }
        problems.extend(local_plain::problems(&self.local_plain, &self.listen));
        problems.extend(self.tls.problems(self.serves_tls()));
        problems
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Check> {
        let https = doctor::https(self, context).into_iter();
        https.chain(doctor::local_access(self)).chain(local_plain::findings(&self.local_plain)).collect()
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
    fn listening_beyond_loopback_is_refused_without_tls() {
        let config = |listen: &[&str]| {
            let listen = listen.iter().map(|text| text.parse().unwrap()).collect();
            let tls = HttpTlsConfig { self_signed: true, ..HttpTlsConfig::default() };
            HttpConfig { listen, tls, ..HttpConfig::default() }
        };
        let problems = |listen: &[&str]| config(listen).problems().len();
        assert_eq!(problems(&["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "unix:x"]), 0);
        assert_eq!(problems(&["0.0.0.0:1", "[::]:1", "192.168.1.2:1", "[::ffff:192.168.1.2]:1"]), 4);
        let open = ["127.0.0.1:1", "https://127.0.0.1:2", "https://0.0.0.0:3", "https://[::]:4"];
        assert_eq!(problems(&open), 0);
        assert!(config(&open).is_exposed());
        assert!(!config(&open[..2]).is_exposed());
    }

    #[test]
    fn no_address_a_duplicate_and_a_too_long_socket_path_are_problems() {
        let mut config = HttpConfig { listen: Vec::new(), ..HttpConfig::default() };
        assert_eq!(config.problems().len(), 1);
        config.listen = ["127.0.0.1:0", "127.0.0.1:0", "unix:a", "unix:a"].map(|text| text.parse().unwrap()).into();
        assert_eq!(config.problems(), [Problem::new("listen[3]", "unix:a is named twice")]);
        config.listen = ["127.0.0.1:1", "https://127.0.0.1:1"].map(|text| text.parse().unwrap()).into();
        config.tls.self_signed = true;
        assert_eq!(config.problems(), [Problem::new("listen[1]", "https://127.0.0.1:1 is named twice")]);
        config.listen = ["127.0.0.1:0", "unix:a"].map(|text| text.parse().unwrap()).into();
        config.resolve_sockets(Path::new(&format!("/{}", "x".repeat(200))));
        assert_eq!(config.problems().len(), 1);
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
