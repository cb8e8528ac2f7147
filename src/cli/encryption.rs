//! `ledge encryption`: master keys, and the data that each one encrypts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use ledge_audit as audit;
use ledge_base::durable;
use ledge_base::secret::SecretFile;
use ledge_features as features;
use ledge_identity::sealing::{self, MASTER_KEY_BYTES, MasterKeyCounts, MasterKeyId, Sealer};
use ledge_updates::store;
use zeroize::Zeroizing;

use super::{Exit, GlobalArgs, Output};
use crate::config::Config;

/// The arguments of `ledge encryption`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct EncryptionArgs {
    #[command(subcommand)]
    pub command: EncryptionCommand,
}

/// The verbs below `ledge encryption`.
#[derive(Debug, Subcommand)]
pub enum EncryptionCommand {
    /// Show what is encrypted with which master key, and what is plain. Changes nothing; the server may run.
    ///
    /// The exit code is 1 while anything is plain, damaged, encrypted with an old key, or with one that is not here.
    Status,
    /// Write a new master key to a new file that only its owner may read.
    MakeKey(MakeMasterKeyArgs),
    /// Put a new master key before the old one in encryption.master_key_file.
    ///
    /// Then send SIGHUP to the server (systemctl reload ledge): it encrypts everything with the new key while it
    /// serves. When `ledge encryption status` reports that nothing needs the old key any more, remove it from the file
    /// with `ledge encryption retire`.
    Rotate,
    /// Remove the old master keys from encryption.master_key_file, once nothing needs them.
    Retire,
}

/// The arguments of `ledge encryption make-key`.
#[derive(Debug, Args)]
pub struct MakeMasterKeyArgs {
    /// The file to write, which must not exist.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  ledge encryption make-key /etc/ledge/master.key
  systemd-creds encrypt --name=ledge-master master.key /etc/credstore.encrypted/ledge-master
  ledge encryption status
  ledge encryption rotate && systemctl reload ledge

Keep a copy of the master key off this box. Without the key, the encrypted data is lost.";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &EncryptionArgs, out: &mut Output) -> anyhow::Result<Exit> {
    match &args.command {
        EncryptionCommand::Status => status(&globals.load_config()?, out),
        EncryptionCommand::MakeKey(args) => make_key(&args.file, out),
        EncryptionCommand::Rotate => rotate(&globals.load_config()?, out),
        EncryptionCommand::Retire => retire(&globals.load_config()?, out),
    }
}

/// The data of one part of this box, counted by master key.
struct PartSurvey {
    part: &'static str,
    keys: BTreeMap<Option<MasterKeyId>, u64>,
    damaged: u64,
}

impl PartSurvey {
    /// Writes a line for each key, with the `state` of the data under it; the key `None` is plain data.
    fn write_to(&self, out: &mut Output, state: impl Fn(Option<MasterKeyId>) -> String) -> io::Result<()> {
        let Self { part, keys, damaged } = self;
        if keys.is_empty() && *damaged == 0 {
            writeln!(out, "{part}: none")?;
        }
        for (key, count) in keys {
            writeln!(out, "{part}: {count} {}", state(*key))?;
        }
        if *damaged > 0 {
            writeln!(out, "{part}: {damaged} damaged: a part of the file is missing")?;
        }
        Ok(())
    }
}

/// The encrypted data of this box, by part.
fn surveys(config: &Config) -> anyhow::Result<Vec<PartSurvey>> {
    let audit = audit::sealed::survey(&config.audit.path)?;
    let models = store::survey(&config.updates.path)?;
    let features = features::encryption::survey(&config.features.path)?;
    let survey = |part, MasterKeyCounts(keys), damaged| PartSurvey { part, keys, damaged };
    Ok(vec![
        survey("audit keys", audit, 0),
        survey("models of updates", models.keys, models.damaged),
        survey("feature keys", features, 0),
    ])
}

fn status(config: &Config, out: &mut Output) -> anyhow::Result<Exit> {
    let sealer = match Sealer::load(&config.encryption) {
        Ok(sealer) => sealer,
        Err(error) => {
            // The files name the keys that they need, so report those without the keys.
            for survey in surveys(config)? {
                survey.write_to(out, |key| key.map_or("plain".to_owned(), |key| format!("encrypted with {key}")))?;
            }
            return Err(error.into());
        }
    };
    match sealer.current() {
        Some(key) => writeln!(out, "master key {key}")?,
        None => writeln!(out, "no master key is set (encryption.master_key_file): nothing is encrypted")?,
    }
    for old in sealer.ids().iter().skip(1) {
        writeln!(out, "old key    {old}")?;
    }

    let (mut done, mut uses_old) = (true, false);
    for survey in surveys(config)? {
        survey.write_to(out, |key| match key {
            None if !sealer.is_on() => "plain".to_owned(),
            None => "plain; the server encrypts it at its next start or SIGHUP".to_owned(),
            Some(key) if Some(key) == sealer.current() => format!("encrypted with {key}"),
            Some(key) if sealer.ids().contains(&key) => format!("encrypted with {key}, an old key"),
            Some(key) => {
                format!(
                    "encrypted with {key}, WHICH IS MISSING: add the file with this key to encryption.old_key_files"
                )
            }
        })?;
        let keys = &survey.keys;
        done &= survey.damaged == 0 && keys.keys().all(|key| *key == sealer.current());
        uses_old |= keys.keys().flatten().any(|key| Some(*key) != sealer.current());
    }
    if sealer.ids().len() > 1 && !uses_old {
        writeln!(
            out,
            "Nothing needs the old keys any more: run `ledge encryption retire`, or empty encryption.old_key_files."
        )?;
    }
    Ok(if done { Exit::Success } else { Exit::Failure })
}

