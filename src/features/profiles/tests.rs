#![expect(clippy::disallowed_methods, reason = "a damaged file is written here")]

use std::fs;
use std::path::Path;

use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_identity::sealing::Sealer;
use proptest::prelude::*;
use serde_json::json;

use super::answer::{ForecastRequest, ProfileError, UnusualViewDocument};
use super::file::{FILE_NAME, example_file, example_view};
use super::set::{PROFILES_BYTES_MAX, ProfileSet};
use super::*;
use crate::FeatureCaller;
use crate::engine::erasure::tests::ErasureStore;
use crate::key::HashKey;
use crate::online::FrameColumns;
use crate::registry::Registry;
use crate::value::Value;

const VIEWS: &str = "
[[entity]]
name = 'machine'

[[feature_view]]
name = 'vibration'
entities = ['machine']
source = { name = 'customers' }
lateness = '1h'
schema = [{ name = 'rms', dtype = 'Float64' }, { name = 'heat', dtype = 'Float64' }]

[[feature_view.aggregation]]
column = 'rms'
function = 'mean'
time_window = '10m'
name = 'rms_10m'

[feature_view.unusual]
features = ['rms', 'heat']
";

const MINUTE_US: i64 = 60_000_000;
const ROWS: i64 = 600;

/// Rows of a machine whose vibration and heat rise and fall together.
struct Machine {
    begin_us: i64,
    noise: u64,
}

impl Machine {
    fn new() -> Self {
        Self { begin_us: clock::unix_micros() - 1000 * MINUTE_US, noise: 7 }
    }

    /// A number from -1 to 1.
    fn random(&mut self) -> f64 {
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.noise >> 32).unwrap()) / f64::from(u32::MAX) * 2.0 - 1.0
    }

    fn values(&mut self) -> (f64, f64) {
        let load = self.random() + self.random();
        (10.0 + 2.0 * load + 0.3 * self.random(), 60.0 + 8.0 * load + self.random())
    }

    /// The rows of these minutes.
    fn rows(&mut self, name: &str, minutes: std::ops::Range<i64>) -> FrameColumns {
        let values: Vec<(f64, f64)> = minutes.clone().map(|_| self.values()).collect();
        self.frame(name, minutes, &values)
    }

    fn frame(&self, name: &str, minutes: std::ops::Range<i64>, values: &[(f64, f64)]) -> FrameColumns {
        let at = |minute: i64| json!(clock::rfc3339_micros(self.begin_us + minute * MINUTE_US));
        vec![
            ("machine".into(), values.iter().map(|_| json!(name)).collect()),
            ("rms".into(), values.iter().map(|(rms, _)| json!(rms)).collect()),
            ("heat".into(), values.iter().map(|(_, heat)| json!(heat)).collect()),
            ("event_timestamp".into(), minutes.map(at).collect()),
        ]
    }
}

fn open(folder: tempfile::TempDir, sealer: Sealer, views: &str) -> ErasureStore {
    let store = ErasureStore::open(folder, sealer, views);
    store.until("ready", |store| store.engine().profiles.with(ProfileSet::is_loaded));
    store
}

fn ready(sealer: Sealer) -> ErasureStore {
    let is_on = sealer.is_on();
    let store = open(tempfile::tempdir().unwrap(), sealer, VIEWS);
    store.until("sealed", |store| !is_on || store.engine().protection.is_complete());
    store
}

/// The rows that were learnt of a machine; `None`: it has no profile.
fn learnt(store: &ErasureStore, name: &str) -> Option<u32> {
    let named = Value::String(name.into());
    let found = |set: &ProfileSet| {
        set.iter().find(|(_, profile)| profile.entity == [named.clone()]).map(|(_, profile)| profile.rows.rows())
    };
    store.engine().profiles.with(found)
}

fn until_learnt(store: &ErasureStore, name: &str, rows: u32) {
    store.until("learnt", |store| learnt(store, name) == Some(rows));
}

fn taught(store: &ErasureStore, machine: &mut Machine) {
    for name in ["press-7", "press-8"] {
        store.push_columns(machine.rows(name, 0..ROWS));
    }
    until_learnt(store, "press-7", 600);
    until_learnt(store, "press-8", 600);
}

fn caller() -> FeatureCaller {
    FeatureCaller::unlimited(Principal::Local)
}

fn unusual(store: &ErasureStore) -> UnusualViewDocument {
    store.features.unusual_rows(Some("vibration"), &caller()).unwrap().feature_views.remove(0)
}

fn forecast(store: &ErasureStore, machine: &str, feature: &str, count: usize) -> Result<usize, ProfileError> {
    let entity = vec![("machine".to_owned(), machine.to_owned())];
    let request = ForecastRequest { view: "vibration".into(), feature: feature.into(), entity, count };
    store.features.forecast(&request, &caller()).map(|found| found.values.len())
}

