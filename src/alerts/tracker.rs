//! The state of the findings for one receiver, and the last messages to it. Pure: the time is passed in.
//!
//! A check goes through these states:
//!
//! ```text
//!            wrong                  wrong for hold                 right for hold
//!   (right) ───────► pending ─────────────────────► firing ─────────────────────► resolved ──► (right)
//!      ▲                │ right                     tell it                       tell it
//!      └────────────────┘
//! ```
//!
//! A message is due while the state differs from the last one that the receiver was sent. A receiver that could not be
//! reached gets only the newest state, and no message about a failure that came and went meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ledge_part::check::{Finding, FindingStatus};

/// The most checks of one receiver. Findings beyond them wait for room.
const CHECKS_MAX: usize = 1024;

/// The filter and times of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertReceiverRules {
    /// The least severity: [`FindingStatus::Warn`] or [`FindingStatus::Fail`].
    pub least: FindingStatus,
    /// The names of checks, or the first words of names; empty is all.
    pub checks: Vec<String>,
    /// The name of a check that is not reported to it: the one of its own delivery.
    pub except: String,
    /// The time for which something must be wrong, or right again, before it is reported.
    pub hold: Duration,
    /// The time after which a lasting failure is reported again.
    pub repeat: Option<Duration>,
}

/// The checks of one receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertTracker {
    rules: AlertReceiverRules,
    checks: BTreeMap<String, TrackedCheck>,
}

/// A check that is wrong, or that the receiver takes for wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TrackedCheck {
    state: AlertState,
    told: Option<SentAlert>,
    /// As at the last look.
    detail: String,
    advice: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum AlertState {
    /// Wrong, but not yet for long enough.
    Pending { since_ms: u64, lasted: Duration },
    Firing {
        since_ms: u64,
        severity: FindingStatus,
        /// Another status that the check has now, and for how long.
        other: Option<(FindingStatus, Duration)>,
    },
    /// Right again; `since_ms` is the time since which it was wrong.
    Resolved { since_ms: u64 },
}

/// The last message about a check that the receiver takes for wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentAlert {
    pub severity: FindingStatus,
    /// The time since which the check was wrong, in milliseconds since the Unix epoch, as all times here.
    pub since_ms: u64,
    /// The time at which it was reported.
    pub at_ms: u64,
}

/// The news of a message about a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotificationKind {
    Firing,
    /// A failure that was reported before and lasts.
    Reminder,
    Resolved,
}

/// A message that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueAlert {
    pub check: String,
    pub news: NotificationKind,
    pub severity: FindingStatus,
    pub since_ms: u64,
    pub detail: String,
    pub advice: Option<String>,
}

/// The messages that could not be sent. They are tried again after the others, so that a message that the receiver
/// always refuses does not delay the rest.
#[derive(Debug, Default)]
pub struct UndeliveredAlerts {
    /// The place of the last one in the order of messages.
    last: Option<(u8, String)>,
    /// The checks of those since the last pause.
    since_pause: BTreeSet<String>,
}

impl NotificationKind {
    /// The place in the order of messages: first those that something is wrong.
    fn rank(self) -> u8 {
        match self {
            Self::Firing => 0,
            Self::Resolved => 1,
            Self::Reminder => 2,
        }
    }
}

impl UndeliveredAlerts {
    /// Takes a message that could not be sent. Returns the number of those since the last pause.
    pub fn add(&mut self, due: &DueAlert) -> usize {
        self.last = Some((due.news.rank(), due.check.clone()));
        self.since_pause.insert(due.check.clone());
        self.since_pause.len()
    }

    /// Lets every message be tried again. Returns true if there was one that could not be sent.
    pub fn take(&mut self) -> bool {
        !std::mem::take(&mut self.since_pause).is_empty()
    }
}

impl AlertReceiverRules {
    /// The status of a check as far as the receiver wants to hear of it.
    fn status(&self, check: &Finding) -> FindingStatus {
        let is_wanted = self.checks.is_empty() || self.checks.iter().any(|wanted| begins_with(&check.name, wanted));
        if is_wanted && check.name != self.except && check.status >= self.least {
            check.status
        } else {
            FindingStatus::Ok
        }
    }
}

