//! `ledge top`: shows the activity of a running daemon, refreshed at an interval.

mod figures;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{FormattedDuration, HumanBytes};
use ledge_egress::DaemonAddress;
use rustix::termios;
use serde_json::{Value, json};

use super::features::daemon::message;
use super::server::{self, ServerArgs};
use super::stop_signals::StopSignals;
use super::{Exit, GlobalArgs, Output, block_on};
use figures::MetricsScrape;

/// The arguments of `ledge top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// The refresh interval in seconds. Every figure covers one interval.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// Write one view and exit. This is the default when the output is not a terminal.
    #[arg(long)]
    pub once: bool,
    /// Write JSON: one line with one object for each interval, in base units.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge top                                   the server of this box; Ctrl-C ends
  ledge top --url https://box:8443 --key-file ~/box.key --interval 5
  ledge top --once --json | jq '.models[] | {model, p99_seconds}'";

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 0.5".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("expected 0.1 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &TopArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let address = args.server.address(globals)?;
    let live = !args.once && !args.json && io::stdout().is_terminal();
    block_on(async {
        if !live {
            return watch(&address, args, live, out).await;
        }
        let mut stop = StopSignals::new()?;
        tokio::select! {
            result = watch(&address, args, live, out) => result,
            // No mode of the terminal was changed. The next prompt begins on a new line.
            () = stop.requested() => Ok(writeln!(out).map(|()| Exit::Success)?),
        }
    })?
}

/// Writes a view for each interval; `live` is over the one before, on a terminal.
async fn watch(address: &DaemonAddress, args: &TopArgs, live: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let once = args.once || !(args.json || live);
    if live {
        // The screen scrolls up, so that its content is kept.
        write!(out, "{}", "\n".repeat(terminal_size().1))?;
    }
    let mut older: Option<MetricsScrape> = None;
    loop {
        let newer = match scrape(address).await {
            Err(error) if once => return Err(error),
            newer => newer,
        };
        let shown = match &newer {
            // The first view on a terminal shows only the state.
            Ok(newer) => older.as_ref().or(live.then_some(newer)).map(|older| Ok(newer.since(older))),
            Err(error) => Some(Err(format!("{error:#}"))),
        };
        match shown {
            None => {}
            Some(Ok(view)) if args.json => writeln!(out, "{view}")?,
            Some(Err(error)) if args.json => writeln!(out, "{}", json!({ "error": error }))?,
            Some(shown) => {
                let (width, height) = terminal_size();
                let lines = match shown {
                    Ok(view) => lines(&view, &address.url, width),
                    Err(error) => vec![error, "Trying again; Ctrl-C ends.".to_owned()],
                };
                let lines = fit(lines, width, if live { height - 1 } else { usize::MAX });
                write!(out, "{}", if live { frame(&lines) } else { lines.join("\n") + "\n" })?;
            }
        }
        out.flush()?;
        if once && older.is_some() {
            return Ok(Exit::Success);
        }
        older = newer.ok();
        tokio::time::sleep(args.interval).await;
    }
}

async fn scrape(address: &DaemonAddress) -> anyhow::Result<MetricsScrape> {
    let url = &address.url;
    let answer = server::get(address, "/metrics").await?;
    if answer.status != 200 {
        bail!("{url} refuses the metrics: {}", message(answer.status, &answer.body));
    }
    MetricsScrape::parse(std::str::from_utf8(&answer.body).context("the metrics are not UTF-8 text")?, Instant::now())
}

/// The columns and rows of the terminal. A pipe has room for all columns.
fn terminal_size() -> (usize, usize) {
    match termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        Ok(_) => (80, 24),
        Err(_) => (120, 24),
    }
}

/// The lines over those of the last interval. Each clears the rest of its row, and the last one the rows below.
fn frame(lines: &[String]) -> String {
    format!("\x1b[H{}\x1b[K\n\x1b[J", lines.join("\x1b[K\n"))
}

/// Lines without control characters, of which none is wider or lower than the terminal.
fn fit(mut lines: Vec<String>, width: usize, height: usize) -> Vec<String> {
    let hidden = (lines.len() + 1).saturating_sub(height);
    if let Some(last) = lines.get_mut(..height).filter(|_| hidden > 1).and_then(|seen| seen.last_mut()) {
        *last = format!("and {hidden} more: the terminal is too low");
    }
    lines.truncate(height);
    lines.iter().map(|line| line.chars().filter(|c| !c.is_control()).take(width).collect()).collect()
}

