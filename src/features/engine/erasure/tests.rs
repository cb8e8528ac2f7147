#![expect(clippy::disallowed_methods, reason = "what a broken file system leaves is written here")]

use std::fs;
use std::time::{Duration, Instant};

use ledge_identity::sealing::{Rekey, RekeyCounts, Sealer};
use ledge_service::audit_event::AuditSink;
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::super::files::FeatureStoreFiles;
use super::*;
use crate::config::FeaturesConfig;
use crate::mem_table::MemTableChanges;
use crate::online::{
    Disclosure, FeaturePush, FeatureSelection, FieldStatus, FrameColumns, OnlineFeaturesRequest, PushTarget,
};
use crate::registry::Registry;
use crate::{FeatureCaller, FeatureStore};

pub const VIEWS: &str = "
[[entity]]
name = 'customer'
value_type = 'Int64'

[[feature_view]]
name = 'profile'
entities = ['customer']
source = { name = 'customers' }
schema = [{ name = 'note', dtype = 'String' }]
";

pub struct ErasureStore {
    pub folder: TempDir,
    pub features: FeatureStore,
    runtime: Runtime,
}

impl ErasureStore {
    pub fn ready(sealer: Sealer) -> Self {
        let is_on = sealer.is_on();
        let store = Self::open(TempDir::new().unwrap(), sealer, VIEWS);
        store.until("ready", |store| store.engine().live().is_some());
        store.until("sealed", |store| !is_on || store.engine().protection.is_complete());
        store
    }

    pub fn open(folder: TempDir, sealer: Sealer, declared: &str) -> Self {
        let (views, path) = (folder.path().join("views"), folder.path().join("store"));
        fs::create_dir_all(&views).unwrap();
        fs::write(views.join("views.toml"), declared).unwrap();
        let registry = Registry::load(&views, &path).unwrap();
        let config = FeaturesConfig { views, path, cache_mb: 16, min_free_mb: 16, ..FeaturesConfig::default() };
        let features = FeatureStore::open(&config, registry, AuditSink::to_nowhere(), sealer);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { folder, features, runtime }
    }

    pub fn close(self) -> TempDir {
        self.features.close();
        self.folder
    }

    /// As the daemon asks for it, from a thread that may wait.
    fn rekey(&self) -> Result<RekeyCounts, String> {
        let features = self.features.clone();
        let rekey = move || {
            let mut done = RekeyCounts::default();
            Rekey::rekey(&features, &|| false, &mut done).map(|()| done)
        };
        self.runtime.block_on(self.runtime.spawn_blocking(rekey)).unwrap()
    }

    pub fn engine(&self) -> &StoreEngine {
        self.features.engine().unwrap()
    }

    /// Another maintenance next to the store's own, for its occasional work.
    pub fn maintenance(&self) -> Maintenance {
        Maintenance::new(self.features.engine().unwrap().clone())
    }

    pub fn files(&self) -> FeatureStoreFiles {
        FeatureStoreFiles::new(&self.folder.path().join("store")).unwrap()
    }

