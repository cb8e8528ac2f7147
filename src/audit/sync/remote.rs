//! The files of the log on the platform: in a folder of a web server that takes PUT (`WebDAV`), or in a bucket.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, IF_NONE_MATCH};
use ledge_egress::{
    Egress, EgressPurpose, HttpAnswer, HttpClient, HttpClientSettings, UploadClient, client_certificate_refusal,
};

use super::error::hint;
use super::s3::{self, S3Bucket};
use super::{AuditSyncError, AuditSyncSettings};
use crate::config::AuditSyncAddress;

/// The longest checkpoint: a few lines, and signatures of witnesses.
const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// The server, and the connections to it.
#[derive(Debug, Clone)]
pub struct AuditServer {
    client: UploadClient,
    at: String,
}

/// The server, with the folder of this box and the credentials.
pub struct AuditRemote {
    server: AuditServer,
    place: AuditRemotePath,
}

enum AuditRemotePath {
    /// The beginning of all paths, such as `/audit/box-1/`.
    Web(String),
    Bucket(Box<S3Bucket>),
}

/// The outcome of putting a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemotePutOutcome {
    /// The file is new.
    New,
    /// The server has replaced an earlier file.
    Replaced,
    /// A file of that name exists and stays.
    There,
}

/// The outcome of getting a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteGetOutcome {
    File(Bytes),
    Nothing,
    /// No file, or no permission to read it: the server does not say which.
    Hidden,
}

impl AuditServer {
    /// The server of the settings; nothing is connected yet. `None`: the log stays here.
    pub fn of(settings: &AuditSyncSettings, egress: &Egress) -> Option<Result<Self, AuditSyncError>> {
        let config = &settings.config;
        config.url.as_ref()?;
        let Some((at, tls)) = config.server() else {
            let reason = format!("{:?} is not a region", config.region);
            return Some(Err(AuditSyncError::Settings { reason }));
        };
        let name = at.to_string();
        let http = HttpClientSettings { at, tls: tls.then(|| config.tls.settings()), proxy: config.proxy.clone() };
        Some(Ok(Self { client: HttpClient::for_audit(egress.clone(), http, EgressPurpose::Audit), at: name }))
    }
}

impl AuditRemote {
    /// Reads the access keys, which may have been replaced.
    pub async fn open(server: &AuditServer, settings: &AuditSyncSettings) -> Result<Self, AuditSyncError> {
        let AuditSyncSettings { config, device, .. } = settings;
        let place = match &config.url {
            Some(AuditSyncAddress::Bucket { bucket, prefix }) => {
                let (config, bucket, prefix) = (config.clone(), bucket.clone(), format!("{prefix}{device}/"));
                let opened = tokio::task::spawn_blocking(move || S3Bucket::open(&config, &bucket, &prefix)).await;
                let failed = |error: tokio::task::JoinError| AuditSyncError::Settings { reason: error.to_string() };
                AuditRemotePath::Bucket(Box::new(opened.map_err(failed)??))
            }
            Some(AuditSyncAddress::Web(address)) => {
                AuditRemotePath::Web(format!("{}/{device}/", address.path.trim_end_matches('/')))
            }
            None => return Err(AuditSyncError::Settings { reason: "url is not set".to_owned() }),
        };
        Ok(Self { server: server.clone(), place })
    }

    /// Gets a file below the folder of this box, or its first `longest` bytes.
    pub async fn get(&self, path: &str, longest: usize) -> Result<RemoteGetOutcome, AuditSyncError> {
        let target = match &self.place {
            AuditRemotePath::Web(base) => format!("{base}{path}"),
            AuditRemotePath::Bucket(s3) => s3.get(path),
        };
        let answer = self.server.client.get(&target, longest).await?;
        let code = self.code(&answer);
        match answer.status {
            200 => Ok(RemoteGetOutcome::File(answer.body)),
            404 | 410 if code.as_deref() != Some("NoSuchBucket") => Ok(RemoteGetOutcome::Nothing),
            // Without the permission to list, S3 does not say whether a file exists.
            403 if matches!(code.as_deref(), None | Some("AccessDenied")) && self.is_bucket() => {
                Ok(RemoteGetOutcome::Hidden)
            }
            _ => Err(self.refused("GET", path, &answer, code)),
        }
    }

    /// Gets a checkpoint.
    pub async fn checkpoint(&self, path: &str) -> Result<RemoteGetOutcome, AuditSyncError> {
        self.get(path, CHECKPOINT_BYTES_MAX).await
    }

    /// Puts a file. With `only_new`, a file that exists stays.
    pub async fn put(&self, path: &str, body: Bytes, only_new: bool) -> Result<RemotePutOutcome, AuditSyncError> {
        let target = match &self.place {
            AuditRemotePath::Web(base) => format!("{base}{path}"),
            AuditRemotePath::Bucket(s3) => s3.put(path),
        };
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
        if only_new {
            headers.push((IF_NONE_MATCH, HeaderValue::from_static("*")));
        }
        let answer = self.server.client.put(&target, &headers, body).await?;
        match answer.status {
            204 => Ok(RemotePutOutcome::Replaced),
            200..=299 => Ok(RemotePutOutcome::New),
            412 if only_new => Ok(RemotePutOutcome::There),
            _ => Err(self.refused("PUT", path, &answer, self.code(&answer))),
        }
    }

    /// The error for a file that must be read and cannot.
    pub fn unreadable(&self, path: &str, status: u16) -> AuditSyncError {
        let answer = HttpAnswer { status, body: Bytes::new(), retry_after: None };
        self.refused("GET", path, &answer, None)
    }

    fn is_bucket(&self) -> bool {
        matches!(self.place, AuditRemotePath::Bucket(_))
    }

    fn code(&self, answer: &HttpAnswer) -> Option<String> {
        if self.is_bucket() { s3::code(&answer.body) } else { None }
    }

    fn refused(&self, verb: &str, path: &str, answer: &HttpAnswer, code: Option<String>) -> AuditSyncError {
        let hint = match answer.status {
            400 if !self.is_bucket() => client_certificate_refusal(&answer.body),
            status => hint(self.is_bucket(), verb, status, code.as_deref()),
        };
        let (at, request) = (self.server.at.clone(), format!("{verb} {path}"));
        let HttpAnswer { status, retry_after, .. } = *answer;
        AuditSyncError::Status { at, request, status, code, hint, retry_after }
    }
}
