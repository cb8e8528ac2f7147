//! Requests of web pages in a browser on this machine, or in one with a client certificate. These callers have some
//! access without a key, and foreign pages must not have it: neither pages of another origin, nor pages with a host
//! name that resolves to this machine (DNS rebinding). The page of this box, the console, has it: its requests come
//! from the same origin, and use a known name of this machine.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use ledge_base::toml_check::from_text;
use ledge_egress::{Host, HostPort};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The header in which a browser reports the relation of the requesting page to the host (Fetch Metadata). `none` is a
/// person who typed the address, `same-origin` a page of this box.
const FETCH_SITE_HEADER: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The longest host name that an error repeats, in characters.
const SHOWN_CHARS_MAX: usize = 100;

/// The reason why a request does not count as one of a caller on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrossSiteRequest {
    #[error(
        "authentication required: the request comes from a web page of another site (by its header {header}), and such \
         pages have no access without an API key"
    )]
    Page {
        /// The header that says so.
        header: &'static str,
    },
    /// The request was sent to a name that anybody can let resolve to this machine.
    #[error(
        "authentication required: the request was sent to the host {host:?}, which is not a known name of this \
         machine: use 127.0.0.1 or localhost, or add the name to http.allowed_hosts"
    )]
    Host { host: String },
}

impl CrossSiteRequest {
    /// The name in the audit log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Page { .. } => "web_page",
            Self::Host { .. } => "foreign_host",
        }
    }
}

/// Detects a request that comes neither from a program on this machine nor from the page of this box. Programs send
/// none of these headers, and if they send a host, it is the name or address of this machine. `scheme` is that of the
/// connection.
pub fn foreign_request(
    scheme: &Scheme,
    uri: &Uri,
    headers: &HeaderMap,
    allowed: &[HostName],
) -> Option<CrossSiteRequest> {
    if headers.contains_key(header::ORIGIN) && !is_own_origin(scheme, headers) {
        return Some(CrossSiteRequest::Page { header: "origin" });
    }
    if headers.get_all(FETCH_SITE_HEADER).iter().any(|site| site != "none" && site != "same-origin") {
        return Some(CrossSiteRequest::Page { header: "sec-fetch-site" });
    }
    let in_uri = uri.authority().map(|authority| authority.as_str().as_bytes());
    let in_headers = headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes);
    let mut hosts = in_uri.into_iter().chain(in_headers).filter(|host| !host.is_empty());
    let foreign = hosts.find(|host| !is_own_host(host, allowed))?;
    Some(CrossSiteRequest::Host { host: String::from_utf8_lossy(foreign).chars().take(SHOWN_CHARS_MAX).collect() })
}

/// Returns `true` if the page that sent a request has the origin that the request goes to. The port counts: another
/// server on this machine is another site. The host is checked on its own.
fn is_own_origin(scheme: &Scheme, headers: &HeaderMap) -> bool {
    let once = |name| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok())
    };
    let (Some(origin), Some(host)) = (once(header::ORIGIN), once(header::HOST)) else { return false };
    let own = origin.split_once("://").filter(|(origin_scheme, _)| *origin_scheme == scheme.as_str());
    own.is_some_and(|(_, origin_host)| !origin_host.is_empty() && origin_host.eq_ignore_ascii_case(host))
}

/// Returns `true` if `HOST` or `HOST:PORT` is an IP address, a name that always resolves to this machine, or an allowed
/// name.
pub(super) fn is_own_host(host: &[u8], allowed: &[HostName]) -> bool {
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
        foreign_request(&Scheme::HTTP, &uri.parse().unwrap(), &map, &allowed).map(|foreign| foreign.as_str())
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
            ("origin", "http://"),
            ("origin", "localhost"),
            ("origin", "https://localhost"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "same-origin, cross-site"),
            ("sec-fetch-site", ""),
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
    fn the_page_of_this_box_has_the_access_of_this_machine() {
        let own = [("host", "127.0.0.1:8000"), ("origin", "http://127.0.0.1:8000"), ("sec-fetch-site", "same-origin")];
        assert_eq!(judged("/v2", &own), None);
        assert_eq!(judged("/v2", &[("host", "box.example"), ("origin", "http://Box.example")]), None);
        assert_eq!(
            judged("/v2", &[("host", "localhost"), ("sec-fetch-site", "same-origin")]),
            None,
            "a GET has no origin"
        );

        let page = Some("web_page");
        let site = |host, origin, site| judged("/v2", &[("host", host), ("origin", origin), ("sec-fetch-site", site)]);
        assert_eq!(
            site("127.0.0.1:8000", "http://127.0.0.1:3000", "same-site"),
            page,
            "another server of this machine"
        );
        assert_eq!(site("127.0.0.1:8000", "http://localhost:8000", "cross-site"), page);
        assert_eq!(site("127.0.0.1:8000", "http://127.0.0.1:8000", "same-site"), page);
        assert_eq!(site("127.0.0.1:8000", "https://127.0.0.1:8000", "same-origin"), page);
        let two = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "https://far.example")];
        assert_eq!(judged("/v2", &two), page);
        assert_eq!(site("far.example", "http://far.example", "same-origin"), Some("foreign_host"), "DNS rebinding");

        let headers = HeaderMap::from_iter([
            (header::HOST, HeaderValue::from_static("localhost:8443")),
            (header::ORIGIN, HeaderValue::from_static("https://localhost:8443")),
        ]);
        assert!(is_own_origin(&Scheme::HTTPS, &headers) && !is_own_origin(&Scheme::HTTP, &headers));
    }

    #[test]
    fn a_host_name_has_no_port_and_is_no_address() {
        assert_eq!("Box.Example".parse::<HostName>().unwrap().to_string(), "box.example");
        for bad in ["", "box:8000", "http://box", "10.0.0.7", "[::1]", "*.example", "a b", "box.", "127.1"] {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
    }
}
