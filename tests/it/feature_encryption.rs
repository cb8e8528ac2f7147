//! The feature store sealed: what is in its files, what an erasure leaves, and what becomes of damaged or missing keys.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aho_corasick::AhoCorasick;
use ledge::audit_event::AuditSink;
use ledge::features::backup_cipher::BackupIdentity;
use ledge::features::config::FeaturesConfig;
use ledge::features::entity_keys::EntityKeys;
use ledge::features::online::{Columns, FeatureError, FieldStatus, OnlineRequest, Push, PushTarget, Selection};
use ledge::features::registry::Registry;
use ledge::features::snapshot::{Header, SnapshotReader, SnapshotWriter};
use ledge::features::{Entity, FeatureStore};
use ledge::identity::sealing::{EncryptionConfig, Sealer};
use ledge::principal::Principal;
use ledge::secret::SecretFile;
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::daemon::{TestDaemon, TestRoot, write};

/// How long anything may take here, on a busy machine.
const LIMIT: Duration = Duration::from_mins(2);

const VIEWS: &str = "
[[entity]]
name = 'customer'
value_type = 'Int64'
[[entity]]
name = 'shop'
value_type = 'String'

[[feature_view]]
name = 'profile'
entities = ['customer']
source = { name = 'customers' }
schema = [{ name = 'share', dtype = 'Float64' }, { name = 'number', dtype = 'Int64' }, { name = 'note', dtype = 'String' },
  { name = 'vector', dtype = 'Array(Float32)' }]

[[feature_view]]
name = 'recent'
entities = ['customer']
source = { name = 'customers' }
schema = [{ name = 'number', dtype = 'Int64' }, { name = 'note', dtype = 'String' }]
[[feature_view.aggregation]]
column = 'note'
function = 'last'
time_window = '30d'
slide_interval = '1d'
name = 'last_note'

[[feature_view]]
name = 'visits'
entities = ['customer', 'shop']
source = { name = 'visits' }
schema = [{ name = 'note', dtype = 'String' }]
";

const MASTER: [u8; 32] = [5; 32];

struct Store {
    runtime: Runtime,
    features: FeatureStore,
    path: PathBuf,
}

