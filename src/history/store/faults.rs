//! The store after power cuts and over two years.

use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::record::StoredRecord;

const BEGIN_MS: u64 = 1_767_225_600_000;

const PAGE: usize = 4096;

fn usage(slot: u32, covered_s: u16, calls: f32) -> Record {
    let mut figures = vec![0.0; USAGE_COLUMNS.len()];
    figures[0] = calls;
    Record { slot, covered_s, figures: figures.into() }
}

/// The content of each file of the history.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Records are fsynced every ten minutes: of those since, each page has the state after any of the writes to it.
    #[test]
    fn a_power_cut_costs_records_and_never_makes_or_doubles_one(
        flushes in prop::collection::vec(prop::collection::vec(0_u32..90, 1..8), 2..6),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 64),
        length in any::<prop::sample::Index>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (name, path): (SeriesName, _) = ("caller:key:till".parse().unwrap(), folder.path().join("history"));
        let begin = Resolution::Minute.slot(BEGIN_MS);
        let mut store = HistoryStore::open(&path);
        let mut states = Vec::new();
        let mut clock = begin;
        for minutes in &flushes {
            for minute in minutes {
                // The clock goes forward, and sometimes back into minutes that are there.
                clock = if minute % 5 == 0 { clock.saturating_sub(3).max(begin) } else { clock + minute % 4 };
                store.push(&name, Resolution::Minute, usage(clock, 20, 1.0));
            }
            store.flush();
            states.push(contents(&path));
        }
        let written = store.read(&name, Resolution::Minute, begin..clock + 100).unwrap().records;
        drop(store);

        let file = states[0].keys().next().unwrap().clone();
        let versions: Vec<&Vec<u8>> = states.iter().map(|state| &state[&file]).collect();
        let mut torn = versions[length.index(versions.len())].clone();
        for (page, choice) in torn.chunks_mut(PAGE).enumerate().skip(1).zip(&choices) {
            let (page, bytes) = page;
            let from = versions[choice.index(versions.len())];
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = from.get(page * PAGE + at).copied().unwrap_or(0);
            }
        }
        durable::replace_private(&file, &torn).unwrap();

        let mut store = HistoryStore::open(&path);
        prop_assert_eq!(store.status(), &HistoryStatus::default());
        let found = store.read(&name, Resolution::Minute, begin..clock + 100).unwrap();
        for record in &found.records {
            // A state that was written: no more seconds, and so no more calls, than were recorded.
            let whole = written.iter().find(|whole| whole.slot == record.slot).unwrap();
            prop_assert!(record.covered_s <= whole.covered_s && record.covered_s % 20 == 0, "{record:?} {whole:?}");
            prop_assert!((record.figures[0] - 1.0).abs() < 1e-6, "{record:?}");
        }
        let figures = FigureHistory::default();
        store.restore(&figures, Resolution::Minute.begin_ms(clock + 1));
        let hours = store.read(&name, Resolution::Hour, 0..u32::MAX).unwrap().records;
        let covered = |records: &[Record]| records.iter().map(|record| u64::from(record.covered_s)).sum::<u64>();
        prop_assert!(covered(&hours) <= covered(&found.records), "an hour has more than its minutes");
        store.push(&name, Resolution::Minute, usage(clock + 50, 60, 1.0));
        store.flush();
        let after = HistoryStore::open(&path).read(&name, Resolution::Minute, begin..clock + 100).unwrap().records;
        prop_assert_eq!(after.len(), found.records.len() + 1);
    }
}

#[test]
fn a_torn_record_is_damaged_and_not_believed() {
    let (old, new) = (usage(7, 60, 1.0), usage(8, 60, 2.0));
    let encoded = |record: &Record| {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    };
    let (old, new) = (encoded(&old), encoded(&new));
    for cut in 1..old.len() {
        let torn: Vec<u8> = new.iter().take(cut).chain(old.iter().skip(cut)).copied().collect();
        let is_one = torn == old || torn == new;
        assert!(is_one || Record::decode(&torn) == StoredRecord::Damaged, "{cut}");
    }
}

/// Two years of the 20 busiest models and callers, the others and the box, at all resolutions.
#[test]
fn two_years_of_20_models_and_20_callers_are_less_than_50_mb() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history");
    let now_ms = BEGIN_MS + 731 * 86_400_000;
    let mut store = HistoryStore::open(&path);
    let own = (0..20).flat_map(|number| [format!("model:m{number}"), format!("caller:key:till-{number}")]);
    let names = own.chain(["models:others", "callers:others", "box"].map(str::to_owned));
    let names: Vec<SeriesName> = names.map(|name| name.parse().unwrap()).collect();
    let begun = Instant::now();
    for name in &names {
        assert_eq!(store.place(name, kept(Resolution::Minute, now_ms)), *name);
        assert!(store.take_hours(name, now_ms));
        for resolution in Resolution::ALL {
            for slot in kept(resolution, now_ms) {
                let figures = vec![1.0; name.columns().len()].into();
                store.push(name, resolution, Record { slot, covered_s: 5, figures });
            }
        }
    }
    store.flush();
    let filled = begun.elapsed();
    assert_eq!(store.status(), &HistoryStatus::default());

    let files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().metadata().unwrap()).collect();
    let bytes: u64 = files.iter().map(std::fs::Metadata::len).sum();
    assert!(files.len() == names.len() && bytes <= STORE_BYTES_MAX && bytes < 50_000_000, "{bytes} bytes");

    let begun = Instant::now();
    let opened = HistoryStore::open(&path);
    let opening = begun.elapsed();
    let begun = Instant::now();
    opened.restore(&FigureHistory::default(), now_ms);
    let restoring = begun.elapsed();
    let begun = Instant::now();
    let all = opened.read(&SeriesName::Box, Resolution::Hour, kept(Resolution::Hour, now_ms)).unwrap();
    let reading = begun.elapsed();
    assert_eq!((all.records.len(), all.damaged), (Resolution::Hour.slots() as usize, 0));
    println!(
        "{} files, {bytes} bytes; written in {filled:?}, opened in {opening:?}, restored in {restoring:?}; {} hours of the \
         box read in {reading:?}",
        files.len(),
        all.records.len()
    );
}
