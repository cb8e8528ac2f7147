use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::catalog::ViewCatalog;
use super::super::super::index::MemTable;
use super::super::super::key::HashKey;
use super::super::super::snapshot::{SnapshotHeader, SortedTable, write_file};
use super::super::super::value::{ScalarType, Value};
use super::super::super::view::{FieldId, WindowKind};
use super::super::super::window::{every_function, view};
use super::super::snapshots::SnapshotScanError;
use super::*;

const SECOND: i64 = 1_000_000;

/// A change of one of a few entities: at this second, or with `None` its removal.
type EntityStep = (i64, Option<i64>);

fn changes(steps: &[EntityStep]) -> Vec<PendingChange> {
    let mut view = view(&[ScalarType::Int64, ScalarType::String], Duration::from_secs(10));
    view.aggregations = every_function(0, Duration::from_mins(1), Duration::from_secs(5), WindowKind::Sliding);
    let (view, hash_key) = (Arc::new(view), HashKey::new([7; 32]));
    let change = |(seq, (entity, second)): (u64, &EntityStep)| {
        let entity = vec![Value::Int64(*entity)];
        let key = hash_key.index_key(view.id, &entity);
        let row = |second| FeatureRow { entity: entity.clone(), event_us: second * SECOND, values: values(seq) };
        let put = |row: FeatureRow| {
            let body = RecordBody::plain(row.encode().into());
            PendingAction::Put(view.clone(), row, body)
        };
        PendingChange { seq, key, action: second.map_or(PendingAction::Delete, |at| put(row(at))), latest_us: i64::MAX }
    };
    (1..).zip(steps).map(change).collect()
}

fn values(number: u64) -> Vec<(FieldId, Value)> {
    vec![(FieldId(0), Value::Int64(i64::try_from(number).unwrap()))]
}

fn applier(folder: &tempfile::TempDir, name: &str) -> IndexApplier {
    let layer = MemTable::open(&folder.path().join(name), 16 << 20).unwrap();
    let index = EntityIndex::new(None, Arc::new(layer));
    let protection = Arc::new(RowCipher::new(None, &ViewCatalog::default()));
    IndexApplier::new(Arc::new(index), IndexContent::default(), 0, SECOND, protection)
}

fn records(applier: &IndexApplier) -> Vec<(IndexKey, Vec<u8>)> {
    let mut found = Vec::new();
    applier
        .index
        .scan::<IndexError>(|key, record| {
            found.push((key, record.to_vec()));
            Ok(())
        })
        .unwrap();
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_replay_makes_the_records_that_pushes_made_also_after_one_that_was_cut_off(
        steps in vec((0..40_i64, prop::option::weighted(0.9, 0..300_i64)), 1..400),
        cut in 0..400_usize,
        batch in 1..200_usize,
    ) {
        let (folder, pending) = (tempfile::tempdir().unwrap(), changes(&steps));
        let mut pushed = applier(&folder, "pushed");
        pushed.apply(&pending).unwrap();

        let mut replayed = applier(&folder, "replayed");
        // A crash: those before the end of a batch count as applied, and some behind it are there.
        let cut = cut.min(pending.len());
        for entries in pending[..cut].chunks(batch) {
            replayed.replay(entries.to_vec()).unwrap();
        }
        for entries in pending[cut / 2..].chunks(batch) {
            replayed.replay(entries.to_vec()).unwrap();
        }
        prop_assert_eq!(records(&replayed), records(&pushed));
        prop_assert_eq!(replayed.content.top.checksum, pushed.content.top.checksum);
        let applied = replayed.index.top().applied().unwrap();
        prop_assert_eq!((replayed.applied, applied), (pushed.applied, pushed.applied));
    }

    #[test]
    fn an_index_over_snapshots_has_what_one_layer_would_have(
        steps in vec((0..40_i64, prop::option::weighted(0.8, 0..300_i64)), 1..300),
        cuts in vec(1..60_usize, 1..6),
        written in any::<[bool; 6]>(),
    ) {
        let (folder, pending) = (tempfile::tempdir().unwrap(), changes(&steps));
        let mut whole = applier(&folder, "whole");
        let mut parted = applier(&folder, "parted");
        let (mut rest, mut next) = (&pending[..], 0);
        for (round, (cut, written)) in cuts.iter().zip(written).enumerate() {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            rest = later;
            prop_assert_eq!(parted.apply(now).unwrap(), whole.apply(now).unwrap());
            next += now.len() as u64;
            // A snapshot that fails leaves its layer to the next attempt.
            if parted.index.frozen().is_none() {
                let (layer, number) = (MemTable::open(&folder.path().join(format!("layer {round}")), 16 << 20).unwrap(), next + 1);
                layer.begin(number, [0; 8]).unwrap();
                let records = parted.content.records();
                let index = parted.index.rotate(Arc::new(layer), number, records, parted.content.top.changed());
                parted.rotate(Arc::new(index));
            }
            if written {
                let number = parted.index.frozen().unwrap().number + round as u64;
                let table = Arc::new(snapshot(&folder, &parted.index, number));
                let index = Arc::new(parted.index.install(table.clone()));
                parted.install(index, table.statistics());
            }
            prop_assert_eq!(records(&parted), records(&whole));
            for (key, record) in records(&whole) {
                let found = parted.index.get(&key).unwrap();
                prop_assert_eq!(found.as_deref(), Some(&record[..]));
            }
            prop_assert_eq!(parted.content.records(), whole.content.records());
        }
        prop_assert_eq!(parted.apply(rest).unwrap(), whole.apply(rest).unwrap());
        prop_assert_eq!(records(&parted), records(&whole));
        let entities = (0..40).map(|entity| HashKey::new([7; 32]).index_key(view(&[], Duration::ZERO).id, &[Value::Int64(entity)]));
        for key in entities {
            let (one, other) = (parted.index.get(&key).unwrap(), whole.index.get(&key).unwrap());
            prop_assert_eq!(one.as_deref(), other.as_deref());
        }
    }
}

/// A snapshot of everything below the top layer.
fn snapshot(folder: &tempfile::TempDir, index: &EntityIndex, replay_from: u64) -> SortedTable {
    let header =
        SnapshotHeader { replay_from, created_ms: 0, hash_key_id: [0; 8], partial: false, catalog: String::new() };
    let (path, _) = write_file(folder.path(), &header, |writer| {
        index.scan_frozen(|key, record| Ok(writer.add(&key, record)?)).map_err(|error: SnapshotScanError| match error {
            SnapshotScanError::Io(error) => error,
            SnapshotScanError::Index(error) => std::io::Error::other(error),
        })
    })
    .unwrap();
    SortedTable::open(&path).unwrap().unwrap()
}
