//! `ledge infer` as batch work: many files, a results file, interrupts, and a server that is away for a while.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{TestRoot, send_signal, write};

/// Enough calls of 30 ms to be interrupted among them.
const FILES: usize = 60;

/// A root with the model `slow`, a folder of requests for it, and a results file.
struct Work {
    root: TestRoot,
    requests: PathBuf,
    results: PathBuf,
}

impl Work {
    fn new(files: usize) -> Self {
        Self::on(TestRoot::new().models(&["slow", "add_sub"]), files)
    }

    fn on(root: TestRoot, files: usize) -> Self {
        let requests = root.folder.path().join("requests");
        let results = root.folder.path().join("results.jsonl");
        let work = Self { root, requests, results };
        for file in 0..files {
            work.request(file, 1, file);
        }
        work
    }

    fn file(&self, file: usize) -> PathBuf {
        self.requests.join(format!("{file:03}.json"))
    }

    fn request(&self, file: usize, rows: usize, value: usize) {
        let input = json!({"name": "IN", "datatype": "FP32", "shape": [rows, 16], "data": vec![value; rows * 16]});
        write(&self.file(file), json!({"inputs": [input]}).to_string().as_bytes());
    }

    fn start(&self, model: &str, more: &[&str]) -> Child {
        let verb = ["infer", model, self.requests.to_str().unwrap(), "--out", self.results.to_str().unwrap()];
        let mut command = self.root.command(&[&verb, more].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn run(&self, more: &[&str]) -> Output {
        self.start("slow", more).wait_with_output().unwrap()
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.results).unwrap_or_default()
    }

    fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The files of the lines, each of which has the right answer.
    fn answered(&self) -> Vec<PathBuf> {
        let file = |line: Value| {
            let file = PathBuf::from(line["file"].as_str().unwrap());
            let request: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            assert_eq!(line["outputs"][0]["data"][0].as_f64(), request["inputs"][0]["data"][0].as_f64(), "{line}");
            assert_eq!((&line["model_name"], &line["model_version"]), (&json!("slow"), &json!("1")));
            file
        };
        self.lines().into_iter().map(file).collect()
    }

    fn all(&self) -> Vec<PathBuf> {
        (0..FILES).map(|file| self.file(file)).collect()
    }

    /// Waits until the results file has some lines of a run.
    fn wait_for_lines(&self, run: &mut Child) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while self.text().lines().count() < 4 {
            assert!(Instant::now() < deadline && run.try_wait().unwrap().is_none(), "{}", self.text());
            std::thread::yield_now();
        }
    }
}

