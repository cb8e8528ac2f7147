//! Rounds of faults in the processes of the runtimes, under load: healthy models are called without a pause while
//! another one ends its process in every way that there is.
//!
//! The child has faults on demand in builds with the feature `fault-injection`; see `src/isolation/child/faults.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, data, has_runtime, processes, send_signal, write};

/// A copy of the tiny model, to which the faults are sent.
pub const FAULTY: &str = "faulty";

/// The time that a run of it may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The deadline of healthy calls, which wait for models that are loaded again.
const DEADLINE: Duration = Duration::from_secs(30);

/// The longest time until the faulty model answers again, beyond that of a run that never ends.
const RECOVERY_MAX: Duration = Duration::from_secs(30);

/// The most memory of a child. A child that allocates without end would take all of the machine's otherwise.
const CHILD_DATA: &str = "--data=1500000000:4000000000";

/// The most memory, in MB, by which the daemon and its children may grow over all rounds: reloads leave some with the
/// allocator, however many there are.
const GROWTH_MB: f64 = 64.0;

/// A way to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Segv,
    Fpe,
    Abort,
    Loop,
    Memory,
    StackOverflow,
    Scribble,
    Nonsense,
    Kill,
    /// Not sent to a model: a user kills the child.
    KillFromOutside,
}

impl Fault {
    const ALL: [Self; 10] = [
        Self::Segv,
        Self::Fpe,
        Self::Abort,
        Self::Loop,
        Self::Memory,
        Self::StackOverflow,
        Self::Scribble,
        Self::Nonsense,
        Self::Kill,
        Self::KillFromOutside,
    ];

    /// The letter behind `!FAULT:`.
    fn letter(self) -> Option<u8> {
        Some(match self {
            Self::Segv => b's',
            Self::Fpe => b'f',
            Self::Abort => b'a',
            Self::Loop => b'l',
            Self::Memory => b'm',
            Self::StackOverflow => b'o',
            Self::Scribble => b'c',
            Self::Nonsense => b'n',
            Self::Kill => b'k',
            Self::KillFromOutside => return None,
        })
    }

    /// Words of the reason that names it, one of which is enough.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Segv => &["SIGSEGV"],
            Self::Fpe => &["SIGFPE"],
            Self::Abort => &["SIGABRT"],
            // Any thread may fail first, by any signal.
            Self::Memory => &["ran out of memory (limit "],
            Self::Loop => &["went on after its deadline"],
            Self::StackOverflow => &["SIGSEGV", "SIGABRT"],
            Self::Scribble | Self::Nonsense => &["invalid"],
            Self::Kill | Self::KillFromOutside => &["SIGKILL"],
        }
    }
}

/// The root of the rounds: two healthy models for photographs, a tiny one, and the faulty one, all in one child.
pub fn root(isolation: &str) -> TestRoot {
    let root =
        TestRoot::new().models(&["efficientnet_lite0", "coco_detector", "wine_mlp"]).model_as("wine_mlp", FAULTY);
    let config = root.model(FAULTY).join("model.toml");
    let text = read_to_string(&config).unwrap();
    write(&config, format!("{text}\n[queue]\ndefault_timeout_ms = {}\n", TIMEOUT.as_millis()).as_bytes());
    let root = root.set(&format!("runtimes.isolation={isolation}")).set("runtimes.threads=2").set("log.level=\"info\"");
    root.set(&format!("serving.default_timeout_ms={}", DEADLINE.as_millis())).runner(&["prlimit", CHILD_DATA])
}

/// The processes of the runtimes of a daemon.
pub fn runtime_processes(daemon: &TestDaemon) -> Vec<u32> {
    // If the daemon is in its sandbox, its spawner has started them.
    let spawned = processes(daemon.pid(), "spawner").into_iter().flat_map(|spawner| processes(spawner, "runtime"));
    spawned.chain(processes(daemon.pid(), "runtime")).collect()
}

