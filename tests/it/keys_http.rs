//! API keys over HTTP: listed, created and revoked by a caller who may administer the box.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use ledge::audit_event::AuditEvent;
use ledge::identity::access::Role;
use serde_json::{Value, json};

use crate::access_matrix::key;
use crate::audit::{records, stop};
use crate::certificates::Authority;
use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::tls_kit::{TlsClient, with_certificate};

/// A box that allows nothing without a credential over TCP.
fn root() -> TestRoot {
    TestRoot::closed().models(&["add_sub"]).set("access.loopback=[]")
}

fn asked(daemon: &TestDaemon, key: &str, method: &str, path: &str, body: &str) -> Response {
    daemon.client().request(method, path, &[("x-api-key", key)], body.as_bytes())
}

/// Creates a key by HTTP: the key and its document.
fn created(client: &mut Client, body: &Value) -> (String, Value) {
    let answer = client.post_json("/keys", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let document = answer.json();
    (document["key"].as_str().unwrap().to_owned(), document)
}

fn listed(client: &mut Client) -> Vec<Value> {
    let answer = client.get("/keys");
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{answer:?}");
    answer.json()["keys"].as_array().unwrap().clone()
}

#[test]
fn a_created_key_works_at_once_and_a_revoked_one_no_more() {
    let daemon = root().start();
    let mut admin = daemon.unix_client();
    let till = json!({
        "name": "till-7", "roles": ["infer"], "models": ["add_sub"], "expires": "90d", "max_rate": 50, "max_concurrent": 4,
    });
    let (key, document) = created(&mut admin, &till);
    assert_eq!(
        (&document["state"], &document["roles"], &document["max_rate"]),
        (&json!("valid"), &json!(["infer"]), &json!(50.0))
    );
    assert_eq!((&document["models"], &document["feature_views"]), (&json!(["add_sub"]), &json!([])));
    // Without a wait: the box knows it before the answer.
    assert_eq!(asked(&daemon, &key, "GET", "/v2/models/add_sub", "").status, 200);
    assert_eq!(asked(&daemon, &key, "GET", "/keys", "").status, 403);

    let [known] = &listed(&mut admin)[..] else { panic!("one key") };
    assert!(known["last_used"].is_string() && known["is_caller"] == json!(false), "{known}");
    let of_command_line = daemon.root.command(&["keys", "list", "--json"]).output().unwrap();
    let of_command_line: Value = serde_json::from_slice(&of_command_line.stdout).unwrap();
    for (field, value) in of_command_line[0].as_object().unwrap() {
        assert_eq!((value, &document[field]), (&known[field], &known[field]), "{field}");
    }

    let revoked = admin.post_json("/keys/till-7/revoke", &json!({}));
    assert_eq!((revoked.status, &revoked.json()["state"]), (200, &json!("revoked")), "{revoked:?}");
    let refused = asked(&daemon, &key, "GET", "/v2/models/add_sub", "");
    assert!(refused.status == 401 && refused.error().contains("revoked"), "{refused:?}");
    // Once more changes nothing, and neither does the id in place of the name.
    let id = revoked.json()["id"].as_str().unwrap().to_owned();
    let again = admin.post_json(&format!("/keys/{id}/revoke"), &json!({}));
    assert_eq!(again.json(), revoked.json());
}

#[test]
fn a_change_is_in_the_log_as_that_of_its_caller_when_it_is_answered() {
    let root = root();
    let desk = key(&root, &["desk", "--role", "admin"]);
    let daemon = root.start();
    let create = asked(&daemon, &desk, "POST", "/keys", r#"{"name": "till-7", "roles": ["viewer", "infer"]}"#);
    assert_eq!(create.status, 200, "{create:?}");
    assert_eq!(asked(&daemon, &desk, "POST", "/keys/till-7/revoke", "").status, 200);
    // As a power cut right after the answer would.
    let root = daemon.kill();
    let about_till = |event: &AuditEvent| match event {
        AuditEvent::KeyCreated { name, roles, .. } if name.as_str() == "till-7" => Some(format!("created {roles:?}")),
        AuditEvent::KeyRevoked { name } if name.as_str() == "till-7" => Some("revoked".to_owned()),
        _ => None,
    };
    let told = |root: &TestRoot| {
        let about = |record: ledge::audit::record::AuditRecord| {
            Some(format!("{:?} {}", record.actor.kind, about_till(&record.event)?))
        };
        records(root, 1).into_iter().filter_map(about).collect::<Vec<_>>()
    };
    let expected = ["Key created [\"viewer\", \"infer\"]", "Key revoked"];
    assert_eq!(told(&root), expected);
    // The next start does not record them again.
    assert_eq!(told(&stop(root.start())), expected);
}

/// All files below a folder, without those of the set-up.
fn files(folder: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && entry.file_name() != "models" {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push((entry.path().display().to_string(), std::fs::read(entry.path()).unwrap()));
        }
    }
}

#[test]
fn a_key_is_in_its_answer_and_in_no_log_no_record_and_no_file() {
    // The most that the log can have of it.
    let daemon = root().set("log.level=\"trace\"").start();
    let mut admin = daemon.unix_client();
    let (key, _) = created(&mut admin, &json!({"name": "desk", "roles": ["admin"]}));
    // Also one that a caller sends where it does not belong.
    for (method, path, body) in [
        ("GET", "/keys", String::new()),
        ("POST", "/keys", json!({"name": key, "roles": ["infer"]}).to_string()),
        ("POST", "/keys", json!({"name": "x", "roles": [key]}).to_string()),
        ("GET", "/access", String::new()),
    ] {
        let answer = asked(&daemon, &key, method, path, &body);
        assert!([200, 400].contains(&answer.status), "{answer:?}");
    }
    let list = admin.get("/keys");
    assert_eq!(admin.post_json("/keys/desk/revoke", &json!({})).status, 200);
    assert_eq!(asked(&daemon, &key, "GET", "/keys", "").status, 401);

    let secret = &key[15..];
    let log = daemon.log();
    let created = daemon.events("key.created");
    assert!(created.len() == 1 && created[0]["key"] == "desk", "{created:?}");
    assert!(!log.contains(secret), "the log has the key");
    assert!(!String::from_utf8_lossy(&list.body).contains(secret));
    let root = stop(daemon);
    assert!(records(&root, 1).iter().any(|record| record.event.action() == "key_created"));
    let mut found = Vec::new();
    files(root.folder.path(), &mut found);
    assert!(
        found.iter().any(|(path, _)| path.ends_with("/keys.json"))
            && found.iter().any(|(path, _)| path.contains("/audit/"))
    );
    for (path, content) in found {
        assert!(!content.windows(secret.len()).any(|part| part == secret.as_bytes()), "{path} has the key");
    }
}

#[test]
fn a_request_that_is_wrong_is_told_why_and_changes_nothing() {
    let root = root();
    key(&root, &["gone", "--role", "infer"]);
    assert!(root.command(&["keys", "revoke", "gone"]).output().unwrap().status.success());
    let daemon = root.start();
    let mut admin = daemon.unix_client();
    let large = format!("{{\"name\": \"till\", \"roles\": [\"infer\"], \"models\": [\"{}\"]}}", "m".repeat(40_000));
    for (body, status, words) in [
        (json!({"name": "gone", "roles": ["infer"]}).to_string(), 409, "revoked keys keep their names"),
        (
            json!({"name": "till", "roles": ["infer"], "expires": "2020-01-01T00:00:00Z"}).to_string(),
            400,
            "in the past",
        ),
        (json!({"name": "till", "roles": ["infer"], "expires": "soon"}).to_string(), 400, "expected a duration"),
        (json!({"name": "till 7", "roles": ["infer"]}).to_string(), 400, "till 7"),
        (json!({"name": "till", "roles": []}).to_string(), 400, "at least one role"),
        (json!({"name": "till", "roles": ["root"]}).to_string(), 400, "expected one of viewer"),
        (json!({"name": "till", "roles": ["infer"], "models": []}).to_string(), 400, "at least one model"),
        (json!({"name": "till", "roles": ["infer"], "max_rate": 1e9}).to_string(), 400, "1000000"),
        (json!({"name": "till", "roles": ["infer"], "secret": "x"}).to_string(), 400, "secret"),
        ("{not JSON".to_owned(), 400, "does not describe a new key"),
        (String::new(), 400, "does not describe a new key"),
        (large, 413, "32768 bytes"),
    ] {
        let answer = admin.post("/keys", &[("content-type", "application/json")], body.as_bytes());
        assert_eq!(answer.status, status, "{body:.100}: {answer:?}");
        assert!(answer.error().contains(words), "{body:.100}: {}", answer.error());
    }
    for unknown in ["till", "00000000", "..", "a%2fb", "%ff"] {
        let answer = admin.post_json(&format!("/keys/{unknown}/revoke"), &json!({}));
        assert!([400, 404].contains(&answer.status), "{unknown}: {answer:?}");
    }
    assert_eq!(listed(&mut admin).len(), 1);
}

#[test]
fn a_store_that_is_damaged_or_full_is_told_and_left_as_it_is() {
    let root = root();
    key(&root, &["till", "--role", "infer"]);
    let path = root.folder.path().join("keys.json");
    let good = std::fs::read(&path).unwrap();
    write(&path, &good[1..]);
    let daemon = root.start();
    let mut admin = daemon.unix_client();
    let create = json!({"name": "desk", "roles": ["infer"]});
    for answer in
        [admin.get("/keys"), admin.post_json("/keys", &create), admin.post_json("/keys/till/revoke", &json!({}))]
    {
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.error().contains("keys.json"), "{}", answer.error());
    }
    assert_eq!(std::fs::read(&path).unwrap(), good[1..]);

    // A store above three quarters of the most that is read takes no more keys.
    let mut full: Value = serde_json::from_slice(&good).unwrap();
    full["keys"][0]["models"] = (0..28_500).map(|number| format!("{number:0100}")).collect();
    write(&path, serde_json::to_string_pretty(&full).unwrap().as_bytes());
    let refused = admin.post_json("/keys", &create);
    assert!(refused.status == 507 && refused.error().contains("keys.json"), "{refused:?}");
    assert_eq!(admin.get("/keys").json()["is_half_full"], json!(true));
}

