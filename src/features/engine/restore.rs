//! Restore of a backup: receives it into a file, checks it to its end, and writes it as a snapshot of this store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use ledge_service::off_thread::blocking;
use tokio::sync::OwnedSemaphorePermit;

use super::super::catalog::{CatalogTranslation, StoredView, ViewCatalog};
use super::super::key::IndexKey;
use super::super::merge::purge_us;
use super::super::online::FeatureError;
use super::super::record::{self, FeatureRecord};
use super::super::snapshot::{self, SnapshotError, SnapshotReader};
use super::super::value::ValueType;
use super::super::view::{FieldId, ViewId};
use super::super::window::WindowState;
use super::StoreEngine;
use super::files::UPLOAD_FILE;
use super::spool::{ReceivedBackup, SpoolKey, SpoolReader, SpoolWriter};
use super::tombstones::ErasureCutoff;

/// The bytes that are buffered before they are written.
const BUFFER_BYTES: usize = 1 << 20;
/// The records after which their new keys are written to the disk; until then they wait in memory.
const PERSIST_INTERVAL_RECORDS: usize = 4096;
/// The room that a restore needs, as a multiple of the backup: two snapshots, and a layer where it is not sorted.
const RESTORE_FACTOR: u64 = 5;
/// The most problems in one error message.
const PROBLEMS_SHOWN_MAX: usize = 10;

/// A backup that is being received. Its file is removed on drop.
#[derive(Debug)]
pub struct BackupUpload {
    engine: Arc<StoreEngine>,
    path: PathBuf,
    file: Option<UploadFile>,
    /// The key of the file, where it is encrypted.
    key: Option<SpoolKey>,
    waiting: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl BackupUpload {
    /// Creates the file in the store's folder. `permit` ensures that there is one upload at a time.
    pub(crate) fn new(engine: Arc<StoreEngine>, permit: OwnedSemaphorePermit) -> Result<Self, FeatureError> {
        let path = engine.files.folder().join(UPLOAD_FILE);
        let file = File::create(&path).map_err(|error| not_received(&error))?;
        let (file, key) = if engine.protection.keys().is_some() {
            // Until it is in the store, the backup is encrypted under a key that is in no file.
            let key = SpoolKey::new().map_err(|error| not_received(&error))?;
            (UploadFile::Encrypted(SpoolWriter::new(key.clone(), file)), Some(key))
        } else {
            (UploadFile::Plain(file), None)
        };
        Ok(Self { engine, path, file: Some(file), key, waiting: Vec::with_capacity(BUFFER_BYTES), _permit: permit })
    }

    /// Receives the next bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), FeatureError> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() < BUFFER_BYTES { Ok(()) } else { self.flush(false).await }
    }

    /// Ends the upload. Returns the file, which belongs to the caller from now on.
    pub async fn finish(&mut self) -> Result<ReceivedBackup, FeatureError> {
        self.flush(true).await?;
        self.file = None;
        Ok(ReceivedBackup { path: self.path.clone(), key: self.key.take() })
    }

    async fn flush(&mut self, last: bool) -> Result<(), FeatureError> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let piece = std::mem::replace(&mut self.waiting, Vec::with_capacity(BUFFER_BYTES));
        let engine = self.engine.clone();
        let writing = blocking(move || {
            need_room(&engine, piece.len() as u64)?;
            let written =
                file.write(&piece, last).and_then(|()| if last { file.end().map(|()| None) } else { Ok(Some(file)) });
            written.map_err(|error| not_received(&error))
        });
        self.file = writing.await?;
        Ok(())
    }
}

impl Drop for BackupUpload {
    fn drop(&mut self) {
        // After `finish` the file is removed already, or is about to be.
        let _ = fs::remove_file(&self.path);
    }
}

/// The file that receives the bytes.
#[derive(Debug)]
enum UploadFile {
    Plain(File),
    Encrypted(SpoolWriter<File>),
}

