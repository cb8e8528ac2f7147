//! The address of a file or folder on a web server, as the configuration has it.

use std::fmt;
use std::str::FromStr;

use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::HostPort;

/// `https://HOST[:PORT]/PATH`, or `http://` on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebAddress {
    pub tls: bool,
    pub at: HostPort,
    /// The path with its leading slash, percent-encoded.
    pub path: String,
}

/// A text that is not an address. It does not repeat the text, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected https://HOST[:PORT]/PATH, without an '@' and a '?'")]
pub struct InvalidWebAddress;

impl FromStr for WebAddress {
    type Err = InvalidWebAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: http::Uri = text.parse().map_err(|_| InvalidWebAddress)?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(InvalidWebAddress),
        };
        let authority =
            uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or(InvalidWebAddress)?;
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let at = HostPort::new(host, port).map_err(|_| InvalidWebAddress)?;
        if uri.query().is_some() {
            return Err(InvalidWebAddress);
        }
        Ok(Self { tls, at, path: uri.path().to_owned() })
    }
}

impl fmt::Display for WebAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, self.at, self.path)
    }
}

impl Serialize for WebAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WebAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}
