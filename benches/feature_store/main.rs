//! The feature store in-process beside sled alone and redb: reads, writes, memory, disk, and what a start takes.
//!
//! ```console
//! $ cargo bench --bench feature_store                                # a million entities, some fifteen minutes
//! $ cargo bench --bench feature_store -- --quick                     # 50,000, under a minute
//! $ cargo bench --bench feature_store -- --stores ledge,sealed --quick  # what encryption costs
//! $ cargo bench --bench feature_store -- --stores ledge --entities 200000 --json store.json
//! ```
//!
//! Each store runs in a process of its own, so that memory and CPU time are its own, and they take turns. CPU time has the
//! caller in it, without the making of the request. Ledge is asked as its HTTP handlers ask it, with names and JSON values;
//! sled and redb get bytes. What is acknowledged: Ledge fsynced a journal; redb committed durably, what waits together in
//! one commit; sled flushed, which does not survive a power cut.

#![expect(clippy::unwrap_used, reason = "a benchmark that panics says where")]

mod child;
mod contender;
mod load;
mod process;
mod report;
mod stores;

use std::path::PathBuf;

use clap::Parser;

use child::{Child, Command};
use contender::Contender;
use load::Figures;
use report::Report;

/// The feature store in-process beside sled alone and redb.
#[derive(Debug, Parser)]
struct Options {
    /// How many entities, with 20 Float32 each.
    #[arg(long, default_value_t = 1_000_000)]
    entities: u64,
    /// 50,000 entities and short rounds.
    #[arg(long)]
    quick: bool,
    /// Which stores.
    #[arg(long, value_delimiter = ',', default_value = "ledge,sled,redb")]
    stores: Vec<Contender>,
    /// How often each thing is measured; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each time.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often each entity is updated in the day that is simulated.
    #[arg(long, default_value_t = 3)]
    updates: u32,
    /// The memory for what was read lately, in MiB.
    #[arg(long, default_value_t = 32)]
    cache_mb: u64,
    /// Only load, reads and writes.
    #[arg(long)]
    brief: bool,
    /// Where the stores lie; removed afterwards.
    #[arg(long, default_value = "target/feature_store_bench")]
    folder: PathBuf,
    /// Also write everything to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Runs one store and takes commands from standard input.
    #[arg(long, hide = true)]
    child: Option<Contender>,
    /// What cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let mut options = Options::parse();
    if let Some(contender) = options.child {
        return child::run(contender, &options.folder, options.cache_mb);
    }
    if options.quick {
        (options.entities, options.rounds, options.seconds) = (options.entities.min(50_000), 3, 0.5);
    }
    println!("{}, {} entities x 20 Float32, cache {} MiB\n", process::machine(), options.entities, options.cache_mb);
    let report = measure(&options);
    print!("{}", report.table());
    if let Some(path) = &options.json {
        ledge::durable::replace(path, report.json().as_bytes()).unwrap();
    }
    let _ = std::fs::remove_dir_all(&options.folder);
}

/// The load is done by turns as well.
const SLICES: u64 = 4;

fn measure(options: &Options) -> Report {
    let entities = options.entities;
    let mut report = Report::new(&options.stores);
    let mut children: Vec<Child> = Vec::new();
    for contender in &options.stores {
        let folder = options.folder.join(contender.name());
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        children.push(Child::start(*contender, &folder, options.cache_mb).0);
    }
    for slice in 0..SLICES {
        let (from, to) = (entities * slice / SLICES, entities * (slice + 1) / SLICES);
        each(
            &mut children,
            &mut report,
            "load, 500 rows a push",
            &Command::Update { from, to, round: 0, of: options.updates },
        );
    }
    each(&mut children, &mut report, "after the load", &Command::Sizes);
    let seconds = options.seconds;
    for round in 0..=options.rounds {
        // The first round warms up.
        for (what, command) in [
            ("point read, 1 caller", Command::Read { callers: 1, seconds, entities }),
            ("point read, 8 callers", Command::Read { callers: 8, seconds, entities }),
            ("durable write of a row, 1 caller", Command::Write { callers: 1, seconds, entities }),
            ("durable write of a row, 100 callers", Command::Write { callers: 100, seconds, entities }),
        ] {
            let mut unused = Report::new(&options.stores);
            each(&mut children, if round == 0 { &mut unused } else { &mut report }, what, &command);
        }
    }
    each(&mut children, &mut report, "after reads and writes", &Command::Sizes);
    if !options.brief {
        starts(options, &mut children, &mut report);
        for round in 1..=options.updates {
            let command = Command::Update { from: 0, to: entities, round, of: options.updates };
            each(&mut children, &mut report, "a day's churn, 500 rows a push", &command);
        }
        each(&mut children, &mut report, "after a day's churn", &Command::Sizes);
        each(&mut children, &mut report, "sweep and compaction", &Command::Compact);
        each(&mut children, &mut report, "after sweep and compaction", &Command::Sizes);
    }
    for child in &mut children {
        child.ask(&Command::Close);
    }
    report
}

/// What it takes until reads are answered.
fn starts(options: &Options, children: &mut [Child], report: &mut Report) {
    for (child, contender) in children.iter_mut().zip(&options.stores) {
        let folder = options.folder.join(contender.name());
        let mut again = |child: &mut Child, what: &str| {
            let (started, seconds) = Child::start(*contender, &folder, options.cache_mb);
            *child = started;
            report.add(*contender, what, Figures::once(seconds));
        };
        child.ask(&Command::Close);
        again(child, "start after an orderly stop");
        child.kill();
        again(child, "start after kill -9");
        if matches!(contender, Contender::Ledge | Contender::Sealed) {
            let remove_index = || {
                for entry in std::fs::read_dir(folder.join("store")).unwrap().flatten() {
                    if entry.file_name().to_string_lossy().starts_with("index-") {
                        std::fs::remove_dir_all(entry.path()).unwrap();
                    }
                }
            };
            child.ask(&Command::Close);
            remove_index();
            again(child, "start without an index: a rebuild");
            child.ask(&Command::Snapshot);
            child.ask(&Command::Close);
            remove_index();
            again(child, "the same from a snapshot alone");
        }
    }
}

fn each(children: &mut [Child], report: &mut Report, what: &str, command: &Command) {
    for child in children {
        let figures = child.ask(command);
        report.add(child.contender, what, figures);
    }
}
