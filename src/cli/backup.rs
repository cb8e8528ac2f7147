//! `ledge backup`: a whole box in one file, and its private keys in another.
//!
//! Files of `backup/`, in reading order:
//! * `archive.rs` - the form of a backup, written and read
//! * `contents.rs` - the files of a box, and which of them are secret
//! * `output.rs` - the file that is written, perhaps encrypted
//! * `locks.rs` - a box whose service is stopped

pub mod archive;
pub(in crate::cli) mod contents;
pub(in crate::cli) mod locks;
mod output;

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use ledge_audit::key::AuditKey;
use ledge_audit::layout::{self, CHECKPOINT};
use ledge_base::clock;
use ledge_base::secret::SecretFile;
use ledge_features::backup_cipher::BackupRecipient;
use ledge_identity::device;
use ledge_identity::sealing::Sealer;
use ledge_membership::folder::opened;
use ledge_part::check::size;
use serde_json::Value as Json;

use super::features::backup::{bytes_bar, recipient};
use super::features::daemon::DaemonClient;
use super::server::CredentialArgs;
use super::{Exit, GlobalArgs, Output, block_on};
use crate::config::Config;
use crate::daemon::formats;
use archive::{ArchiveKind, ArchiveWriter, BackupManifest, FORMAT_VERSION, FileFacts};
use contents::{BoxContents, BoxFolders, CREDENTIALS, FEATURES, FeatureForm, SourceFile};
use locks::StoreLocks;
use output::BackupFile;

/// The file in a state folder that a restore has not completed.
pub(in crate::cli) const RESTORING_MARK: &str = ".restoring";

/// The size of the pieces in which a backup has the feature store, in bytes.
const FEATURE_PIECE_BYTES: usize = 4 << 20;

/// The mode of a piece, and of a credential.
const PRIVATE_MODE: u32 = 0o600;

/// The arguments of `ledge backup`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BackupArgs {
    /// The file to write. It must not exist.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write the private keys of this box into a second file, which is always encrypted.
    ///
    /// With it a restored box has the identity of this one; without it, a new one.
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// The age recipient to encrypt both files to; its identity restores them.
    #[arg(long, value_name = "age1…")]
    pub to: Option<String>,
    /// The file with the passphrase to encrypt both files with.
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    pub passphrase_file: Option<PathBuf>,
    /// Do not encrypt FILE, although the stores of this box are encrypted, or the keys are.
    #[arg(long)]
    pub plain: bool,
    #[command(flatten)]
    pub credentials: CredentialArgs,
}

const EXAMPLES: &str = "\
Examples:
  sudo ledge backup /mnt/nas/till-7.ledge
  sudo ledge backup /mnt/nas/till-7.ledge --keys /mnt/safe/till-7.keys.age --to age1…
  sudo ledge backup till-7.ledge --keys till-7.keys.age --passphrase-file passphrase";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &BackupArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    let folders = BoxFolders::of(globals)?;
    let to = recipient(args.to.as_deref(), args.passphrase_file.as_deref())?;
    ensure!(
        args.keys.is_none() || to.is_some(),
        "private keys are written only encrypted: add --to age1… or --passphrase-file FILE"
    );
    ensure!(
        to.is_some() || args.plain || config.encryption.master_key_file.is_none(),
        "the stores of this box are encrypted: add --to age1… or --passphrase-file FILE, or --plain for a backup that \
         everybody who has the file can read"
    );
    for file in [Some(&args.file), args.keys.as_ref()].into_iter().flatten() {
        ensure!(file.symlink_metadata().is_err(), "{} exists already: choose another name", file.display());
        refuse_inside(file, &folders)?;
    }

    let locks = StoreLocks::take(&config)?;
    let (daemon, form) = match &locks {
        None => (Some(DaemonClient::at(args.credentials.own_daemon(globals)?)), FeatureForm::FromDaemon),
        Some(_) => (None, FeatureForm::Files),
    };
    let mut contents = BoxContents::of(&config, &folders, form)?;
    let backup = BoxBackup { config: &config, contents: &mut contents, created_ms: clock::FLOOR.now_millis() };
    let written = backup.write(args, to.as_ref(), daemon)?;
    drop(locks);

    writeln!(out, "{}: {} files, {}{}", args.file.display(), written.files, size(written.bytes), shown(&args.file)?)?;
    if let Some(keys) = &args.keys {
        writeln!(out, "{}: the private keys, encrypted", keys.display())?;
    } else {
        writeln!(
            out,
            "the private keys are not in it: a box that is restored from it has a new identity (--keys FILE saves them)"
        )?;
    }
    for left_out in &contents.left_out {
        writeln!(out, "not in the backup: {left_out}")?;
    }
    Ok(Exit::Success)
}

