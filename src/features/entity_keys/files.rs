//! Key files on the disk, each of them twice.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_identity::sealing::{CipherError, EncryptionPurpose, Sealer};

use super::EntityKeysError;
use super::form::{self, EntityKey, KeysHead, SHARDS};

const PURPOSE: EncryptionPurpose = EncryptionPurpose::FeatureKeys;
const HEAD_FILE: &str = "head";
const HEAD_ASSOCIATED_DATA: &[u8] = b"feature keys: head";

/// The folders of the keys.
#[derive(Debug)]
pub struct KeyFiles {
    copies: [PathBuf; 2],
}

/// The associated data of a shard file, so that it does not open in the place of another.
fn shard_associated_data(store: &[u8; 16], shard: usize) -> Vec<u8> {
    [b"feature keys: shard ".as_slice(), store, &shard.to_le_bytes()].concat()
}

fn added_associated_data(store: &[u8; 16], number: u32, frame: u32) -> Vec<u8> {
    [b"feature keys: added ".as_slice(), store, &number.to_le_bytes(), &frame.to_le_bytes()].concat()
}

fn shard_name(shard: usize) -> String {
    format!("{shard:02x}.keys")
}

fn added_name(number: u32) -> String {
    format!("added-{number:08}")
}

fn failed(file: &Path) -> impl FnOnce(io::Error) -> EntityKeysError {
    move |source| EntityKeysError::Io { file: file.to_owned(), source }
}

fn seal(sealer: &Sealer, associated: &[u8], plain: &[u8]) -> Result<Vec<u8>, EntityKeysError> {
    sealer.seal(PURPOSE, associated, plain).map_err(EntityKeysError::Sealed)
}

/// The folders with the copies of the keys of the store in `folder`.
pub fn copies(folder: &Path) -> [PathBuf; 2] {
    ["a", "b"].map(|copy| folder.join("keys").join(copy))
}

/// True for a file of added keys, which grows.
pub fn is_added(file: &Path) -> bool {
    file.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("added-"))
}

impl KeyFiles {
    pub fn new(folder: &Path) -> Self {
        Self { copies: copies(folder) }
    }

