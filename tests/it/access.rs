//! Access control of a running daemon: roles, keys, scopes and limits.

use std::time::{Duration, Instant};

use ledge::audit::record::ActorKind;
use ledge::audit_event::AuditEvent;
use serde_json::{Value, json};

use crate::client::Response;
use crate::daemon::{TestDaemon, TestRoot};
use crate::features::VIEWS;

/// Timeout for the daemon to notice a change of the key store, which it checks once a second.
const KNOWN: Duration = Duration::from_secs(20);

/// Makes a key by the command line.
pub fn key(root: &TestRoot, arguments: &[&str]) -> String {
    let made = root.command(&[&["keys", "create"], arguments].concat()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let told = String::from_utf8(made.stderr).unwrap();
    assert!(told.contains(arguments[0]) && !told.contains("ledge_"), "{told}");
    String::from_utf8(made.stdout).unwrap().trim_end().to_owned()
}

pub fn ask(daemon: &TestDaemon, key: &str, method: &str, path: &str, body: &Value) -> Response {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let headers = if key.is_empty() { &headers[1..] } else { &headers[..] };
    daemon.client().request(method, path, headers, body.to_string().as_bytes())
}

fn infer(daemon: &TestDaemon, key: &str, model: &str) -> Response {
    let input = |name: &str| json!({"name": name, "shape": [1, 16], "datatype": "FP32", "data": vec![1; 16]});
    let body = json!({"inputs": [input("INPUT0"), input("INPUT1")]});
    ask(daemon, key, "POST", &format!("/v2/models/{model}/infer"), &body)
}

/// Asks until the answer has this status.
#[track_caller]
fn until(status: u16, ask: impl Fn() -> Response) -> Response {
    let deadline = Instant::now() + KNOWN;
    loop {
        let answer = ask();
        if answer.status == status {
            return answer;
        }
        assert!(Instant::now() < deadline, "still {answer:?}");
        std::thread::yield_now();
    }
}

#[test]
fn each_role_does_its_own_and_nothing_else() {
    let root = TestRoot::closed().models(&["add_sub"]).set("access.loopback=[]");
    let roles = ["viewer", "infer", "feature-writer", "operator", "admin", "auditor", "camera-viewer"];
    let keys = roles.map(|role| key(&root, &[role, "--role", role]));
    let daemon = root.start();
    let index = "/v2/repository/index";
    let load = "/v2/repository/models/add_sub/load";
    // The status for each role in the order above; 401 never occurs.
    let asked = [
        ("GET", "/v2", [200, 200, 403, 200, 200, 200, 200]),
        ("GET", "/v2/models/add_sub", [200, 200, 403, 200, 200, 200, 200]),
        ("GET", "/metrics", [200, 403, 403, 200, 200, 200, 200]),
        ("POST", index, [200, 403, 403, 200, 200, 200, 200]),
        ("GET", "/feature-views", [200, 403, 200, 200, 200, 200, 200]),
        ("POST", "/materialize", [403, 403, 501, 403, 501, 403, 403]),
        ("POST", load, [403, 403, 403, 200, 200, 403, 403]),
        ("GET", "/features/backup", [403, 403, 403, 403, 404, 403, 403]),
        ("GET", "/audit/logs/1/checkpoint", [403, 403, 403, 403, 200, 200, 403]),
        ("GET", "/cameras", [200, 403, 403, 200, 200, 200, 200]),
        ("GET", "/cameras/yard/picture", [403, 403, 403, 403, 404, 403, 404]),
    ];
    for (method, path, expected) in asked {
        let statuses = keys.each_ref().map(|key| ask(&daemon, key, method, path, &json!({})).status);
        assert_eq!(statuses, expected, "{method} {path}");
        let nobody = ask(&daemon, "", method, path, &json!({}));
        assert_eq!((nobody.status, nobody.header("www-authenticate")), (401, Some("Bearer realm=\"ledge\"")), "{path}");
    }
    let inferred = keys.each_ref().map(|key| infer(&daemon, key, "add_sub").status);
    assert_eq!(inferred, [403, 200, 403, 403, 200, 403, 403]);
    for path in
        ["/v2/health/live", "/v2/health/ready", "/health", "/v1/status/ping", "/openapi.json", "/", "/console/app.js"]
    {
        assert_eq!(daemon.client().get(path).status, 200, "{path}");
    }
    let refused = ask(&daemon, &keys[0], "POST", load, &json!({})).error();
    assert!(["operator", "admin", "key:viewer"].iter().all(|name| refused.contains(name)), "{refused}");
    let refused = ask(&daemon, "", "POST", "/push", &json!({}));
    assert!(refused.status == 401 && refused.json()["error"].is_null(), "Feast's own form: {refused:?}");
    assert_eq!(daemon.client().get("/nowhere").status, 404);
}

#[test]
fn a_new_installation_answers_this_machine_and_lets_its_owner_administer() {
    let daemon = TestRoot::closed().models(&["add_sub"]).start();
    assert_eq!(infer(&daemon, "", "add_sub").status, 200);
    assert_eq!(daemon.client().get("/metrics").status, 200);
    let load = "/v2/repository/models/add_sub/load";
    let refused = daemon.client().post(load, &[], b"{}");
    assert_eq!(refused.status, 401);
    assert!(refused.error().contains("ledge keys create NAME --role operator"), "{}", refused.error());
    assert_eq!(daemon.unix_client().post(load, &[], b"{}").status, 200, "the user it runs as");
}

#[test]
fn keys_are_made_and_taken_back_while_the_configuration_has_mistakes_elsewhere() {
    let root = TestRoot::closed();
    crate::daemon::write(&root.folder.path().join("ledge.toml"), b"[log]\nlevel = 7\n[http]\nlisten = [\"nowhere\"]\n");
    // Nor does a variable of the platform's tool keep any verb from working.
    let run = |verb: &[&str]| root.command(verb).env("LEDGE_PLATFORM_PASSPHRASE", "words").output().unwrap();
    let made = run(&["keys", "create", "till", "--role", "infer"]);
    assert!(made.status.success() && made.stdout.starts_with(b"ledge_"), "{made:?}");
    assert!(run(&["keys", "revoke", "till"]).status.success());
    let forever = run(&["keys", "create", "door", "--role", "infer", "--expires", "never"]);
    assert!(forever.status.success(), "{forever:?}");
    let keys: Value = serde_json::from_slice(&run(&["keys", "list", "--json"]).stdout).unwrap();
    let keys = keys.as_array().unwrap().iter().map(|key| (key["name"].as_str(), key["expires"].is_string()));
    assert_eq!(keys.collect::<Vec<_>>(), [(Some("till"), true), (Some("door"), false)]);
    assert_eq!(run(&["config", "check"]).status.code(), Some(78));
    crate::daemon::write(&root.folder.path().join("ledge.toml"), b"");
    assert_eq!(run(&["config", "check"]).status.code(), Some(0));
}

#[test]
fn a_key_that_is_not_good_is_told_why_and_falls_back_to_nothing() {
    let root = TestRoot::closed().models(&["add_sub"]);
    let revoked = key(&root, &["gone", "--role", "infer"]);
    let good = key(&root, &["till", "--role", "infer", "--expires", "1d"]);
    assert!(root.command(&["keys", "revoke", "gone"]).output().unwrap().status.success());
    let daemon = root.start();
    let wrong = format!("{}{}", &good[..15], "A".repeat(43));
    for (key, told) in
        [(&*revoked, "revoked"), (&*wrong, "unknown API key"), ("ledge_x", "malformed"), ("hunter2", "malformed")]
    {
        // Without a key this caller would be answered.
        let refused = infer(&daemon, key, "add_sub");
        assert_eq!(refused.status, 401, "{key}");
        assert!(refused.error().contains(told), "{}", refused.error());
        assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"ledge\", error=\"invalid_token\""));
    }
    assert_eq!(infer(&daemon, &good, "add_sub").status, 200);
    assert_eq!(daemon.client().request("GET", "/v2", &[("x-api-key", &good)], b"").status, 200);
    let both = [("x-api-key", good.as_str()), ("authorization", "Bearer other")];
    assert_eq!(daemon.client().request("GET", "/v2", &both, b"").status, 400);
    for _ in 0..20 {
        infer(&daemon, "ledge_x", "add_sub");
    }
    let limited = infer(&daemon, "ledge_x", "add_sub");
    assert_eq!(limited.status, 429);
    assert!(limited.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!(infer(&daemon, &good, "add_sub").status, 200, "a right key is let in all the same");
}