impl UploadFile {
    fn write(&mut self, piece: &[u8], is_last: bool) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.write_all(piece),
            Self::Encrypted(spool) => spool.write(piece, is_last),
        }
    }

    fn end(self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.sync_all(),
            Self::Encrypted(spool) => spool.into_inner().sync_all(),
        }
    }
}

/// Refuses a write that would leave less than `min_free_mb` free.
fn need_room(engine: &StoreEngine, bytes: u64) -> Result<(), FeatureError> {
    let free = engine.files.free().map_err(|error| not_received(&error))?;
    if free.saturating_sub(bytes) >= engine.config.min_free_mb << 20 {
        return Ok(());
    }
    Err(engine.disk_full(free))
}

fn not_received(error: &io::Error) -> FeatureError {
    FeatureError::NotWritten { reason: error.to_string() }
}

fn refused(reason: impl Into<String>) -> FeatureError {
    FeatureError::Backup { reason: reason.into() }
}

/// A backup that is complete and fits the declarations of this store.
#[derive(Debug)]
pub struct CheckedBackup {
    received: ReceivedBackup,
    translation: CatalogTranslation,
    /// The names of the join keys of the views here.
    join_keys: HashMap<ViewId, Vec<Arc<str>>>,
}

impl CheckedBackup {
    /// Reads the whole backup and checks it. Nothing is changed.
    pub fn check(engine: &StoreEngine, received: ReceivedBackup) -> Result<Self, FeatureError> {
        let mut reader = open(&received)?;
        if reader.header().partial {
            return Err(refused("it has the rows of one feature view only: use `ledge features import`"));
        }

        let catalog = ViewCatalog::from_json(&reader.header().catalog)
            .map_err(|error| refused(format!("its catalog cannot be used: {error}")))?;
        let views: HashMap<ViewId, StoredView> = catalog.stored_views().map(|view| (view.id, view)).collect();
        let mut in_use: BTreeMap<ViewId, BTreeSet<FieldId>> = BTreeMap::new();

        while let Some((key, bytes)) = reader.next().map_err(|error| refused(with_cause(&error)))? {
            let record = FeatureRecord::decode(&key, &bytes)
                .map_err(|error| refused(format!("a record in it cannot be used: {error}")))?;
            let windows = WindowState::decode(&record.windows)
                .map_err(|error| refused(format!("a record in it cannot be used: {error}")))?;
            if views.get(&key.view()).is_some_and(|view| !fits(view, &record)) {
                return Err(refused("a record in it does not have the types that its own catalog states"));
            }
            let fields = in_use.entry(key.view()).or_default();
            fields.extend(record.row.values.iter().map(|(field, _)| *field).chain(windows.columns()));
        }

        let bytes = reader.summary().bytes;
        let translation = engine.registry.load().catalog().translation(&catalog, &in_use).map_err(|mut problems| {
            let more = problems.len().saturating_sub(PROBLEMS_SHOWN_MAX);
            problems.truncate(PROBLEMS_SHOWN_MAX);
            let more = if more == 0 { String::new() } else { format!("; and {more} more") };
            refused(format!(
                "{}{more}. Declare what is missing in {}, reload, and restore again",
                problems.join("; "),
                engine.config.views.display()
            ))
        })?;

        need_room(engine, bytes.saturating_mul(RESTORE_FACTOR))?;

        let registry = engine.registry.load();
        let names = |view: StoredView| (view.id, view.join_keys.into_iter().map(|(name, _)| name).collect());
        let join_keys = registry.catalog().stored_views().map(names).collect();
        Ok(Self { received, translation, join_keys })
    }

