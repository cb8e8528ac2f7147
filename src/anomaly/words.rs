//! Events in plain English. Names come from the caller, numbers have four digits.

use crate::event::{Band, Direction, Unusual, UnusualKind};
use crate::monitor::MonitorChange;
use crate::pace::HOUR_MS;
use crate::trend::TimeToLimit;

/// One sentence on an event of a series.
pub fn text(name: &str, at_ms: i64, value: Option<f64>, band: Option<Band>, change: &MonitorChange) -> String {
    match change {
        MonitorChange::Began(event) | MonitorChange::Renamed(event) => began(name, at_ms, value, band, event),
        MonitorChange::Ended { event, is_new_normal: true } => {
            format!("{name}: what was unusual ({}) is taken as normal from now on", noun(event))
        }
        MonitorChange::Ended { event, is_new_normal: false } => {
            format!(
                "{name} is normal again; the {} lasted {}",
                noun(event),
                duration(at_ms.saturating_sub(event.since_ms))
            )
        }
        MonitorChange::LimitNear { limit, time, per_hour } => {
            format!("{name} reaches {} {}, at {} an hour", number(*limit), when(time), signed(*per_hour))
        }
        MonitorChange::LimitFar { limit } => format!("{name} no longer reaches {} soon", number(*limit)),
    }
}

fn began(name: &str, at_ms: i64, value: Option<f64>, band: Option<Band>, event: &Unusual) -> String {
    let is = value.map_or_else(|| format!("{name}:"), |value| format!("{name} is {}:", number(value)));
    let usual =
        band.map_or_else(String::new, |band| format!("; usual is {} to {}", number(band.low), number(band.high)));
    let up = event.direction != Direction::Down;
    match event.kind {
        UnusualKind::Spike => format!("{is} a spike{usual}"),
        UnusualKind::Dip => format!("{is} a dip{usual}"),
        UnusualKind::LevelShift => format!("{is} the level is {} than usual", if up { "higher" } else { "lower" }),
        UnusualKind::Trend => format!(
            "{is} it has been {} for {}, further than before",
            if up { "rising" } else { "falling" },
            duration(at_ms.saturating_sub(event.since_ms))
        ),
        UnusualKind::Spread => format!("{is} it varies {} than usual", if up { "more" } else { "less" }),
        UnusualKind::Stuck => format!("{is} the value does not change any more"),
        UnusualKind::Silence => {
            format!("{name} has had no samples for {}", duration(at_ms.saturating_sub(event.since_ms)))
        }
    }
}

fn noun(event: &Unusual) -> &'static str {
    match (event.kind, event.direction) {
        (UnusualKind::Spike, _) => "spike",
        (UnusualKind::Dip, _) => "dip",
        (UnusualKind::LevelShift, Direction::Down) => "lower level",
        (UnusualKind::LevelShift, _) => "higher level",
        (UnusualKind::Trend, Direction::Down) => "fall",
        (UnusualKind::Trend, _) => "rise",
        (UnusualKind::Spread, Direction::Down) => "smaller variation",
        (UnusualKind::Spread, _) => "larger variation",
        (UnusualKind::Stuck, _) => "standstill",
        (UnusualKind::Silence, _) => "silence",
    }
}

fn when(time: &TimeToLimit) -> String {
    match time.latest_hours {
        Some(latest) => {
            format!("in {} (between {} and {})", hours(time.hours), hours(time.earliest_hours), hours(latest))
        }
        None => format!("in {} ({} at the earliest)", hours(time.hours), hours(time.earliest_hours)),
    }
}

fn hours(hours: f64) -> String {
    duration((hours * HOUR_MS as f64) as i64)
}

fn duration(ms: i64) -> String {
    let minutes = ms.max(0) / 60_000;
    match minutes {
        0..=119 => format!("{minutes} min"),
        120..=2879 => format!("{} h", minutes / 60),
        _ => format!("{:.1} days", minutes as f64 / 1440.0),
    }
}

fn signed(value: f64) -> String {
    if value > 0.0 { format!("+{}", number(value)) } else { number(value) }
}

/// Four digits, with a prefix of a thousand, a million and so on.
fn number(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size >= 1e12 => (value / 1e12, " T"),
        size if size >= 1e9 => (value / 1e9, " G"),
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = if scaled == 0.0 { 0 } else { (3 - scaled.abs().log10().floor() as i32).clamp(0, 6) as usize };
    let text = format!("{scaled:.digits$}");
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short}{suffix}")
}