/// True when any file below the folder has these bytes.
fn has_bytes(folder: &Path, wanted: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return has_bytes(&path, wanted);
        }
        fs::read(path).unwrap().windows(wanted.len()).any(|bytes| bytes == wanted)
    })
}

#[test]
fn a_row_that_is_usual_in_each_feature_and_unusual_together_is_found_and_explained_and_ends() {
    let store = ready(Sealer::none());
    let mut machine = Machine::new();
    taught(&store, &mut machine);
    let found = unusual(&store);
    assert_eq!((found.counts.watched, found.counts.learning, found.counts.unusual), (2, 0, 0), "{found:?}");

    store.push_columns(machine.frame("press-7", ROWS..ROWS + 1, &[(12.5, 50.0)]));
    until_learnt(&store, "press-7", 601);
    let found = unusual(&store);
    let [entity] = found.entities.as_slice() else { panic!("{found:?}") };
    assert_eq!(entity.join_keys, [("machine".to_owned(), json!("press-7"))].into());
    assert_eq!((entity.since.as_str(), found.counts.unusual), (entity.event_timestamp.as_str(), 1));
    let mut names: Vec<&str> = entity.features.iter().map(|feature| feature.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["heat", "rms"]);
    assert!(entity.features.iter().all(|feature| (feature.low..=feature.high).contains(&feature.value)), "{entity:?}");
    let status = store.features.statistics().unwrap().views.remove(0).profiles;
    assert_eq!(status, Some(found.counts));

    store.push_columns(machine.rows("press-7", ROWS + 1..ROWS + 10));
    until_learnt(&store, "press-7", 610);
    assert_eq!(unusual(&store).entities, []);
    store.close();
}

#[test]
fn a_row_called_normal_is_not_reported_again_and_only_an_unusual_one_can_be() {
    let store = ready(Sealer::none());
    let mut machine = Machine::new();
    taught(&store, &mut machine);
    let normal = |name: &str| {
        let entity = [("machine".to_owned(), json!(name))].into();
        store.features.call_row_normal("vibration", &entity, &Principal::Local)
    };
    assert_eq!(normal("press-8"), Err(ProfileError::NothingUnusual));
    assert!(matches!(normal("press-9"), Err(ProfileError::UnknownEntity { .. })));
    let odd = [(12.5, 50.0)];
    store.push_columns(machine.frame("press-7", ROWS..ROWS + 1, &odd));
    until_learnt(&store, "press-7", 601);
    assert_eq!((unusual(&store).counts.unusual, normal("press-7")), (1, Ok(())));
    store.push_columns(machine.frame("press-7", ROWS + 1..ROWS + 2, &odd));
    until_learnt(&store, "press-7", 602);
    assert_eq!(unusual(&store).counts.unusual, 0);
    store.close();
}

#[test]
fn profiles_survive_a_restart_and_an_erased_one_is_in_no_file_and_does_not_come_back() {
    for sealer in [Sealer::none(), Sealer::with_keys(&[[5; 32]])] {
        let store = ready(sealer.clone());
        taught(&store, &mut Machine::new());
        let is_plain = !sealer.is_on();
        let store = open(store.close(), sealer.clone(), VIEWS);
        assert_eq!((learnt(&store, "press-7"), learnt(&store, "press-8")), (Some(600), Some(600)));
        let file = store.folder.path().join("store").join(FILE_NAME);
        let has = |name: &str| fs::read(&file).unwrap().windows(7).any(|bytes| bytes == name.as_bytes());
        assert_eq!((has("press-7"), has("press-8")), (is_plain, is_plain));

        let disclosed = serde_json::to_value(store.disclose(&json!({"machine": "press-7"})).unwrap()).unwrap();
        let profile = &disclosed["feature_views"][0]["profiles"][0];
        assert_eq!(profile["rows"], json!(600), "{disclosed}");
        assert!(profile["features"]["rms"]["low"].as_f64().unwrap() < 10.0, "{disclosed}");

        let before = fs::read(&file).unwrap().len();
        store.erase(&json!({"machine": "press-7"})).unwrap();
        // The answer is there: the file has one profile of two.
        let after = fs::read(&file).unwrap().len();
        assert!(after < before * 2 / 3 && after > before / 3, "{after} of {before}");
        assert_eq!((has("press-7"), has("press-8")), (false, is_plain));
        assert!(!has_bytes(&store.folder.path().join("store"), b"press-7"));
        let disclosed = serde_json::to_value(store.disclose(&json!({"machine": "press-7"})).unwrap()).unwrap();
        assert!(disclosed["feature_views"][0].get("profiles").is_none(), "{disclosed}");
        let store = open(store.close(), sealer, VIEWS);
        assert_eq!((learnt(&store, "press-7"), learnt(&store, "press-8")), (None, Some(600)));
        store.close();
    }
}

