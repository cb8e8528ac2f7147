//! The files of a log, wherever they are: on this box, in a folder with a copy, or behind an address.
//!
//! None of their content is trusted: [`super::verify`] and [`super::proof`] check it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ledge_egress::{
    AllowedDestination, Egress, EgressConfig, EgressContent, EgressPurpose, HttpClient, HttpClientSettings, HttpError,
    TlsClientSettings, WebAddress,
};
use ledge_service::audit_event::AuditSink;
use tlog_tiles::Hash;

use super::layout::{CHECKPOINT, TILE_WIDTH, TileKind, TilePath, whole_entries};
use super::local::LocalAuditLog;
use super::record::RECORD_BYTES_MAX;

/// Number of files requested at a time, because each answer takes a round trip.
const CONNECTIONS_MAX: usize = 16;

/// Number of requests for a file before a bad link is reported.
const ATTEMPTS_MAX: u32 = 4;

/// The pause before the second attempt; each further one is twice as long.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The largest checkpoint, with the signatures of many witnesses.
const CHECKPOINT_BYTES_MAX: u64 = 64 << 10;

/// [`TILE_WIDTH`] as a width.
const WHOLE: u16 = 256;

/// The bytes of a hash.
const HASH_BYTES: usize = 32;

/// The files of one log. Clones share its connections.
#[derive(Debug, Clone)]
pub enum AuditLogFiles {
    /// The log on the box that writes it. Partial tiles have no suffix.
    Local(LocalAuditLog),
    /// A copy in a folder, as C2SP tlog-tiles has it.
    Folder(PathBuf),
    /// A copy on a web server, in the same form.
    Web(HttpAuditLog),
}

/// A log on a web server.
#[derive(Debug, Clone)]
pub struct HttpAuditLog {
    address: WebAddress,
    server: Arc<HttpClientPool>,
}

/// Idle connections to one server.
#[derive(Debug)]
struct HttpClientPool {
    egress: Egress,
    settings: HttpClientSettings,
    idle: Mutex<Vec<HttpClient>>,
}

/// Reasons why a file cannot be read. A missing file is not an error.
#[derive(Debug, thiserror::Error)]
pub enum AuditFilesError {
    #[error("{path} may be read by its owner only: run this as that user (sudo -u ledge …) or as root", path = path.display())]
    Denied { path: PathBuf },
    #[error("{path}: {error}", path = path.display())]
    File { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Web(#[from] HttpError),
    #[error("{url} is answered with status {status}")]
    Status { url: String, status: u16 },
}

impl AuditFilesError {
    /// The error for a file or folder on this machine.
    pub fn of(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        if error.kind() == io::ErrorKind::PermissionDenied { Self::Denied { path } } else { Self::File { path, error } }
    }
}

impl fmt::Display for AuditLogFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(log) => log.folder().display().fmt(f),
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Web(log) => log.address.fmt(f),
        }
    }
}

impl AuditLogFiles {
    /// True for the log on the box that writes it. Its last records may not be signed yet, and its first ones may have
    /// been pruned.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// A log in a folder below this one.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        match self {
            Self::Local(log) => Self::Local(LocalAuditLog::open(&log.folder().join(name))),
            Self::Folder(folder) => Self::Folder(folder.join(name)),
            Self::Web(log) => Self::Web(log.below(name)),
        }
    }

    /// The number of files to request at a time.
    pub fn parallel(&self) -> usize {
        if matches!(self, Self::Web(_)) { CONNECTIONS_MAX } else { 1 }
    }

    /// The signed head, unchecked.
    pub async fn checkpoint(&self) -> Result<Option<Bytes>, AuditFilesError> {
        self.fetch(CHECKPOINT, CHECKPOINT_BYTES_MAX).await
    }

    /// A tile as in C2SP tlog-tiles: the first `width` records or hashes; `None` when it is missing or has fewer.
    ///
    /// A partial tile may have been removed once the whole tile exists. It is the beginning of that.
    pub async fn tile(&self, tile: TilePath) -> Result<Option<Bytes>, AuditFilesError> {
        let whole = TilePath { width: WHOLE, ..tile };
        if let Self::Local(log) = self {
            let found = log.tile(tile).map_err(|error| AuditFilesError::of(&tile.local(log.folder()), error))?;
            return Ok(found.map(Bytes::from));
        }
        if let Some(found) = self.fetch(&tile.path(), longest(tile)).await? {
            return Ok(Some(found));
        }
        if tile.width == whole.width {
            return Ok(None);
        }
        Ok(self.fetch(&whole.path(), longest(whole)).await?.and_then(|bytes| beginning(&bytes, tile)))
    }

    /// The whole file of an entry bundle on this box, with records that are not signed yet.
    pub fn local_bundle(&self, index: u64) -> Result<Option<Bytes>, AuditFilesError> {
        let Self::Local(log) = self else { return Ok(None) };
        let tile = TilePath { kind: TileKind::Entries, index, width: WHOLE };
        read(&tile.local(log.folder()), longest(tile))
    }

    async fn fetch(&self, path: &str, limit: u64) -> Result<Option<Bytes>, AuditFilesError> {
        match self {
            Self::Local(log) => read(&log.folder().join(path), limit),
            Self::Folder(folder) => read(&folder.join(path), limit),
            Self::Web(log) => log.fetch(path, limit).await,
        }
    }
}

