//! The series of a box in a folder, one file each, and the records that are not written yet.
//!
//! Records are written together: each minute while there are calls, else every ten minutes. So a crash loses at most
//! those minutes, which are then missing in the answers, and an idle box writes some MB a day. They are fsynced every ten
//! minutes, so a power cut loses ten minutes at most.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ledge_base::durable;

use crate::figures::{FigureHistory, FigurePeriod};
use crate::file::{RecordSpan, SeriesFile, file_bytes_max, name_in};
use crate::readings::{BOX_COLUMNS, FigureSample};
use crate::record::Record;
use crate::series::{Resolution, SeriesKind, SeriesName, USAGE_COLUMNS};

/// The most models, and the most callers, with a series of their own for a day.
pub const DAY_SERIES_MAX: usize = 48;

/// The most of them with one for two years.
pub const HOUR_SERIES_MAX: usize = 20;

/// The most bytes of all files: the box and the others of both kinds have all records.
pub const STORE_BYTES_MAX: u64 = {
    let with_hours = 2 * (HOUR_SERIES_MAX as u64 + 1) * file_bytes_max(USAGE_COLUMNS.len(), true);
    let days = 2 * (DAY_SERIES_MAX - HOUR_SERIES_MAX) as u64 * file_bytes_max(USAGE_COLUMNS.len(), false);
    file_bytes_max(BOX_COLUMNS.len(), true) + with_hours + days
};

const _: () = assert!(STORE_BYTES_MAX <= 50_000_000, "the store has a bound of 50 MB");

/// The factor by which a series must be busier to take the place of another for two years.
const BUSIER: f64 = 2.0;

const EXTENSION: &str = "series";

/// The series of a box.
#[derive(Debug)]
pub struct HistoryStore {
    folder: PathBuf,
    series: BTreeMap<SeriesName, StoredSeries>,
    /// The series that were written since the last fsync.
    unsynced: BTreeSet<SeriesName>,
    status: HistoryStatus,
    is_enabled: bool,
}

/// The health of the store since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryStatus {
    /// Why records could not be written the last time; `None` where they were.
    pub problem: Option<String>,
    /// Records that could not be written.
    pub lost: u64,
    /// Files that were no histories, and are set aside.
    pub set_aside: u64,
}

#[derive(Debug, Default)]
struct StoredSeries {
    has_hours: bool,
    /// True until its first record.
    is_new: bool,
    /// Records that are not written yet, in the order of [`Resolution::ALL`].
    pending: [Vec<Record>; 3],
}

impl StoredSeries {
    fn pending(&mut self, resolution: Resolution) -> &mut Vec<Record> {
        let [seconds, minutes, hours] = &mut self.pending;
        match resolution {
            Resolution::FiveSeconds => seconds,
            Resolution::Minute => minutes,
            Resolution::Hour => hours,
        }
    }
}

impl HistoryStore {
    /// Opens the folder, or creates it. Whatever is wrong with it is in the status: the figures go on without it.
    pub fn open(folder: &Path) -> Self {
        let mut store = Self {
            folder: folder.to_owned(),
            series: BTreeMap::new(),
            unsynced: BTreeSet::new(),
            status: HistoryStatus::default(),
            is_enabled: true,
        };
        if let Err(error) = store.find() {
            store.fail(folder, &error);
        }
        store
    }

    /// A store that keeps nothing.
    pub fn disabled() -> Self {
        Self {
            folder: PathBuf::new(),
            series: BTreeMap::new(),
            unsynced: BTreeSet::new(),
            status: HistoryStatus::default(),
            is_enabled: false,
        }
    }

