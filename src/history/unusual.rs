//! Unusual figures of a minute: of the box, and of each model. The detectors are those of `ledge-anomaly`.
//!
//! The detectors learn for half a day before they judge, and this part reports what they say after a week, because shops
//! have nights and weekends. A limit that is near, such as a full disk, is reported after a day. The state of the detectors
//! is a file in the folder of the history, written every six hours, with each event and at the end, so that a crash costs
//! at most six hours of learning.
//!
//! `unusual/events.rs` has the events that were reported, `unusual/bands.rs` the usual values of the last day,
//! `unusual/http.rs` the routes, and `unusual/message.rs` the message for the broker.

mod bands;
mod events;
pub mod http;
pub mod message;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ledge_anomaly::{Direction, Limit, MonitorChange, MonitorEvent, MonitorSet, MonitorState, Pace, SeriesState};
use ledge_base::clock;
use ledge_base::durable;
use ledge_base::stored_form::{self, StoredFormError};
use ledge_part::check::Finding;
use ledge_service::audit_event::AuditEvent;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::config::HistoryConfig;
use crate::readings::{BOX_COLUMNS, FigureSample};
use crate::recorder::EndedSlot;
use crate::series::{SeriesName, USAGE_COLUMNS};
use bands::PastBands;
use events::{ReportedEvent, ReportedEvents, UnusualEnd, recorded_name, series_and_column};
use message::UnusualMessage;

const FILE: &str = "unusual.state";
const MAGIC: &[u8; 4] = b"LUN2";

/// More than the largest file: 256 series of about 5.7 KB, and 410 events.
const FILE_BYTES_MAX: u64 = 4 << 20;

const MINUTE_MS: i64 = 60_000;
/// The file of a box with few models is 55 KB, and 30 KB more with 100 events: 350 KB of writes a day.
const WRITE_INTERVAL_MS: u64 = 6 * 3_600_000;

/// A model that nobody calls for so long is forgotten.
const IDLE_MODEL_MS: u64 = 14 * 24 * 3_600_000;

/// The most models that are watched.
const MODELS_MAX: usize = 48;

/// The samples of a series before its events are reported: a week of minutes.
pub(crate) const LEARNING_SAMPLES: u32 = 7 * 1440;

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
    events: ReportedEvents,
    bands: PastBands,
    alarms_per_week: u32,
    message: watch::Sender<UnusualMessage>,
}

/// A series that cannot be called normal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallNormalError {
    #[error("no such series is watched: GET /unusual lists them")]
    Unknown,
    #[error("nothing of this series was reported as unusual, and a limit that comes near cannot be called normal")]
    NothingReported,
}