fn open(folder: &Path, sealer: Sealer) -> Store {
    let (views, path) = (folder.join("views"), folder.join("store"));
    fs::create_dir_all(&views).unwrap();
    write(&views.join("views.toml"), VIEWS.as_bytes());
    let registry = Registry::load(&views, &path).unwrap();
    let config =
        FeaturesConfig { views, path: path.clone(), cache_mb: 16, min_free_mb: 16, ..FeaturesConfig::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = FeatureStore::open(&config, registry, AuditSink::to_nowhere(), sealer);
    runtime.block_on(store.opened());
    Store { runtime, features: store, path }
}

fn ready(folder: &Path, sealer: Sealer) -> Store {
    let opened = open(folder, sealer);
    opened.until("ready", |store| store.statistics().unwrap().state == "ready");
    opened
}

fn sealer() -> Sealer {
    Sealer::with_keys(&[MASTER])
}

impl Store {
    fn until(&self, what: &str, done: impl Fn(&FeatureStore) -> bool) {
        let until = Instant::now() + LIMIT;
        while !done(&self.features) {
            assert!(Instant::now() < until, "not {what} in time: {:?}", self.features.statistics());
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn push(&self, source: &str, columns: Columns) {
        let push = Push { target: PushTarget::Source(source.into()), columns };
        self.runtime.block_on(self.features.push(push)).unwrap();
    }

    fn push_customers(&self, customers: &[i64]) {
        self.push("customers", customers_columns(customers));
    }

    fn visit(&self, customer: i64, shop: &str) {
        let note = format!("visit of {} to {shop}", mark(customer));
        self.push(
            "visits",
            vec![
                ("customer".into(), vec![json!(customer)]),
                ("shop".into(), vec![json!(shop)]),
                ("note".into(), vec![json!(note)]),
            ],
        );
    }

    /// The cells of features of one entity.
    fn read(&self, features: &[&str], entity: &[(&str, Json)]) -> Vec<(FieldStatus, Json)> {
        let request = OnlineRequest {
            selection: Selection::Features(features.iter().map(ToString::to_string).collect()),
            entities: entity.iter().map(|(name, value)| ((*name).to_owned(), vec![value.clone()])).collect(),
        };
        let found = self.runtime.block_on(self.features.get_online_features(request)).unwrap();
        let cell = |column: &ledge::features::online::FeatureColumn| {
            let cell = &column.cells[0];
            (cell.status, cell.value.as_ref().map_or(Json::Null, ledge::features::value::Value::to_json))
        };
        found.columns.iter().map(cell).collect()
    }

    fn note(&self, customer: i64) -> Option<String> {
        let cells = self.read(&["profile:note", "recent:last_note"], &[("customer", json!(customer))]);
        assert_eq!(cells[0].0, cells[1].0, "both views have the entity, or neither");
        assert_eq!(cells[0].1, cells[1].1);
        cells[0].1.as_str().map(str::to_owned)
    }

    fn erase(&self, entity: Json) -> (u64, u64) {
        let entity: Entity = serde_json::from_value(entity).unwrap();
        let erased = self.runtime.block_on(self.features.erase(vec![entity], Principal::Local)).unwrap();
        (erased.records, erased.views)
    }

    fn snapshot(&self) {
        self.runtime.block_on(self.features.snapshot()).unwrap();
    }

    fn backup(&self, recipient: Option<ledge::features::backup_cipher::BackupRecipient>) -> Vec<u8> {
        self.runtime.block_on(async {
            let mut pieces = self.features.backup(None, recipient, &Principal::Local).await.unwrap();
            let mut bytes = Vec::new();
            while let Some(piece) = pieces.next().await {
                bytes.extend_from_slice(&piece.unwrap());
            }
            bytes
        })
    }

    fn restore(&self, backup: &[u8]) -> u64 {
        self.runtime.block_on(async {
            let mut upload = self.features.upload().unwrap();
            upload.write(backup).await.unwrap();
            self.features.restore(upload, Principal::Local).await.unwrap()
        })
    }

    fn close(self) -> PathBuf {
        self.features.close();
        self.path
    }
}

/// What nothing but the values of a customer contains.
fn mark(customer: i64) -> String {
    format!("marked-{customer}-{}", customer.wrapping_mul(7_919))
}

fn number(customer: i64) -> i64 {
    customer.wrapping_mul(0x5851_f42d_4c95_7f2d)
}

#[expect(clippy::cast_precision_loss, reason = "any number will do")]
fn share(customer: i64) -> f64 {
    number(customer) as f64 * 1.000_000_7
}

fn vector(customer: i64) -> [f32; 2] {
    #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
    [share(customer) as f32, (share(customer) / 3.0) as f32]
}

/// Keys that do not come by chance.
fn customer(number: i64) -> i64 {
    0x0123_4567_89ab_0000 + number * 0x0101_0101
}

fn customers_columns(customers: &[i64]) -> Columns {
    let of = |value: &dyn Fn(i64) -> Json| customers.iter().map(|customer| value(*customer)).collect::<Vec<_>>();
    vec![
        ("customer".into(), of(&|customer| json!(customer))),
        ("share".into(), of(&|customer| json!(share(customer)))),
        ("number".into(), of(&|customer| json!(number(customer)))),
        ("note".into(), of(&|customer| json!(mark(customer)))),
        ("vector".into(), of(&|customer| json!(vector(customer)))),
    ]
}

/// The bytes that any of these customers' values or keys would leave.
fn patterns(customers: &[i64]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for &customer in customers {
        let [a, b] = vector(customer);
        all.push(mark(customer).into_bytes());
        all.extend(
            [customer, number(customer)].into_iter().flat_map(|n| [n.to_le_bytes().to_vec(), n.to_be_bytes().to_vec()]),
        );
        all.extend([share(customer).to_le_bytes().to_vec(), share(customer).to_be_bytes().to_vec()]);
        all.extend([[a.to_le_bytes(), b.to_le_bytes()].concat(), [a.to_be_bytes(), b.to_be_bytes()].concat()]);
        all.extend([customer.to_string(), number(customer).to_string()].map(String::into_bytes));
    }
    all
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// How many times any of the patterns stands in the files, and in which.
fn found_in(folder: &Path, searcher: &AhoCorasick) -> (usize, BTreeSet<String>) {
    let (mut count, mut names) = (0, BTreeSet::new());
    for file in files(folder) {
        // A file may go while it is looked for.
        let Ok(bytes) = fs::read(&file) else { continue };
        let found = searcher.find_iter(&bytes).count();
        count += found;
        if found > 0 {
            names.insert(file.strip_prefix(folder).unwrap().display().to_string());
        }
    }
    (count, names)
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, &target).unwrap();
    }
}

const NOTHING: (usize, BTreeSet<String>) = (0, BTreeSet::new());

#[test]
fn no_file_of_a_sealed_store_has_any_of_ten_thousand_values() {
    let customers: Vec<i64> = (0..2_000).map(customer).collect();
    let searcher = AhoCorasick::new(patterns(&customers)).unwrap();
    let folder = TempDir::new().unwrap();
    let store = ready(folder.path(), sealer());
    store.until("sealed", |store| store.statistics().unwrap().sealing == "on");
    for customers in customers.chunks(500) {
        store.push_customers(customers);
    }
    store.visit(customers[0], "shop of many letters");
    assert_eq!(found_in(folder.path(), &searcher), NOTHING, "journal");
    store.snapshot();
    assert_eq!(found_in(folder.path(), &searcher), NOTHING, "snapshot");
    store.runtime.block_on(store.features.compact()).unwrap();
    assert_eq!(found_in(folder.path(), &searcher), NOTHING, "index");
    let (identity, recipient) = BackupIdentity::ephemeral();
    let encrypted = store.backup(Some(recipient));
    assert_eq!(searcher.find_iter(&encrypted).count(), 0, "backup");
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut identity.decrypt(&encrypted[..]).unwrap(), &mut plain).unwrap();
    assert!(searcher.find_iter(&plain).count() >= 10_000, "that is what the search finds");
    assert_eq!(store.restore(&plain), 4_001);
    assert_eq!(found_in(folder.path(), &searcher), NOTHING, "restored");
    store.close();
    assert_eq!(found_in(folder.path(), &searcher), NOTHING, "closed");
    let store = ready(folder.path(), sealer());
    for customer in &customers {
        assert_eq!(store.note(*customer), Some(mark(*customer)));
    }
    let cells = store.read(&["profile"], &[("customer", json!(customers[7]))]);
    assert_eq!(cells[1].1, json!(number(customers[7])));
    assert_eq!(store.features.statistics().unwrap().damage_found, 0);
    store.close();
    assert_eq!(found_in(folder.path(), &searcher), NOTHING, "after another start");
}

#[test]
fn sealing_turned_on_over_a_plain_store_leaves_nothing_plain() {
    let customers: Vec<i64> = (0..300).map(customer).collect();
    let searcher = AhoCorasick::new(patterns(&customers)).unwrap();
    let folder = TempDir::new().unwrap();
    let store = ready(folder.path(), Sealer::none());
    assert_eq!(store.features.statistics().unwrap().sealing, "off");
    store.push_customers(&customers[..200]);
    store.snapshot();
    store.push_customers(&customers[200..]);
    store.close();
    let (before, names) = found_in(folder.path(), &searcher);
    assert!(before > 1_000 && names.len() >= 3, "{names:?}");
    let store = ready(folder.path(), sealer());
    store.until("sealed", |store| store.statistics().unwrap().sealing == "on");
    assert_eq!(found_in(folder.path(), &searcher), NOTHING);
    for customer in &customers {
        assert_eq!(store.note(*customer), Some(mark(*customer)));
    }
    store.close();
    assert_eq!(found_in(folder.path(), &searcher), NOTHING);
    // Turned off again it stays closed, and nothing is made anew.
    let before = files(folder.path());
    for (wrong, expected) in [
        (Sealer::none(), "encryption.master_key_file is not set"),
        (Sealer::with_keys(&[[6; 32]]), "which this box does not have"),
    ] {
        let store = open(folder.path(), wrong);
        assert!(store.features.statistics().is_none());
        let push = Push { target: PushTarget::Source("customers".into()), columns: customers_columns(&customers[..1]) };
        let refused = store.runtime.block_on(store.features.push(push)).unwrap_err();
        assert!(matches!(&refused, FeatureError::Unavailable { reason } if reason.contains(expected)), "{refused}");
        store.close();
    }
    assert_eq!(files(folder.path()), before);
    assert_eq!(ready(folder.path(), sealer()).note(customers[3]), Some(mark(customers[3])));
}

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
            assert_eq!(keys.of(&tag(42)), [0; 0], "its key");
            assert_eq!(keys.of(&tag(43)).len(), 1, "another one's key");
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
    let header = Header { created_ms, ..reader.header().clone() };
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
    // One that is under way: its pieces wait for whoever reads them, and the last rows are not in them yet.
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
        let entity: Entity = serde_json::from_value(wrong.clone()).unwrap();
        let refused = store.runtime.block_on(store.features.erase(vec![entity], Principal::Local));
        assert!(
            matches!(refused, Err(FeatureError::Columns { .. } | FeatureError::Value { .. })),
            "{wrong}: {refused:?}"
        );
    }
}

