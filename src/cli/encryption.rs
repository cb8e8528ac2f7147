//! `ledge encryption`: master keys, and what is sealed under which.

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
use ledge_identity::sealing::{self, MASTER_KEY_BYTES, MasterKeyId, Sealer, Survey};
use ledge_updates::store;
use zeroize::Zeroizing;

use super::{Exit, Globals, Output};
use crate::config::Config;

/// The arguments of `ledge encryption`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct EncryptionArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: EncryptionCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum EncryptionCommand {
    /// Say what is sealed under which master key, and what is plain. Nothing is changed; a running server is no hindrance.
    ///
    /// The exit code is 1 while anything is plain, damaged, under an old key, or under one that is not here.
    Status,
    /// Write a new master key to a file that is not there yet. Only its owner may read it.
    MakeKey(MakeKeyArgs),
    /// Put a new master key before the old one, in encryption.master_key_file.
    ///
    /// Then tell the server with SIGHUP (systemctl reload ledge): it seals everything anew while it serves. When `ledge
    /// encryption status` says that nothing needs the old key any more, `ledge encryption retire` takes it out of the file.
    Rotate,
    /// Take the old master keys out of encryption.master_key_file, once nothing needs them.
    Retire,
}

/// The arguments of `ledge encryption make-key`.
#[derive(Debug, Args)]
pub struct MakeKeyArgs {
    /// The file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  ledge encryption make-key /etc/ledge/master.key
  systemd-creds encrypt --name=ledge-master master.key /etc/credstore.encrypted/ledge-master
  ledge encryption status
  ledge encryption rotate && systemctl reload ledge

Keep a copy of the master key where this box is not. Without it, what is sealed is lost.";

/// Runs the verb.
pub fn run(globals: &Globals, args: &EncryptionArgs, out: &mut Output) -> anyhow::Result<Exit> {
    match &args.command {
        EncryptionCommand::Status => status(&globals.load_config()?, out),
        EncryptionCommand::MakeKey(args) => make_key(&args.file, out),
        EncryptionCommand::Rotate => rotate(&globals.load_config()?, out),
        EncryptionCommand::Retire => retire(&globals.load_config()?, out),
    }
}

/// What one part of this box holds.
struct Held {
    what: &'static str,
    keys: BTreeMap<Option<MasterKeyId>, u64>,
    damaged: u64,
}

impl Held {
    /// Says so, with how what is under each key, or under none, stands.
    fn tell(&self, out: &mut Output, state: impl Fn(Option<MasterKeyId>) -> String) -> io::Result<()> {
        let Self { what, keys, damaged } = self;
        if keys.is_empty() && *damaged == 0 {
            writeln!(out, "{what}: none")?;
        }
        for (key, count) in keys {
            writeln!(out, "{what}: {count} {}", state(*key))?;
        }
        if *damaged > 0 {
            writeln!(out, "{what}: {damaged} damaged: some of the file is missing")?;
        }
        Ok(())
    }
}

/// What is sealed on this box, by what holds it.
fn surveys(config: &Config) -> anyhow::Result<Vec<Held>> {
    let audit = audit::sealed::survey(&config.audit.path)?;
    let models = store::survey(&config.updates.path)?;
    let features = features::encryption::survey(&config.features.path)?;
    let held = |what, Survey(keys), damaged| Held { what, keys, damaged };
    Ok(vec![
        held("audit keys", audit, 0),
        held("models of updates", models.keys, models.damaged),
        held("feature keys", features, 0),
    ])
}

fn status(config: &Config, out: &mut Output) -> anyhow::Result<Exit> {
    let sealer = match Sealer::load(&config.encryption) {
        Ok(sealer) => sealer,
        Err(error) => {
            // Which keys are needed is in the files.
            for held in surveys(config)? {
                held.tell(out, |key| key.map_or("plain".to_owned(), |key| format!("sealed under {key}")))?;
            }
            return Err(error.into());
        }
    };
    match sealer.current() {
        Some(key) => writeln!(out, "master key {key}")?,
        None => writeln!(out, "no master key is set: nothing is sealed (encryption.master_key_file)")?,
    }
    for old in sealer.ids().iter().skip(1) {
        writeln!(out, "old key    {old}")?;
    }
    let (mut done, mut uses_old) = (true, false);
    for held in surveys(config)? {
        held.tell(out, |key| match key {
            None if !sealer.is_on() => "plain".to_owned(),
            None => "plain; the server seals it at its next start or SIGHUP".to_owned(),
            Some(key) if Some(key) == sealer.current() => format!("sealed under {key}"),
            Some(key) if sealer.ids().contains(&key) => format!("sealed under {key}, an old key"),
            Some(key) => format!("sealed under {key}, WHICH IS NOT HERE: set it in encryption.old_key_files"),
        })?;
        let keys = &held.keys;
        done &= held.damaged == 0 && keys.keys().all(|key| *key == sealer.current());
        uses_old |= keys.keys().flatten().any(|key| Some(*key) != sealer.current());
    }
    if sealer.ids().len() > 1 && !uses_old {
        writeln!(
            out,
            "Nothing needs the old keys any more: `ledge encryption retire`, or empty encryption.old_key_files."
        )?;
    }
    Ok(if done { Exit::Success } else { Exit::Failure })
}

fn make_key(file: &Path, out: &mut Output) -> anyhow::Result<Exit> {
    if file.symlink_metadata().is_ok() {
        bail!("{} is there already, and may be what something is sealed under: choose another name", file.display());
    }
    let key = random()?;
    durable::create_private(file, digits(&[*key]).as_bytes())
        .with_context(|| format!("{} cannot be written", file.display()))?;
    writeln!(out, "The master key {} is in {}. Keep a copy of it elsewhere.", id(&key)?, file.display())?;
    Ok(Exit::Success)
}

fn rotate(config: &Config, out: &mut Output) -> anyhow::Result<Exit> {
    let OwnKeys { path, keys: known, .. } = &OwnKeys::read(config)?;
    let key = random()?;
    let mut keys = Zeroizing::new(Vec::with_capacity(known.len() + 1));
    keys.push(*key);
    keys.extend(known.iter());
    write(path, &keys)?;
    writeln!(
        out,
        "The master key {} is in {}, before the old one. Now tell the server: systemctl reload ledge, or send it SIGHUP. \
         Keep a copy of the file elsewhere.",
        id(&key)?,
        path.display()
    )?;
    Ok(Exit::Success)
}

fn retire(config: &Config, out: &mut Output) -> anyhow::Result<Exit> {
    let OwnKeys { path, keys: known, .. } = &OwnKeys::read(config)?;
    let Some((current, old)) = known.split_first() else { bail!("{} holds no key", path.display()) };
    let (current_id, going) = (id(current)?, old.iter().map(id).collect::<anyhow::Result<Vec<_>>>()?);
    for Held { what, keys, .. } in surveys(config)? {
        for (key, count) in keys.into_iter().filter_map(|(key, count)| Some((key?, count))) {
            if going.contains(&key) {
                bail!(
                    "of the {what} some are sealed under {key} still: the server seals them anew at its next start or \
                     SIGHUP, and what is being fetched when all of it is here"
                );
            }
            if key != current_id {
                writeln!(out, "{what}: {count} sealed under {key}, which is not in {}", path.display())?;
            }
        }
    }
    if old.is_empty() {
        writeln!(out, "{} holds the key {current_id} alone.", path.display())?;
        return Ok(Exit::Success);
    }
    write(path, &[*current])?;
    writeln!(out, "{} holds the key {current_id} alone now; {} went.", path.display(), old.len())?;
    writeln!(out, "A server that runs forgets the old ones when it ends.")?;
    Ok(Exit::Success)
}

/// The file with the master key, and the keys in it. Nobody else changes them as long as this is there.
struct OwnKeys {
    /// Where it lies, behind all links: the key must not get a file of its own beside one.
    path: PathBuf,
    keys: Zeroizing<Vec<[u8; MASTER_KEY_BYTES]>>,
    _alone: File,
}

impl OwnKeys {
    fn read(config: &Config) -> anyhow::Result<Self> {
        let file = match &config.encryption.master_key_file {
            None => bail!(
                "no master key is set: make one with `ledge encryption make-key FILE`, and set encryption.master_key_file"
            ),
            Some(SecretFile::Credential(name)) => bail!(
                "the master key is the credential {name}, which only you can change: put a new key of 64 hexadecimal digits \
                 on a line before the old one, encrypt the file with systemd-creds, and restart the service"
            ),
            Some(SecretFile::Path(path)) => path,
        };
        let unreadable = || format!("{} cannot be read", SecretFile::Path(file.clone()));
        let path = file.canonicalize().with_context(unreadable)?;
        // The folder: the file is replaced by another.
        let alone = File::open(path.parent().unwrap_or(&path)).with_context(unreadable)?;
        alone.lock().with_context(unreadable)?;
        let file = SecretFile::Path(path.clone());
        let keys = sealing::parse(&file.read()?).ok_or(sealing::MasterKeyError::Malformed { file })?;
        Ok(Self { path, keys, _alone: alone })
    }
}

fn write(path: &Path, keys: &[[u8; MASTER_KEY_BYTES]]) -> anyhow::Result<()> {
    durable::replace_alike(path, digits(keys).as_bytes())
        .with_context(|| format!("{} cannot be written", path.display()))
}

fn random() -> anyhow::Result<Zeroizing<[u8; MASTER_KEY_BYTES]>> {
    let mut key = Zeroizing::new([0; MASTER_KEY_BYTES]);
    getrandom::fill(key.as_mut_slice()).map_err(io::Error::from).context("the system has no random numbers")?;
    Ok(key)
}

fn digits(keys: &[[u8; MASTER_KEY_BYTES]]) -> Zeroizing<String> {
    // Enough at once: a text that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(keys.len() * (2 * MASTER_KEY_BYTES + 1)));
    for key in keys {
        for byte in key {
            // A text takes whatever is written to it.
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

fn id(key: &[u8; MASTER_KEY_BYTES]) -> anyhow::Result<MasterKeyId> {
    Sealer::with_keys(&[*key]).current().context("the key cannot be used")
}