    /// Writes it as this store's snapshot of the number `replay_from`. Returns how many records it has. When this
    /// returns `Ok`, the next start finds the new store, otherwise the old one.
    ///
    /// The records get the number before that one, which no journal entry has: older than any push that comes, and
    /// newer than any that came.
    pub fn write(&self, engine: &StoreEngine, replay_from: u64) -> Result<u64, FeatureError> {
        let mut reader = open(&self.received)?;
        let header = engine.snapshot_header(replay_from);
        let registry = engine.registry.load_full();
        let snapshot::SnapshotHeader { replay_from: had, created_ms, hash_key_id, .. } = *reader.header();
        let since = if hash_key_id == engine.hash_key.id() {
            ErasureCutoff::Entry(had)
        } else {
            ErasureCutoff::Time(created_ms)
        };

        let mut written = 0_usize;
        let written = snapshot::write_file(engine.files.folder(), &header, |writer| {
            while let Some((key, bytes)) = reader.next().map_err(io::Error::other)? {
                let (key, mut record) = self.translated(engine, &key, &bytes).map_err(io::Error::other)?;
                record.seq = replay_from.saturating_sub(1);
                if let Some(view) = registry.view_by_id(key.view()) {
                    record.purge_us = purge_us(view, record.row.event_us, engine.keep_us());
                }
                if self.is_erased(engine, &key, &record, since) {
                    continue;
                }
                let bytes = engine.protection.encode(&key, &record).map_err(io::Error::other)?;
                writer.add(&key, &bytes)?;
                written += 1;
                if written.is_multiple_of(PERSIST_INTERVAL_RECORDS) {
                    engine.protection.persist().map_err(io::Error::other)?;
                }
            }
            engine.protection.persist().map_err(io::Error::other)
        });

        let (_, summary) = written.map_err(|error| FeatureError::NotWritten { reason: with_cause(&error) })?;
        Ok(summary.records)
    }

    /// True when the entity of a record was erased since the backup.
    fn is_erased(&self, engine: &StoreEngine, key: &IndexKey, record: &FeatureRecord, since: ErasureCutoff) -> bool {
        if engine.tombstones.is_empty() {
            return false;
        }
        let Some(names) = self.join_keys.get(&key.view()) else { return false };
        let entity: Vec<_> = names.iter().map(|name| &**name).zip(&record.row.entity).collect();
        engine.tombstones.has(&entity, since)
    }

    /// A record under this store's numbers and hash key.
    fn translated(
        &self,
        engine: &StoreEngine,
        key: &IndexKey,
        bytes: &[u8],
    ) -> Result<(IndexKey, FeatureRecord), record::DamagedBytes> {
        let mut record = FeatureRecord::decode(key, bytes)?;
        let view = self.translation.view(key.view()).ok_or(record::DamagedBytes::Malformed)?;
        view.row(&mut record.row);
        if !view.same_fields && !record.windows.is_empty() {
            let mut windows = WindowState::decode(&record.windows).map_err(|_| record::DamagedBytes::Malformed)?;
            windows.renumber(|field| view.field(field));
            record.windows.clear();
            windows.encode(&mut record.windows);
        }
        Ok((engine.hash_key.index_key(view.id, &record.row.entity), record))
    }
}

fn open(received: &ReceivedBackup) -> Result<SnapshotReader<Box<dyn Read>>, FeatureError> {
    let file = File::open(&received.path).map_err(|error| not_received(&error))?;
    let file = BufReader::with_capacity(1 << 18, file);
    let stream: Box<dyn Read> = match &received.key {
        None => Box::new(file),
        Some(key) => Box::new(BufReader::with_capacity(1 << 18, SpoolReader::new(key.clone(), file))),
    };
    SnapshotReader::new(stream).map_err(|error| refused(with_cause(&error)))
}

/// The message of an error with its cause.
fn with_cause(error: &SnapshotError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// True when a record has the types that its catalog states.
fn fits(view: &StoredView, record: &FeatureRecord) -> bool {
    let row = &record.row;
    let keys = view.join_keys.iter().map(|(_, kind)| ValueType::Scalar(*kind));
    let values = row.values.iter().all(|(id, value)| {
        let field = view.fields.binary_search_by_key(id, |(id, ..)| *id).ok().and_then(|at| view.fields.get(at));
        // A field that the catalog lacks is reported later, by its number.
        field.is_none_or(|(.., kind)| *kind == value.value_type())
    });
    row.entity.iter().map(super::super::value::Value::value_type).eq(keys) && values
}
