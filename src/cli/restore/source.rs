//! The files of a backup, opened and checked.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use ledge_features::backup_cipher::BackupIdentity;
use ledge_features::backup_form::is_encrypted;

use crate::cli::backup::archive::{ArchiveKind, BackupManifest, EntryHead, read_archive};
use crate::cli::backup::contents::{CREDENTIALS, FEATURES, SETTINGS, STATE, UPGRADES};

/// The size of the buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// A file of a backup.
pub struct BackupSource {
    path: PathBuf,
    identity: Option<BackupIdentity>,
}

impl BackupSource {
    pub fn new(path: &Path, identity: Option<BackupIdentity>) -> Self {
        Self { path: path.to_owned(), identity }
    }

    /// Reads the whole file, and hands each entry to `take`.
    pub fn read(
        &self,
        take: impl FnMut(&EntryHead, &mut dyn Read) -> anyhow::Result<()>,
    ) -> anyhow::Result<BackupManifest> {
        let read = || {
            let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(&self.path)?);
            match (is_encrypted(&mut file)?, &self.identity) {
                (false, _) => read_archive(file, take),
                (true, Some(identity)) => {
                    read_archive(BufReader::with_capacity(BUFFER_BYTES, identity.decrypt(file)?), take)
                }
                (true, None) => bail!("it is encrypted: add --identity FILE or --passphrase-file FILE"),
            }
        };
        read().with_context(|| format!("{} cannot be restored", self.path.display()))
    }

    /// Checks the file of everything but private keys.
    pub fn check_box(&self) -> anyhow::Result<BackupManifest> {
        self.check(ArchiveKind::Box, &[STATE, SETTINGS, FEATURES])
    }

    /// Checks the file of private keys, which must be of the same backup.
    pub fn check_keys(&self, main: &BackupManifest) -> anyhow::Result<BackupManifest> {
        let manifest = self.check(ArchiveKind::Keys, &[STATE, SETTINGS, UPGRADES, CREDENTIALS])?;
        ensure!(
            manifest.pair == main.pair,
            "{} belongs to another backup, of {}, taken {}",
            self.path.display(),
            manifest.device,
            manifest.created
        );
        Ok(manifest)
    }

    fn check(&self, kind: ArchiveKind, places: &[&str]) -> anyhow::Result<BackupManifest> {
        let manifest = self.read(|entry, _| {
            let place = entry.path.split_once('/').map(|(place, _)| place);
            let is_known = place.is_some_and(|place| places.contains(&place));
            ensure!(is_known, "it has a file for no place of a box: {:?}", entry.path);
            Ok(())
        })?;
        let is_right = manifest.kind == kind;
        ensure!(
            is_right,
            "{} is the other file of a backup: FILE has the box, --keys its private keys",
            self.path.display()
        );
        Ok(manifest)
    }
}
