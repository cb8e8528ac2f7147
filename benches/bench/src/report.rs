//! The report: the figures as a table and as JSON.

use std::io::Write;
use std::time::Duration;

use ledge::cli::Output;
use serde_json::{Value, json};

use super::figures::{Figures, Recording, Spread};
use super::load::Load;

/// The results of a measurement, and its parameters.
#[derive(Debug)]
pub struct Report {
    /// The model as the command line names it.
    pub model: String,
    pub version: String,
    /// The runtime that answered, or the server's name for it.
    pub runtime: String,
    /// A description of the inputs.
    pub input: String,
    /// Set if no request was sent twice.
    pub unique: bool,
    pub encoding: &'static str,
    /// The batch elements of each request.
    pub batch: usize,
    pub rounds: usize,
    /// The seconds of each load, target and round.
    pub seconds: f64,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// One series for each load and target, the targets of one load together.
    pub series: Vec<Series>,
}

/// The rounds of one target under one load.
#[derive(Debug)]
pub struct Series {
    pub load: Load,
    pub target: &'static str,
    /// In the order measured.
    pub rounds: Vec<Round>,
}

/// The result of one round.
#[derive(Debug)]
pub struct Round {
    pub recording: Recording,
    /// The CPU time of the process that answered.
    pub cpu: Option<Duration>,
    /// Its resident memory at the end, in bytes.
    pub memory: Option<u64>,
}

impl Series {
    /// True if at least one request was answered.
    pub fn has_answers(&self) -> bool {
        self.rounds.iter().any(|round| round.recording.answered() > 0)
    }

    /// The figures of all rounds together.
    fn figures(&self, batch: usize) -> Option<Figures> {
        let mut rounds = self.rounds.iter();
        let mut all = rounds.next()?.recording.clone();
        rounds.for_each(|round| all.follow(&round.recording));
        let cpu = self.rounds.iter().map(|round| round.cpu).sum();
        Some(all.figures(cpu, self.rounds.last()?.memory, batch))
    }
}

/// The figures of a target divided by those of the first target under the same load, round by round.
struct Ratio {
    load: Load,
    target: &'static str,
    base: &'static str,
    figures: Vec<(&'static str, Spread)>,
}

impl Report {
    /// The ratios of each target to the first, target by target.
    fn ratios(&self) -> Vec<Ratio> {
        let Some(base) = self.series.first().map(|first| first.target) else { return Vec::new() };
        let mut others: Vec<&str> = Vec::new();
        for series in &self.series {
            if series.target != base && !others.contains(&series.target) {
                others.push(series.target);
            }
        }
        let under = |load, target| self.series.iter().find(|one| one.load == load && one.target == target);
        let to_base = |other: &Series| Some(ratio(under(other.load, base)?, other));
        let mut ratios = Vec::new();
        for target in others {
            ratios.extend(self.series.iter().filter(|one| one.target == target).filter_map(to_base));
        }
        ratios
    }

    fn json(&self) -> Value {
        let ratio = |ratio: &Ratio| {
            let figures: serde_json::Map<_, _> =
                ratio.figures.iter().map(|(name, spread)| ((*name).to_owned(), json!(spread))).collect();
            let pair = format!("{}_by_{}", ratio.target, ratio.base).replace('-', "_");
            json!({"load": ratio.load, pair: figures})
        };
        let result = |series: &Series| json!({"load": series.load, "target": series.target, "figures": series.figures(self.batch)});
        json!({
            "model": self.model, "version": self.version, "runtime": self.runtime, "input": self.input,
            "unique": self.unique, "encoding": self.encoding, "batch": self.batch, "rounds": self.rounds,
            "seconds": self.seconds, "cores": self.cores, "ledge": env!("CARGO_PKG_VERSION"),
            "ratios": self.ratios().iter().map(ratio).collect::<Vec<_>>(),
            "results": self.series.iter().map(result).collect::<Vec<_>>(),
        })
    }
}

/// Writes the report, with the ratios first: they are the purpose of the rounds.
pub fn write(report: &Report, as_json: bool, out: &mut Output) -> anyhow::Result<()> {
    if as_json {
        writeln!(out, "{:#}", report.json())?;
        return Ok(());
    }
    let ratios = report.ratios();
    let mut heading = "";
    for ratio in &ratios {
        if ratio.target != heading {
            let (target, base) = (display_name(ratio.target), display_name(ratio.base));
            writeln!(out, "{target} divided by {base}: median of {} rounds (least to greatest)", report.rounds)?;
            heading = ratio.target;
        }
        let one = |(name, spread): &(&str, Spread)| {
            format!("{name} {:.2} ({:.2} to {:.2})", spread.median, spread.min, spread.max)
        };
        let figures: Vec<_> = ratio.figures.iter().map(one).collect();
        writeln!(out, "  {:<16} {}", ratio.load.to_string(), figures.join("   "))?;
    }
    if !ratios.is_empty() {
        writeln!(out)?;
    }
    writeln!(
        out,
        "{} version {} in {}, {} rounds of {} s, {} cores; {}{}",
        report.model,
        report.version,
        report.runtime,
        report.rounds,
        report.seconds,
        report.cores,
        report.input,
        if report.unique { ", each request different" } else { "" },
    )?;
    writeln!(
        out,
        "{:<16} {:<11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}  ERRORS",
        "LOAD", "TARGET", "p50 ms", "p90", "p99", "p99.9", "max", "mean", "answers/s", "CPU ms", "MEM MB"
    )?;
    for series in &report.series {
        let Some(figures) = series.figures(report.batch) else { continue };
        let latency = figures.latency_ms.map_or([None; 6], |l| [l.p50, l.p90, l.p99, l.p99_9, l.max, l.mean].map(Some));
        let number = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), digits);
        write!(out, "{:<16} {:<11}", series.load.to_string(), series.target)?;
        for value in latency.into_iter().chain([Some(figures.throughput), figures.cpu_ms_per_request]) {
            write!(out, " {:>9}", number(value))?;
        }
        let memory = figures.memory_bytes.map_or_else(|| "-".to_owned(), |bytes| (bytes / 1_000_000).to_string());
        let errors: Vec<_> = figures.errors.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
        let errors = if errors.is_empty() { "0".to_owned() } else { errors.join(", ") };
        writeln!(out, " {memory:>8}  {errors}")?;
    }
    if report.series.iter().any(|series| series.target == "in-process") {
        writeln!(
            out,
            "CPU is the CPU time of the answering processes for each answer; in-process it includes the callers."
        )?;
    }
    Ok(())
}

