use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::*;

/// A folder with three photographs, and the results file of a run over them.
struct ResumedRun {
    folder: TempDir,
    names: [&'static str; 3],
}

fn origin(model: &str, version: u64, top: usize) -> ResultsOrigin {
    ResultsOrigin { model: model.parse().unwrap(), version: ModelVersion::try_from(version).unwrap(), top }
}

impl ResumedRun {
    fn new() -> Self {
        let run = Self { folder: tempfile::tempdir().unwrap(), names: ["a \"1\".jpg", "b.jpg", "c.jpg"] };
        for name in run.names {
            durable::replace(&run.folder.path().join(name), name.as_bytes()).unwrap();
        }
        run
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("results.jsonl")
    }

    fn photograph(&self, at: usize) -> PathBuf {
        self.folder.path().join(self.names[at])
    }

    fn open_as(
        &self,
        model: &str,
        version: u64,
        top: usize,
    ) -> anyhow::Result<(ResultsFile, AnsweredFiles, Vec<PathBuf>)> {
        let mut inputs: Vec<_> = (0..3).map(|at| InputFile { path: self.photograph(at), problem: None }).collect();
        let (results, done) = ResultsFile::open(&self.path(), &origin(model, version, top), &mut inputs, None)?;
        Ok((results, done, inputs.into_iter().map(|input| input.path).collect()))
    }

    fn open(&self) -> (ResultsFile, AnsweredFiles, Vec<PathBuf>) {
        self.open_as("m", 1, 5).unwrap()
    }

    /// Writes the line of a photograph.
    fn write(&self, results: &mut ResultsFile, at: usize, member: &str) {
        Self::write_of(results, &self.photograph(at), member);
    }

    fn write_of(results: &mut ResultsFile, path: &Path, member: &str) {
        let state = InputFileStamp::from(&std::fs::metadata(path).unwrap());
        let answer = json!({"model_name": "m", "model_version": "1", "top": 5, member: "{\"x\": 1}"});
        let (path, answer) = (path.to_string_lossy(), answer.as_object().unwrap().clone());
        let line = ResultLine { file: &path, state: Some(&state), answer: &answer };
        results.write(&line).unwrap();
    }