    pub fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let until = Instant::now() + Duration::from_mins(2);
        while !done(self) {
            assert!(Instant::now() < until, "not {what} in time: {:?}", self.features.statistics());
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    pub fn push(&self, customers: std::ops::Range<i64>) {
        self.push_these(customers.map(|customer| json!(customer)).collect());
    }

    fn push_these(&self, customers: Vec<serde_json::Value>) {
        let notes = customers.iter().map(|customer| json!(format!("note of {customer}"))).collect();
        self.push_columns(vec![("customer".into(), customers), ("note".into(), notes)]);
    }

    pub fn push_columns(&self, columns: FrameColumns) {
        let push = FeaturePush { target: PushTarget::Source("customers".into()), columns };
        self.runtime.block_on(self.features.push(push, FeatureCaller::unlimited(Principal::Local))).unwrap();
    }

    pub fn has(&self, customer: i64) -> bool {
        let request = OnlineFeaturesRequest {
            selection: FeatureSelection::Features(vec!["profile:note".into()]),
            entities: vec![("customer".into(), vec![json!(customer)])],
        };
        let found = self
            .runtime
            .block_on(self.features.get_online_features(request, FeatureCaller::unlimited(Principal::Local)))
            .unwrap();
        found.cells.column(0)[0].status == FieldStatus::Present
    }

    pub fn disclose(&self, entity: &serde_json::Value) -> Result<Disclosure, FeatureError> {
        let entity: JoinKeyValues = serde_json::from_value(entity.clone()).unwrap();
        self.runtime.block_on(self.features.disclose(entity, Principal::Local))
    }

    fn erase_named(&self, entity: &serde_json::Value) -> Vec<String> {
        let entity: JoinKeyValues = serde_json::from_value(entity.clone()).unwrap();
        let erasing = self.features.erase_with(vec![entity], Some(EntityNaming::Named), Principal::Local);
        self.runtime.block_on(erasing).unwrap().statements
    }

    pub fn erase(&self, entity: &serde_json::Value) -> Result<ErasureCounts, FeatureError> {
        let entity: JoinKeyValues = serde_json::from_value(entity.clone()).unwrap();
        self.runtime.block_on(self.features.erase(vec![entity], Principal::Local))
    }
}

fn sealer() -> Sealer {
    Sealer::with_keys(&[[5; 32]])
}

#[test]
fn a_census_over_an_index_that_lost_records_destroys_no_key() {
    let store = ErasureStore::ready(sealer());
    store.push(0..10);
    {
        // As with a bad place of the disk: sled reports nothing.
        let index = store.engine().live().unwrap();
        let mut keys = Vec::new();
        let scanned = index.scan::<IndexError>(|key, _| {
            keys.push(key);
            Ok(())
        });
        scanned.unwrap();
        let mut lost = MemTableChanges::default();
        keys.iter().take(6).for_each(|key| lost.put(key, None));
        index.top().apply(&lost).unwrap();
    }
    let refused = store.maintenance().destroy_unused_keys().unwrap_err();
    assert!(refused.to_string().contains("only 4 were found"), "{refused}");
    store.until("rebuilt", |store| store.engine().live().is_some());
    assert!((0..10).all(|customer| store.has(customer)));
    // Records that a rebuild could not find may still be restored.
    assert_eq!(store.maintenance().destroy_unused_keys().unwrap(), 0);
    assert_eq!(store.engine().protection.keys().unwrap().count(), 10);
    store.close();
}

#[test]
fn the_statement_of_an_erasure_has_the_views_records_and_times_and_the_entity_in_its_own_type() {
    let store = ErasureStore::ready(Sealer::none());
    store.push(0..3);
    let [text] = store.erase_named(&json!({ "customer": 1 })).try_into().unwrap();
    let statement = ErasureStatement::parse(&text).unwrap();
    let [view] = statement.feature_views.as_slice() else { panic!("{text}") };
    assert_eq!((statement.records, view.name.as_str(), view.records), (1, "profile", 1));
    assert!(view.earliest == view.latest && view.earliest.starts_with("20"), "{text}");
    assert_eq!(statement.entity(), Some(&[("customer".to_owned(), json!(1))].into()));
    let [again] = store.erase_named(&json!({ "customer": 1 })).try_into().unwrap();
    assert!(ErasureStatement::parse(&again).unwrap().feature_views.is_empty() && again != text);
    store.close();
}

#[test]
fn an_erasure_says_so_when_an_old_file_cannot_be_removed() {
    let store = ErasureStore::ready(Sealer::none());
    store.push(0..10);
    let files = store.files();
    let journal = files.journal().join(format!("journal-{:016x}.log", 0));
    // A file in place of a folder, and the other way round, cannot be removed.
    for (path, is_folder) in
        [(files.folder().join(snapshot::file_name(0)), true), (files.index(0), false), (journal, true)]
    {
        if is_folder {
            fs::create_dir(&path).unwrap();
        } else {
            fs::write(&path, "an index").unwrap();
        }
        let refused = store.erase(&json!({ "customer": 4 })).unwrap_err();
        assert!(matches!(refused, FeatureError::NotErased { .. }), "{}: {refused}", path.display());
        if is_folder { fs::remove_dir(&path).unwrap() } else { fs::remove_file(&path).unwrap() }
    }
    fs::write(files.folder().join("snapshot.damaged"), "note of 4").unwrap();
    assert_eq!(store.erase(&json!({ "customer": 4 })).unwrap(), ErasureCounts { records: 0, views: 0 });
    let snapshots = snapshot::list(files.folder()).unwrap();
    assert_eq!(snapshots.len(), 2);
    assert!(journal::list(&files.journal()).unwrap().iter().all(|(first_seq, _)| *first_seq >= snapshots[1].0));
    assert_eq!((files.generations().unwrap().len(), files.damaged().unwrap().len()), (1, 0));
    assert!(!store.has(4) && store.has(5));
    store.close();
}

#[test]
fn a_view_that_had_the_join_key_in_another_type_blocks_no_erasure() {
    let store = ErasureStore::ready(sealer());
    store.push(0..3);
    let (views, path) = (store.folder.path().join("views"), store.folder.path().join("store"));
    fs::write(views.join("views.toml"), VIEWS.replace("Int64", "String").replace("profile", "people")).unwrap();
    store.features.reload(Registry::load(&views, &path).unwrap()).unwrap();
    store.push_these(vec![json!("anna"), json!("7")]);
    for customer in [json!("anna"), json!(1)] {
        let erased = store.erase(&json!({ "customer": customer })).unwrap();
        assert_eq!((&customer, erased), (&customer, ErasureCounts { records: 1, views: 1 }));
    }
    for wrong in [json!(null), json!([1])] {
        assert!(matches!(store.erase(&json!({ "customer": wrong })), Err(FeatureError::Value { .. })));
    }
    assert!(matches!(store.erase(&json!({ "shop": 1 })), Err(FeatureError::Columns { .. })));
    store.close();
}

#[test]
fn keys_that_cannot_be_sealed_anew_are_not_said_to_be() {
    let store = ErasureStore::ready(sealer());
    store.push(0..3);
    assert_eq!(store.rekey(), Ok(RekeyCounts::default()));
    let folder = store.close();
    let plain = ErasureStore::ready(Sealer::none());
    assert_eq!(plain.rekey(), Ok(RekeyCounts::default()), "that is not what it is asked for");
    plain.close();
    let both = Sealer::with_keys(&[[9; 32], [5; 32]]);
    // No view is declared any more, but the files exist.
    let store = ErasureStore::open(folder, both.clone(), "");
    assert!(store.rekey().unwrap_err().contains("no feature view is declared"));
    // Nor can they be opened with the new key only.
    let store = ErasureStore::open(store.close(), Sealer::with_keys(&[[9; 32]]), VIEWS);
    assert!(store.rekey().unwrap_err().contains("which this box does not have"));
    let store = ErasureStore::open(store.close(), both, VIEWS);
    assert!(store.rekey().unwrap().old > 0);
    assert_eq!(store.rekey(), Ok(RekeyCounts::default()));
    let store = ErasureStore::open(store.close(), Sealer::with_keys(&[[9; 32]]), VIEWS);
    store.until("ready", |store| store.engine().live().is_some());
    assert!(store.has(2));
    store.close();
}
