//! The keys that tags are made with: one for each period, on this box only.
//!
//! Each is a file, `tags/PERIOD.key`, which has the beginning and the end of its period. The number of a period is the
//! day on which it begins, counted from 1970, or one more than that of the period before, whichever is greater: it only
//! grows, also when a clock jumps or parts of the folder are lost.
//!
//! Clocks jump; boxes without a battery start in 1970. So time is measured by the wall clock (at least
//! [`clock::FLOOR`]) and by the running time of this daemon:
//!
//! * A key is in use until the wall clock shows the end of its period, or until it was in use for the running time of a
//!   period, if that comes first. A clock that goes back changes nothing. One that jumps to and fro ends a period at
//!   most once for each period that it goes beyond the latest that it ever showed.
//! * A key is destroyed once its period is over and the wall clock has shown for a whole day of running time that it
//!   was kept for long enough; or once the daemon has run for the whole time that the key is to be kept. A clock that
//!   is at 2100 for an hour destroys nothing. One that is wrong for longer than a day cannot be distinguished from one
//!   that is right.
//!
//! A destroyed key is overwritten, then removed. Flash memory and file systems that copy on write (btrfs, ZFS,
//! snapshots) may keep the old blocks for a while all the same.

mod error;
mod files;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ledge_base::clock;
use ledge_identity::sealing::{MasterKeyCounts, RekeyCounts, Sealer};
use ledge_service::audit_event::AuditEvent;
use ledge_service::audit_event::tag::TagKey;
use serde::{Deserialize, Serialize};

pub use error::TagKeysError;
use files::{TagKeyFile, TagKeyFolder};

/// Running time in milliseconds for which the wall clock must show that a key is old enough.
const CLOCK_AGREEMENT_MS: u64 = DAY_MS;

/// Running time is saved when it grew by this much, in milliseconds. A power cut loses at most this much of it.
const RUNNING_TIME_SAVE_MS: u64 = 10 * 60 * 1000;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// The last day of the calendar, in the year 9999.
const LAST_DAY: u64 = 2_932_896;

/// The keys of this box, for the writer of the log.
#[derive(Debug)]
pub struct AuditTagKeys {
    folder: TagKeyFolder,
    period_ms: u64,
    /// 0: keys are kept for ever.
    keep_ms: u64,
    current: Arc<TagKey>,
    list: AuditTagKeyList,
    /// Running time in `list` that is not on the disk yet.
    uncounted: u64,
    turned: Instant,
    /// Set once it was logged that a key cannot be destroyed.
    stuck: AtomicBool,
}

/// The list of the keys: `tags/list.json`. It shows when a key is gone, also after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditTagKeyList {
    /// The highest number of a period so far.
    last: u32,
    keys: Vec<TagKeyEntry>,
    /// Events that are perhaps not in the log yet.
    untold: Vec<AuditEvent>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TagKeyEntry {
    period: u32,
    begins_ms: u64,
    ends_ms: u64,
    /// Running time of the daemon since the key was made, or since the next key was made.
    ran_ms: u64,
    /// Running time of the daemon since the clock shows that the key is old enough.
    due_ms: u64,
}

impl AuditTagKeys {
    /// Opens the keys in the folder `audit`, and makes one if no key covers the present time. The events are for the
    /// log, and include those of the last run that are perhaps not in it yet.
    pub fn open(
        audit: &Path,
        period_days: u32,
        keep_days: u32,
        now_ms: u64,
        sealer: &Sealer,
    ) -> Result<(Self, Vec<AuditEvent>), TagKeysError> {
        let folder = TagKeyFolder::create(audit, sealer)?;
        let mut list = Self::read_list(&folder)?;
        let mut untold = std::mem::take(&mut list.untold);
        untold.extend(adopt_unlisted(&folder, &mut list)?);
        list.untold = untold;

        let days = |days: u32| u64::from(days) * DAY_MS;
        // The first turn replaces it, and saves the list.
        let current = Arc::new(TagKey::new(0, [0; 32]));
        let (period_ms, keep_ms) = (days(period_days.max(1)), days(keep_days));

        let mut tags = Self {
            folder,
            period_ms,
            keep_ms,
            current,
            list,
            uncounted: RUNNING_TIME_SAVE_MS,
            turned: Instant::now(),
            stuck: AtomicBool::new(false),
        };

        let untold = tags.list.untold.clone();
        let events = tags.turn_after(now_ms, Duration::ZERO, untold)?;
        Ok((tags, events))
    }