fn make_key(file: &Path, out: &mut Output) -> anyhow::Result<Exit> {
    if file.symlink_metadata().is_ok() {
        bail!("{} exists already, and data may be encrypted with the key in it: choose another name", file.display());
    }
    let key = random_key()?;
    durable::create_private(file, hex_lines(&[*key]).as_bytes())
        .with_context(|| format!("{} cannot be written", file.display()))?;
    writeln!(out, "The master key {} is in {}. Keep a copy of it off this box.", key_id(&key)?, file.display())?;
    Ok(Exit::Success)
}

fn rotate(config: &Config, out: &mut Output) -> anyhow::Result<Exit> {
    let MasterKeyFile { path, keys: known, .. } = &MasterKeyFile::read(config)?;
    let key = random_key()?;
    let mut keys = Zeroizing::new(Vec::with_capacity(known.len() + 1));
    keys.push(*key);
    keys.extend(known.iter());
    write_keys(path, &keys)?;
    writeln!(
        out,
        "The master key {} is in {}, before the old one. Now run `systemctl reload ledge`, or send SIGHUP to the \
         server. Keep a copy of the file off this box.",
        key_id(&key)?,
        path.display()
    )?;
    Ok(Exit::Success)
}

fn retire(config: &Config, out: &mut Output) -> anyhow::Result<Exit> {
    let MasterKeyFile { path, keys: known, .. } = &MasterKeyFile::read(config)?;
    let Some((current, old)) = known.split_first() else { bail!("{} contains no key", path.display()) };
    let (current_id, old_ids) = (key_id(current)?, old.iter().map(key_id).collect::<anyhow::Result<Vec<_>>>()?);

    for PartSurvey { part, keys, .. } in surveys(config)? {
        for (key, count) in keys.into_iter().filter_map(|(key, count)| Some((key?, count))) {
            if old_ids.contains(&key) {
                bail!(
                    "cannot retire the key {key}: {count} of the {part} are still encrypted with it; the server \
                     encrypts them with the new key at its next start or SIGHUP, and a running download when it is \
                     complete"
                );
            }
            if key != current_id {
                writeln!(out, "{part}: {count} encrypted with {key}, which is not in {}", path.display())?;
            }
        }
    }

    if old.is_empty() {
        writeln!(out, "{} contains only the key {current_id}.", path.display())?;
        return Ok(Exit::Success);
    }
    write_keys(path, &[*current])?;
    writeln!(out, "{} now contains only the key {current_id}; old keys removed: {}.", path.display(), old.len())?;
    writeln!(out, "A running server keeps the old keys in memory until it stops.")?;
    Ok(Exit::Success)
}

/// The file of encryption.master_key_file, and the keys in it. Holds a lock, so that no other process changes them.
struct MasterKeyFile {
    /// The path with all links resolved: replacing a link by a file would leave the key in two files.
    path: PathBuf,
    keys: Zeroizing<Vec<[u8; MASTER_KEY_BYTES]>>,
    _lock: File,
}

impl MasterKeyFile {
    fn read(config: &Config) -> anyhow::Result<Self> {
        let file = match &config.encryption.master_key_file {
            None => bail!(
                "no master key is set: write one with `ledge encryption make-key FILE`, and set \
                 encryption.master_key_file"
            ),
            Some(SecretFile::Credential(name)) => bail!(
                "the master key is the credential {name}, which Ledge cannot change: put a new key of 64 hexadecimal \
                 digits on a line before the old one, encrypt the file with systemd-creds, and restart the service"
            ),
            Some(SecretFile::Path(path)) => path,
        };
        let unreadable = || format!("{} cannot be read", SecretFile::Path(file.clone()));
        let path = file.canonicalize().with_context(unreadable)?;
        // Lock the folder, not the file, because a write replaces the file.
        let lock = File::open(path.parent().unwrap_or(&path)).with_context(unreadable)?;
        lock.lock().with_context(unreadable)?;
        let file = SecretFile::Path(path.clone());
        let keys = sealing::parse(&file.read()?).ok_or(sealing::MasterKeyError::Malformed { file })?;
        Ok(Self { path, keys, _lock: lock })
    }
}

fn write_keys(path: &Path, keys: &[[u8; MASTER_KEY_BYTES]]) -> anyhow::Result<()> {
    durable::replace_alike(path, hex_lines(keys).as_bytes())
        .with_context(|| format!("{} cannot be written", path.display()))
}

fn random_key() -> anyhow::Result<Zeroizing<[u8; MASTER_KEY_BYTES]>> {
    let mut key = Zeroizing::new([0; MASTER_KEY_BYTES]);
    getrandom::fill(key.as_mut_slice()).map_err(io::Error::from).context("the system returned no random numbers")?;
    Ok(key)
}

/// The content of a key file: one key in hexadecimal digits per line.
fn hex_lines(keys: &[[u8; MASTER_KEY_BYTES]]) -> Zeroizing<String> {
    // Allocate enough at once: a string that grows leaves copies of keys in memory.
    let mut text = Zeroizing::new(String::with_capacity(keys.len() * (2 * MASTER_KEY_BYTES + 1)));
    for key in keys {
        for byte in key {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

fn key_id(key: &[u8; MASTER_KEY_BYTES]) -> anyhow::Result<MasterKeyId> {
    Sealer::with_keys(&[*key]).current().context("the key cannot be used")
}