/// Waits until `is_so`, for `limit` at most.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asserts that models run, and only in sandboxed processes.
#[track_caller]
pub fn assert_models_are_sealed(daemon: &TestDaemon) {
    // A process that tried a model ends soon after the model is ready.
    wait_until("the models run in sealed processes", Duration::from_mins(1), || {
        let all = runtime_processes(daemon);
        let is_sealed = |pid: u32| {
            read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("Seccomp:\t2\n"))
        };
        !all.is_empty() && all.into_iter().all(is_sealed)
    });
    assert!(!has_runtime(daemon.pid()));
}

/// The folders that children may read, on the disk and in memory.
pub fn instance_folders(root: &Path, pid: u32) -> Vec<PathBuf> {
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut found = names(&root.join("cache/.instances"));
    for place in ["/dev/shm", "/run"] {
        let shared = Path::new(place).join(format!("ledge-models-{}", rustix::process::geteuid().as_raw()));
        // Other daemons of this user have theirs there, too.
        let own = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{pid}-")))
        };
        found.extend(names(&shared).into_iter().filter(own));
    }
    found
}

/// The resources of a daemon and its children.
#[derive(Debug, Clone, Copy)]
struct Holdings {
    files: usize,
    threads: usize,
    processes: usize,
    folders: usize,
    daemon_mb: f64,
    children_mb: f64,
}

impl Holdings {
    fn of(daemon: &TestDaemon) -> Self {
        let (pid, children) = (daemon.pid(), runtime_processes(daemon));
        let count = |folder: &str| std::fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count();
        Self {
            files: count("fd"),
            threads: count("task"),
            processes: children.len(),
            folders: instance_folders(daemon.root.folder.path(), pid).len(),
            daemon_mb: pss_mb(pid),
            children_mb: children.into_iter().map(pss_mb).sum(),
        }
    }

    fn mb(&self) -> f64 {
        self.daemon_mb + self.children_mb
    }

    /// True when there is no more of anything that is counted.
    fn is_within(&self, before: &Self) -> bool {
        self.files <= before.files
            && self.threads <= before.threads
            && self.processes <= before.processes
            && self.folders <= before.folders
    }
}

/// The memory of a process in MB, that which is shared among n counted as an n-th.
fn pss_mb(pid: u32) -> f64 {
    let rollup = read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find(|line| line.starts_with("Pss:"));
    let kb = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kb| kb.parse::<f64>().ok());
    kb.unwrap_or_default() / 1e3
}

/// A call, and the part of its answer that is the same each time.
struct Call {
    name: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    expected: Vec<u8>,
}

impl Call {
    fn photo(name: &'static str, model: &str, file: &str) -> Self {
        let headers = vec![("content-type", "image/jpeg".to_owned())];
        Self::new(name, model, headers, data(file))
    }

    /// 602 KB of numbers that are a picture, as bytes.
    fn tensor(name: &'static str, model: &str) -> Self {
        let numbers = (0_u16..18_816).flat_map(|at| [f32::from(at % 251) / 125.0 - 1.0; 8]);
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        let (headers, body) = binary("input", &[1, 3, 224, 224], &bytes);
        Self::new(name, model, headers, body)
    }

    fn tiny(name: &'static str, model: &str) -> Self {
        Self::tiny_of(name, model, 13.2)
    }

    /// With this as its first number.
    fn tiny_of(name: &'static str, model: &str, alcohol: f64) -> Self {
        let numbers = [alcohol, 1.78, 2.14, 11.2, 100.0, 2.65, 2.76, 0.26, 1.28, 4.38, 1.05, 3.4, 1050.0];
        let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13], "data": numbers});
        Self::new(name, model, Vec::new(), json!({"inputs": [input]}).to_string().into_bytes())
    }

    fn new(name: &'static str, model: &str, headers: Vec<(&'static str, String)>, body: Vec<u8>) -> Self {
        Self { name, path: format!("/v2/models/{model}/infer"), headers, body, expected: Vec::new() }
    }

    fn send(&self, client: &mut Client) -> Response {
        let headers: Vec<_> = self.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        client.post(&self.path, &headers, &self.body)
    }

    /// Sends it once, and expects the same answer from now on.
    #[track_caller]
    fn known(mut self, client: &mut Client) -> Self {
        let answer = self.send(client);
        assert_eq!(answer.status, 200, "{}: {answer:?}", self.name);
        self.expected = result(&answer);
        self
    }

    fn is_right(&self, answer: &Response) -> bool {
        answer.status == 200 && result(answer) == self.expected
    }
}

