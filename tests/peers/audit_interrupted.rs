//! `kill -9` at random moments of a box that records and copies its audit log, over a line and to a server that break,
//! with one folder that is never wiped: every acknowledged record stays, once, and the copy equals the log, byte for
//! byte.

mod books;
mod line;
mod load;
mod place;

use std::time::{Duration, Instant};

use ledge::audit_event::AuditEvent;

use crate::audit_kit::Kit;
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::faults::seed::Random;
use crate::tools::run;
use books::Books;
use line::Line;
use load::{ASKED, Load, MOVED, Seen, Told};
use place::Place;

/// The counts of a run.
#[derive(Debug, Default)]
struct Report {
    rounds: usize,
    acknowledged: u64,
    administrative: usize,
    kills_during_requests: u64,
    outages: u64,
    cuts: u64,
    recoveries: Vec<Duration>,
    replaced: usize,
}

impl Report {
    fn print(&mut self, name: &str) {
        self.recoveries.sort_unstable();
        let ms = |place: usize| self.recoveries.get(place).map_or(0, Duration::as_millis);
        let (middle, last) = (ms(self.recoveries.len() / 2), ms(self.recoveries.len() - 1));
        let Self { rounds, acknowledged, administrative, kills_during_requests, outages, cuts, replaced, .. } = self;
        println!(
            "{name}: {rounds} rounds of kill -9\n\
             | acknowledged records | {acknowledged} |\n\
             | acknowledged administrative calls | {administrative} |\n\
             | kills during a request to the platform | {kills_during_requests} |\n\
             | outages of the platform | {outages} |\n\
             | connections cut | {cuts} |\n\
             | from the start until the log goes on, p50 and max | {middle} ms, {last} ms |\n\
             | tiles written more than once | {replaced} |\n\
             | records that are there twice | 0 |\n\
             | records that are missing | 0 |"
        );
    }
}

/// A box and its platform, over all rounds.
struct Rounds {
    random: Random,
    place: Place,
    line: Line,
    books: Books,
    report: Report,
    /// The copy is verified after this many rounds.
    verified: usize,
    kit: Option<Kit>,
}

impl Rounds {
    fn run(test: &str, place: Place, rounds: usize) -> Report {
        let verified = (rounds / 20).max(3);
        let line = Line::to(place.port());
        let root = TestRoot::new().models(&[ASKED]).model_as(ASKED, MOVED).set("device.id=\"box-1\"");
        let root = root.set("audit.inference=\"calls\"").set("audit.sync.interval_s=1").set("log.level=\"info\"");
        let mut root = place.enrol(root, line.port);
        let (random, books, report) = (Random::new(test), Books::default(), Report::default());
        let mut all = Self { random, place, line, books, report, verified, kit: None };
        let mut told = None;
        for round in 1..=rounds {
            all.report.rounds = round;
            let daemon = all.start(root, told.take().as_ref());
            let (killed, after) = all.round(daemon);
            // A box that was killed before each of its uploads has brought nothing yet.
            if round % all.verified == 0 && after.seen.copied > 0 {
                // An upload that was cut off leaves a valid log as well.
                all.verify_with_kit(&after.seen, &[]);
            }
            (root, told) = (killed, Some(after));
        }
        all.end(root, told.as_ref())
    }

    /// Starts the daemon and checks that it has everything that was reported before.
    fn start(&mut self, root: TestRoot, told: Option<&Told>) -> TestDaemon {
        // Recovery is killed as well.
        for _ in 0..self.random.below(3) {
            let mut child = root.command(&["serve"]);
            let null = std::process::Stdio::null;
            let mut child = child.stdin(null()).stdout(null()).stderr(null()).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(self.random.next() % 150_000));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let begun = Instant::now();
        let daemon = root.start();
        let acknowledged = told.map_or(1, |told| told.seen.size);
        let seen = Seen::until(&daemon, |seen| seen.size > 0);
        self.report.recoveries.push(begun.elapsed());
        assert!(seen.size >= acknowledged, "{acknowledged} records were acknowledged: {seen:?}");
        let new = self.books.read(&daemon.root.folder.path().join("audit"), seen.size);
        for head in [told.and_then(|told| told.seen.head()), seen.head()].into_iter().flatten() {
            self.books.assert_contain(&head);
        }
        let Some(told) = told else { return daemon };
        let calls = new.iter().filter(|record| matches!(record.event, AuditEvent::Inference { .. })).count() as u64;
        assert!(calls <= told.calls, "{calls} records of {} calls", told.calls);
        let done: Vec<&str> = new
            .iter()
            .filter(|record| record.actor.kind == ledge::audit::record::ActorKind::Ip)
            .map(|record| record.event.action())
            .filter(|action| ["model_loaded", "model_unloaded"].contains(action))
            .collect();
        let (certain, rest) = done.split_at(told.done.len().min(done.len()));
        assert!(certain == told.done && (rest.is_empty() || rest == [told.perhaps]), "{done:?}, not {:?}", told.done);
        self.report.administrative += told.done.len();
        daemon
    }

