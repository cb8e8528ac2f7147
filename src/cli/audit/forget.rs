//! `ledge audit forget`: destroys a tag key.

use std::io::Write as _;

use anyhow::bail;
use clap::Args;
use ledge_audit::tags;

use super::super::{Exit, GlobalArgs, Output};

/// The arguments of `ledge audit forget`.
#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// The period of the tag key: the number before the colon in a tag.
    #[arg(value_name = "PERIOD")]
    pub period: u32,
    /// Confirm. The callers and data of the tags of this period can never be identified again.
    #[arg(long)]
    pub yes: bool,
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &ForgetArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let (folder, period) = (globals.load_config()?.audit.path, args.period);
    if !args.yes {
        bail!(
            "this destroys the tag key of the period {period}: the callers and data of its tags can never be \
             identified again, and no copy of the key is kept. The log is not changed and can still be verified. \
             Repeat the command with --yes"
        );
    }
    if !tags::destroy(&folder, period)? {
        bail!("there is no tag key of the period {period} in {}/tags", folder.display());
    }
    writeln!(
        out,
        "The tag key of the period {period} is destroyed. The daemon records this within moments, or at its next \
         start. Flash memory, snapshots and backups may still contain the old bytes."
    )?;
    Ok(Exit::Success)
}