#[test]
fn keys_created_at_once_are_all_there_and_a_name_is_given_once() {
    let daemon = root().start();
    let statuses = std::thread::scope(|scope| {
        let create = |number: usize| {
            let daemon = &daemon;
            let body = json!({"name": format!("till-{}", number % 8), "roles": ["infer"]});
            scope.spawn(move || daemon.unix_client().post_json("/keys", &body).status)
        };
        let running: Vec<_> = (0..16).map(create).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 8, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 8, "{statuses:?}");
    assert_eq!(listed(&mut daemon.unix_client()).len(), 8);
}

#[test]
fn an_admin_may_end_its_own_key_and_the_socket_remains() {
    let root = root();
    let desk = key(&root, &["desk", "--role", "admin"]);
    let daemon = root.start();
    let own = asked(&daemon, &desk, "GET", "/keys", "").json();
    assert_eq!(own["keys"][0]["is_caller"], json!(true));
    let revoked = asked(&daemon, &desk, "POST", "/keys/desk/revoke", "");
    assert_eq!((revoked.status, &revoked.json()["is_caller"]), (200, &json!(true)), "{revoked:?}");
    assert_eq!(asked(&daemon, &desk, "GET", "/access", "").status, 401);
    assert_eq!(created(&mut daemon.unix_client(), &json!({"name": "desk-2", "roles": ["admin"]})).1["state"], "valid");
}

#[test]
fn a_caller_whose_key_ends_while_it_sends_the_request_changes_nothing() {
    let root = root();
    let desk = key(&root, &["desk", "--role", "admin"]);
    let daemon = root.start();
    let body = r#"{"name": "back-door", "roles": ["admin"]}"#;
    let mut slow = TcpStream::connect(daemon.address).unwrap();
    let head =
        format!("POST /keys HTTP/1.1\r\nhost: localhost\r\nx-api-key: {desk}\r\ncontent-length: {}\r\n", body.len());
    // The daemon invites the body once the caller has passed the guard.
    slow.write_all(format!("{head}expect: 100-continue\r\n\r\n").as_bytes()).unwrap();
    let mut invited = [0; 25];
    std::io::Read::read_exact(&mut slow, &mut invited).unwrap();
    assert_eq!(&invited, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(daemon.root.command(&["keys", "revoke", "desk"]).output().unwrap().status.success());
    slow.write_all(body.as_bytes()).unwrap();
    let answer = Client::over(slow).receive();
    assert_eq!(answer.status, 401, "{answer:?}");
    assert_eq!(listed(&mut daemon.unix_client()).len(), 1);
}

#[test]
fn the_ways_in_without_a_key_are_those_of_the_configuration() {
    let authority = Authority::new();
    let root = with_certificate(root(), &authority)
        .set("http.tls.client_certificates=optional")
        .set("http.tls.client_ca_file=\"clients.pem\"")
        .set("access.socket=[\"viewer\"]")
        .set("access.users=[{user=\"4711\", roles=[\"operator\"], models=[\"add_sub\"]}]")
        .set("access.certificates=[{name=\"till.shop\", roles=[\"infer\"], max_rate=5}]");
    write(&root.folder.path().join("clients.pem"), authority.pem().as_bytes());
    let daemon = root.start();
    let access = daemon.unix_client().get("/keys").json()["access"].clone();
    assert_eq!((&access["loopback"], &access["socket"]), (&json!([]), &json!(["viewer"])));
    assert_eq!(access["users"], json!([{"user": "4711", "roles": ["operator"], "models": ["add_sub"]}]));
    let [certificate] = &access["certificates"].as_array().unwrap()[..] else { panic!("{access}") };
    assert_eq!((&certificate["name"], &certificate["models"]), (&json!("till.shop"), &json!(["*"])));
    assert_eq!(access["mqtt"]["roles"], json!(["infer", "feature-writer"]));
}

#[test]
fn the_roles_come_with_their_words_and_permissions() {
    let daemon = TestRoot::closed().start();
    let roles = daemon.client().get("/roles").json();
    let listed = roles["roles"].as_array().unwrap();
    assert_eq!(listed.len(), Role::ALL.len());
    for document in listed {
        let role: Role = document["name"].as_str().unwrap().parse().unwrap();
        assert_eq!(document["may"], json!(role.may()), "{role}");
        let permissions: Vec<_> =
            role.permissions().iter().map(|one| one.as_str()).filter(|one| *one != "public").collect();
        assert_eq!(document["permissions"], json!(permissions), "{role}");
    }
}

#[test]
fn a_page_of_another_site_neither_reads_keys_nor_makes_one() {
    // Everybody on this machine may do everything.
    let daemon = TestRoot::new().start();
    let host = format!("127.0.0.1:{}", daemon.address.port());
    let body = r#"{"name": "back-door", "roles": ["admin"]}"#;
    let sent = |method: &str, path: &str, head: &str, body: &str| {
        let mut client = daemon.client();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{head}content-length: {length}\r\n\r\n{body}");
        client.send(head.as_bytes());
        client.receive()
    };
    let simple = "content-type: text/plain\r\n";
    for foreign in [
        "origin: https://far.example\r\nsec-fetch-site: cross-site\r\n",
        "origin: http://127.0.0.1:3000\r\nsec-fetch-site: same-site\r\n",
        "origin: null\r\n",
        "sec-fetch-site: cross-site\r\n",
    ] {
        for (method, path, body) in
            [("GET", "/keys", ""), ("GET", "/roles", ""), ("POST", "/keys", body), ("POST", "/keys/desk/revoke", "")]
        {
            let answer = sent(method, path, &format!("{foreign}{simple}"), body);
            assert_eq!(answer.status, 401, "{method} {path} {foreign}");
            assert!(answer.header("access-control-allow-origin").is_none(), "{method} {path} {foreign}");
        }
    }
    assert_eq!(listed(&mut daemon.client()).len(), 0);
    let own = format!("origin: http://{host}\r\nsec-fetch-site: same-origin\r\n");
    assert_eq!(sent("POST", "/keys", &own, body).status, 200);
    assert_eq!(listed(&mut daemon.client()).len(), 1);
}

#[test]
fn a_certificate_that_a_browser_shows_gives_a_page_of_another_site_no_access() {
    let ours = Authority::new();
    let root = with_certificate(root(), &ours)
        .set("http.tls.client_certificates=optional")
        .set("http.tls.client_ca_file=\"clients.pem\"")
        .set("access.certificates=[{name=\"desk\", roles=[\"admin\"]}]");
    write(&root.folder.path().join("clients.pem"), ours.pem().as_bytes());
    let daemon = root.start();
    let desk = ours.issue("desk");
    let host = daemon.address.to_string();
    let body = r#"{"name": "till", "roles": ["infer"]}"#;
    let sent = |head: &str| {
        let mut client = TlsClient::new(ours.pem(), Some(&desk)).client(daemon.address).unwrap();
        let length = body.len();
        client.send(
            format!("POST /keys HTTP/1.1\r\nhost: {host}\r\n{head}content-length: {length}\r\n\r\n{body}").as_bytes(),
        );
        client.receive()
    };
    for foreign in ["origin: https://far.example\r\n", "sec-fetch-site: cross-site\r\n"] {
        let refused = sent(foreign);
        assert!(refused.status == 401, "{refused:?}");
    }
    assert_eq!(listed(&mut daemon.unix_client()).len(), 0);
    // The page of the box itself; the name is any that the certificate of the box has.
    assert_eq!(sent(&format!("origin: https://{host}\r\nsec-fetch-site: same-origin\r\n")).status, 200);
    // A program, which does not send this header.
    assert_eq!(sent("").status, 409);
}