#[test]
fn another_master_key_under_load_loses_nothing() {
    let folder = TempDir::new().unwrap();
    let store = ready(folder.path(), sealer());
    let customers: Vec<i64> = (0..400).map(customer).collect();
    store.push_customers(&customers[..100]);
    store.close();
    // The file with the master key, which the operator changes while the store is at work.
    let file = folder.path().join("master.key");
    write(&file, &MASTER);
    let config = EncryptionConfig { master_key_file: Some(SecretFile::Path(file.clone())), ..Default::default() };
    let changing = Sealer::load(&config).unwrap();
    let store = ready(folder.path(), changing.clone());
    let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(100)));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (feature_store, stop, next, customers) =
                (store.features.clone(), stop.clone(), next.clone(), customers.clone());
            store.runtime.spawn(async move {
                let mut acknowledged = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let at = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap() % customers.len();
                    let columns = customers_columns(&customers[at..=at]);
                    let push = Push { target: PushTarget::Source("customers".into()), columns };
                    feature_store.push(push).await.unwrap();
                    acknowledged.push(at);
                }
                acknowledged
            })
        })
        .collect();
    for key in [7, 8, 9] {
        write(&file, &[key; 32]);
        assert!(changing.reload(&config).unwrap(), "it is another one");
        assert!(store.runtime.block_on(store.features.reseal()).unwrap() >= 100);
    }
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged: BTreeSet<usize> = (0..100).collect();
    for writer in writers {
        acknowledged.extend(store.runtime.block_on(writer).unwrap());
    }
    // What was made since the last time is sealed under the new key already.
    store.close();
    let store = ready(folder.path(), Sealer::with_keys(&[[9; 32]]));
    assert!(acknowledged.len() > 100);
    for at in acknowledged {
        assert_eq!(store.note(customers[at]), Some(mark(customers[at])));
    }
    store.close();
    let old = open(folder.path(), sealer());
    assert!(old.features.statistics().is_none(), "the old key opens nothing");
}

