//! Unusual figures of a minute: of the box, and of each model. The detectors are those of `ledge-anomaly`.
//!
//! The detectors learn for half a day before they judge, and this part reports what they say after a week, because shops
//! have nights and weekends. A limit that is near, such as a full disk, is reported after a day. The state of the detectors
//! is a file in the folder of the history, written every six hours, with each event and at the end, so that a crash costs
//! at most six hours of learning.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ledge_anomaly::{Limit, MonitorChange, MonitorEvent, MonitorSet, MonitorState, Pace, SeriesState};
use ledge_base::clock;
use ledge_base::durable;
use ledge_base::stored_form::{self, StoredFormError};
use ledge_part::check::Finding;
use serde::{Deserialize, Serialize};

use crate::config::HistoryConfig;
use crate::readings::{BOX_COLUMNS, FigureSample};
use crate::recorder::EndedSlot;
use crate::series::{SeriesName, USAGE_COLUMNS};

const FILE: &str = "unusual.state";
const MAGIC: &[u8; 4] = b"LUN1";

/// More than the largest file: 256 series of about 4.7 KB.
const FILE_BYTES_MAX: u64 = 4 << 20;

const MINUTE_MS: i64 = 60_000;
/// The file of a box with few models is 45 KB: 180 KB of writes a day.
const WRITE_INTERVAL_MS: u64 = 6 * 3_600_000;

/// A model that nobody calls for so long is forgotten.
const IDLE_MODEL_MS: u64 = 14 * 24 * 3_600_000;

/// The most models that are watched.
const MODELS_MAX: usize = 48;

/// The samples of a series before its events are reported: a week of minutes.
const LEARNING_SAMPLES: u32 = 7 * 1440;

/// The owner's rate is divided by this: eleven series of the box, and three of each of seven models.
const SERIES_TYPICAL: f64 = 32.0;

/// The least rate of one series.
const ALARMS_A_WEEK_MIN: f64 = 0.001;

/// A clock that went back by more than this: the detectors begin anew, because they take no sample twice.
const STEP_BACK_MS: u64 = 3_600_000;

/// The most findings; the others are counted in a last one.
const FINDINGS_MAX: usize = 8;

/// The columns of the box that are watched, each with the hours within which a trend to 0 is a warning.
const WATCHED: [(&str, Option<f64>); 10] = [
    ("calls_per_s", None),
    ("failed_per_s", None),
    ("p99_s", None),
    ("cores_busy", None),
    ("ledge_cores", None),
    ("ledge_memory_bytes", None),
    ("memory_available_bytes", Some(24.0)),
    ("temperature_celsius", None),
    ("queue", None),
    ("disk_free_bytes", Some(7.0 * 24.0)),
];

/// The cores that other programs of the machine keep busy.
const OTHER_CORES: &str = "other_cores";

const MODEL_COLUMNS: [&str; 3] = ["calls_per_s", "failed_per_s", "p99_s"];

/// The detectors, and the texts of what is unusual now.
#[derive(Debug)]
pub struct UnusualWatch {
    /// `None` where nothing is watched.
    pace: Option<Pace>,
    file: Option<PathBuf>,
    set: MonitorSet,
    /// The models that are watched, each with the time of its last call.
    models: BTreeMap<String, u64>,
    /// The time of the last minute.
    last_ms: u64,
    written_ms: u64,
    texts: BTreeMap<String, String>,
}

/// The stored form.
#[derive(Debug, Serialize, Deserialize)]
struct StoredWatch {
    last_ms: u64,
    models: BTreeMap<String, u64>,
    series: Vec<Vec<u8>>,
}

impl UnusualWatch {
    /// The detectors as they were written. A file that cannot be read is set aside, and all is learnt anew.
    pub fn open(config: &HistoryConfig) -> Self {
        let rate = (f64::from(config.unusual_alarms_per_week) / SERIES_TYPICAL).max(ALARMS_A_WEEK_MIN);
        let pace = Pace::new(MINUTE_MS, rate).ok().filter(|_| config.unusual_alarms_per_week > 0);
        let file = config.enabled.then(|| config.path.join(FILE)).filter(|_| pace.is_some());
        let mut watch = Self {
            pace,
            file,
            set: MonitorSet::default(),
            models: BTreeMap::new(),
            last_ms: 0,
            written_ms: 0,
            texts: BTreeMap::new(),
        };
        watch.restore();
        watch
    }

