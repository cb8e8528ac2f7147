//! Jobs: files and tables that are answered once however often the daemon is killed, behind all callers, in their window,
//! and whose inputs nobody can read on the disk.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::access_matrix::key;
use crate::client::{Client, Response};
use crate::daemon::{TestRoot, data, write};

/// The time within which jobs must end, many times what they take.
const LIMIT: Duration = Duration::from_mins(4);

const COLUMNS: &str = "[pipeline.table]\ncolumns = [{ name = \"a\" }, { name = \"b\", missing = \"nan\" }]\n";
const VECTORS: &str = "[pipeline.text_embedding]\nmax_tokens = 8\nnormalize = false\n";

const FILES: usize = 600;

/// Enough for a dozen kills.
const KILLED_FILES: usize = 200;
const KILLED_ROWS: usize = 20_000;

/// A box with a model of texts and one that answers a row with the row, and with a folder for jobs.
fn root(folder: &Path) -> TestRoot {
    let root = TestRoot::new().models(&["word_vectors"]).file("word_vectors/model.toml", VECTORS);
    let root = root.model_as("identity_fp64", "echo").file("echo/model.toml", COLUMNS);
    root.set(&format!("jobs.folders=[\"{}\"]", folder.display()))
}

fn table(rows: usize) -> String {
    (0..rows).fold("a,b\n".to_owned(), |mut text, row| {
        let _ = writeln!(text, "{row},{}.5", row % 7);
        text
    })
}

fn texts(folder: &Path, count: usize) {
    for number in 0..count {
        write(&folder.join(format!("{number:05}.txt")), "red ".repeat(number % 5 + 1).as_bytes());
    }
}

#[track_caller]
fn added(answer: &Response) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["id"].as_str().unwrap().to_owned()
}

fn add(client: &mut Client, body: &Value) -> String {
    added(&client.post_json("/jobs", body))
}

fn send(client: &mut Client, query: &str, kind: &str, content: &[u8]) -> String {
    added(&client.post(&format!("/jobs?{query}"), &[("content-type", kind)], content))
}

fn job(client: &mut Client, id: &str) -> Value {
    client.get(&format!("/jobs/{id}")).json()
}

#[track_caller]
fn wait(client: &mut Client, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + LIMIT;
    loop {
        let now = job(client, id);
        if is_so(&now) {
            return now;
        }
        assert!(Instant::now() < deadline && now["state"] != "failed", "{now}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn has_ended(job: &Value) -> bool {
    job["state"] == "done" || job["state"] == "failed"
}

/// The results in a folder, by their names, with the id of the job left out of both.
fn results(folder: &Path, id: &str) -> BTreeMap<String, String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = files.filter(|path| path.to_str().unwrap().contains(id));
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().replace(id, "ID");
        (name, fs::read_to_string(path).unwrap().replace(id, "ID"))
    };
    named.map(read).collect()
}

/// A window that is closed now, for an hour at least.
fn closed_window() -> String {
    let hour = ledge::clock::local_second_of_day() / 3600;
    format!("{:02}:00-{:02}:00", (hour + 2) % 24, (hour + 3) % 24)
}

#[test]
fn jobs_that_are_killed_at_many_moments_have_each_result_once_and_as_without_kills() {
    let folder = tempfile::tempdir().unwrap();
    let (files, calm, killed) = (folder.path().join("files"), folder.path().join("calm"), folder.path().join("killed"));
    for path in [&files, &calm, &killed] {
        fs::create_dir(path).unwrap();
    }
    texts(&files, KILLED_FILES);
    write(&files.join("00007.txt"), b"\xff no text");
    let rows = table(KILLED_ROWS).replace("\n700,", "\nno number,");
    write(&folder.path().join("rows.csv"), rows.as_bytes());
    let add_all = |client: &mut Client, out: &Path| {
        let csv = folder.path().join("rows.csv");
        [
            add(client, &json!({"model": "word_vectors", "path": files, "out": out})),
            add(client, &json!({"model": "echo", "path": csv, "out": out})),
            send(client, "model=echo", "text/csv", rows.as_bytes()),
        ]
    };

    let mut daemon = root(folder.path()).start();
    let calm_ids = add_all(&mut daemon.client(), &calm);
    let calm_jobs = calm_ids.each_ref().map(|id| wait(&mut daemon.client(), id, has_ended));
    let calm_result = daemon.client().get(&format!("/jobs/{}/result", calm_ids[2])).body;

    let ids = add_all(&mut daemon.client(), &killed);
    let (mut kills, mut random) = (0, 7_u64);
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis((random >> 33) % 400));
        let mut client = daemon.client();
        if ids.iter().all(|id| has_ended(&job(&mut client, id))) {
            break;
        }
        daemon = daemon.kill().start();
        kills += 1;
    }
    assert!(kills >= 5, "{kills} kills");
    println!("{kills} kills");

    let client = &mut daemon.client();
    let jobs = ids.each_ref().map(|id| job(client, id));
    for (calm, killed) in calm_jobs.iter().zip(&jobs) {
        for figure in ["state", "total", "done", "answered", "failed", "errors", "model_versions"] {
            assert_eq!(calm[figure], killed[figure], "{figure}: {killed}");
        }
    }
    let counts = |job: &Value| (job["answered"].as_u64().unwrap(), job["failed"].as_u64().unwrap());
    assert_eq!(counts(&jobs[0]), (KILLED_FILES as u64 - 1, 1));
    assert_eq!((counts(&jobs[1]), counts(&jobs[2])), ((KILLED_ROWS as u64 - 1, 1), (KILLED_ROWS as u64 - 1, 1)));
    assert_eq!(jobs[1]["errors"][0]["item"], 700);

    for (calm_id, id) in calm_ids.iter().zip(&ids).take(2) {
        let (calm, killed) = (results(&calm, calm_id), results(&killed, id));
        assert!(calm == killed, "{} and {} results", calm.len(), killed.len());
    }
    assert_eq!(results(&killed, &ids[0]).len(), KILLED_FILES);
    let result = client.get(&format!("/jobs/{}/result", ids[2])).body;
    assert!(result == calm_result);
    let lines: Vec<_> = std::str::from_utf8(&result).unwrap().lines().collect();
    assert_eq!((lines[0], lines[1], lines.len()), ("row,value_0,value_1", "0,0.0,0.5", KILLED_ROWS));
    assert_eq!(fs::read_to_string(killed.join(format!("rows.csv.{}.csv", ids[1]))).unwrap().as_bytes(), result);
}

