//! A request for a certificate: a new key, and a file for the platform that proves who asks.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::Ed25519KeyPair;
use ledge_base::clock;
use ledge_base::names::DeviceName;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SigningKey as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::envelope::Envelope;

/// The payload type of requests.
const REQUEST_TYPE: &str = "application/vnd.ledge.join-request+json";

/// The payload of a request.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CertificateRequest<'a> {
    version: u32,
    /// `join`, or `renew`.
    kind: &'static str,
    /// The name of this box.
    #[serde(rename = "box")]
    device: &'a str,
    /// The public key of this box, with its name (PKCS #10).
    csr: String,
    /// A random name of the folder that will take later requests.
    inbox: &'a str,
    /// The SHA-256 of the join file.
    join_file: Option<&'a str>,
    /// The key with which the audit log of this box is verified.
    audit_key: Option<&'a str>,
    /// The time of the request.
    at: String,
    /// The version of Ledge.
    ledge: &'static str,
}

/// A request that was made and is not answered yet. It has the new private key.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PendingRequest {
    /// The SHA-256 of the public key, in hexadecimal digits: the name of its files on the platform.
    pub id: String,
    /// The folder that takes later requests, if this one is granted.
    pub inbox: String,
    /// The private key, in PEM.
    pub key: String,
    /// The signed bytes to send.
    pub envelope: Envelope,
}

/// The reason why there is no request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("a key or a certificate request cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the system returned no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    #[error("a request cannot be written as JSON: {0}")]
    Encode(#[from] serde_json::Error),
}

/// The signer of a request, and the key id that tells the platform who it is.
pub enum RequestSigner<'a> {
    /// A box with a join file: its one-time key, the inbox of the join file and its SHA-256.
    Invited { key: &'a Ed25519KeyPair, inbox: &'a str, join_file: &'a str },
    /// A member: the key of its certificate, and the serial number of that in hexadecimal digits.
    Member { key: &'a KeyPair, serial: &'a str },
}

impl PendingRequest {
    /// Makes a key and a request for its certificate.
    pub fn make(
        device: &DeviceName,
        audit_key: Option<&str>,
        signer: &RequestSigner<'_>,
        now_ms: u64,
    ) -> Result<Self, RequestError> {
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::CommonName, device.as_str());
        let csr = parameters.serialize_request(&key)?.pem()?;
        let mut inbox = [0; 16];
        getrandom::fill(&mut inbox)?;
        let inbox = hex::encode(inbox);
        let (kind, keyid, join_file) = match signer {
            RequestSigner::Invited { inbox, join_file, .. } => ("join", *inbox, Some(*join_file)),
            RequestSigner::Member { serial, .. } => ("renew", *serial, None),
        };

        let payload = CertificateRequest {
            version: 1,
            kind,
            device: device.as_str(),
            csr,
            inbox: &inbox,
            join_file,
            audit_key,
            at: clock::rfc3339(now_ms),
            ledge: env!("CARGO_PKG_VERSION"),
        };
        let payload = serde_json::to_vec(&payload)?;
        let envelope = Envelope::sign(REQUEST_TYPE, &payload, keyid, |bytes| match signer {
            RequestSigner::Invited { key, .. } => Ok(key.sign(bytes).as_ref().to_vec()),
            RequestSigner::Member { key, .. } => key.sign(bytes),
        })?;
        let id = hex::encode(digest(&SHA256, &key.subject_public_key_info()));
        Ok(Self { id, inbox, key: key.serialize_pem(), envelope })
    }
}

/// An answer of the platform.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Answer {
    pub version: u32,
    pub state: AnswerState,
    /// The certificate and its issuers, in PEM.
    #[serde(default)]
    pub certificate: Option<String>,
    /// The root certificate, in PEM.
    #[serde(default)]
    pub ca: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
}

/// The decision of the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerState {
    Issued,
    /// A person must approve it.
    Waiting,
    Refused,
}