    fn find(&mut self) -> io::Result<()> {
        durable::create_folder(&self.folder)?;
        durable::remove_leftovers(&self.folder)?;
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            match name_in(&path)?.filter(|name| self.path(name) == path) {
                Some(name) => {
                    let has_hours = SeriesFile::open(&path, &name)?.has_hours()?;
                    self.series.insert(name, StoredSeries { has_hours, ..StoredSeries::default() });
                }
                None => self.set_aside(&path)?,
            }
        }
        Ok(())
    }

    fn set_aside(&mut self, path: &Path) -> io::Result<()> {
        let aside = durable::set_aside(path)?;
        self.status.set_aside += 1;
        tracing::warn!(aside = %aside.display(), "a file of the history cannot be read and is set aside");
        Ok(())
    }

    fn fail(&mut self, path: &Path, error: &io::Error) {
        let problem = format!("{}: {error}", path.display());
        if self.status.problem.is_none() {
            tracing::warn!(problem, "the history of the figures cannot be written; they are kept in memory for a day");
        }
        self.status.problem = Some(problem);
    }

    /// Gives the records of the last day to the rings in memory, and completes the hours that a crash left incomplete.
    pub fn restore(&self, figures: &FigureHistory, now_ms: u64) {
        let periods = [(FigurePeriod::Hour, Resolution::FiveSeconds), (FigurePeriod::Day, Resolution::Minute)];
        for (period, resolution) in periods {
            let records = self.read(&SeriesName::Box, resolution, kept(resolution, now_ms)).unwrap_or_default().records;
            let mut before = None;
            for record in records {
                let Some(sample) = FigureSample::of(&record.figures) else { continue };
                let intervals = before.replace(record.slot).map_or(1, |before: u32| record.slot.saturating_sub(before));
                let elapsed = Duration::from_secs(u64::from(intervals) * u64::from(resolution.seconds()));
                let end_ms = resolution.begin_ms(record.slot.saturating_add(1)).min(now_ms);
                figures.remember(period, sample, elapsed, end_ms);
            }
        }
        figures.restored();
        for name in self.series.iter().filter(|(_, series)| series.has_hours).map(|(name, _)| name) {
            if let Err(error) = self.complete_hours(name, now_ms) {
                tracing::warn!(series = %name, %error, "the hours before the start cannot be completed from their minutes");
            }
        }
    }

    fn complete_hours(&self, name: &SeriesName, now_ms: u64) -> io::Result<()> {
        let minutes = self.read(name, Resolution::Minute, kept(Resolution::Minute, now_ms))?.records;
        let hours = self.read(name, Resolution::Hour, kept(Resolution::Hour, now_ms))?.records;
        let missing = missing_hours(&minutes, &hours, name.columns());
        if missing.is_empty() {
            Ok(())
        } else {
            SeriesFile::open(&self.path(name), name)?.write(Resolution::Hour, &missing)
        }
    }

    pub fn status(&self) -> &HistoryStatus {
        &self.status
    }

    /// Every series, and whether it has records by the hour.
    pub fn series(&self) -> impl Iterator<Item = (&SeriesName, bool)> {
        self.series.iter().map(|(name, series)| (name, series.has_hours))
    }

    fn path(&self, name: &SeriesName) -> PathBuf {
        let hash = blake3::hash(name.to_string().as_bytes()).to_hex();
        self.folder.join(format!("{}.{EXTENSION}", hash.get(..32).unwrap_or_default()))
    }

    /// The series that counts `name`: its own, or that of the others where there are too many. A series that has no
    /// record in `minutes` makes room.
    pub fn place(&mut self, name: &SeriesName, minutes: Range<u32>) -> SeriesName {
        let is_new = self.is_enabled && !self.series.contains_key(name);
        let Some(kind) = name.kind().filter(|_| is_new) else { return name.clone() };
        let of_kind = self.series.keys().filter(|known| known.kind() == Some(kind) && **known != kind.others());
        if of_kind.count() < DAY_SERIES_MAX || *name == kind.others() || self.make_room(kind, &minutes) {
            self.series.insert(name.clone(), StoredSeries { is_new: true, ..StoredSeries::default() });
            name.clone()
        } else {
            kind.others()
        }
    }

    fn make_room(&mut self, kind: SeriesKind, minutes: &Range<u32>) -> bool {
        let others = kind.others();
        let candidates = self.series.iter().filter(|(name, series)| {
            let has_pending = series.pending.iter().any(|pending| !pending.is_empty());
            let is_kept = series.has_hours || series.is_new || has_pending;
            name.kind() == Some(kind) && **name != others && !is_kept
        });
        let names: Vec<_> = candidates.map(|(name, _)| name.clone()).collect();
        let unused = names.into_iter().find(|name| {
            self.read(name, Resolution::Minute, minutes.clone()).is_ok_and(|span| span.records.is_empty())
        });
        let Some(unused) = unused else { return false };
        // Without its file it has no records: a new one of its name begins empty.
        let _ = std::fs::remove_file(self.path(&unused));
        self.series.remove(&unused).is_some()
    }

    /// Adds a record, to be written later. It is merged with one of the same interval that is written already.
    pub fn push(&mut self, name: &SeriesName, resolution: Resolution, record: Record) {
        if !self.is_enabled {
            return;
        }
        let series = self.series.entry(name.clone()).or_default();
        series.is_new = false;
        let pending = series.pending(resolution);
        match pending.last_mut().filter(|last| last.slot == record.slot) {
            Some(last) => *last = last.merged(&record, name.columns()),
            None => pending.push(record),
        }
    }

    /// Writes what is pending, which survives a kill from then on. Records that cannot be written are lost, and counted.
    pub fn flush(&mut self) {
        let mut failed = None;
        // The box comes last: where it has a record, a model without one had no calls.
        let names: Vec<_> = self.series.keys().rev().cloned().collect();
        for name in names {
            let path = self.path(&name);
            let Some(series) = self.series.get_mut(&name) else { continue };
            if series.pending.iter().all(Vec::is_empty) {
                continue;
            }
            let pending = std::mem::take(&mut series.pending);
            let count: usize = pending.iter().map(Vec::len).sum();
            if let Err(error) = write(&path, &name, pending) {
                self.status.lost += count as u64;
                failed = Some((path, error));
            }
            self.unsynced.insert(name);
        }
        match failed {
            Some((path, error)) => self.fail(&path, &error),
            None => self.status.problem = None,
        }
    }

    /// Makes what was written survive a power cut.
    pub fn sync(&mut self) {
        for name in std::mem::take(&mut self.unsynced).into_iter().rev() {
            let path = self.path(&name);
            match SeriesFile::open(&path, &name).and_then(|file| file.sync()) {
                // It was never written, or has made room for another series.
                Err(error) if error.kind() != io::ErrorKind::NotFound => self.fail(&path, &error),
                _ => {}
            }
        }
    }

    /// The records of some intervals, also those that are not written yet.
    pub fn read(&self, name: &SeriesName, resolution: Resolution, slots: Range<u32>) -> io::Result<RecordSpan> {
        if !self.is_enabled {
            return Ok(RecordSpan::default());
        }
        let mut span = match SeriesFile::open(&self.path(name), name) {
            Ok(file) => file.read(resolution, slots.clone())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => RecordSpan::default(),
            Err(error) => return Err(error),
        };
        let pending = self.series.get(name).map(|series| match (resolution, &series.pending) {
            (Resolution::FiveSeconds, [records, ..])
            | (Resolution::Minute, [_, records, _])
            | (Resolution::Hour, [_, _, records]) => records,
        });
        for record in pending.into_iter().flatten().filter(|record| slots.contains(&record.slot)) {
            match span.records.binary_search_by_key(&record.slot, |known| known.slot) {
                Ok(index) => {
                    if let Some(known) = span.records.get_mut(index) {
                        *known = known.merged(record, name.columns());
                    }
                }
                Err(index) => span.records.insert(index, record.clone()),
            }
        }
        Ok(span)
    }

    /// True if a series has records by the hour, from now on where it is busy enough: a place that is free, or that of a
    /// series with less than half of its calls in the last day, whose hours are added to those of the others.
    pub fn take_hours(&mut self, name: &SeriesName, now_ms: u64) -> bool {
        let Some(kind) = name.kind().filter(|_| self.is_enabled) else { return true };
        if *name == kind.others() || self.series.get(name).is_some_and(|series| series.has_hours) {
            return true;
        }
        let others = kind.others();
        let is_holder =
            |held: &SeriesName, series: &StoredSeries| held.kind() == Some(kind) && *held != others && series.has_hours;
        let holders: Vec<_> =
            self.series.iter().filter(|(held, series)| is_holder(held, series)).map(|(held, _)| held.clone()).collect();
        if holders.len() >= HOUR_SERIES_MAX {
            let calls = |name: &SeriesName| self.calls_of_day(name, now_ms);
            let least = holders.into_iter().map(|held| (calls(&held), held)).min_by(|(a, _), (b, _)| a.total_cmp(b));
            match least {
                Some((least, held)) if calls(name) > BUSIER * least => self.give_up_hours(&held, &others, now_ms),
                _ => return false,
            }
        }
        self.series.entry(name.clone()).or_default().has_hours = true;
        true
    }

    /// Removes the records of intervals that began before a time, in milliseconds since the Unix epoch, and series of which
    /// nothing is left, with their names. Returns the number of records, and that of the series that could not be written.
    pub fn forget_before(&mut self, limit_ms: u64) -> (u64, u64) {
        let (mut forgotten, mut failed) = (0, 0);
        let names: Vec<_> = self.series.keys().cloned().collect();
        for name in names {
            let path = self.path(&name);
            let has_pending = |series: &StoredSeries| series.pending.iter().any(|pending| !pending.is_empty());
            let is_used = self.series.get(&name).is_some_and(|series| series.is_new || has_pending(series));
            let removed = SeriesFile::open(&path, &name).and_then(|file| file.forget_before(limit_ms));
            let removed = removed.and_then(|(records, left)| {
                forgotten += records;
                if left == 0 && !is_used {
                    std::fs::remove_file(&path)?;
                    self.series.remove(&name);
                }
                Ok(())
            });
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    failed += 1;
                    self.fail(&path, &error);
                }
                _ => {}
            }
        }
        (forgotten, failed)
    }

    fn calls_of_day(&self, name: &SeriesName, now_ms: u64) -> f64 {
        let records = self.read(name, Resolution::Minute, kept(Resolution::Minute, now_ms)).unwrap_or_default().records;
        let calls =
            |record: &Record| record.figures.first().map_or(0.0, |rate| f64::from(*rate)) * f64::from(record.covered_s);
        records.iter().map(calls).filter(|calls| calls.is_finite()).sum()
    }

    /// Adds the hours of a series to those of the others. A crash meanwhile loses them: that is better than counting them
    /// twice.
    fn give_up_hours(&mut self, name: &SeriesName, others: &SeriesName, now_ms: u64) {
        let hours = kept(Resolution::Hour, now_ms);
        let given = self.read(name, Resolution::Hour, hours.clone()).unwrap_or_default().records;
        if let Some(series) = self.series.get_mut(name) {
            series.has_hours = false;
            series.pending(Resolution::Hour).clear();
        }
        let (path, others_path) = (self.path(name), self.path(others));
        let added = SeriesFile::open(&path, name).and_then(|file| {
            file.forget_hours()?;
            let file = open_or_create(&others_path, others)?;
            let mut sum: BTreeMap<_, _> =
                file.read(Resolution::Hour, hours)?.records.into_iter().map(|record| (record.slot, record)).collect();
            for record in given {
                let known = sum.get(&record.slot).map(|known| known.added(&record, others.columns()));
                sum.insert(record.slot, known.unwrap_or(record));
            }
            file.write(Resolution::Hour, &sum.into_values().collect::<Vec<_>>())
        });
        match added {
            Ok(()) => self.series.entry(others.clone()).or_default().has_hours = true,
            // It was never written.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.fail(&path, &error),
        }
    }
}

