//! A join file: everything that a box needs to become a member of a platform, signed by the platform.
//!
//! The signature proves that the file is whole and of the platform whose root certificate is in it. Only the
//! fingerprint of that root, compared with the one that the platform shows, proves that it is the right platform.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::Ed25519KeyPair;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledge_base::clock;
use ledge_base::names::{DeviceName, RegionName};
use ledge_egress::{HostPort, WebAddress};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::certificates::{CertificateChain, CertificateError};
use crate::envelope::{Envelope, signed_bytes};

/// The payload type of join files.
const JOIN_FILE_TYPE: &str = "application/vnd.ledge.join-file+json";

/// The common name of the platform's own certificate, which no box has.
pub const PLATFORM_NAME: &str = "platform";

/// The version of the payload.
const VERSION: u32 = 1;

/// The content of a verified join file.
#[derive(Debug, Clone)]
pub struct JoinFile {
    pub invitation: Invitation,
    /// The SHA-256 of the root certificate, in hexadecimal digits: what people compare.
    pub fingerprint: String,
    /// The SHA-256 of the whole file, in hexadecimal digits.
    pub sha256: String,
}

/// The payload of a join file.
#[derive(Clone, Serialize, Deserialize)]
pub struct Invitation {
    version: u32,
    /// The name of the platform.
    pub platform: String,
    /// RFC 3339.
    pub made: String,
    /// RFC 3339.
    pub expires: String,
    /// The name of the box; `None` in a file for several boxes, each of which says its name.
    #[serde(rename = "box")]
    pub device: Option<DeviceName>,
    /// The folder of the platform that takes the request.
    pub inbox: String,
    secret: String,
    /// The folder of requests and answers.
    pub join: WebAddress,
    /// The TUF repository.
    pub updates: Option<String>,
    /// `mqtts://HOST[:PORT]`.
    pub broker: Option<String>,
    /// The folder of audit logs.
    pub audit: Option<String>,
    /// The region of the platform, for `[[egress.allow]]`.
    pub region: RegionName,
    /// The root certificate, in PEM.
    pub ca: String,
    /// The TUF root metadata.
    pub root: String,
    pub fleet: Option<DeviceName>,
    pub group: Option<DeviceName>,
    /// Settings in TOML, from the closed set of signed settings.
    pub settings: Option<String>,
    /// Whether the platform upgrades Ledge itself.
    #[serde(default)]
    pub packages: bool,
    /// The address at which the Prometheus of the platform reads the metrics of this box.
    #[serde(default)]
    pub metrics: Option<HostPort>,
}

impl Drop for Invitation {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { platform, device, .. } = self;
        f.debug_struct("Invitation").field("platform", platform).field("device", device).finish_non_exhaustive()
    }
}

/// The reason why a join file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum JoinFileError {
    #[error("it is no join file: expected the file NAME.join of `ledge-platform box add`")]
    Other,
    #[error("it has the version {0}, and this Ledge reads only {VERSION}: install a newer version")]
    Version(u32),
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    #[error(
        "it is not signed by the platform that it names, so it was changed, or it is no file of that platform: {0}"
    )]
    Forged(CertificateError),
    #[error("its signature cannot be judged: {0}. Set the clock; if it is right, ask the platform for a new file")]
    Clock(CertificateError),
    #[error("it expired at {0}: ask the platform for a new one (`ledge-platform box add --again`)")]
    Expired(String),
    #[error("its secret is damaged")]
    Secret,
}

impl JoinFile {
    /// Reads and verifies a join file at `now_ms`, in milliseconds since the Unix epoch.
    pub fn open(bytes: &[u8], now_ms: u64) -> Result<Self, JoinFileError> {
        let envelope =
            Envelope::read(bytes).filter(|it| it.payload_type == JOIN_FILE_TYPE).ok_or(JoinFileError::Other)?;
        let payload = Zeroizing::new(envelope.payload().ok_or(JoinFileError::Other)?);
        let unreadable = |error: serde_json::Error| JoinFileError::Unreadable(error.to_string());
        let Version { version } = serde_json::from_slice(&payload).map_err(unreadable)?;
        if version != VERSION {
            return Err(JoinFileError::Version(version));
        }
        let invitation: Invitation = serde_json::from_slice(&payload).map_err(unreadable)?;

        let [signature] = envelope.signatures.as_slice() else { return Err(JoinFileError::Other) };
        let chain = signature.certificate.as_deref().unwrap_or_default();
        let chain = CertificateChain::from_pem(chain.as_bytes()).map_err(unproven)?;
        let signed = signed_bytes(JOIN_FILE_TYPE, &payload);
        let verified = chain
            .verify(&invitation.ca, now_ms)
            .and_then(|()| chain.is_for(PLATFORM_NAME))
            .and_then(|()| chain.verify_signature(&signed, &signature.bytes().unwrap_or_default()));
        verified.map_err(unproven)?;

        let ends_us = clock::parse_micros(&invitation.expires);
        let ends_us = ends_us.ok_or_else(|| JoinFileError::Unreadable("expires is no time".to_owned()))?;
        if ends_us.unsigned_abs() / 1000 <= now_ms {
            return Err(JoinFileError::Expired(invitation.expires.clone()));
        }
        if !is_inbox(&invitation.inbox) {
            return Err(JoinFileError::Unreadable("inbox is no folder of requests".to_owned()));
        }
        invitation.secret_key()?;
        let fingerprint = CertificateChain::from_pem(invitation.ca.as_bytes()).map_err(unproven)?;
        Ok(Self {
            fingerprint: fingerprint.fingerprint().map_err(unproven)?,
            sha256: hex::encode(digest(&SHA256, bytes)),
            invitation,
        })
    }
}

fn unproven(error: CertificateError) -> JoinFileError {
    match error {
        CertificateError::NotYetValid { .. } | CertificateError::Expired { .. } => JoinFileError::Clock(error),
        error => JoinFileError::Forged(error),
    }
}

/// Only the version of a payload.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// True for the name of a folder of requests: 32 lower-case hexadecimal digits.
pub fn is_inbox(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl Invitation {
    /// The one-time key that signs the request.
    pub fn secret_key(&self) -> Result<Ed25519KeyPair, JoinFileError> {
        let seed = Zeroizing::new(STANDARD.decode(&self.secret).map_err(|_| JoinFileError::Secret)?);
        Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| JoinFileError::Secret)
    }
}
