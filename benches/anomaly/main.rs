//! Measures the detector of single series on the files of `collect.py`, beside two baselines: the share of faults that are
//! found by kind, the delay, false alarms a week, memory and CPU time.
//!
//!     cargo run --release -p ledge-anomaly --example anomaly -- FOLDER [tuning|published] [--each]
//!
//! A series belongs to a half by a hash of its name. Rules are chosen by the half "tuning", and docs/unusual.md quotes the
//! half "published".
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    reason = "a program for developers, on files that it has made"
)]

use ledge_anomaly::{Change, Pace, SeriesDetector, SeriesState};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

const WEEK_MS: f64 = 7.0 * 86_400_000.0;

/// As in `src/history/unusual.rs`.
const SERIES_TYPICAL: f64 = 32.0;

/// A line of `series.csv`, with its samples.
struct Series {
    name: String,
    kind: String,
    interval_ms: i64,
    faults: Vec<(i64, i64)>,
    samples: Vec<(i64, f64)>,
}

/// An event of a method: its begin, its kind then, and its kind at its end.
struct Found {
    at_ms: i64,
    kind: &'static str,
    last_kind: &'static str,
}

/// The result of a method on one series.
#[derive(Default)]
struct Run {
    found: Vec<Found>,
    judged_since_ms: i64,
    bytes: usize,
    seconds: f64,
}

type Method = fn(&Series) -> Run;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(folder) = arguments.first() else {
        eprintln!("usage: anomaly FOLDER [tuning|published] [--each]");
        return;
    };
    let half = arguments.get(1).map_or("tuning", String::as_str);
    let each = arguments.iter().any(|argument| argument == "--each");
    let series = read(Path::new(folder), half);
    println!("half {half}: {} files", series.len());

    let methods: [(&str, Method); 4] = [
        ("ledge", |series| detector(series, Pace::ALARMS_A_WEEK)),
        ("ledge, at the rate of each series of a box", |series| detector(series, Pace::ALARMS_A_WEEK / SERIES_TYPICAL)),
        ("mean and 3 standard deviations", three_sigma),
        ("EWMA and 4 deviations", ewma),
    ];
    for (name, method) in methods {
        report(name, &series, method, each && name == "ledge");
    }
    report_forecasts(&series);
}

/// FNV-1a: the half of a name never changes. The parts of one origin ("box0_", "cgm_") are split, too.
fn is_tuning(name: &str) -> bool {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (hash >> 20).is_multiple_of(2)
}

fn read(folder: &Path, half: &str) -> Vec<Series> {
    let mut list = csv::Reader::from_path(folder.join("series.csv")).expect("series.csv");
    let rows = list.deserialize::<(String, String, String, i64, String)>().map(|row| row.expect("a row of series.csv"));
    rows.filter(|row| half == "all" || is_tuning(&row.1) == (half == "tuning"))
        .map(|(file, name, kind, interval_ms, faults)| {
            let mut reader = csv::Reader::from_path(folder.join(file)).expect("a series");
            let samples = reader.deserialize::<(i64, f64)>().map(|row| row.expect("a sample")).collect();
            let span = |text: &str| {
                let (begin, end) = text.split_once('-').expect("a span");
                (begin.parse().expect("a time"), end.parse().expect("a time"))
            };
            let faults = faults.split(';').filter(|text| !text.is_empty()).map(span).collect();
            Series { name, kind, interval_ms, faults, samples }
        })
        .collect()
}

fn detector(series: &Series, alarms_a_week: f64) -> Run {
    let pace = Pace::new(series.interval_ms, alarms_a_week).expect("a pace");
    let mut detector = SeriesDetector::new(pace);
    let mut run = Run::default();
    let started = Instant::now();
    let mut last_ms = None;
    for (time_ms, value) in &series.samples {
        // As a daemon does it: each interval either has a sample, or tells that it has none.
        while let Some(at) = last_ms.map(|last: i64| last + series.interval_ms).filter(|at| at < time_ms) {
            if let Some(Change::Began(event)) = detector.observe_nothing(at) {
                run.found.push(Found { at_ms: at, kind: event.kind.as_str(), last_kind: event.kind.as_str() });
            }
            last_ms = Some(at);
        }
        last_ms = Some(*time_ms);
        let Ok(verdict) = detector.observe(*time_ms, *value) else { continue };
        if run.judged_since_ms == 0 && !matches!(verdict.state, SeriesState::Learning { .. }) {
            run.judged_since_ms = *time_ms;
        }
        match verdict.change {
            Some(Change::Began(event)) => {
                run.found.push(Found { at_ms: *time_ms, kind: event.kind.as_str(), last_kind: event.kind.as_str() });
            }
            Some(Change::Ended { event, .. }) => set_last_kind(&mut run, event.kind.as_str()),
            None => {}
        }
    }
    run.seconds = started.elapsed().as_secs_f64();
    if let Some(event) = detector.event() {
        set_last_kind(&mut run, event.kind.as_str());
    }
    run.bytes = detector.encode().len();
    run
}

