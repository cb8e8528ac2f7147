//! A webhook: a web server that gets messages, one JSON document at a time.

mod url;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use http::header::AUTHORIZATION;
use ledge_base::secret::{SecretError, SecretFile};
use ledge_base::toml_check::{ValueProblem, empty_if_none, from_text, none_if_empty};
use ledge_service::off_thread::blocking;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::time::timeout;
use zeroize::Zeroizing;

pub use url::{InvalidWebhookUrl, WebhookUrl};

use crate::{
    CertificateFingerprint, CertificatePin, ConfiguredDestination, ConfiguredProxy, Egress, EgressContent,
    EgressPurpose, HostPort, HttpClientSettings, HttpError, TlsClientSettings, WebhookClient,
};

/// Limit for one step of a request, and for all of it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// The headers that the request itself has.
const OWN_HEADERS: [&str; 9] = [
    "host",
    "user-agent",
    "accept",
    "content-type",
    "content-length",
    "transfer-encoding",
    "connection",
    "te",
    "upgrade",
];

/// A webhook as the configuration has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    pub url: WebhookUrl,
    /// The secret that the webhook wants.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub token_file: Option<SecretFile>,
    /// The header whose value is only the secret. `None`: `Authorization: Bearer SECRET`.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub token_header: Option<TokenHeader>,
    /// The CAs that may have signed the webhook's certificate; `None` is those that the system trusts.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub ca_file: Option<SecretFile>,
    /// The SHA-256 of the one certificate that the webhook may present.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub pinned_sha256: Option<CertificateFingerprint>,
    /// A proxy that is asked to connect (HTTP CONNECT).
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub proxy: Option<HostPort>,
}

/// The name of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenHeader(pub HeaderName);

/// A text that cannot name the header of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the name of a header that the request does not have anyway, such as \"x-token\", got {text:?}")]
pub struct InvalidTokenHeader {
    text: String,
}

impl FromStr for TokenHeader {
    type Err = InvalidTokenHeader;

    fn from_str(text: &str) -> Result<Self, InvalidTokenHeader> {
        let name = text.parse::<HeaderName>().ok().filter(|name| !OWN_HEADERS.contains(&name.as_str()));
        name.map(Self).ok_or_else(|| InvalidTokenHeader { text: text.to_owned() })
    }
}

impl fmt::Display for TokenHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl Serialize for TokenHeader {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TokenHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl WebhookConfig {
    /// Makes its files relative to `root`.
    pub fn resolve(&mut self, root: &Path) {
        [&mut self.token_file, &mut self.ca_file].into_iter().flatten().for_each(|file| file.resolve(root));
    }

    /// The mistakes between its keys.
    pub fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: &str| problems.push(ValueProblem::new(key, problem));
        if self.token_header.is_some() && self.token_file.is_none() {
            wrong("token_header", "has no secret: set token_file");
        }
        for (key, is_set) in [("ca_file", self.ca_file.is_some()), ("pinned_sha256", self.pinned_sha256.is_some())] {
            if is_set && !self.url.tls {
                wrong(key, "is for a url at https://");
            }
        }
        if self.ca_file.is_some() && self.pinned_sha256.is_some() {
            wrong("ca_file", "and pinned_sha256 are both set: set one of them");
        }
        if self.token_file.is_some() && !self.url.tls && !self.url.at.host.is_loopback() {
            wrong("token_file", "would be sent in plain text: use a url at https://");
        }
        problems
    }

    /// The server, and the proxy on the way to it.
    pub fn destination(&self) -> ConfiguredDestination {
        ConfiguredDestination {
            key: "url".into(),
            at: self.url.at.clone(),
            proxy: self.proxy.clone().map(|at| ConfiguredProxy { key: "proxy".into(), at }),
            is_encrypted: self.url.tls,
            // Receivers in a shop's own network often have no certificate. A secret is not sent to them.
            plaintext_problem: None,
        }
    }

