//! `ledge restore`: a box from a backup.
//!
//! Files of `restore/`, in reading order:
//! * `source.rs` - the files of a backup, opened and checked
//! * `staging.rs` - a folder next to the one that it replaces, until both are exchanged in one step
//! * `identity.rs` - private keys, the membership and the audit log of the restored box

mod identity;
mod source;
mod staging;

use std::collections::HashMap;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use ledge_base::durable;
use ledge_base::secret::SecretFile;
use ledge_base::toml_check::BadConfiguration;
use ledge_features::FeatureStore;
use ledge_features::registry::Registry;
use ledge_identity::sealing::{EncryptionConfig, Sealer};
use ledge_part::check::size;
use ledge_service::audit_event::AuditSink;

use super::backup::archive::BackupManifest;
use super::backup::contents::{BoxFolders, FEATURES, SETTINGS, STATE};
use super::backup::locks::StoreLocks;
use super::features::backup::identity;
use super::{Exit, GlobalArgs, Output, block_on};
use crate::config::Config;
use crate::daemon::formats;
use identity::RestoredKeys;
use ledge_base::principal::Principal;
use source::BackupSource;
use staging::StagedFolder;

/// The pause between two looks at a feature store that opens.
const OPEN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The arguments of `ledge restore`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RestoreArgs {
    /// The backup, as `ledge backup` wrote it.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The file of private keys of the same backup: the box gets the identity of the old one, which must not run any more.
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// The file with the age identity that decrypts both files.
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// The file with the passphrase that decrypts both files.
    #[arg(long, value_name = "FILE", conflicts_with = "identity")]
    pub passphrase_file: Option<PathBuf>,
    /// Replace the state that is here. It stays next to the new one, as NAME.before.
    #[arg(long)]
    pub replace: bool,
    /// Check the backup, and change nothing.
    #[arg(long)]
    pub check: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo ledge restore --check /mnt/nas/till-7.ledge
  sudo ledge restore /mnt/nas/till-7.ledge
  sudo ledge restore till-7.ledge --keys till-7.keys.age --identity key.txt --replace";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &RestoreArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let secret = || identity(args.identity.as_deref(), args.passphrase_file.as_deref());
    let main = BackupSource::new(&args.file, secret()?);
    let manifest = main.check_box()?;
    let checked = |file: &Path| {
        let keys = BackupSource::new(file, secret()?);
        let listed = keys.check_keys(&manifest)?;
        anyhow::Ok((keys, listed))
    };
    let keys = args.keys.as_deref().map(checked).transpose()?;
    refuse_later_formats(&manifest)?;
    show(&manifest, out)?;
    if args.check {
        return Ok(Exit::Success);
    }

    let folders = BoxFolders::of(globals)?;
    // Settings that are here already are replaced, and may be wrong.
    let here = Config::with_root(&folders.state);
    let here = globals.load_section("state").unwrap_or(if folders.is_packaged { Config::packaged() } else { here });
    let Some(locks) = StoreLocks::take(&here)? else {
        bail!("the service runs: stop it first (systemctl stop ledge)");
    };
    let (runtimes, cache) = (folders.real(&here.runtimes.dir)?, folders.real(&here.runtimes.cache)?);
    let is_empty = staging::is_empty(&folders.state, &[&runtimes, &cache])?;
    ensure!(
        is_empty || args.replace,
        "{} has a state already: --replace moves it to {}.before",
        folders.state.display(),
        folders.state.display()
    );

    let bytes: u64 = manifest.entries.iter().map(|entry| entry.length).sum();
    let state = StagedFolder::begin(&folders.state, bytes)?;
    let settings = folders.settings.as_deref().map(|folder| StagedFolder::begin(folder, 0)).transpose()?;
    let mut restore = BoxRestore { globals, folders: &folders, state, settings, keys: RestoredKeys::default() };
    let extracted = restore.extract(&main, &manifest).and_then(|()| match &keys {
        Some((keys, listed)) => restore.extract(keys, listed),
        None => Ok(()),
    });
    let said = match extracted.and_then(|()| restore.complete(&main, &manifest, keys.is_some())) {
        Ok(said) => said,
        Err(error) => {
            restore.discard();
            return Err(error.context("nothing was changed"));
        }
    };
    restore.commit(is_empty, out)?;
    drop(locks);
    for line in said {
        writeln!(out, "{line}")?;
    }
    identity::tell(&manifest, keys.is_some(), out)?;
    Ok(Exit::Success)
}