/// Records of the hours of the last day that a crash left without one, or with one of a part of their minutes.
fn missing_hours(minutes: &[Record], hours: &[Record], columns: &[&str]) -> Vec<Record> {
    let mut made = BTreeMap::<u32, Record>::new();
    for minute in minutes {
        let slot = minute.slot / 60;
        let of_hour = Record { slot, ..minute.clone() };
        let sum = made.get(&slot).map_or_else(|| of_hour.clone(), |hour| hour.merged(&of_hour, columns));
        made.insert(slot, sum);
    }
    let covered = |slot: u32| {
        let found = hours.binary_search_by_key(&slot, |hour| hour.slot).ok().and_then(|index| hours.get(index));
        found.map_or(0, |hour| hour.covered_s)
    };
    // A minute may be complete in the record of the hour and not in its own.
    made.into_values().filter(|hour| hour.covered_s > covered(hour.slot).saturating_add(60)).collect()
}

/// The intervals of which records are kept until `now_ms`.
pub fn kept(resolution: Resolution, now_ms: u64) -> Range<u32> {
    // A record of five seconds may be an interval ahead: see `recorder.rs`.
    let ahead = if resolution == Resolution::FiveSeconds { 2 } else { 1 };
    let end = resolution.slot(now_ms).saturating_add(ahead);
    end.saturating_sub(resolution.slots())..end
}

