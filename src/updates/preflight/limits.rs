//! The limits of a preflight.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::package::Package;
use super::super::state::{RollbackCause, RollbackReason};
use super::requirements::HostCapabilities;

/// Interval at which the memory of a process on trial is read.
pub(super) const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Memory that a process on trial may reserve beyond twice the watched limit, in bytes. Reserved memory is more than
/// resident memory, and the watch names the cause better.
const DATA_RESERVE_BYTES: u64 = 1 << 30;

/// Timeout of a preflight whose package names none, in seconds.
pub(super) const DEFAULT_TIMEOUT_S: u64 = 120;

/// The most that a process on trial may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialLimits {
    /// The most resident memory, in bytes.
    pub memory_bytes: u64,
    /// The most time, in seconds.
    pub seconds: u64,
}

impl TrialLimits {
    pub(super) fn of(package: &Package, facts: &HostCapabilities) -> Self {
        let declared = package.limits.memory_mb.or(package.requires.memory_mb.map(|needed| needed.saturating_mul(2)));
        let memory_bytes = declared.map_or(facts.memory_bytes / 2, |megabytes| megabytes.saturating_mul(1 << 20));
        Self { memory_bytes, seconds: package.limits.seconds.unwrap_or(DEFAULT_TIMEOUT_S).max(1) }
    }

    pub(super) fn data_bytes(self) -> u64 {
        self.memory_bytes.saturating_mul(2).saturating_add(DATA_RESERVE_BYTES)
    }

    /// The process has more than this resident memory.
    pub(super) fn exceeded(self, bytes: u64, step: &str) -> RollbackReason {
        let (taken, limit) = (bytes >> 20, self.memory_bytes >> 20);
        RollbackReason::new(
            RollbackCause::Memory,
            format!("took {taken} MiB of memory while {step}; at most {limit} MiB are allowed"),
        )
    }

    pub(super) fn timed_out(self, step: &str) -> RollbackReason {
        RollbackReason::new(RollbackCause::Deadline, format!("was not done after {} s, while {step}", self.seconds))
    }
}
