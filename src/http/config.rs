//! The section `[http]` of the configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ledge_base::toml_check::in_range;
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_listener::ListenerEndpoint;
use ledge_listener::address::{ListenAddress, SocketMode, one_or_many};
use ledge_listener::tls::config::TlsConfig;
use ledge_part::handler_context::BodyLimits;
use serde::{Deserialize, Serialize};

use super::browser::HostName;
use super::local_plain::PlainLocalListener;
use crate::SERVICE;

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
    /// The memory that all requests and answers may take together, over all protocols, with the data that is made of
    /// them (tensors, decoded pictures, rows), in bytes.
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
    pub tls: TlsConfig,
    /// The sections `[[http.local_plain]]`.
    pub local_plain: Vec<PlainLocalListener>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: vec![
                ListenAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 8000))),
                ListenAddress::Unix("ledge.sock".into()),
            ],
            socket_mode: SocketMode::GROUP,
            allowed_hosts: Vec::new(),
            max_body_bytes: 64 << 20,
            max_memory_bytes: 512 << 20,
            max_pixels: DecodeLimits::default().max_pixels,
            max_connections: 1024,
            header_timeout_ms: 30_000,
            body_timeout_ms: 60_000,
            write_timeout_ms: 30_000,
            tls: TlsConfig::default(),
            local_plain: Vec::new(),
        }
    }
}

impl HttpConfig {
    /// [`Self::header_timeout_ms`].
    pub fn header_timeout(&self) -> Duration {
        Duration::from_millis(self.header_timeout_ms)
    }

    /// The bytes of [`Self::max_memory_bytes`] that calls may reserve. An eighth is left for memory that is not
    /// counted: freed memory that the allocator has not returned yet, buffers of connections, and the runs in the
    /// processes of models.
    pub fn counted_memory_bytes(&self) -> usize {
        (self.max_memory_bytes - self.max_memory_bytes / 8).max(self.max_body_bytes)
    }

    /// Every listener.
    pub fn endpoints(&self) -> Vec<ListenerEndpoint> {
        let listen = self.listen.iter().map(|address| ListenerEndpoint::new(SERVICE, address.clone()));
        listen.chain(self.local_plain.iter().map(PlainLocalListener::endpoint)).collect()
    }

    /// The limits of one body.
    pub fn body_limits(&self) -> BodyLimits {
        BodyLimits { max_bytes: self.max_body_bytes, timeout: Duration::from_millis(self.body_timeout_ms) }
    }

    /// [`Self::write_timeout_ms`].
    pub fn write_timeout(&self) -> Duration {
        Duration::from_millis(self.write_timeout_ms)
    }

    /// Returns `true` if it listens beyond loopback, where callers need a credential.
    pub fn is_exposed(&self) -> bool {
        self.endpoints().iter().any(|endpoint| endpoint.address.is_exposed())
    }

    /// The number of files that connections may have open, over TCP and over Unix sockets.
    pub fn open_files_max(&self) -> u64 {
        2 * self.max_connections as u64
    }

    /// Returns `true` if an address is served with TLS.
    pub fn serves_tls(&self) -> bool {
        self.listen.iter().any(ListenAddress::is_tls)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ledge_base::toml_check::ValueProblem;
    use ledge_listener::address;
    use ledge_part::section::ConfigSection as _;

    use super::*;

    #[test]
    fn listening_beyond_loopback_is_refused_without_tls() {
        let config = |listen: &[&str]| {
            let listen = listen.iter().map(|text| text.parse().unwrap()).collect();
            let tls = TlsConfig { self_signed: true, ..TlsConfig::default() };
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
        assert_eq!(config.problems(), [ValueProblem::new("listen[3]", "unix:a is named twice")]);
        config.listen = ["127.0.0.1:1", "https://127.0.0.1:1"].map(|text| text.parse().unwrap()).into();
        config.tls.self_signed = true;
        assert_eq!(config.problems(), [ValueProblem::new("listen[1]", "https://127.0.0.1:1 is named twice")]);
        config.listen = ["127.0.0.1:0", "unix:a"].map(|text| text.parse().unwrap()).into();
        address::resolve_sockets(&mut config.listen, Path::new(&format!("/{}", "x".repeat(200))));
        assert_eq!(config.problems().len(), 1);
    }
}
