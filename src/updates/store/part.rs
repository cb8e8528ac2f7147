//! The first bytes of a blob that is being fetched, over days and power cuts.
//!
//! The file is written in steps. A step begins only after everything before it was fdatasynced. Of a part of N bytes,
//! those up to the last whole step below N are certainly on the disk; a transfer that ends in order syncs the rest too,
//! and notes that in the file next to it. Uncertain bytes are cut off before the part is continued: after a power cut
//! they may be zeros. A wrong hash at the end is then the fault of the sender. A part of a file that is to be encrypted
//! holds encrypted chunks of one step each, see `sealed_part.rs`: no plain byte of it reaches the disk.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use ledge_base::durable;
use ledge_identity::sealing::{CHUNK_BYTES, EncryptedFileHeader};

use super::layout::PART_EXTENSION;
use super::sealed_part::EncryptedChunks;
use super::{StoreError, UpdateStore, hash_some};

/// Bytes of a step, between two calls of fdatasync. A power cut costs two steps at most: the one in progress, and the
/// one before if no byte of the next is on the disk, because its fdatasync had perhaps not returned.
pub(super) const SYNC_BYTES: u64 = CHUNK_BYTES as u64;

/// A blob that is being fetched. It has one writer at a time.
pub(crate) struct PartialDownload {
    blob: PathBuf,
    path: PathBuf,
    file: File,
    context: Context,
    length: u64,
    /// Bytes that are certainly on the disk.
    synced: u64,
    /// Its encrypted chunks, where it is encrypted.
    chunks: Option<EncryptedChunks>,
}

impl UpdateStore {
    /// Opens the part of a blob of `length` bytes, with its certain bytes. Waits for another writer of it.
    pub(crate) fn part(&self, sha256: &str, length: u64) -> Result<PartialDownload, StoreError> {
        self.part_as(sha256, length, None)
    }

    /// Opens the part of a blob that is encrypted, where encryption is on.
    pub(crate) fn sealed_part(&self, sha256: &str, length: u64) -> Result<PartialDownload, StoreError> {
        let header = self.sealed_header(sha256, length)?;
        self.part_as(sha256, length, self.sealer.is_on().then(|| EncryptedChunks::new(self.sealer.clone(), header)))
    }

    fn part_as(
        &self,
        sha256: &str,
        length: u64,
        chunks: Option<EncryptedChunks>,
    ) -> Result<PartialDownload, StoreError> {
        let blob = self.blob(sha256)?;
        let path = blob.with_extension(PART_EXTENSION);
        let file = lock(&path).map_err(StoreError::at("open", &path))?;
        let mut part =
            PartialDownload { blob, path, file, context: Context::new(&SHA256), length: 0, synced: 0, chunks };
        let resumed = if part.chunks.is_some() { part.resume_sealed() } else { part.resume(sha256, length) };
        resumed.map_err(StoreError::at("read", &part.path))?;
        Ok(part)
    }
}