fn refuse_later_formats(manifest: &BackupManifest) -> anyhow::Result<()> {
    let later = formats::later_stores(&manifest.formats);
    ensure!(
        later.is_empty(),
        "a later version of Ledge ({}) wrote this backup, and this version cannot read its stores ({}): install that \
         version, then restore",
        manifest.ledge,
        later.join(", ")
    );
    Ok(())
}

fn show(manifest: &BackupManifest, out: &mut Output) -> anyhow::Result<()> {
    let bytes = manifest.entries.iter().map(|entry| entry.length).sum();
    let name = if manifest.device.is_empty() { "a box without a name" } else { &manifest.device };
    writeln!(
        out,
        "backup of {name}, taken {} by Ledge {}: {} files, {}",
        manifest.created,
        manifest.ledge,
        manifest.entries.len(),
        size(bytes)
    )?;
    for left_out in &manifest.left_out {
        writeln!(out, "not in the backup: {left_out}")?;
    }
    Ok(())
}

/// A box that is being restored, next to the one that is here.
struct BoxRestore<'a> {
    globals: &'a GlobalArgs,
    folders: &'a BoxFolders,
    state: StagedFolder,
    settings: Option<StagedFolder>,
    keys: RestoredKeys,
}

impl BoxRestore<'_> {
    /// Writes the files into the staged folders, and keeps the keys for other places. Each is checked against the manifest
    /// `listed` once more.
    fn extract(&mut self, source: &BackupSource, listed: &BackupManifest) -> anyhow::Result<()> {
        let owners: HashMap<&str, bool> =
            listed.entries.iter().map(|entry| (entry.path.as_str(), entry.of_service)).collect();
        let again = source.read(|entry, body| {
            let of_service = owners.get(entry.path.as_str()).copied().unwrap_or(true);
            match entry.path.split_once('/') {
                Some((STATE, path)) => self.state.write(path, entry, of_service, body),
                Some((SETTINGS, path)) => match &mut self.settings {
                    Some(settings) => settings.write(path, entry, of_service, body),
                    None => Ok(()),
                },
                // The feature store reads its own files itself.
                Some((kind, name)) => self.keys.take(kind, name, body),
                None => Ok(()),
            }
        })?;
        ensure!(again == *listed, "the backup changed while it was read");
        Ok(())
    }

    /// Makes the staged folders those of the restored box. Returns what to say.
    fn complete(
        &mut self,
        main: &BackupSource,
        manifest: &BackupManifest,
        has_keys: bool,
    ) -> anyhow::Result<Vec<String>> {
        let mut said = Vec::new();
        self.state.take_links(&self.folders.state)?;
        let config = self.staged_config()?;
        // A backup has no empty folders, and the daemon does not start without this one.
        if config.repository.path.starts_with(self.state.path()) {
            durable::create_folder(&config.repository.path)?;
        }
        if manifest.has_feature_backup {
            let records = self.restore_features(main, &config)?;
            said.push(format!("the feature store has {records} records"));
        }
        identity::begin_audit_log(&config, manifest, has_keys, &mut said)?;
        if has_keys {
            self.keys.encrypt_membership(&config, self.folders, &mut said)?;
            self.keys.keep_credentials(self.state.path(), self.folders, &mut said)?;
        }
        // The stores were opened here by root, perhaps.
        self.state.finish(true)?;
        if let Some(settings) = &self.settings {
            settings.finish(false)?;
        }
        Ok(said)
    }

    /// The configuration of the restored box, with its paths in the staged folders.
    fn staged_config(&self) -> anyhow::Result<Config> {
        let mut sources = self.globals.sources();
        sources.root = Some(self.state.path().to_owned());
        if let Some(settings) = &self.settings {
            let name = match &self.globals.config {
                Some(file) => file.file_name().unwrap_or_default().to_owned(),
                None => "ledge.toml".into(),
            };
            let file = settings.path().join(name);
            sources.file = file.is_file().then_some(file);
            if self.folders.is_packaged {
                let views = toml::Value::from(settings.path().join("feature_views.d").display().to_string());
                sources.set.insert(0, format!("features.views={views}"));
            }
        } else if let Some(file) = &self.globals.config {
            let staged = self.state.path().join(file.file_name().unwrap_or_default());
            sources.file = Some(if staged.is_file() { staged } else { file.clone() });
        }
        // A mistake elsewhere prevents the start of the daemon, which says so, and not this command.
        let mut config = sources.load_section("features").map_err(BadConfiguration)?;
        let encryption = sources.load_section("encryption").map_err(BadConfiguration)?.encryption;
        config.encryption = EncryptionConfig {
            master_key_file: encryption.master_key_file.map(|file| self.staged_secret(file)),
            old_key_files: encryption.old_key_files.into_iter().map(|file| self.staged_secret(file)).collect(),
        };
        Ok(config)
    }

    /// The place of a secret before the folders are exchanged.
    fn staged_secret(&self, file: SecretFile) -> SecretFile {
        let moved = |path: &Path| {
            let folders = [
                (Some(&self.folders.state), Some(&self.state)),
                (self.folders.settings.as_ref(), self.settings.as_ref()),
            ];
            folders.into_iter().find_map(|(folder, staged)| Some(staged?.path().join(path.strip_prefix(folder?).ok()?)))
        };
        match &file {
            SecretFile::Path(path) => match moved(path) {
                Some(staged) if staged.is_file() => SecretFile::Path(staged),
                _ => file,
            },
            SecretFile::Credential(name) => match self.keys.credential(name) {
                Some(content) => self.state.scratch(content).map_or(file, SecretFile::Path),
                None => file,
            },
        }
    }

    /// Restores the backup of the feature store in the staged folder. Returns the number of its records.
    fn restore_features(&self, main: &BackupSource, config: &Config) -> anyhow::Result<u64> {
        let is_staged = config.features.path.starts_with(self.state.path());
        ensure!(
            is_staged || staging::is_empty(&config.features.path, &[])?,
            "{} is not empty: move it away",
            config.features.path.display()
        );
        let sealer = Sealer::load(&config.encryption).context(
            "the feature store of this box is encrypted: put its master key in place, or add the file of keys with --keys",
        )?;
        let registry = Registry::load(&config.features.views, &config.features.path).map_err(BadConfiguration)?;
        let sends = |store: &FeatureStore| {
            let mut upload = store.upload()?;
            main.read(|entry, body| {
                if !entry.path.starts_with(&format!("{FEATURES}/")) {
                    return Ok(());
                }
                let mut piece = Vec::new();
                body.read_to_end(&mut piece)?;
                block_on(upload.write(&piece))??;
                Ok(())
            })?;
            anyhow::Ok(upload)
        };
        let store =
            block_on(async { FeatureStore::open(&config.features, registry, AuditSink::to_nowhere(), sealer) })?;
        block_on(store.opened())?;
        let opening = std::time::Instant::now();
        while store.statistics().is_none_or(|store| store.state != "ready") {
            ensure!(opening.elapsed() < Duration::from_mins(1), "the new feature store does not open");
            std::thread::sleep(OPEN_POLL_INTERVAL);
        }
        let restored = sends(&store).and_then(|upload| Ok(block_on(store.restore(upload, Principal::Local))??));
        store.close();
        restored.context("the feature store cannot be restored")
    }

    /// Puts the restored box into effect.
    fn commit(self, is_empty: bool, out: &mut Output) -> anyhow::Result<()> {
        if let Some(settings) = self.settings
            && let Some(before) = settings.exchange()?
        {
            writeln!(out, "the settings before are in {}", before.display())?;
        }
        if let Some(before) = self.state.exchange()? {
            if is_empty {
                staging::remove_empty(&before)?;
            } else {
                writeln!(out, "the state before is in {}", before.display())?;
            }
        }
        self.keys.keep_upgrades(self.folders, self.globals)?;
        writeln!(out, "restored to {}", self.folders.state.display())?;
        Ok(())
    }

    fn discard(self) {
        self.state.discard();
        if let Some(settings) = self.settings {
            settings.discard();
        }
    }
}

/// Reads an entry that is small.
fn small(body: &mut dyn Read) -> anyhow::Result<zeroize::Zeroizing<Vec<u8>>> {
    const SMALL_BYTES_MAX: u64 = 16 << 20;
    let mut content = zeroize::Zeroizing::new(Vec::new());
    body.take(SMALL_BYTES_MAX + 1).read_to_end(&mut content)?;
    ensure!(content.len() as u64 <= SMALL_BYTES_MAX, "a key in it is too large");
    Ok(content)
}
