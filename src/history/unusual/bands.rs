//! The values that were usual in the last day, for plots: one band each ten minutes of each series of the box, in memory.
//! A restart begins them anew.

use std::collections::{BTreeMap, VecDeque};

use ledge_anomaly::{Band, MonitorSet, SeriesDetector};
use ledge_base::clock;
use serde::{Deserialize, Serialize};

use crate::readings::single;

/// Profiles of the day have half hours, and a plot of a day some 300 pixels.
const INTERVAL_MS: u64 = 600_000;

/// A day of them: 8 bytes each, 13 KB for the eleven series of the box.
const BANDS_MAX: usize = 144;

/// Bands at equal distances, the newest last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BandColumns {
    /// The time of the last one.
    pub end: String,
    pub interval_s: u64,
    /// `null` where none was known.
    pub low: Vec<Option<f32>>,
    pub high: Vec<Option<f32>>,
}

#[derive(Debug, Default)]
pub(super) struct PastBands {
    /// The number of the last interval since the Unix epoch.
    last: u64,
    series: BTreeMap<String, VecDeque<Option<Band>>>,
}

impl PastBands {
    /// Keeps the bands of the minute that ended at `now_ms`, if it is the first of its interval.
    pub fn take(&mut self, now_ms: u64, set: &MonitorSet) {
        let now = now_ms / INTERVAL_MS;
        if now == self.last {
            return;
        }
        // A clock that went back, or a day without a minute, leaves nothing to draw.
        let missed = match now.checked_sub(self.last) {
            Some(passed) if passed <= BANDS_MAX as u64 => passed - 1,
            _ => {
                self.series.clear();
                0
            }
        };
        self.last = now;
        for state in set.states().filter(|state| state.name.starts_with("box ")) {
            let band = set.detector(state.name).and_then(SeriesDetector::next_band);
            let ring = self.series.entry(state.name.to_owned()).or_default();
            ring.extend((0..missed).map(|_| None).chain([band]));
            let surplus = ring.len().saturating_sub(BANDS_MAX);
            ring.drain(..surplus);
        }
    }

    /// The bands of a series; `None` where none was known within the day.
    pub fn of(&self, name: &str) -> Option<BandColumns> {
        let ring = self.series.get(name).filter(|ring| ring.iter().any(Option::is_some))?;
        let column = |bound: fn(&Band) -> f64| ring.iter().map(|band| Some(single(bound(band.as_ref()?)))).collect();
        Some(BandColumns {
            end: clock::rfc3339(self.last * INTERVAL_MS),
            interval_s: INTERVAL_MS / 1000,
            low: column(|band| band.low),
            high: column(|band| band.high),
        })
    }
}