    fn connection(&self) -> HttpClientSettings {
        let pinned = self.pinned_sha256.map(CertificatePin::Sha256);
        let tls = TlsClientSettings { ca: self.ca_file.clone(), pinned, ..TlsClientSettings::default() };
        HttpClientSettings { at: self.url.at.clone(), tls: self.url.tls.then_some(tls), proxy: self.proxy.clone() }
    }

    /// The header that gets the secret.
    fn header(&self) -> HeaderName {
        self.token_header.as_ref().map_or(AUTHORIZATION, |header| header.0.clone())
    }
}

/// Sends messages to one webhook.
#[derive(Debug)]
pub struct Webhook {
    client: WebhookClient,
    path: String,
    token_file: Option<SecretFile>,
    header: HeaderName,
}

/// The reason why a message did not arrive. It does not name the path of the webhook, which may be a secret.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("{0}")]
    Http(String),
    #[error(transparent)]
    Token(#[from] SecretError),
    #[error("does not answer within {} s", SEND_TIMEOUT.as_secs())]
    Late,
    #[error("the receiver refuses it: it answers with status {status}")]
    Status {
        status: u16,
        /// The pause that it asks for.
        retry_after: Option<Duration>,
    },
}

impl Webhook {
    /// A webhook that gets messages of one kind of content. Nothing is connected yet.
    pub fn new(config: &WebhookConfig, egress: &Egress, kind: (EgressPurpose, EgressContent)) -> Self {
        Self {
            client: WebhookClient::new(egress.clone(), config.connection(), kind, REPLY_TIMEOUT),
            path: config.url.path.clone(),
            token_file: config.token_file.clone(),
            header: config.header(),
        }
    }

    /// Sends a message, and waits until the receiver has it.
    pub async fn send(&self, message: Bytes) -> Result<(), WebhookError> {
        timeout(SEND_TIMEOUT, self.post(message)).await.unwrap_or(Err(WebhookError::Late))
    }

    async fn post(&self, message: Bytes) -> Result<(), WebhookError> {
        let token = match self.token_file.clone() {
            None => None,
            // Read each time: a new secret needs no restart, and none is kept.
            Some(file) => Some(Zeroizing::new(blocking(move || file.read_text()).await?)),
        };
        let value = token.map(|token| match self.header {
            AUTHORIZATION => Zeroizing::new(format!("Bearer {}", *token)),
            _ => token,
        });
        let login = value.as_ref().map(|value| (&self.header, value.as_str()));
        let answer = self.client.post(&self.path, login, message).await.map_err(without_path)?;
        match answer.status {
            200..300 => Ok(()),
            status => Err(WebhookError::Status { status, retry_after: answer.retry_after }),
        }
    }
}

impl WebhookError {
    /// The pause that the receiver asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

fn without_path(error: HttpError) -> WebhookError {
    WebhookError::Http(match error {
        HttpError::Redirect { at, status, .. } => {
            format!("{at} redirects (status {status}), which is not followed: set `url` to the address it redirects to")
        }
        HttpError::Answer { at, reason, .. } => format!("the answer of {at} cannot be used: {reason}"),
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> WebhookConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_secret_is_in_a_header_of_its_own_or_in_authorization() {
        let header = |text: &str| config(&format!("url = 'https://h/x'\n{text}")).header().to_string();
        assert_eq!(header(""), "authorization");
        assert_eq!(header("token_header = 'X-Token'"), "x-token");
        for wrong in ["Host", "a b", "content-length", ""] {
            assert!(wrong.parse::<TokenHeader>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn mistakes_between_keys_are_reported_by_their_keys() {
        let keys = |text: &str| config(text).problems().into_iter().map(|problem| problem.key).collect::<Vec<_>>();
        assert_eq!(keys("url = 'http://10.0.0.9/x'\nca_file = 'ca.pem'\ntoken_file = 't'"), ["ca_file", "token_file"]);
        assert_eq!(keys("url = 'https://h/x'\ntoken_header = 'x-token'"), ["token_header"]);
        assert!(keys("url = 'http://127.0.0.1/x'\ntoken_file = 't'").is_empty());
        assert!(config("url = 'https://hooks.example/x?sig=1'").connection().tls.is_some());
    }
}
