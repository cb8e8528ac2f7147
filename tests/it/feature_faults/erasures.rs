//! `kill -9` in the middle of erasures, and while plain values are being encrypted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use aho_corasick::AhoCorasick;
use ledge::features::entity_keys::EntityKeys;
use ledge::features::value::Value;
use ledge::identity::sealing::Sealer;
use serde_json::{Value as Json, json};

use super::seed::Random;
use super::writers::start;
use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, copy};
use crate::encryption::encrypted;

const VIEWS: &str = "
[[entity]]
name = 'person'
value_type = 'Int64'
[[entity]]
name = 'shop'
value_type = 'String'

[[feature_view]]
name = 'profile'
entities = ['person']
source = { name = 'people' }
schema = [{ name = 'note', dtype = 'String' }]

[[feature_view]]
name = 'recent'
entities = ['person']
source = { name = 'people' }
schema = [{ name = 'note', dtype = 'String' }]

[[feature_view]]
name = 'visits'
entities = ['person', 'shop']
source = { name = 'visits' }
schema = [{ name = 'note', dtype = 'String' }]
";

const FEATURES: [&str; 3] = ["profile:note", "recent:note", "visits:note"];
const MASTER: [u8; 32] = [7; 32];
/// People who come in each round.
const COMING: usize = 30;

/// The state of a person's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    There,
    /// The daemon went before it answered.
    Asked,
    Erased,
}

/// A text that is only in the rows of one person.
fn mark(person: i64) -> String {
    format!("marked-{}", blake3::hash(&person.to_le_bytes()).to_hex())
}

fn root(is_sealed: bool) -> TestRoot {
    let root = TestRoot::new().views(VIEWS);
    if is_sealed { encrypted(root, &MASTER) } else { root }
}

fn push(client: &mut Client, people: &[i64]) {
    let notes: Vec<_> = people.iter().map(|person| mark(*person)).collect();
    let mut push = |source: &str, df: Json| {
        let answer = client.post_json("/push", &json!({ "push_source_name": source, "df": df, "to": "online" }));
        assert_eq!(answer.status, 200, "{}", answer.error());
    };
    push("people", json!({ "person": people, "note": notes }));
    push("visits", json!({ "person": people, "shop": vec!["north"; people.len()], "note": notes }));
}