fn set_last_kind(run: &mut Run, kind: &'static str) {
    if let Some(found) = run.found.last_mut() {
        found.last_kind = kind;
    }
}

/// Running mean and standard deviation of all samples.
fn three_sigma(series: &Series) -> Run {
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    baseline(series, |value| {
        let is_unusual = (value - mean).abs() > 3.0 * f64::sqrt(squares / f64::max(count, 1.0));
        count += 1.0;
        let before = mean;
        mean += (value - mean) / count;
        squares += (value - before) * (value - mean);
        is_unusual
    })
}

/// Exponentially weighted mean and deviation of the last twenty samples or so.
fn ewma(series: &Series) -> Run {
    let (mut mean, mut variance) = (0.0, 0.0);
    baseline(series, |value| {
        let off: f64 = value - mean;
        let is_unusual = off.abs() > 4.0 * f64::sqrt(variance);
        mean += 0.05 * off;
        variance = 0.95 * (variance + 0.05 * off * off);
        is_unusual
    })
}

/// Events of a rule without states, which end after three normal samples. Judged from when the detector judges.
fn baseline(series: &Series, mut is_unusual: impl FnMut(f64) -> bool) -> Run {
    let pace = Pace::new(series.interval_ms, Pace::ALARMS_A_WEEK).expect("a pace");
    let mut run = Run { bytes: 24, ..Run::default() };
    let started = Instant::now();
    let mut calm = 3;
    for (at, (time_ms, value)) in series.samples.iter().enumerate() {
        let unusual = is_unusual(*value);
        if at < pace.learning_samples() as usize {
            continue;
        }
        if run.judged_since_ms == 0 {
            run.judged_since_ms = *time_ms;
        }
        if unusual && calm >= 3 {
            run.found.push(Found { at_ms: *time_ms, kind: "unusual", last_kind: "unusual" });
        }
        calm = if unusual { 0 } else { calm + 1 };
    }
    run.seconds = started.elapsed().as_secs_f64();
    run
}

/// Figures of one kind of fault.
#[derive(Default)]
struct Row {
    faults: usize,
    found: usize,
    named: usize,
    named_last: usize,
    delays: Vec<f64>,
}

/// A season that is shifted is known by any name: it is a change of all.
fn is_name_of(fault: &str, kind: &str) -> bool {
    fault == kind || fault == "leak_1mb_a_minute" && kind == "trend"
}

