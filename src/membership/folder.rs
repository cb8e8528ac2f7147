//! The folder of the membership: `membership/` in the state folder.
//!
//! | file | content |
//! | --- | --- |
//! | `membership.json` | the platform, and what to ask it for. It is written last: without it there is no membership |
//! | `settings.toml` | the settings from the join file, a source of the configuration |
//! | `ca.pem`, `root.json` | the root certificate, and the root metadata of updates |
//! | `identity.pem` | the certificate of this box, its issuers and its private key, in one file, so that they change together |
//! | `request.json` | a request that is not answered yet, with its private key |
//! | `question.json` | the question that was answered last: no question is answered twice |
//! | `status.json` | what the last attempt came to, for people |

use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::names::DeviceName;
use ledge_base::secret::SecretFile;
use ledge_egress::{HttpClientSettings, TlsClientSettings, WebAddress};
use ledge_identity::sealing::{CipherError, EncryptionPurpose, Sealer};
use ledge_listener::tls::CertificateFacts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::certificates::CertificateChain;
use crate::join_file::Invitation;
use crate::question::AnsweredQuestion;
use crate::request::PendingRequest;

/// The settings from the join file.
pub const SETTINGS_FILE: &str = "settings.toml";

const MEMBERSHIP_FILE: &str = "membership.json";
const CA_FILE: &str = "ca.pem";
const ROOT_FILE: &str = "root.json";
const IDENTITY_FILE: &str = "identity.pem";
const REQUEST_FILE: &str = "request.json";
const QUESTION_FILE: &str = "question.json";
const STATUS_FILE: &str = "status.json";

/// The folder, and the key under which its private keys are encrypted.
#[derive(Debug, Clone)]
pub struct MembershipFolder {
    path: PathBuf,
    sealer: Sealer,
}

/// The membership of this box.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    pub version: u32,
    pub platform: String,
    #[serde(rename = "box")]
    pub device: DeviceName,
    /// The folder of requests and answers.
    pub join: WebAddress,
    /// The SHA-256 of the root certificate, in hexadecimal digits.
    pub fingerprint: String,
    pub standing: Standing,
}

/// How far this box has come.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Standing {
    /// It asks for its first certificate.
    Joining {
        invitation: Box<Invitation>,
        /// The SHA-256 of the join file, in hexadecimal digits.
        join_file: String,
    },
    /// It has a certificate. `inbox` takes its requests.
    Member { inbox: String },
    /// The platform refused it. Another join file is needed.
    Refused { reason: String },
}

/// The result of the last attempt, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MembershipStatus {
    /// RFC 3339.
    pub at: String,
    /// One sentence.
    pub said: String,
    /// True if a person must do something.
    pub is_problem: bool,
}

/// The reason why a file of the folder cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Cipher { path: PathBuf, error: CipherError },
    #[error("{} is damaged: {reason}; join the platform again with a new join file", path.display())]
    Damaged { path: PathBuf, reason: String },
}