    /// The key that is in use.
    pub fn current(&self) -> Arc<TagKey> {
        self.current.clone()
    }

    /// Begins a period, destroys keys that were kept long enough, and finds keys that are gone, such as after
    /// [`destroy`]. To be called every minute or so. The events are for the log. If it fails, the key in use stays the
    /// same, and the next turn tries again.
    pub fn turn(&mut self, now_ms: u64) -> Result<Vec<AuditEvent>, TagKeysError> {
        let elapsed = self.turned.elapsed();
        self.turned = Instant::now();
        self.turn_after(now_ms, elapsed, Vec::new())
    }

    /// Notes that the returned events are durable. Until this, or the next turn, another start returns them again.
    pub fn told(&mut self) -> Result<(), TagKeysError> {
        if self.list.untold.is_empty() {
            return Ok(());
        }
        let list = AuditTagKeyList { untold: Vec::new(), ..self.list.clone() };
        self.save(list)
    }

    fn turn_after(
        &mut self,
        now_ms: u64,
        elapsed: Duration,
        mut events: Vec<AuditEvent>,
    ) -> Result<Vec<AuditEvent>, TagKeysError> {
        let now = clock::FLOOR.plausible_millis(now_ms).min(LAST_DAY * DAY_MS);
        let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let mut list = self.list.clone();
        list.keys.retain(|key| {
            let is_there = self.folder.has(key.period);
            if !is_there {
                tracing::warn!(period = key.period, "a key for tags is gone: its tags can no longer be resolved");
                events.push(AuditEvent::TagKeyDestroyed { period: key.period });
            }
            is_there
        });
        let newest = list.last;
        for key in &mut list.keys {
            key.ran_ms = key.ran_ms.saturating_add(elapsed);
            let is_due = self.keep_ms > 0 && key.period != newest && now >= key.ends_ms.saturating_add(self.keep_ms);
            key.due_ms = if is_due { key.due_ms.saturating_add(elapsed) } else { 0 };
        }

        let current = self.current_key(&mut list, now, &mut events)?;
        let newest = current.period();
        list.keys.retain(|key| {
            let goes = key.period != newest && self.is_expired(key) && self.try_destroy(key.period);
            if goes {
                events.push(AuditEvent::TagKeyDestroyed { period: key.period });
            }
            !goes
        });

        list.untold.clone_from(&events);
        self.uncounted = self.uncounted.saturating_add(elapsed);
        if self.uncounted >= RUNNING_TIME_SAVE_MS || !same_but_counts(&list, &self.list) {
            self.save(list)?;
        } else {
            self.list = list;
        }
        self.current = current;
        Ok(events)
    }

    /// The key for now: that of the last period, unless the period is over.
    fn current_key(
        &self,
        list: &mut AuditTagKeyList,
        now: u64,
        events: &mut Vec<AuditEvent>,
    ) -> Result<Arc<TagKey>, TagKeysError> {
        // If the last key is gone, earlier ones are not used again.
        if let Some(newest) = list.keys.last_mut().filter(|newest| newest.period == list.last) {
            let period_ms = newest.ends_ms.saturating_sub(newest.begins_ms);
            let is_damaged = self.folder.is_aside(newest.period);
            let is_over = is_damaged || now >= newest.ends_ms || newest.ran_ms >= period_ms;
            if !is_over && newest.period == self.current.period() {
                return Ok(self.current.clone());
            }
            if !is_over {
                return self.folder.read(newest.period).map(|file| Arc::new(file.tag_key()));
            }
            newest.ran_ms = 0;
        }

        let today = u32::try_from(now / DAY_MS).unwrap_or(u32::MAX);
        let period = list.last.saturating_add(1).max(today);
        let ends_ms = now.saturating_add(self.period_ms);
        let file = self.folder.make(period, now, ends_ms)?;
        list.last = period;
        list.keys.push(TagKeyEntry { period, begins_ms: now, ends_ms, ran_ms: 0, due_ms: 0 });
        events.push(AuditEvent::TagKeyMade { period });
        Ok(Arc::new(file.tag_key()))
    }