#[test]
fn a_job_begins_no_calls_while_those_of_callers_wait() {
    let folder = tempfile::tempdir().unwrap();
    texts(folder.path(), FILES);
    let daemon = root(folder.path()).models(&["efficientnet_lite0"]).set("runtimes.threads=1").start();
    let client = &mut daemon.client();
    let photo = data("photos/astronaut.jpg");
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (mut client, photo) = (daemon.client(), photo.clone());
            let mut ask = move || {
                client.post("/v2/models/efficientnet_lite0/infer", &[("content-type", "image/jpeg")], &photo).status
            };
            std::thread::spawn(move || (0..20).all(|_| ask() == 200))
        })
        .collect();
    let id = add(client, &json!({"model": "word_vectors", "path": folder.path()}));
    // Within one pause, no more ends than the four calls that had begun.
    let first = wait(client, &id, |job| job["state"] == "paused");
    let last = wait(client, &id, |job| {
        job["pauses"] != first["pauses"] || callers.iter().all(std::thread::JoinHandle::is_finished)
    });
    let ended = |job: &Value| job["done"].as_u64().unwrap();
    if last["pauses"] == first["pauses"] && last["state"] == "paused" {
        assert!(ended(&last) - ended(&first) <= 4, "{first}\n{last}");
    }
    let during = wait(client, &id, |job| job["state"] != "paused");
    assert!(during["pauses"].as_u64() >= Some(1));
    assert!(callers.into_iter().all(|caller| caller.join().unwrap()));
    let end = wait(client, &id, has_ended);
    assert_eq!((&end["state"], &end["answered"]), (&json!("done"), &json!(FILES)));
    assert!(daemon.metric::<u64>("ledge_job_pauses_total") >= 1);
}

#[test]
fn a_sent_job_waits_for_its_window_encrypted_and_belongs_to_its_caller() {
    let folder = tempfile::tempdir().unwrap();
    let root = root(folder.path());
    let [one, other] = ["one", "other"].map(|name| key(&root, &[name, "--role", "operator"]));
    let daemon = root.start();
    let ask = |key: &str, method: &str, path: &str, body: &[u8]| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "text/plain")];
        daemon.client().request(method, path, &headers, body)
    };
    let window = closed_window();
    let id = added(&ask(&one, "POST", &format!("/jobs?model=word_vectors&window={window}"), b"red secret red"));
    let path = format!("/jobs/{id}");
    let state = ask(&one, "GET", &path, b"").json();
    assert_eq!(
        (&state["state"], &state["window"], &state["owner"]),
        (&json!("waiting"), &json!(window), &json!("key:one"))
    );
    assert_eq!(ask(&one, "GET", &format!("{path}/result"), b"").status, 409);
    for (method, path) in [("GET", path.clone()), ("GET", format!("{path}/result")), ("POST", format!("{path}/remove"))]
    {
        assert_eq!(ask(&other, method, &path, b"").status, 404, "{path}");
    }
    assert_eq!(ask(&other, "GET", "/jobs", b"").json()["jobs"], json!([]));
    // The admin on this machine sees it.
    assert_eq!(daemon.client().get("/jobs").json()["jobs"][0]["id"], json!(id));
    let stored = daemon.root.folder.path().join("jobs");
    let mut seen = 0;
    for entry in fs::read_dir(stored.join(&id)).unwrap() {
        let content = fs::read(entry.unwrap().path()).unwrap();
        assert!(!content.windows(6).any(|part| part == b"secret"));
        seen += 1;
    }
    assert_eq!(seen, 3);
    assert_eq!(ask(&one, "POST", &format!("{path}/remove"), b"").status, 200);
    assert_eq!(fs::read_dir(&stored).unwrap().count(), 0);

    let id = added(&ask(&one, "POST", "/jobs?model=word_vectors", b"Red red"));
    wait(&mut daemon.client(), &id, has_ended);
    let answer = ask(&one, "GET", &format!("/jobs/{id}/result"), b"");
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let line = answer.json();
    assert_eq!((&line["model_name"], &line["model_version"]), (&json!("word_vectors"), &json!("1")));
    assert_eq!(line["embeddings"][0]["embedding"], json!([3.25, 4.0, 1.0]));
    assert!(!stored.join(&id).join("input").exists());
    let daemon = daemon.kill().start();
    let again = daemon.client().get(&format!("/jobs/{id}/result")).json();
    assert_eq!(again, line);
    assert!(!daemon.log().contains("secret"));
    let records = daemon.root.command(&["audit", "show", "--json"]).output().unwrap();
    let records = String::from_utf8(records.stdout).unwrap();
    for action in ["job_added", "job_ended", "job_removed"] {
        assert!(records.contains(action), "{action}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the owner moves the folder")]
