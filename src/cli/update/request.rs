//! A request of `ledge update` to the daemon.

use ledge_updates::status_report::UpdatesReport;

use super::super::features::daemon::DaemonClient;
use super::super::{GlobalArgs, block_on};
use super::args::UpdateArgs;

pub(super) fn post(
    globals: &GlobalArgs,
    args: &UpdateArgs,
    path: &str,
    body: &serde_json::Value,
) -> anyhow::Result<UpdatesReport> {
    let mut daemon = DaemonClient::new(globals, &args.server)?;
    block_on(daemon.post(path, body))?
}