    /// Destroys a key. A failure is logged once, and each turn tries again: it must not keep a period from beginning.
    fn try_destroy(&self, period: u32) -> bool {
        match self.folder.destroy(period) {
            Ok(_) => true,
            Err(error) => {
                if !self.stuck.swap(true, Ordering::Relaxed) {
                    tracing::error!(period, %error, "cannot destroy a key for tags that is old enough");
                }
                false
            }
        }
    }

    fn is_expired(&self, key: &TagKeyEntry) -> bool {
        self.keep_ms > 0 && (key.due_ms >= CLOCK_AGREEMENT_MS || key.ran_ms >= self.keep_ms)
    }

    fn save(&mut self, list: AuditTagKeyList) -> Result<(), TagKeysError> {
        self.folder.save_list(&list)?;
        self.list = list;
        self.uncounted = 0;
        Ok(())
    }

    fn read_list(folder: &TagKeyFolder) -> Result<AuditTagKeyList, TagKeysError> {
        match folder.read_list::<AuditTagKeyList>() {
            Ok(Some(mut list)) => {
                list.keys.sort_by_key(|key| key.period);
                return Ok(list);
            }
            Ok(None) => {}
            Err(TagKeysError::Damaged { path }) => {
                let path = path.display();
                tracing::error!(%path, "the list of the keys for tags is damaged and is rebuilt from the keys in the folder");
            }
            Err(error) => return Err(error),
        }
        // The keys in the folder were not just made.
        Ok(AuditTagKeyList { last: folder.periods()?.last().copied().unwrap_or(0), ..AuditTagKeyList::default() })
    }
}

/// Adds the keys that are not in the list: it was lost, or a power cut came after a key was made and before it was
/// listed.
fn adopt_unlisted(folder: &TagKeyFolder, list: &mut AuditTagKeyList) -> Result<Vec<AuditEvent>, TagKeysError> {
    let mut events = Vec::new();
    let before = list.last;
    for period in folder.periods()? {
        // A damaged key is set aside, and destroyed as late as any other.
        let Some(TagKeyFile { begins_ms, ends_ms, .. }) = folder.read_or_set_aside(period)? else { continue };
        if list.keys.iter().any(|key| key.period == period) {
            continue;
        }
        list.keys.push(TagKeyEntry { period, begins_ms, ends_ms, ran_ms: 0, due_ms: 0 });
        if period > before {
            list.last = list.last.max(period);
            events.push(AuditEvent::TagKeyMade { period });
        }
    }
    list.keys.sort_by_key(|key| key.period);
    Ok(events)
}

/// Returns true if two lists differ only in how long the daemon has run.
fn same_but_counts(one: &AuditTagKeyList, other: &AuditTagKeyList) -> bool {
    let periods = |list: &AuditTagKeyList| list.keys.iter().map(|key| key.period).collect::<Vec<_>>();
    (one.last, &one.untold, periods(one)) == (other.last, &other.untold, periods(other))
}

/// Destroys the key of a period, also one that was set aside. Returns true if there was one. A running daemon finds it
/// within one turn, begins another period if the key was in use, and records it. When this returns, the files are gone
/// for good; for their blocks see above.
pub fn destroy(audit: &Path, period: u32) -> Result<bool, TagKeysError> {
    TagKeyFolder::of(audit, &Sealer::none()).destroy(period)
}

/// Encrypts every key under the current master key, unless it is already.
pub(super) fn rekey(audit: &Path, sealer: &Sealer, done: &mut RekeyCounts) -> Result<(), TagKeysError> {
    TagKeyFolder::of(audit, sealer).rekey(done)
}

/// Counts the keys by the master key that they are encrypted under. Reads only.
pub(super) fn survey(audit: &Path, survey: &mut MasterKeyCounts) -> Result<(), TagKeysError> {
    TagKeyFolder::of(audit, &Sealer::none()).survey(survey)
}

/// All existing keys, oldest first, to find the original of a tag.
pub fn all(audit: &Path, sealer: &Sealer) -> Result<Vec<TagKey>, TagKeysError> {
    let folder = TagKeyFolder::of(audit, sealer);
    let periods = folder.periods()?;
    periods.into_iter().map(|period| folder.read(period).map(|file| file.tag_key())).collect()
}

#[cfg(test)]
mod tests;
