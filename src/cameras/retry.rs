//! The pauses before a camera that gave no picture is asked again. Pure: times are passed in.

use std::time::Duration;

use ledge_base::backoff::Backoff;

use crate::clock::Moment;

/// The time after the first failure in which a camera is asked often: most are back soon, after a restart or a loose
/// plug.
const EAGER_MS: u64 = 5 * 60_000;

/// The first and the longest pause in that time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const EAGER_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause after that time, and after a refused login at once: a camera locks the user out after some wrong
/// passwords.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The failures in a row of one camera.
#[derive(Debug)]
pub struct Retries {
    began: Option<Moment>,
    eager: Backoff,
    patient: Backoff,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            began: None,
            eager: Backoff::new(FIRST_PAUSE, EAGER_PAUSE),
            patient: Backoff::new(EAGER_PAUSE * 2, LONGEST_PAUSE),
        }
    }
}

impl Retries {
    /// The pause after a try at `now` that failed. `random` is anything from 0 to 1.
    pub fn pause(&mut self, now: Moment, is_login: bool, random: f64) -> Duration {
        let began = *self.began.get_or_insert(now);
        if is_login {
            self.patient.give_way();
        }
        let is_eager = !is_login && now.since_ms(began) < EAGER_MS;
        if is_eager { self.eager.pause(random) } else { self.patient.pause(random) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of the tries in seconds, after a failure at 0, with the longest pauses.
    fn tries(is_login: bool, until_s: u64) -> Vec<u64> {
        let (mut retries, mut now) = (Retries::default(), 0);
        let mut next = || {
            let pause = retries.pause(Moment { steady_ms: now, unix_ms: 0 }, is_login, 1.0);
            now += u64::try_from(pause.as_millis()).unwrap();
            (now < until_s * 1000).then_some(now / 1000)
        };
        std::iter::from_fn(&mut next).collect()
    }

    #[test]
    fn a_camera_is_asked_every_five_seconds_for_five_minutes_and_then_less_and_less_often() {
        let eager: Vec<u64> = [1, 3, 7].into_iter().chain((12..306).step_by(5)).collect();
        let patient = [312, 332, 372, 432, 492];
        assert_eq!(tries(false, 500), [eager.as_slice(), &patient].concat());
    }

    #[test]
    fn a_refused_login_is_not_tried_again_soon() {
        assert_eq!(tries(true, 200), [60, 120, 180]);
    }
}
