//! Models that a caller uploads as the folder of a model repository, in a tar archive.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, model_folder, write};

/// The archive of a folder, as the program `tar` makes it.
fn archive(folder: &Path) -> Vec<u8> {
    let output = Command::new("tar").arg("-C").arg(folder).args(["-c", "."]).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

fn root() -> TestRoot {
    TestRoot::new().set("catalogue.upload_max_mb=1").set("updates.min_free_mb=0")
}

fn upload(client: &mut Client, name: &str, archive: &[u8]) -> Response {
    client.post(&format!("/catalogue/models/{name}/upload"), &[("content-type", "application/x-tar")], archive)
}

/// The names in the owner's repository, hidden ones included.
fn folders(daemon: &TestDaemon) -> Vec<String> {
    let entries = std::fs::read_dir(daemon.root.folder.path().join("models")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_uploaded_model_serves_with_the_answer_until_it_is_removed() {
    let daemon = root().start();
    let mut client = daemon.client();
    let answer = upload(&mut client, "sums", &archive(&model_folder("add_sub")));
    assert_eq!((answer.status, &answer.json()["name"]), (201, &json!("sums")), "{answer:?}");
    let input = |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let asked = json!({"inputs": [input("INPUT0"), input("INPUT1")]});
    let answer = client.post_json("/v2/models/sums/infer", &asked);
    assert_eq!(answer.json()["outputs"][0]["data"][3], json!(2.0));
    let profile = client.get("/v2/models/sums").json()["properties"].clone();
    assert!(profile["threads"].is_string() && profile["instances"].is_string(), "{profile}");

    assert_eq!(client.get("/catalogue").json()["brought"], json!(["sums"]));

    let again = upload(&mut client, "sums", &archive(&model_folder("add_sub")));
    assert_eq!(again.status, 409, "{again:?}");
    assert!(again.error().contains("sums"), "{}", again.error());

    // A file that the owner puts there later is not lost.
    let own = daemon.root.model("sums").join("notes.txt");
    write(&own, b"mine");
    let refused = client.post("/catalogue/models/sums/remove", &[], b"");
    assert_eq!(refused.status, 409);
    assert!(refused.error().contains("notes.txt"), "{}", refused.error());
    std::fs::remove_file(&own).unwrap();
    assert_eq!(client.post("/catalogue/models/sums/remove", &[], b"").status, 200);
    assert_eq!(client.post_json("/v2/models/sums/infer", &asked).status, 404);
    assert_eq!(folders(&daemon), [""; 0]);
}

#[test]
fn an_upload_that_does_not_load_or_is_too_much_leaves_nothing() {
    let daemon = root().models(&["add_sub"]).start();
    for (name, archive, status, reason) in [
        ("cut", archive(&model_folder("broken_cut")), 422, "cut off"),
        ("none", vec![0; 1024], 400, "no files"),
        ("text", b"GIF89a".repeat(200), 400, "not a whole tar archive"),
        ("../x", archive(&model_folder("add_sub")), 404, ""),
        ("big", large(), 413, "upload_max_mb"),
    ] {
        let refused = upload(&mut daemon.client(), name, &archive);
        assert_eq!(refused.status, status, "{name}: {refused:?}");
        assert!(refused.error().contains(reason), "{name}: {}", refused.error());
    }
    assert_eq!(folders(&daemon), ["add_sub"]);

    // A caller that hangs up within the file, which begins after three headers.
    let whole = archive(&model_folder("add_sub"));
    let mut other = daemon.client();
    let head = format!(
        "POST /catalogue/models/half/upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        whole.len()
    );
    other.send(head.as_bytes());
    other.send(&whole[..1600]);
    drop(other);
    // The turn is free, and the same name too, once the half is gone.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let answer = upload(&mut daemon.client(), "half", &whole);
        if answer.status == 201 {
            break;
        }
        assert!(std::time::Instant::now() < end, "the half of an upload stays: {answer:?}");
        std::thread::yield_now();
    }
    assert_eq!(folders(&daemon), ["add_sub", "half"]);
}

/// An archive with a file of two megabytes.
fn large() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("1/model.onnx"), &vec![7; 2 << 20]);
    archive(folder.path())
}

