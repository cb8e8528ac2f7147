use proptest::prelude::*;

use super::*;

fn attempt(model: &str) -> Attempt {
    let key = AttemptKey::new(model, "", "");
    Attempt { key, model: model.parse().unwrap(), version: "1".parse().unwrap(), began_ms: clock::unix_millis() }
}

fn verdict(log: &AttemptLog, model: &str) -> Verdict {
    log.verdict(&attempt(model).key, LoadMode::Changed)
}

/// A process that dies while it loads these.
fn dies(folder: &Path, models: &[&str]) {
    let (log, _) = AttemptLog::open(folder, "boot");
    for model in models {
        std::mem::forget(log.begin(attempt(model)));
    }
}

fn content(folder: &Path) -> String {
    std::fs::read_to_string(folder.join(FILE_NAME)).unwrap()
}

#[test]
fn who_was_under_way_is_found_by_the_next_process_and_blamed_once() {
    let folder = tempfile::tempdir().unwrap();
    let ended = |folder| {
        let (log, _) = AttemptLog::open(folder, "boot");
        let _other = log.begin(attempt("other"));
        drop(log.begin(attempt("good")));
        std::mem::forget(log.begin(attempt("bad")));
        // "good" has ended with a mark, because another one is in progress.
    };
    ended(folder.path());
    let (log, to_blame) = AttemptLog::open(folder.path(), "boot");
    assert_eq!(to_blame.iter().map(|suspect| suspect.model.as_str()).collect::<Vec<_>>(), ["bad"]);
    assert_eq!((verdict(&log, "bad"), verdict(&log, "good")), (Verdict::Alone, Verdict::Concurrent));
    assert_eq!(AttemptLog::open(folder.path(), "boot").1, []);
    dies(folder.path(), &["bad"]);
    let (log, _) = AttemptLog::open(folder.path(), "boot");
    assert!(matches!(verdict(&log, "bad"), Verdict::Refused(_)));
    assert_eq!(suspects(folder.path()), log.suspects());
}

#[test]
fn an_orderly_stop_leaves_nobody_under_way_whatever_still_loads() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = AttemptLog::open(folder.path(), "boot");
    std::mem::forget(log.begin(attempt("m")));
    log.stop();
    std::mem::forget(log.begin(attempt("late")));
    assert_eq!(AttemptLog::open(folder.path(), "boot").1, []);
}

#[test]
fn many_loads_leave_no_longer_file() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = AttemptLog::open(folder.path(), "boot");
    let before = content(folder.path());
    for round in 0..100 {
        let (first, second) = (log.begin(attempt("a")), log.begin(attempt("b")));
        assert_eq!(content(folder.path()).lines().count(), 3, "{round}");
        drop((first, second));
    }
    assert_eq!(content(folder.path()), before);
    drop(AttemptLog::open(folder.path(), "boot"));
    assert_eq!(content(folder.path()), before);
}

#[test]
fn where_nothing_can_be_written_models_load_and_a_suspect_is_tried_first() {
    let folder = tempfile::tempdir().unwrap();
    dies(folder.path(), &["m"]);
    // A folder in the place of what is written first.
    let blocked = folder.path().join(format!("{FILE_NAME}.{}.tmp", std::process::id()));
    std::fs::create_dir(&blocked).unwrap();
    let (log, _) = AttemptLog::open(folder.path(), "boot");
    assert_eq!((verdict(&log, "m"), verdict(&log, "other")), (Verdict::AfterTrial, Verdict::Concurrent));
    drop(log.begin(attempt("other")));
    // There is free space again.
    std::fs::remove_dir(&blocked).unwrap();
    let under_way = log.begin(attempt("m"));
    assert_eq!(content(folder.path()).lines().count(), 2);
    drop(under_way);
    assert_eq!(content(folder.path()).lines().count(), 1);

    let (nowhere, _) = AttemptLog::open(Path::new("/no/such/folder"), "boot");
    drop(nowhere.begin(attempt("m")));
    nowhere.stop();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
fn a_damaged_record_is_set_aside_and_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE_NAME), b"{\"boot\": ").unwrap();
    let (log, to_blame) = AttemptLog::open(folder.path(), "boot");
    assert_eq!((to_blame, log.suspects()), (vec![], vec![]));
    assert!(folder.path().join("load_attempts.jsonl.damaged").exists());
    dies(folder.path(), &["m"]);
    assert_eq!(AttemptLog::open(folder.path(), "boot").1.len(), 1);
}

proptest! {
    #[test]
    fn a_record_that_is_cut_off_anywhere_behind_its_first_line_blames_nobody_who_had_not_begun(cut in 0_usize..2000) {
        let folder = tempfile::tempdir().unwrap();
        dies(folder.path(), &["a", "b", "c"]);
        let whole = content(folder.path());
        let first = whole.find('\n').unwrap() + 1;
        let cut = first + cut % (whole.len() - first + 1);
        let (attempts, length) = parse(&whole.as_bytes()[..cut]).unwrap();
        prop_assert_eq!(length, first as u64);
        let begun = whole[first..cut].matches("\"began\"").count();
        prop_assert!(attempts.under_way().len() <= begun);
        prop_assert!(attempts.under_way().len() + 1 >= begun);
    }

    #[test]
    fn no_bytes_are_too_strange(content: Vec<u8>, text in "[\\PC\n{}\"]*") {
        let _ = (parse(&content), parse(text.as_bytes()));
    }
}
