//! The encryption of a job: each has a random key, which is in its folder, encrypted with the master key where the box has
//! one. Without the key nothing of the job can be read, so removing a job destroys its key first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::time_id::TimeId;
use ledge_identity::sealing::{EncryptionPurpose, MASTER_KEY_BYTES, Sealer};

/// The file with the key of a job.
const KEY_FILE: &str = "key";

/// The cipher of one job.
#[derive(Debug, Clone)]
pub struct JobCipher {
    sealer: Sealer,
    id: TimeId,
}

impl JobCipher {
    /// Makes the key of a new job in its folder.
    pub fn create(folder: &Path, id: &TimeId, box_sealer: &Sealer) -> io::Result<Self> {
        let mut key = [0; MASTER_KEY_BYTES];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        let stored =
            box_sealer.seal(EncryptionPurpose::Jobs, id.as_str().as_bytes(), &key).map_err(io::Error::other)?;
        durable::create_private(&folder.join(KEY_FILE), &stored)?;
        Ok(Self { sealer: Sealer::with_keys(&[key]), id: id.clone() })
    }

    /// Reads the key of a job.
    pub fn open(folder: &Path, id: &TimeId, box_sealer: &Sealer) -> io::Result<Self> {
        let key = read_key(folder, id, box_sealer)?.0;
        Ok(Self { sealer: Sealer::with_keys(&[key]), id: id.clone() })
    }

    /// Encrypts the key of a job again, if it is plain or under an old master key. Returns `true` for one that was plain,
    /// `false` for one under an old key, `None` for one that needed nothing.
    pub fn rekey(folder: &Path, id: &TimeId, box_sealer: &Sealer) -> io::Result<Option<bool>> {
        let (key, stored) = read_key(folder, id, box_sealer)?;
        if !box_sealer.is_outdated(&stored) {
            return Ok(None);
        }
        let sealed =
            box_sealer.seal(EncryptionPurpose::Jobs, id.as_str().as_bytes(), &key).map_err(io::Error::other)?;
        durable::replace_private(&folder.join(KEY_FILE), &sealed)?;
        Ok(Some(!Sealer::is_sealed(&stored)))
    }

    /// The file of the key in the folder of a job.
    pub fn key_file(folder: &Path) -> PathBuf {
        folder.join(KEY_FILE)
    }

    /// Encrypts the content of one place of the job, such as `input`.
    pub fn seal(&self, place: &str, plain: &[u8]) -> io::Result<Vec<u8>> {
        let sealed = self.sealer.seal(EncryptionPurpose::Jobs, self.place(place).as_bytes(), plain);
        sealed.map_err(io::Error::other)
    }

    /// Decrypts bytes of [`Self::seal`] for the same place.
    pub fn unseal(&self, place: &str, sealed: &[u8]) -> io::Result<Vec<u8>> {
        let plain = self.sealer.open(EncryptionPurpose::Jobs, self.place(place).as_bytes(), sealed);
        plain.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn place(&self, place: &str) -> String {
        format!("{} {place}", self.id)
    }
}

/// The key, and the bytes that it is stored as.
fn read_key(folder: &Path, id: &TimeId, box_sealer: &Sealer) -> io::Result<([u8; MASTER_KEY_BYTES], Vec<u8>)> {
    let wrong = |error: String| io::Error::new(io::ErrorKind::InvalidData, format!("the key of the job: {error}"));
    let stored = fs::read(folder.join(KEY_FILE))?;
    let plain = if Sealer::is_sealed(&stored) {
        let opened = box_sealer.open(EncryptionPurpose::Jobs, id.as_str().as_bytes(), &stored);
        opened.map_err(|error| wrong(error.to_string()))?
    } else {
        stored.clone()
    };
    let key = plain.as_slice().try_into().map_err(|_| wrong("it has another length".to_owned()))?;
    Ok((key, stored))
}