/// Says of an encrypted file that it is.
fn shown(file: &Path) -> anyhow::Result<&'static str> {
    let mut begin = std::io::BufReader::new(File::open(file)?);
    Ok(if ledge_features::backup_form::is_encrypted(&mut begin)? { ", encrypted" } else { "" })
}

/// The size of a backup.
struct WrittenBackup {
    files: usize,
    bytes: u64,
}

struct BoxBackup<'a, 'b> {
    config: &'a Config,
    contents: &'b mut BoxContents<'a>,
    created_ms: u64,
}

impl BoxBackup<'_, '_> {
    fn write(
        mut self,
        args: &BackupArgs,
        to: Option<&BackupRecipient>,
        daemon: Option<DaemonClient>,
    ) -> anyhow::Result<WrittenBackup> {
        let mut manifest = self.manifest()?;
        let sealer = if args.keys.is_some() { self.membership_sealer()? } else { Sealer::none() };
        let created_s = self.created_ms / 1000;
        let of_main = to.filter(|_| !args.plain);
        let (main, output) = BackupFile::create(&args.file, of_main)?;
        let mut writer = ArchiveWriter::new(output, created_s)?;
        let mut secrets = Vec::new();
        let mut done = WrittenBackup { files: 0, bytes: 0 };

        if let Some(daemon) = daemon {
            manifest.has_feature_backup = add_features(daemon, &mut writer, self.created_ms)?;
        }
        let states = self.update_states()?;
        for file in self.contents.files()? {
            if file.is_secret {
                secrets.push(file);
            } else {
                self.add(&file, &mut writer, &mut done)?;
            }
        }
        ensure!(
            states == self.update_states()?,
            "an update changed its state while the backup was taken: take the backup again"
        );
        self.add_audit_log(&mut writer, &mut done)?;

        manifest.left_out.clone_from(&self.contents.left_out);
        main.keep(writer.finish(manifest.clone())?)?;

        if let Some(keys) = &args.keys {
            let (file, output) = BackupFile::create(keys, to)?;
            let mut writer = ArchiveWriter::new(output, created_s)?;
            for secret in &secrets {
                self.add_secret(secret, &sealer, &mut writer)?;
            }
            self.add_credentials(&mut writer)?;
            file.keep(writer.finish(BackupManifest { kind: ArchiveKind::Keys, ..manifest })?)?;
        }
        done.bytes = std::fs::metadata(&args.file)?.len();
        Ok(done)
    }

    fn manifest(&self) -> anyhow::Result<BackupManifest> {
        let Config { state, device, audit, encryption, membership, .. } = self.config;
        let device = device::load(&state.path, device)?;
        let sealer = Sealer::load(encryption);
        let audit_key = device
            .as_ref()
            .zip(sealer.ok())
            .and_then(|(device, sealer)| AuditKey::verifier_key_in(&audit.path, &device.id, &sealer).ok().flatten());
        let platform = membership.folder().ok().and_then(|folder| folder.membership().ok().flatten());
        let random = || getrandom::u64().context("the system returned no random numbers");
        Ok(BackupManifest {
            format: FORMAT_VERSION,
            kind: ArchiveKind::Box,
            pair: format!("{:016x}{:016x}", random()?, random()?),
            ledge: env!("CARGO_PKG_VERSION").to_owned(),
            device: device.map(|device| device.id.to_string()).unwrap_or_default(),
            created: clock::rfc3339(self.created_ms),
            formats: formats::content(),
            audit_key,
            platform: platform.map(|membership| membership.platform),
            has_feature_backup: false,
            left_out: Vec::new(),
            entries: Vec::new(),
        })
    }

    /// The key of the membership's private keys, which must open.
    fn membership_sealer(&self) -> anyhow::Result<Sealer> {
        let sealer = self.config.membership.sealer();
        sealer.context(
            "the private keys of the membership cannot be opened: start the service, and take the backup as root, or \
             leave out --keys",
        )
    }

