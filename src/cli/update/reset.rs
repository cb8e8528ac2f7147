//! `ledge update reset-trust`: by the daemon when one has the update store, else in the folder.

use std::io::Write as _;
use std::path::Path;

use anyhow::bail;
use serde_json::json;

use super::{UpdateArgs, post};
use crate::audit_event::AuditEvent;
use crate::cli::{Exit, Globals, Output};
use crate::daemon;
use crate::updates::store::{BlobStore, StoreError};
use crate::updates::trust::Trust;

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
    // Held to the end, so that no daemon opens what is being taken away.
    let _store = match BlobStore::open(folder) {
        Err(StoreError::Locked { .. }) => return Ok(false),
        opened => opened?,
    };
    Trust::reset(folder)?;
    Ok(true)
}