/// True if a name is these words, or begins with them.
fn begins_with(name: &str, words: &str) -> bool {
    name.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

impl AlertTracker {
    /// A receiver with the reports that it got before this start.
    pub fn new(rules: AlertReceiverRules, told: BTreeMap<String, SentAlert>) -> Self {
        let tracked = |(name, told): (String, SentAlert)| {
            let state = AlertState::Firing { since_ms: told.since_ms, severity: told.severity, other: None };
            (name, TrackedCheck { state, told: Some(told), detail: String::new(), advice: None })
        };
        Self { rules, checks: told.into_iter().take(CHECKS_MAX).map(tracked).collect() }
    }

    /// Takes the findings of a look at `now_ms`, `elapsed` after the look before. A check that is not among them is
    /// right.
    pub fn look(&mut self, findings: &[Finding], now_ms: u64, elapsed: Duration) {
        let mut found = by_name(findings);
        for (name, tracked) in &mut self.checks {
            if let Some(told) = &mut tracked.told {
                // The clock was ahead, and is set back: a reminder must not wait for that time.
                told.at_ms = told.at_ms.min(now_ms);
            }
            let (status, detail, advice) = match found.remove(name.as_str()) {
                Some(check) => (self.rules.status(&check), check.detail, check.advice),
                None => (FindingStatus::Ok, String::new(), None),
            };
            tracked.step(status, elapsed, self.rules.hold);
            (tracked.detail, tracked.advice) = (detail, advice);
        }
        self.checks.retain(|_, tracked| !tracked.is_forgotten());

        for (name, check) in found {
            let status = self.rules.status(&check);
            if status == FindingStatus::Ok || self.checks.len() >= CHECKS_MAX {
                continue;
            }
            let state = if self.rules.hold.is_zero() {
                AlertState::Firing { since_ms: now_ms, severity: status, other: None }
            } else {
                AlertState::Pending { since_ms: now_ms, lasted: Duration::ZERO }
            };
            let Finding { detail, advice, .. } = check;
            self.checks.insert(name.to_owned(), TrackedCheck { state, told: None, detail, advice });
        }
    }

    /// The next message that is due at `now_ms`, in the order of the checks after the last failed one. Messages that
    /// failed since the last pause are left out.
    pub fn due(&self, now_ms: u64, failures: &UndeliveredAlerts) -> Option<DueAlert> {
        let due = self.checks.iter().filter(|(name, _)| !failures.since_pause.contains(*name));
        let due = due.filter_map(|(name, tracked)| {
            let (news, severity, since_ms) = tracked.news(&self.rules, now_ms)?;
            Some((news, name, severity, since_ms, tracked))
        });
        let last = failures.last.as_ref().map(|(rank, check)| (*rank, check));
        let (news, check, severity, since_ms, tracked) = due.min_by_key(|(news, check, ..)| {
            let place = (news.rank(), *check);
            (last.is_some_and(|last| place <= last), place)
        })?;
        // A check that is right again needs no remedy.
        let advice = tracked.advice.clone().filter(|_| news != NotificationKind::Resolved);
        Some(DueAlert { check: check.clone(), news, severity, since_ms, detail: tracked.detail.clone(), advice })
    }

    /// The number of messages that are due at `now_ms`.
    pub fn due_count(&self, now_ms: u64) -> usize {
        self.checks.values().filter(|tracked| tracked.news(&self.rules, now_ms).is_some()).count()
    }

    /// The receiver has got a message, at `now_ms`. The state may have changed since the message was made.
    pub fn told(&mut self, sent: &DueAlert, now_ms: u64) {
        let told = match sent.news {
            NotificationKind::Resolved => None,
            NotificationKind::Firing | NotificationKind::Reminder => {
                Some(SentAlert { severity: sent.severity, since_ms: sent.since_ms, at_ms: now_ms })
            }
        };
        // It may have been forgotten while the message was on its way.
        let forgotten = || TrackedCheck {
            state: AlertState::Resolved { since_ms: sent.since_ms },
            told: None,
            detail: String::new(),
            advice: None,
        };
        self.checks.entry(sent.check.clone()).or_insert_with(forgotten).told = told;
        self.checks.retain(|_, tracked| !tracked.is_forgotten());
    }

    /// The messages that the receiver takes for true, for the next start.
    pub fn all_told(&self) -> BTreeMap<String, SentAlert> {
        self.checks.iter().filter_map(|(name, tracked)| Some((name.clone(), tracked.told?))).collect()
    }

    /// The names of the checks that are firing.
    pub fn firing(&self) -> impl Iterator<Item = &str> {
        let firing = self.checks.iter().filter(|(_, tracked)| matches!(tracked.state, AlertState::Firing { .. }));
        firing.map(|(name, _)| name.as_str())
    }
}

/// The findings by their names. Several of one name are one, as wrong as the worst of them.
fn by_name(findings: &[Finding]) -> BTreeMap<&str, Finding> {
    let mut found: BTreeMap<&str, Finding> = BTreeMap::new();
    for check in findings {
        match found.get_mut(check.name.as_str()) {
            Some(before) if before.status < check.status => *before = check.clone(),
            Some(before) if before.status == check.status && check.status != FindingStatus::Ok => {
                before.detail = format!("{}\n{}", before.detail, check.detail);
            }
            Some(_) => {}
            None => _ = found.insert(&check.name, check.clone()),
        }
    }
    found
}

impl TrackedCheck {
    fn step(&mut self, status: FindingStatus, elapsed: Duration, hold: Duration) {
        let is_wrong = status != FindingStatus::Ok;
        self.state = match self.state.clone() {
            AlertState::Pending { since_ms, lasted } if is_wrong => {
                let lasted = lasted.saturating_add(elapsed);
                if lasted >= hold {
                    AlertState::Firing { since_ms, severity: status, other: None }
                } else {
                    AlertState::Pending { since_ms, lasted }
                }
            }
            AlertState::Firing { since_ms, severity, .. } if status == severity => {
                AlertState::Firing { since_ms, severity, other: None }
            }
            AlertState::Firing { since_ms, severity, other } => {
                let lasted = match other {
                    Some((before, lasted)) if before == status => lasted.saturating_add(elapsed),
                    _ => Duration::ZERO,
                };
                match (lasted >= hold, is_wrong) {
                    (true, true) => AlertState::Firing { since_ms, severity: status, other: None },
                    (true, false) => AlertState::Resolved { since_ms },
                    (false, _) => AlertState::Firing { since_ms, severity, other: Some((status, lasted)) },
                }
            }
            // The receiver could not be reached while the check was right, so for it the check is wrong since the
            // earlier time.
            AlertState::Resolved { since_ms } if is_wrong && hold.is_zero() => {
                AlertState::Firing { since_ms, severity: status, other: None }
            }
            AlertState::Resolved { since_ms } if is_wrong => AlertState::Pending { since_ms, lasted: Duration::ZERO },
            AlertState::Pending { since_ms, .. } | AlertState::Resolved { since_ms } => {
                AlertState::Resolved { since_ms }
            }
        };
    }

    /// True once neither this box nor the receiver takes it for wrong.
    fn is_forgotten(&self) -> bool {
        matches!(self.state, AlertState::Resolved { .. }) && self.told.is_none()
    }

    fn news(&self, rules: &AlertReceiverRules, now_ms: u64) -> Option<(NotificationKind, FindingStatus, u64)> {
        match (&self.state, self.told) {
            (AlertState::Firing { since_ms, severity, .. }, told) => match told {
                Some(told) if told.severity == *severity => {
                    let repeat = rules.repeat.filter(|_| *severity == FindingStatus::Fail)?;
                    let age = Duration::from_millis(now_ms.saturating_sub(told.at_ms));
                    (age >= repeat).then_some((NotificationKind::Reminder, *severity, *since_ms))
                }
                _ => Some((NotificationKind::Firing, *severity, *since_ms)),
            },
            (AlertState::Resolved { since_ms, .. }, Some(told)) => {
                Some((NotificationKind::Resolved, told.severity, *since_ms))
            }
            (AlertState::Resolved { .. }, None) | (AlertState::Pending { .. }, _) => None,
        }
    }
}

#[cfg(test)]
mod tests;
