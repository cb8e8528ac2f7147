//! Inboxes: documents of all kinds, files that are still being written, a full disk, and hundreds of files that two boxes
//! share while both are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot, data, model_folder, write};
use crate::hook_server::HookServer;

const MODEL: &str = "document_reader";

/// The time within which documents must be read, many times what they take.
const LIMIT: Duration = Duration::from_mins(4);

fn receipt() -> Vec<u8> {
    fs::read(model_folder(MODEL).join("golden/receipt.png")).unwrap()
}

/// A box that watches a folder, and answers a document that it knows from its cache.
fn root(device: &str, folder: &Path, more: &str) -> TestRoot {
    let config = fs::read_to_string(model_folder(MODEL).join("model.toml")).unwrap();
    let root = TestRoot::new()
        .models(&[MODEL])
        .file("document_reader/model.toml", config + "\n[response_cache]\nenable = true\n")
        .set(&format!("device.id=\"{device}\""));
    let config = format!(
        "[[inbox]]\nname = \"scans\"\npath = \"{}\"\noutputs = [\"json\", \"csv\", \"pdf\"]\npoll_interval_ms = 100\n\
         settle_ms = 400\n{more}\n",
        folder.display()
    );
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
    root
}

fn webhook(hook: &HookServer) -> String {
    format!(
        "webhook = {{ url = {:?} }}\n[[egress.allow]]\nhost = \"127.0.0.1:{}\"\nregion = \"lan\"\nsend = [\"documents\"]",
        hook.url(),
        hook.port
    )
}

/// The names in a folder, without the ids that they begin with.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let name = |name: String| name.splitn(3, '-').nth(2).map_or(name.clone(), str::to_owned);
    let mut names: Vec<_> = entries.map(|entry| name(entry.unwrap().file_name().into_string().unwrap())).collect();
    names.sort();
    names
}

/// The files of a folder whose names end like this.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_str().unwrap().ends_with(ending));
    files.sort();
    files
}