/// A call with one tensor as bytes; its answer has bytes, too.
fn binary(name: &str, shape: &[usize], bytes: &[u8]) -> (Vec<(&'static str, String)>, Vec<u8>) {
    let size = json!({"binary_data_size": bytes.len()});
    let input = json!({"name": name, "datatype": "FP32", "shape": shape, "parameters": size});
    let head = json!({"parameters": {"binary_data_output": true}, "inputs": [input]}).to_string();
    let headers = vec![("inference-header-content-length", head.len().to_string())];
    (headers, [head.as_bytes(), bytes].concat())
}

/// Sends a fault to a copy of the tiny model.
pub fn send_fault(client: &mut Client, model: &str, letter: u8) -> Response {
    send_fault_with(client, model, letter, None)
}

/// Sends a fault with an API key.
pub fn send_fault_with(client: &mut Client, model: &str, letter: u8, key: Option<&str>) -> Response {
    send_fault_as(client, model, letter, key.map(|key| ("x-api-key", key.to_owned())))
}

fn send_fault_as(client: &mut Client, model: &str, letter: u8, header: Option<(&'static str, String)>) -> Response {
    let mut bytes = [0; 13 * 4];
    bytes[..7].copy_from_slice(b"!FAULT:");
    bytes[7] = letter;
    let (mut headers, body) = binary("features", &[1, 13], &bytes);
    headers.extend(header);
    Call::new("fault", model, headers, body).send(client)
}

/// An answer without its times.
fn result(answer: &Response) -> Vec<u8> {
    let length = answer.header("inference-header-content-length").map_or(answer.body.len(), |n| n.parse().unwrap());
    let (head, bytes) = answer.body.split_at(length);
    let mut head: Value = serde_json::from_slice(head).unwrap_or_default();
    if let Some(fields) = head.as_object_mut() {
        fields.remove("time_ms");
        fields.remove("parameters");
    }
    [head.to_string().as_bytes(), bytes].concat()
}

/// The latencies of healthy calls, and the errors of some.
#[derive(Debug, Default)]
struct Seen {
    milliseconds: Vec<f64>,
    wrong: Vec<String>,
}

impl Seen {
    fn percentile(&self, share: f64) -> f64 {
        let mut ordered = self.milliseconds.clone();
        ordered.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "counts"
        )]
        let at = (share * (ordered.len() - 1) as f64) as usize;
        ordered[at]
    }

    fn show(&self) -> String {
        let [p50, p99, worst] = [0.5, 0.99, 1.0].map(|share| self.percentile(share));
        format!("{} calls, p50 {p50:.0} ms, p99 {p99:.0} ms, worst {worst:.0} ms", self.milliseconds.len())
    }
}

/// Runs `work` while each of the calls is sent again and again, on a separate connection.
fn under_load<T>(daemon: &TestDaemon, calls: &[Call], work: impl FnOnce(&Mutex<Seen>) -> T) -> (T, Seen) {
    /// Ends the load also where `work` panics.
    struct Stop<'s>(&'s AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (seen, is_over) = (Mutex::new(Seen::default()), AtomicBool::new(false));
    let done = std::thread::scope(|scope| {
        for call in calls {
            scope.spawn(|| {
                let mut client = daemon.client();
                while !is_over.load(Ordering::Relaxed) {
                    let since = Instant::now();
                    let answer = call.send(&mut client);
                    let (taken, is_right) = (since.elapsed(), call.is_right(&answer));
                    let mut seen = seen.lock().unwrap();
                    seen.milliseconds.push(taken.as_secs_f64() * 1e3);
                    if !is_right || taken > DEADLINE {
                        let text = String::from_utf8_lossy(&answer.body).chars().take(300).collect::<String>();
                        seen.wrong.push(format!("{} after {taken:?}: {} {text}", call.name, answer.status));
                    }
                }
            });
        }
        let _stop = Stop(&is_over);
        work(&seen)
    });
    (done, seen.into_inner().unwrap())
}

