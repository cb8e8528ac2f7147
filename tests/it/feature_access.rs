//! The permission to read and push the values of feature views, and the audit records of it.

use std::collections::BTreeSet;
use std::process::Output;

use ledge::audit::record::{ActorKind, AuditRecord};
use ledge::audit_event::AuditEvent;
use serde_json::{Value, json};

use crate::access::{ask, key};
use crate::audit::{audit, records, stop};
use crate::client::Response;
use crate::daemon::{TestDaemon, TestRoot};
use crate::feature_inference::{FIRST, MODEL, VIEWS, config, request};

fn closed() -> TestRoot {
    TestRoot::closed().models(&["wine_mlp"]).file("wine_mlp/model.toml", config("", "")).views(VIEWS)
}

fn post(daemon: &TestDaemon, key: &str, path: &str, body: &Value) -> Response {
    ask(daemon, key, "POST", path, body)
}

/// Pushes wines to the view `cellar`.
fn push_cellar(daemon: &TestDaemon, key: &str, ids: &[&str]) -> Response {
    let (colour, proline) = (vec![FIRST[9..12].to_vec(); ids.len()], vec![1480; ids.len()]);
    let df = json!({"wine_id": ids, "colour": colour, "proline": proline});
    post(daemon, key, "/push", &json!({"push_source_name": "cellar_push", "df": df, "to": "online"}))
}

/// Pushes a wine to the view `lab`, by its name.
fn push_lab(daemon: &TestDaemon, key: &str, id: &str) -> Response {
    let df = json!({
        "wine_id": [id], "alcohol": [14.37], "malic_acid": [1.95], "ash": [2.5], "alcalinity": [16.8],
        "magnesium": [113], "phenols": [3.85], "flavanoids": [3.49], "nonflavanoids": [0.24],
        "proanthocyanins": [2.18],
    });
    let body = json!({"feature_view_name": "lab", "df": df, "allow_registry_cache": true});
    post(daemon, key, "/write-to-online-store", &body)
}

fn read(daemon: &TestDaemon, key: &str, features: &[&str], ids: &Value) -> Response {
    post(daemon, key, "/get-online-features", &json!({"features": features, "entities": {"wine_id": ids}}))
}

#[test]
fn a_key_for_a_model_reads_nobodys_features_and_is_not_told_what_the_model_read() {
    let root = closed();
    let till = key(&root, &["till", "--role", "infer", "--model", "wine_mlp"]);
    let writer = key(&root, &["writer", "--role", "feature-writer"]);
    let daemon = root.start();
    assert_eq!(
        (push_lab(&daemon, &writer, "barolo").status, push_cellar(&daemon, &writer, &["barolo"]).status),
        (200, 200)
    );
    let refused = read(&daemon, &till, &["lab:alcohol"], &json!(["barolo"]));
    assert_eq!(refused.status, 403, "{refused:?}");
    let told = String::from_utf8(refused.body).unwrap();
    assert!(told.contains("FeastPermissionError") && told.contains("--feature-view"), "{told}");
    // A read of many, which is made in slices.
    let many: Vec<_> = (0..6000).map(|id| id.to_string()).collect();
    assert_eq!(read(&daemon, &till, &["lab:alcohol"], &json!(many)).status, 403);
    // The model still reads them, and answers; the values that it read are not for this key.
    let wine = json!({"entities": {"wine_id": ["barolo"]}});
    assert_eq!(post(&daemon, &till, MODEL, &wine).status, 200);
    let refused = post(&daemon, &till, MODEL, &request(&["barolo"]));
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.error().contains("key:till"), "{}", refused.error());
    // A value that the caller gives is its own.
    let shown = daemon.root.command(&["keys", "list", "--json"]).output().unwrap();
    let keys: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let views =
        |name: &str| keys.as_array().unwrap().iter().find(|key| key["name"] == name).unwrap()["feature_views"].clone();
    assert_eq!(views("till"), json!([]));
}

#[test]
fn a_key_for_feature_views_reads_and_pushes_those_and_administers_nothing_beyond_them() {
    let root = closed();
    let lab = ["--feature-view", "lab"];
    let both = ["--feature-view", "lab", "--feature-view", "cellar"];
    let reader = key(&root, &[&["reader", "--role", "infer", "--model", "wine_mlp"], &lab[..]].concat());
    let all = key(&root, &[&["all", "--role", "infer", "--model", "wine_mlp"], &both[..]].concat());
    let star = key(&root, &["star", "--role", "infer", "--model", "wine_mlp", "--feature-view", "*"]);
    let writer = key(&root, &[&["writer", "--role", "feature-writer"], &lab[..]].concat());
    let admin = key(&root, &[&["half", "--role", "admin"], &lab[..]].concat());
    let daemon = root.start();
    assert_eq!(push_lab(&daemon, &writer, "barolo").status, 200);
    assert_eq!(push_cellar(&daemon, &writer, &["barolo"]).status, 403);
    assert_eq!(push_cellar(&daemon, "", &["barolo"]).status, 200, "this machine is not limited");
    for (key, expected) in [(&reader, [200, 403, 403, 403]), (&all, [200; 4]), (&star, [200; 4])] {
        let read = |features: &[&str]| read(&daemon, key, features, &json!(["barolo"])).status;
        let values = post(&daemon, key, MODEL, &request(&["barolo"])).status;
        let found = [read(&["lab:ash"]), read(&["cellar:proline"]), read(&["lab:ash", "cellar:colour"]), values];
        assert_eq!(found, expected);
    }
    for (method, path) in [("GET", "/features/backup"), ("POST", "/features/erase"), ("POST", "/features/snapshot")] {
        assert_eq!(ask(&daemon, &admin, method, path, &json!({"entity": {"wine_id": "barolo"}})).status, 403, "{path}");
    }
    assert_eq!(post(&daemon, &admin, MODEL, &json!({"entities": {"wine_id": ["barolo"]}})).status, 200, "any model");
    assert_eq!(post(&daemon, &admin, "/v2/repository/models/wine_mlp/load", &json!({})).status, 200);
}