fn a_job_that_cannot_go_on_says_why_and_goes_on_when_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let (files, away) = (folder.path().join("files"), folder.path().join("away"));
    fs::create_dir(&files).unwrap();
    texts(&files, FILES);
    let daemon = root(folder.path()).start();
    let client = &mut daemon.client();
    for (status, body) in [
        (404, json!({"model": "none", "path": files})),
        (403, json!({"model": "word_vectors", "path": "/etc"})),
        (400, json!({"model": "echo", "path": files})),
        (400, json!({"model": "word_vectors", "path": folder.path().join("none")})),
        (400, json!({"model": "word_vectors", "path": files, "window": "22-6"})),
    ] {
        assert_eq!(client.post_json("/jobs", &body).status, status, "{body}");
    }
    // The model is unloaded, and then the folder is away at a start.
    let id = add(client, &json!({"model": "word_vectors", "path": files}));
    wait(client, &id, |job| job["done"].as_u64() > Some(0));
    assert_eq!(client.post_json("/v2/repository/models/word_vectors/unload", &json!({})).status, 200);
    let stuck = wait(client, &id, |job| job["state"] == "stuck");
    assert!(stuck["reason"].as_str().unwrap().contains("word_vectors"), "{stuck}");
    let root = daemon.kill();
    fs::rename(&files, &away).unwrap();
    let daemon = root.start();
    let client = &mut daemon.client();
    let stuck = wait(client, &id, |job| job["state"] == "stuck");
    assert!(stuck["reason"].as_str().unwrap().contains("No such file"), "{stuck}");
    assert!(stuck["done"].as_u64() > Some(0), "{stuck}");
    assert_eq!(daemon.root.finding("jobs")["status"], "fail");

    // Another job does not wait for it.
    write(&folder.path().join("torn.csv"), b"a,b\n1,2\n3\n");
    let torn = add(client, &json!({"model": "echo", "path": folder.path().join("torn.csv")}));
    let deadline = Instant::now() + LIMIT;
    while !has_ended(&job(client, &torn)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let end = job(client, &torn);
    assert_eq!(end["state"], "failed", "{end}");
    assert!(end["reason"].as_str().unwrap().contains("row 1 has 1 cells"), "{end}");

    fs::rename(&away, &files).unwrap();
    let end = wait(client, &id, has_ended);
    assert_eq!((&end["state"], &end["answered"]), (&json!("done"), &json!(FILES)));
    assert_eq!(results(&files, &id).len(), FILES);
}

#[test]
fn the_command_line_adds_lists_fetches_and_removes_jobs() {
    let folder = tempfile::tempdir().unwrap();
    texts(folder.path(), 3);
    let daemon = root(folder.path()).start();
    let url = format!("http://{}", daemon.address);
    let run = |verb: &[&str]| {
        let output = daemon.root.command(&[&["jobs"], verb, &["--url", &url]].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(&[]), "no jobs\n");
    let path = folder.path().to_str().unwrap();
    let window = closed_window();
    assert!(run(&["add", path, "--model", "word_vectors", "--window", &window]).starts_with("added "));
    let file = folder.path().join("00001.txt");
    let sent = run(&["add", file.to_str().unwrap(), "--model", "word_vectors", "--send"]);
    let id = sent.trim_end().strip_prefix("added ").unwrap();
    wait(&mut daemon.client(), id, has_ended);
    let listed = run(&[]);
    let has = |words: &[&str]| listed.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["waiting", "0 %", &window]) && has(&[id, "done", "100 %", "always"]), "{listed}");
    let result: Value = serde_json::from_str(&run(&["result", id])).unwrap();
    assert!(result["embeddings"][0]["tokens"].as_u64() > Some(0), "{result}");
    assert_eq!(run(&["remove", id]), format!("removed {id}\n"));
    let jobs: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    assert_eq!(jobs.as_array().unwrap().len(), 1);
}
