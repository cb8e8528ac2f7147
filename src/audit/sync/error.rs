//! Reasons why the log is not copied, in words for the operators of the platform.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ledge_base::secret::SecretError;
use ledge_egress::HttpError;

use crate::key::CheckpointError;

/// Reasons why the log is not copied.
#[derive(Debug, thiserror::Error)]
pub enum AuditSyncError {
    #[error("audit.sync: {reason}")]
    Settings { reason: String },
    #[error("audit.sync: {0}")]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The platform refuses a request.
    #[error("{at} answers {request} with status {status}{code}{hint}", code = in_brackets(code.as_ref()))]
    Status {
        /// `HOST:PORT`.
        at: String,
        /// `PUT` or `GET`, and the path.
        request: String,
        status: u16,
        /// The error code of an S3 server.
        code: Option<String>,
        hint: &'static str,
        /// The pause before another attempt, if the server names one.
        retry_after: Option<Duration>,
    },
    /// A file on this box cannot be read or written.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// The file or the folder.
        path: PathBuf,
        error: io::Error,
    },
    /// Records that the platform lacks were removed from this box.
    #[error(
        "the platform has the first {size} records of log {generation}, and {path}, which comes next, is no longer on this box: restore the files of the log on the platform from a backup"
    )]
    Missing {
        /// The number of the log.
        generation: u32,
        /// The number of records that the platform has.
        size: u64,
        path: String,
    },
    /// A file on this box does not fit the signed head.
    #[error("log {generation} on this box is damaged and is not sent: {path} {reason}")]
    Damaged {
        /// The number of the log.
        generation: u32,
        path: String,
        reason: String,
    },
    /// An older log was written under another name or key than this box has now.
    #[error("log {generation} on this box was written under another name or key, and is not sent: {reason}")]
    Foreign {
        /// The number of the log.
        generation: u32,
        reason: String,
    },
    /// The file of the checkpoint on the platform is not a checkpoint.
    #[error("{path} on the platform: {error}; remove it, or restore it from a backup")]
    Checkpoint {
        /// The file on the platform.
        path: String,
        error: CheckpointError,
    },
    #[error("{path} on the platform has only {length} of {expected} bytes: remove it there, and it is sent again")]
    Cut {
        /// The file on the platform.
        path: String,
        length: usize,
        /// The length that it should have.
        expected: usize,
    },
    #[error("the platform has another history of log {generation} of this box: {reason}")]
    Forked {
        /// The number of the log.
        generation: u32,
        reason: String,
    },
}

impl AuditSyncError {
    /// Returns true if it concerns one log only, so that the others can be copied.
    pub fn is_of_one_log(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::Damaged { .. }
            | Self::Foreign { .. }
            | Self::Checkpoint { .. }
            | Self::Cut { .. }
            | Self::Forked { .. } => true,
            Self::Settings { .. } | Self::Secret(_) | Self::Http(_) | Self::Status { .. } | Self::File { .. } => false,
        }
    }

    /// The pause before another attempt, if the server names one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The kind of failure. Failures of one kind are logged once, whichever file they hit.
    pub fn summary(&self) -> String {
        match self {
            Self::Status { status, code, hint, .. } => format!("{status} {code:?} {hint}"),
            Self::Http(HttpError::Exchange { .. } | HttpError::Stalled { .. }) => "the connection".to_owned(),
            Self::Http(HttpError::Redirect { status, .. }) => format!("redirect {status}"),
            other => other.to_string(),
        }
    }
}

fn in_brackets(code: Option<&String>) -> String {
    code.map(|code| format!(" ({code})")).unwrap_or_default()
}

/// The advice for an answer of the server to `PUT` or `GET`.
pub(super) fn hint(is_bucket: bool, verb: &str, status: u16, code: Option<&str>) -> &'static str {
    match (status, code) {
        (_, Some("RequestTimeTooSkewed" | "RequestExpired")) => ": the clock of this box is wrong",
        (_, Some("NoSuchBucket")) => ": there is no such bucket; is audit.sync.url right?",
        (_, Some("SignatureDoesNotMatch")) => {
            ": the secret access key does not belong to the id of the access key, or audit.sync.region is wrong"
        }
        (_, Some("InvalidAccessKeyId")) => ": the server does not know the access key",
        (_, Some("AuthorizationHeaderMalformed" | "AuthorizationQueryParametersError" | "PermanentRedirect")) => {
            ": is audit.sync.region the region of the bucket?"
        }
        (300..=399, _) if is_bucket => {
            ": is audit.sync.region the region of the bucket, and audit.sync.endpoint its server?"
        }
        (300..=399, _) => ": it is elsewhere; redirects are not followed, set audit.sync.url to the address itself",
        (401, _) => ": it asks for a user name and a password, which Ledge does not send; use client certificates",
        (403, _) if is_bucket && verb == "PUT" => {
            ": the access key may not put objects there; allow it s3:PutObject and s3:GetObject below the prefix"
        }
        (403, _) if is_bucket => ": the access key may not read there; allow it s3:GetObject below the prefix",
        (403, _) => {
            ": the server denies access; does the certificate name this box, and may the server's user write there?"
        }
        (404 | 409, _) if !is_bucket => {
            ": the folder is missing and the server does not create it (nginx: create_full_put_path on), or audit.sync.url is wrong"
        }
        (409, _) => ": another request for the same object was under way; it is tried again",
        (405 | 501, _) => ": the server does not take PUT there; is WebDAV on (nginx: dav_methods PUT)?",
        (413, _) => ": the server refuses files of this size; allow 17 MB (nginx: client_max_body_size)",
        (429 | 503, _) => ": it is overloaded",
        (507, _) => ": its disk is full",
        (500..=599, _) => ": look into its log; is its disk full, may its user write there?",
        _ => "",
    }
}
