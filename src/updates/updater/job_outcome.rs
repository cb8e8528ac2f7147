//! The outcome of a job.

use std::sync::Arc;
use std::time::Duration;

use ledge_models::repository::LoadedModel;

use crate::gates::PaceJudgement;
use crate::package::Package;
use crate::state::RollbackReason;

/// The result of a job.
pub(super) enum UpdateJobOutcome {
    /// The release's signed description was read.
    Described {
        digest: String,
        package: Box<Package>,
    },
    /// It is loaded next to the live version.
    Loaded(Arc<LoadedModel>),
    Passed,
    /// The pace of a version that sees requests was measured.
    Paced(PaceJudgement),
    /// It failed, and would fail again.
    Failed(RollbackReason),
    /// It failed, and may succeed the next time. The attempt counts.
    Interrupted(RollbackReason),
    /// It cannot be done now, for a reason outside of this box or its release. The attempt does not count.
    Deferred {
        reason: RollbackReason,
        /// The time after which the server wants to be asked again.
        after: Option<Duration>,
        /// Bytes that were fetched and thrown away.
        wasted: u64,
    },
}