/// A tile of a log of `size` records; its width is 0 when the log does not have the tile.
pub fn tile_of(kind: TileKind, index: u64, size: u64) -> TilePath {
    let below = match kind {
        TileKind::Entries => size,
        TileKind::Hashes(level) => size.checked_shr(8 * u32::from(level)).unwrap_or(0),
    };
    let width = below.saturating_sub(index.saturating_mul(TILE_WIDTH)).min(TILE_WIDTH);
    TilePath { kind, index, width: u16::try_from(width).unwrap_or(0) }
}

/// The hashes of a tile; `None` when the length is wrong.
pub fn hashes_of(bytes: &[u8], tile: TilePath) -> Option<Vec<Hash>> {
    let (hashes, rest) = bytes.as_chunks::<HASH_BYTES>();
    let is_whole = rest.is_empty() && hashes.len() == usize::from(tile.width);
    is_whole.then(|| hashes.iter().copied().map(Hash).collect())
}

/// The beginning of a longer tile; `None` when that is too short. The content is not checked.
fn beginning(bytes: &Bytes, tile: TilePath) -> Option<Bytes> {
    let length = match tile.kind {
        TileKind::Hashes(_) => usize::from(tile.width) * HASH_BYTES,
        TileKind::Entries => {
            let (entries, _) = whole_entries(bytes);
            entries.get(..usize::from(tile.width))?.iter().map(|entry| entry.len() + 2).sum()
        }
    };
    (bytes.len() >= length).then(|| bytes.slice(..length))
}

fn longest(tile: TilePath) -> u64 {
    let one = match tile.kind {
        TileKind::Entries => RECORD_BYTES_MAX + 2,
        TileKind::Hashes(_) => HASH_BYTES,
    };
    u64::from(tile.width) * one as u64
}

/// Reads a file, at most one byte more than `limit`, so that the caller finds a longer one too long.
fn read(path: &Path, limit: u64) -> Result<Option<Bytes>, AuditFilesError> {
    use std::io::Read as _;
    let read = || {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes.into())),
        // The folder of a partial tile may be a file elsewhere, and the other way round.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(AuditFilesError::of(path, error)),
    }
}

impl HttpAuditLog {
    /// A log at an address that was named on the command line. Only this address may be connected to.
    pub fn new(address: WebAddress, tls: TlsClientSettings) -> Self {
        let region = "named".parse().into_iter();
        let allow = region.map(|region| AllowedDestination {
            host: address.at.clone(),
            region,
            send: vec![EgressContent::Request],
        });
        let egress = EgressConfig { residency: Vec::new(), allow: allow.collect() };
        let egress = Egress::new(&egress, AuditSink::to_nowhere());
        let settings = HttpClientSettings { at: address.at.clone(), tls: address.tls.then_some(tls), proxy: None };
        Self { address, server: Arc::new(HttpClientPool { egress, settings, idle: Mutex::default() }) }
    }

    /// A log below this address, through the same connections.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        let path = format!("{}/{name}", self.address.path.trim_end_matches('/'));
        Self { address: WebAddress { path, ..self.address.clone() }, server: self.server.clone() }
    }

    async fn fetch(&self, name: &str, limit: u64) -> Result<Option<Bytes>, AuditFilesError> {
        let path = format!("{}/{name}", self.address.path.trim_end_matches('/'));
        let mut pause = RETRY_PAUSE;
        for _ in 1..ATTEMPTS_MAX {
            match self.ask(&path, limit).await {
                Err(
                    AuditFilesError::Web(HttpError::Exchange { .. } | HttpError::Stalled { .. })
                    | AuditFilesError::Status { status: 429 | 500.., .. },
                ) => {}
                answer => return answer,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.ask(&path, limit).await
    }

    async fn ask(&self, path: &str, limit: u64) -> Result<Option<Bytes>, AuditFilesError> {
        let server = &self.server;
        let idle = server.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Like a client of updates it sends only requests.
        let connect = || HttpClient::new(server.egress.clone(), server.settings.clone(), EgressPurpose::Updates);
        let client = idle.unwrap_or_else(connect);

        let mut download = client.get(path, 0).await?;
        let url = || WebAddress { path: path.to_owned(), ..self.address.clone() }.to_string();
        match download.status {
            200 => {}
            404 | 410 => return Ok(None),
            status => return Err(AuditFilesError::Status { url: url(), status }),
        }

        let mut body = Vec::new();
        while let Some(chunk) = download.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() as u64 > limit {
                body.truncate(usize::try_from(limit + 1).unwrap_or(usize::MAX));
                break;
            }
        }

        server.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        Ok(Some(body.into()))
    }
}
