//! Loads that ended the process: which model is to blame, and when it may be loaded again. Pure: no clock, no disk.
//!
//! An attempt is a load of a version with its first runs: warm-up, golden inputs, the comparison of runtimes. It is noted
//! before it begins and struck out when it has ended, well or badly. A process that died in between leaves the note, and the
//! next one finds it. Calls are no attempts: a caller whose data kills a runtime must not take the model from the others.
//!
//! Only a death during the one attempt under way proves anything. When several were, each of their models becomes a suspect,
//! and suspects are loaded one at a time. Two deaths, one of them alone, suspend a model. A suspended model is tried in a
//! process of its own and loaded again when it passes: at once, for somebody may have killed the process who knew nothing of
//! the load, then after an hour, and then ever more seldom.

pub mod log;

use std::collections::BTreeMap;

use ledge_base::clock;
use ledge_base::names::{ModelName, ModelVersion};
use serde::{Deserialize, Serialize};

use super::Effort;

/// How many deaths suspend a model.
const DEATHS: u32 = 2;

/// From so many deaths on, only an explicit load or other files try the model: its trials pass, and its loads end the
/// process all the same.
const DEATHS_MAX: u32 = 4;

/// The time from a trial that failed, or a death after one that passed, to the next trial, in seconds; twice that after two.
const FIRST_WAIT_S: u64 = 3600;

/// The longest time between two trials, in seconds.
const WAIT_MAX_S: u64 = 86_400;

/// What an attempt loads: the content of the model's files and its `model.toml`, in these versions of the runtimes. Other
/// files, another configuration and other runtimes may do better, so they are other attempts.
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
    fn is(&self, other: &Self) -> bool {
        (&self.key, &self.model, self.version) == (&other.key, &other.model, other.version)
    }
}

/// A model during whose load the process died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    pub model: ModelName,
    pub version: ModelVersion,
    /// Deaths while nothing else was loaded.
    pub alone: u32,
    /// Whether one more death came while others were loaded, too.
    pub among_others: bool,
    /// When the last of these loads began, in milliseconds since the Unix epoch.
    pub last_ms: u64,
    /// `None`: it is loaded once more, with nothing beside it.
    pub suspension: Option<Suspension>,
}

/// A model is not loaded where calls are answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// When it began or the model was last tried, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The time from there to the next trial, in seconds.
    pub wait_s: u64,
    /// Why the last trial failed.
    pub finding: Option<String>,
}

/// What a trial in a process of its own found instead of a model that loads. One line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The model is at fault.
    Failed(String),
    /// It could not be tried, for a reason that may pass.
    Interrupted(String),
}

/// How a version may be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Beside,
    Alone,
    /// With nothing beside it, when it has passed a trial in a process of its own.
    AfterTrial,
    /// Not now.
    Refused(String),
}

/// What is known of the loads of this boot of the machine, and of suspended models.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attempts {
    /// The boot that the deaths below are of.
    boot: String,
    suspects: BTreeMap<AttemptKey, Suspect>,
    /// Kept as marks behind the rest: see [`log`].
    #[serde(skip)]
    under_way: Vec<Attempt>,
}

