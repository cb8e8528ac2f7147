//! Encryption of the store's files again: under a new master key, or for the first time. A file is written again next
//! to the old one, fsynced, and renamed; first the blob, then each release's link to it. Cut off anywhere, every name
//! leads to a whole file, old or new, and the next run continues.
//!
//! The plain bytes of a file that was encrypted for the first time are in no file any more. Flash memory, journals and
//! file systems that copy on write may keep the old blocks for a while: to remove them wipe the free space, or begin
//! with encryption on.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_identity::sealing::{
    CipherError, EncryptedFileError, EncryptedFileHeader, EncryptionPurpose, Rekey, RekeyCounts, open_stream,
    seal_chunk, seal_stream,
};

use super::layout::{entries, read_list, releases};
use super::survey::FileEncryption;
use super::{StoreError, UpdateStore, hash};

/// Extension of a file while it is encrypted again.
pub(super) const SEALING_EXTENSION: &str = "sealing";

impl Rekey for UpdateStore {
    fn what(&self) -> &'static str {
        "models"
    }

    fn rekey(&self, stop: &dyn Fn() -> bool, done: &mut RekeyCounts) -> Result<(), String> {
        self.rekey_all(stop, done).map_err(|error| error.to_string())
    }
}

impl UpdateStore {
    /// Encrypts all files of models again. A file that fails does not stop the others; the first error is returned at
    /// the end.
    fn rekey_all(&self, stop: &dyn Fn() -> bool, done: &mut RekeyCounts) -> Result<(), StoreError> {
        if !self.sealer.is_on() {
            return Ok(());
        }
        let mut fault = None;

        for (sha256, places) in self.places()? {
            if stop() {
                return Ok(());
            }
            // Updates wait for one file at most. It is encrypted for all releases that share it before the next file:
            // the disk needs room for one more file only.
            let _alone = self.names();
            for (release, name) in places {
                fault = fault.or(self.rekey_in(&release, &name, &sha256, done).err());
            }
        }

        // Blobs that are in no release yet.
        for entry in entries(&self.blobs())? {
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            let _alone = self.names();
            let is_alone = path.metadata().is_ok_and(|facts| facts.nlink() == 1);
            if stop() || !is_alone || self.blob(&name).is_err() {
                continue;
            }
            fault = fault.or(self.seal_blob(&path, &name, done).err());
        }

        fault.map_or(Ok(()), Err)
    }

    /// Returns the files of models' releases by their hashes, after removing leftovers of a power cut: these may be
    /// unencrypted, and their links make a blob look used.
    fn places(&self) -> Result<BTreeMap<String, Vec<(PathBuf, String)>>, StoreError> {
        // A release that is made meanwhile is under the current key already.
        let _alone = self.names();
        self.remove_half_done()?;
        let mut places: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for release in releases(&self.folder)? {
            for (name, sha256) in read_list(&release)?.unwrap_or_default() {
                places.entry(sha256).or_default().push((release.clone(), name));
            }
        }
        Ok(places)
    }

    fn is_outdated(&self, path: &Path) -> Result<bool, StoreError> {
        Ok(FileEncryption::of(path)?.is_other_than(self.sealer.current()))
    }

    fn rekey_in(&self, release: &Path, name: &str, sha256: &str, done: &mut RekeyCounts) -> Result<(), StoreError> {
        let (path, blob) = (release.join(name), self.blob(sha256)?);
        if !path.is_file() || !self.is_outdated(&path)? {
            return Ok(());
        }
        if !blob.is_file() || self.is_outdated(&blob)? {
            self.seal_anew(&path, sha256, &blob, done)?;
        }
        let link = release.join(format!(".{name}.{SEALING_EXTENSION}"));
        let _ = fs::remove_file(&link);
        fs::hard_link(&blob, &link).map_err(StoreError::at("link", &link))?;
        durable::rename(&link, &path).map_err(StoreError::at("rename", &link))
    }

    /// Encrypts a blob under the current key, unless it is already.
    pub(super) fn seal_blob(&self, blob: &Path, sha256: &str, done: &mut RekeyCounts) -> Result<(), StoreError> {
        if self.is_outdated(blob)? { self.seal_anew(blob, sha256, blob, done) } else { Ok(()) }
    }