/// A view as lines.
fn lines(view: &Value, url: &str, width: usize) -> Vec<String> {
    let (process, list) = (&view["process"], |key: &str| view[key].as_array().map_or(&[][..], Vec::as_slice));
    let loads: Vec<f64> = list("cores").iter().filter_map(|core| core["load_ratio"].as_f64()).collect();
    let of_all: f64 = list("models").iter().filter_map(|model| model["requests_per_second"].as_f64()).sum();
    let uptime = |seconds| FormattedDuration(Duration::try_from_secs_f64(seconds).unwrap_or_default()).to_string();
    let mut lines = vec![
        format!(
            "ledge {}  up {}  {url}  over {:.1} s",
            view["version"].as_str().unwrap_or("of an unknown version"),
            text(view, "uptime_seconds", uptime),
            view["interval_seconds"].as_f64().unwrap_or(0.0)
        ),
        format!(
            "service  CPU {}  memory {}  threads {}  requests {}/s",
            text(process, "cpu_cores", percent),
            process["memory_bytes"].as_u64().map_or("-".to_owned(), |bytes| HumanBytes(bytes).to_string()),
            text(process, "threads", number),
            number(of_all)
        ),
        format!(
            "cores  {:.1} of {} busy: {}",
            loads.iter().sum::<f64>(),
            loads.len(),
            loads.iter().map(|load| percent(*load)).collect::<Vec<_>>().join("  ")
        ),
    ];
    let sensors = view["temperatures_celsius"].as_object().into_iter().flatten();
    let sensors: Vec<_> =
        sensors.map(|(sensor, celsius)| format!("{sensor} {:.0} °C", celsius.as_f64().unwrap_or(0.0))).collect();
    if !sensors.is_empty() {
        lines.push(format!("temperature  {}", sensors.join("  ")));
    }
    lines.push(String::new());
    lines.extend(table(list("models"), width));
    lines
}

/// A column of the table: its name, its width, its figure, and the form of the figure.
type TopColumn = (&'static str, usize, &'static str, fn(f64) -> String);

/// The columns; a narrow terminal shows only the first ones.
const COLUMNS: &[TopColumn] = &[
    ("REQ/S", 8, "requests_per_second", number),
    ("P50", 9, "p50_seconds", time),
    ("P99", 9, "p99_seconds", time),
    ("WAITING", 8, "queue_depth", number),
    ("QUEUE P99", 10, "queue_p99_seconds", time),
    ("ELEM/S", 8, "elements_per_second", number),
    ("FAIL/S", 7, "failures_per_second", number),
    ("CPU", 7, "cpu_cores", percent),
    ("REFUSED/S", 10, "refusals_per_second", number),
    ("BATCH", 6, "mean_batch", number),
    ("CACHED", 7, "cache_hit_ratio", percent),
    ("INST", 5, "instances", number),
];

/// The width that columns leave for names, in characters.
const NAME_WIDTH: usize = 20;

fn table(models: &[Value], width: usize) -> Vec<String> {
    let mut free = width.saturating_sub(NAME_WIDTH);
    let fits = |(_, cell, ..): &&TopColumn| free.checked_sub(*cell).inspect(|left| free = *left).is_some();
    let columns: Vec<&TopColumn> = COLUMNS.iter().take_while(fits).collect();
    let name = |model: &Value| [&model["model"], &model["version"]].map(|part| part.as_str().unwrap_or("?")).join(" ");
    let longest = models.iter().map(|model| name(model).chars().count()).max().unwrap_or(0).max("MODEL".len());
    let width = longest.min(NAME_WIDTH + free);
    let row = |name: &str, cell: &dyn Fn(&TopColumn) -> String| {
        let cells = columns.iter().map(|column| format!("{:>width$}", cell(column), width = column.1));
        format!("{name:<width$.width$}{}", cells.collect::<String>())
    };
    let rows = models.iter().map(|model| match (model["runtime"].is_null(), model["ready"] == false) {
        (true, _) => format!("{}  not loaded", name(model)),
        (false, true) => format!("{}  not ready", name(model)),
        (false, false) => row(&name(model), &|(.., figure, form)| text(model, figure, *form)),
    });
    let heading = row("MODEL", &|(title, ..)| (*title).to_owned());
    let none = models.is_empty().then(|| "no models".to_owned());
    [heading].into_iter().chain(rows).chain(none).collect()
}

/// A figure of a view; a minus where it is not known.
fn text(of: &Value, figure: &str, form: fn(f64) -> String) -> String {
    of[figure].as_f64().map_or("-".to_owned(), form)
}

