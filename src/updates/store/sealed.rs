//! What of the store is sealed, and sealing it anew: under a new master key, or for the first time.
//! A file is written anew beside the old one, fsynced, and renamed; first the blob, then each release's name for it. Cut
//! off anywhere, every name leads to a whole file, old or new, and the next time goes on.
//!
//! The plain bytes of a file that was sealed for the first time are in no file any more. Flash memory, journals and file
//! systems that copy on write may keep the old blocks for a while: who wants them gone wipes the free space, or begins with
//! sealing on.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::release::{entries, listed};
use super::{BlobStore, StoreError, hash};
use crate::durable;
use crate::identity::sealing::{
    Header, KeyId, OpenError, Reseal, Resealed, SealPurpose, StreamError, Survey, chunk_ids, open_stream, seal_chunk,
    seal_stream,
};
use crate::updates::subject::Kind;

/// Under which master keys the chunks of a file are; `None` among them is plain.
fn keys(path: &Path) -> Result<Vec<Option<KeyId>>, StoreError> {
    let read = StoreError::at("read", path);
    let mut file = File::open(path).map_err(&read)?;
    match Header::read(&mut file).map_err(&read)? {
        Some(header) => chunk_ids(&header, &mut file).map_err(&read),
        None => Ok(vec![None]),
    }
}

pub(super) fn is_sealed(path: &Path) -> bool {
    File::open(path).and_then(|mut file| Header::read(&mut file)).is_ok_and(|header| header.is_some())
}

/// Under which master keys the models of the store in `folder` are, for whoever only looks.
pub fn survey(folder: &Path) -> Result<Survey, StoreError> {
    let mut survey = Survey::default();
    let mut seen = BTreeSet::new();
    let models = folder.join("releases").join(Kind::Model.folder());
    for release in releases(&models)? {
        for name in listed(&release)?.unwrap_or_default().into_keys() {
            let path = release.join(name);
            let Ok(facts) = path.metadata() else { continue };
            // Releases share what they have in common.
            if seen.insert(facts.ino()) {
                keys(&path)?.into_iter().for_each(|key| survey.count(key));
            }
        }
    }
    Ok(survey)
}

fn releases(models: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    if !models.is_dir() {
        return Ok(found);
    }
    for model in entries(models)?.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        let releases = entries(&model)?.into_iter();
        let shown = releases.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        found.extend(shown.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    Ok(found)
}

impl Reseal for BlobStore {
    fn what(&self) -> &'static str {
        "models"
    }

    fn reseal(&self, stop: &dyn Fn() -> bool) -> Result<Resealed, String> {
        let mut done = Resealed::default();
        self.reseal_all(stop, &mut done).map_err(|error| error.to_string()).map(|()| done)
    }
}

impl BlobStore {
    /// A file that cannot be sealed anew keeps none of the others from it; the first fault is told at the end.
    fn reseal_all(&self, stop: &dyn Fn() -> bool, done: &mut Resealed) -> Result<(), StoreError> {
        if !self.sealer.is_on() {
            return Ok(());
        }
        let mut fault = None;
        for release in releases(&self.folder.join("releases").join(Kind::Model.folder()))? {
            for (name, sha256) in listed(&release)?.unwrap_or_default() {
                if stop() {
                    return Ok(());
                }
                // Updates wait for one file at most.
                let _alone = self.names();
                let sealed = self.reseal_in(&release, &name, &sha256, done);
                fault = fault.or(sealed.err());
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
            let is_outdated = self.is_outdated(&path);
            let sealed = is_outdated.and_then(|is| if is { self.seal_anew(&path, &name, &path, done) } else { Ok(()) });
            fault = fault.or(sealed.err());
        }
        fault.map_or(Ok(()), Err)
    }

    fn is_outdated(&self, path: &Path) -> Result<bool, StoreError> {
        let current = self.sealer.current();
        Ok(keys(path)?.iter().any(|key| *key != current))
    }

    fn reseal_in(&self, release: &Path, name: &str, sha256: &str, done: &mut Resealed) -> Result<(), StoreError> {
        let (path, blob) = (release.join(name), self.blob(sha256)?);
        if !path.is_file() || !self.is_outdated(&path)? {
            return Ok(());
        }
        if !blob.is_file() || self.is_outdated(&blob)? {
            self.seal_anew(&path, sha256, &blob, done)?;
        }
        let link = release.join(format!(".{name}.sealing"));
        let _ = fs::remove_file(&link);
        fs::hard_link(&blob, &link).map_err(StoreError::at("link", &link))?;
        durable::rename(&link, &path).map_err(StoreError::at("rename", &link))
    }

    /// Seals the file at `from` under the current key, as the blob. One that is not what its name says is left to the next
    /// start, which finds out too.
    fn seal_anew(&self, from: &Path, sha256: &str, blob: &Path, done: &mut Resealed) -> Result<(), StoreError> {
        if hash(from, &self.sealer, &|| {})? != sha256 {
            return Err(StoreError::at("seal", from)(io::Error::other("it is damaged")));
        }
        let fresh = blob.with_extension("sealing");
        let _ = fs::remove_file(&fresh);
        let mut source = File::open(from).map_err(StoreError::at("read", from))?;
        let created = OpenOptions::new().write(true).create_new(true).open(&fresh);
        let mut target = BufWriter::new(created.map_err(StoreError::at("create", &fresh))?);
        let of = |error: StreamError| match error {
            StreamError::File(error) => StoreError::at("seal", &fresh)(error),
            StreamError::Open(error) => StoreError::Sealed { path: from.to_owned(), error },
        };
        let header = Header::read(&mut source).map_err(StoreError::at("read", from))?;
        if let Some(header) = header {
            target.write_all(&header.to_bytes()).map_err(StoreError::at("write", &fresh))?;
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
        let target = target.into_inner().map_err(|error| StoreError::at("write", &fresh)(error.into_error()))?;
        protect(&target).map_err(StoreError::at("sync", &fresh))?;
        durable::rename(&fresh, blob).map_err(StoreError::at("rename", &fresh))?;
        *done += if header.is_some() { Resealed { old: 1, plain: 0 } } else { Resealed { old: 0, plain: 1 } };
        Ok(())
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
