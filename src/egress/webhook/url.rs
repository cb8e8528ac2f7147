//! The address of a webhook, as the configuration has it.

use std::fmt;
use std::str::FromStr;

use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::{HostPort, WebAddress};

/// Stands for a path. An address never has these characters, so the shown text is not mistaken for one.
const HIDDEN: &str = "<hidden>";

/// `https://HOST[:PORT]/PATH[?QUERY]`, or `http://`.
///
/// Many receivers use the path and the query as a secret, so an address is shown and serialized without them: in
/// `ledge config show`, in logs and findings, and in the settings of the last start.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookUrl {
    pub tls: bool,
    pub at: HostPort,
    /// Path and query, with the leading slash, percent-encoded. It may be a secret.
    pub path: String,
}

/// The error for an invalid address. It does not repeat the text, which may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWebhookUrl {
    #[error("expected https://HOST[:PORT]/PATH or http://HOST[:PORT]/PATH without an '@' and a '#'")]
    Form,
    #[error("has {HIDDEN} in place of its path, as `ledge config show` writes it: put the path there")]
    Hidden,
}

impl WebhookUrl {
    /// The whole address, which may have a secret.
    pub fn whole(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}://{}{}", self.scheme(), self.at, self.path))
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

impl FromStr for WebhookUrl {
    type Err = InvalidWebhookUrl;

    fn from_str(text: &str) -> Result<Self, InvalidWebhookUrl> {
        if text.contains(HIDDEN) {
            return Err(InvalidWebhookUrl::Hidden);
        }
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte);
        if !text.bytes().all(is_allowed) {
            return Err(InvalidWebhookUrl::Form);
        }
        let (address, query) = match text.split_once('?') {
            Some((address, query)) => (address, format!("?{query}")),
            None => (text, String::new()),
        };
        let WebAddress { tls, at, path } = address.parse().map_err(|_| InvalidWebhookUrl::Form)?;
        Ok(Self { tls, at, path: path + &query })
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path == "/" { "" } else { HIDDEN };
        write!(f, "{}://{}/{path}", self.scheme(), self.at)
    }
}

impl fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for WebhookUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WebhookUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_be_a_secret_and_is_never_shown() {
        for (text, path, shown) in [
            ("https://hooks.example/services/T0/B0/x", "/services/T0/B0/x", "https://hooks.example:443/<hidden>"),
            (
                "http://10.0.0.9:8123/api/webhook/x?a=b&sig=%2F",
                "/api/webhook/x?a=b&sig=%2F",
                "http://10.0.0.9:8123/<hidden>",
            ),
            ("https://[2001:db8::1]:8443", "/", "https://[2001:db8::1]:8443/"),
        ] {
            let url: WebhookUrl = text.parse().unwrap();
            assert_eq!((url.path.as_str(), url.to_string().as_str()), (path, shown));
            assert_eq!(serde_json::to_value(&url).unwrap(), shown);
            assert_eq!(url.whole().parse::<WebhookUrl>().unwrap(), url);
        }
        assert_eq!("https://a/<hidden>".parse::<WebhookUrl>(), Err(InvalidWebhookUrl::Hidden));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "hooks.example/x",
            "ftp://a/x",
            "https://user@a/x",
            "https://a/#x",
            "https://a/a b",
            "https://a/ä",
            "https://a/\r\nb: c",
        ] {
            assert_eq!(text.parse::<WebhookUrl>(), Err(InvalidWebhookUrl::Form), "{text}");
        }
    }
}
