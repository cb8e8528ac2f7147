//! A view as lines of text that fit a terminal.

use std::collections::VecDeque;
use std::fmt::Write as _;

use super::view::{CoreView, ModelView, View};

/// The style of a line on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Title,
    Heading,
    Alarm,
}

/// A line, at most as wide as the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The text, without control characters.
    pub text: String,
    pub style: Style,
}

/// The size to fit into, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub width: usize,
    /// The number of lines; `usize::MAX` for no limit.
    pub height: usize,
}

/// Requests a second of all models, oldest first, for the sparkline of the header.
pub type History = VecDeque<f64>;

/// The lines of a view of the daemon at `url`.
pub fn lines(view: &View, url: &str, history: &History, size: TerminalSize) -> Vec<Line> {
    let mut lines = vec![(title(view, url), Style::Title), (service(view, history), Style::Plain)];
    lines.extend(cores(&view.cores, size.width).into_iter().map(|line| (line, Style::Plain)));
    if !view.temperatures_celsius.is_empty() {
        let sensors = view.temperatures_celsius.iter().map(|(sensor, celsius)| format!("{sensor} {celsius:.0} °C"));
        lines.push((format!("temperature  {}", sensors.collect::<Vec<_>>().join("  ")), Style::Plain));
    }
    lines.push((String::new(), Style::Plain));
    let height = size.height.saturating_sub(lines.len());
    lines.extend(table(&view.models, TerminalSize { width: size.width, height }));
    fit(lines, size)
}

/// The lines to show while the daemon does not answer.
pub fn lost(url: &str, reason: &str, size: TerminalSize) -> Vec<Line> {
    let line = |text: String, style| (text, style);
    let lines = vec![
        line(format!("ledge top  {url}"), Style::Title),
        line(String::new(), Style::Plain),
        line(reason.to_owned(), Style::Alarm),
        line("Trying again; Ctrl-C ends.".to_owned(), Style::Plain),
    ];
    fit(lines, size)
}

fn fit(lines: Vec<(String, Style)>, size: TerminalSize) -> Vec<Line> {
    let cut = |text: String| text.chars().filter(|c| !c.is_control()).take(size.width).collect::<String>();
    lines.into_iter().take(size.height).map(|(text, style)| Line { text: cut(text), style }).collect()
}

fn title(view: &View, url: &str) -> String {
    let mut title = format!("ledge {}", view.version.as_deref().unwrap_or("of an unknown version"));
    if let Some(uptime) = view.uptime_seconds {
        let _ = write!(title, "  up {}", uptime_text(uptime));
    }
    let _ = write!(title, "  {url}  over {:.1} s", view.interval_seconds);
    title
}

fn service(view: &View, history: &History) -> String {
    let process = view.process;
    format!(
        "service  CPU {}  memory {}  threads {}  requests {}/s  {}",
        percent(process.cpu_cores),
        process.memory_bytes.map_or("-".to_owned(), bytes),
        process.threads.map_or("-".to_owned(), |threads| threads.to_string()),
        number(Some(view.requests_per_second())),
        sparkline(history)
    )
    .trim_end()
    .to_owned()
}

/// The most cores that are drawn with one bar each. More cores share one line.
const CORE_BARS_MAX: usize = 8;
/// The width of a bar in characters.
const BAR_WIDTH: usize = 12;

fn cores(cores: &[CoreView], width: usize) -> Vec<String> {
    if cores.is_empty() {
        return Vec::new();
    }
    if cores.len() > CORE_BARS_MAX {
        let load = mean(cores.iter().filter_map(|core| core.load_ratio));
        let frequency = mean(cores.iter().filter_map(|core| core.frequency_hertz));
        let blocks: String = cores.iter().map(|core| core.load_ratio.map_or('?', block)).collect();
        return vec![format!("{} cores  {blocks}  {}  {}", cores.len(), percent(load), hertz(frequency))];
    }
    let cells: Vec<String> = cores
        .iter()
        .map(|core| {
            let bar = bar(core.load_ratio.unwrap_or_default());
            let (load, frequency) = (percent(core.load_ratio), hertz(core.frequency_hertz));
            format!("core {:<3}{bar} {load:>6} {frequency:>9}", core.core)
        })
        .collect();
    let widest = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(1) + 3;
    cells.chunks((width / widest).max(1)).map(|row| row.join("   ")).collect()
}