    /// Loads a daemon, disturbs it, and kills it.
    fn round(&mut self, daemon: TestDaemon) -> (TestRoot, Told) {
        let load = Load::start(&daemon);
        // The platform may have been away since the round before.
        self.place.start();
        self.line.open();
        self.line.cut(None);
        let millis = |random: &mut Random, most: u64| Duration::from_millis(random.below(most));
        let kind = self.random.below(3);
        match kind {
            0 => std::thread::sleep(millis(&mut self.random, 1500)),
            1 => {
                let random = self.random.fork();
                self.line.cut(Some(random));
                std::thread::sleep(millis(&mut self.random, 2000));
            }
            _ => {
                std::thread::sleep(millis(&mut self.random, 800));
                self.report.outages += 1;
                self.place.stop();
                self.line.close();
                std::thread::sleep(millis(&mut self.random, 800));
                // Or else it is still away when the next daemon starts.
                if self.random.one_in(2) {
                    self.place.start();
                    self.line.open();
                }
            }
        }
        // Mostly when something is on its way.
        if (kind == 0 || self.random.one_in(2)) && self.line.wait_for_request(Duration::from_millis(1500)) {
            std::thread::sleep(Duration::from_micros(self.random.below(20_000)));
        }
        self.report.kills_during_requests += u64::from(self.line.wait_for_request(Duration::ZERO));
        let root = daemon.kill();
        let told = load.end();
        self.report.acknowledged = self.report.acknowledged.max(told.seen.size);
        (root, told)
    }

    /// The platform has at least the records that the box reported as copied, and they are whole.
    fn verify_with_kit(&mut self, seen: &Seen, options: &[&str]) {
        let kit = self.kit.get_or_insert_with(|| {
            let kit = Kit::new();
            kit.enroll("box-1", &seen.verifier_key);
            kit
        });
        let records = self.place.verify_with(kit, options);
        assert!(records >= seen.copied, "{records} records are there: {seen:?}");
    }

    /// Lets the platform get everything, and compares.
    fn end(mut self, root: TestRoot, told: Option<&Told>) -> Report {
        self.place.start();
        self.line.open();
        self.line.cut(None);
        let daemon = self.start(root, told);
        let seen = Seen::until(&daemon, |seen| seen.is_copied);
        let root = daemon.kill();
        // Since then, it may have recorded more.
        let there = self.place.assert_copied(&root, &seen.verifier_key);
        assert!(there.size >= seen.size, "{there:?}, and not {}", seen.size);
        self.books.read(&root.folder.path().join("audit"), there.size.max(self.books.size));
        self.books.assert_contain(&there);
        self.report.replaced = self.place.replaced();
        assert_eq!(self.report.replaced, 0);
        self.report.cuts = self.line.cuts();
        let earlier = root.folder.path().join("earlier");
        write(&earlier, told.and_then(|told| told.seen.checkpoint.as_ref()).unwrap().as_bytes());
        let own = run(root.command(&["audit", "verify"]).arg("--from").arg(&earlier));
        assert!(own.contains("contains") && own.contains("every record is the one that was signed"), "{own}");
        self.place.verify(&root, &seen.verifier_key);
        self.verify_with_kit(&seen, &["--full"]);
        self.report
    }
}

#[test]
fn a_bucket_gets_all_of_a_box_that_is_killed_again_and_again() {
    Rounds::run("S3", Place::bucket(), 6).print("S3");
}

#[test]
fn nginx_gets_all_of_a_box_that_is_killed_again_and_again() {
    Rounds::run("WebDAV", Place::web_dav(), 6).print("WebDAV");
}

#[test]
#[ignore = "100 rounds: make soak"]
fn a_bucket_gets_all_of_a_box_that_is_killed_100_times() {
    Rounds::run("S3", Place::bucket(), 100).print("S3");
}

#[test]
#[ignore = "100 rounds: make soak"]
fn nginx_gets_all_of_a_box_that_is_killed_100_times() {
    Rounds::run("WebDAV", Place::web_dav(), 100).print("WebDAV");
}
