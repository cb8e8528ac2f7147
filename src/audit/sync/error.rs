//! Why the copy of the log does not go on, in words for whoever looks after the platform.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ledge_base::secret::SecretError;
use ledge_egress::HttpError;

use crate::key::CheckpointError;

/// Why the copy of the log does not go on.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error("audit.sync: {reason}")]
    Settings {
        /// What is wrong with them.
        reason: String,
    },
    #[error("audit.sync: {0}")]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The platform does not do what it is asked.
    #[error("{at} answers {request} with status {status}{code}{hint}", code = in_brackets(code.as_ref()))]
    Status {
        /// `HOST:PORT`.
        at: String,
        /// `PUT` or `GET`, and what was asked for.
        request: String,
        status: u16,
        /// The word of an S3 server for it.
        code: Option<String>,
        hint: &'static str,
        /// After what time another try is worth it, where the server says it.
        retry_after: Option<Duration>,
    },
    /// A file on this box cannot be read or written.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// The file or the folder.
        path: PathBuf,
        error: io::Error,
    },
    /// What the platform lacks is not on this box any more.
    #[error(
        "the platform has the first {size} records of log {generation}, and {path}, which comes next, is not on this box any more: put the files of the log back on the platform from a backup"
    )]
    Missing {
        /// Which of the logs of this box.
        generation: u32,
        /// How many records the platform has.
        size: u64,
        path: String,
    },
    /// What is on this box is not what was signed.
    #[error("log {generation} on this box is damaged, and is not sent: {path} {reason}")]
    Damaged {
        /// Which of the logs of this box.
        generation: u32,
        path: String,
        reason: String,
    },
    /// An older log that this box, by its name and key of today, did not write.
    #[error(
        "log {generation} on this box was not written under the name that the box has now, and is not sent: {reason}"
    )]
    Foreign {
        /// Which of the logs of this box.
        generation: u32,
        reason: String,
    },
    /// What is there under the name of the checkpoint is none.
    #[error("{path} on the platform: {error}; remove it, or put the right one back from a backup")]
    Checkpoint {
        /// The file on the platform.
        path: String,
        /// What is wrong with it.
        error: CheckpointError,
    },
    #[error("{path} on the platform has {length} bytes of {expected}: remove it there, and it is sent again")]
    Cut {
        /// The file on the platform.
        path: String,
        length: usize,
        /// How long it has to be.
        expected: usize,
    },
    #[error("the platform has another history of log {generation} of this box: {reason}")]
    Forked {
        /// Which of the logs of this box.
        generation: u32,
        reason: String,
    },
}

impl SyncError {
    /// Whether it is about one log alone, and another may go on.
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

    /// After what time another try is worth it, where the server says it.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// What makes it the same as another one: it is told once, whichever file it hits.
    pub fn gist(&self) -> String {
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

/// What to look at when a server answers a request for `PUT` or `GET` so.
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
        (400, _) if !is_bucket => ": does it speak HTTPS on this port, or want a client certificate (audit.sync.tls)?",
        (401, _) => ": it wants a user name and a password, which Ledge has none of; use client certificates",
        (403, _) if is_bucket && verb == "PUT" => {
            ": the access key may not put objects there; allow it s3:PutObject and s3:GetObject below the prefix"
        }
        (403, _) if is_bucket => ": the access key may not read there; allow it s3:GetObject below the prefix",
        (403, _) => {
            ": the server does not let this box in; does its certificate name it, and may the server's user write there?"
        }
        (404 | 409, _) if !is_bucket => {
            ": the folder is not there and the server does not make it (nginx: create_full_put_path on), or audit.sync.url is wrong"
        }
        (409, _) => ": another request for the same object was under way; it is tried again",
        (405 | 501, _) => ": the server does not take PUT there; is WebDAV on (nginx: dav_methods PUT)?",
        (413, _) => ": the server takes no files of this size; allow 17 MB (nginx: client_max_body_size)",
        (429 | 503, _) => ": it is overloaded",
        (507, _) => ": its disk is full",
        (500..=599, _) => ": look into its log; is its disk full, may its user write there?",
        _ => "",
    }
}