#[track_caller]
fn wait_until(what: &str, daemon: &TestDaemon, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn state(daemon: &TestDaemon) -> Value {
    daemon.client().get("/inboxes").json()["inboxes"][0].clone()
}

/// The rows of all tables in a folder, by their ids.
fn rows(results: &Path) -> Vec<BTreeMap<String, String>> {
    let mut all = Vec::new();
    for table in files(results, ".csv") {
        let mut reader = csv::Reader::from_path(table).unwrap();
        all.extend(reader.deserialize().map(|row| row.unwrap()));
    }
    all
}

#[test]
fn documents_of_every_kind_become_files_and_messages_and_others_are_put_aside() {
    let folder = tempfile::tempdir().unwrap();
    let (scans, hook) = (folder.path().join("scans"), HookServer::start());
    fs::create_dir(&scans).unwrap();
    let secret = folder.path().join("secret.png");
    write(&secret, &receipt());
    write(&scans.join("receipt 1.png"), &receipt());
    write(&scans.join("invoice.pdf"), &data("documents/invoice.pdf"));
    write(&scans.join("-rf $(id)\n;é.PNG"), &receipt());
    write(&scans.join("notes.txt"), b"no document");
    write(&scans.join("broken.pdf"), b"%PDF-1.7 nothing of one");
    for left in [".hidden.png", "half.png.part"] {
        write(&scans.join(left), &receipt());
    }
    symlink(&secret, scans.join("link.png")).unwrap();
    fs::create_dir(scans.join("sub")).unwrap();
    write(&scans.join("sub/inner.png"), &receipt());

    let daemon = root("box", &scans, &webhook(&hook)).start();
    let [results, done, failed] = ["results", "done", "failed"].map(|name| scans.join(name));
    wait_until("five files have an end", &daemon, || names(&done).len() == 3 && names(&failed).len() == 4);
    assert_eq!(names(&done), ["-rf $(id)_;é.PNG", "invoice.pdf", "receipt 1.png"]);
    assert_eq!(names(&failed), ["broken.pdf", "broken.pdf.txt", "notes.txt", "notes.txt.txt"]);
    let reason = fs::read_to_string(&files(&failed, "notes.txt.txt")[0]).unwrap();
    assert!(reason.starts_with("notes.txt: ") && reason.contains("PDF"), "{reason}");
    let left: BTreeSet<_> =
        fs::read_dir(&scans).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let expected = [".hidden.png", ".ledge", "done", "failed", "half.png.part", "link.png", "results", "sub"];
    assert_eq!(left, expected.map(str::to_owned).into());

    let found = files(&results, "receipt 1.json");
    let result: Value = serde_json::from_slice(&fs::read(&found[0]).unwrap()).unwrap();
    assert_eq!((&result["file"], &result["inbox"]), (&json!("receipt 1.png"), &json!("scans")));
    assert_eq!(result["document"]["fields"]["total"]["value"]["amount"], "13.70");
    assert!(found[0].to_str().unwrap().contains(result["id"].as_str().unwrap()));
    assert_eq!(files(&results, ".pdf").len(), 3);
    assert!(files(&results, ".pdf").iter().all(|pdf| fs::read(pdf).unwrap().starts_with(b"%PDF-")));
    let rows = rows(&results);
    let row = rows.iter().find(|row| row["file"] == "receipt 1.png").unwrap();
    assert_eq!((row["total"].as_str(), row["currency"].as_str(), rows.len()), ("13.70", "EUR", 3));

    let mut messages = BTreeMap::new();
    for _ in 0..5 {
        let message = hook.next().message;
        messages.insert(message["file"].as_str().unwrap().to_owned(), message);
    }
    let message = &messages["receipt 1.png"];
    assert_eq!((&message["id"], &message["device"]), (&result["id"], &json!("box")));
    assert_eq!(message["fields"]["total"]["value"]["amount"], "13.70");
    assert!(message["text"].as_str().unwrap().contains("Corner Coffee Bar"), "{message}");
    assert!(messages["broken.pdf"]["error"].is_string() && messages["broken.pdf"].get("text").is_none());

    wait_until("all messages are counted", &daemon, || state(&daemon)["receivers"][0]["sent"] == 5);
    let state = state(&daemon);
    assert_eq!((&state["read"], &state["failed"], &state["problem"]), (&json!(3), &json!(2), &Value::Null));
    assert_eq!(daemon.metric::<u64>("ledge_inbox_files_total{inbox=\"scans\",outcome=\"read\"}"), 3);
    assert_eq!(daemon.root.finding("inbox scans")["status"], "warn");
    // Neither a name of a file nor its content is in the log.
    for word in ["receipt 1", "invoice", "notes", "Coffee"] {
        assert!(!daemon.log().contains(word), "{word}");
    }
}

#[test]
fn text_of_documents_leaves_only_to_a_destination_whose_entry_names_it() {
    let root = TestRoot::new();
    let problems = |more: &str| {
        let config = format!("[[inbox]]\nname = \"a\"\npath = \"/srv/a\"\n{more}");
        write(&root.folder.path().join("ledge.toml"), config.as_bytes());
        root.command(&["config", "check"])
            .output()
            .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
            .unwrap()
    };
    let hook = "webhook = { url = \"https://10.0.0.9/x\" }\n";
    assert!(problems(hook).contains("is not in the allow-list"));
    let allow = "[[egress.allow]]\nhost = \"10.0.0.9:443\"\nregion = \"lan\"\n";
    let unnamed = problems(&format!("{hook}{allow}"));
    assert!(
        unnamed.contains("inbox[0].webhook.url") && unnamed.contains("\"certificates\", \"documents\"]"),
        "{unnamed}"
    );
    assert_eq!(problems(&format!("{hook}{allow}send = [\"documents\"]")), "");
    let local = problems("webhook = { url = \"http://127.0.0.1:9/x\" }");
    assert!(local.contains("names them permits"), "{local}");
    assert!(problems("mqtt = true").contains("set mqtt.broker"));
}

#[test]
fn a_file_is_read_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let scans = folder.path();
    let daemon = root("box", scans, "").start();
    let whole = receipt();
    let (first, last) = whole.split_at(whole.len() / 2);
    let mut slow = File::create(scans.join("slow.png")).unwrap();
    for piece in first.chunks(first.len() / 20) {
        slow.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(names(&scans.join("done")).is_empty() && names(&scans.join("failed")).is_empty());
    slow.write_all(last).unwrap();
    drop(slow);
    wait_until("the file is read", &daemon, || names(&scans.join("done")).len() == 1);
    let result: Value = serde_json::from_slice(&fs::read(&files(&scans.join("results"), ".json")[0]).unwrap()).unwrap();
    assert_eq!(result["document"]["fields"]["total"]["value"]["amount"], "13.70");
    assert!(names(&scans.join("failed")).is_empty());
}

/// Runs a program in a mount namespace in which a folder is a disk of 2 MiB.
const SMALL_DISK: &str = r#"mount -t tmpfs -o size=2m none "$0" && exec "$@""#;

#[test]
fn a_full_disk_keeps_files_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap().to_owned();
    let root = root("box", folder.path(), "").set("http.listen=[\"127.0.0.1:0\"]");
    let daemon = root.runner(&["unshare", "-Urm", "sh", "-c", SMALL_DISK, &path]).start();
    let scans = PathBuf::from(format!("/proc/{}/root{path}", daemon.pid()));
    write(&scans.join("fill"), &[]);
    for number in 0..3 {
        write(&scans.join(format!("receipt-{number}.png")), &receipt());
    }
    // What is left is too little for the first result.
    let mut fill = File::create(scans.join(".fill")).unwrap();
    while fill.write_all(&[0; 1024]).is_ok() {}
    wait_until("the inbox reports it", &daemon, || {
        state(&daemon)["problem"].as_str().is_some_and(|it| it.contains("space"))
    });
    assert!(names(&scans.join("done")).is_empty());
    assert_eq!(
        daemon.client().get("/findings").json()["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["name"] == "inbox scans")
            .unwrap()["status"],
        "fail"
    );
    fill.set_len(0).unwrap();
    wait_until("all files are read", &daemon, || names(&scans.join("done")).len() == 3);
    assert_eq!((files(&scans.join("results"), ".json").len(), rows(&scans.join("results")).len()), (3, 3));
    wait_until("nothing is reported any more", &daemon, || state(&daemon)["problem"].is_null());
}

#[test]
fn two_boxes_of_the_same_name_do_not_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = root("box", folder.path(), "").start();
    wait_until("the first box has the folder", &first, || folder.path().join(".ledge/box/lock").exists());
    let second = root("box", folder.path(), "").start();
    wait_until("the second one reports it", &second, || {
        state(&second)["problem"].as_str().is_some_and(|it| it.contains("another Ledge"))
    });
    write(&folder.path().join("a.png"), &receipt());
    wait_until("the first one reads the file", &first, || names(&folder.path().join("done")).len() == 1);
    // It is counted a moment after it was moved.
    wait_until("the first one counts it", &first, || state(&first)["read"] == json!(1));
    assert_eq!(state(&second)["read"], json!(0));
}