/// The rounds: the daemon, and where the faults are sent.
struct Rounds<'d> {
    daemon: &'d TestDaemon,
    healthy: &'d [Call],
    client: Client,
    /// A healthy call of the faulty model.
    usual: Call,
    /// The times until the faulty model answered again, in seconds.
    recovered: BTreeMap<Fault, Vec<f64>>,
    /// Calls of it that came too early.
    slowed: usize,
}

/// An event in the processes of the models while they are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    Kill,
    Freeze,
    FreezeSpawner,
    Reload,
    /// A run of another model uses up the memory.
    Memory,
    /// One caller of many of the same model, ready at the same time, ends its process.
    CrashAmongOthers,
    /// One caller of many of the same model has a run that never ends.
    LoopAmongOthers,
}

impl Disturbance {
    const ALL: [Self; 7] = [
        Self::Kill,
        Self::CrashAmongOthers,
        Self::Freeze,
        Self::Reload,
        Self::LoopAmongOthers,
        Self::FreezeSpawner,
        Self::Memory,
    ];

    fn happen(self, rounds: &mut Rounds<'_>, round: usize) {
        let signal = |name: &str, pids: Vec<u32>| pids.into_iter().for_each(|pid| send_signal(pid, name));
        let daemon = rounds.daemon;
        match self {
            Self::Kill => signal("KILL", runtime_processes(daemon)),
            Self::Freeze => signal("STOP", runtime_processes(daemon)),
            Self::FreezeSpawner => signal("STOP", processes(daemon.pid(), "spawner")),
            Self::Reload => ["wine_mlp", "efficientnet_lite0"].iter().for_each(|model| rounds.load_anew(model, round)),
            Self::Memory => {
                rounds.load_anew(FAULTY, round);
                send_fault(&mut rounds.client, FAULTY, b'm');
            }
            Self::CrashAmongOthers | Self::LoopAmongOthers => {
                // Its earlier faults no longer count, so no caller is slowed down.
                rounds.load_anew("wine_mlp", round);
                let letter = if self == Self::CrashAmongOthers { b's' } else { b'l' };
                let timeout = ("x-ledge-timeout-ms", "1000".to_owned());
                let answer = send_fault_as(&mut rounds.client, "wine_mlp", letter, Some(timeout));
                assert!(matches!(answer.status, 502 | 504), "{self:?}: {answer:?}");
            }
        }
    }
}

/// Disturbs the processes of the models until `answers` answers to the same calls were compared with the first ones,
/// and returns a report.
pub fn disturb(isolation: &str, answers: usize) -> String {
    let answers =
        std::env::var("FAULT_ANSWERS").map_or(answers, |text| text.parse().expect("FAULT_ANSWERS is a number"));
    let daemon = root(isolation).start();
    let client = &mut daemon.client();
    let mut calls = vec![
        Call::photo("photograph to label", "efficientnet_lite0", "photos/chelsea.jpg"),
        Call::photo("photograph to boxes", "coco_detector", "photos/cows.jpg"),
        Call::tensor("tensor", "efficientnet_lite0"),
    ];
    // Each of these has other numbers in its answer.
    calls.extend((0..12_u8).map(|at| Call::tiny_of("one of many", "wine_mlp", 11.0 + f64::from(at) / 4.0)));
    let calls: Vec<_> = calls.into_iter().map(|call| call.known(client)).collect();
    let mut different: Vec<_> = calls.iter().map(|call| &call.expected).collect();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), calls.len(), "each call has an answer of its own");

    let mut rounds = Rounds {
        daemon: &daemon,
        healthy: &calls,
        client: daemon.client(),
        usual: Call::tiny("usual", FAULTY).known(client),
        recovered: BTreeMap::new(),
        slowed: 0,
    };
    let (count, seen) = under_load(&daemon, &calls, |seen| {
        let mut round = 0;
        while round < Disturbance::ALL.len() || seen.lock().unwrap().milliseconds.len() < answers {
            let kind = Disturbance::ALL[round % Disturbance::ALL.len()];
            kind.happen(&mut rounds, round);
            // Until each call was answered again, and some more: a model that is interrupted twice is suspected itself.
            for call in &calls {
                let answer = call.send(&mut rounds.client);
                assert!(call.is_right(&answer), "{kind:?}, round {round}: {}: {answer:?}", call.name);
            }
            let before = seen.lock().unwrap().milliseconds.len();
            wait_until("more answers", DEADLINE, || seen.lock().unwrap().milliseconds.len() >= before + 200);
            assert_eq!(seen.lock().unwrap().wrong, [""; 0], "{kind:?}, round {round}");
            round += 1;
        }
        round
    });
    assert_eq!(seen.wrong, [""; 0]);
    format!("isolation {isolation}: {count} disturbances; {}", seen.show())
}