impl MembershipFolder {
    /// The folder at `path`; `sealer` encrypts its private keys, if it has a key.
    pub fn new(path: &Path, sealer: Sealer) -> Self {
        Self { path: path.to_owned(), sealer }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn settings_file(&self) -> PathBuf {
        self.path.join(SETTINGS_FILE)
    }

    pub fn ca_file(&self) -> PathBuf {
        self.path.join(CA_FILE)
    }

    pub fn root_file(&self) -> PathBuf {
        self.path.join(ROOT_FILE)
    }

    pub fn identity_file(&self) -> PathBuf {
        self.path.join(IDENTITY_FILE)
    }

    /// The connection to the platform at `join`, without a certificate of this box, which may have expired: what is sent there
    /// proves by its signature who sends it.
    pub(crate) fn connection(&self, join: &WebAddress) -> HttpClientSettings {
        let ca = Some(SecretFile::Path(self.ca_file()));
        let tls = join.tls.then(|| TlsClientSettings { ca, ..TlsClientSettings::default() });
        HttpClientSettings { at: join.at.clone(), tls, proxy: None }
    }

    /// True if this box has joined a platform, or tries to.
    pub fn exists(&self) -> bool {
        self.path.join(MEMBERSHIP_FILE).is_file()
    }

    /// Writes a new membership. The folder must not have one.
    pub fn create(&self, membership: &Membership, invitation: &Invitation, settings: &str) -> Result<(), FolderError> {
        durable::create_folder(&self.path).map_err(|error| FolderError::File { path: self.path.clone(), error })?;
        self.write(CA_FILE, invitation.ca.as_bytes())?;
        self.write(ROOT_FILE, invitation.root.as_bytes())?;
        self.write(SETTINGS_FILE, settings.as_bytes())?;
        self.save(membership)
    }

    /// The membership; `None` where there is none.
    pub fn membership(&self) -> Result<Option<Membership>, FolderError> {
        self.read_json(MEMBERSHIP_FILE)
    }

    /// Replaces the membership.
    pub fn save(&self, membership: &Membership) -> Result<(), FolderError> {
        self.write_json(MEMBERSHIP_FILE, membership)
    }

    /// The certificate, its issuers and the private key, in PEM; `None` before the first certificate.
    pub fn identity(&self) -> Result<Option<Zeroizing<Vec<u8>>>, FolderError> {
        self.read(IDENTITY_FILE)
    }

    /// The facts of the certificate; `None` where there is none that can be read.
    pub fn certificate_facts(&self) -> Option<CertificateFacts> {
        CertificateChain::from_pem(&self.identity().ok()??).ok()?.facts().ok()
    }

    /// Replaces certificate and private key together.
    pub fn save_identity(&self, certificate: &str, key: &str) -> Result<(), FolderError> {
        let both = Zeroizing::new(format!("{}\n{key}", certificate.trim_end()));
        self.write_secret(IDENTITY_FILE, both.as_bytes())
    }

    /// The request that is not answered yet.
    pub fn pending(&self) -> Result<Option<PendingRequest>, FolderError> {
        self.read_json(REQUEST_FILE)
    }

    /// Stores a request before it is sent, so that a box that loses its power asks with the same key again.
    pub fn save_pending(&self, request: &PendingRequest) -> Result<(), FolderError> {
        self.write_json(REQUEST_FILE, request)
    }

    /// Forgets the request.
    pub fn remove_pending(&self) -> Result<(), FolderError> {
        let path = self.path.join(REQUEST_FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FolderError::File { path, error }),
            _ => Ok(()),
        }
    }

    /// The question that was answered last; `None` before the first.
    pub fn answered(&self) -> Result<Option<AnsweredQuestion>, FolderError> {
        self.read_json(QUESTION_FILE)
    }

    /// Replaces it. When this returns, no power cut makes the box answer the question again.
    pub fn save_answered(&self, answered: &AnsweredQuestion) -> Result<(), FolderError> {
        self.write_json(QUESTION_FILE, answered)
    }

    /// The result of the last attempt; `None` before the first.
    pub fn status(&self) -> Option<MembershipStatus> {
        self.read_json(STATUS_FILE).ok().flatten()
    }

    /// Replaces the result of the last attempt.
    pub fn save_status(&self, status: &MembershipStatus) -> Result<(), FolderError> {
        let text = serde_json::to_vec(status).map_err(|error| self.damaged(STATUS_FILE, &error))?;
        self.write(STATUS_FILE, &text)
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FolderError> {
        let content = self.read(name)?;
        content.map(|content| serde_json::from_slice(&content)).transpose().map_err(|error| self.damaged(name, &error))
    }

    fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), FolderError> {
        let text = Zeroizing::new(serde_json::to_vec(value).map_err(|error| self.damaged(name, &error))?);
        self.write_secret(name, &text)
    }

    fn damaged(&self, name: &str, error: &dyn std::fmt::Display) -> FolderError {
        FolderError::Damaged { path: self.path.join(name), reason: error.to_string() }
    }

    fn read(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, FolderError> {
        let path = self.path.join(name);
        match std::fs::read(&path) {
            Ok(content) => opened(&self.sealer, content).map(Some).map_err(|error| FolderError::Cipher { path, error }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FolderError::File { path, error }),
        }
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), FolderError> {
        let path = self.path.join(name);
        durable::replace_private(&path, content).map_err(|error| FolderError::File { path, error })
    }

    fn write_secret(&self, name: &str, content: &[u8]) -> Result<(), FolderError> {
        let sealed = self.sealer.seal(EncryptionPurpose::Membership, &[], content);
        let sealed = sealed.map_err(|error| FolderError::Cipher { path: self.path.join(name), error })?;
        self.write(name, &Zeroizing::new(sealed))
    }
}

/// The content of a file of the folder, which may be encrypted.
pub fn opened(sealer: &Sealer, content: Vec<u8>) -> Result<Zeroizing<Vec<u8>>, CipherError> {
    if !Sealer::is_sealed(&content) {
        return Ok(Zeroizing::new(content));
    }
    sealer.open(EncryptionPurpose::Membership, &[], &content).map(Zeroizing::new)
}
