//! The facts known of the certificate that a client presented.

/// A client certificate. Its chain was verified when the connection was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The common name of its subject, and its alternative names: DNS names, URIs, e-mail addresses.
    pub names: Vec<String>,
    /// SHA-256 of the certificate, in hexadecimal digits.
    pub fingerprint: String,
}
