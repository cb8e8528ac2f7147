//! `ledge sizing`: the box that a load needs, before there is one.

use std::io::Write as _;

use anyhow::{Context as _, anyhow};
use clap::Args;
use ledge_base::telemetry::process;
use ledge_base::telemetry::system::MachineMemory;
use ledge_capacity::headroom::Resource;
use ledge_capacity::report;
use ledge_capacity::sizing::{self, Fit, Load, REFERENCE_PROCESSOR, Reference, SYSTEM_BYTES, Sizing};
use serde_json::json;

use super::{Exit, GlobalArgs, Output};

mod here;

/// The arguments of `ledge sizing`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SizingArgs {
    /// The number of cameras.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cameras: u16,
    /// Pictures a second of each camera.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = positive)]
    pub pictures: f64,
    /// The share of the pictures that show something new, in per cent: the model is asked about these.
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub moving: u8,
    /// Pages of documents: 300/day, or 40/h for the busiest hour.
    #[arg(long, value_name = "N/day", value_parser = pages)]
    pub documents: Option<PageRate>,
    /// The busiest hour of documents, as a multiple of the mean hour of a day. Without effect on N/h.
    #[arg(long, value_name = "FACTOR", default_value_t = 3.0, value_parser = positive)]
    pub peak: f64,
    /// Calls a second of a model, in the busiest minute. Can be repeated.
    #[arg(long, value_name = "MODEL=N/s", value_parser = calls)]
    pub calls: Vec<(String, f64)>,
    /// The CPU time of a unit of work on the processor of the box, as a multiple of that on the reference processor: 2
    /// for one that is half as fast.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    pub slowness: f64,
    /// Measure this machine, with the shipped models of its repository, a second each. Stop the server first.
    #[arg(long, conflicts_with = "slowness")]
    pub here: bool,
    /// The number of cores of a box, to see whether the load fits on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub cores: Option<u16>,
    /// The memory of that box, in GB.
    #[arg(long, value_name = "GB", value_parser = positive)]
    pub memory: Option<f64>,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge sizing --cameras 12 --documents 300/day
  ledge sizing --cameras 12 --documents 300/day --cores 4 --memory 8
  ledge sizing --cameras 12 --here
  ledge sizing --calls wine_mlp=500/s --calls coco_detector=20/s --slowness 2";

/// Pages of documents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PageRate {
    Day(f64),
    /// In the busiest hour.
    Hour(f64),
}

/// A number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (1e-6..=1e6).contains(number));
    number.ok_or_else(|| "expected a number above 0, at most 1000000".to_owned())
}

/// `300/day`, `40/h`.
fn pages(text: &str) -> Result<PageRate, String> {
    let wrong = || "expected pages a day or an hour, such as 300/day or 40/h".to_owned();
    match text.split_once('/').ok_or_else(wrong)? {
        (number, "day") => Ok(PageRate::Day(positive(number)?)),
        (number, "h") => Ok(PageRate::Hour(positive(number)?)),
        _ => Err(wrong()),
    }
}

/// `wine_mlp=50/s`.
fn calls(text: &str) -> Result<(String, f64), String> {
    let parts = text.split_once('=').and_then(|(model, rate)| Some((model, rate.strip_suffix("/s")?)));
    let (model, rate) =
        parts.ok_or_else(|| "expected a model and its calls a second, such as wine_mlp=50/s".to_owned())?;
    Ok((model.to_owned(), positive(rate)?))
}

/// Runs the verb. It fails where the load does not fit on the box that was given.
pub fn run(globals: &GlobalArgs, args: &SizingArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let (pages_per_day, peak) = match args.documents {
        None => (0.0, args.peak),
        Some(PageRate::Day(pages)) => (pages, args.peak),
        Some(PageRate::Hour(pages)) => (pages * 24.0, 1.0),
    };
    let reference = Reference::shipped();
    let measured = if args.here { here::measure(&globals.load_config()?, &reference)? } else { Vec::new() };
    let load = Load {
        cameras: args.cameras.into(),
        pictures_per_s: args.pictures,
        look_share: f64::from(args.moving) / 100.0,
        pages_per_day,
        peak,
        calls: args.calls.clone(),
        slowness: if args.here { here::slowness(&measured) } else { args.slowness },
    };
    let sizing = sizing::size(&load, &reference).map_err(|reason| anyhow!(reason))?;
    let given = args.given(args.here)?;
    let fit = given.map(|(cores, memory)| sizing::fit(&load, &reference, cores, memory)).transpose();
    let fit = fit.map_err(|reason| anyhow!(reason))?;
    if args.json {
        let document = json!({
            "sizing": sizing, "fit": fit, "reference_processor": REFERENCE_PROCESSOR, "peak": peak,
            "slowness": load.slowness, "measured": measured,
        });
        writeln!(out, "{document:#}")?;
    } else {
        let measured = measured.iter().map(here::MeasuredRun::line);
        let fit_line = given.zip(fit.as_ref()).map(|(of, fit)| fit_line(of, fit));
        for line in lines(&sizing, &load, fit_line).into_iter().chain(measured) {
            writeln!(out, "{line}")?;
        }
    }
    let is_too_much = fit.is_some_and(|fit| fit.memory_ratio > 1.0 || fit.growth.is_some_and(|growth| growth < 1.0));
    Ok(if is_too_much { Exit::Failure } else { Exit::Success })
}

