//! The source of metadata and targets: a web server, or a folder such as that of a USB stick.

mod error;
mod folder;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use ledge_egress::{
    Egress, EgressPurpose, HttpClient, HttpClientSettings, HttpDownload, REFUSAL_BYTES_MAX, TlsClientSettings,
    client_certificate_refusal,
};

use super::config::{RepositoryAddress, UpdatesConfig};
pub use error::SourceError;
use folder::OpenFile;

/// The source of a repository's files. Clones share one connection.
#[derive(Debug, Clone)]
pub struct RepositorySource {
    metadata: FileTree,
    targets: FileTree,
}

/// One tree of files.
#[derive(Debug, Clone)]
enum FileTree {
    /// `base` is the prefix of all paths, percent-encoded.
    Http {
        client: HttpClient,
        base: Arc<str>,
    },
    Folder(Arc<PathBuf>),
    /// An address on the network without a client for it.
    Unreachable(Arc<str>),
}

/// A target that is being fetched.
#[derive(Debug)]
pub struct TargetDownload {
    /// The byte of the file at which it begins: the requested one, or 0 when the server does not serve ranges.
    pub start: u64,
    /// The number of bytes from `start` on, where that is known.
    pub length: Option<u64>,
    origin: ByteSource,
}

#[derive(Debug)]
enum ByteSource {
    Http(Box<HttpDownload>),
    Folder(OpenFile),
}

impl RepositorySource {
    /// Makes the source of the repository at `address`, through `http` where it is on the network.
    pub fn new(address: &RepositoryAddress, http: Option<HttpClient>) -> Self {
        let metadata = FileTree::new(address, http.clone(), "metadata/");
        Self { metadata, targets: FileTree::new(address, http, "targets/") }
    }

    /// Makes the source of a repository that has its metadata and its targets at different addresses.
    pub fn apart(
        (metadata, metadata_http): (&RepositoryAddress, Option<HttpClient>),
        (targets, targets_http): (&RepositoryAddress, Option<HttpClient>),
    ) -> Self {
        Self { metadata: FileTree::new(metadata, metadata_http, ""), targets: FileTree::new(targets, targets_http, "") }
    }

    /// Makes the source of the repository that a configuration names; `None` where it names none.
    pub fn configured(config: &UpdatesConfig, egress: &Egress) -> Option<Self> {
        let address = config.repository.as_ref()?;
        let client = client(address, egress, config.proxy.clone(), || config.tls.settings());
        Some(Self::new(address, client))
    }

    /// Fetches a metadata file by its name, such as `3.root.json`; `None` for a missing file. The name is encoded as in
    /// a URL: special characters in names of roles are percent-encoded already.
    pub async fn metadata(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>, SourceError> {
        // S3 answers 403 for a missing file to clients without the permission to list.
        match self.metadata.open(name, name, 0).await {
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
            Ok(arrival) => arrival.whole(name, max).await.map(Some),
        }
    }

    /// Fetches a target by its path below `targets/`, from its byte `from` on.
    pub async fn target(&self, path: &str, from: u64) -> Result<TargetDownload, SourceError> {
        let encoded = encoded(path);
        match self.targets.open(path, &encoded, from).await {
            // The stored part is longer than the file on the server: it is another file.
            Err(SourceError::Status { status: 416, .. }) if from > 0 => self.targets.open(path, &encoded, 0).await,
            other => other,
        }
    }
}

/// Makes a client for an address on the network.
pub fn client(
    address: &RepositoryAddress,
    egress: &Egress,
    proxy: Option<ledge_egress::HostPort>,
    settings: impl FnOnce() -> TlsClientSettings,
) -> Option<HttpClient> {
    let RepositoryAddress::Http { tls, at, .. } = address else { return None };
    let settings = HttpClientSettings { at: at.clone(), tls: tls.then(settings), proxy };
    Some(HttpClient::new(egress.clone(), settings, EgressPurpose::Updates))
}

impl FileTree {
    fn new(address: &RepositoryAddress, http: Option<HttpClient>, below: &str) -> Self {
        match (address, http) {
            (RepositoryAddress::Folder(folder), _) => Self::Folder(Arc::new(folder.join(below))),
            (RepositoryAddress::Http { base, .. }, Some(client)) => {
                Self::Http { client, base: format!("{base}{below}").into() }
            }
            (address, None) => Self::Unreachable(address.to_string().into()),
        }
    }

    async fn open(&self, name: &str, encoded: &str, from: u64) -> Result<TargetDownload, SourceError> {
        if !is_inside(name) {
            return Err(SourceError::Name { name: name.chars().take(200).collect() });
        }
        match self {
            Self::Unreachable(address) => Err(SourceError::NoClient { address: address.to_string() }),
            Self::Folder(folder) => {
                let (file, start, length) = OpenFile::open(folder.join(name), from).await?;
                Ok(TargetDownload { start, length: Some(length), origin: ByteSource::Folder(file) })
            }
            Self::Http { client, base } => {
                let download = client.get(&format!("{base}{encoded}"), from).await?;
                let HttpDownload { status, start, length, retry_after, .. } = download;
                let hint = match status {
                    200 | 206 => {
                        let origin = ByteSource::Http(Box::new(download));
                        return Ok(TargetDownload { start, length, origin });
                    }
                    // A refusal that breaks off is one, too.
                    400 => {
                        let refusal = download.answer(REFUSAL_BYTES_MAX).await;
                        client_certificate_refusal(&refusal.map(|refusal| refusal.body).unwrap_or_default())
                    }
                    _ => hint(status),
                };
                Err(SourceError::Status { file: name.to_owned(), status, hint, retry_after })
            }
        }
    }
}

impl TargetDownload {
    /// Reads the next piece; `None` is the end. An end that comes too early is an error.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, SourceError> {
        match &mut self.origin {
            ByteSource::Http(download) => Ok(download.chunk().await?),
            ByteSource::Folder(file) => file.chunk().await,
        }
    }

    /// Reads all of it, and not a byte more than `max`.
    async fn whole(mut self, name: &str, max: u64) -> Result<Vec<u8>, SourceError> {
        let too_long = || SourceError::TooLong { file: name.to_owned(), max };
        if self.length.is_some_and(|length| length > max) {
            return Err(too_long());
        }
        let mut whole = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if (whole.len() + chunk.len()) as u64 > max {
                return Err(too_long());
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole)
    }
}

/// Returns advice for a status.
fn hint(status: u16) -> &'static str {
    match status {
        401 => ": it requires a user name and a password, which Ledge does not support; use client certificates",
        403 => ": this box may not read it, or (S3) it does not exist",
        404 | 410 => ": it does not exist; is the address of the repository right, and was everything published?",
        429 | 503 => ": it is overloaded",
        500..=599 => ": see the log of the server",
        _ => "",
    }
}

/// Returns true if a name stays within its folder, on every server and in every file system.
fn is_inside(name: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\0', '\\']);
    name.len() <= 1024 && name.split('/').all(part)
}

/// Encodes a path for a URL.
fn encoded(path: &str) -> String {
    path.split('/').map(escaped).collect::<Vec<_>>().join("/")
}

/// Encodes one part of a path for a URL: every byte outside the unreserved set (RFC 3986, section 2.3) is escaped.
pub(super) fn escaped(part: &str) -> String {
    let mut escaped = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(byte.into());
        } else {
            // Writing to a string does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
