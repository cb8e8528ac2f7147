//! `ledge encryption`: master keys, and what is sealed under which.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use zeroize::Zeroizing;

use super::{Exit, Globals, Output};
use crate::audit;
use crate::config::Config;
use crate::durable;
use crate::features;
use crate::identity::sealing::{self, KEY, KeyId, Sealer, Survey};
use crate::secret::SecretFile;
use crate::updates::store;

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
    /// The exit code is 1 while anything is plain, under an old key, or under one that is not here.
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

/// What is sealed on this box, by what holds it.
fn surveys(config: &Config) -> anyhow::Result<Vec<(&'static str, Survey)>> {
    let audit = audit::sealed::survey(&config.audit.path)?;
    let models = store::survey(&config.updates.path)?;
    let features = features::sealed::survey(&config.features.path)?;
    Ok(vec![("audit keys", audit), ("models of updates", models), ("feature keys", features)])
}

fn status(config: &Config, out: &mut Output) -> anyhow::Result<Exit> {
    let sealer = Sealer::load(&config.encryption)?;
    match sealer.current() {
        Some(key) => writeln!(out, "master key {key}")?,
        None => writeln!(out, "no master key is set: nothing is sealed (encryption.master_key_file)")?,
    }
    for old in sealer.ids().iter().skip(1) {
        writeln!(out, "old key    {old}")?;
    }
    let (mut done, mut uses_old) = (true, false);
    for (what, Survey(found)) in surveys(config)? {
        if found.is_empty() {
            writeln!(out, "{what}: none")?;
        }
        for (key, count) in found {
            let state = match key {
                None if !sealer.is_on() => "plain".to_owned(),
                None => "plain; the server seals it at its next start or SIGHUP".to_owned(),
                Some(key) if Some(key) == sealer.current() => format!("sealed under {key}"),
                Some(key) if sealer.ids().contains(&key) => format!("sealed under {key}, an old key"),
                Some(key) => format!("sealed under {key}, WHICH IS NOT HERE: set it in encryption.old_key_files"),
            };
            done &= key == sealer.current();
            uses_old |= key.is_some() && key != sealer.current();
            writeln!(out, "{what}: {count} {state}")?;
        }
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
    let (path, known) = own_keys(config)?;
    let key = random()?;
    let mut keys = Zeroizing::new(vec![*key]);
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
    let (path, known) = own_keys(config)?;
    let Some((current, old)) = known.split_first() else { bail!("{} holds no key", path.display()) };
    let current_id = id(current)?;
    for (what, Survey(found)) in surveys(config)? {
        if let Some(key) = found.keys().flatten().find(|key| **key != current_id) {
            bail!(
                "of the {what} some are sealed under {key} still: the server seals them anew at its next start or SIGHUP"
            );
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

/// The file with the master key, and the keys in it.
fn own_keys(config: &Config) -> anyhow::Result<(&Path, Zeroizing<Vec<[u8; KEY]>>)> {
    match &config.encryption.master_key_file {
        None => bail!(
            "no master key is set: make one with `ledge encryption make-key FILE`, and set encryption.master_key_file"
        ),
        Some(SecretFile::Credential(name)) => bail!(
            "the master key is the credential {name}, which only you can change: put a new key of 64 hexadecimal digits on \
             a line before the old one, encrypt the file with systemd-creds, and restart the service"
        ),
        Some(file @ SecretFile::Path(path)) => {
            let malformed = || sealing::MasterKeyError::Malformed { file: file.clone() };
            Ok((path, sealing::parse(&Zeroizing::new(file.read()?)).ok_or_else(malformed)?))
        }
    }
}

fn write(path: &Path, keys: &[[u8; KEY]]) -> anyhow::Result<()> {
    durable::replace_alike(path, digits(keys).as_bytes())
        .with_context(|| format!("{} cannot be written", path.display()))
}

fn random() -> anyhow::Result<Zeroizing<[u8; KEY]>> {
    let mut key = Zeroizing::new([0; KEY]);
    getrandom::fill(key.as_mut_slice()).map_err(io::Error::from).context("the system has no random numbers")?;
    Ok(key)
}

fn digits(keys: &[[u8; KEY]]) -> Zeroizing<String> {
    // Enough at once: a text that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(keys.len() * (2 * KEY + 1)));
    for key in keys {
        for byte in key {
            // A text takes whatever is written to it.
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

fn id(key: &[u8; KEY]) -> anyhow::Result<KeyId> {
    Sealer::with_keys(&[*key]).current().context("the key cannot be used")
}
