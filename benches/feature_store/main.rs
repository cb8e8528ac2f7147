//! The feature store in-process, compared with plain sled and with redb: reads, writes, memory, disk, and starts.
//!
//! ```console
//! $ cargo bench --bench feature_store                                # a million entities, some fifteen minutes
//! $ cargo bench --bench feature_store -- --quick                     # 50,000, under a minute
//! $ cargo bench --bench feature_store -- --stores ledge,sealed --quick  # what encryption costs
//! $ cargo bench --bench feature_store -- --stores ledge --entities 200000 --json store.json
//! ```
//!
//! Each store runs in a separate process, so that memory and CPU time can be measured, and the stores take turns. CPU
//! time includes the caller, without the making of the request. Ledge is called like its HTTP handlers call it, with
//! names and JSON values; sled and redb get bytes. An acknowledgement means: Ledge has fsynced a journal; redb has
//! committed durably, with all waiting rows in one commit; sled has flushed, which does not survive a power cut.

#![expect(clippy::unwrap_used, reason = "a benchmark that panics says where")]

mod child;
mod contender;
mod load;
mod plot;
mod process;
mod report;
mod stores;

use std::path::PathBuf;

use clap::Parser;

use child::{Child, Command};
use contender::Contender;
use report::Report;

/// The feature store in-process, compared with plain sled and with redb.
#[derive(Debug, Parser)]
struct Options {
    /// The number of entities, with 20 Float32 each.
    #[arg(long, default_value_t = 1_000_000)]
    entities: u64,
    /// 50,000 entities and short rounds.
    #[arg(long)]
    quick: bool,
    /// The stores to measure.
    #[arg(long, value_delimiter = ',', default_value = "ledge,sled,redb")]
    stores: Vec<Contender>,
    /// The number of rounds; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The seconds of each measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// The number of updates of each entity in the simulated day.
    #[arg(long, default_value_t = 3)]
    updates: u32,
    /// The memory of the cache for recent reads, in MiB.
    #[arg(long, default_value_t = 32)]
    cache_mb: u64,
    /// Measure only the load, reads and writes.
    #[arg(long)]
    brief: bool,
    /// The folder of the stores; it is removed afterwards.
    #[arg(long, default_value = "target/feature_store_bench")]
    folder: PathBuf,
    /// Also write all figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Also draw memory and disk over the simulated day into this SVG file.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Runs one store and takes commands from standard input.
    #[arg(long, hide = true)]
    child: Option<Contender>,
    /// The argument that cargo passes to every benchmark.
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
    if let Some(path) = &options.plot {
        ledge::durable::replace(path, plot::of_sizes(&report.rounds(CHURN)).as_bytes()).unwrap();
    }
    let _ = std::fs::remove_dir_all(&options.folder);
}

/// The row of the day, and the number of parts of each of its rounds.
const CHURN: &str = "a day's churn, 500 rows a push";
const CHURN_SLICES: u64 = 8;

/// The number of parts of the load, in which the stores take turns.
const LOAD_SLICES: u64 = 4;

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
    for slice in 0..LOAD_SLICES {
        let (from, to) = (entities * slice / LOAD_SLICES, entities * (slice + 1) / LOAD_SLICES);
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
            for slice in 0..CHURN_SLICES {
                let (from, to) = (entities * slice / CHURN_SLICES, entities * (slice + 1) / CHURN_SLICES);
                let command = Command::Update { from, to, round, of: options.updates };
                each(&mut children, &mut report, CHURN, &command);
            }
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

/// Measures the time of starts until reads are answered.
fn starts(options: &Options, children: &mut [Child], report: &mut Report) {
    for (child, contender) in children.iter_mut().zip(&options.stores) {
        let folder = options.folder.join(contender.name());
        let mut again = |child: &mut Child, what: &str| {
            let (started, took) = Child::start(*contender, &folder, options.cache_mb);
            *child = started;
            report.add(*contender, what, took);
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
