//! The room that the log has left, within the quota and on the disk.

use std::path::Path;

use super::super::layout::TILE_WIDTH;
use super::losses::LossCause;

/// The size of a record with its hash, in bytes; almost all are smaller.
const RECORD_BYTES: u64 = 1024;

/// The events that may be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogCapacity {
    Enough,
    /// All events except inference: the quota is used up, or the disk is full.
    EventsAlone(LossCause),
    /// Nothing: the quota is used up.
    None,
}

impl LogCapacity {
    /// The cause of the shortage.
    pub fn lacks(self) -> Option<LossCause> {
        match self {
            Self::Enough => None,
            Self::EventsAlone(cause) => Some(cause),
            Self::None => Some(LossCause::Quota),
        }
    }
}

/// The limits of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditLogLimits {
    /// The largest size of the log, in bytes.
    pub quota: u64,
    /// The space that stays free on the disk, in bytes.
    pub min_free: u64,
}

impl AuditLogLimits {
    /// The events that may be recorded when the log has `bytes` and the disk has `free` bytes left, if that is known.
    ///
    /// Other events than inference are few, and the first that an auditor looks for: they may use a twentieth beyond
    /// the quota. With their last [part](Self::part), that is a tenth.
    pub fn room(&self, bytes: u64, free: Option<u64>) -> LogCapacity {
        if bytes >= self.quota.saturating_add(self.quota / 20) {
            LogCapacity::None
        } else if bytes >= self.quota {
            LogCapacity::EventsAlone(LossCause::Quota)
        } else if free.is_some_and(|free| free < self.min_free) {
            LogCapacity::EventsAlone(LossCause::Disk)
        } else {
            LogCapacity::Enough
        }
    }

    /// Number of records written before the room is checked again: at most a twentieth of the quota.
    pub fn part(&self) -> usize {
        usize::try_from(self.quota / 20 / RECORD_BYTES).unwrap_or(usize::MAX).max(1)
    }

    /// Returns true if records must be removed when the log has `bytes`.
    pub fn is_over(&self, bytes: u64) -> bool {
        bytes >= self.quota - self.quota / 20
    }

    /// The record below which to remove, for a log that has the records from `first` to `size`, takes `bytes`, and may
    /// lose those below `removable`. Frees a twentieth of the quota more than needed, so that removals are rare.
    pub fn prune_below(&self, bytes: u64, first: u64, size: u64, removable: u64) -> Option<u64> {
        let excess = bytes.checked_sub(self.quota - self.quota / 20)?;
        let each = (bytes / size.saturating_sub(first).max(1)).max(1);
        let records = (excess + self.quota / 20).div_ceil(each);
        // Only whole tiles can be removed.
        let below = first.saturating_add(records.next_multiple_of(TILE_WIDTH)).min(removable);
        (below / TILE_WIDTH > first / TILE_WIDTH).then_some(below)
    }
}

/// The space on the disk of a folder that this user may use, in bytes.
pub fn free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: AuditLogLimits = AuditLogLimits { quota: 1_000_000, min_free: 500 };

    #[test]
    fn inference_gives_way_first() {
        assert_eq!(LIMITS.room(999_999, Some(500)), LogCapacity::Enough);
        assert_eq!(LIMITS.room(999_999, None), LogCapacity::Enough);
        assert_eq!(LIMITS.room(0, Some(499)), LogCapacity::EventsAlone(LossCause::Disk));
        assert_eq!(LIMITS.room(1_000_000, Some(499)), LogCapacity::EventsAlone(LossCause::Quota));
        assert_eq!(LIMITS.room(1_050_000, None), LogCapacity::None);
        // The least quota that can be set: two parts beyond it are a tenth.
        assert_eq!(AuditLogLimits { quota: 8 << 20, min_free: 0 }.part(), 409);
    }

    #[test]
    fn what_goes_is_a_little_more_than_must_and_never_what_has_to_stay() {
        // 2,500 records of 400 bytes: 5 % and 5 % are 250 records, which are a tile.
        assert_eq!(LIMITS.prune_below(1_000_000, 0, 2500, 2500), Some(256));
        assert_eq!(LIMITS.prune_below(1_000_000, 256, 2756, 2756), Some(512));
        assert_eq!(LIMITS.prune_below(900_000, 0, 2500, 2500), None);
        assert_eq!(LIMITS.prune_below(1_000_000, 0, 2500, 200), None);
        assert_eq!(LIMITS.prune_below(3_000_000, 0, 2500, 1024), Some(1024));
    }
}