/// The stored form.
#[derive(Debug, Serialize, Deserialize)]
struct StoredWatch {
    last_ms: u64,
    models: BTreeMap<String, u64>,
    series: Vec<Vec<u8>>,
    events: ReportedEvents,
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
            events: ReportedEvents::default(),
            bands: PastBands::default(),
            alarms_per_week: config.unusual_alarms_per_week,
            message: watch::Sender::default(),
        };
        watch.restore();
        watch.publish();
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
                self.events = stored.events;
                let set = &self.set;
                self.events.forget(stored.last_ms, |event| set.detector(&event.name).is_none());
            }
            Ok(None) => {}
            Err(error) => {
                let path = file.display();
                tracing::warn!(name: "unusual.damaged", %path, %error, "what is usual of the figures cannot be read; it is set aside, and learnt anew");
                let _ = durable::set_aside(&file);
            }
        }
    }

    /// Takes the minute that ended at `now_ms`, and returns the records of what began and ended. It may write to the disk.
    pub fn take(&mut self, now_ms: u64, minute: &EndedSlot) -> Vec<AuditEvent> {
        let Some(pace) = self.pace else { return Vec::new() };
        let mut records = Vec::new();
        if now_ms.saturating_add(STEP_BACK_MS) < self.last_ms {
            tracing::warn!(name: "unusual.clock", "the clock went back; what is usual of the figures is learnt anew");
            (self.set, self.models) = (MonitorSet::default(), BTreeMap::new());
            records.extend(self.events.forget(now_ms, |_| true));
        }
        self.last_ms = now_ms;

        let samples = self.samples(now_ms, minute);
        let set = &self.set;
        records.extend(self.events.forget(now_ms, |event| set.detector(&event.name).is_none()));
        for (name, _, limit) in &samples {
            // The set has room for all models that are watched.
            let _ = self.set.watch(name, pace, *limit);
        }
        let samples: Vec<(&str, f64)> = samples.iter().map(|(name, value, _)| (name.as_str(), *value)).collect();
        let events = self.set.observe(i64::try_from(now_ms).unwrap_or(i64::MAX), &samples);
        self.bands.take(now_ms, &self.set);
        let has_changed = !events.is_empty() || !records.is_empty();
        for event in events {
            records.extend(self.tell(event));
        }
        if has_changed || now_ms.abs_diff(self.written_ms) >= WRITE_INTERVAL_MS {
            self.written_ms = now_ms;
            // The error is in the log.
            let _ = self.write();
        }
        self.publish();
        records
    }

    /// Teaches that the event of a series, or its last one, is normal, and returns the record of it. The state is not
    /// written yet.
    pub fn call_normal(&mut self, name: &str) -> Result<AuditEvent, CallNormalError> {
        let known = self.set.detector(name).and_then(|_| recorded_name(name));
        let (model, figure) = known.ok_or(CallNormalError::Unknown)?;
        let reported = self.events.all().find(|event| event.name == name && event.kind.is_some());
        let Some((kind, true)) = reported.map(|event| (event.kind, self.set.teach_normal(name))) else {
            return Err(CallNormalError::NothingReported);
        };
        self.events.end(name, kind, self.last_ms, UnusualEnd::CalledNormal);
        self.publish();
        Ok(AuditEvent::UnusualCalledNormal { model, figure })
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

    /// Logs and keeps an event, and returns its record.
    fn tell(&mut self, event: MonitorEvent) -> Option<AuditEvent> {
        let MonitorEvent { name, value, band, change, text, .. } = event;
        let (at_ms, ms) = (self.last_ms, |ms: i64| u64::try_from(ms).unwrap_or(0));
        let (kind, direction, began_ms) = match change {
            MonitorChange::Began(_) if self.is_learning(&name) => return None,
            MonitorChange::Began(event) => (Some(event.kind), event.direction, ms(event.since_ms)),
            MonitorChange::Renamed(event) => {
                if self.events.rename(&name, &event, &text) {
                    tracing::warn!(name: "unusual.renamed", series = name, "{text}");
                }
                return None;
            }
            MonitorChange::LimitNear { .. } => (None, Direction::Down, at_ms),
            MonitorChange::Ended { event, is_new_normal } => {
                let end = if is_new_normal { UnusualEnd::NewNormal } else { UnusualEnd::Usual };
                let ended = self.events.end(&name, Some(event.kind), at_ms, end)?;
                tracing::info!(name: "unusual.ended", series = name, "{text}");
                return ended.ended();
            }
            MonitorChange::LimitFar { .. } => {
                let ended = self.events.end(&name, None, at_ms, UnusualEnd::LimitFar)?;
                tracing::info!(name: "unusual.ended", series = name, "{text}");
                return ended.ended();
            }
        };
        tracing::warn!(name: "unusual.began", series = name, "{text}");
        let reported = ReportedEvent { name, kind, direction, began_ms, ended: None, value, band, text };
        let record = reported.began();
        self.events.begin(reported);
        record
    }

    fn is_learning(&self, name: &str) -> bool {
        self.set.detector(name).is_none_or(|detector| detector.count() < LEARNING_SAMPLES)
    }

    /// The events that go on, now and whenever they change.
    pub fn messages(&self) -> watch::Receiver<UnusualMessage> {
        self.message.subscribe()
    }

    /// The series that are unusual now.
    pub fn findings(&self) -> Vec<Finding> {
        let text = |state| Some(self.text(&state)?).map(|text| (state, text));
        let unusual: Vec<_> = self.set.states().filter_map(text).collect();
        let mut findings: Vec<_> = (unusual.iter().take(FINDINGS_MAX))
            .map(|(state, text)| finding(state.name, text, state.is_limit_near))
            .collect();
        let more = unusual.len().saturating_sub(FINDINGS_MAX);
        if more > 0 {
            let advice = "see `ledge unusual`";
            findings.push(Finding::warn("unusual", format!("{more} more series are unusual"), advice));
        }
        findings
    }

    /// The text on a series; `None` while it is usual.
    fn text(&self, state: &MonitorState<'_>) -> Option<String> {
        let known = |is_limit| self.events.current(state.name, is_limit).map(|event| event.text.clone());
        match state.state {
            _ if state.is_limit_near => Some(known(true).unwrap_or_else(|| format!("{} is running out", state.name))),
            SeriesState::Unusual(event) if !self.is_learning(state.name) => Some(known(false).unwrap_or_else(|| {
                let since = clock::rfc3339(u64::try_from(event.since_ms).unwrap_or(0));
                format!("{}: {} since {since}", state.name, event.kind.as_str().replace('_', " "))
            })),
            _ => None,
        }
    }

    /// Writes the detectors and the events. An error is logged, and costs what was learnt since the last time.
    pub fn write(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if self.set.is_empty() {
            return Ok(());
        }
        let (last_ms, models) = (self.last_ms, self.models.clone());
        let series = self.set.encode().collect();
        let stored = StoredWatch { last_ms, models, series, events: self.events.clone() };
        durable::replace_in_new_folder(file, &stored_form::encode(MAGIC, &stored)).inspect_err(|error| {
            tracing::warn!(name: "unusual.unwritten", path = %file.display(), %error, "what is usual of the figures cannot be written");
        })
    }
}

fn finding(name: &str, text: &str, is_limit: bool) -> Finding {
    let (series, column) = series_and_column(name);
    let advice = if column == OTHER_CORES {
        "other programs of this machine use its cores: see `top`".to_owned()
    } else {
        format!("see the plots of the console, or /figures/history?series={series}&columns={column}&resolution=1m")
    };
    let normal = format!("; if it is normal, `ledge unusual normal {name}`");
    let normal = if is_limit { "" } else { &normal };
    Finding::warn(&format!("unusual {name}"), text, format!("{advice}{normal}"))
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
    if stored.models.len() <= MODELS_MAX && stored.events.is_bounded() {
        Ok(stored)
    } else {
        Err(StoredFormError::Content)
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod troubles;