#[test]
fn one_bad_copy_of_a_key_file_is_mended_and_two_close_the_store() {
    let folder = TempDir::new().unwrap();
    let store = ready(folder.path(), sealer());
    let customers: Vec<i64> = (0..60).map(customer).collect();
    store.push_customers(&customers);
    // So that there are shards.
    store.runtime.block_on(store.features.reseal()).unwrap();
    store.push_customers(&(60..70).map(customer).collect::<Vec<_>>());
    let path = store.close();
    let (a, b) = (path.join("keys/a"), path.join("keys/b"));
    let named = |prefix: &str, suffix: &str| {
        let mut names: Vec<_> = fs::read_dir(&a)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(prefix) && name.ends_with(suffix))
            .collect();
        names.sort();
        names.remove(0)
    };
    let (shard, added) = (named("", ".keys"), named("added-", ""));
    let flip = |file: &Path| {
        let mut bytes = fs::read(file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        write(file, &bytes);
    };
    for name in [shard.as_str(), added.as_str(), "head"] {
        for copy in [&a, &b] {
            flip(&copy.join(name));
            let store = ready(folder.path(), sealer());
            assert!(customers.iter().all(|customer| store.note(*customer) == Some(mark(*customer))), "{name}");
            assert!(store.features.statistics().unwrap().damage_found > 0, "{name}: nobody is told");
            store.close();
        }
    }
    let good = TempDir::new().unwrap();
    copy(&path, good.path());
    for (name, what) in [(shard.as_str(), "whose tag begins with"), ("head", "head")] {
        for remove in [false, true] {
            for copy in [&a, &b] {
                if remove { fs::remove_file(copy.join(name)).unwrap() } else { flip(&copy.join(name)) }
            }
            let before = files(&path);
            let store = open(folder.path(), sealer());
            let refused = store.runtime.block_on(store.features.snapshot()).unwrap_err();
            assert!(matches!(&refused, FeatureError::Unavailable { reason } if reason.contains(what)), "{refused}");
            store.close();
            assert_eq!(files(&path), before, "{name}: something was made anew");
            for copy in ["keys/a", "keys/b"] {
                fs::copy(good.path().join(copy).join(name), path.join(copy).join(name)).unwrap();
            }
        }
    }
    let store = ready(folder.path(), sealer());
    assert!(customers.iter().all(|customer| store.note(*customer) == Some(mark(*customer))));
}

