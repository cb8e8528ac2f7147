use std::os::unix::fs::FileExt;

use ledge_identity::sealing::Sealer;
use tempfile::TempDir;

use super::super::erasure::tests::{ErasureStore, VIEWS};
use super::*;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &to) } else { assert!(fs::copy(entry.path(), to).is_ok()) }
    }
}

fn numbers(store: &ErasureStore) -> Vec<u64> {
    snapshot::list(store.files().folder()).unwrap().into_iter().map(|(number, _)| number).collect()
}

fn has_all(store: &ErasureStore, customers: std::ops::Range<i64>) {
    for customer in customers.clone() {
        assert!(store.has(customer), "{customer}");
    }
    assert!(!store.has(customers.end));
    assert_eq!(store.engine().counters.with_views(|views| views.values().map(|view| view.rows).sum::<u64>()), 1000);
}

fn has_all_after_a_start(folder: TempDir) -> ErasureStore {
    let store = ErasureStore::open(folder, Sealer::none(), VIEWS);
    store.until("ready", |store| store.engine().live().is_some());
    has_all(&store, 0..1000);
    store
}

#[test]
fn a_snapshot_that_rots_while_it_answers_reads_is_replaced_and_nothing_is_lost() {
    let store = ErasureStore::ready(Sealer::none());
    let mut maintenance = store.maintenance();
    store.push(0..500);
    maintenance.snapshot().unwrap();
    store.push(500..900);
    maintenance.snapshot().unwrap();
    store.push(900..1000);
    let newest = store.files().folder().join(snapshot::file_name(numbers(&store)[0]));
    let file = fs::File::options().read(true).write(true).open(&newest).unwrap();
    let (mut byte, middle) = ([0], file.metadata().unwrap().len() / 2);
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();

    maintenance.scrub();
    has_all(&store, 0..1000);
    assert_eq!(numbers(&store).len(), 2);
    assert!(
        snapshot::list(store.files().folder()).unwrap().iter().all(|(_, path)| snapshot::verify_file(path).is_ok())
    );
    assert_eq!(store.files().generations().unwrap().len(), 1);
    assert_eq!(store.engine().counters.damage_found.load(Relaxed), 1);
    let folder = store.close();
    has_all_after_a_start(folder).close();
}

#[test]
fn a_snapshot_that_fails_leaves_its_changes_to_the_next_one_and_to_a_start_after_a_crash() {
    let store = ErasureStore::ready(Sealer::none());
    let mut maintenance = store.maintenance();
    store.push(0..400);
    // No snapshot can be written over this.
    let in_the_way = store.files().folder().join(format!("{}.tmp", snapshot::file_name(1)));
    fs::create_dir(&in_the_way).unwrap();
    maintenance.snapshot().unwrap_err();
    store.push(400..700);
    maintenance.snapshot().unwrap_err();
    store.push(300..1000);
    has_all(&store, 0..1000);
    assert_eq!((numbers(&store).len(), store.files().generations().unwrap().len()), (0, 2));

    let crashed = TempDir::new().unwrap();
    copy(store.folder.path(), crashed.path());
    fs::remove_dir(crashed.path().join("store").join(in_the_way.file_name().unwrap())).unwrap();
    let started = has_all_after_a_start(crashed);
    started.maintenance().snapshot().unwrap();
    has_all(&started, 0..1000);
    started.close();

    fs::remove_dir(&in_the_way).unwrap();
    maintenance.snapshot().unwrap();
    has_all(&store, 0..1000);
    assert_eq!((numbers(&store).len(), store.files().generations().unwrap().len()), (2, 1));
    store.close();
}

#[test]
fn two_snapshots_of_the_same_content_have_two_numbers() {
    let store = ErasureStore::ready(Sealer::none());
    let mut maintenance = store.maintenance();
    store.push(0..1000);
    maintenance.snapshot().unwrap();
    maintenance.snapshot().unwrap();
    let numbers = numbers(&store);
    assert_eq!(numbers.len(), 2);
    // One of them, and no journal before it, is a whole store.
    let folder = store.close();
    let path = folder.path().join("store");
    fs::remove_file(path.join(snapshot::file_name(numbers[0]))).unwrap();
    has_all_after_a_start(folder).close();
}

#[test]
fn expired_rows_are_left_out_of_a_snapshot_but_not_in_the_hour_after_a_start() {
    let declared = VIEWS.replace("name = 'profile'\n", "name = 'profile'\nttl = '1h'\n");
    let store = ErasureStore::open(TempDir::new().unwrap(), Sealer::none(), &declared);
    store.until("ready", |store| store.engine().live().is_some());
    let mut maintenance = store.maintenance();
    let push = |customers: std::ops::Range<i64>| {
        let customers: Vec<_> = customers.map(|customer| serde_json::json!(customer)).collect();
        let times = customers.iter().map(|_| serde_json::json!("2020-01-01T00:00:00Z")).collect();
        let notes = customers.iter().map(|_| serde_json::json!("old")).collect();
        let columns = vec![("customer".into(), customers), ("note".into(), notes), ("event_timestamp".into(), times)];
        store.push_columns(columns);
    };
    push(0..10);
    store.push(10..20);
    maintenance.snapshot().unwrap();
    let records = |store: &ErasureStore| store.engine().live().unwrap().snapshot().unwrap().records();
    assert_eq!((records(&store), maintenance.has_expired()), (20, true));

    maintenance.no_removal_before = Instant::now();
    // One that comes back is no longer expired.
    store.push(0..1);
    maintenance.snapshot().unwrap();
    assert_eq!((records(&store), maintenance.has_expired()), (11, false));
    assert_eq!(store.features.statistics().unwrap().purged, 9);
    assert!(store.has(0) && !store.has(1) && (10..20).all(|customer| store.has(customer)));
    assert_eq!(store.engine().counters.with_views(|views| views.values().map(|view| view.rows).sum::<u64>()), 11);
    store.close();
}
