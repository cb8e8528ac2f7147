//! Reasons why there is no encrypted connection.

use std::io;

use ledge_base::secret::{SecretError, SecretFile};

use super::fingerprint::CertificateFingerprint;

/// The reason why there is no encrypted connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("{file} holds no certificate in PEM format")]
    NoCertificate { file: SecretFile },
    #[error("{file} holds a certificate that cannot be used: {reason}")]
    BadCertificate { file: SecretFile, reason: String },
    /// A file without a key, or with an unusable one.
    #[error("{file} holds no private key in PEM format that can be used (one with a passphrase cannot): {reason}")]
    BadKey { file: SecretFile, reason: String },
    #[error("a client certificate and its key go together: set both `certificate_file` and `key_file`, or neither")]
    Half,
    #[error("the key in {key} is not that of the certificate in {certificate}")]
    KeyMismatch { certificate: SecretFile, key: SecretFile },
    #[error("this machine trusts no CA: install the package ca-certificates, or set `ca_file` to that of your own CA")]
    NoSystemCa,
    #[error("the server's certificate is not signed by {trusted}; if it has another CA, set `ca_file` to its file")]
    Untrusted { trusted: String },
    #[error("the server's certificate is for {presented}, not for {expected}: connect by a name it has, or renew it")]
    WrongName {
        expected: String,
        /// The names in the certificate.
        presented: String,
    },
    #[error("the server's certificate {when}, or the clock of this machine is wrong")]
    Dated {
        /// Before or after its time.
        when: &'static str,
    },
    #[error(
        "the server's certificate is not the pinned one, its SHA-256 is {presented}: if the server was given a new \
         certificate, pin that one; otherwise another machine answers in its place"
    )]
    NotPinned { presented: CertificateFingerprint },
    #[error("the server's certificate is not acceptable: {reason}")]
    Unacceptable { reason: String },
    #[error("the server wants a client certificate: set `certificate_file` and `key_file`")]
    CertificateRequired,
    #[error("the server does not accept the client certificate in {certificate} (TLS alert {alert})")]
    CertificateRefused { certificate: SecretFile, alert: String },
    #[error("the server does not speak TLS on this port: use its TLS port (MQTT: 8883), or turn TLS off for it")]
    NotTls,
    #[error("the server closed the connection during the TLS handshake: does it speak TLS on this port? ({reason})")]
    Closed { reason: io::Error },
    #[error("TLS failed: {reason}")]
    Failed { reason: String },
}