#[test]
fn a_folder_of_keys_that_is_missing_is_not_taken_for_a_new_store() {
    let folder = TempDir::new().unwrap();
    let store = ready(folder.path(), sealer());
    store.until("sealed", |store| store.statistics().unwrap().sealing == "on");
    let customers: Vec<i64> = (0..30).map(customer).collect();
    store.push_customers(&customers[..20]);
    store.snapshot();
    store.push_customers(&customers[20..]);
    let path = store.close();
    let (keys, away) = (path.join("keys"), folder.path().join("away"));
    for empty in [false, true] {
        ledge::durable::rename(&keys, &away).unwrap();
        if empty {
            // As a disk that is not mounted leaves it.
            fs::create_dir_all(keys.join("a")).unwrap();
        }
        let before = files(&path);
        let store = open(folder.path(), sealer());
        let refused = store.runtime.block_on(store.features.snapshot()).unwrap_err();
        assert!(
            matches!(&refused, FeatureError::Unavailable { reason } if reason.contains("put the folder")),
            "{refused}"
        );
        store.close();
        assert_eq!(files(&path), before, "something was made anew, or removed");
        let _ = fs::remove_dir_all(&keys);
        ledge::durable::rename(&away, &keys).unwrap();
        let store = ready(folder.path(), sealer());
        assert!(customers.iter().all(|customer| store.note(*customer) == Some(mark(*customer))));
        store.close();
    }
}

/// Runs `ledge features` for the daemon.
fn run(daemon: &TestDaemon, arguments: &[&str]) -> std::process::Output {
    daemon.root.command(&[&["features"], arguments].concat()).output().unwrap()
}