    /// True when there are keys, or were. It is an error if that cannot be determined: new keys in the place of old
    /// ones would make everything encrypted with those unreadable. Leftovers of a power cut during the very first write
    /// do not count.
    pub fn exists(&self) -> Result<bool, EntityKeysError> {
        for copy in &self.copies {
            let entries = match fs::read_dir(copy) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(failed(copy))?,
            };
            for entry in entries {
                let path = entry.map_err(failed(copy))?.path();
                if path.extension().is_none_or(|extension| extension != "tmp") {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Creates the folders.
    pub fn create(&self) -> Result<(), EntityKeysError> {
        self.copies.iter().try_for_each(|copy| durable::create_folder(copy).map_err(failed(copy)))
    }

    /// Reads the good copy, the first one when both are good, and overwrites the other with it. Two good copies may
    /// differ: the first is written first.
    fn read<T>(
        &self,
        name: &str,
        affected: &str,
        repaired: &mut Vec<String>,
        parse: impl Fn(&[u8]) -> Result<T, CipherError>,
    ) -> Result<T, EntityKeysError> {
        let (mut good, mut bad, mut stale, mut no_key) = (None, Vec::new(), Vec::new(), None);
        for copy in &self.copies {
            let path = copy.join(name);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    bad.push((path, "it is missing".to_owned()));
                    continue;
                }
                Err(source) => return Err(EntityKeysError::Io { file: path, source }),
            };
            match (parse(&bytes), &good) {
                (Ok(content), None) => good = Some((content, bytes)),
                (Ok(_), Some((_, first))) if *first == bytes => {}
                (Ok(_), Some(_)) => stale.push(path),
                (Err(error), _) => {
                    no_key = no_key.or(matches!(error, CipherError::NoKey(_)).then_some(error));
                    bad.push((path, error.to_string()));
                }
            }
        }

        let Some((content, bytes)) = good else {
            // The file may be intact; the master key is missing.
            if let Some(error) = no_key {
                return Err(EntityKeysError::Sealed(error));
            }
            let reason = bad.iter().map(|(_, reason)| reason.as_str()).collect::<Vec<_>>().join("; ");
            let file = self.copies.iter().map(|copy| copy.join(name)).next().unwrap_or_default();
            return Err(EntityKeysError::Lost { file, reason, affected: affected.to_owned() });
        };

        for path in bad.iter().map(|(path, _)| path).chain(&stale) {
            path.parent().map_or(Ok(()), durable::create_folder).map_err(failed(path))?;
            durable::replace_private(path, &bytes).map_err(failed(path))?;
        }

        repaired.extend(bad.into_iter().map(|(path, reason)| format!("{}: {reason}", path.display())));
        Ok(content)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), EntityKeysError> {
        self.copies.iter().try_for_each(|copy| {
            let path = copy.join(name);
            durable::replace_private(&path, bytes).map_err(failed(&path))
        })
    }

    /// Reads the head.
    pub fn read_head(&self, sealer: &Sealer, repaired: &mut Vec<String>) -> Result<KeysHead, EntityKeysError> {
        for copy in &self.copies {
            if copy.is_dir() {
                durable::remove_leftovers(copy).map_err(failed(copy))?;
            }
        }
        self.read(HEAD_FILE, "without it no key can be assigned to its entity", repaired, |bytes| {
            let plain = sealer.open(PURPOSE, HEAD_ASSOCIATED_DATA, bytes)?;
            KeysHead::decode(&plain).map_err(|_| CipherError::Forged)
        })
    }

    /// Writes the head.
    pub fn write_head(&self, sealer: &Sealer, head: &KeysHead) -> Result<(), EntityKeysError> {
        self.write(HEAD_FILE, &seal(sealer, HEAD_ASSOCIATED_DATA, &head.encode())?)
    }

    /// Reads a shard.
    pub fn read_shard(
        &self,
        sealer: &Sealer,
        head: &KeysHead,
        shard: usize,
        repaired: &mut Vec<String>,
    ) -> Result<(u32, Vec<EntityKey>), EntityKeysError> {
        let affected =
            format!("it has the keys of about one in {SHARDS} entities, those whose tag begins with {shard:02x}");
        let associated = shard_associated_data(&head.store, shard);
        self.read(&shard_name(shard), &affected, repaired, |bytes| {
            let plain = sealer.open(PURPOSE, &associated, bytes)?;
            form::decode_shard(shard, &plain).map_err(|_| CipherError::Forged)
        })
    }

    /// Writes a shard; `content` is the output of [`form::encode_shard`].
    pub fn write_shard(
        &self,
        sealer: &Sealer,
        head: &KeysHead,
        shard: usize,
        content: &[u8],
    ) -> Result<(), EntityKeysError> {
        self.write(&shard_name(shard), &seal(sealer, &shard_associated_data(&head.store, shard), content)?)
    }

    /// The numbers of the files with added keys, in order.
    pub fn added(&self) -> Result<Vec<u32>, EntityKeysError> {
        let mut found = Vec::new();
        for copy in &self.copies {
            let entries = match fs::read_dir(copy) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(EntityKeysError::Io { file: copy.clone(), source }),
            };
            for entry in entries {
                let name = entry.map_err(failed(copy))?.file_name();
                let number = name.to_str().and_then(|name| name.strip_prefix("added-")?.parse().ok());
                found.extend(number.filter(|number| *added_name(*number) == *name));
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Reads the keys of a final file of added keys: all pieces that either copy has; afterwards both copies have them.
    /// Bytes behind the last good piece of either copy come from a write that was not acknowledged; a piece before it
    /// that is bad in both copies is damage.
    pub fn read_added(
        &self,
        sealer: &Sealer,
        head: &KeysHead,
        number: u32,
        repaired: &mut Vec<String>,
    ) -> Result<Vec<EntityKey>, EntityKeysError> {
        let name = added_name(number);
        // The keys of each piece that opens, and its bytes.
        let mut best: Vec<Option<(Vec<EntityKey>, Vec<u8>)>> = Vec::new();
        let mut no_key = None;

        let mut copies = Vec::with_capacity(self.copies.len());
        for copy in &self.copies {
            let path = copy.join(&name);
            let bytes = match fs::read(&path) {
                Ok(bytes) => Some(bytes),
                // A power cut came between the creation, or the removal, of the two copies.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(source) => return Err(EntityKeysError::Io { file: path, source }),
            };
            let (frames, _) = form::decode_frames(bytes.as_deref().unwrap_or_default());
            best.resize(best.len().max(frames.len()), None);
            for ((at, frame), best) in (0..).zip(&frames).zip(&mut best).filter(|(_, best)| best.is_none()) {
                match sealer.open(PURPOSE, &added_associated_data(&head.store, number, at), frame) {
                    Ok(plain) => {
                        *best = form::decode_entries(&plain).ok().map(|entries| (entries, form::encode_frame(frame)));
                    }
                    Err(error) => no_key = no_key.or(matches!(error, CipherError::NoKey(_)).then_some(error)),
                }
            }
            copies.push((path, bytes));
        }

        if let Some(error) = no_key
            && best.iter().any(Option::is_none)
        {
            return Err(EntityKeysError::Sealed(error));
        }

        let pieces = best.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let good: Vec<_> = best.iter().take(pieces).flatten().collect();
        if good.len() < pieces {
            let file = self.copies.iter().map(|copy| copy.join(&name)).next().unwrap_or_default();
            let reason = format!("{} of {pieces} pieces are damaged", pieces - good.len());
            return Err(EntityKeysError::Lost {
                file,
                reason,
                affected: "it has keys that were made lately".to_owned(),
            });
        }

        let whole = good.iter().map(|(_, frame)| frame.as_slice()).collect::<Vec<_>>().concat();
        for (path, bytes) in copies.into_iter().filter(|(_, bytes)| bytes.as_ref() != Some(&whole)) {
            path.parent().map_or(Ok(()), durable::create_folder).map_err(failed(&path))?;
            durable::replace_private(&path, &whole).map_err(failed(&path))?;
            if bytes.is_some_and(|bytes| !is_torn(&bytes, &whole)) {
                repaired.push(format!("{}: it is not as it was written", path.display()));
            }
        }

        Ok(good.into_iter().flat_map(|(entries, _)| entries.clone()).collect())
    }

    /// Creates a file for added keys.
    pub fn create_added(&self, number: u32) -> Result<AddedKeysFile, EntityKeysError> {
        let mut files = Vec::with_capacity(self.copies.len());
        for copy in &self.copies {
            let path = copy.join(added_name(number));
            let mut options = OpenOptions::new();
            let file = options.create_new(true).append(true).mode(0o600).open(&path);
            let file = file.and_then(|file| durable::sync_folder(copy).map(|()| file)).map_err(failed(&path))?;
            files.push((path, file));
        }
        Ok(AddedKeysFile { number, frames: 0, files })
    }

    /// Replaces a final file of added keys.
    pub fn replace_added(
        &self,
        sealer: &Sealer,
        head: &KeysHead,
        number: u32,
        entries: &[EntityKey],
    ) -> Result<(), EntityKeysError> {
        let piece = seal(sealer, &added_associated_data(&head.store, number, 0), &form::encode_entries(entries))?;
        self.write(&added_name(number), &form::encode_frame(&piece))
    }

    /// Removes a file of added keys.
    pub fn remove_added(&self, number: u32) -> Result<(), EntityKeysError> {
        for copy in &self.copies {
            let path = copy.join(added_name(number));
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&path)(error)),
                _ => durable::sync_folder(copy).map_err(failed(copy))?,
            }
        }
        Ok(())
    }
}

/// True when a copy that should be `whole` looks like the result of a power cut: it ends too early, or in zeros, or has
/// an additional piece that was not acknowledged.
fn is_torn(bytes: &[u8], whole: &[u8]) -> bool {
    let same = bytes.iter().zip(whole).take_while(|(a, b)| a == b).count();
    same == whole.len() || bytes.iter().skip(same).all(|byte| *byte == 0)
}

/// An open file for added keys.
#[derive(Debug)]
pub struct AddedKeysFile {
    number: u32,
    frames: u32,
    files: Vec<(PathBuf, File)>,
}

impl AddedKeysFile {
    /// Appends keys. When this returns `Ok`, they survive a power cut.
    pub fn append(&mut self, sealer: &Sealer, store: &[u8; 16], entries: &[EntityKey]) -> Result<(), EntityKeysError> {
        let associated = added_associated_data(store, self.number, self.frames);
        let frame = form::encode_frame(&seal(sealer, &associated, &form::encode_entries(entries))?);
        for (path, file) in &mut self.files {
            file.write_all(&frame).and_then(|()| file.sync_data()).map_err(failed(path))?;
        }
        self.frames += 1;
        Ok(())
    }
}
