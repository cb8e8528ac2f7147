//! A wall clock that was wrong, and was set right: values pushed by it do not win until the clock reaches their times.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::books::VIEWS;
use super::shim::{Number, Shim};
use super::writers::start;
use crate::daemon::{TestDaemon, TestRoot};

const DAY: i64 = 86_400;

const HOUR: i64 = 3600;

/// A time that is not before the build, however far a test sets the clock back from it.
const LATER: i64 = 60 * DAY;

/// A box, and by how many seconds its clock is ahead.
struct Clocked {
    daemon: TestDaemon,
    ahead: Number,
    uptime: Number,
    _shim: Shim,
}

impl Clocked {
    fn new(seconds: i64) -> Self {
        let shim = Shim::build();
        let ahead = shim.number("clock", seconds);
        let root = TestRoot::new().views(VIEWS).set("log.level=\"info\"");
        let uptime = shim.number("uptime", DAY);
        let root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_CLOCK", &ahead.path);
        let root = root.variable("FAULT_UPTIME", &uptime.path);
        Self { daemon: start(root).daemon, ahead, uptime, _shim: shim }
    }

    /// Boots the machine, with its clock ahead by `seconds`.
    fn booted(self, seconds: i64) -> Self {
        self.uptime.set(10);
        self.ahead.set(seconds);
        self.restarted(|_| {})
    }

    /// The numbers of log lines that the clock is behind, and that it is right again.
    fn told_behind(&self) -> (usize, usize) {
        (self.daemon.events("features.clock_behind").len(), self.daemon.events("features.clock_set").len())
    }

    /// Kills the daemon, does something to its store, and starts it again.
    fn restarted(self, meanwhile: impl FnOnce(PathBuf)) -> Self {
        let root = self.daemon.kill();
        meanwhile(root.folder.path().join("features"));
        Self { daemon: start(root).daemon, ..self }
    }

    /// Pushes a number for the entity 1 to three views, and returns the outcomes of the three rows.
    fn push(&self, number: i64, event_timestamp: Option<i64>) -> String {
        let mut df = json!({"device": [1], "number": [number], "proof": ["proof"]});
        if let Some(time) = event_timestamp {
            df["event_timestamp"] = json!([time]);
        }
        let body = json!({"push_source_name": "events", "df": df});
        let answer = self.daemon.client().post_json("/push", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.header("x-ledge-pushed").unwrap().to_owned()
    }

    /// The value and status of features of the entity 1.
    fn read<const N: usize>(&self, features: [&str; N]) -> [(Value, String); N] {
        let mut client = self.daemon.client();
        features.map(|feature| {
            let request = json!({"features": [feature], "entities": {"device": [1]}});
            let answer = client.post_json("/get-online-features", &request).json();
            let found = &answer["results"][1];
            (found["values"][0].clone(), found["statuses"][0].as_str().unwrap().to_owned())
        })
    }

    /// All that is to be read after `number` was the last of `count` pushes that count.
    #[track_caller]
    fn has(&self, number: i64, count: i64) {
        let found = self.read(["plain:number", "lasting:number", "counted:number", "counted:count", "counted:last"]);
        let expected = [number, number, number, count, number].map(|value| (json!(value), "PRESENT".to_owned()));
        assert_eq!(found, expected);
    }

    fn status(&self) -> Value {
        self.daemon.client().get("/features/status").json()
    }

    fn lines(&self) -> usize {
        self.daemon.events("features.clock_set_back").len()
    }
}

const ACCEPTED: &str = "accepted=3, outdated=0, duplicate=0, too_late=0";

fn remove_index(store: PathBuf) {
    for entry in fs::read_dir(store).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("index-") {
            fs::remove_dir_all(path).unwrap();
        }
    }
}

