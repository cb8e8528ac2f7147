//! What of the store is sealed, and sealing it anew: under a new master key, or for the first time.
//! A file is written anew beside the old one, fsynced, and renamed; first the blob, then each release's name for it. Cut
//! off anywhere, every name leads to a whole file, old or new, and the next time goes on.
//!
//! The plain bytes of a file that was sealed for the first time are in no file any more. Flash memory, journals and file
//! systems that copy on write may keep the old blocks for a while: who wants them gone wipes the free space, or begins with
//! sealing on.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_identity::sealing::{
    Header, OpenError, Reseal, Resealed, SealPurpose, StreamError, open_stream, seal_chunk, seal_stream,
};

use super::release::{entries, listed};
use super::survey::{Lies, releases};
use super::{BlobStore, StoreError, hash};

/// What a file is called while it is sealed anew.
pub(super) const SEALING: &str = "sealing";

pub(super) fn is_sealed(path: &Path) -> bool {
    File::open(path).and_then(|mut file| Header::read(&mut file)).is_ok_and(|header| header.is_some())
}

impl Reseal for BlobStore {
    fn what(&self) -> &'static str {
        "models"
    }

    fn reseal(&self, stop: &dyn Fn() -> bool, done: &mut Resealed) -> Result<(), String> {
        self.reseal_all(stop, done).map_err(|error| error.to_string())
    }
}