fn report(name: &str, series: &[Series], method: Method, each: bool) {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let (mut alarms, mut weeks, mut samples, mut seconds, mut bytes) = (0, 0.0, 0, 0.0, 0);
    let (mut quiet, mut normal) = (0, 0);
    for one in series {
        let run = method(one);
        samples += one.samples.len();
        seconds += run.seconds;
        bytes = bytes.max(run.bytes);
        let last_ms = one.samples.last().map_or(0, |sample| sample.0);
        if one.kind == "none" {
            let judged = (last_ms - run.judged_since_ms) as f64 / WEEK_MS;
            alarms += run.found.len();
            weeks += judged;
            normal += 1;
            quiet += usize::from(run.found.len() as f64 <= judged.max(1.0));
            if each {
                let kinds: Vec<_> = run.found.iter().map(|found| found.kind).collect();
                let counts: BTreeMap<_, _> =
                    kinds.iter().map(|kind| (kind, kinds.iter().filter(|k| *k == kind).count())).collect();
                println!("  {:26} {:5.2} alarms a week, {counts:?}", one.name, kinds.len() as f64 / judged);
            }
            continue;
        }
        let row = rows.entry(&one.kind).or_default();
        let mut missed = Vec::new();
        for (begin, end) in &one.faults {
            row.faults += 1;
            let until = end + 10 * one.interval_ms;
            match run.found.iter().find(|found| (*begin..=until).contains(&found.at_ms)) {
                Some(found) => {
                    row.found += 1;
                    row.named += usize::from(is_name_of(&one.kind, found.kind));
                    row.named_last += usize::from(is_name_of(&one.kind, found.last_kind));
                    row.delays.push((found.at_ms - begin) as f64 / one.interval_ms as f64);
                }
                None => missed.push((begin - one.samples[0].0) / one.interval_ms),
            }
        }
        if each && !missed.is_empty() {
            println!("  {:26} missed {} at {missed:?}", one.name, one.kind);
        }
    }

    println!("\n{name}");
    println!(
        "| fault | of | found | % | named so at its begin | at its end | median delay, samples |\n| --- | --- | --- | --- | --- | --- | --- |"
    );
    let (mut all, mut all_found) = (0, 0);
    for (kind, row) in &mut rows {
        row.delays.sort_by(f64::total_cmp);
        let delay = row.delays.get(row.delays.len() / 2).copied().unwrap_or(f64::NAN);
        all += row.faults;
        all_found += row.found;
        println!(
            "| {kind} | {} | {} | {:.0} | {} | {} | {delay:.0} |",
            row.faults,
            row.found,
            100.0 * row.found as f64 / row.faults as f64,
            row.named,
            row.named_last
        );
    }
    println!("| all | {all} | {all_found} | {:.0} | | | |", 100.0 * all_found as f64 / all as f64);
    println!(
        "false alarms a week and series: {:.2} ({alarms} in {weeks:.0} weeks); {quiet} of {normal} series within one a week",
        f64::from(alarms as u32) / weeks
    );
    println!(
        "memory: {bytes} bytes a series at most; {:.2} us a sample ({samples} samples)",
        seconds * 1e6 / samples as f64
    );
}

/// The share of values in a band of 90 %, and the error in terms of that of "as now", at ten places of each
/// series without a fault.
fn report_forecasts(series: &[Series]) {
    println!("\nforecasts of 48 values with a band of 90 %");
    println!("| values ahead | in the band, % | mean error in terms of \"as now\" |\n| --- | --- | --- |");
    let mut sums: BTreeMap<usize, [f64; 4]> = BTreeMap::new();
    for one in series.iter().filter(|one| one.kind == "none") {
        let pace = Pace::new(one.interval_ms, Pace::ALARMS_A_WEEK).expect("a pace");
        let day = pace.learning_samples().max((86_400_000 / one.interval_ms) as u32) as usize;
        let stride = ((one.samples.len() - day) / 11).max(49);
        let mut of_one: BTreeMap<usize, [f64; 4]> = BTreeMap::new();
        let mut detector = SeriesDetector::new(pace);
        for (at, (time_ms, value)) in one.samples.iter().enumerate() {
            let _ = detector.observe(*time_ms, *value);
            if at <= day || !(at - day).is_multiple_of(stride) || at + 48 >= one.samples.len() {
                continue;
            }
            let Ok(points) = detector.forecast(48, 0.9) else { continue };
            for ahead in [1, 4, 12, 48] {
                let (point, actual) = (&points[ahead - 1], one.samples[at + ahead].1);
                let sums = of_one.entry(ahead).or_default();
                sums[0] += 1.0;
                sums[1] += f64::from(u8::from(actual >= point.low && actual <= point.high));
                sums[2] += (actual - point.value).abs();
                sums[3] += (actual - value).abs();
            }
        }
        for (ahead, found) in of_one {
            let sums = sums.entry(ahead).or_default();
            sums[0] += found[0];
            sums[1] += found[1];
            if found[3] > 0.0 {
                sums[2] += 1.0;
                sums[3] += (found[2] / found[3]).ln();
            }
        }
    }
    for (ahead, [count, inside, ratios, logarithms]) in sums {
        println!("| {ahead} | {:.1} | {:.2} |", 100.0 * inside / count, (logarithms / ratios).exp());
    }
}