    /// The files with the states of updates.
    fn update_states(&self) -> anyhow::Result<Vec<Option<Vec<u8>>>> {
        let state = |name: &str| match std::fs::read(self.config.updates.path.join(name)) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        };
        ["state.0.json", "state.1.json"].into_iter().map(state).collect()
    }

    fn add_audit_log(&mut self, writer: &mut BoxWriter, done: &mut WrittenBackup) -> anyhow::Result<()> {
        for generation in self.contents.logs()? {
            let head = layout::log_folder(&self.config.audit.path, generation).join(CHECKPOINT);
            let read = File::open(&head).and_then(|mut file| {
                let (facts, mut content) = (self.contents.facts(&file.metadata()?), Vec::new());
                file.read_to_end(&mut content)?;
                Ok((facts, content))
            });
            let head = match read {
                Ok(head) => Some(head),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error).with_context(|| head.display().to_string()),
            };
            // The list comes after the head, so it has every record under it.
            let files = self.contents.log_files(generation)?;
            if let (Some((facts, content)), Some(first)) = (head, files.first()) {
                let log = first.entry.split("/tile/").next().unwrap_or_default();
                writer.add(&format!("{log}/{CHECKPOINT}"), facts, content.len() as u64, content.as_slice())?;
                done.files += 1;
            }
            for file in &files {
                self.add(file, writer, done)?;
            }
        }
        Ok(())
    }

    /// Adds a file as long as it is now. A file that vanished since it was listed is left out: its owner removed it.
    fn add(&mut self, file: &SourceFile, writer: &mut BoxWriter, done: &mut WrittenBackup) -> anyhow::Result<()> {
        let content = match File::open(&file.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened.with_context(|| file.path.display().to_string())?,
        };
        let facts = content.metadata()?;
        let added = writer.add(&file.entry, self.contents.facts(&facts), facts.size(), content);
        added.with_context(|| file.path.display().to_string())?;
        done.files += 1;
        Ok(())
    }

    /// Adds a file with a private key, in a form that opens on another machine.
    fn add_secret(&self, file: &SourceFile, sealer: &Sealer, writer: &mut BoxWriter) -> anyhow::Result<()> {
        let facts = match std::fs::metadata(&file.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            facts => self.contents.facts(&facts.with_context(|| file.path.display().to_string())?),
        };
        let content = zeroize::Zeroizing::new(std::fs::read(&file.path)?);
        let content = if file.of_membership {
            opened(sealer, content.to_vec()).with_context(|| file.path.display().to_string())?
        } else {
            content
        };
        writer.add(&file.entry, facts, content.len() as u64, content.as_slice())
    }

    /// Adds the credentials that systemd holds for the service.
    fn add_credentials(&mut self, writer: &mut BoxWriter) -> anyhow::Result<()> {
        let facts = FileFacts { mode: PRIVATE_MODE, of_service: true, modified_s: self.created_ms / 1000 };
        for name in std::mem::take(&mut self.contents.credentials) {
            let content = SecretFile::Credential(name.clone()).read().context(
                "the credentials of the service can be read while it runs: start it, and take the backup as root",
            )?;
            writer.add(&format!("{CREDENTIALS}/{name}"), facts, content.len() as u64, content.as_slice())?;
        }
        Ok(())
    }
}

type BoxWriter = ArchiveWriter<output::BackupStream>;

/// Adds the feature store as the daemon backs it up. `false` where it has none.
fn add_features(mut daemon: DaemonClient, writer: &mut BoxWriter, created_ms: u64) -> anyhow::Result<bool> {
    block_on(async {
        let status: Json = daemon.get("/features/status").await.context(
            "the service runs and does not answer, so its feature store cannot be backed up: stop the service, or wait",
        )?;
        if status.get("state").and_then(Json::as_str) == Some("disabled") {
            return Ok(false);
        }
        let facts = FileFacts { mode: PRIVATE_MODE, of_service: true, modified_s: created_ms / 1000 };
        let mut download = daemon.download("/features/backup?plain=true").await?;
        let bar = bytes_bar(None);
        let (mut waiting, mut number) = (Vec::with_capacity(FEATURE_PIECE_BYTES), 0_u32);
        let mut add = |piece: &[u8]| {
            let entry = format!("{FEATURES}/{number:08}");
            number += 1;
            writer.add(&entry, facts, piece.len() as u64, piece)
        };
        while let Some(piece) = download.next().await? {
            bar.inc(piece.len() as u64);
            waiting.extend_from_slice(&piece);
            while waiting.len() >= FEATURE_PIECE_BYTES {
                let rest = waiting.split_off(FEATURE_PIECE_BYTES);
                add(&waiting)?;
                waiting = rest;
            }
        }
        add(&waiting)?;
        bar.finish_and_clear();
        Ok(true)
    })?
}

/// Refuses a path that is the folder of the box, or in it: the backup would be lost with the disk, and contain itself.
fn refuse_inside(file: &Path, folders: &BoxFolders) -> anyhow::Result<()> {
    let at = std::path::absolute(file)?;
    let folder = at.parent().unwrap_or(Path::new("/"));
    let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
    if [Some(&folders.state), folders.settings.as_ref()].into_iter().flatten().any(|own| folder.starts_with(own)) {
        bail!("{} is in a folder of this box: write the backup to another place", file.display());
    }
    Ok(())
}