impl PartialDownload {
    /// Returns the number of bytes here.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends the next bytes. After an error the part must be opened again.
    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let room = SYNC_BYTES - self.length % SYNC_BYTES;
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            let written = match &mut self.chunks {
                Some(chunks) => chunks.write(&mut self.file, now),
                None => self.file.write_all(now),
            };
            written.map_err(StoreError::at("write", &self.path))?;
            self.context.update(now);
            self.length += now.len() as u64;
            bytes = later;
            if self.length.is_multiple_of(SYNC_BYTES) {
                self.sync()?;
            }
        }
        Ok(())
    }

    /// Syncs the part, so that no byte has to be fetched again.
    pub(crate) fn settle(&mut self) -> Result<(), StoreError> {
        if self.synced == self.length {
            return Ok(());
        }
        if let Some(chunks) = &mut self.chunks {
            // Chunks need no note: they decrypt, or they do not.
            chunks.write_rest(&mut self.file).map_err(StoreError::at("write", &self.path))?;
            return self.sync();
        }
        self.sync()?;
        let note = synced_note(&self.path);
        durable::replace(&note, self.length.to_string().as_bytes()).map_err(StoreError::at("write", &note))
    }

    /// Makes it a blob, if its hash is that of its name; else returns `false`. The blob survives a power cut, and the
    /// part is gone.
    pub(crate) fn finish(&mut self) -> Result<bool, StoreError> {
        let found = hex::encode(self.context.clone().finish());
        if self.blob.file_name().is_none_or(|name| name != found.as_str()) {
            return Ok(false);
        }
        if let Some(chunks) = &mut self.chunks {
            chunks.finish(&mut self.file).map_err(StoreError::at("write", &self.path))?;
        }
        // Releases have hard links to it: a write to one would change all.
        let mut permissions =
            self.file.metadata().map_err(StoreError::at("read the metadata of", &self.path))?.permissions();
        permissions.set_readonly(true);
        self.file.set_permissions(permissions).map_err(StoreError::at("protect", &self.path))?;
        self.file.sync_all().map_err(StoreError::at("sync", &self.path))?;
        durable::rename(&self.path, &self.blob).map_err(StoreError::at("rename", &self.path))?;
        let _ = fs::remove_file(synced_note(&self.path));
        Ok(true)
    }

    /// Removes the part.
    pub(crate) fn remove(&mut self) -> Result<(), StoreError> {
        self.empty().map_err(StoreError::at("empty", &self.path))?;
        fs::remove_file(&self.path).map_err(StoreError::at("remove", &self.path))
    }

    fn resume(&mut self, sha256: &str, length: u64) -> io::Result<()> {
        let there = self.file.metadata()?.len();
        // An encrypted part is of no use without encryption.
        let is_sealed = EncryptedFileHeader::read(&mut self.file)?.is_some();
        if there == 0 || there > length || is_sealed {
            return self.empty();
        }
        let noted = fs::read_to_string(synced_note(&self.path)).ok().and_then(|text| text.parse().ok());
        let stepped = (there - 1) / SYNC_BYTES * SYNC_BYTES;
        let certain = noted.filter(|noted| *noted <= there).map_or(stepped, |noted: u64| noted.max(stepped));
        self.file.seek(SeekFrom::Start(0))?;
        self.length = hash_some(&mut self.file, &mut self.context, certain)?;
        self.synced = self.length;
        if there == length {
            // All bytes are here, and only the rename is missing: nothing needs to be fetched.
            let mut context = self.context.clone();
            let rest = hash_some(&mut self.file, &mut context, u64::MAX)?;
            if hex::encode(context.clone().finish()) == sha256 {
                (self.context, self.length) = (context, self.length + rest);
                return Ok(());
            }
        }
        self.file.set_len(self.length)?;
        self.file.seek(SeekFrom::Start(self.length))?;
        Ok(())
    }

    fn resume_sealed(&mut self) -> io::Result<()> {
        let Some(chunks) = &mut self.chunks else { return Ok(()) };
        let context = &mut self.context;
        match chunks.resume(&mut self.file, |plain| context.update(plain))? {
            Some(length) => (self.length, self.synced) = (length, length),
            // Another file, or a plain part from before encryption was on.
            None => self.empty()?,
        }
        Ok(())
    }

    /// Removes every byte. The note about them goes first: it would be taken for one about the next bytes.
    fn empty(&mut self) -> io::Result<()> {
        match fs::remove_file(synced_note(&self.path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            removed => removed.unwrap_or_default(),
        }
        durable::sync_folder(self.path.parent().unwrap_or(&self.path))?;
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.context, self.length, self.synced) = (Context::new(&SHA256), 0, 0);
        self.chunks.as_mut().map_or(Ok(()), |chunks| chunks.begin(&mut self.file))
    }

    /// Syncs the part. After a failed fdatasync the content of the disk is unknown, and the next one would succeed
    /// anyway: everything since the last successful one is cut off.
    fn sync(&mut self) -> Result<(), StoreError> {
        if let Err(error) = self.file.sync_data() {
            let synced = self.synced;
            let certain = self.chunks.as_ref().map_or(synced, |_| EncryptedFileHeader::offset(synced / SYNC_BYTES));
            let _ = self.file.set_len(certain);
            self.length = self.synced;
            return Err(StoreError::at("sync", &self.path)(error));
        }
        self.synced = self.length;
        Ok(())
    }
}

fn synced_note(part: &Path) -> PathBuf {
    part.with_extension("synced")
}

/// Opens a part and locks it. A transfer that was given up in the middle may still write its last bytes, and even
/// rename the file to a blob: then the opened file is no longer the part.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        file.lock()?;
        let locked = file.metadata()?.ino();
        match fs::metadata(path) {
            Ok(found) if found.ino() == locked => return Ok(file),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
}
