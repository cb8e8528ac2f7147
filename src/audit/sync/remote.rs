//! The files of the log on the platform: a folder of a web server that takes PUT (`WebDAV`), or a place in a bucket.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, IF_NONE_MATCH};
use ledge_egress::{AuditClient, Egress, HttpAnswer, HttpClient, HttpSettings, Purpose};

use super::error::hint;
use super::s3::{self, S3};
use super::{SyncError, SyncSettings};
use crate::config::SyncAddress;

/// The longest checkpoint: a few lines, and signatures of witnesses.
const LONGEST_CHECKPOINT: usize = 64 << 10;

/// The server, and the connections to it.
#[derive(Debug, Clone)]
pub struct Server {
    client: AuditClient,
    at: String,
}

/// The server, and what it wants to see for a while.
pub struct Remote {
    server: Server,
    place: Place,
}

enum Place {
    /// What paths begin with, such as `/audit/box-1/`.
    Web(String),
    Bucket(Box<S3>),
}

/// What became of a file that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It was not there, and is now.
    New,
    /// It was there, and the server has put the new one in its place.
    Replaced,
    /// Something is there, and stays.
    There,
}

/// What is there instead of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    File(Bytes),
    Nothing,
    /// Nothing, or what may not be read.
    Hidden,
}

impl Server {
    /// The server of the settings; nothing is connected yet. `None` where the log stays here.
    pub fn of(settings: &SyncSettings, egress: &Egress) -> Option<Result<Self, SyncError>> {
        let config = &settings.config;
        config.url.as_ref()?;
        let Some((at, tls)) = config.server() else {
            let reason = format!("{:?} is no region", config.region);
            return Some(Err(SyncError::Settings { reason }));
        };
        let name = at.to_string();
        let http = HttpSettings { at, tls: tls.then(|| config.tls.settings()), proxy: config.proxy.clone() };
        Some(Ok(Self { client: HttpClient::for_audit(egress.clone(), http, Purpose::Audit), at: name }))
    }
}

impl Remote {
    /// Reads the keys: they may be other ones than before.
    pub async fn open(server: &Server, settings: &SyncSettings) -> Result<Self, SyncError> {
        let SyncSettings { config, device, .. } = settings;
        let place = match &config.url {
            Some(SyncAddress::Bucket { bucket, prefix }) => {
                let (config, bucket, prefix) = (config.clone(), bucket.clone(), format!("{prefix}{device}/"));
                let opened = tokio::task::spawn_blocking(move || S3::open(&config, &bucket, &prefix)).await;
                let failed = |error: tokio::task::JoinError| SyncError::Settings { reason: error.to_string() };
                Place::Bucket(Box::new(opened.map_err(failed)??))
            }
            Some(SyncAddress::Web(address)) => Place::Web(format!("{}/{device}/", address.path.trim_end_matches('/'))),
            None => return Err(SyncError::Settings { reason: "it has no url".to_owned() }),
        };
        Ok(Self { server: server.clone(), place })
    }

    /// A file below the folder of this box, or its first `longest` bytes.
    pub async fn get(&self, path: &str, longest: usize) -> Result<Found, SyncError> {
        let target = match &self.place {
            Place::Web(base) => format!("{base}{path}"),
            Place::Bucket(s3) => s3.get(path),
        };
        let answer = self.server.client.get(&target, longest).await?;
        let code = self.code(&answer);
        match answer.status {
            200 => Ok(Found::File(answer.body)),
            404 | 410 if code.as_deref() != Some("NoSuchBucket") => Ok(Found::Nothing),
            // S3 does not tell what is there to those who may not list.
            403 if matches!(code.as_deref(), None | Some("AccessDenied")) && self.is_bucket() => Ok(Found::Hidden),
            _ => Err(self.refused("GET", path, &answer, code)),
        }
    }

    /// A checkpoint.
    pub async fn checkpoint(&self, path: &str) -> Result<Found, SyncError> {
        self.get(path, LONGEST_CHECKPOINT).await
    }

    /// Puts a file; one that is there stays if the new one is `only_new`.
    pub async fn put(&self, path: &str, body: Bytes, only_new: bool) -> Result<Put, SyncError> {
        let target = match &self.place {
            Place::Web(base) => format!("{base}{path}"),
            Place::Bucket(s3) => s3.put(path),
        };
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
        if only_new {
            headers.push((IF_NONE_MATCH, HeaderValue::from_static("*")));
        }
        let answer = self.server.client.put(&target, &headers, body).await?;
        match answer.status {
            204 => Ok(Put::Replaced),
            200..=299 => Ok(Put::New),
            412 if only_new => Ok(Put::There),
            _ => Err(self.refused("PUT", path, &answer, self.code(&answer))),
        }
    }

    /// What a file that is there and may not be read is to whoever needs it.
    pub fn unreadable(&self, path: &str, status: u16) -> SyncError {
        let answer = HttpAnswer { status, body: Bytes::new(), retry_after: None };
        self.refused("GET", path, &answer, None)
    }

    fn is_bucket(&self) -> bool {
        matches!(self.place, Place::Bucket(_))
    }

    fn code(&self, answer: &HttpAnswer) -> Option<String> {
        if self.is_bucket() { s3::code(&answer.body) } else { None }
    }

    fn refused(&self, verb: &str, path: &str, answer: &HttpAnswer, code: Option<String>) -> SyncError {
        let hint = hint(self.is_bucket(), verb, answer.status, code.as_deref());
        let (at, request) = (self.server.at.clone(), format!("{verb} {path}"));
        let HttpAnswer { status, retry_after, .. } = *answer;
        SyncError::Status { at, request, status, code, hint, retry_after }
    }
}
