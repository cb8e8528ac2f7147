use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::catalog::Catalog;
use super::super::super::key::HashKey;
use super::super::super::value::{ScalarType, Value};
use super::super::super::view::{FieldId, Kind};
use super::super::super::window::{every_function, view};
use super::*;

const SECOND: i64 = 1_000_000;

/// A change of one of a few entities: at this second, or with `None` its removal.
type Step = (i64, Option<i64>);

fn changes(steps: &[Step]) -> Vec<PendingChange> {
    let mut view = view(&[ScalarType::Int64, ScalarType::String], Duration::from_secs(10));
    view.aggregations = every_function(0, Duration::from_mins(1), Duration::from_secs(5), Kind::Sliding);
    let (view, hash_key) = (Arc::new(view), HashKey::new([7; 32]));
    let change = |(seq, (entity, second)): (u64, &Step)| {
        let entity = vec![Value::Int64(*entity)];
        let key = hash_key.index_key(view.id, &entity);
        let row = |second| Row { entity: entity.clone(), event_us: second * SECOND, values: values(seq) };
        let put = |row: Row| {
            let body = Body::plain(row.encode().into());
            Action::Put(view.clone(), row, body)
        };
        PendingChange { seq, key, action: second.map_or(Action::Delete, |at| put(row(at))), latest_us: i64::MAX }
    };
    (1..).zip(steps).map(change).collect()
}

fn values(number: u64) -> Vec<(FieldId, Value)> {
    vec![(FieldId(0), Value::Int64(i64::try_from(number).unwrap()))]
}

fn applier(folder: &tempfile::TempDir, name: &str) -> Applier {
    let index = Index::open(&folder.path().join(name), 16 << 20).unwrap();
    let protection = Arc::new(Protection::new(None, &Catalog::default()));
    Applier::new(Arc::new(index), IndexContent::default(), 0, SECOND, protection)
}

fn records(applier: &Applier) -> Vec<(IndexKey, Vec<u8>)> {
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
        prop_assert_eq!(replayed.content.tally, pushed.content.tally);
        prop_assert_eq!((replayed.applied, replayed.index.applied().unwrap()), (pushed.applied, pushed.applied));
    }
}