#[test]
fn a_clock_that_was_ahead_once_does_not_win_when_it_is_set_right() {
    let mut clocked = Clocked::new(30 * DAY);
    assert_eq!(clocked.push(1, None), ACCEPTED);
    clocked.has(1, 1);
    clocked.ahead.set(0);
    assert_eq!(clocked.push(2, None), ACCEPTED);
    clocked.has(2, 1);
    assert_eq!(clocked.push(3, None), ACCEPTED);
    clocked.has(3, 2);
    let status = clocked.status();
    assert_eq!((&status["future_rows_replaced"], clocked.lines()), (&json!(3), 1), "{status}");
    assert_eq!(clocked.daemon.metric::<u64>("ledge_feature_future_rows_replaced_total"), 3);
    // The journal makes the same of it, with and without an index.
    clocked = clocked.restarted(drop);
    clocked.has(3, 2);
    clocked = clocked.restarted(remove_index);
    clocked.has(3, 2);
    assert_eq!(clocked.push(4, None), ACCEPTED);
    clocked.has(4, 3);
}

#[test]
fn a_clock_that_is_right_again_after_a_restart_is_believed_and_the_future_is_told() {
    let clocked = Clocked::new(30 * DAY);
    assert_eq!(clocked.push(1, None), ACCEPTED);
    let clocked = clocked.restarted(|_| {});
    clocked.ahead.set(0);
    let clocked = clocked.restarted(|_| {});
    assert_eq!(clocked.lines(), 1, "{}", clocked.daemon.log());
    // Its age is not known. Where age does not matter it is the last that was pushed.
    let found = clocked.read(["plain:number", "lasting:number", "counted:count"]);
    let expected = [(json!(1), "PRESENT"), (Value::Null, "OUTSIDE_MAX_AGE"), (json!(0), "PRESENT")];
    assert_eq!(found, expected.map(|(value, status)| (value, status.to_owned())));
    assert_eq!(clocked.push(2, None), ACCEPTED);
    clocked.has(2, 1);
    let clocked = clocked.restarted(remove_index);
    clocked.has(2, 1);
}

#[test]
fn a_clock_that_goes_ahead_and_stays_there_was_behind_before() {
    let clocked = Clocked::new(-30 * DAY);
    assert_eq!(clocked.push(1, None), ACCEPTED);
    clocked.ahead.set(0);
    let found = clocked.read(["plain:number"]);
    assert_eq!(found, [(json!(1), "PRESENT".to_owned())], "a row that nobody replaced is lost");
    assert_eq!(clocked.push(2, None), ACCEPTED);
    let clocked = clocked.restarted(remove_index);
    assert_eq!(clocked.read(["plain:number", "lasting:number"]).map(|(value, _)| value), [json!(2), json!(2)]);
    assert_eq!((clocked.status()["future_rows_replaced"].clone(), clocked.lines()), (json!(0), 0));
}

#[test]
fn a_clock_that_steps_back_by_seconds_makes_nothing_outdated() {
    let clocked = Clocked::new(0);
    for (number, ahead) in [(1, 0), (2, -5), (3, -5), (4, -30), (5, 1)] {
        clocked.ahead.set(ahead);
        assert_eq!(clocked.push(number, None), ACCEPTED);
        clocked.has(number, number);
    }
    assert_eq!((clocked.status()["future_rows_replaced"].clone(), clocked.lines()), (json!(0), 0));
}

#[test]
fn a_device_that_is_ahead_by_what_is_allowed_stays_the_newest() {
    let clocked = Clocked::new(0);
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    // Just so far, and then the box's clock is corrected by some seconds.
    assert_eq!(clocked.push(1, Some(now + 600)), ACCEPTED);
    clocked.ahead.set(-20);
    let pushed = clocked.push(2, None);
    assert!(pushed.starts_with("accepted=0, outdated=2,"), "{pushed}");
    let found = clocked.read(["plain:number", "lasting:number", "counted:number"]);
    assert_eq!(found.map(|(value, status)| (value, status == "PRESENT")), [1, 1, 1].map(|value| (json!(value), true)));
}