/// The contents of a record: actor, event, view, model; its calls, rows, and entities that are listed and that are not.
type Told = (ActorKind, &'static str, String, Option<String>, [u64; 4]);

/// The reads and pushes that records report, added up over several minutes.
fn told(records: &[AuditRecord]) -> Vec<Told> {
    let mut sums: Vec<Told> = Vec::new();
    for record in records {
        let (view, model, numbers) = match &record.event {
            AuditEvent::FeaturesRead { feature_view, model, calls, rows, entities, unlisted } => {
                (feature_view, model.as_ref(), [*calls, *rows, entities.len() as u64, *unlisted])
            }
            AuditEvent::FeaturesPushed { feature_view, calls, rows, entities, unlisted } => {
                (feature_view, None, [*calls, *rows, entities.len() as u64, *unlisted])
            }
            _ => continue,
        };
        let (kind, action, model) = (record.actor.kind, record.event.action(), model.map(ToString::to_string));
        let is_same = |sum: &&mut Told| (sum.0, sum.1, &sum.2, &sum.3) == (kind, action, view, &model);
        match sums.iter_mut().find(is_same) {
            Some(sum) => sum.4.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number),
            None => sums.push((kind, action, view.clone(), model, numbers)),
        }
    }
    sums
}

fn show(root: &TestRoot, arguments: &[&str]) -> Output {
    let shown = root.command(&[&["audit", "show", "--json"], arguments].concat()).output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    shown
}

#[test]
fn every_read_and_push_is_in_the_log_by_caller_and_view_and_found_by_its_entity() {
    let root = closed();
    let till = key(&root, &["till", "--role", "infer", "--role", "feature-writer"]);
    let daemon = root.start();
    assert_eq!(
        (push_lab(&daemon, &till, "barolo").status, push_cellar(&daemon, &till, &["barolo", "dolcetto"]).status),
        (200, 200)
    );
    assert_eq!(read(&daemon, &till, &["lab:ash"], &json!(["barolo", "nebbiolo"])).status, 200);
    assert_eq!(post(&daemon, &till, MODEL, &json!({"entities": {"wine_id": ["barolo"]}})).status, 200);
    // Neither refused pushes nor those that the store does not take.
    assert_eq!(read(&daemon, &till, &["lab:nothing"], &json!(["barolo"])).status, 404);
    assert_eq!(read(&daemon, "", &["lab:ash"], &json!([null])).status, 422);
    let root = stop(daemon);
    let found = records(&root, 1);
    let lab = |action, model: Option<&str>, numbers| {
        (ActorKind::Key, action, "lab".to_owned(), model.map(str::to_owned), numbers)
    };
    let cellar = |action, model: Option<&str>, numbers| {
        (ActorKind::Key, action, "cellar".to_owned(), model.map(str::to_owned), numbers)
    };
    let told: BTreeSet<_> = told(&found).into_iter().map(|told| format!("{told:?}")).collect();
    let expected = [
        lab("features_pushed", None, [1, 1, 1, 0]),
        lab("features_read", None, [1, 2, 2, 0]),
        lab("features_read", Some("wine_mlp"), [1, 1, 1, 0]),
        cellar("features_pushed", None, [1, 2, 2, 0]),
        cellar("features_read", Some("wine_mlp"), [1, 1, 1, 0]),
    ];
    assert_eq!(told, expected.into_iter().map(|told| format!("{told:?}")).collect());

    let count = |arguments: &[&str]| show(&root, arguments).stdout.split(|byte| *byte == b'\n').count() - 1;
    assert_eq!(count(&["--entity", "wine_id=barolo"]), 5);
    assert_eq!(count(&["--entity", "wine_id=dolcetto"]), 1);
    assert_eq!(count(&["--entity", "wine_id=nebbiolo"]), 1, "also who is not in the store was asked for");
    assert_eq!(count(&["--entity", "wine_id=barbera"]), 0);
    assert_eq!(count(&["--entity", "other_id=barolo"]), 0);
    assert_eq!(count(&["--feature-view", "cellar", "--action", "features_read"]), 1);
    assert_eq!(count(&["--actor", "key:till", "--feature-view", "lab"]), 3);
    assert_eq!(count(&["--actor", "key:other"]), 0);
    assert_eq!(count(&["--model", "wine_mlp", "--action", "features_read"]), 2);
    for (path, content) in crate::audit::files(&audit(&root)) {
        let content = String::from_utf8_lossy(&content);
        assert!(["barolo", "dolcetto", "nebbiolo"].iter().all(|id| !content.contains(id)), "{}", path.display());
    }
}

#[test]
fn a_record_lists_as_many_entities_as_are_configured_and_counts_the_rows_of_others() {
    let root = closed().set("audit.feature_entities=3").set("access.loopback=[\"infer\"]");
    let daemon = root.start();
    // 6,000 cells are read in slices, and are one call.
    let many: Vec<_> = (0..6000).map(|id| id.to_string()).collect();
    assert_eq!(read(&daemon, "", &["lab:ash"], &json!(many)).status, 200);
    let root = stop(daemon);
    let told = told(&records(&root, 1));
    assert_eq!(told.len(), 1, "{told:?}");
    let [calls, rows, listed, unlisted] = told[0].4;
    assert_eq!((calls, rows, listed + unlisted), (1, 6000, 6000), "{told:?}");
    // The log may turn its minute between two slices.
    assert!(listed == 3 || listed == 6, "{told:?}");
}
