//! `ledge audit key`: what others verify this box's log with.

use std::io::Write as _;

use anyhow::Context as _;

use super::super::{Exit, Globals, Output};
use super::place::own_key;

/// Runs the verb.
pub fn run(globals: &Globals, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    let folder = config.audit.path.display();
    let key =
        own_key(&config)?.with_context(|| format!("there is no audit key in {folder}: the first start makes it"))?;
    writeln!(out, "{key}")?;
    // Standard output is the key alone, so that it can go into a file.
    let _ = writeln!(
        std::io::stderr(),
        "This is the public half of {folder}/key. Keep it where the log is not: it is what proves the log."
    );
    Ok(Exit::Success)
}