#[cfg(target_arch = "x86_64")]
#[test]
fn an_uploaded_model_that_crashes_its_runtime_leaves_the_box_serving() {
    let daemon = root().models(&["add_sub"]).start();
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(model_folder("release_crash")).unwrap() {
        let entry = entry.unwrap();
        let file = entry.file_name().into_string().unwrap();
        let to = if file == "model.onnx" { "1/model.onnx" } else { &file };
        write(&folder.path().join(to), &std::fs::read(entry.path()).unwrap());
    }
    let refused = upload(&mut daemon.client(), "crash", &archive(folder.path()));
    assert_eq!(refused.status, 422, "{refused:?}");
    assert_eq!(folders(&daemon), ["add_sub"]);
    assert_eq!(daemon.client().get("/v2/models/add_sub/ready").status, 200);
    // The log has which files were here.
    let log = daemon.log();
    for said in ["model_added", "model_removed", "\"origin\":\"upload\""] {
        assert!(log.replace("\\\"", "\"").contains(said), "{said}: {log}");
    }
}

#[test]
fn what_an_operator_took_out_of_service_stays_so_when_another_model_is_removed() {
    let daemon = root().models(&["add_sub"]).start();
    let mut client = daemon.client();
    assert_eq!(upload(&mut client, "sums", &archive(&model_folder("add_sub"))).status, 201);
    assert_eq!(client.post("/v2/repository/models/add_sub/unload", &[], b"").status, 200);
    assert_eq!(client.post("/catalogue/models/sums/remove", &[], b"").status, 200);
    assert_eq!(client.state("add_sub").0, "UNAVAILABLE");
    assert_eq!(client.get("/v2/models/sums").status, 404);
}

#[test]
fn a_key_that_is_revoked_during_its_upload_adds_nothing() {
    let root = root().set("access.loopback=[]");
    let key = crate::access::key(&root, &["boss", "--role", "admin"]);
    let daemon = root.start();
    let whole = archive(&model_folder("add_sub"));
    let mut client = daemon.client();
    let head = format!(
        "POST /catalogue/models/sums/upload HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
        whole.len()
    );
    client.send(head.as_bytes());
    client.send(&whole[..1600]);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !folders(&daemon).contains(&".sums.upload".to_owned()) {
        assert!(std::time::Instant::now() < end, "the upload never begins");
        std::thread::yield_now();
    }
    assert!(daemon.root.command(&["keys", "revoke", "boss"]).status().unwrap().success());
    while daemon.client().request("GET", "/v2", &[("authorization", &format!("Bearer {key}"))], b"").status != 401 {
        assert!(std::time::Instant::now() < end, "the key stays valid");
        std::thread::yield_now();
    }
    client.send(&whole[1600..]);
    let refused = client.receive();
    assert_eq!(refused.status, 401, "{refused:?}");
    assert_eq!(folders(&daemon), [""; 0]);
}

#[test]
fn a_box_takes_no_upload_unless_it_is_configured() {
    let daemon = TestRoot::new().start();
    let mut client = daemon.client();
    let refused = upload(&mut client, "sums", &archive(&model_folder("add_sub")));
    assert_eq!(refused.status, 409);
    assert!(refused.error().contains("upload_max_mb"), "{}", refused.error());
    let state = client.get("/catalogue").json();
    assert_eq!((&state["upload_max_bytes"], &state["address"]), (&json!(0), &json!(null)));
    assert_eq!(state["brought"], json!([]));
    let refused = client.post("/catalogue/models/x/add", &[], b"");
    assert_eq!(refused.status, 409);
    assert!(refused.error().contains("address"), "{}", refused.error());
}
