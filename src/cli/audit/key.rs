//! `ledge audit key`: the key with which others verify this box's log.

use std::io::Write as _;

use anyhow::Context as _;

use super::super::{Exit, GlobalArgs, Output};
use super::logs::own_key;

/// Runs the verb.
pub fn run(globals: &GlobalArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    let folder = config.audit.path.display();
    let key = own_key(&config)?
        .with_context(|| format!("there is no audit key in {folder}: the first start of the daemon makes it"))?;
    writeln!(out, "{key}")?;
    // Standard output is only the key, so that it can be redirected to a file.
    let _ = writeln!(
        std::io::stderr(),
        "This is the public half of {folder}/key. Keep it apart from the log: it proves that the log is genuine."
    );
    Ok(Exit::Success)
}