fn display_name(target: &str) -> &str {
    if target == "http" { "HTTP" } else { target }
}

/// The figures of `other` divided by those of `base`.
fn ratio(base: &Series, other: &Series) -> Ratio {
    let spread = |figure: &dyn Fn(&Round) -> Option<f64>| {
        let ratios = base.rounds.iter().zip(&other.rounds).filter_map(|(base, other)| {
            let (base, other) = (figure(base)?, figure(other)?);
            (base > 0.0).then_some(other / base)
        });
        Spread::of(ratios)
    };
    let cpu = |round: &Round| round.recording.figures(round.cpu, None, 1).cpu_ms_per_request;
    let named = [
        ("p50", spread(&|round| round.recording.quantile(0.5))),
        ("p99", spread(&|round| round.recording.quantile(0.99))),
        ("throughput", spread(&|round| Some(round.recording.throughput()))),
        ("cpu", spread(&cpu)),
    ];
    let figures = named.into_iter().filter_map(|(name, spread)| Some((name, spread?))).collect();
    Ratio { load: base.load, target: other.target, base: base.target, figures }
}

/// Three digits or more, never an exponent.
fn digits(number: f64) -> String {
    match number {
        ..1.0 => format!("{number:.4}"),
        ..10.0 => format!("{number:.3}"),
        ..100.0 => format!("{number:.2}"),
        _ => format!("{number:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Outcome;
    use super::*;

    fn series(target: &'static str, load: Load, rounds: &[u64]) -> Series {
        let round = |&millis: &u64| {
            let mut recording = Recording::new().unwrap();
            recording.record(Outcome::Ok, Duration::from_millis(millis));
            recording.elapsed = Duration::from_secs(1);
            Round { recording, cpu: Some(Duration::from_millis(millis)), memory: Some(5_000_000) }
        };
        Series { load, target, rounds: rounds.iter().map(round).collect() }
    }

    fn report() -> Report {
        let (one, rate) = (Load::Concurrency(1), Load::Rate(50.0));
        Report {
            model: "m@openvino".into(),
            version: "1".into(),
            runtime: "openvino".into(),
            input: "x <FP32> & more".into(),
            unique: true,
            encoding: "binary",
            batch: 1,
            rounds: 3,
            seconds: 1.0,
            cores: 2,
            series: vec![
                series("in-process", one, &[10, 20, 10]),
                series("http", one, &[20, 20, 30]),
                series("in-process", rate, &[10, 10, 10]),
                series("http", rate, &[10, 10, 10]),
            ],
        }
    }

    #[test]
    fn a_ratio_is_taken_within_a_round() {
        let json = report().json();
        let p50 = &json["ratios"][0]["http_by_in_process"]["p50"];
        let near = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 0.01;
        assert!(near(&p50["median"], 2.0) && near(&p50["min"], 1.0) && near(&p50["max"], 3.0), "{p50}");
        assert_eq!(json["ratios"].as_array().unwrap().len(), 2, "loads are not mixed");
        assert_eq!(json["results"][3]["figures"]["answered"], 3);
    }

    #[test]
    fn every_target_is_compared_with_the_first_one() {
        let mut report = report();
        let slow = series("mqtt-qos0", Load::Concurrency(1), &[40, 40, 40]);
        report.series.insert(2, slow);
        let json = report.json();
        let pairs: Vec<_> = json["ratios"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ratio| {
                let mut keys = ratio.as_object().unwrap().keys().filter(|key| *key != "load");
                keys.next().unwrap().clone()
            })
            .collect();
        assert_eq!(pairs, ["http_by_in_process", "http_by_in_process", "mqtt_qos0_by_in_process"]);
        let median = json["ratios"][2]["mqtt_qos0_by_in_process"]["p50"]["median"].as_f64().unwrap();
        assert!((median - 4.0).abs() < 0.01, "{median}");
    }
}