#[test]
fn a_file_that_survived_the_rows_of_its_entity_is_not_believed() {
    let store = ready(Sealer::none());
    taught(&store, &mut Machine::new());
    let folder = store.close();
    let path = folder.path().join("store").join(FILE_NAME);
    let old = fs::read(&path).unwrap();
    let store = open(folder, Sealer::none(), VIEWS);
    store.erase(&json!({"machine": "press-7"})).unwrap();
    let folder = store.close();
    fs::write(&path, old).unwrap();
    let store = open(folder, Sealer::none(), VIEWS);
    assert_eq!((learnt(&store, "press-7"), learnt(&store, "press-8")), (None, Some(600)));
    store.until("rewritten", |_| !fs::read(&path).unwrap().windows(7).any(|bytes| bytes == b"press-7"));
    store.close();
}

#[test]
fn a_damaged_file_costs_the_profiles_and_is_set_aside() {
    let store = ready(Sealer::none());
    let mut machine = Machine::new();
    taught(&store, &mut machine);
    let folder = store.close();
    let path = folder.path().join("store").join(FILE_NAME);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let store = open(folder, Sealer::none(), VIEWS);
    assert_eq!(learnt(&store, "press-7"), None);
    assert_eq!(fs::read(path.with_extension("damaged")).unwrap(), bytes);
    store.push_columns(machine.rows("press-7", ROWS..ROWS + 1));
    until_learnt(&store, "press-7", 1);
    // The file that was set aside has the entity, too.
    store.erase(&json!({"machine": "press-7"})).unwrap();
    assert!(!has_bytes(&store.folder.path().join("store"), b"press-7"));
    store.close();
}

#[test]
fn another_declaration_begins_anew_and_none_leaves_no_file() {
    let store = ready(Sealer::none());
    taught(&store, &mut Machine::new());
    let file = store.folder.path().join("store").join(FILE_NAME);
    let (views, path) = (store.folder.path().join("views"), store.folder.path().join("store"));
    let declare = |text: &str| {
        fs::write(views.join("views.toml"), text).unwrap();
        store.features.reload(Registry::load(&views, &path).unwrap()).unwrap();
    };
    declare(VIEWS);
    assert_eq!(learnt(&store, "press-7"), Some(600));
    declare(&VIEWS.replace("['rms', 'heat']", "['rms', 'rms_10m']"));
    assert_eq!(learnt(&store, "press-7"), None);
    let mut machine = Machine::new();
    machine.begin_us += 1;
    store.push_columns(machine.rows("press-7", ROWS..ROWS + 3));
    until_learnt(&store, "press-7", 3);
    let without = VIEWS.split("[feature_view.unusual]").next().unwrap().to_owned();
    declare(&without);
    assert_eq!((learnt(&store, "press-7"), file.exists()), (None, false));
    assert!(matches!(
        store.features.unusual_rows(Some("vibration"), &caller()),
        Err(ProfileError::ViewNotWatched { .. })
    ));
    assert_eq!(store.features.statistics().unwrap().views[0].profiles, None);

    let plain = open(store.close(), Sealer::none(), &without);
    plain.push_columns(machine.rows("press-7", ROWS + 3..ROWS + 9));
    assert!(!plain.features.inner.config.path.join(FILE_NAME).exists());
    assert!(plain.engine().profiles.queue.get().is_none(), "no thread");
    plain.close();
}

#[test]
fn rows_that_come_early_late_or_twice_are_not_learnt() {
    let store = ready(Sealer::none());
    let mut machine = Machine::new();
    store.push_columns(machine.rows("press-7", 0..3));
    until_learnt(&store, "press-7", 3);
    // The same again, then some that are older than the newest: they enter the aggregates.
    let second = machine.rows("press-7", 1..2);
    store.push_columns(second.clone());
    store.push_columns(second);
    machine.begin_us += 10_000_000;
    // Ten seconds after the newest.
    store.push_columns(machine.rows("press-7", 2..3));
    machine.begin_us += 40_000_000;
    store.push_columns(machine.rows("press-7", 2..3));
    until_learnt(&store, "press-7", 4);
    store.push_columns(machine.rows("press-8", 0..1));
    until_learnt(&store, "press-8", 1);
    assert_eq!(learnt(&store, "press-7"), Some(4));
    store.close();

    let expired =
        open(tempfile::tempdir().unwrap(), Sealer::none(), &VIEWS.replace("lateness", "ttl = '1h'\nlateness"));
    let mut machine = Machine::new();
    expired.push_columns(machine.rows("press-7", 0..3));
    expired.push_columns(machine.rows("press-8", 980..983));
    until_learnt(&expired, "press-8", 3);
    assert_eq!(learnt(&expired, "press-7"), None);
    expired.close();
}

