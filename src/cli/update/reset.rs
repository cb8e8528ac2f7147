//! `ledge update reset-trust`: by the daemon when one has the update store, else in the folder.

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
    if args.url.is_none() && in_folder(&config.updates.path)? {
        // Done is done; that it is not in the audit log is an error all the same.
        daemon::record_alone(&config, AuditEvent::TrustReset)?;
    } else {
        post(globals, args, "/updates/trust/reset", &json!({}))?;
    }
    if args.json {
        writeln!(out, "{}", json!({ "reset": true }))?;
    } else {
        writeln!(out, "What was trusted is set aside. The next look at the platform begins with the root file.")?;
    }
    Ok(Exit::Success)
}

/// Does it in the update store; `false` when a daemon has that.
fn in_folder(folder: &Path) -> anyhow::Result<bool> {
    if !folder.is_dir() {
        bail!("there is no update store at {}: nothing is trusted yet", folder.display());
    }
    as_owner_of(folder)?;
    // Held to the end, so that no daemon opens what is being taken away.
    let _store = match BlobStore::open(folder) {
        Err(StoreError::Locked { .. }) => return Ok(false),
        opened => opened?,
    };
    Trust::reset(folder)?;
    Ok(true)
}

/// Begins anew as the owner of `folder`, where root runs this: what root leaves in the update store and in the audit log the
/// daemon could not write on.
fn as_owner_of(folder: &Path) -> anyhow::Result<()> {
    let owner = std::fs::metadata(folder)?;
    if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let program = std::env::current_exe().context("this program cannot be found again")?;
    let mut again = Command::new(program);
    // Never twice: the new process is not root.
    let error = again.args(std::env::args_os().skip(1)).uid(owner.uid()).gid(owner.gid()).exec();
    Err(error).with_context(|| format!("this program cannot run as the owner of {}", folder.display()))
}
