//! The files after an erasure: no file and no backup has the entity.

use std::collections::BTreeSet;
use std::fs;

use aho_corasick::AhoCorasick;
use ledge::features::JoinKeyValues;
use ledge::features::entity_keys::EntityKeys;
use ledge::features::online::{FeatureError, FieldStatus};
use ledge::features::snapshot::{SnapshotHeader, SnapshotReader, SnapshotWriter};
use ledge::identity::sealing::Sealer;
use ledge::principal::Principal;
use serde_json::json;
use tempfile::TempDir;

use super::{NOTHING, Store, customer, found_in, mark, patterns, ready, sealer};
use crate::daemon::copy;

#[test]
fn an_erased_entity_is_in_no_file_and_no_later_backup() {
    for sealer in [sealer(), Sealer::none()] {
        let folder = TempDir::new().unwrap();
        let customers: Vec<i64> = (0..50).map(customer).collect();
        let store = ready(folder.path(), sealer.clone());
        if sealer.is_on() {
            store.until("sealed", |store| store.statistics().unwrap().sealing == "on");
        }
        store.push_customers(&customers);
        store.snapshot();
        // Again, so that journal and snapshot both have it.
        store.push_customers(&customers);
        for shop in ["north", "south"] {
            store.visit(customers[42], shop);
            store.visit(customers[43], shop);
        }
        let before = store.backup(None);
        let gone = AhoCorasick::new(patterns(&customers[42..43])).unwrap();
        assert!(gone.find_iter(&before).count() > 0);
        assert_eq!(store.erase(json!({ "customer": customers[42] })), (4, 3));
        assert_eq!(store.note(customers[42]), None);
        assert_eq!(store.note(customers[43]), Some(mark(customers[43])));
        let visit = |store: &Store, number: usize, shop: &str| {
            let entity = [("customer", json!(customers[number])), ("shop", json!(shop))];
            store.read(&["visits:note"], &entity)[0].0
        };
        assert_eq!(visit(&store, 42, "north"), FieldStatus::NotFound);
        assert_eq!(visit(&store, 43, "south"), FieldStatus::Present);
        assert_eq!(gone.find_iter(&store.backup(None)).count(), 0, "a later backup");
        assert_eq!(found_in(&store.path, &gone), NOTHING);
        assert_eq!(store.erase(json!({ "customer": customers[42] })), (0, 0));

        // With all files that are left, and the master key.
        let stolen = TempDir::new().unwrap();
        copy(&store.path, &stolen.path().join("store"));
        if sealer.is_on() {
            let keys = EntityKeys::open(&stolen.path().join("store"), sealer.clone()).unwrap().keys;
            let value = ledge::features::value::Value::Int64;
            let tag = |number: usize| keys.tag([("customer", &value(customers[number]))]);
            assert_eq!(keys.key_ids(&tag(42)), [0; 0], "its key");
            assert_eq!(keys.key_ids(&tag(43)).len(), 1, "another one's key");
        }
        // Without the index, so that everything that the journal and the snapshots have is tried.
        for entry in fs::read_dir(stolen.path().join("store")).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("index-") {
                fs::remove_dir_all(path).unwrap();
            }
        }
        let thief = ready(stolen.path(), sealer.clone());
        assert_eq!((thief.note(customers[42]), thief.note(customers[43])), (None, Some(mark(customers[43]))));
        assert_eq!(visit(&thief, 42, "south"), FieldStatus::NotFound);
        assert_eq!(thief.features.statistics().unwrap().damage_found, 0, "erased is not damaged");
        thief.close();

        // A backup from before does not bring it back; a push does.
        store.restore(&before);
        assert_eq!((store.note(customers[42]), store.note(customers[43])), (None, Some(mark(customers[43]))));
        assert_eq!(visit(&store, 42, "north"), FieldStatus::NotFound);
        store.push_customers(&customers[42..43]);
        assert_eq!(store.note(customers[42]), Some(mark(customers[42])));
        let later = store.backup(None);
        store.restore(&later);
        assert_eq!(store.note(customers[42]), Some(mark(customers[42])));
        store.close();
        let store = ready(folder.path(), sealer);
        assert_eq!(store.note(customers[42]), Some(mark(customers[42])));
        store.close();
    }
}

/// A backup with another time in its header.
fn made_at(backup: &[u8], created_ms: u64) -> Vec<u8> {
    let mut reader = SnapshotReader::new(backup).unwrap();
    let header = SnapshotHeader { created_ms, ..reader.header().clone() };
    let mut writer = SnapshotWriter::new(Vec::new(), &header).unwrap();
    while let Some((key, record)) = reader.next().unwrap() {
        writer.add(&key, &record).unwrap();
    }
    writer.finish().unwrap().0
}

#[test]
fn no_backup_that_was_begun_before_an_erasure_brings_the_entity_back_whatever_the_clock_said() {
    let folder = TempDir::new().unwrap();
    let customers: Vec<i64> = (0..4_000).map(customer).collect();
    let store = ready(folder.path(), sealer());
    for customers in customers.chunks(500) {
        store.push_customers(customers);
    }
    let before = store.backup(None);
    let all: BTreeSet<i64> = customers.iter().copied().collect();
    let (erased, kept) = (customers[42], customers[43]);
    // A backup in progress: its pieces wait for their reader, and the last rows are not in them yet.
    let mut under_way = store.runtime.block_on(store.features.backup(None, None, &Principal::Local)).unwrap();
    store.erase(json!({ "customer": erased }));
    let during = store.runtime.block_on(async {
        let mut bytes = Vec::new();
        while let Some(piece) = under_way.next().await {
            bytes.extend_from_slice(&piece.unwrap());
        }
        bytes
    });
    let after = store.backup(None);
    store.push_customers(&[erased]);
    let again = store.backup(None);
    // Clocks go wrong by years, in both directions.
    for created_ms in [1, u64::MAX] {
        for (backup, has) in [(&before, false), (&during, false), (&after, false), (&again, true)] {
            store.restore(&made_at(backup, created_ms));
            assert_eq!(store.note(erased).is_some(), has, "{created_ms}");
            assert_eq!(store.note(kept), Some(mark(kept)));
        }
    }
    assert_eq!(all.iter().filter(|customer| store.note(**customer).is_none()).count(), 0);
    store.close();

    // Numbers of another store say nothing here: the time does.
    let elsewhere = TempDir::new().unwrap();
    let other = ready(elsewhere.path(), sealer());
    other.push_customers(&[erased, kept]);
    let foreign = other.backup(None);
    other.close();
    let store = ready(folder.path(), sealer());
    for (created_ms, has) in [(1, false), (u64::MAX, true)] {
        store.restore(&made_at(&foreign, created_ms));
        assert_eq!((store.note(erased).is_some(), store.note(kept)), (has, Some(mark(kept))));
    }
    store.close();
}

#[test]
fn what_has_no_view_is_not_erased_and_says_so() {
    let folder = TempDir::new().unwrap();
    let store = ready(folder.path(), sealer());
    for wrong in [json!({}), json!({ "vehicle": 1 }), json!({ "customer": "no number" }), json!({ "customer": null })] {
        let entity: JoinKeyValues = serde_json::from_value(wrong.clone()).unwrap();
        let refused = store.runtime.block_on(store.features.erase(vec![entity], Principal::Local));
        assert!(
            matches!(refused, Err(FeatureError::Columns { .. } | FeatureError::Value { .. })),
            "{wrong}: {refused:?}"
        );
    }
}