/// The number of rows of each person that are there as they were pushed.
fn rows(client: &mut Client, people: &[i64]) -> Vec<usize> {
    let entities = json!({ "person": people, "shop": vec!["north"; people.len()] });
    let answer = client.post_json(
        "/get-online-features",
        &json!({ "features": FEATURES, "entities": entities, "full_feature_names": true }),
    );
    assert_eq!(answer.status, 200, "{}", answer.error());
    let answer = answer.json();
    let columns: Vec<&Json> = answer["results"].as_array().unwrap().iter().skip(2).collect();
    assert_eq!(columns.len(), FEATURES.len());
    let count = |(at, person): (usize, &i64)| {
        let is_there = |column: &&&Json| match column["statuses"][at].as_str().unwrap() {
            "PRESENT" => {
                assert_eq!(column["values"][at], mark(*person));
                true
            }
            status => {
                assert_eq!(status, "NOT_FOUND");
                false
            }
        };
        columns.iter().filter(is_there).count()
    };
    people.iter().enumerate().map(count).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The files that have the mark of anybody.
fn files_with(folder: &Path, people: &[i64]) -> Vec<PathBuf> {
    let searcher = AhoCorasick::new(people.iter().map(|person| mark(*person))).unwrap();
    // One may go while it is looked for.
    let has = |path: &PathBuf| std::fs::read(path).is_ok_and(|bytes| searcher.is_match(&bytes));
    files(folder).into_iter().filter(has).collect()
}

/// The people with a readable key in a copy of the files, with the master key.
fn with_key(store: &Path, people: &[i64]) -> Vec<i64> {
    let stolen = tempfile::tempdir().unwrap();
    copy(&store.join("keys"), &stolen.path().join("keys"));
    let keys = EntityKeys::open(stolen.path(), Sealer::with_keys(&[MASTER])).unwrap().keys;
    let shop = Value::String("north".into());
    let has = |person: &&i64| {
        let person = Value::Int64(**person);
        let visit = keys.tag([("person", &person), ("shop", &shop)]);
        !keys.key_ids(&keys.tag([("person", &person)])).is_empty() || !keys.key_ids(&visit).is_empty()
    };
    people.iter().filter(has).copied().collect()
}

fn erase(client: &mut Client, person: i64) -> std::io::Result<u16> {
    Ok(client.try_post_json("/features/erase", &json!({ "entity": { "person": person } }))?.status)
}

#[track_caller]
fn check(daemon: &TestDaemon, known: &BTreeMap<i64, State>, is_sealed: bool) {
    let mut client = daemon.client();
    let people: Vec<i64> = known.keys().copied().collect();
    for (person, rows) in people.iter().zip(rows(&mut client, &people)) {
        match known[person] {
            State::There => assert_eq!(rows, 3, "{person} was acknowledged, and nobody erased it"),
            State::Asked => {}
            State::Erased => assert_eq!(rows, 0, "{person} was erased"),
        }
    }
    let erased: Vec<i64> = people.into_iter().filter(|person| known[person] == State::Erased).collect();
    let store = daemon.root.folder.path().join("features");
    assert_eq!(files_with(&store, &erased), Vec::<PathBuf>::new());
    if is_sealed {
        assert_eq!(with_key(&store, &erased), [0; 0]);
    }
}

fn rounds(rounds: usize, test: &str, is_sealed: bool) {
    let mut random = Random::new(test);
    let mut known: BTreeMap<i64, State> = BTreeMap::new();
    let mut daemon = start(root(is_sealed)).daemon;
    if is_sealed {
        daemon.wait_for_event_since_start("features.encrypted");
    }
    let mut erased = 0;
    for _ in 0..rounds {
        let coming: Vec<i64> = (known.len()..).take(COMING).map(|person| i64::try_from(person).unwrap()).collect();
        push(&mut daemon.client(), &coming);
        known.extend(coming.iter().map(|person| (*person, State::There)));
        let there: Vec<i64> =
            known.iter().filter(|(_, state)| **state == State::There).map(|(person, _)| *person).collect();
        let (answered, enough) = mpsc::channel();
        let mut client = daemon.client();
        let (first, least) = (random.below(there.len()), 1 + random.below(if is_sealed { 8_usize } else { 3 }));
        let pause = Duration::from_micros(random.next() % if is_sealed { 30_000 } else { 400_000 });
        let root = std::thread::scope(|scope| {
            scope.spawn(|| {
                for person in there.iter().cycle().skip(first).take(COMING) {
                    known.insert(*person, State::Asked);
                    let Ok(status) = erase(&mut client, *person) else { return };
                    assert_eq!(status, 200);
                    known.insert(*person, State::Erased);
                    if answered.send(()).is_err() {
                        return;
                    }
                }
            });
            for _ in 0..least {
                enough.recv_timeout(Duration::from_mins(1)).unwrap();
            }
            std::thread::sleep(pause);
            daemon.kill()
        });
        daemon = start(root).daemon;
        check(&daemon, &known, is_sealed);
        // Erasing again succeeds.
        for (person, state) in known.iter_mut().filter(|(_, state)| **state == State::Asked) {
            assert_eq!(erase(&mut daemon.client(), *person).unwrap(), 200);
            *state = State::Erased;
        }
        check(&daemon, &known, is_sealed);
        erased = known.values().filter(|state| **state == State::Erased).count();
    }
    println!("{test}: {erased} of {} erased", known.len());
    assert!(erased > rounds && erased < known.len());
}

#[test]
fn an_acknowledged_erasure_of_a_sealed_store_survives_kill_9() {
    rounds(5, "erasures sealed", true);
}

#[test]
fn an_acknowledged_erasure_of_a_plain_store_survives_kill_9() {
    rounds(4, "erasures plain", false);
}

#[test]
#[ignore = "50 rounds each: make soak"]
fn acknowledged_erasures_survive_50_times_kill_9() {
    rounds(50, "erasures sealed", true);
    rounds(50, "erasures plain", false);
}

#[test]
fn sealing_what_was_plain_survives_kill_9() {
    let mut random = Random::new("seal the rest");
    let people: Vec<i64> = (0..200).collect();
    let mut daemon = start(root(false)).daemon;
    push(&mut daemon.client(), &people[..100]);
    let root = daemon.kill();
    daemon = start(root).daemon;
    push(&mut daemon.client(), &people[100..]);
    let store = daemon.root.folder.path().join("features");
    assert!(!files_with(&store, &people).is_empty());
    let mut root = encrypted(daemon.kill(), &MASTER);
    for _ in 0..4 {
        // It is ready, and begins to encrypt.
        daemon = start(root).daemon;
        std::thread::sleep(Duration::from_micros(random.next() % 200_000));
        assert_eq!(rows(&mut daemon.client(), &people), [3; 200]);
        root = daemon.kill();
    }
    daemon = start(root).daemon;
    daemon.wait_for_event_since_start("features.ready");
    let mut client = daemon.client();
    while client.get("/features/status").json()["encryption"] != "on" {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(rows(&mut client, &people), [3; 200]);
    assert_eq!(files_with(&store, &people), Vec::<PathBuf>::new());
}
