//! The time that the load of a version may take. Pure: no clock, no disk.
//!
//! `limit = (30 s + 1 s for each MiB of its files) * factor`, where `factor` is 4 times the slowest load of a version
//! that this box serves, measured in the same unit (30 s + 1 s for each MiB), at least 1 and at most 4. Each earlier
//! try that ran out of time doubles it, up to an hour. The files are those of the version, with external data.
//!
//! A load is over its limit when it has taken that long and its process has used as much CPU time, so that a busy
//! machine fails no load; or when it has taken [`WALL_FACTOR`] times as long, regardless of what it waits for.

use std::time::Duration;

const TIME_MIN: Duration = Duration::from_secs(30);
const BYTES_PER_SECOND: u64 = 1 << 20;

/// The most by which a slow box raises the limit.
const FACTOR_MAX: f64 = 4.0;

/// The longest limit.
const TIME_MAX: Duration = Duration::from_hours(1);

/// The factor by which a load may exceed its limit if it does not use CPU time.
pub const WALL_FACTOR: u32 = 4;

/// The limit of a load of this many bytes. `served` has the bytes and the time of the loads of versions that this box
/// serves; `timeouts` tries of this one ran out of time.
pub fn limit(bytes: u64, served: impl Iterator<Item = (u64, Duration)>, timeouts: u32) -> Duration {
    let share = |(bytes, took): (u64, Duration)| took.as_secs_f64() / unit(bytes).as_secs_f64();
    let slowest = served.map(share).fold(0.0, f64::max);
    let factor = (FACTOR_MAX * slowest).clamp(1.0, FACTOR_MAX);
    let limit = unit(bytes).mul_f64(factor).min(TIME_MAX);
    limit.saturating_mul(2_u32.saturating_pow(timeouts)).min(TIME_MAX)
}

/// True when a load is over its limit.
pub fn is_over(limit: Duration, elapsed: Duration, cpu: Duration) -> bool {
    elapsed >= limit && (cpu >= limit || elapsed >= limit.saturating_mul(WALL_FACTOR))
}

fn unit(bytes: u64) -> Duration {
    // More does not fit a limit.
    (TIME_MIN + Duration::from_secs(bytes / BYTES_PER_SECOND)).min(TIME_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_limit_grows_with_the_file_the_box_and_tries_that_ran_out_of_time() {
        let seconds = |bytes, served: &[(u64, u64)], timeouts| {
            let served = served.iter().map(|(bytes, took)| (*bytes, Duration::from_secs(*took)));
            limit(bytes, served, timeouts).as_secs()
        };
        assert_eq!(seconds(5_000, &[], 0), 30);
        assert_eq!(seconds(90 << 20, &[], 0), 120);
        // Half of 30 s for next to nothing: twice as much for everybody.
        assert_eq!(seconds(5_000, &[(0, 15), (90 << 20, 1)], 0), 60);
        assert_eq!(seconds(5_000, &[(0, 1)], 0), 30);
        assert_eq!(seconds(5_000, &[(0, 1000)], 0), 120);
        assert_eq!([1, 2, 40].map(|timeouts| seconds(5_000, &[], timeouts)), [60, 120, 3600]);
        assert_eq!(seconds(u64::MAX, &[], 0), 3600);
    }

    #[test]
    fn a_load_that_waits_for_a_core_is_not_over_its_limit() {
        let [limit, elapsed] = [30, 100].map(Duration::from_secs);
        assert!(!is_over(limit, elapsed, Duration::from_secs(29)) && is_over(limit, elapsed, limit));
        assert!(!is_over(limit, Duration::from_secs(29), elapsed) && is_over(limit, 4 * limit, Duration::ZERO));
    }

    proptest! {
        #[test]
        fn a_limit_is_between_half_a_minute_and_an_hour(bytes: u64, of: u64, took_ms: u64, timeouts: u32) {
            let limit = limit(bytes, std::iter::once((of, Duration::from_millis(took_ms))), timeouts);
            prop_assert!((TIME_MIN..=TIME_MAX).contains(&limit), "{:?}", limit);
        }
    }
}