impl Rounds<'_> {
    fn load(&mut self, model: &str) {
        let loaded = self.client.post(&format!("/v2/repository/models/{model}/load"), &[], b"");
        assert_eq!(loaded.status, 200, "{loaded:?}");
    }

    /// Loads the model from files that have changed: none of its faults counts any more, and it is in the process of
    /// all.
    fn load_anew(&mut self, model: &str, round: usize) {
        let config = self.daemon.root.model(model).join("model.toml");
        let text = read_to_string(&config).unwrap();
        let (kept, _) = text.split_once("# round").unwrap_or((&text, ""));
        write(&config, format!("{kept}# round {round}\n").as_bytes());
        self.load(model);
    }

    /// One fault, and the time until the model answers again.
    fn fault(&mut self, fault: Fault) {
        let words = fault.words();
        let names = |reason: &str| words.iter().any(|word| reason.contains(word));
        if fault == Fault::KillFromOutside {
            // Loaded again after the last fault: a model becomes a suspect when its load is interrupted twice.
            for call in self.healthy {
                assert!(call.is_right(&call.send(&mut self.client)), "{}", call.name);
            }
        }
        let since = Instant::now();
        if let Some(letter) = fault.letter() {
            let mut answer = send_fault(&mut self.client, FAULTY, letter);
            while answer.status == 429 && since.elapsed() < RECOVERY_MAX {
                std::thread::sleep(Duration::from_millis(10));
                answer = send_fault(&mut self.client, FAULTY, letter);
            }
            match fault {
                // The answer of other inputs, or none.
                Fault::Scribble if answer.status == 200 => {}
                // Its caller does not wait for longer than it said.
                Fault::Loop => assert_eq!(answer.status, 504, "{fault:?}: {answer:?}"),
                // Using up the memory may take a busy machine longer.
                Fault::Memory if answer.status == 504 => {}
                _ => {
                    assert_eq!(
                        (answer.status, answer.header("retry-after")),
                        (502, Some("1")),
                        "{fault:?}: {answer:?}"
                    );
                    assert!(names(&answer.error()), "{fault:?}: {answer:?}");
                }
            }
        } else {
            for child in runtime_processes(self.daemon) {
                send_signal(child, "KILL");
            }
        }

        let limit = if fault == Fault::Loop { TIMEOUT + RECOVERY_MAX } else { RECOVERY_MAX };
        loop {
            let answer = self.usual.send(&mut self.client);
            if answer.status == 200 {
                assert!(self.usual.is_right(&answer), "{fault:?}: {answer:?}");
                break;
            }
            assert!(since.elapsed() < limit, "{fault:?}: still {answer:?} after {limit:?}");
            // Its callers cannot be distinguished, so they are slowed down after three faults. It is not unloaded.
            let (state, reason) = self.client.state(FAULTY);
            assert_ne!(state, "UNAVAILABLE", "{fault:?}: {reason}");
            self.slowed += usize::from(answer.status == 429);
            std::thread::sleep(Duration::from_millis(10));
        }
        self.recovered.entry(fault).or_default().push(since.elapsed().as_secs_f64());
    }
}

