//! `ledge audit forget`: destroys a key for tags.

use std::io::Write as _;

use anyhow::bail;
use clap::Args;
use ledge_audit::tags;

use super::super::{Exit, Globals, Output};

/// The arguments of `ledge audit forget`.
#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// The period: what stands before the colon in a tag.
    #[arg(value_name = "PERIOD")]
    pub period: u32,
    /// Do it. What the tags of the period stand for can never be told again.
    #[arg(long)]
    pub yes: bool,
}

/// Runs the verb.
pub fn run(globals: &Globals, args: &ForgetArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let (folder, period) = (globals.load_config()?.audit.path, args.period);
    if !args.yes {
        bail!(
            "this destroys the key of the period {period}: nobody can ever tell again what its tags stand for, and no copy of \
             the key is kept. The log stays as it is and can still be verified. Repeat it with --yes"
        );
    }
    if !tags::destroy(&folder, period)? {
        bail!("there is no key for the period {period} in {}/tags", folder.display());
    }
    writeln!(
        out,
        "The key of the period {period} is destroyed. The daemon records that within moments, or with its next start. Flash \
         memory, snapshots and backups may still have the old bytes."
    )?;
    Ok(Exit::Success)
}
