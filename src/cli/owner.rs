//! Commands that write into the folders of the daemon's user.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

/// Restarts this program as the owner of `folder`, or of the folder in which it will be, if root runs it: the daemon
/// could neither read nor write files that root creates there.
pub fn restart_as_owner_of(folder: &Path) -> anyhow::Result<()> {
    let existing = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    let owner = std::fs::metadata(existing).with_context(|| existing.display().to_string())?;
    if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let program = std::env::current_exe().context("the path of this program cannot be read")?;
    let mut command = Command::new(program);
    // This happens only once, because the new process is not root.
    let error = command.args(std::env::args_os().skip(1)).uid(owner.uid()).gid(owner.gid()).exec();
    Err(error).with_context(|| format!("this program cannot run as the owner of {}", existing.display()))
}
