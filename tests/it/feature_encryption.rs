//! The encrypted feature store: the contents of its files, its files after an erasure, and damaged or missing keys.

mod erasures;
mod keys;
mod verbs;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aho_corasick::AhoCorasick;
use ledge::audit_event::AuditSink;
use ledge::features::backup_cipher::{BackupIdentity, BackupRecipient};
use ledge::features::config::FeaturesConfig;
use ledge::features::online::{
    FeatureError, FeaturePush, FeatureSelection, FieldStatus, FrameColumns, OnlineFeaturesRequest, PushTarget,
};
use ledge::features::registry::Registry;
use ledge::features::{FeatureCaller, FeatureStore, JoinKeyValues};
use ledge::identity::sealing::Sealer;
use ledge::principal::Principal;
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::daemon::write;

/// Timeout of every wait in these tests, for a busy machine.
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

    fn push(&self, source: &str, columns: FrameColumns) {
        let push = FeaturePush { target: PushTarget::Source(source.into()), columns };
        self.runtime.block_on(self.features.push(push, FeatureCaller::unlimited(Principal::Local))).unwrap();
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
        let request = OnlineFeaturesRequest {
            selection: FeatureSelection::Features(features.iter().map(ToString::to_string).collect()),
            entities: entity.iter().map(|(name, value)| ((*name).to_owned(), vec![value.clone()])).collect(),
        };
        let found = self
            .runtime
            .block_on(self.features.get_online_features(request, FeatureCaller::unlimited(Principal::Local)))
            .unwrap();
        let cell = |(_, cells): (_, &[ledge::features::online::FeatureCell])| {
            let cell = &cells[0];
            (cell.status, cell.value.as_ref().map_or(Json::Null, ledge::features::value::Value::to_json))
        };
        found.columns().map(cell).collect()
    }

    fn note(&self, customer: i64) -> Option<String> {
        let cells = self.read(&["profile:note", "recent:last_note"], &[("customer", json!(customer))]);
        assert_eq!(cells[0].0, cells[1].0, "both views have the entity, or neither");
        assert_eq!(cells[0].1, cells[1].1);
        cells[0].1.as_str().map(str::to_owned)
    }

    fn erase(&self, entity: Json) -> (u64, u64) {
        let entity: JoinKeyValues = serde_json::from_value(entity).unwrap();
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

/// A text that is only in the values of one customer.
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

fn customers_columns(customers: &[i64]) -> FrameColumns {
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

/// The number of matches of the patterns in the files, and the names of those files.
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
    let key = age::x25519::Identity::generate();
    let secret = key.to_string();
    let identity = BackupIdentity::keys(age::secrecy::ExposeSecret::expose_secret(&secret)).unwrap();
    let recipient = BackupRecipient::key(&key.to_public().to_string()).unwrap();
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
    // With encryption turned off again it stays closed, and nothing is created again.
    let before = files(folder.path());
    for (wrong, expected) in [
        (Sealer::none(), "encryption.master_key_file is not set"),
        (Sealer::with_keys(&[[6; 32]]), "which this box does not have"),
    ] {
        let store = open(folder.path(), wrong);
        assert!(store.features.statistics().is_none());
        let push =
            FeaturePush { target: PushTarget::Source("customers".into()), columns: customers_columns(&customers[..1]) };
        let refused =
            store.runtime.block_on(store.features.push(push, FeatureCaller::unlimited(Principal::Local))).unwrap_err();
        assert!(matches!(&refused, FeatureError::Unavailable { reason } if reason.contains(expected)), "{refused}");
        store.close();
    }
    assert_eq!(files(folder.path()), before);
    assert_eq!(ready(folder.path(), sealer()).note(customers[3]), Some(mark(customers[3])));
}
