//! `ledge update reset-trust`: the daemon resets the trust if it has the update store open, otherwise this process
//! does.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use ledge_service::audit_event::AuditEvent;
use ledge_updates::store::{BlobStore, StoreError};
use ledge_updates::trust::Trust;
use serde_json::json;

use super::{UpdateArgs, post};
use crate::cli::{Exit, Globals, Output};
use crate::daemon;

/// Runs the verb.
pub fn run(globals: &Globals, args: &UpdateArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    if args.url.is_none() && reset_in_folder(&config.updates.path)? {
        // The reset stays even if it cannot be recorded in the audit log, which is an error.
        daemon::record_without_daemon(&config, AuditEvent::TrustReset)?;
    } else {
        post(globals, args, "/updates/trust/reset", &json!({}))?;
    }
    if args.json {
        writeln!(out, "{}", json!({ "reset": true }))?;
    } else {
        writeln!(out, "The trusted metadata is set aside. The next check begins with the root file.")?;
    }
    Ok(Exit::Success)
}

/// Resets the trust in the update store; `false` if a daemon has it open.
fn reset_in_folder(folder: &Path) -> anyhow::Result<bool> {
    if !folder.is_dir() {
        bail!("there is no update store at {}: nothing is trusted yet", folder.display());
    }
    restart_as_owner_of(folder)?;
    // Keep the store open to the end, so that no daemon opens it during the reset.
    let _store = match BlobStore::open(folder) {
        Err(StoreError::Locked { .. }) => return Ok(false),
        opened => opened?,
    };
    Trust::reset(folder)?;
    Ok(true)
}

/// Restarts this program as the owner of `folder` if root runs it: the daemon could not write files that root creates
/// in the update store and the audit log.
fn restart_as_owner_of(folder: &Path) -> anyhow::Result<()> {
    let owner = std::fs::metadata(folder)?;
    if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let program = std::env::current_exe().context("the path of this program cannot be read")?;
    let mut command = Command::new(program);
    // This happens only once, because the new process is not root.
    let error = command.args(std::env::args_os().skip(1)).uid(owner.uid()).gid(owner.gid()).exec();
    Err(error).with_context(|| format!("this program cannot run as the owner of {}", folder.display()))
}
