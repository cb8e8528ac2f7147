//! The state of a camera: online, failing, frozen or away, since when and why.
//!
//! Pure: observations and times are passed in. A camera is online while its last picture was looked at: decoded, and
//! answered by the model or the same as one that was. That a picture came is not enough.

use serde::{Deserialize, Serialize};

use crate::clock::{Moment, text};

/// Failures in a row after which a camera is away or failing. A single one says little: a packet was lost, a queue was
/// full.
const FAILURES_MAX: u32 = 2;

/// The state of a camera.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CameraState {
    /// No picture came yet.
    #[default]
    Waiting,
    Online,
    /// Its pictures come, and cannot be decoded, or have no answer of the model.
    Failing,
    /// It gives the same bytes again and again.
    Frozen,
    /// It gives no pictures.
    Away,
}

impl CameraState {
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Online, Self::Failing, Self::Frozen, Self::Away];

    /// Its name in metrics, messages and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Online => "online",
            Self::Failing => "failing",
            Self::Frozen => "frozen",
            Self::Away => "away",
        }
    }
}

/// The state of a camera, and the observations behind it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CameraHealth {
    pub state: CameraState,
    /// The time since when it is so; `None` before the first picture or failure.
    pub since: Option<Moment>,
    /// The reason for which it is not online.
    pub reason: Option<String>,
    /// The time of the last picture, also of one with the same bytes as before.
    pub came: Option<Moment>,
    /// The last picture that was looked at and had other bytes than the one before.
    newest: Option<(blake3::Hash, Moment)>,
    /// Requests in a row without a picture.
    misses: u32,
    /// Pictures in a row that were not looked at.
    failures: u32,
}

impl CameraHealth {
    /// The time of the last new picture: one that was looked at and had other bytes than the one before.
    pub fn new_picture(&self) -> Option<Moment> {
        self.newest.map(|(_, at)| at)
    }

    /// Notes that no picture came. `is_certain`: another try would not help. True if the state changed, as in all that
    /// follow.
    pub fn missed(&mut self, reason: String, is_certain: bool, now: Moment) -> bool {
        self.misses = self.misses.saturating_add(1);
        self.fail(CameraState::Away, is_certain || self.misses >= FAILURES_MAX, reason, now)
    }

    /// Notes that a picture came and could not be decoded, or had no answer.
    pub fn failed(&mut self, reason: String, now: Moment) -> bool {
        self.arrived(now);
        self.failures = self.failures.saturating_add(1);
        // It gives pictures, so it is not away; and other ones, so it is not frozen.
        let is_refuted = matches!(self.state, CameraState::Away | CameraState::Frozen);
        self.fail(CameraState::Failing, is_refuted || self.failures >= FAILURES_MAX, reason, now)
    }

    /// True if a picture with these bytes makes the camera a frozen one: they are those of `frozen_after_ms` ago. 0 is
    /// never.
    pub fn is_frozen_by(&self, hash: &blake3::Hash, frozen_after_ms: u64, now: Moment) -> bool {
        let newest = self.newest.filter(|(newest, _)| frozen_after_ms > 0 && newest == hash);
        newest.is_some_and(|(_, at)| now.since_ms(at) >= frozen_after_ms)
    }

    /// Notes a picture for which [`Self::is_frozen_by`] is true.
    pub fn froze(&mut self, now: Moment) -> bool {
        self.arrived(now);
        let at = self.newest.map_or(now, |(_, at)| at);
        // Whole seconds, which are enough for people.
        let since = text(at.unix_ms / 1000 * 1000);
        self.fail(CameraState::Frozen, true, format!("all its pictures since {since} have the same bytes"), now)
    }

    /// Notes that a picture was looked at.
    pub fn looked_at(&mut self, hash: blake3::Hash, now: Moment) -> bool {
        self.arrived(now);
        self.failures = 0;
        if self.newest.is_none_or(|(newest, _)| newest != hash) {
            self.newest = Some((hash, now));
        }
        self.reason = None;
        self.enter(CameraState::Online, now)
    }

    fn arrived(&mut self, now: Moment) {
        self.came = Some(now);
        self.misses = 0;
    }

    fn fail(&mut self, state: CameraState, is_certain: bool, reason: String, now: Moment) -> bool {
        if is_certain {
            self.reason = Some(reason);
            return self.enter(state, now);
        }
        if self.state == CameraState::Waiting {
            self.reason = Some(reason);
        }
        false
    }

