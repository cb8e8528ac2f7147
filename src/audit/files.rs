//! The files of a log, wherever they are: on this box, in a folder with a copy, or behind an address.
//!
//! Whoever reads them believes none of them: [`super::verify`] and [`super::proof`] check what they hold.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ledge_egress::{
    Allowed, Content, Egress, EgressConfig, HttpClient, HttpError, HttpSettings, TlsSettings, WebAddress,
};
use ledge_service::audit_event::AuditSink;
use tlog_tiles::Hash;

use super::layout::{CHECKPOINT, TileKind, TilePath, WIDTH, whole_entries};
use super::local::LocalLog;
use super::record::LONGEST;

/// How many files are asked for at the same time. An answer takes as long as the way there and back.
const CONNECTIONS: usize = 16;

/// How often a file is asked for before a bad link counts as one.
const TRIES: u32 = 4;

/// The pause before the second try; each next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// The longest checkpoint, with the signatures of many witnesses.
const LONGEST_CHECKPOINT: u64 = 64 << 10;

/// [`WIDTH`] as a width.
const WHOLE: u16 = 256;

/// The bytes of a hash.
const HASH: usize = 32;

/// The files of one log. Clones share what is behind.
#[derive(Debug, Clone)]
pub enum LogFiles {
    /// On the box that writes it: what grows has no suffix.
    Local(LocalLog),
    /// A copy in a folder, as C2SP tlog-tiles has it.
    Folder(PathBuf),
    /// The same behind an address.
    Web(WebLog),
}

/// A log behind an address.
#[derive(Debug, Clone)]
pub struct WebLog {
    address: WebAddress,
    server: Arc<Server>,
}

/// Connections to one server that are free.
#[derive(Debug)]
struct Server {
    egress: Egress,
    settings: HttpSettings,
    idle: Mutex<Vec<HttpClient>>,
}

/// Why a file cannot be read. That it is not there is no error.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("{path} may be read by its owner only: run this as that user (sudo -u ledge …) or as root", path = path.display())]
    Denied { path: PathBuf },
    #[error("{path}: {error}", path = path.display())]
    File { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Web(#[from] HttpError),
    #[error("{url} is answered with status {status}")]
    Status { url: String, status: u16 },
}

impl FilesError {
    /// Why a file or folder on this machine cannot be read.
    pub fn of(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        if error.kind() == io::ErrorKind::PermissionDenied { Self::Denied { path } } else { Self::File { path, error } }
    }
}

impl fmt::Display for LogFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(log) => log.folder().display().fmt(f),
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Web(log) => log.address.fmt(f),
        }
    }
}