fn told(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
fn ended(output: &Output, code: i32, reasons: &[&str]) {
    let told = told(output);
    assert_eq!(output.status.code(), Some(code), "{told}");
    for reason in reasons {
        assert!(told.contains(reason), "{reason:?} is missing in {told}");
    }
}

#[test]
fn a_killed_run_goes_on_without_the_torn_line_and_does_a_changed_file_again() {
    let work = Work::new(FILES);
    let mut run = work.start("slow", &[]);
    work.wait_for_lines(&mut run);
    run.kill().unwrap();
    run.wait().unwrap();

    let text = work.text();
    let kept = text.rfind('\n').unwrap() + 1;
    let done = text[..kept].lines().count();
    assert!((4..FILES).contains(&done), "{done}");
    assert!(text.lines().zip(work.all()).all(|(line, file)| line.contains(file.to_str().unwrap())), "not in order");
    write(&work.results, (text[..kept].to_owned() + &text[..60]).as_bytes());
    work.request(1, 2, 777);

    let output = work.run(&[]);
    let before = done - 1;
    let answered = format!("{} files answered", FILES - before);
    ended(&output, 0, &[&answered, "0 failed", &format!("{before} were answered before")]);
    assert!(output.stdout.is_empty());
    let mut files = work.answered();
    let kept = files[..before].to_vec();
    assert_eq!(kept[..2], [work.file(0), work.file(2)], "what was kept is in its place");
    files.sort();
    assert_eq!(files, work.all());

    let complete = work.text();
    ended(&work.run(&[]), 0, &["0 files answered", &format!("{FILES} were answered before")]);
    assert_eq!(work.text(), complete);
}

#[test]
fn an_interrupt_finishes_the_calls_in_flight_and_says_how_to_go_on() {
    let work = Work::new(FILES);
    let mut run = work.start("slow", &[]);
    work.wait_for_lines(&mut run);
    send_signal(run.id(), "INT");
    let output = run.wait_with_output().unwrap();
    let done = work.answered().len();
    assert!((4..FILES).contains(&done), "{done}");
    let left = format!("{} of {FILES} files are left; the same command continues with", FILES - done);
    ended(&output, 130, &[&format!("{done} files answered"), &left]);
    ended(&work.run(&[]), 0, &[&format!("{done} were answered before")]);
    let mut files = work.answered();
    files.sort();
    assert_eq!(files, work.all());
}

#[test]
fn lines_are_in_the_order_of_the_files_whatever_takes_longest() {
    let work = Work::new(12);
    // Decoding this takes longer than several of the others together.
    let mut request = fs::read(work.file(0)).unwrap();
    request.resize(64 << 20, b' ');
    write(&work.file(0), &request);
    ended(&work.run(&["--concurrency", "4"]), 0, &["12 files answered"]);
    assert_eq!(work.answered(), (0..12).map(|file| work.file(file)).collect::<Vec<_>>());
}

#[test]
fn bad_files_are_listed_fail_the_run_and_are_tried_again() {
    let work = Work::new(3);
    write(&work.requests.join("below/broken.json"), b"{");
    write(&work.requests.join("photograph.png"), b"no photograph");
    symlink("nowhere", work.requests.join("link.json")).unwrap();
    symlink(&work.requests, work.requests.join("round")).unwrap();
    let broken = |name: &str| format!("failed: {}", work.requests.join(name).display());

    let output = work.run(&[]);
    let link = format!("not followed: {}", work.requests.join("round").display());
    ended(
        &output,
        1,
        &["3 files answered", "3 failed", &link, &broken("below/broken.json"), &broken("photograph.png")],
    );
    ended(&output, 1, &[&format!("{}: cannot read the file: No such file", broken("link.json"))]);
    let failed = |work: &Work| work.lines().iter().filter(|line| line["error"].is_string()).count();
    assert_eq!((work.lines().len(), failed(&work)), (6, 3));
    assert!(work.lines().iter().all(|line| line["model_version"] == "1"));

    fs::remove_file(work.requests.join("photograph.png")).unwrap();
    fs::copy(work.file(0), work.requests.join("below/broken.json")).unwrap();
    fs::remove_file(work.requests.join("link.json")).unwrap();
    symlink("000.json", work.requests.join("link.json")).unwrap();
    ended(&work.run(&[]), 0, &["2 files answered", "3 were answered before"]);
    assert_eq!((work.lines().len(), failed(&work)), (6, 1), "the line of a file that is gone stays");
}

#[test]
fn a_results_file_is_of_one_model_and_of_one_run_at_a_time_and_never_an_input() {
    let mut work = Work::new(2);
    work.results = work.requests.join("results.json");
    ended(&work.run(&[]), 0, &["2 files answered"]);
    ended(&work.run(&[]), 0, &["0 files answered", "2 were answered before"]);
    let before = work.text();

    let other = work.start("add_sub", &[]).wait_with_output().unwrap();
    ended(&other, 1, &["has answers of version 1 of the model 'slow'", "version 1 of 'add_sub': name another file"]);
    ended(&work.run(&["--top", "2"]), 1, &["has answers with --top 5", "or use --top 5"]);
    let held = File::open(&work.results).unwrap();
    held.try_lock().unwrap();
    ended(&work.run(&[]), 1, &["another run of ledge infer writes"]);
    drop(held);
    assert_eq!(work.text(), before);

    work.results = work.file(0);
    let request = work.text();
    ended(&work.run(&[]), 1, &["was not written by ledge infer --out"]);
    assert_eq!(work.text(), request);
}

/// The URL of the socket of a daemon on this root.
fn socket(root: &Path) -> String {
    format!("unix:{}", root.join("ledge.sock").display())
}

#[test]
fn a_server_that_is_restarted_is_waited_for_and_one_that_is_gone_ends_the_run() {
    let mut work = Work::new(FILES);
    let folder = work.root.folder.path().to_owned();
    let url = socket(&folder);
    let daemon = std::mem::replace(&mut work.root, TestRoot::new()).start();

    let mut run = work.start("slow", &["--url", &url]);
    work.wait_for_lines(&mut run);
    let root = daemon.kill();
    assert!(work.answered().len() < FILES);
    let daemon = root.start();
    let output = run.wait_with_output().unwrap();
    ended(&output, 0, &["0 failed"]);
    assert_eq!(work.answered(), work.all());

    fs::remove_file(&work.results).unwrap();
    let mut run = work.start("slow", &["--url", &url, "--wait", "0"]);
    work.wait_for_lines(&mut run);
    let root = daemon.kill();
    let output = run.wait_with_output().unwrap();
    ended(&output, 1, &["the same command continues with", "for 0 s (--wait)"]);
    let done = work.answered().len();
    assert!(done < FILES);
    let _daemon = root.start();
    ended(&work.run(&["--url", &url]), 0, &[&format!("{done} were answered before")]);
    let mut files = work.answered();
    files.sort();
    assert_eq!(files, work.all());
}

#[test]
fn a_server_has_two_calls_in_flight_for_each_of_its_cores() {
    let limits = ["runtimes.threads=1", "quota.max_concurrent_per_principal=4"];
    let root = limits.iter().fold(TestRoot::new().models(&["slow"]), |root, limit| root.set(limit));
    let mut work = Work::on(root, 24);
    let url = socket(work.root.folder.path());
    let daemon = std::mem::replace(&mut work.root, TestRoot::new()).start();
    assert_eq!(daemon.client().get("/v2").json()["inference_cores"], 1);

    // Interactive calls are not tried again, so more calls at a time than the limit are seen.
    let interactive = ["--url", &url, "--priority", "interactive"];
    ended(&work.run(&interactive), 0, &["24 files answered"]);
    fs::remove_file(&work.results).unwrap();
    let output = work.run(&[&interactive[..], &["--concurrency", "12"]].concat());
    ended(&output, 1, &["the most allowed at a time (quota.max_concurrent_per_principal) (429)"]);
    ended(&work.run(&["--url", &url, "--concurrency", "12"]), 0, &["0 failed"]);
}

#[test]
fn a_text_file_has_a_vector_for_each_line_here_and_on_a_server() {
    let config = "[pipeline.text_embedding]\nmax_tokens = 8\nnormalize = false\n";
    let root = TestRoot::new().models(&["word_vectors"]).file("word_vectors/model.toml", config);
    let [texts, bad] = ["texts.txt", "bad.txt"].map(|name| root.folder.path().join(name));
    // More than one request, with an empty line after each text.
    let lines: Vec<_> = (0..1100).map(|line| "red ".repeat(1 + line % 3)).collect();
    write(&texts, lines.join("\r\n\r\n").as_bytes());
    write(&bad, b"red\ncaf\xe9\n");
    let daemon = root.start();
    let url = format!("http://{}", daemon.address);
    for more in [&[][..], &["--url", &url]] {
        let verb = ["infer", "word_vectors", texts.to_str().unwrap(), bad.to_str().unwrap(), "--json"];
        let output = daemon.root.command(&[&verb, more].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let rows = answers[0]["embeddings"].as_array().unwrap();
        let tokens: Vec<_> = rows.iter().map(|row| row["tokens"].as_u64().unwrap()).collect();
        assert_eq!(tokens, (0..1100).map(|line| 3 + line % 3).collect::<Vec<_>>());
        assert_eq!(rows[1], json!({"embedding": [3.25, 4.0, 1.0], "tokens": 4, "truncated": false}));
        assert_eq!(answers[1]["error"], "line 2 is not UTF-8");
    }
}