    fn enter(&mut self, state: CameraState, now: Moment) -> bool {
        let has_changed = self.state != state;
        if has_changed {
            (self.state, self.since) = (state, Some(now));
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Moment {
        Moment { steady_ms: second * 1000, unix_ms: 1_760_000_000_000 + second * 1000 }
    }

    fn hash(text: &str) -> blake3::Hash {
        blake3::hash(text.as_bytes())
    }

    #[track_caller]
    fn is(health: &CameraHealth, state: CameraState, since_s: Option<u64>, reason: Option<&str>) {
        assert_eq!((health.state, health.since, health.reason.as_deref()), (state, since_s.map(at), reason));
    }

    #[test]
    fn a_state_lasts_since_it_began_with_its_last_reason() {
        let mut health = CameraHealth::default();
        is(&health, CameraState::Waiting, None, None);
        assert!(!health.missed("late".into(), false, at(1)));
        is(&health, CameraState::Waiting, None, Some("late"));
        assert!(health.missed("late".into(), false, at(2)) && !health.missed("gone".into(), false, at(3)));
        is(&health, CameraState::Away, Some(2), Some("gone"));
        assert!(health.looked_at(hash("a"), at(4)) && !health.looked_at(hash("b"), at(5)));
        assert!(!health.missed("once".into(), false, at(6)));
        is(&health, CameraState::Online, Some(4), None);
        assert!(!health.looked_at(hash("c"), at(7)) && !health.missed("once more".into(), false, at(8)));
        is(&health, CameraState::Online, Some(4), None);
        assert!(health.missed("the password".into(), true, at(9)));
        is(&health, CameraState::Away, Some(9), Some("the password"));
    }

    #[test]
    fn a_camera_whose_pictures_cannot_be_used_is_failing_from_the_second_one_on() {
        let mut health = CameraHealth::default();
        health.looked_at(hash("a"), at(0));
        assert!(!health.failed("cut off".into(), at(1)) && health.failed("cut off".into(), at(2)));
        is(&health, CameraState::Failing, Some(2), Some("cut off"));
        assert_eq!((health.came, health.new_picture()), (Some(at(2)), Some(at(0))));
        assert!(health.looked_at(hash("b"), at(3)));
        // Every second one is looked at.
        for second in (4..20).step_by(2) {
            assert!(!health.failed("cut off".into(), at(second)) && !health.looked_at(hash("c"), at(second + 1)));
        }
        // Requests without a picture in between do not make the broken ones better.
        assert!(!health.failed("cut off".into(), at(20)) && !health.missed("late".into(), false, at(21)));
        assert!(health.failed("cut off".into(), at(22)));
        // Away or frozen is refuted by a single picture of which nothing is known.
        health.missed("gone".into(), true, at(23));
        assert!(health.failed("full".into(), at(24)));
        is(&health, CameraState::Failing, Some(24), Some("full"));
    }

    #[test]
    fn the_same_bytes_for_long_enough_are_frozen_and_no_others() {
        let mut health = CameraHealth::default();
        let mut picture = |text: &str, second| {
            if health.is_frozen_by(&hash(text), 120_000, at(second)) {
                health.froze(at(second));
            } else {
                health.looked_at(hash(text), at(second));
            }
            health.state
        };
        assert!((0..120).all(|second| picture("a", second) == CameraState::Online));
        assert!((120..300).all(|second| picture("a", second) == CameraState::Frozen));
        // A single other one, and the same again.
        assert_eq!([picture("b", 300), picture("a", 301)], [CameraState::Online; 2]);
        assert_eq!([picture("a", 420), picture("a", 421)], [CameraState::Online, CameraState::Frozen]);
        is(
            &health,
            CameraState::Frozen,
            Some(421),
            Some("all its pictures since 2025-10-09T08:58:21Z have the same bytes"),
        );
        assert_eq!(health.new_picture(), Some(at(301)));
        // Also after a pause: a camera that was away shows the same picture as before.
        health.missed("gone".into(), true, at(422));
        assert!(health.is_frozen_by(&hash("a"), 120_000, at(423)) && health.froze(at(423)));
        assert!(!health.is_frozen_by(&hash("a"), 0, at(10_000)), "switched off");
    }
}