impl LogFiles {
    /// Whether it is the log on the box that writes it: records that are not signed yet may follow, and the first ones may
    /// have been pruned.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// A log in a folder below this place.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        match self {
            Self::Local(log) => Self::Local(LocalLog::open(&log.folder().join(name))),
            Self::Folder(folder) => Self::Folder(folder.join(name)),
            Self::Web(log) => Self::Web(log.below(name)),
        }
    }

    /// How many files it is worth asking for at the same time.
    pub fn parallel(&self) -> usize {
        if matches!(self, Self::Web(_)) { CONNECTIONS } else { 1 }
    }

    /// The signed head, as it is there.
    pub async fn checkpoint(&self) -> Result<Option<Bytes>, FilesError> {
        self.fetch(CHECKPOINT, LONGEST_CHECKPOINT).await
    }

    /// A tile as C2SP has it: the first `width` records or hashes, or `None` when it is not there or has fewer.
    ///
    /// A partial tile may have been removed once the whole one is there, of which it is the beginning.
    pub async fn tile(&self, tile: TilePath) -> Result<Option<Bytes>, FilesError> {
        let whole = TilePath { width: WHOLE, ..tile };
        if let Self::Local(log) = self {
            let found = log.tile(tile).map_err(|error| FilesError::of(&tile.local(log.folder()), error))?;
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

    /// All that the file of an entry bundle on this box holds, for records that are not signed yet.
    pub fn local_bundle(&self, index: u64) -> Result<Option<Bytes>, FilesError> {
        let Self::Local(log) = self else { return Ok(None) };
        let tile = TilePath { kind: TileKind::Entries, index, width: WHOLE };
        read(&tile.local(log.folder()), longest(tile))
    }

    async fn fetch(&self, path: &str, limit: u64) -> Result<Option<Bytes>, FilesError> {
        match self {
            Self::Local(log) => read(&log.folder().join(path), limit),
            Self::Folder(folder) => read(&folder.join(path), limit),
            Self::Web(log) => log.fetch(path, limit).await,
        }
    }
}

/// A tile of a log of `size` records; of width 0 where there is none.
pub fn tile_of(kind: TileKind, index: u64, size: u64) -> TilePath {
    let below = match kind {
        TileKind::Entries => size,
        TileKind::Hashes(level) => size.checked_shr(8 * u32::from(level)).unwrap_or(0),
    };
    let width = below.saturating_sub(index.saturating_mul(WIDTH)).min(WIDTH);
    TilePath { kind, index, width: u16::try_from(width).unwrap_or(0) }
}

/// The hashes of a tile; `None` when it has another length than its own.
pub fn hashes_of(bytes: &[u8], tile: TilePath) -> Option<Vec<Hash>> {
    let (hashes, rest) = bytes.as_chunks::<HASH>();
    let is_whole = rest.is_empty() && hashes.len() == usize::from(tile.width);
    is_whole.then(|| hashes.iter().copied().map(Hash).collect())
}

/// The beginning of a tile that has more; `None` when it has not that much. What is malformed is left for others to tell.
fn beginning(bytes: &Bytes, tile: TilePath) -> Option<Bytes> {
    let length = match tile.kind {
        TileKind::Hashes(_) => usize::from(tile.width) * HASH,
        TileKind::Entries => {
            let (entries, _) = whole_entries(bytes);
            entries.get(..usize::from(tile.width))?.iter().map(|entry| entry.len() + 2).sum()
        }
    };
    (bytes.len() >= length).then(|| bytes.slice(..length))
}

fn longest(tile: TilePath) -> u64 {
    let one = match tile.kind {
        TileKind::Entries => LONGEST + 2,
        TileKind::Hashes(_) => HASH,
    };
    u64::from(tile.width) * one as u64
}

/// A file; one that is longer than `limit` is cut one byte behind it, so that whoever knows its length finds it too long.
fn read(path: &Path, limit: u64) -> Result<Option<Bytes>, FilesError> {
    use std::io::Read as _;
    let read = || {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes.into())),
        // A partial tile's folder may be a file's name elsewhere, and the other way round.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(FilesError::of(path, error)),
    }
}

impl WebLog {
    /// A log at an address that whoever runs the command named: it, and nothing else, may be connected to.
    pub fn new(address: WebAddress, tls: TlsSettings) -> Self {
        let region = "named".parse().into_iter();
        let allow = region.map(|region| Allowed { host: address.at.clone(), region, send: vec![Content::Request] });
        let egress = EgressConfig { residency: Vec::new(), allow: allow.collect() };
        let egress = Egress::new(&egress, AuditSink::to_nowhere());
        let settings = HttpSettings { at: address.at.clone(), tls: address.tls.then_some(tls), proxy: None };
        Self { address, server: Arc::new(Server { egress, settings, idle: Mutex::default() }) }
    }

    /// A log below this address, through the same connections.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        let path = format!("{}/{name}", self.address.path.trim_end_matches('/'));
        Self { address: WebAddress { path, ..self.address.clone() }, server: self.server.clone() }
    }

    async fn fetch(&self, name: &str, limit: u64) -> Result<Option<Bytes>, FilesError> {
        let path = format!("{}/{name}", self.address.path.trim_end_matches('/'));
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match self.ask(&path, limit).await {
                Err(
                    FilesError::Web(HttpError::Exchange { .. } | HttpError::Stalled { .. })
                    | FilesError::Status { status: 429 | 500.., .. },
                ) => {}
                answer => return answer,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.ask(&path, limit).await
    }

    async fn ask(&self, path: &str, limit: u64) -> Result<Option<Bytes>, FilesError> {
        let server = &self.server;
        let idle = server.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let client = idle.unwrap_or_else(|| HttpClient::new(server.egress.clone(), server.settings.clone()));
        let mut download = client.get(path, 0).await?;
        let url = || WebAddress { path: path.to_owned(), ..self.address.clone() }.to_string();
        match download.status {
            200 => {}
            404 | 410 => return Ok(None),
            status => return Err(FilesError::Status { url: url(), status }),
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
