//! An objective: how much of its error budget is left, how fast it burns, and the alerts by that.
//!
//! The rules are those of the Site Reliability Workbook of Google, chapter 5, "Multiwindow, Multi-Burn-Rate Alerts".

mod count_ring;

use std::sync::Arc;

use ledge_models::serving::usage::CallWatch;
use ledge_part::check::FindingStatus;
use serde::{Deserialize, Serialize};

use crate::config::ObjectiveConfig;
use crate::ledger::ObjectiveSums;
use count_ring::{CountRing, StoredRing, WindowCounts};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

/// The minutes that are kept: those of the longest window that is counted by minutes.
const MINUTES: usize = 6 * 60;

/// The least number of bad calls in the long window of an alert: one or two are no trend.
const BAD_CALLS_MIN: u64 = 3;

/// A window of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BurnWindow {
    Minutes(usize),
    Hours(usize),
}

/// An alert: the budget burns faster than `factor` in both windows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurnRule {
    pub factor: f64,
    pub long: BurnWindow,
    /// Ends the alert soon after the cause has ended.
    pub short: BurnWindow,
    pub status: FindingStatus,
    /// For people.
    pub windows: &'static str,
}

/// The worst first.
pub const RULES: [BurnRule; 3] = [
    BurnRule {
        factor: 14.4,
        long: BurnWindow::Minutes(60),
        short: BurnWindow::Minutes(5),
        status: FindingStatus::Fail,
        windows: "1 h and 5 min",
    },
    BurnRule {
        factor: 6.0,
        long: BurnWindow::Minutes(360),
        short: BurnWindow::Minutes(30),
        status: FindingStatus::Fail,
        windows: "6 h and 30 min",
    },
    BurnRule {
        factor: 1.0,
        long: BurnWindow::Hours(72),
        short: BurnWindow::Minutes(360),
        status: FindingStatus::Warn,
        windows: "3 d and 6 h",
    },
];

/// The windows whose burn rates are told, by their names.
pub const TOLD: [(&str, BurnWindow); 4] = [
    ("5m", BurnWindow::Minutes(5)),
    ("1h", BurnWindow::Minutes(60)),
    ("6h", BurnWindow::Minutes(360)),
    ("3d", BurnWindow::Hours(72)),
];

/// The quantity that an objective is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndicatorKind {
    Latency,
    Availability,
}

impl IndicatorKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Availability => "availability",
        }
    }
}

/// One quantity of one objective, and its counts.
#[derive(Debug)]
pub struct Indicator {
    pub config: ObjectiveConfig,
    pub kind: IndicatorKind,
    pub watch: Arc<CallWatch>,
    /// The share of calls that may be bad.
    allowed: f64,
    minutes: CountRing,
    hours: CountRing,
}

/// The counts of an indicator as they are stored, and the calls that they are of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredIndicator {
    name: String,
    kind: IndicatorKind,
    calls: String,
    minutes: StoredRing,
    hours: StoredRing,
}

/// The name of the finding about one quantity of an objective.
pub fn finding_name(objective: &str, kind: &str) -> String {
    format!("objective {objective} {kind}")
}

impl Indicator {
    /// The indicators of an objective.
    pub fn of(config: &ObjectiveConfig) -> Vec<Self> {
        let latency = config.p99().map(|most| (IndicatorKind::Latency, Some(most), 0.01));
        let availability =
            config.availability.map(|percent| (IndicatorKind::Availability, None, (100.0 - percent.get()) / 100.0));
        let indicator = |(kind, time_max, allowed)| Self {
            config: config.clone(),
            kind,
            watch: Arc::new(CallWatch::new(
                config.caller.as_ref().map(|caller| caller.0.clone()),
                config.model.clone(),
                time_max,
            )),
            allowed,
            minutes: CountRing::new(MINUTE_MS, MINUTES),
            hours: CountRing::new(HOUR_MS, usize::try_from(config.days).unwrap_or(90) * 24),
        };
        latency.into_iter().chain(availability).map(indicator).collect()
    }

    /// Counts calls at a time, in milliseconds since the Unix epoch. Called also without calls: windows move on.
    pub fn count(&mut self, now_ms: u64, good: u64, bad: u64) {
        self.minutes.add(now_ms, good, bad);
        self.hours.add(now_ms, good, bad);
    }

    /// The target, with no calls.
    pub fn target(&self) -> ObjectiveSums {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a million")]
        let allowed_ppm = (self.allowed * 1e6).round() as u32;
        let time = self.config.p99().filter(|_| self.kind == IndicatorKind::Latency);
        let time_max_us = time.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        ObjectiveSums { allowed_ppm, time_max_us, ..ObjectiveSums::default() }
    }

    /// The name of its finding.
    pub fn finding(&self) -> String {
        finding_name(self.config.name.as_str(), self.kind.as_str())
    }

    /// Keeps the ages of the counts when the clock is set.
    pub fn shift(&mut self, by_ms: i64) {
        self.minutes.shift(by_ms);
        self.hours.shift(by_ms);
    }

    fn counts(&self, window: BurnWindow) -> WindowCounts {
        match window {
            BurnWindow::Minutes(minutes) => self.minutes.sum(minutes),
            BurnWindow::Hours(hours) => self.hours.sum(hours),
        }
    }

    /// The calls of all days of the objective.
    pub fn all(&self) -> WindowCounts {
        self.hours.sum(usize::MAX)
    }

    /// The share of the error budget that is left: 1 is all, below 0 it is overdrawn.
    pub fn budget_left(&self) -> f64 {
        1.0 - self.rate(self.all())
    }

    /// The burn rate of a window: 1 uses up the budget exactly in the days of the objective.
    pub fn burn_rate(&self, window: BurnWindow) -> f64 {
        self.rate(self.counts(window))
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    fn rate(&self, counts: WindowCounts) -> f64 {
        if counts.bad == 0 { 0.0 } else { counts.bad as f64 / counts.total() as f64 / self.allowed }
    }

    /// The worst rule that fires.
    pub fn alert(&self) -> Option<&'static BurnRule> {
        let fires = |rule: &&BurnRule| {
            let long = self.counts(rule.long);
            long.total() >= self.config.min_calls
                && long.bad >= BAD_CALLS_MIN
                && self.rate(long) > rule.factor
                && self.burn_rate(rule.short) > rule.factor
        };
        RULES.iter().find(fires)
    }

    /// The calls that it counts, in words: counts of others say nothing about them.
    fn calls(&self) -> String {
        let caller = self.config.caller.as_ref().map(ToString::to_string).unwrap_or_default();
        let model = self.config.model.as_ref().map_or("", ledge_base::names::ModelName::as_str);
        let time = self.config.p99().filter(|_| self.kind == IndicatorKind::Latency).map_or(0, |time| time.as_micros());
        format!("{caller}\n{model}\n{time}")
    }

    pub fn stored(&self) -> StoredIndicator {
        StoredIndicator {
            name: self.config.name.to_string(),
            kind: self.kind,
            calls: self.calls(),
            minutes: self.minutes.stored(),
            hours: self.hours.stored(),
        }
    }

    /// Takes over the counts of an earlier run, where they are of the same calls.
    pub fn restore(&mut self, stored: &[StoredIndicator]) {
        let calls = self.calls();
        let is_own = |stored: &&StoredIndicator| {
            stored.name == self.config.name.as_str() && stored.kind == self.kind && stored.calls == calls
        };
        if let Some(own) = stored.iter().find(is_own) {
            self.minutes.restore(&own.minutes);
            self.hours.restore(&own.hours);
        }
    }
}

#[cfg(test)]
mod tests;