fn open_or_create(path: &Path, name: &SeriesName) -> io::Result<SeriesFile> {
    match SeriesFile::open(path, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            SeriesFile::create(path, name)?;
            SeriesFile::open(path, name)
        }
        opened => opened,
    }
}

/// Writes records, each merged with the one of its interval that is there.
fn write(path: &Path, name: &SeriesName, pending: [Vec<Record>; 3]) -> io::Result<()> {
    let file = open_or_create(path, name)?;
    for (resolution, pending) in Resolution::ALL.into_iter().zip(pending) {
        // In another order where the clock went back.
        let mut ordered = BTreeMap::<u32, Record>::new();
        for record in pending {
            let both = ordered.get(&record.slot).map(|known| known.merged(&record, name.columns()));
            ordered.insert(record.slot, both.unwrap_or(record));
        }
        let mut records: Vec<_> = ordered.into_values().collect();
        let slots = records.first().zip(records.last()).map(|(first, last)| first.slot..last.slot.saturating_add(1));
        let known = file.read(resolution, slots.unwrap_or_default())?.records;
        for record in &mut records {
            let index = known.binary_search_by_key(&record.slot, |known| known.slot);
            if let Some(known) = index.ok().and_then(|index| known.get(index)) {
                *record = known.merged(record, name.columns());
            }
        }
        file.write(resolution, &records)?;
    }
    Ok(())
}