#[track_caller]
fn done(daemon: &TestDaemon, arguments: &[&str]) -> String {
    let output = run(daemon, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn sealed_root() -> TestRoot {
    let root = TestRoot::new().views(VIEWS);
    write(&root.folder.path().join("master.key"), &MASTER);
    root.set("encryption.master_key_file=\"master.key\"")
}

#[test]
fn an_entity_is_erased_and_a_backup_encrypted_from_the_command_line_and_over_http() {
    let daemon = sealed_root().start();
    let folder = daemon.root.folder.path().to_owned();
    let file = |name: &str| folder.join(name).display().to_string();
    let mut client = daemon.client();
    done(&daemon, &["push", "visits", "customer=42", "shop=north", "note=of 42"]);
    done(&daemon, &["push", "visits", "customer=43", "shop=north", "note=of 43"]);
    let identity = age::x25519::Identity::generate();
    let recipient = identity.to_public().to_string();
    let secret = age::secrecy::ExposeSecret::expose_secret(&identity.to_string()).to_owned();
    write(&folder.join("identity.txt"), format!("# public key: {recipient}\n{secret}\n").as_bytes());

    // A sealed store asks whether a plain one is meant.
    let refused = client.get("/features/backup");
    assert_eq!((refused.status, refused.error().contains("recipient=age1")), (400, true), "{}", refused.error());
    for query in
        ["recipient=age1nonsense", "plain=yes", "plain=true&recipient=", "feature_view=visits&feature_view=visits"]
    {
        assert_eq!(client.get(&format!("/features/backup?{query}")).status, 400, "{query}");
    }
    assert!(!run(&daemon, &["backup", &file("refused.ledge")]).status.success());
    let told = done(&daemon, &["backup", &file("cli.age"), "--to", &recipient]);
    assert!(told.contains("2 records") && told.contains("encrypted"), "{told}");
    write(&folder.join("http.age"), &client.get(&format!("/features/backup?recipient={recipient}")).body);
    done(&daemon, &["backup", &file("plain.ledge"), "--plain"]);
    write(&folder.join("passphrase"), b"correct horse\n");
    done(&daemon, &["backup", &file("passphrase.age"), "--passphrase-file", &file("passphrase")]);
    assert!(fs::read(folder.join("plain.ledge")).unwrap().windows(5).any(|bytes| bytes == b"of 42"));

    let erased = done(&daemon, &["erase", "customer=42"]);
    assert!(erased.contains("1 records of 1 feature views"), "{erased}");
    let answer = client.post_json("/features/erase", &json!({ "entity": { "customer": 42 } }));
    assert_eq!((answer.status, answer.json()), (200, json!({ "records": 0, "feature_views": 0 })));
    for customer in ["44", "45", "46"] {
        done(&daemon, &["push", "visits", &format!("customer={customer}"), "shop=north", "note=of another"]);
    }
    let of = |customers: &[i64]| {
        let entities: Vec<_> = customers.iter().map(|customer| json!({ "customer": customer })).collect();
        json!({ "entities": entities })
    };
    let mistaken = json!({ "entities": [{ "customer": 44 }, { "nobody": 1 }] });
    assert_eq!(client.post_json("/features/erase", &mistaken).status, 422, "and nothing is erased");
    let answer = client.post_json("/features/erase", &of(&[44, 45, 46, 47]));
    assert_eq!((answer.status, answer.json()), (200, json!({ "records": 3, "feature_views": 1 })));
    let both = json!({ "entity": { "customer": 42 }, "entities": [] });
    for wrong in [
        json!({}),
        json!({ "entity": 3 }),
        json!({ "entity": {} }),
        json!({ "entity": { "nobody": 1 } }),
        of(&[]),
        both,
    ] {
        let status = client.post_json("/features/erase", &wrong).status;
        assert!((400..500).contains(&status), "{wrong}: {status}");
    }

    let note = |customer: &str| {
        let entity = format!("customer={customer}");
        done(&daemon, &["get", "visits:note", "--entity", &entity, "--entity", "shop=north"])
    };
    let restores: [&[&str]; 4] = [
        &["restore", &file("cli.age"), "--identity", &file("identity.txt")],
        &["restore", &file("http.age"), "--identity", &file("identity.txt")],
        &["restore", &file("passphrase.age"), "--passphrase-file", &file("passphrase")],
        &["restore", &file("plain.ledge")],
    ];
    for restore in restores {
        assert!(done(&daemon, restore).contains("1 records"), "the erased one stays away");
        assert!(note("42").contains("NOT_FOUND") && note("43").contains("of 43"));
    }
    let refused = run(&daemon, &["restore", &file("cli.age")]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--identity"), "{refused:?}");
    let refused = run(&daemon, &["restore", &file("cli.age"), "--passphrase-file", &file("passphrase")]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("recipient"), "{refused:?}");
    let status = client.get("/features/status").json();
    assert_eq!((&status["encryption"], &status["damage_found"]), (&json!("on"), &json!(0)), "{status}");
    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    assert!(metrics.contains("ledge_feature_store_encryption{state=\"on\"} 1"), "{metrics}");
    let logs = String::from_utf8(daemon.root.command(&["audit", "show"]).output().unwrap().stdout).unwrap();
    assert!(!logs.contains("customer"), "{logs}");
}