/// Sends `count` faults under load, or as many as `FAULT_ROUNDS` says, checks that other callers do not notice, and
/// returns a report.
pub fn run(count: usize) -> String {
    let count = std::env::var("FAULT_ROUNDS").map_or(count, |text| text.parse().expect("FAULT_ROUNDS is a number"));
    let daemon = root("process").start();
    let client = &mut daemon.client();
    let calls = [
        Call::photo("photograph to label", "efficientnet_lite0", "photos/chelsea.jpg"),
        Call::photo("photograph to boxes", "coco_detector", "photos/cows.jpg"),
        Call::tensor("tensor", "efficientnet_lite0"),
        Call::tiny("tiny", "wine_mlp"),
    ]
    .map(|call| call.known(client));
    let usual = Call::tiny("usual", FAULTY).known(client);

    let reached = |seen: &Mutex<Seen>, count| seen.lock().unwrap().milliseconds.len() >= count;
    let minute = Duration::from_mins(1);
    let ((), before) = under_load(&daemon, &calls, |seen| {
        wait_until("500 calls without faults", minute, || reached(seen, 500));
    });
    assert_eq!(before.wrong, [""; 0]);
    let first = Holdings::of(&daemon);

    let mut rounds = Rounds {
        daemon: &daemon,
        healthy: &calls,
        client: daemon.client(),
        usual,
        recovered: BTreeMap::new(),
        slowed: 0,
    };
    let ((), during) = under_load(&daemon, &calls, |seen| {
        for round in 0..count {
            let kind = Fault::ALL[round % Fault::ALL.len()];
            // A loop takes seconds, so there are fewer in long runs.
            let fault = if kind == Fault::Loop && round >= 20 && round / 10 % 10 != 0 { Fault::Segv } else { kind };
            // Half of the faults are the first of their model, in the process of all; others are its second and third.
            if round % 5 < 2 {
                rounds.load_anew(FAULTY, round);
            }
            rounds.fault(fault);
            let seen = seen.lock().unwrap();
            assert_eq!(seen.wrong, [""; 0], "{fault:?}, round {round}");
        }
        // A healthy model may have been suspected, and therefore have got a separate process.
        for model in [FAULTY, "efficientnet_lite0", "coco_detector", "wine_mlp"] {
            rounds.load_anew(model, count);
        }
    });
    assert_eq!(during.wrong, [""; 0]);

    // Threads of finished loads and of the control plane end after a while.
    let mut last = Holdings::of(&daemon);
    let ended = Instant::now();
    while !last.is_within(&first) && ended.elapsed() < minute {
        std::thread::sleep(Duration::from_millis(200));
        last = Holdings::of(&daemon);
    }
    assert!(last.is_within(&first), "before: {first:?}\nafterwards: {last:?}");
    assert_eq!(last.folders, instance_folders(daemon.root.folder.path(), daemon.pid()).len());
    assert!(last.mb() - first.mb() <= GROWTH_MB, "before: {first:?}\nafterwards: {last:?}");

    let mut report = format!("{count} faults; {} calls of the model were refused meanwhile\n", rounds.slowed);
    for (fault, seconds) in &rounds.recovered {
        let seen = Seen { milliseconds: seconds.iter().map(|seconds| seconds * 1e3).collect(), wrong: Vec::new() };
        let [p50, worst] = [0.5, 1.0].map(|share| seen.percentile(share) / 1e3);
        let _ = writeln!(report, "{fault:?} x{}: answers again after {p50:.2} s, at worst {worst:.2} s", seconds.len());
    }
    let _ = writeln!(report, "healthy calls without faults: {}", before.show());
    let _ = writeln!(report, "healthy calls during faults:  {}", during.show());
    let _ = writeln!(report, "before: {first:?}\nafterwards: {last:?}");
    report
}
