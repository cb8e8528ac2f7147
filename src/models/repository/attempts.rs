//! Loads that ended the process: the model to blame, and the time at which it may be loaded again. Pure: no clock, no
//! disk.
//!
//! An attempt is a load of a version with its first runs: warm-up, golden inputs, the comparison of runtimes. It is
//! recorded before it begins and removed when it has ended, with or without success. A process that died in between
//! leaves the record, and the next one finds it. Calls are not attempts: a caller whose data kills a runtime must not
//! take the model from the others.
//!
//! Only a death during a single attempt in progress proves anything. When several were in progress, each of their
//! models becomes a suspect, and suspects are loaded one at a time. Two deaths, one of them during a single attempt,
//! suspend a model. A suspended model is tried in a separate process and loaded again when it passes: at once, since
//! the process may have been killed for a reason that has nothing to do with the load, then after an hour, and then at
//! growing intervals.

pub mod log;

use std::collections::BTreeMap;

use ledge_base::clock;
use ledge_base::names::{ModelName, ModelVersion};
use serde::{Deserialize, Serialize};

use super::LoadMode;

/// Number of deaths that suspend a model.
const SUSPENSION_DEATHS: u32 = 2;

/// Number of deaths from which on only an explicit load or other files try the model: its trials pass, but its loads
/// still end the process.
const DEATHS_MAX: u32 = 4;

/// The time from a trial that failed, or a death after one that passed, to the next trial, in seconds; twice that after
/// two.
const TRIAL_WAIT_S_MIN: u64 = 3600;

/// The longest time between two trials, in seconds.
const TRIAL_WAIT_S_MAX: u64 = 86_400;

/// Key of an attempt: the content of the model's files and its `model.toml`, and the versions of the runtimes. Other
/// files, another configuration and other runtimes may load, so they are other attempts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptKey(String);

impl AttemptKey {
    /// The key of the files with this digest.
    pub fn new(digest: &str, config_text: &str, libraries: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        // Lengths first, so that no two lists of texts give the same bytes.
        for text in [digest, config_text, libraries] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        Self(hasher.finalize().to_hex().to_string())
    }
}

/// A load that is about to begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub key: AttemptKey,
    pub model: ModelName,
    pub version: ModelVersion,
    /// When it began, in milliseconds since the Unix epoch.
    pub began_ms: u64,
}

impl Attempt {
    fn is_same(&self, other: &Self) -> bool {
        (&self.key, &self.model, self.version) == (&other.key, &other.model, other.version)
    }
}

/// A model during whose load the process died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    pub model: ModelName,
    pub version: ModelVersion,
    /// Deaths while no other model was being loaded.
    pub alone: u32,
    /// True when one more death came while others were being loaded too.
    pub among_others: bool,
    /// Time at which the last of these loads began, in milliseconds since the Unix epoch.
    pub last_ms: u64,
    /// `None`: it is loaded once more, with no other load at the same time.
    pub suspension: Option<Suspension>,
}

/// Suspension of a model: it is not loaded in the process that answers calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// Time at which it began or the model was last tried, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Time from then to the next trial, in seconds.
    pub wait_s: u64,
    /// Reason why the last trial failed.
    pub finding: Option<String>,
}

/// Failure of a trial in a separate process. One line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrialFailure {
    /// The model is at fault.
    Failed(String),
    /// It could not be tried, for a reason that may pass.
    Interrupted(String),
}

/// Decision about the load of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Concurrent,
    Alone,
    /// With no other load at the same time, after it has passed a trial in a separate process.
    AfterTrial,
    /// Not now.
    Refused(String),
}

/// Records of the loads in this boot of the machine, and of suspended models.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attempts {
    /// The boot in which the deaths below happened.
    boot: String,
    suspects: BTreeMap<AttemptKey, Suspect>,
    /// Stored as marks behind the rest: see [`log`].
    #[serde(skip)]
    under_way: Vec<Attempt>,
}

