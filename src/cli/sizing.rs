//! `ledge sizing`: the box that a load needs, before there is one.

use std::io::Write as _;

use anyhow::anyhow;
use clap::Args;
use ledge_capacity::sizing::{self, Load, REFERENCE_PROCESSOR, Reference, Sizing};
use serde_json::json;

use super::{Exit, GlobalArgs, Output};

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
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge sizing --cameras 12 --documents 300/day
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

/// Runs the verb.
pub fn run(_: &GlobalArgs, args: &SizingArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let (pages_per_day, peak) = match args.documents {
        None => (0.0, args.peak),
        Some(PageRate::Day(pages)) => (pages, args.peak),
        Some(PageRate::Hour(pages)) => (pages * 24.0, 1.0),
    };
    let load = Load {
        cameras: args.cameras.into(),
        pictures_per_s: args.pictures,
        look_share: f64::from(args.moving) / 100.0,
        pages_per_day,
        peak,
        calls: args.calls.clone(),
        slowness: args.slowness,
    };
    let sizing = sizing::size(&load, &Reference::shipped()).map_err(|reason| anyhow!(reason))?;
    if args.json {
        let document = json!({ "sizing": sizing, "reference_processor": REFERENCE_PROCESSOR, "peak": peak, "slowness": load.slowness });
        writeln!(out, "{document:#}")?;
        return Ok(Exit::Success);
    }
    for line in lines(&sizing, &load) {
        writeln!(out, "{line}")?;
    }
    Ok(Exit::Success)
}

fn lines(sizing: &Sizing, load: &Load) -> Vec<String> {
    let mut lines = Vec::new();
    let memory = sizing.memory_bytes / 1e9;
    let count = |cores: f64| if cores > 1.0 { format!("{cores} cores") } else { "1 core".to_owned() };
    lines.push(match (sizing.cores, sizing.sold) {
        (Some(cores), Some((of, gigabytes))) => {
            format!("{} and {memory:.1} GB of memory: a box with {of} cores and {gigabytes} GB", count(cores))
        }
        (Some(cores), None) => {
            format!("{cores} cores and {memory:.1} GB of memory: larger than usual boxes; take several")
        }
        (None, _) => "No number of cores of one box is enough: take several boxes".to_owned(),
    });
    let first = sizing.first.map_or("", |first| first.title());
    lines.push(format!("Busy in the busiest time: {:.2} cores. What runs out first is {first}", sizing.busy_cores));
    lines.push(format!(
        "Assumed: cameras with {} pictures a second of 640x480, {:.0} % of them looked at; the busiest hour of documents {} \
         times the mean hour of a day; 99 of 100 answers within 4 times their own time and 20 ms",
        load.pictures_per_s,
        load.look_share * 100.0,
        load.peak
    ));
    lines.push(format!("Figures of: {REFERENCE_PROCESSOR}; times {} for this box", load.slowness));
    if sizing.is_estimate {
        lines.push("The time of a page of a document is an estimate: 1 s of CPU time".to_owned());
    }
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
