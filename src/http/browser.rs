//! Requests of web pages in a browser on this machine. Callers on this machine have some access without a credential,
//! and pages must not have it: neither pages of another origin, nor pages whose host name resolves to this machine (DNS
//! rebinding).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use ledge_base::toml_check::from_text;
use ledge_egress::{Host, HostPort};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The header in which a browser reports the relation of the requesting page to the host (Fetch Metadata). `none` is a
/// person who typed the address.
const FETCH_SITE_HEADER: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The longest host name that an error repeats, in characters.
const SHOWN_CHARS_MAX: usize = 100;

/// The reason why a request does not count as one of a caller on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignRequest {
    #[error(
        "authentication required: the request comes from a web page (it has the header {header}), and web pages have \
         no access without a credential"
    )]
    Page {
        /// A header that only requests of pages have.
        header: &'static str,
    },
    /// The request was sent to a name that anybody can let resolve to this machine.
    #[error(
        "authentication required: the request was sent to the host {host:?}, which is not a known name of this \
         machine: use 127.0.0.1 or localhost, or add the name to http.allowed_hosts"
    )]
    Host { host: String },
}

impl ForeignRequest {
    /// The name in the audit log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Page { .. } => "web_page",
            Self::Host { .. } => "foreign_host",
        }
    }
}

/// Detects a request that does not come from a program on this machine. Programs send none of these headers, and if
/// they send a host, it is the name or address of this machine.
pub fn foreign_request(uri: &Uri, headers: &HeaderMap, allowed: &[HostName]) -> Option<ForeignRequest> {
    if headers.contains_key(header::ORIGIN) {
        return Some(ForeignRequest::Page { header: "origin" });
    }
    if headers.get_all(FETCH_SITE_HEADER).iter().any(|site| site != "none") {
        return Some(ForeignRequest::Page { header: "sec-fetch-site" });
    }
    let in_uri = uri.authority().map(|authority| authority.as_str().as_bytes());
    let in_headers = headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes);
    let mut hosts = in_uri.into_iter().chain(in_headers).filter(|host| !host.is_empty());
    let foreign = hosts.find(|host| !is_own_host(host, allowed))?;
    Some(ForeignRequest::Host { host: String::from_utf8_lossy(foreign).chars().take(SHOWN_CHARS_MAX).collect() })
}

/// Returns `true` if `HOST` or `HOST:PORT` is an IP address, a name that always resolves to this machine, or an allowed
/// name.
fn is_own_host(host: &[u8], allowed: &[HostName]) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let host = authority.host().to_ascii_lowercase();
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&host);
    if inner.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = host.strip_suffix('.').unwrap_or(&host);
    name == "localhost" || name.ends_with(".localhost") || allowed.iter().any(|allowed| allowed.0 == name)
}

/// A DNS name, without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

/// The error for a text that is not a DNS name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the name of a host, such as box.example, without a port, got {text:?}")]
pub struct InvalidHostName {
    text: String,
}

impl FromStr for HostName {
    type Err = InvalidHostName;

    fn from_str(text: &str) -> Result<Self, InvalidHostName> {
        // Any port will do: only the name is read.
        match HostPort::new(text, 1) {
            Ok(HostPort { host: Host::Name(name), .. }) => Ok(Self(name)),
            _ => Err(InvalidHostName { text: text.chars().take(SHOWN_CHARS_MAX).collect() }),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for HostName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(uri: &str, headers: &[(&'static str, &'static str)]) -> Option<&'static str> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let allowed = ["Box.example".parse().unwrap()];
        foreign_request(&uri.parse().unwrap(), &map, &allowed).map(|foreign| foreign.as_str())
    }

    #[test]
    fn a_request_of_a_program_on_this_machine_is_accepted() {
        assert_eq!(judged("/v2", &[]), None, "HTTP/1.0 names no host");
        for host in [
            "127.0.0.1:8000",
            "127.8.8.8",
            "[::1]:8000",
            "10.0.0.7",
            "localhost",
            "LOCALHOST:8000",
            "localhost.",
            "ledge.localhost:8000",
            "box.example:8000",
            "BOX.example.",
            "",
        ] {
            assert_eq!(judged("/v2", &[("host", host)]), None, "{host}");
        }
        assert_eq!(judged("http://127.0.0.1:8000/v2", &[("host", "127.0.0.1:8000")]), None);
        assert_eq!(judged("/v2", &[("host", "localhost"), ("sec-fetch-site", "none")]), None, "typed by a person");
    }

    #[test]
    fn a_request_of_a_page_is_detected_by_a_header_or_by_the_host() {
        for (name, value) in [
            ("origin", "https://far.example"),
            ("origin", "null"),
            ("origin", "http://localhost:8000"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "same-origin"),
        ] {
            assert_eq!(judged("/v2", &[("host", "localhost"), (name, value)]), Some("web_page"), "{name}: {value}");
        }
        for host in [
            "far.example",
            "far.example:8000",
            "localhost.far.example",
            "notlocalhost",
            "127.0.0.1.far.example",
            "127.1",
            "2130706433",
            "::1",
            "a b",
            "box.example.far.example",
            "x.box.example",
        ] {
            assert_eq!(judged("/v2", &[("host", host)]), Some("foreign_host"), "{host}");
        }
        assert_eq!(judged("http://far.example/v2", &[("host", "localhost")]), Some("foreign_host"));
        assert_eq!(judged("/v2", &[("host", "localhost"), ("host", "far.example")]), Some("foreign_host"));
    }

    #[test]
    fn a_host_name_has_no_port_and_is_no_address() {
        assert_eq!("Box.Example".parse::<HostName>().unwrap().to_string(), "box.example");
        for bad in ["", "box:8000", "http://box", "10.0.0.7", "[::1]", "*.example", "a b", "box.", "127.1"] {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
    }
}
