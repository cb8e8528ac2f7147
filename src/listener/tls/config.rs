//! The section `[http.tls]` of the configuration.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ledge_base::secret::SecretFile;
use ledge_base::toml_check::{ValueProblem, empty_if_none, from_text, in_range, none_if_empty};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The certificate that this box shows over `https://`, and the certificates of callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The certificate of this box, followed by the intermediate certificates.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub certificate_file: Option<SecretFile>,
    /// The key of the certificate.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub key_file: Option<SecretFile>,
    /// Makes this box create its own certificate, for which no authority vouches.
    pub self_signed: bool,
    pub client_certificates: ClientCertificates,
    /// The authorities for client certificates.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub client_ca_file: Option<SecretFile>,
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub client_crl_file: Option<SecretFile>,
    /// The time that a caller may take for the handshake, in milliseconds.
    #[serde(deserialize_with = "in_range::<100, 60_000, _, _>")]
    pub handshake_timeout_ms: u64,
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            certificate_file: None,
            key_file: None,
            self_signed: false,
            client_certificates: ClientCertificates::None,
            client_ca_file: None,
            client_crl_file: None,
            handshake_timeout_ms: 10_000,
        }
    }
}

impl TlsConfig {
    /// [`Self::handshake_timeout_ms`].
    pub fn handshake_timeout(&self) -> Duration {
        Duration::from_millis(self.handshake_timeout_ms)
    }

    /// Makes relative paths relative to `root`.
    pub fn resolve(&mut self, root: &Path) {
        let files =
            [&mut self.certificate_file, &mut self.key_file, &mut self.client_ca_file, &mut self.client_crl_file];
        files.into_iter().flatten().for_each(|file| file.resolve(root));
    }

    /// The mistake of having no certificate, for addresses of the key `listen` that are served with TLS, with the key
    /// within `[http]`.
    pub fn missing_certificate(&self, listen: &str) -> Option<ValueProblem> {
        let is_missing = self.certificate_file.is_none() && self.key_file.is_none() && !self.self_signed;
        is_missing.then(|| {
            let problem = format!(
                "is not set, and {listen} has an https:// address: set it and http.tls.key_file, or for first tests \
                 http.tls.self_signed = true"
            );
            ValueProblem::new("tls.certificate_file", problem)
        })
    }

    /// The other mistakes in a section with well-formed values, with keys within `[http]`.
    pub fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: &str| problems.push(ValueProblem::new(key, problem));
        match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => wrong("tls.certificate_file", "needs its key: set http.tls.key_file"),
            (None, Some(_)) => {
                wrong("tls.key_file", "needs its certificate: set http.tls.certificate_file");
            }
            (Some(_), Some(_)) if self.self_signed => {
                let problem = "and http.tls.certificate_file are both set: remove one of them";
                wrong("tls.self_signed", problem);
            }
            _ => {}
        }

        let asks = self.client_certificates != ClientCertificates::None;
        if asks && self.client_ca_file.is_none() {
            wrong(
                "tls.client_ca_file",
                "is not set, and http.tls.client_certificates is: set it to the file of the authorities of client \
                 certificates",
            );
        }
        if !asks && self.client_ca_file.is_some() {
            wrong(
                "tls.client_certificates",
                "is \"none\", so http.tls.client_ca_file has no effect: set it to \"optional\" or \"required\"",
            );
        }
        if self.client_crl_file.is_some() && self.client_ca_file.is_none() {
            let problem = "has no effect without authorities: set http.tls.client_ca_file";
            wrong("tls.client_crl_file", problem);
        }
        problems
    }
}

/// Defines whether callers show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Callers are not asked for a certificate.
    None,
    /// Callers may show a certificate. An invalid one ends the handshake.
    Optional,
    Required,
}

impl ClientCertificates {
    const ALL: [Self; 3] = [Self::None, Self::Optional, Self::Required];

    /// As it is written in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

/// The error for another text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected \"none\", \"optional\" or \"required\", got {text:?}")]
pub struct InvalidClientCertificates {
    text: String,
}

impl FromStr for ClientCertificates {
    type Err = InvalidClientCertificates;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|choice| choice.as_str() == text);
        found.ok_or_else(|| InvalidClientCertificates { text: text.chars().take(40).collect() })
    }
}

impl fmt::Display for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ClientCertificates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for ClientCertificates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(served: bool, change: impl Fn(&mut TlsConfig)) -> Vec<String> {
        let mut config = TlsConfig::default();
        change(&mut config);
        let missing = config.missing_certificate("http.listen").filter(|_| served);
        missing.into_iter().chain(config.problems()).map(|problem| problem.key).collect()
    }

    fn file() -> Option<SecretFile> {
        "x".parse().ok()
    }

    #[test]
    fn an_https_address_needs_a_certificate_with_its_key_or_a_self_signed_one() {
        assert_eq!(keys(false, |_| ()), [""; 0]);
        assert_eq!(keys(true, |_| ()), ["tls.certificate_file"]);
        assert_eq!(keys(true, |config| config.self_signed = true), [""; 0]);
        assert_eq!(keys(true, |config| config.certificate_file = file()), ["tls.certificate_file"]);
        assert_eq!(keys(true, |config| config.key_file = file()), ["tls.key_file"]);
        let both = |config: &mut TlsConfig| (config.certificate_file, config.key_file) = (file(), file());
        assert_eq!(keys(true, both), [""; 0]);
        assert_eq!(keys(false, both), [""; 0]);
        let all = |config: &mut TlsConfig| {
            both(config);
            config.self_signed = true;
        };
        assert_eq!(keys(true, all), ["tls.self_signed"]);
    }

    #[test]
    fn client_certificates_and_their_authorities_go_together() {
        let with = |choice, ca: bool, crl: bool| {
            keys(true, |config| {
                config.self_signed = true;
                config.client_certificates = choice;
                config.client_ca_file = if ca { file() } else { None };
                config.client_crl_file = if crl { file() } else { None };
            })
        };
        for choice in [ClientCertificates::Optional, ClientCertificates::Required] {
            assert_eq!(choice.as_str().parse(), Ok(choice));
            assert_eq!(with(choice, true, true), [""; 0]);
            assert_eq!(with(choice, false, false), ["tls.client_ca_file"]);
        }
        assert_eq!(with(ClientCertificates::None, true, false), ["tls.client_certificates"]);
        assert_eq!(with(ClientCertificates::None, false, true), ["tls.client_crl_file"]);
        assert!("Required".parse::<ClientCertificates>().is_err());
    }
}