    /// A results file with all answers, as bytes.
    fn complete(&self) -> Vec<u8> {
        let (mut results, ..) = self.open();
        (0..3).for_each(|at| self.write(&mut results, at, "labels"));
        self.bytes()
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }
}

#[test]
fn failed_and_changed_files_are_left_and_lose_their_lines() {
    let run = ResumedRun::new();
    let (mut results, done, left) = run.open();
    assert_eq!((done, left.len()), (0, 3));
    run.write(&mut results, 0, "error");
    run.write(&mut results, 1, "labels");
    run.write(&mut results, 2, "labels");
    drop(results);
    durable::replace(&run.photograph(2), b"another photograph").unwrap();
    // The line of a file that this run does not name.
    let other = r#"{"file":"other.jpg","model_name":"m","model_version":"1","top":5,"error":"x"}"#;
    let mut bytes = run.bytes();
    bytes.extend_from_slice(format!("{other}\n").as_bytes());
    durable::replace(&run.path(), &bytes).unwrap();

    let (mut results, done, left) = run.open();
    assert_eq!((done, left), (1, vec![run.photograph(0), run.photograph(2)]));
    let text = String::from_utf8(run.bytes()).unwrap();
    assert!(text.lines().count() == 2 && text.contains("b.jpg") && text.ends_with(&format!("{other}\n")), "{text}");
    run.write(&mut results, 0, "labels");
    run.write(&mut results, 2, "labels");
    drop(results);
    let (_results, done, left) = run.open();
    assert_eq!((done, left.len()), (3, 0));
    assert_eq!(std::fs::read_dir(run.folder.path()).unwrap().count(), 4, "no temporary file is left");
}

#[test]
fn one_run_at_a_time_has_the_file_even_when_it_has_replaced_it() {
    let run = ResumedRun::new();
    let refused = |run: &ResumedRun| run.open_as("m", 1, 5).unwrap_err().to_string().contains("another run");
    let (mut results, ..) = run.open();
    assert!(refused(&run));
    run.write(&mut results, 0, "error");
    run.write(&mut results, 1, "labels");
    drop(results);
    let (results, ..) = run.open();
    assert!(results.replaced.len() == 1 && refused(&run));
    drop(results);
    assert_eq!(run.open().1, 1);
}

#[test]
fn answers_of_another_model_version_or_length_are_refused_and_stay() {
    let run = ResumedRun::new();
    let before = run.complete();
    for (model, version) in [("other", 1), ("m", 2)] {
        let refused = run.open_as(model, version, 5).unwrap_err().to_string();
        assert!(refused.contains("answers of version 1 of the model 'm'"), "{refused}");
        assert!(refused.contains(&format!("version {version} of '{model}'")), "{refused}");
    }
    let refused = run.open_as("m", 1, 3).unwrap_err().to_string();
    assert!(refused.contains("with --top 5") && refused.contains("with --top 3"), "{refused}");
    assert_eq!(run.bytes(), before);
}

#[test]
fn a_complete_line_that_is_invalid_is_an_error_with_its_number_wherever_it_is() {
    let run = ResumedRun::new();
    let whole = run.complete();
    let lines: Vec<_> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    for invalid in [&b"{\"file\":\"b.jpg\",\n"[..], b"{\"file\":\n", b"\n", b"{\n"] {
        for place in 0..=3 {
            let content = [&lines[..place], &[invalid], &lines[place..]].concat().concat();
            durable::replace(&run.path(), &content).unwrap();
            let refused = run.open_as("m", 1, 5).unwrap_err().to_string();
            assert!(refused.contains(&format!("line {} of ", place + 1)), "{refused}");
            assert_eq!(run.bytes(), content);
        }
    }
}

#[test]
fn names_that_are_not_utf_8_are_bad_files_and_take_no_line_of_another_file() {
    let run = ResumedRun::new();
    let name = |bytes: &[u8]| run.folder.path().join(OsStr::from_bytes(bytes));
    let (bad, twin, lossy) = (name(b"\xFF.jpg"), name(b"\xFE.jpg"), name("\u{FFFD}.jpg".as_bytes()));
    for path in [&bad, &twin, &lossy] {
        durable::replace(path, b"x").unwrap();
    }
    let open = || {
        let mut inputs = [&bad, &lossy, &twin].map(|path| InputFile { path: path.clone(), problem: None }).into();
        let (results, done) = ResultsFile::open(&run.path(), &origin("m", 1, 5), &mut inputs, None).unwrap();
        let is_bad = |input: &InputFile| input.problem.as_ref().is_some_and(|problem| problem.contains("rename"));
        (results, done, inputs.into_iter().map(|input| (is_bad(&input), input.path)).collect::<Vec<_>>())
    };
    let (mut results, done, left) = open();
    assert_eq!((done, &left), (0, &vec![(true, bad.clone()), (false, lossy.clone()), (true, twin.clone())]));
    ResumedRun::write_of(&mut results, &bad, "error");
    ResumedRun::write_of(&mut results, &lossy, "labels");
    ResumedRun::write_of(&mut results, &twin, "error");
    drop(results);

    let (_results, done, left) = open();
    assert_eq!((done, left), (1, vec![(true, bad.clone()), (true, twin.clone())]));
    let text = String::from_utf8(run.bytes()).unwrap();
    assert!(text.lines().count() == 1 && text.contains("labels"), "{text}");
}

#[test]
fn a_line_in_which_a_power_cut_left_zeros_is_done_again() {
    let run = ResumedRun::new();
    let mut whole = run.complete();
    let second = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    whole[second + 12..second + 40].fill(0);
    durable::replace(&run.path(), &whole).unwrap();
    let (_results, done, left) = run.open();
    assert_eq!((done, left), (2, vec![run.photograph(1)]));
}

#[test]
fn a_file_of_another_kind_is_refused_and_stays() {
    let run = ResumedRun::new();
    let of_json = "{\"file\":\"a.jpg\",\"labels\":[]}\n";
    for content in ["a,b\n1,2\n", "\u{ff}\u{d8}photograph", "{\"file\": 1}\n", "[]\n", of_json, "x", "{\"a\""] {
        durable::replace(&run.path(), content.as_bytes()).unwrap();
        let refused = run.open_as("m", 1, 5).unwrap_err().to_string();
        assert!(refused.contains("line 1") && refused.contains("was not written by"), "{refused}");
        assert_eq!(run.bytes(), content.as_bytes());
    }
    std::fs::remove_file(run.path()).unwrap();
    std::fs::create_dir(run.path()).unwrap();
    assert!(run.open_as("m", 1, 5).unwrap_err().to_string().contains("not a regular file"));
}

proptest! {
    /// After a write that was cut off anywhere, or zeros of a power cut, complete lines are kept, the rest is removed,
    /// and the continued run ends with the same lines.
    #[test]
    fn a_torn_line_is_dropped_and_complete_ones_are_kept(cut in 0.0..1.0_f64, zeros in 0..40_usize) {
        let run = ResumedRun::new();
        let whole = run.complete();
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let cut = (cut * whole.len() as f64) as usize;
        let mut bytes = whole[..cut].to_vec();
        let kept = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        bytes.resize(cut + zeros, 0);
        durable::replace(&run.path(), &bytes).unwrap();

        let (mut results, done, left) = run.open();
        prop_assert_eq!(run.bytes(), &whole[..kept]);
        prop_assert_eq!(done + left.len(), 3);
        (done..3).for_each(|at| run.write(&mut results, at, "labels"));
        prop_assert_eq!(run.bytes(), whole);
    }

    /// No content makes a run panic, and a file that no run wrote is not changed.
    #[test]
    fn any_content_is_refused_unchanged_or_begins_as_ours(
        lines in vec(prop_oneof![Just(String::new()), Just("{\"file\":\"".to_owned()), "\\PC{0,30}"], 0..5)
    ) {
        let run = ResumedRun::new();
        let content = lines.join("\n");
        durable::replace(&run.path(), content.as_bytes()).unwrap();
        if run.open_as("m", 1, 5).is_err() {
            prop_assert_eq!(run.bytes(), content.as_bytes());
        } else {
            prop_assert!(lines.len() < 2 && is_torn(content.as_bytes()), "{:?}", content);
        }
    }
}