    /// Encrypts the file at `from` under the current key, as the blob. A damaged file is left to the next start, which
    /// finds it too.
    fn seal_anew(&self, from: &Path, sha256: &str, blob: &Path, done: &mut RekeyCounts) -> Result<(), StoreError> {
        if hash(from, &self.sealer, &|| {})? != sha256 {
            return Err(StoreError::at("encrypt", from)(io::Error::other("it is damaged")));
        }
        let needed =
            from.metadata().map_err(StoreError::at("read the metadata of", from))?.len().saturating_add(self.min_free);
        let free = self.free_bytes()?;
        let fresh = blob.with_extension(SEALING_EXTENSION);
        if free < needed {
            let error =
                format!("encrypting it needs {needed} free bytes, including those that stay free; {free} are free");
            return Err(StoreError::Full { path: fresh, error: io::Error::other(error) });
        }
        let written = self.write_sealed(from, sha256, &fresh);
        let was_sealed = match written
            .and_then(|was| durable::rename(&fresh, blob).map(|()| was).map_err(StoreError::at("rename", &fresh)))
        {
            Ok(was_sealed) => was_sealed,
            Err(error) => {
                // The disk may be full.
                let _ = fs::remove_file(&fresh);
                return Err(error);
            }
        };
        *done += if was_sealed { RekeyCounts { old: 1, plain: 0 } } else { RekeyCounts { old: 0, plain: 1 } };
        Ok(())
    }

    /// Writes the file at `from` to `fresh`, encrypted under the current key; returns whether it was encrypted before.
    fn write_sealed(&self, from: &Path, sha256: &str, fresh: &Path) -> Result<bool, StoreError> {
        let _ = fs::remove_file(fresh);
        let mut source = File::open(from).map_err(StoreError::at("read", from))?;
        let created = OpenOptions::new().write(true).create_new(true).open(fresh);
        let mut target = BufWriter::new(created.map_err(StoreError::at("create", fresh))?);

        let of = |error: EncryptedFileError| match error {
            EncryptedFileError::File(error) => StoreError::at("encrypt", fresh)(error),
            EncryptedFileError::Open(error) => StoreError::Sealed { path: from.to_owned(), error },
        };
        let header = EncryptedFileHeader::read(&mut source).map_err(StoreError::at("read", from))?;
        if let Some(header) = header {
            target.write_all(&header.to_bytes()).map_err(StoreError::at("write", fresh))?;
            let mut index = 0;
            open_stream(&self.sealer, EncryptionPurpose::Model, &header, &mut source, |plain| {
                let sealed = seal_chunk(&self.sealer, EncryptionPurpose::Model, &header, index, plain);
                index += 1;
                target.write_all(&sealed.map_err(io::Error::other)?)
            })
            .map_err(of)?;
        } else {
            let length = source.metadata().map_err(StoreError::at("read the metadata of", from))?.len();
            source.rewind().map_err(StoreError::at("read", from))?;
            let header = self.sealed_header(sha256, length)?;
            seal_stream(&self.sealer, EncryptionPurpose::Model, &header, &mut source, &mut target).map_err(of)?;
        }

        let target = target.into_inner().map_err(|error| StoreError::at("write", fresh)(error.into_error()))?;
        protect(&target).map_err(StoreError::at("sync", fresh))?;
        Ok(header.is_some())
    }

    /// Decrypts a blob to a separate file.
    pub(super) fn unseal(&self, blob: &Path, path: &Path) -> Result<(), StoreError> {
        let mut sealed = File::open(blob).map_err(StoreError::at("read", blob))?;

        let header = EncryptedFileHeader::read(&mut sealed).map_err(StoreError::at("read", blob))?;
        let not_sealed = || StoreError::Sealed { path: blob.to_owned(), error: CipherError::NotSealed };
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        let mut plain = created.map_err(StoreError::at("create", path))?;
        let header = header.ok_or_else(not_sealed)?;
        open_stream(&self.sealer, EncryptionPurpose::Model, &header, &mut sealed, |chunk| plain.write_all(chunk))
            .map_err(|error| match error {
                EncryptedFileError::File(error) => StoreError::at("write", path)(error),
                EncryptedFileError::Open(error) => StoreError::Sealed { path: blob.to_owned(), error },
            })?;
        protect(&plain).map_err(StoreError::at("sync", path))
    }
}

/// Makes a written file read-only, and syncs it.
fn protect(file: &File) -> io::Result<()> {
    let mut permissions = file.metadata()?.permissions();
    permissions.set_readonly(true);
    file.set_permissions(permissions)?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