#[test]
fn a_clock_that_is_behind_for_a_while_after_a_boot_loses_nothing() {
    // By a time that was saved once an hour, and by one that is older than a step of the windows.
    for behind in [HOUR, 40 * DAY] {
        let mut clocked = Clocked::new(LATER);
        for number in 1..=3 {
            assert_eq!(clocked.push(number, None), ACCEPTED);
        }
        clocked = clocked.booted(LATER - behind);
        let found = clocked.read(["plain:number", "lasting:number"]);
        assert_eq!(found, [3, 3].map(|number| (json!(number), "PRESENT".to_owned())));
        for number in 4..=5 {
            assert_eq!(clocked.push(number, None), ACCEPTED);
        }
        // A device with a right clock.
        let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
        assert_eq!(clocked.push(6, Some(now + LATER + 60)), ACCEPTED);
        assert_eq!((clocked.told_behind(), clocked.lines()), ((1, 0), 0), "{}", clocked.daemon.log());

        // A time server is reached.
        clocked.ahead.set(LATER + 61);
        clocked.has(6, 6);
        assert_eq!(clocked.push(7, None), ACCEPTED);
        clocked.has(7, 7);
        assert_eq!((clocked.told_behind(), clocked.lines()), ((1, 1), 0), "{}", clocked.daemon.log());
        assert!(clocked.daemon.log().contains("\"rows\":6"), "{}", clocked.daemon.log());
        assert_eq!(clocked.status()["future_rows_replaced"], json!(0));
        clocked.ahead.set(LATER + 120);
        let clocked = clocked.restarted(remove_index);
        clocked.has(7, 7);
    }
}

#[test]
fn a_clock_that_was_never_set_makes_no_push_outdated() {
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    // In 1970, and in a year before this was built.
    for shown in [100, now - 700 * DAY] {
        let mut clocked = Clocked::new(0);
        assert_eq!(clocked.push(1, None), ACCEPTED);
        clocked = clocked.booted(shown - now);
        // Also after a day of uptime.
        clocked.uptime.set(DAY);
        clocked = clocked.restarted(|_| {});
        for number in 2..=4 {
            assert_eq!(clocked.push(number, None), ACCEPTED);
        }
        assert_eq!((clocked.told_behind(), clocked.lines()), ((1, 0), 0), "{}", clocked.daemon.log());
        clocked.ahead.set(1);
        clocked.has(4, 4);
        assert_eq!(clocked.push(5, None), ACCEPTED);
        clocked.has(5, 5);
        assert_eq!((clocked.told_behind(), clocked.lines()), ((1, 1), 0), "{}", clocked.daemon.log());
    }
}

#[test]
fn a_clock_that_was_ahead_before_a_boot_makes_no_push_outdated() {
    let mut clocked = Clocked::new(LATER + 30 * DAY);
    assert_eq!(clocked.push(1, None), ACCEPTED);
    // Right from the boot on, and nothing says so.
    clocked = clocked.booted(LATER);
    for number in 2..=3 {
        assert_eq!(clocked.push(number, None), ACCEPTED);
        let found = clocked.read(["plain:number", "lasting:number", "counted:number"]);
        assert_eq!(found, [number, number, number].map(|number| (json!(number), "PRESENT".to_owned())));
    }
    assert_eq!((clocked.told_behind(), clocked.lines()), ((1, 0), 0), "{}", clocked.daemon.log());
    clocked.uptime.set(HOUR);
    clocked = clocked.restarted(|_| {});
    assert_eq!((clocked.told_behind(), clocked.lines()), ((0, 0), 1), "{}", clocked.daemon.log());
    assert_eq!(clocked.push(4, None), ACCEPTED);
    clocked.has(4, 1);
    clocked = clocked.restarted(remove_index);
    clocked.has(4, 1);
}

#[test]
fn a_clock_that_was_ahead_by_minutes_makes_nothing_outdated_after_a_restart() {
    let clocked = Clocked::new(8 * 60);
    assert_eq!(clocked.push(1, None), ACCEPTED);
    clocked.ahead.set(0);
    let clocked = clocked.restarted(|_| {});
    for number in 2..=3 {
        assert_eq!(clocked.push(number, None), ACCEPTED);
    }
    let found = clocked.read(["plain:number", "lasting:number", "counted:number"]);
    assert_eq!(found, [3, 3, 3].map(|number| (json!(number), "PRESENT".to_owned())));
    clocked.ahead.set(9 * 60);
    clocked.has(3, 3);
    assert_eq!((clocked.status()["future_rows_replaced"].clone(), clocked.lines()), (json!(0), 0));
}
