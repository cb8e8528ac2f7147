//! Data that `[retention]` should have removed.

use ledge_inbox::retention::count_processed_before;
use ledge_part::check::Finding;

use crate::config::Config;

/// The name of the finding.
const NAME: &str = "retention";

/// Retention is enforced once a day, and after a start when the clock was steady for an hour.
const GRACE_MS: u64 = 2 * 86_400_000;

/// The finding; `None` where `[retention]` ends nothing on this box.
pub fn check(config: &Config, now_ms: u64) -> Option<Finding> {
    let limit_ms = config.retention.inbox_limit_ms(now_ms).filter(|_| !config.inbox.0.is_empty())?;
    let days = config.retention.inbox_days;
    let late = |inbox| count_processed_before(inbox, limit_ms.saturating_sub(GRACE_MS));
    let late: usize = config.inbox.0.iter().map(late).sum();
    Some(if late == 0 {
        Finding::ok(NAME, format!("files of inboxes are removed after {days} days"))
    } else {
        Finding::warn(
            NAME,
            format!("{late} files of inboxes are older than retention.inbox_days ({days}), and still there"),
            "check that the server runs, and that it may remove files in the folders inbox.done and inbox.failed; the \
             log says why a file could not be removed (retention.failed)",
        )
    })
}
