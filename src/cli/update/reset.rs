//! `ledge update reset-trust`: the daemon resets the trust if it has the update store open, otherwise this process
//! does.

use std::io::Write as _;
use std::path::Path;

use anyhow::bail;
use ledge_service::audit_event::AuditEvent;
use ledge_updates::store::{StoreError, UpdateStore};
use ledge_updates::trust::TrustedMetadata;
use serde_json::json;

use super::UpdateArgs;
use super::request::post;
use crate::cli::owner::restart_as_owner_of;
use crate::cli::{Exit, GlobalArgs, Output};
use crate::daemon;

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &UpdateArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    if args.server.url.is_none() && reset_in_folder(&config.updates.path)? {
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
    let _store = match UpdateStore::open(folder) {
        Err(StoreError::Locked { .. }) => return Ok(false),
        opened => opened?,
    };
    TrustedMetadata::reset(folder)?;
    Ok(true)
}
