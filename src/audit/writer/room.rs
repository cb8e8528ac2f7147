//! How much room the log has left, and what is taken of it.

use std::path::Path;

use super::super::layout::WIDTH;
use super::losses::Cause;

/// A record takes less than this nearly always, with its hash, in bytes.
const RECORD: u64 = 1024;

/// What may be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Enough,
    /// Everything but inference; what lacks is the quota, or the disk.
    EventsAlone(Cause),
    /// Nothing: the quota is used up.
    None,
}

impl Room {
    /// What lacks.
    pub fn lacks(self) -> Option<Cause> {
        match self {
            Self::Enough => None,
            Self::EventsAlone(cause) => Some(cause),
            Self::None => Some(Cause::Quota),
        }
    }
}

/// The limits of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most that it takes, in bytes.
    pub quota: u64,
    /// What stays free on the disk, in bytes.
    pub min_free: u64,
}

impl Limits {
    /// What may be recorded when the log takes `bytes` and the disk has `free` left, where that is known.
    ///
    /// Events other than inference are few, and what an auditor looks for first: they may use a twentieth beyond the
    /// quota. With the last [part](Self::part) of them that makes a tenth.
    pub fn room(&self, bytes: u64, free: Option<u64>) -> Room {
        if bytes >= self.quota.saturating_add(self.quota / 20) {
            Room::None
        } else if bytes >= self.quota {
            Room::EventsAlone(Cause::Quota)
        } else if free.is_some_and(|free| free < self.min_free) {
            Room::EventsAlone(Cause::Disk)
        } else {
            Room::Enough
        }
    }

    /// How many records are written before the room is looked at again: a twentieth of the quota at most.
    pub fn part(&self) -> usize {
        usize::try_from(self.quota / 20 / RECORD).unwrap_or(usize::MAX).max(1)
    }

    /// Whether something has to go when the log takes `bytes`.
    pub fn is_over(&self, bytes: u64) -> bool {
        bytes >= self.quota - self.quota / 20
    }

    /// Below which record to remove so that there is room again, where the log has the records from `first` to `size`, takes
    /// `bytes`, and may lose those below `removable`. A twentieth of the quota more than is needed, so that this is rare.
    pub fn prune_below(&self, bytes: u64, first: u64, size: u64, removable: u64) -> Option<u64> {
        let excess = bytes.checked_sub(self.quota - self.quota / 20)?;
        let each = (bytes / size.saturating_sub(first).max(1)).max(1);
        let records = (excess + self.quota / 20).div_ceil(each);
        // Whole tiles alone can go.
        let below = first.saturating_add(records.next_multiple_of(WIDTH)).min(removable);
        (below / WIDTH > first / WIDTH).then_some(below)
    }
}

/// What is free for us on the disk of a folder, in bytes.
pub fn free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { quota: 1_000_000, min_free: 500 };

    #[test]
    fn inference_gives_way_first() {
        assert_eq!(LIMITS.room(999_999, Some(500)), Room::Enough);
        assert_eq!(LIMITS.room(999_999, None), Room::Enough);
        assert_eq!(LIMITS.room(0, Some(499)), Room::EventsAlone(Cause::Disk));
        assert_eq!(LIMITS.room(1_000_000, Some(499)), Room::EventsAlone(Cause::Quota));
        assert_eq!(LIMITS.room(1_050_000, None), Room::None);
        // The least quota that can be set: two parts beyond it are a tenth.
        assert_eq!(Limits { quota: 8 << 20, min_free: 0 }.part(), 409);
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