fn mean(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = figures.fold((0.0, 0.0), |(sum, count), figure| (sum + figure, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// A column of the table: its name, its width, its drop order (the highest is dropped first on a narrow terminal), and
/// its figure.
type Column = (&'static str, usize, u8, fn(&ModelView) -> String);

const COLUMNS: &[Column] = &[
    ("REQ/S", 8, 0, |model| number(Some(model.requests_per_second))),
    ("ELEM/S", 8, 4, |model| number(Some(model.elements_per_second))),
    ("FAIL/S", 7, 5, |model| number(Some(model.failures_per_second))),
    ("REFUSED/S", 10, 7, |model| number(Some(model.refusals_per_second))),
    ("P50", 8, 1, |model| time(model.p50_seconds)),
    ("P99", 8, 0, |model| time(model.p99_seconds)),
    ("QUEUE P99", 10, 3, |model| time(model.queue_p99_seconds)),
    ("WAITING", 8, 2, |model| model.queue_depth.to_string()),
    ("BATCH", 6, 8, |model| number(model.mean_batch)),
    ("CACHED", 7, 9, |model| percent(model.cache_hit_ratio)),
    ("CPU", 7, 6, |model| percent(model.cpu_cores)),
    ("INST", 5, 10, |model| model.instances.to_string()),
];

/// The width for names in characters. Columns are dropped until it is free.
const NAME_WIDTH_MIN: usize = 20;

fn table(models: &[ModelView], size: TerminalSize) -> Vec<(String, Style)> {
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    let taken = |columns: &[&Column]| columns.iter().map(|column| column.1).sum::<usize>();
    while taken(&columns) + NAME_WIDTH_MIN > size.width {
        let Some(last) = (0..columns.len()).max_by_key(|&index| columns.get(index).map(|column| column.2)) else {
            break;
        };
        columns.remove(last);
    }
    let longest = models.iter().map(|model| name(model).chars().count()).max().unwrap_or(0).max("MODEL".len());
    let width = longest.min(size.width.saturating_sub(taken(&columns)));
    let mut heading = format!("{:<width$}", "MODEL");
    for (title, cell, ..) in &columns {
        let _ = write!(heading, "{title:>cell$}");
    }
    let mut lines = vec![(heading, Style::Heading)];
    let rows = models.iter().map(|model| {
        let name: String = name(model).chars().take(width).collect();
        let mut line = format!("{name:<width$}");
        if model.runtime.is_none() {
            line += "  not loaded";
            return (line, Style::Alarm);
        }
        for (_, cell, _, figure) in &columns {
            let _ = write!(line, "{:>cell$}", figure(model));
        }
        (line, if model.ready { Style::Plain } else { Style::Alarm })
    });
    lines.extend(rows);
    if models.is_empty() {
        lines.push(("no models".to_owned(), Style::Plain));
    }
    if lines.len() > size.height && size.height > 1 {
        let hidden = lines.len() - (size.height - 1);
        lines.truncate(size.height - 1);
        lines.push((format!("and {hidden} more: the terminal is too low"), Style::Plain));
    }
    lines
}

fn name(model: &ModelView) -> String {
    format!("{} {}", model.model, model.version)
}

/// The short form of a figure, such as 0.05, 7.1, 123 or 12.3k.
fn number(figure: Option<f64>) -> String {
    match figure {
        None => "-".to_owned(),
        Some(figure) if figure.fract() == 0.0 && figure < 10_000.0 => format!("{figure:.0}"),
        Some(figure) if figure < 1.0 => format!("{figure:.2}"),
        Some(figure) if figure < 100.0 => format!("{figure:.1}"),
        Some(figure) if figure < 10_000.0 => format!("{figure:.0}"),
        Some(figure) if figure < 1e6 => format!("{:.1}k", figure / 1e3),
        Some(figure) => format!("{:.1}M", figure / 1e6),
    }
}

fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1e-3 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) if seconds < 0.1 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn hertz(frequency: Option<f64>) -> String {
    frequency.map_or_else(String::new, |hertz| format!("{:.2} GHz", hertz / 1e9))
}

fn bytes(bytes: u64) -> String {
    let mib = bytes >> 20;
    if mib < 1024 { format!("{mib} MiB") } else { format!("{}.{} GiB", mib >> 10, ((mib & 1023) * 10) >> 10) }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an uptime is positive and short")]
fn uptime_text(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let clock = format!("{hours:02}:{minutes:02}:{:02}", seconds % 60);
    if days == 0 { clock } else { format!("{days} d {clock}") }
}

fn bar(share: f64) -> String {
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 12")]
    let full = (share.clamp(0.0, 1.0) * BAR_WIDTH as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR_WIDTH.saturating_sub(full)))
}

/// Block characters by height.
const BLOCK_CHARACTERS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

fn block(share: f64) -> char {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7")]
    let index = (share.clamp(0.0, 1.0) * 7.0).round() as usize;
    BLOCK_CHARACTERS.get(index).copied().unwrap_or('█')
}

/// The figures as blocks; the highest figure is a full block.
fn sparkline(history: &History) -> String {
    let highest = history.iter().copied().fold(0.0, f64::max);
    history.iter().map(|figure| block(if highest > 0.0 { figure / highest } else { 0.0 })).collect()
}

#[cfg(test)]
mod tests;