#[test]
fn a_running_daemon_takes_up_a_key_and_lets_it_go_and_records_both() {
    let daemon = TestRoot::closed().models(&["add_sub"]).start();
    let key = key(&daemon.root, &["till", "--role", "infer"]);
    until(200, || infer(&daemon, &key, "add_sub"));
    assert!(daemon.root.command(&["keys", "revoke", "till"]).output().unwrap().status.success());
    until(401, || infer(&daemon, &key, "add_sub"));
    let shown = || {
        let shown = daemon.root.command(&["audit", "show", "--action", "key_revoked", "--json"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).into_owned()
    };
    let deadline = Instant::now() + KNOWN;
    while !shown().contains("till") {
        assert!(Instant::now() < deadline, "{}", shown());
    }
    assert!(!daemon.log().contains(&key), "a key is in no log");
}

#[test]
fn whatever_somebody_changes_here_has_a_record_of_who_asked() {
    let root = TestRoot::closed().models(&["add_sub"]).views(VIEWS);
    let admin = key(&root, &["boss", "--role", "admin"]);
    let daemon = root.start();
    let post = |path: &str, body: &Value| ask(&daemon, &admin, "POST", path, body);
    let row = json!({"driver_id": [1], "event_timestamp": ["2026-01-01T00:00:00Z"], "conv_rate": [0.5], "trips": [1]});
    assert_eq!(post("/push", &json!({"push_source_name": "driver_push", "df": row, "to": "online"})).status, 200);
    let backup = ask(&daemon, &admin, "GET", "/features/backup", &json!({}));
    assert_eq!(backup.status, 200, "{backup:?}");
    let bearer = format!("Bearer {admin}");
    let restored = daemon.client().post("/features/restore", &[("authorization", &bearer)], &backup.body);
    assert_eq!(restored.status, 200, "{restored:?}");
    for (path, status) in [
        ("/v2/repository/models/add_sub/unload", 200),
        ("/v2/repository/models/add_sub/load", 200),
        ("/features/erase", 200),
        ("/features/snapshot", 200),
        ("/features/compact", 200),
        // The caller gets the reason, also where no platform manages the box.
        ("/updates/check", 409),
    ] {
        let body = if path.ends_with("erase") { json!({"entity": {"driver_id": 1}}) } else { json!({}) };
        assert_eq!(post(path, &body).status, status, "{path}");
    }
    let root = crate::audit::stop(daemon);
    let of_key = crate::audit::records(&root, 1).into_iter().filter(|record| record.actor.kind == ActorKind::Key);
    let told: Vec<_> = of_key
        .map(|record| match record.event {
            AuditEvent::MaintenanceRequested { what } => what.to_string(),
            event => event.action().to_owned(),
        })
        .collect();
    let expected = [
        "feature_store_backed_up",
        "feature_store_restored",
        "model_unloaded",
        "model_loaded",
        "feature_entity_erased",
        "feature_snapshot",
        "feature_compaction",
        "update_check",
        // By the minute, so at the end.
        "features_pushed",
    ];
    assert_eq!(told, expected);
}

#[test]
fn the_role_that_is_recommended_is_the_least_that_will_do() {
    let daemon = TestRoot::closed().set("access.loopback=[]").start();
    for (path, role) in [
        ("/metrics", "viewer"),
        ("/audit/logs/1/checkpoint", "auditor"),
        ("/v2", "viewer"),
        ("/features/backup", "admin"),
    ] {
        let told = daemon.client().get(path).error();
        assert!(told.contains(&format!("`ledge keys create NAME --role {role}`")), "{path}: {told}");
    }
}

#[test]
fn a_key_for_a_model_sees_no_other() {
    let root = TestRoot::closed().models(&["add_sub"]).model_as("add_sub", "other");
    let operator = key(&root, &["ops", "--role", "operator", "--role", "infer", "--model", "add_sub"]);
    let daemon = root.start();
    assert_eq!(infer(&daemon, &operator, "add_sub").status, 200);
    let refused = infer(&daemon, &operator, "other");
    assert_eq!(refused.status, 403);
    assert!(refused.error().contains("add_sub"), "{}", refused.error());
    // Not even whether it exists.
    assert_eq!(infer(&daemon, &operator, "nothing").status, 403);
    let get = |path: &str| ask(&daemon, &operator, "GET", path, &json!({}));
    let index = ask(&daemon, &operator, "POST", "/v2/repository/index", &json!({})).json();
    assert_eq!((index.as_array().unwrap().len(), &index[0]["name"]), (1, &json!("add_sub")));
    assert_eq!(get("/v2/models/stats").json()["model_stats"].as_array().unwrap().len(), 1);
    let metrics = String::from_utf8(get("/metrics").body).unwrap();
    assert!(metrics.contains("model=\"add_sub\"") && !metrics.contains("model=\"other\""), "{metrics}");
    let post = |path: &str| ask(&daemon, &operator, "POST", path, &json!({})).status;
    assert_eq!(post("/v2/repository/models/add_sub/load"), 200);
    assert_eq!(post("/v2/repository/models/other/unload"), 403);
    assert_eq!(post("/updates/models/other/rollback"), 403);
    assert_eq!(post("/updates/runtimes/add_sub/rollback"), 403);
    assert_eq!(post("/updates/models/add_sub/rollback"), 409, "no updates are configured");
    assert_eq!(post("/features/snapshot"), 403);
}

#[test]
fn a_key_has_no_more_requests_than_it_is_for() {
    let root = TestRoot::closed().models(&["add_sub"]);
    let slow = key(&root, &["slow", "--role", "viewer", "--max-rate", "0.01"]);
    let daemon = root.start();
    let get = || ask(&daemon, &slow, "GET", "/metrics", &json!({}));
    assert_eq!(get().status, 200);
    let limited = get();
    assert_eq!(limited.status, 429);
    assert!(limited.header("retry-after").unwrap().parse::<u32>().unwrap() > 50);
    assert_eq!(limited.error(), "the API key 'slow' may make only 0.01 requests per second: retry later");
    assert_eq!(daemon.client().get("/metrics").status, 200, "others are not concerned");
}

#[test]
fn a_key_goes_into_a_file_of_its_own_or_is_none() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = TestRoot::closed();
    let file = root.folder.path().join("till.key");
    let create = |name: &str, arguments: &[&str]| {
        root.command(&[&["keys", "create", name, "--role", "infer"], arguments].concat())
    };
    let state = |name: &str| {
        let listed = root.command(&["keys", "list", "--json"]).output().unwrap();
        let keys: Value = serde_json::from_slice(&listed.stdout).unwrap();
        keys.as_array().unwrap().iter().find(|key| key["name"] == name).map(|key| key["state"].clone())
    };
    let output = ["--output", file.to_str().unwrap()];
    let made = create("till", &output).output().unwrap();
    assert!(made.status.success() && made.stdout.is_empty(), "{made:?}");
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("ledge_"));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // An existing file stays, and no key is made that could not be written.
    let again = create("other", &output).output().unwrap();
    assert!(!again.status.success() && state("other").is_none(), "{again:?}");
    // A name that is taken leaves no file.
    let (taken, left) = (root.folder.path().join("taken.key"), |path: &std::path::Path| path.exists());
    assert!(!create("till", &["--output", taken.to_str().unwrap()]).output().unwrap().status.success());
    assert!(!left(&taken));
    // A disk without room, and a reader that has gone.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let lost = create("lost", &[]).stdout(full).output().unwrap();
    assert_eq!(lost.status.code(), Some(1), "{lost:?}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let gone = create("gone", &["--json"]).stdout(writer).output().unwrap();
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
    assert_eq!([state("till"), state("lost"), state("gone")].map(Option::unwrap), ["valid", "revoked", "revoked"]);
}