impl Attempts {
    /// A process starts in this boot of the machine. The attempts that the last one left under way ended it, unless the
    /// machine was restarted. Returns the suspects that are to blame.
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
            suspect.died(is_alone, began_ms, now_ms);
            suspect.clone()
        };
        by_key.into_iter().map(blame).collect()
    }

    /// How the version may be loaded.
    pub fn verdict(&self, key: &AttemptKey, effort: Effort, now_ms: u64) -> Verdict {
        let Some(suspect) = self.suspects.get(key) else { return Verdict::Beside };
        match effort {
            // Whoever asks for a load does not ask for a dead daemon.
            Effort::Always => Verdict::AfterTrial,
            Effort::Due if suspect.is_due(now_ms) => Verdict::AfterTrial,
            Effort::Due | Effort::Changed if suspect.suspension.is_some() => Verdict::Refused(suspect.to_string()),
            Effort::Due | Effort::Changed => Verdict::Alone,
        }
    }

    /// The attempt is about to begin.
    pub fn begin(&mut self, attempt: Attempt) {
        self.under_way.push(attempt);
    }

    /// The attempt has ended, and the process is alive. Returns whether that changes what is known of suspects.
    pub fn end(&mut self, attempt: &Attempt) -> bool {
        if let Some(place) = self.under_way.iter().position(|other| other.is(attempt)) {
            self.under_way.remove(place);
        }
        // What this version was before is gone.
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
        // It has killed once, and stays a suspect for this boot. Another had a part in the other death.
        std::mem::take(&mut suspect.among_others) || is_fewer
    }

    /// The process is about to end in order: whatever happens to the attempts under way, they are not to blame.
    pub fn stop(&mut self) {
        self.under_way.clear();
    }

    /// A trial in a process of its own was not passed. Returns why the model is not loaded.
    pub fn not_passed(&mut self, key: &AttemptKey, finding: &Finding, now_ms: u64) -> String {
        match (self.suspects.get_mut(key), finding) {
            (Some(suspect), Finding::Failed(reason)) => {
                suspect.suspend(now_ms, Some(reason.clone()));
                suspect.to_string()
            }
            (Some(suspect), Finding::Interrupted(reason)) => {
                // It has shown nothing, so the next one waits no longer for it.
                if let Some(suspension) = &mut suspect.suspension {
                    suspension.since_ms = now_ms;
                    suspension.wait_s = suspension.wait_s.max(FIRST_WAIT_S);
                }
                format!("it could not be tried in a process of its own: {reason}; {suspect}")
            }
            (None, Finding::Failed(reason) | Finding::Interrupted(reason)) => reason.clone(),
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

    /// Nothing has these files any more.
    pub fn forget(&mut self, key: &AttemptKey) -> bool {
        self.suspects.remove(key).is_some()
    }

    /// The models that are to blame, or may be.
    pub fn suspects(&self) -> impl Iterator<Item = &Suspect> {
        self.suspects.values()
    }

    /// What is under way.
    pub(super) fn under_way(&self) -> &[Attempt] {
        &self.under_way
    }
}

impl Suspect {
    /// How many loads ended the process, this version's perhaps.
    pub fn deaths(&self) -> u32 {
        self.alone.saturating_add(u32::from(self.among_others))
    }

    fn died(&mut self, is_alone: bool, began_ms: u64, now_ms: u64) {
        self.last_ms = began_ms;
        if is_alone {
            self.alone = self.alone.saturating_add(1);
        } else {
            self.among_others = true;
        }
        // A death that others had a part in proves nothing without one that none had.
        if self.suspension.is_some() || self.alone > 0 && self.deaths() >= DEATHS {
            self.suspend(now_ms, None);
        }
    }

    fn suspend(&mut self, now_ms: u64, finding: Option<String>) {
        let again = |before: &Suspension| before.wait_s.saturating_mul(2).clamp(FIRST_WAIT_S, WAIT_MAX_S);
        let wait_s = self.suspension.as_ref().map_or(0, again);
        self.suspension = Some(Suspension { since_ms: now_ms, wait_s, finding });
    }

    /// When the next trial is due, in milliseconds since the Unix epoch.
    fn due_ms(&self) -> Option<u64> {
        let suspension = self.suspension.as_ref().filter(|_| self.alone < DEATHS_MAX)?;
        Some(suspension.since_ms.saturating_add(suspension.wait_s.saturating_mul(1000)))
    }

    fn is_due(&self, now_ms: u64) -> bool {
        // After a clock that was set back nobody knows how long it was, and a trial does no harm.
        let is_set_back = self.suspension.as_ref().is_some_and(|suspension| now_ms < suspension.since_ms);
        self.due_ms().is_some_and(|due_ms| due_ms <= now_ms || is_set_back)
    }
}

impl std::fmt::Display for Suspect {
    /// What happened, and what to do.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { model, last_ms, suspension, .. } = self;
        let (deaths, last) = (self.deaths(), clock::rfc3339(*last_ms));
        match deaths {
            1 => write!(f, "its load or first run at {last} ended the process")?,
            _ => write!(f, "its load or first run ended the process {deaths} times, last at {last}")?,
        }
        let Some(Suspension { since_ms, finding, .. }) = suspension else {
            return write!(f, "; it is loaded once more, with nothing beside it");
        };
        if let Some(finding) = finding {
            write!(f, "; a trial in a process of its own failed at {}: {finding}", clock::rfc3339(*since_ms))?;
        }
        if let Some(due_ms) = self.due_ms() {
            write!(f, "; the next trial is at {}", clock::rfc3339(due_ms))?;
        }
        write!(f, "; change its files, or load it again with POST /v2/repository/models/{model}/load")
    }
}

#[cfg(test)]
mod tests;