#[test]
fn two_boxes_read_each_of_many_files_once_while_both_are_killed() {
    share(150, 5);
}

#[test]
#[ignore = "minutes: cargo nextest run --run-ignored all inbox::two_boxes_read"]
fn two_boxes_read_each_of_five_hundred_files_once_while_both_are_killed() {
    share(500, 12);
}

/// Two boxes read this many files in one folder, and one of them is killed this many times.
fn share(files_in_all: usize, kills: usize) {
    let folder = tempfile::tempdir().unwrap();
    let (scans, hook) = (folder.path().to_owned(), HookServer::start());
    let kinds = [("png", receipt()), ("pdf", data("documents/invoice.pdf")), ("txt", b"no document".to_vec())];
    let boxes = ["one", "two"];
    let mut running: Vec<_> = boxes.iter().map(|name| root(name, &scans, &webhook(&hook)).start()).collect();
    // A failed file has its text first.
    let ended = || names(&scans.join("done")).len() + names(&scans.join("failed")).len() / 2;
    let mut written = 0;
    for round in 0..kills {
        while written < files_in_all * (round + 1) / kills {
            let (ending, content) = &kinds[[0, 0, 0, 1, 2][written % 5]];
            write(&scans.join(format!("file-{written:03}.{ending}")), content);
            written += 1;
        }
        // Some way into the work of this round.
        let wanted = written.saturating_sub(files_in_all / kills / 2);
        wait_until("some files are read", &running[0], || ended() >= wanted);
        let killed = running.remove(round % 2);
        running.insert(round % 2, killed.kill().start());
    }
    wait_until("all files are read", &running[0], || ended() == files_in_all);

    let unread = |name: &String| name.rsplit_once('.').unwrap().0.to_owned();
    let failed: BTreeSet<_> = names(&scans.join("failed")).into_iter().collect();
    assert_eq!(
        (names(&scans.join("done")).len(), failed.len()),
        (files_in_all - files_in_all / 5, 2 * files_in_all / 5)
    );
    let expected: BTreeSet<_> =
        (0..files_in_all).filter(|number| number % 5 != 4).map(|number| format!("file-{number:03}")).collect();
    let read = files_in_all - files_in_all / 5;
    for ending in [".json", ".pdf"] {
        let made: Vec<_> = files(&scans.join("results"), ending);
        assert_eq!(made.len(), read, "{ending}");
        let named: BTreeSet<_> = names(&scans.join("results"))
            .into_iter()
            .filter(|name| name.ends_with(ending))
            .map(|name| unread(&name))
            .collect();
        assert_eq!(named, expected, "{ending}");
    }
    let rows = rows(&scans.join("results"));
    let files_of_rows: BTreeSet<_> = rows.iter().map(|row| unread(&row["file"])).collect();
    assert_eq!((rows.len(), files_of_rows), (read, expected));
    assert!(rows.iter().all(|row| row["total"] == "13.70" || row["file"].ends_with("pdf")), "{rows:?}");

    // Each message at least once: a message that came again has the id of the first.
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    while ids.len() < files_in_all {
        let message = hook.next().message;
        let text = |key: &str| message[key].as_str().unwrap().to_owned();
        ids.entry(text("file")).or_default().insert(text("id"));
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    for name in boxes {
        let own = scans.join(".ledge").join(name);
        wait_until("nothing is left over", &running[0], || {
            names(&own.join("claimed")).is_empty() && names(&own.join("undelivered/webhook")).is_empty()
        });
    }
    assert!(!files(&scans.join("results"), ".tmp").iter().chain(&files(&scans.join("failed"), ".tmp")).any(|_| true));
}

#[test]
fn the_drop_in_of_the_unit_opens_the_folders() {
    let root = TestRoot::new();
    let config = "[[inbox]]\nname = \"a\"\npath = \"/srv/my scans\"\nresults = \"/srv/50%\"\n[[inbox]]\nname = \"b\"\npath = \"/home/ann/scans\"\n";
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
    let output = root.command(&["config", "systemd-drop-in"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "ReadWritePaths=\"-/srv/my scans\"",
        "ReadWritePaths=\"-/srv/50%%\"",
        "ProtectHome=tmpfs",
        "BindPaths=\"-/home/ann/scans\"",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}