impl Attempts {
    /// Records that a process starts in this boot of the machine. The attempts that the last process left in progress
    /// ended it, unless the machine was restarted. Returns the suspects to blame.
    pub fn start(&mut self, boot: &str, now_ms: u64) -> Vec<Suspect> {
        let left = std::mem::take(&mut self.under_way);
        if self.boot != boot {
            boot.clone_into(&mut self.boot);
            self.suspects.retain(|_, suspect| suspect.suspension.is_some());
            return Vec::new();
        }

        // Copies of one model are one suspect.
        let by_key: BTreeMap<_, _> = left.into_iter().map(|attempt| (attempt.key.clone(), attempt)).collect();
        let is_alone = by_key.len() == 1;
        let blame = |(key, attempt): (AttemptKey, Attempt)| {
            let Attempt { model, version, began_ms, .. } = attempt;
            let new = || Suspect {
                model: model.clone(),
                version,
                alone: 0,
                among_others: false,
                last_ms: began_ms,
                suspension: None,
            };
            let suspect = self.suspects.entry(key).or_insert_with(new);
            suspect.record_death(is_alone, began_ms, now_ms);
            suspect.clone()
        };
        by_key.into_iter().map(blame).collect()
    }

    /// Decides how the version may be loaded.
    pub fn verdict(&self, key: &AttemptKey, mode: LoadMode, now_ms: u64) -> Verdict {
        if mode == LoadMode::AfterTrial {
            return Verdict::AfterTrial;
        }
        let Some(suspect) = self.suspects.get(key) else { return Verdict::Concurrent };
        match mode {
            // An explicit load must not end the daemon.
            LoadMode::Always | LoadMode::AfterTrial => Verdict::AfterTrial,
            LoadMode::Due if suspect.is_due(now_ms) => Verdict::AfterTrial,
            LoadMode::Due | LoadMode::Changed if suspect.suspension.is_some() => Verdict::Refused(suspect.to_string()),
            LoadMode::Due | LoadMode::Changed => Verdict::Alone,
        }
    }

    /// Records that the attempt is about to begin.
    pub fn begin(&mut self, attempt: Attempt) {
        self.under_way.push(attempt);
    }

    /// Records that the attempt has ended and the process is alive. Returns true when that changes the suspects.
    pub fn end(&mut self, attempt: &Attempt) -> bool {
        if let Some(place) = self.under_way.iter().position(|other| other.is_same(attempt)) {
            self.under_way.remove(place);
        }
        // Earlier files of this version are gone.
        let known = self.suspects.len();
        let is_before = |key: &AttemptKey, suspect: &Suspect| {
            *key != attempt.key && (&suspect.model, suspect.version) == (&attempt.model, attempt.version)
        };
        self.suspects.retain(|key, suspect| !is_before(key, suspect));
        let is_fewer = self.suspects.len() < known;

        let Some(suspect) = self.suspects.get_mut(&attempt.key) else { return is_fewer };
        if suspect.alone == 0 || suspect.suspension.is_some() {
            self.suspects.remove(&attempt.key);
            return true;
        }
        // It has killed the process once, and stays a suspect for this boot. The death among others is no longer
        // counted.
        std::mem::take(&mut suspect.among_others) || is_fewer
    }

    /// Records that the process is about to end in order: the attempts in progress are not to blame, whatever happens
    /// to them.
    pub fn stop(&mut self) {
        self.under_way.clear();
    }

    /// Records a failed trial in a separate process. Returns the reason why the model is not loaded.
    pub fn record_failed_trial(&mut self, key: &AttemptKey, finding: &TrialFailure, now_ms: u64) -> String {
        match (self.suspects.get_mut(key), finding) {
            (Some(suspect), TrialFailure::Failed(reason)) => {
                suspect.suspend(now_ms, Some(reason.clone()));
                suspect.to_string()
            }
            (Some(suspect), TrialFailure::Interrupted(reason)) => {
                // The trial has shown nothing, so the wait for the next one does not grow.
                if let Some(suspension) = &mut suspect.suspension {
                    suspension.since_ms = now_ms;
                    suspension.wait_s = suspension.wait_s.max(TRIAL_WAIT_S_MIN);
                }
                format!("it could not be tried in a separate process: {reason}; {suspect}")
            }
            (None, TrialFailure::Failed(reason) | TrialFailure::Interrupted(reason)) => reason.clone(),
        }
    }