fn number(figure: f64) -> String {
    let digits = if figure.fract() == 0.0 || figure >= 100.0 { 0 } else { 1 + usize::from(figure < 1.0) };
    format!("{figure:.digits$}")
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn time(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.0} us", seconds * 1e6),
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model(name: &str) -> Value {
        json!({
            "model": name, "version": "3", "ready": true, "runtime": "onnxruntime", "instances": 2,
            "requests_per_second": 120.0, "failures_per_second": 0.25, "refusals_per_second": 0.0,
            "elements_per_second": 480.0, "p50_seconds": 0.000_25, "p99_seconds": 0.0421, "queue_p99_seconds": 1.5,
            "mean_batch": 3.97, "cache_hit_ratio": null, "queue_depth": 5, "cpu_cores": 1.42,
        })
    }

    fn view(models: &[Value]) -> Value {
        let core = |core| json!({"core": core, "load_ratio": 0.5, "frequency_hertz": 2.6e9});
        json!({
            "version": "1.2.3", "uptime_seconds": 90_061.5, "interval_seconds": 1.0, "models": models,
            "process": {"cpu_cores": 1.5, "memory_bytes": 125_829_120, "threads": 14},
            "cores": [core(0), core(1)], "temperatures_celsius": {"coretemp Package id 0": 54.4},
        })
    }

    #[test]
    fn a_wide_terminal_shows_everything() {
        let expected = "\
ledge 1.2.3  up 1d 01:01:01  unix:ledge.sock  over 1.0 s
service  CPU 150 %  memory 120.00 MiB  threads 14  requests 360/s
cores  1.0 of 2 busy: 50 %  50 %
temperature  coretemp Package id 0 54 °C

MODEL      REQ/S      P50      P99 WAITING QUEUE P99  ELEM/S FAIL/S    CPU REFUSED/S BATCH CACHED INST
broken 3  not loaded
resnet 3     120   250 us  42.1 ms       5     1.5 s     480   0.25  142 %         0   4.0      -    2
stuck 3  not ready";
        let [mut broken, mut stuck] = ["broken", "stuck"].map(model);
        (broken["runtime"], stuck["ready"]) = (Value::Null, json!(false));
        let view = view(&[broken, model("resnet"), stuck]);
        assert_eq!(lines(&view, "unix:ledge.sock", 120).join("\n"), expected);
    }

    #[test]
    fn a_narrow_terminal_keeps_the_figures_that_matter_most() {
        let lines = lines(&view(&[model("efficientnet_lite0")]), "unix:ledge.sock", 60);
        let [.., heading, row] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(heading.split_whitespace().collect::<Vec<_>>(), ["MODEL", "REQ/S", "P50", "P99", "WAITING"]);
        assert!(row.starts_with("efficientnet_lite0 3 ") && row.ends_with("42.1 ms       5"), "{row}");
    }

    #[test]
    fn a_low_terminal_says_what_it_hides() {
        let lines = lines(&view(&vec![model("m"); 30]), "", 120);
        let fitting = fit(lines, 120, 10);
        assert_eq!((fitting.len(), &*fitting[9]), (10, "and 27 more: the terminal is too low"));
    }

    #[test]
    fn a_frame_clears_what_was_behind_its_lines_and_below_and_changes_no_mode() {
        assert_eq!(frame(&["ledge".to_owned(), "a model".to_owned()]), "\x1b[Hledge\x1b[K\na model\x1b[K\n\x1b[J");
    }

    #[test]
    fn figures_have_the_digits_that_are_worth_it() {
        assert_eq!([0.0, 0.05, 7.125, 99.0, 1234.5].map(number), ["0", "0.05", "7.1", "99", "1234"]);
        assert_eq!([25e-6, 0.0031, 0.25, 2.5].map(time), ["25 us", "3.1 ms", "250.0 ms", "2.5 s"]);
    }

    #[test]
    fn an_interval_is_neither_a_busy_loop_nor_for_ever() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "NaN", "inf", "1e9", "soon"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_wider_or_higher_than_the_terminal(
            width in 0_usize..200, height in 0_usize..60, name in ".{0,40}", reason in ".{0,200}", count in 0_usize..40,
        ) {
            for lines in [lines(&view(&vec![model(&name); count]), "http://box:8000", width), vec![reason; 2]] {
                let fitting = fit(lines, width, height);
                prop_assert!(fitting.len() <= height);
                for line in fitting {
                    prop_assert!(line.chars().count() <= width && !line.contains(char::is_control), "{line:?}");
                }
            }
        }
    }
}
