//! `[documents]`: the model that reads documents for the interfaces of other services, and the limits of their
//! operations.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::Uri;
use axum::http::uri::Authority;
use ledge_base::names::ModelName;
use ledge_base::toml_check::{empty_if_none, in_range, none_if_empty};
use ledge_part::section::ConfigSection;
use serde::{Deserialize, Serialize};

/// The section `[documents]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DocumentsConfig {
    /// The model of `/documentintelligence` and of `/process`.
    pub model: ModelName,
    /// The most operations of a caller at a time, those with a result that is kept included.
    #[serde(deserialize_with = "in_range::<1, 10_000, _, _>")]
    pub max_operations: usize,
    /// The time that the result of an operation is kept for its caller, in seconds.
    #[serde(deserialize_with = "in_range::<1, 86_400, _, _>")]
    pub keep_results_s: u64,
    /// The address of a proxy that ends TLS in front of this box: results of callers under its name have this address.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub public_url: Option<PublicUrl>,
}

/// The address of a proxy, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    address: String,
    host: String,
}

/// The error for a text that is no address of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected an address such as https://box.example or https://box.example/ledge, without a name of a user and a query, got {text:?}"
)]
pub struct InvalidPublicUrl {
    text: String,
}

impl FromStr for PublicUrl {
    type Err = InvalidPublicUrl;

    fn from_str(text: &str) -> Result<Self, InvalidPublicUrl> {
        let invalid = || InvalidPublicUrl { text: text.to_owned() };
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let is_known = matches!(uri.scheme_str(), Some("https" | "http"));
        let authority = uri.authority().filter(|authority| is_known && !authority.as_str().contains('@'));
        let host = authority.map(|authority| authority.host().to_ascii_lowercase()).ok_or_else(invalid)?;
        // A fragment is no part of a `Uri`.
        if uri.query().is_some() || text.contains('#') {
            return Err(invalid());
        }
        Ok(Self { address: text.trim_end_matches('/').to_owned(), host })
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl PublicUrl {
    /// Returns true for a request to the name of the proxy, at whichever port.
    pub(super) fn is_of(&self, authority: &str) -> bool {
        let is_own = |authority: Authority| authority.host().eq_ignore_ascii_case(&self.host);
        !authority.contains('@') && authority.parse().is_ok_and(is_own)
    }
}

impl Default for DocumentsConfig {
    fn default() -> Self {
        Self {
            model: ModelName::constant("document_reader"),
            max_operations: 32,
            keep_results_s: 600,
            public_url: None,
        }
    }
}

impl DocumentsConfig {
    /// [`Self::keep_results_s`].
    pub fn keep_results(&self) -> Duration {
        Duration::from_secs(self.keep_results_s)
    }
}

impl ConfigSection for DocumentsConfig {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_address_is_one_of_a_proxy() {
        for text in ["https://box.example", "http://box.example:8080", "https://Box.example/ledge/", "https://[::1]:8"]
        {
            let url: PublicUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text.trim_end_matches('/'));
        }
        let all = [
            "",
            "box.example",
            "ftp://box.example",
            "https://",
            "https://a@box.example",
            "https://b/?q=1",
            "https://b/#f",
        ];
        for text in all {
            assert!(text.parse::<PublicUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn it_is_that_of_callers_under_its_name() {
        let url: PublicUrl = "https://Box.example/ledge".parse().unwrap();
        assert!(["box.example", "BOX.example:8443"].iter().all(|host| url.is_of(host)));
        assert!(!["far.example", "box.example.far", "x@box.example", ""].iter().any(|host| url.is_of(host)));
    }
}