    /// The models whose next trial is due.
    pub fn due(&self, now_ms: u64) -> Vec<(AttemptKey, ModelName)> {
        let due = self.suspects.iter().filter(|(_, suspect)| suspect.is_due(now_ms));
        due.map(|(key, suspect)| (key.clone(), suspect.model.clone())).collect()
    }

    /// The time until the next trial is due, in milliseconds; `None` when there is none.
    pub fn next_due_ms(&self, now_ms: u64) -> Option<u64> {
        let times = self.suspects.values().filter_map(Suspect::due_ms);
        times.min().map(|at| if self.due(now_ms).is_empty() { at.saturating_sub(now_ms) } else { 0 })
    }

    /// Removes a suspect whose files no longer exist.
    pub fn forget(&mut self, key: &AttemptKey) -> bool {
        self.suspects.remove(key).is_some()
    }

    /// The models that are to blame, or may be.
    pub fn suspects(&self) -> impl Iterator<Item = &Suspect> {
        self.suspects.values()
    }

    /// The attempts in progress.
    pub(super) fn under_way(&self) -> &[Attempt] {
        &self.under_way
    }
}

impl Suspect {
    /// Number of loads that ended the process and that this version may be to blame for.
    pub fn deaths(&self) -> u32 {
        self.alone.saturating_add(u32::from(self.among_others))
    }

    fn record_death(&mut self, is_alone: bool, began_ms: u64, now_ms: u64) {
        self.last_ms = began_ms;
        if is_alone {
            self.alone = self.alone.saturating_add(1);
        } else {
            self.among_others = true;
        }
        // A death with other loads in progress proves nothing without one during a single load.
        if self.suspension.is_some() || self.alone > 0 && self.deaths() >= SUSPENSION_DEATHS {
            self.suspend(now_ms, None);
        }
    }

    fn suspend(&mut self, now_ms: u64, finding: Option<String>) {
        let again = |before: &Suspension| before.wait_s.saturating_mul(2).clamp(TRIAL_WAIT_S_MIN, TRIAL_WAIT_S_MAX);
        let wait_s = self.suspension.as_ref().map_or(0, again);
        self.suspension = Some(Suspension { since_ms: now_ms, wait_s, finding });
    }

    /// Time at which the next trial is due, in milliseconds since the Unix epoch.
    fn due_ms(&self) -> Option<u64> {
        let suspension = self.suspension.as_ref().filter(|_| self.alone < DEATHS_MAX)?;
        Some(suspension.since_ms.saturating_add(suspension.wait_s.saturating_mul(1000)))
    }

    fn is_due(&self, now_ms: u64) -> bool {
        // After the clock was set back the elapsed time is unknown, and a trial does no harm.
        let is_set_back = self.suspension.as_ref().is_some_and(|suspension| now_ms < suspension.since_ms);
        self.due_ms().is_some_and(|due_ms| due_ms <= now_ms || is_set_back)
    }
}

impl std::fmt::Display for Suspect {
    /// Writes what happened, and what to do.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { model, last_ms, suspension, .. } = self;
        let (deaths, last) = (self.deaths(), clock::rfc3339(*last_ms));
        match deaths {
            1 => write!(f, "its load or first run at {last} ended the process")?,
            _ => write!(f, "its load or first run ended the process {deaths} times, last at {last}")?,
        }
        let Some(Suspension { since_ms, finding, .. }) = suspension else {
            return write!(f, "; it is loaded once more, with no other load at the same time");
        };
        if let Some(finding) = finding {
            write!(f, "; a trial in a separate process failed at {}: {finding}", clock::rfc3339(*since_ms))?;
        }
        if let Some(due_ms) = self.due_ms() {
            write!(f, "; the next trial is at {}", clock::rfc3339(due_ms))?;
        }
        write!(f, "; change its files, or load it again with POST /v2/repository/models/{model}/load")
    }
}

#[cfg(test)]
mod tests;