impl SizingArgs {
    /// The cores and bytes of memory of the box that the load is compared with; those of this machine where nothing
    /// else was given and `is_here`.
    fn given(&self, is_here: bool) -> anyhow::Result<Option<(f64, f64)>> {
        if !is_here && self.cores.is_none() && self.memory.is_none() {
            return Ok(None);
        }
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
        let own_bytes = if is_here { MachineMemory::limit_of_process().map(|bytes| bytes as f64) } else { None };
        #[expect(clippy::cast_precision_loss, reason = "cores are few")]
        let own_cores = is_here.then(|| process::usable_cores() as f64);
        let cores = self.cores.map(f64::from).or(own_cores).context("--memory needs --cores, or --here")?;
        let bytes = self.memory.map(|gigabytes| gigabytes * 1e9).or(own_bytes);
        Ok(Some((cores, bytes.context("--cores needs --memory, or --here")?)))
    }
}

fn count_of(cores: f64) -> String {
    if cores > 1.0 { format!("{cores} cores") } else { "1 core".to_owned() }
}

fn fit_line((cores, bytes): (f64, f64), fit: &Fit) -> String {
    let size = format!("A box with {} and {:.1} GB of memory", count_of(cores), bytes / 1e9);
    let first = fit.first.map_or("", Resource::title);
    match fit.growth {
        _ if fit.memory_ratio > 1.0 => format!("{size} does not take this load: it has too little memory"),
        Some(growth) if growth < 1.0 => format!("{size} takes {:.0} % of this load: {first} runs out", growth * 100.0),
        Some(growth) => format!("{size} takes {} times this load; then {first} runs out", report::rounded(growth)),
        None => format!("{size} has no load"),
    }
}

fn lines(sizing: &Sizing, load: &Load, fit: Option<String>) -> Vec<String> {
    let mut lines: Vec<String> = fit.into_iter().collect();
    let memory = sizing.memory_bytes / 1e9;
    lines.push(match (sizing.cores, sizing.sold) {
        (Some(cores), Some((of, gigabytes))) => {
            let needed = count_of(cores);
            format!("Needed: {needed} and {memory:.1} GB of memory, such as a box with {of} cores and {gigabytes} GB")
        }
        (Some(cores), None) => {
            format!("Needed: {cores} cores and {memory:.1} GB of memory, more than usual boxes have; take several")
        }
        (None, _) => "No number of cores of one box is enough: take several boxes".to_owned(),
    });
    let first = sizing.first.map_or("", Resource::title);
    lines.push(format!("Busy in the busiest time: {:.2} cores. First, {first} runs out", sizing.busy_cores));
    lines.push(format!(
        "Assumed: cameras with {} pictures a second of 640x480, {:.0} % of them looked at; the busiest hour of documents {} \
         times the mean hour of a day; 99 of 100 answers within 4 times their own time and 20 ms; {:.1} GB of memory for the \
         operating system",
        load.pictures_per_s,
        load.look_share * 100.0,
        load.peak,
        SYSTEM_BYTES / 1e9
    ));
    lines.push(format!("Figures of: {REFERENCE_PROCESSOR}; CPU times {:.2} times as long on this box", load.slowness));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_their_units() {
        assert_eq!(pages("300/day"), Ok(PageRate::Day(300.0)));
        assert_eq!(pages("40/h"), Ok(PageRate::Hour(40.0)));
        assert_eq!(calls("wine_mlp=50/s"), Ok(("wine_mlp".to_owned(), 50.0)));
        for wrong in ["300", "300/week", "-1/day", "nan/day", "0/h"] {
            assert!(pages(wrong).is_err(), "{wrong}");
        }
        for wrong in ["wine_mlp", "wine_mlp=50", "wine_mlp=x/s", "wine_mlp=inf/s"] {
            assert!(calls(wrong).is_err(), "{wrong}");
        }
    }
}