    fn restore(&mut self) {
        let Some(file) = self.file.clone() else { return };
        match read(&file) {
            Ok(Some(stored)) => {
                for series in &stored.series {
                    // A series that this version cannot read is learnt anew.
                    let _ = self.set.restore(series);
                }
                (self.last_ms, self.written_ms, self.models) = (stored.last_ms, stored.last_ms, stored.models);
            }
            Ok(None) => {}
            Err(error) => {
                let path = file.display();
                tracing::warn!(name: "unusual.damaged", %path, %error, "what is usual of the figures cannot be read; it is set aside, and learnt anew");
                let _ = durable::rename(&file, &file.with_added_extension("damaged"));
            }
        }
    }

    /// Takes the minute that ended at `now_ms`. It may write to the disk.
    pub fn take(&mut self, now_ms: u64, minute: &EndedSlot) {
        let Some(pace) = self.pace else { return };
        if now_ms.saturating_add(STEP_BACK_MS) < self.last_ms {
            tracing::warn!(name: "unusual.clock", "the clock went back; what is usual of the figures is learnt anew");
            (self.set, self.models) = (MonitorSet::default(), BTreeMap::new());
            self.texts.clear();
        }
        self.last_ms = now_ms;

        let samples = self.samples(now_ms, minute);
        for (name, _, limit) in &samples {
            // The set has room for all models that are watched.
            let _ = self.set.watch(name, pace, *limit);
        }
        let samples: Vec<(&str, f64)> = samples.iter().map(|(name, value, _)| (name.as_str(), *value)).collect();
        let events = self.set.observe_known(i64::try_from(now_ms).unwrap_or(i64::MAX), &samples);
        let has_changed = !events.is_empty();
        for event in events {
            self.tell(event);
        }
        if has_changed || now_ms.abs_diff(self.written_ms) >= WRITE_INTERVAL_MS {
            self.written_ms = now_ms;
            self.write();
        }
    }

    /// The samples of a minute. Models without a call have no time of answers, and 0 calls.
    fn samples(&mut self, now_ms: u64, minute: &EndedSlot) -> Vec<(String, f64, Option<Limit>)> {
        let mut samples = Vec::new();
        let figure = |sample: &FigureSample, column: &str| {
            let place = BOX_COLUMNS.iter().position(|name| *name == column)?;
            sample.figures().get(place).map(|figure| f64::from(*figure)).filter(|figure| figure.is_finite())
        };
        for (column, hours) in WATCHED {
            let limit = hours.map(|within_hours| Limit { value: 0.0, within_hours });
            samples.extend(figure(&minute.sample, column).map(|value| (format!("box {column}"), value, limit)));
        }
        let cores = figure(&minute.sample, "cores_busy").zip(figure(&minute.sample, "ledge_cores"));
        samples.extend(cores.map(|(all, own)| (format!("box {OTHER_CORES}"), (all - own).max(0.0), None)));

        let mut called = BTreeMap::new();
        for (name, figures) in &minute.used {
            if let SeriesName::Model(model) = name {
                called.insert(model.to_string(), figures);
            }
        }
        for model in called.keys() {
            if self.models.len() < MODELS_MAX || self.models.contains_key(model) {
                self.models.insert(model.clone(), now_ms);
            }
        }
        let idle = self.models.extract_if(.., |_, called_ms| now_ms.saturating_sub(*called_ms) > IDLE_MODEL_MS);
        let names = |model: &str| MODEL_COLUMNS.map(|column| format!("model:{model} {column}"));
        for name in idle.flat_map(|(model, _)| names(&model)).collect::<Vec<_>>() {
            self.set.forget(&name);
            self.texts.remove(&name);
        }
        for model in self.models.keys() {
            for (column, name) in MODEL_COLUMNS.iter().zip(names(model)) {
                let place = USAGE_COLUMNS.iter().position(|known| known == column);
                let value = match called.get(model) {
                    Some(figures) => place.and_then(|place| figures.get(place)).map(|figure| f64::from(*figure)),
                    None => Some(0.0).filter(|_| *column != "p99_s"),
                };
                samples.extend(value.filter(|value| value.is_finite()).map(|value| (name, value, None)));
            }
        }
        samples
    }

