//! The logs that a verb reads, and the keys to verify them with.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use ledge_audit::files::{AuditLogFiles, HttpAuditLog};
use ledge_audit::verify::{LogToVerify, VerifyScope};
use ledge_base::secret::SecretFile;
use ledge_egress::{TlsClientFiles, WebAddress};

use super::super::GlobalArgs;
use crate::own_audit_logs;
pub use crate::own_audit_logs::own_key;

/// The options that select a log.
#[derive(Debug, Clone, Default, Args)]
pub struct AuditLogArgs {
    /// The log: a folder with a copy of it, or its address (https://… or http://…) [default: this box's own].
    ///
    /// A folder with a checkpoint is one log. Otherwise it contains all logs of a box, in 1/, 2/ and so on.
    #[arg(value_name = "LOG")]
    pub log: Option<String>,
    /// The verifier key, or a file with it. Can be repeated [default for this box's own logs: its key].
    #[arg(long, value_name = "KEY|FILE")]
    pub key: Vec<String>,
    /// The certificate authorities to trust for an https:// server, as PEM [default: those that this machine trusts].
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The client certificate to present to the server.
    #[arg(long, value_name = "FILE", requires = "key_file")]
    pub certificate_file: Option<PathBuf>,
    /// The private key of the client certificate.
    #[arg(long, value_name = "FILE", requires = "certificate_file")]
    pub key_file: Option<PathBuf>,
}

/// The selected logs.
pub struct SelectedLogs {
    /// The logs, the oldest first. Never empty.
    pub places: Vec<LogToVerify>,
    /// One log, or all logs of a box.
    pub scope: VerifyScope,
    /// The source of the keys, in words.
    pub key_from: String,
}

impl SelectedLogs {
    /// The log with this generation, or the last one.
    pub fn select(&self, generation: Option<u32>) -> anyhow::Result<&LogToVerify> {
        if generation.is_none() {
            return self.places.last().context("there is no audit log");
        }
        let mut places = self.places.iter();
        places.find(|place| place.generation == generation).context("there is no log with the number of --generation")
    }
}

impl AuditLogArgs {
    /// The selected logs with their verifier keys; by default those of this box with its own key.
    pub async fn find(&self, globals: &GlobalArgs) -> anyhow::Result<SelectedLogs> {
        let mut found = self.find_files(globals).await?;
        if !self.key.is_empty() {
            let keys = self.key.iter().map(|key| verifier_key(key)).collect::<anyhow::Result<Vec<_>>>()?;
            found.places.iter_mut().for_each(|place| place.keys.clone_from(&keys));
            "the key that was given".clone_into(&mut found.key_from);
        } else if found.places.iter().any(|place| place.keys.is_empty()) {
            bail!(
                "--key is required: only a check with the box's own key proves anything. Run `ledge audit key` on the \
                 box; the platform may have stored the key when the box was set up"
            );
        }
        Ok(found)
    }

    /// The selected logs without verifier keys, for verbs that only read.
    pub async fn find_files(&self, globals: &GlobalArgs) -> anyhow::Result<SelectedLogs> {
        let (copy, scope) = match &self.log {
            None => return own_logs(globals),
            Some(log) if log.starts_with("http://") || log.starts_with("https://") => {
                let address: WebAddress = log.parse()?;
                generations(&AuditLogFiles::Web(HttpAuditLog::new(address, self.tls().settings()))).await?
            }
            Some(folder) => generations(&AuditLogFiles::Folder(folder.into())).await?,
        };
        let places = copy.into_iter().map(|(generation, files)| LogToVerify { files, generation, keys: Vec::new() });
        Ok(SelectedLogs { places: places.collect(), scope, key_from: String::new() })
    }

    fn tls(&self) -> TlsClientFiles {
        let file = |path: &Option<PathBuf>| path.clone().map(SecretFile::Path);
        TlsClientFiles {
            ca_file: file(&self.ca_file),
            certificate_file: file(&self.certificate_file),
            key_file: file(&self.key_file),
        }
    }
}

/// A verifier key, from the argument itself or from the file that it names.
pub fn verifier_key(text: &str) -> anyhow::Result<String> {
    let is_key = |text: &str| text.matches('+').count() >= 2 && !text.contains(char::is_whitespace);
    if is_key(text) {
        return Ok(text.to_owned());
    }
    let content = std::fs::read_to_string(text)
        .with_context(|| format!("{text} is neither a verifier key nor a readable file"))?;
    let key = content.trim();
    anyhow::ensure!(
        is_key(key),
        "{text} contains no verifier key: expected NAME+ID+KEY, as `ledge audit key` prints it"
    );
    Ok(key.to_owned())
}

/// The most logs in a row that may be missing before the search for later ones ends.
const MISSING_LOGS_MAX: usize = 8;

/// The logs of a folder or address: itself, if it is a log, or those of a box in `1`, `2` and so on.
async fn generations(place: &AuditLogFiles) -> anyhow::Result<(Vec<(Option<u32>, AuditLogFiles)>, VerifyScope)> {
    if place.checkpoint().await?.is_some() {
        return Ok((vec![(None, place.clone())], VerifyScope::One));
    }
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for generation in 1.. {
        let files = place.below(&generation.to_string());
        let is_there = files.checkpoint().await?.is_some();
        missing.push((Some(generation), files));
        if is_there {
            // A log that is missing between others is a gap, not the end.
            found.append(&mut missing);
        } else if missing.len() > MISSING_LOGS_MAX {
            break;
        }
    }
    if found.is_empty() {
        bail!("{place} holds no audit log: expected a checkpoint in it, or in 1/ below it");
    }
    Ok((found, VerifyScope::All))
}

/// The logs of this box.
fn own_logs(globals: &GlobalArgs) -> anyhow::Result<SelectedLogs> {
    let places = own_audit_logs::own_logs(&globals.load_config()?)?;
    Ok(SelectedLogs { places, scope: VerifyScope::All, key_from: "this box's own key".to_owned() })
}