#[cfg(test)]
mod faults;

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const NOW_MS: u64 = 1_767_225_600_000;

    fn store() -> (TempDir, HistoryStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = HistoryStore::open(&folder.path().join("history"));
        assert_eq!(store.status(), &HistoryStatus::default());
        (folder, store)
    }

    fn reopened(folder: &TempDir) -> HistoryStore {
        HistoryStore::open(&folder.path().join("history"))
    }

    fn record(slot: u32, covered_s: u16, calls: f32) -> Record {
        let mut figures = vec![0.0; USAGE_COLUMNS.len()];
        figures[0] = calls;
        Record { slot, covered_s, figures: figures.into() }
    }

    #[test]
    fn records_end_by_their_age_and_a_series_without_any_with_its_name() {
        let (folder, mut store) = store();
        let hour = Resolution::Hour.slot(NOW_MS);
        for (name, slots) in [(caller(1), hour - 800..hour), (caller(2), hour - 800..hour - 750)] {
            for slot in slots {
                store.push(&name, Resolution::Hour, record(slot, 3600, 1.0));
            }
        }
        store.push(&caller(2), Resolution::Minute, record(Resolution::Minute.slot(NOW_MS) - 60_000, 60, 1.0));
        store.flush();
        let limit_ms = NOW_MS - 30 * 24 * 3_600_000;
        assert_eq!(store.forget_before(limit_ms), (80 + 50 + 1, 0));
        assert_eq!(store.forget_before(limit_ms), (0, 0));
        let mut store = reopened(&folder);
        let first = calls(&store, &caller(1), Resolution::Hour);
        assert_eq!((first.len(), first[0].0), (720, hour - 720));
        assert_eq!(store.series().map(|(name, _)| name.clone()).collect::<Vec<_>>(), [caller(1)]);
        assert_eq!(std::fs::read_dir(folder.path().join("history")).unwrap().count(), 1);
        assert_eq!(store.forget_before(NOW_MS), (720, 0));
    }

    fn caller(number: usize) -> SeriesName {
        format!("caller:key:till-{number}").parse().unwrap()
    }

    fn calls(store: &HistoryStore, name: &SeriesName, resolution: Resolution) -> Vec<(u32, u16, f32)> {
        let records = store.read(name, resolution, kept(resolution, NOW_MS)).unwrap().records;
        records.iter().map(|record| (record.slot, record.covered_s, record.figures[0])).collect()
    }

    #[test]
    fn records_are_read_before_and_after_they_are_written_and_after_a_start() {
        let (folder, mut store) = store();
        let (name, slot) = (caller(1), Resolution::Minute.slot(NOW_MS));
        store.push(&name, Resolution::Minute, record(slot, 60, 2.0));
        assert_eq!(calls(&store, &name, Resolution::Minute), [(slot, 60, 2.0)]);
        store.flush();
        assert_eq!(calls(&store, &name, Resolution::Minute), [(slot, 60, 2.0)]);
        assert_eq!(calls(&reopened(&folder), &name, Resolution::Minute), [(slot, 60, 2.0)]);
        assert_eq!(store.status().lost, 0);
    }

    #[test]
    fn the_parts_of_a_minute_before_and_after_a_start_are_one_record() {
        let (folder, mut store) = store();
        let (name, slot) = (caller(1), Resolution::Minute.slot(NOW_MS));
        store.push(&name, Resolution::Minute, record(slot, 20, 3.0));
        store.flush();
        let mut store = reopened(&folder);
        store.push(&name, Resolution::Minute, record(slot, 40, 6.0));
        assert_eq!(calls(&store, &name, Resolution::Minute), [(slot, 60, 5.0)]);
        store.flush();
        assert_eq!(calls(&store, &name, Resolution::Minute), [(slot, 60, 5.0)]);
    }

    #[test]
    fn callers_beyond_the_bound_are_others_until_one_was_away_for_a_day() {
        let (folder, mut store) = store();
        let minute = Resolution::Minute.slot(NOW_MS);
        let day = kept(Resolution::Minute, NOW_MS);
        for number in 0..DAY_SERIES_MAX {
            let place = store.place(&caller(number), day.clone());
            assert_eq!(place, caller(number));
            store.push(
                &place,
                Resolution::Minute,
                record(if number == 5 { minute - 2000 } else { minute - 7 }, 60, 1.0),
            );
        }
        assert_eq!(store.place(&caller(99), day.clone()), SeriesName::OtherCallers, "all are pending");
        store.flush();
        assert_eq!(store.place(&caller(100), day.clone()), caller(100), "the fifth was away");
        assert_eq!(store.place(&caller(5), day.clone()), SeriesName::OtherCallers);
        assert_eq!(store.place(&caller(3), day.clone()), caller(3));
        let model = "model:wine".parse().unwrap();
        assert_eq!(store.place(&model, day), model);
        assert!(std::fs::read_dir(folder.path().join("history")).unwrap().count() <= DAY_SERIES_MAX);
    }

    #[test]
    fn a_much_busier_caller_takes_the_place_for_two_years_and_no_call_is_lost() {
        let (folder, mut store) = store();
        let (minute, hour) = (Resolution::Minute.slot(NOW_MS), Resolution::Hour.slot(NOW_MS));
        for number in 0..HOUR_SERIES_MAX {
            assert!(store.take_hours(&caller(number), NOW_MS));
            store.push(&caller(number), Resolution::Minute, record(minute, 60, if number == 3 { 1.0 } else { 9.0 }));
            store.push(&caller(number), Resolution::Hour, record(hour - 1, 3600, 1.0));
            store.push(&caller(number), Resolution::Hour, record(hour, 3600, 1.0));
        }
        store.push(&SeriesName::OtherCallers, Resolution::Hour, record(hour, 3600, 0.5));
        store.flush();
        store.push(&caller(50), Resolution::Minute, record(minute, 60, 1.5));
        assert!(!store.take_hours(&caller(50), NOW_MS), "not twice as busy");
        store.push(&caller(51), Resolution::Minute, record(minute, 60, 2.5));
        assert!(store.take_hours(&caller(51), NOW_MS));
        store.flush();
        let store = reopened(&folder);
        assert_eq!(calls(&store, &caller(3), Resolution::Hour), []);
        assert_eq!(calls(&store, &caller(3), Resolution::Minute), [(minute, 60, 1.0)]);
        assert_eq!(
            calls(&store, &SeriesName::OtherCallers, Resolution::Hour),
            [(hour - 1, 3600, 1.0), (hour, 3600, 1.5)]
        );
        assert_eq!(store.series().filter(|(_, has_hours)| *has_hours).count(), HOUR_SERIES_MAX);
    }

    #[test]
    fn a_file_that_is_no_history_is_set_aside_and_a_folder_that_cannot_be_written_is_told() {
        let (folder, mut store) = store();
        store.push(&caller(1), Resolution::Minute, record(1, 60, 1.0));
        store.flush();
        let path = store.path(&caller(1));
        #[expect(clippy::disallowed_methods, reason = "a damaged file need not be durable")]
        std::fs::write(&path, b"ledge-hist").unwrap();
        let mut store = reopened(&folder);
        assert_eq!((store.status().set_aside, store.series().count()), (1, 0));
        assert!(path.with_added_extension("set-aside-1").exists());

        // A folder in the place of the file cannot be written, also by root.
        std::fs::create_dir(store.path(&caller(2))).unwrap();
        store.push(&caller(2), Resolution::Minute, record(1, 60, 1.0));
        store.flush();
        assert_eq!(store.status().lost, 1);
        assert!(store.status().problem.is_some());
        store.flush();
        assert_eq!((store.status().lost, &store.status().problem), (1, &None));
    }
}