    /// Logs an event, and keeps its text while it lasts.
    fn tell(&mut self, event: MonitorEvent) {
        let MonitorEvent { name, change, text, .. } = event;
        match change {
            MonitorChange::Began(_) if self.is_learning(&name) => {}
            MonitorChange::Began(_) | MonitorChange::LimitNear { .. } => {
                tracing::warn!(name: "unusual.began", series = name, "{text}");
                self.texts.insert(name, text);
            }
            MonitorChange::Ended { .. } | MonitorChange::LimitFar { .. } => {
                if self.texts.remove(&name).is_some() {
                    tracing::info!(name: "unusual.ended", series = name, "{text}");
                }
            }
        }
    }

    fn is_learning(&self, name: &str) -> bool {
        self.set.detector(name).is_none_or(|detector| detector.count() < LEARNING_SAMPLES)
    }

    /// The series that are unusual now.
    pub fn findings(&self) -> Vec<Finding> {
        let unusual: Vec<_> = self.set.states().filter_map(|state| Some((state.name, self.text(&state)?))).collect();
        let mut findings: Vec<_> = unusual.iter().take(FINDINGS_MAX).map(|(name, text)| finding(name, text)).collect();
        let more = unusual.len().saturating_sub(FINDINGS_MAX);
        if more > 0 {
            let advice = "see the log: events unusual.began and unusual.ended";
            findings.push(Finding::warn("unusual", format!("{more} more series are unusual"), advice));
        }
        findings
    }

    /// The text on a series; `None` while it is usual.
    fn text(&self, state: &MonitorState<'_>) -> Option<String> {
        let known = || self.texts.get(state.name).cloned();
        match state.state {
            SeriesState::Unusual(event) if !self.is_learning(state.name) => Some(known().unwrap_or_else(|| {
                let since = clock::rfc3339(u64::try_from(event.since_ms).unwrap_or(0));
                format!("{}: {} since {since}", state.name, event.kind.as_str().replace('_', " "))
            })),
            _ if state.is_limit_near => Some(known().unwrap_or_else(|| format!("{} is running out", state.name))),
            _ => None,
        }
    }

    /// Writes the detectors. An error is logged, and costs what was learnt since the last time.
    pub fn write(&self) {
        let Some(file) = &self.file else { return };
        if self.set.is_empty() {
            return;
        }
        let (last_ms, models) = (self.last_ms, self.models.clone());
        let series = self.set.encode().collect();
        let content = stored_form::encode(MAGIC, &StoredWatch { last_ms, models, series });
        if let Err(error) = durable::replace_in_new_folder(file, &content) {
            tracing::warn!(name: "unusual.unwritten", path = %file.display(), %error, "what is usual of the figures cannot be written");
        }
    }
}

fn finding(name: &str, text: &str) -> Finding {
    let (series, column) = name.split_once(' ').unwrap_or((name, ""));
    let advice = if column == OTHER_CORES {
        "other programs of this machine use its cores: see `top`".to_owned()
    } else {
        format!("see the plots of the console, or /figures/history?series={series}&columns={column}&resolution=1m")
    };
    Finding::warn(&format!("unusual {name}"), text, advice)
}

fn read(path: &Path) -> io::Result<Option<StoredWatch>> {
    let length = match std::fs::metadata(path) {
        Ok(facts) => facts.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has {length} bytes, more than {FILE_BYTES_MAX}")));
    }
    decode(&std::fs::read(path)?).map(Some).map_err(io::Error::other)
}

fn decode(file: &[u8]) -> Result<StoredWatch, StoredFormError> {
    let stored: StoredWatch = stored_form::decode(MAGIC, file)?;
    if stored.models.len() <= MODELS_MAX { Ok(stored) } else { Err(StoredFormError::Content) }
}

#[cfg(test)]
mod tests;