#[test]
fn a_forecast_says_what_it_lacks_and_names_no_entity() {
    let store = ready(Sealer::none());
    let mut machine = Machine::new();
    store.push_columns(machine.rows("press-7", 0..60));
    until_learnt(&store, "press-7", 60);
    let too_few = forecast(&store, "press-7", "rms", 3).unwrap_err();
    assert_eq!(too_few.to_string(), "4 more samples are needed for a forecast");
    store.push_columns(machine.rows("press-7", 60..64));
    until_learnt(&store, "press-7", 64);
    assert_eq!(forecast(&store, "press-7", "rms", 3), Ok(3));
    for (machine, feature) in [("press-9", "rms"), ("press-7", "rms_10m"), ("press-7", "none"), ("press-7", "rms")] {
        let refused = forecast(&store, machine, feature, 5000).unwrap_err();
        assert!(!refused.to_string().contains("press"), "{refused}");
    }
    store.close();
}

fn sampled(view: &std::sync::Arc<FeatureView>, number: i64, event_us: i64) -> SampledRow {
    let entity = vec![Value::Int64(number)];
    let key = HashKey::new([3; 32]).index_key(view.id, &entity);
    let features = view.unusual.as_ref().unwrap().features.len();
    SampledRow { seq: 5, view: view.clone(), key, entity, event_us, values: vec![Some(1.0); features] }
}

#[test]
fn memory_is_bounded_and_the_entity_pushed_longest_ago_makes_room_after_a_day() {
    let schema: Vec<String> = (0..32).map(|at| format!("{{ name = 'f{at}', dtype = 'Float32' }}")).collect();
    let text = format!(
        "entity = [{{ name = 'm' }}]\n[[feature_view]]\nname = 'v'\nentities = ['m']\nschema = [{}]\nunusual = {{}}\n",
        schema.join(", ")
    );
    let registry = Registry::parse(&text).unwrap();
    let view = registry.view("v").unwrap().clone();
    let mut set = ProfileSet::default();
    set.declare(&registry);
    set.take(&sampled(&view, 0, 0), 0);
    assert_eq!(set.iter().count(), 0, "not before the file is read");
    set.load(super::file::StoredProfiles::default());
    let most = i64::try_from(PROFILES_BYTES_MAX / super::profile::bytes_of(32)).unwrap();
    assert!((70..85).contains(&most), "{most}");
    for number in 0..most + 50 {
        set.take(&sampled(&view, number, number * MINUTE_US), 0);
    }
    assert_eq!((set.iter().count(), set.is_full()), (usize::try_from(most).unwrap(), true));
    let has = |set: &ProfileSet, number: i64| set.get(&sampled(&view, number, 0).key).is_some();
    assert!(has(&set, 0) && !has(&set, most));

    let tomorrow = 24 * 60 * MINUTE_US;
    set.take(&sampled(&view, 1, tomorrow), 0);
    set.take(&sampled(&view, 5000, tomorrow + 1), 0);
    assert!(!has(&set, 0) && has(&set, 1) && has(&set, 5000));
    set.leave_out_before(6);
    set.take(&sampled(&view, 5001, 2 * tomorrow), 0);
    assert!(!has(&set, 5001), "it was pushed before an erasure");

    let biggest = set.iter().map(|(_, profile)| profile.bytes()).sum::<usize>();
    assert!(biggest <= PROFILES_BYTES_MAX);
}

#[test]
fn the_memory_of_a_profile_is_not_underestimated() {
    let view = example_view().unwrap();
    let watched = view.unusual.as_ref().unwrap();
    let mut profile = EntityProfile::new(view.id, vec![Value::String("press-7".into())], watched).unwrap();
    let mut machine = Machine::new();
    for minute in 0..3000 {
        let (rms, heat) = machine.values();
        let row = SampledRow {
            values: vec![Some(rms), Some(heat)],
            ..sampled(&view, 0, machine.begin_us + minute * MINUTE_US)
        };
        profile.take(&row, watched);
    }
    let stored = profile.rows.encode().len() + profile.series.iter().map(|one| one.encode().len()).sum::<usize>();
    assert!(stored < profile.bytes(), "{stored} of {}", profile.bytes());
}

proptest! {
    #[test]
    fn changed_bytes_are_refused_or_sound(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)) {
        let mut bytes = example_file();
        prop_assert!(super::fuzz(&bytes));
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        super::fuzz(&bytes);
    }
}
