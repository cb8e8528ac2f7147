//! Erasures and encrypted backups by the command line and over HTTP.

use std::fs;

use serde_json::{Value, json};

use super::{MASTER, VIEWS};
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::encryption::encrypted;

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
    encrypted(TestRoot::new().views(VIEWS), &MASTER)
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

    // A backup of an encrypted store needs a recipient, or plain=true.
    let refused = client.get("/features/backup");
    assert_eq!((refused.status, refused.error().contains("recipient=age1")), (400, true), "{}", refused.error());
    for query in
        ["recipient=age1nonsense", "plain=yes", "plain=true&recipient=", "feature_view=visits&feature_view=visits"]
    {
        assert_eq!(client.get(&format!("/features/backup?{query}")).status, 400, "{query}");
    }
    assert!(!run(&daemon, &["backup", &file("refused.ledge")]).status.success());
    let told = done(&daemon, &["backup", &file("cli.age"), "--to", &recipient, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["records"], 2);
    assert!(fs::read(folder.join("cli.age")).unwrap().starts_with(b"age-encryption.org/v1\n"));
    write(&folder.join("http.age"), &client.get(&format!("/features/backup?recipient={recipient}")).body);
    done(&daemon, &["backup", &file("plain.ledge"), "--plain"]);
    write(&folder.join("passphrase"), b"correct horse\n");
    done(&daemon, &["backup", &file("passphrase.age"), "--passphrase-file", &file("passphrase")]);
    assert!(fs::read(folder.join("plain.ledge")).unwrap().windows(5).any(|bytes| bytes == b"of 42"));

    let erased: Value = serde_json::from_str(&done(&daemon, &["erase", "customer=42", "--json"])).unwrap();
    assert_eq!(erased, json!({ "records": 1, "feature_views": 1 }));
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
        let answer: Value = serde_json::from_str(&done(&daemon, &[restore, &["--json"]].concat())).unwrap();
        assert_eq!(answer["records"], 1, "the erased one stays away");
        assert!(note("42").contains("NOT_FOUND") && note("43").contains("PRESENT"));
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