impl BlobStore {
    /// A file that cannot be sealed anew keeps none of the others from it; the first fault is told at the end.
    fn reseal_all(&self, stop: &dyn Fn() -> bool, done: &mut Resealed) -> Result<(), StoreError> {
        if !self.sealer.is_on() {
            return Ok(());
        }
        let mut fault = None;
        for (sha256, places) in self.places()? {
            if stop() {
                return Ok(());
            }
            // Updates wait for one file at most. It is sealed for all releases that share it before the next one is: the
            // disk needs room for one file more.
            let _alone = self.names();
            for (release, name) in places {
                fault = fault.or(self.reseal_in(&release, &name, &sha256, done).err());
            }
        }
        // What has come and is in no release yet.
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

    /// The files of models' releases by their hashes, once what a power cut left half-way is gone: that is in plain perhaps,
    /// and keeps a blob from being in no release.
    fn places(&self) -> Result<BTreeMap<String, Vec<(PathBuf, String)>>, StoreError> {
        // A release that is put together meanwhile is under the current key already.
        let _alone = self.names();
        self.remove_half_done()?;
        let mut places: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for release in releases(&self.folder)? {
            for (name, sha256) in listed(&release)?.unwrap_or_default() {
                places.entry(sha256).or_default().push((release.clone(), name));
            }
        }
        Ok(places)
    }

    fn is_outdated(&self, path: &Path) -> Result<bool, StoreError> {
        Ok(Lies::of(path)?.is_other_than(self.sealer.current()))
    }

    fn reseal_in(&self, release: &Path, name: &str, sha256: &str, done: &mut Resealed) -> Result<(), StoreError> {
        let (path, blob) = (release.join(name), self.blob(sha256)?);
        if !path.is_file() || !self.is_outdated(&path)? {
            return Ok(());
        }
        if !blob.is_file() || self.is_outdated(&blob)? {
            self.seal_anew(&path, sha256, &blob, done)?;
        }
        let link = release.join(format!(".{name}.{SEALING}"));
        let _ = fs::remove_file(&link);
        fs::hard_link(&blob, &link).map_err(StoreError::at("link", &link))?;
        durable::rename(&link, &path).map_err(StoreError::at("rename", &link))
    }

    /// Seals a blob under the current key, unless it is.
    pub(super) fn seal_blob(&self, blob: &Path, sha256: &str, done: &mut Resealed) -> Result<(), StoreError> {
        if self.is_outdated(blob)? { self.seal_anew(blob, sha256, blob, done) } else { Ok(()) }
    }

    /// Seals the file at `from` under the current key, as the blob. One that is not what its name says is left to the next
    /// start, which finds out too.
    fn seal_anew(&self, from: &Path, sha256: &str, blob: &Path, done: &mut Resealed) -> Result<(), StoreError> {
        if hash(from, &self.sealer, &|| {})? != sha256 {
            return Err(StoreError::at("seal", from)(io::Error::other("it is damaged")));
        }
        let needed = from.metadata().map_err(StoreError::at("look at", from))?.len().saturating_add(self.min_free);
        let free = self.free_bytes()?;
        let fresh = blob.with_extension(SEALING);
        if free < needed {
            let error =
                format!("sealing it takes {needed} free bytes, those that stay free among them; there are {free}");
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
        *done += if was_sealed { Resealed { old: 1, plain: 0 } } else { Resealed { old: 0, plain: 1 } };
        Ok(())
    }

    /// Writes the file at `from` to `fresh`, sealed under the current key; whether it was sealed before.
    fn write_sealed(&self, from: &Path, sha256: &str, fresh: &Path) -> Result<bool, StoreError> {
        let _ = fs::remove_file(fresh);
        let mut source = File::open(from).map_err(StoreError::at("read", from))?;
        let created = OpenOptions::new().write(true).create_new(true).open(fresh);
        let mut target = BufWriter::new(created.map_err(StoreError::at("create", fresh))?);
        let of = |error: StreamError| match error {
            StreamError::File(error) => StoreError::at("seal", fresh)(error),
            StreamError::Open(error) => StoreError::Sealed { path: from.to_owned(), error },
        };
        let header = Header::read(&mut source).map_err(StoreError::at("read", from))?;
        if let Some(header) = header {
            target.write_all(&header.to_bytes()).map_err(StoreError::at("write", fresh))?;
            let mut index = 0;
            open_stream(&self.sealer, SealPurpose::Model, &header, &mut source, |plain| {
                let sealed = seal_chunk(&self.sealer, SealPurpose::Model, &header, index, plain);
                index += 1;
                target.write_all(&sealed.map_err(io::Error::other)?)
            })
            .map_err(of)?;
        } else {
            let length = source.metadata().map_err(StoreError::at("look at", from))?.len();
            source.rewind().map_err(StoreError::at("read", from))?;
            let header = self.sealed_header(sha256, length)?;
            seal_stream(&self.sealer, SealPurpose::Model, &header, &mut source, &mut target).map_err(of)?;
        }
        let target = target.into_inner().map_err(|error| StoreError::at("write", fresh)(error.into_error()))?;
        protect(&target).map_err(StoreError::at("sync", fresh))?;
        Ok(header.is_some())
    }

    /// Writes the plain bytes of a blob to a file of their own.
    pub(super) fn unseal(&self, blob: &Path, path: &Path) -> Result<(), StoreError> {
        let mut sealed = File::open(blob).map_err(StoreError::at("read", blob))?;
        let header = Header::read(&mut sealed).map_err(StoreError::at("read", blob))?;
        let not_sealed = || StoreError::Sealed { path: blob.to_owned(), error: OpenError::NotSealed };
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        let mut plain = created.map_err(StoreError::at("create", path))?;
        let header = header.ok_or_else(not_sealed)?;
        open_stream(&self.sealer, SealPurpose::Model, &header, &mut sealed, |chunk| plain.write_all(chunk)).map_err(
            |error| match error {
                StreamError::File(error) => StoreError::at("write", path)(error),
                StreamError::Open(error) => StoreError::Sealed { path: blob.to_owned(), error },
            },
        )?;
        protect(&plain).map_err(StoreError::at("sync", path))
    }
}

/// Makes a file that is written one that nobody writes to again, and that survives a power cut.
fn protect(file: &File) -> io::Result<()> {
    let mut permissions = file.metadata()?.permissions();
    permissions.set_readonly(true);
    file.set_permissions(permissions)?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