#[test]
fn keys_are_listed_without_themselves() {
    let root = TestRoot::closed();
    let made = key(&root, &["till", "--role", "infer", "--model", "m", "--expires", "90d", "--max-concurrent", "2"]);
    let list = |arguments: &[&str]| {
        let listed = root.command(&[&["keys", "list"], arguments].concat()).output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    };
    let (text, keys) = (list(&[]), serde_json::from_str::<Value>(&list(&["--json"])).unwrap());
    assert!(text.contains("till") && text.contains("valid"), "{text}");
    assert_eq!((&keys[0]["roles"], &keys[0]["models"]), (&json!(["infer"]), &json!(["m"])));
    assert_eq!(keys[0]["max_concurrent"], 2);
    assert!(!text.contains(&made[15..]) && !keys.to_string().contains(&made[15..]));
    let again = root.command(&["keys", "create", "till", "--role", "infer"]).output().unwrap();
    assert!(again.status.code() == Some(1) && String::from_utf8_lossy(&again.stderr).contains("'till'"), "{again:?}");
    assert_eq!(serde_json::from_str::<Value>(&list(&["--json"])).unwrap(), keys, "it is the key that it was");
    assert_eq!(root.command(&["keys", "create", "x", "--role", "emperor"]).output().unwrap().status.code(), Some(2));
}
