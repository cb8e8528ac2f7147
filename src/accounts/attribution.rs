//! The CPU time of the service besides runs, divided among callers.
//!
//! The CPU time of a run is known for each call. The rest of the service's time is connections, requests, answers,
//! the audit log, and work that no caller asked for. Each caller gets for each call and each byte what such a call was
//! measured to cost, together at most the rest; what is left is the box's own.

use std::time::Duration;

/// The CPU time of a small call besides its run: accept, route, check, decode, record, encode. It is that of a cache hit
/// with a tiny input in the table of `docs/performance.md`: such a call has no run.
pub const CPU_A_CALL: Duration = Duration::from_micros(35);

/// The CPU time of a byte of a request or an answer, in picoseconds. From the same table: a cache hit with an input of
/// 110 kB takes 59 us more.
pub const CPU_A_BYTE_PS: u64 = 540;

/// The use of one caller of one model in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntervalUse {
    pub calls: u64,
    /// In and out.
    pub bytes: u64,
    /// CPU time of runs.
    pub runs: Duration,
}

/// The rest of an interval, divided.
#[derive(Debug, PartialEq, Eq)]
pub struct DividedRest {
    /// The part of each use besides its runs.
    pub shares: Vec<Duration>,
    /// The part of the box itself.
    pub own: Duration,
}

/// Divides the rest of each interval.
#[derive(Debug, Default)]
pub struct RestDivider {
    /// CPU time of runs beyond that of the service: a run counts when its calls end, so a part of it may be of the
    /// interval before. The next intervals have less rest.
    ahead: Duration,
}

impl RestDivider {
    /// Divides the rest of an interval in which the service used `service`.
    pub fn divide(&mut self, service: Duration, uses: &[IntervalUse]) -> DividedRest {
        let runs: Duration = uses.iter().map(|used| used.runs).sum::<Duration>() + self.ahead;
        let rest = service.saturating_sub(runs);
        self.ahead = runs.saturating_sub(service);

        let costs: Vec<u128> = uses.iter().map(cost_ns).collect();
        let cost = costs.iter().sum::<u128>();
        let given = rest.as_nanos().min(cost);
        let share = |own: &u128| nanos((own * given).checked_div(cost).unwrap_or(0));
        let shares: Vec<_> = costs.iter().map(share).collect();
        let own = rest.saturating_sub(shares.iter().sum::<Duration>());
        DividedRest { shares, own }
    }
}

fn cost_ns(used: &IntervalUse) -> u128 {
    u128::from(used.calls) * CPU_A_CALL.as_nanos() + u128::from(used.bytes) * u128::from(CPU_A_BYTE_PS) / 1000
}

fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn callers_get_what_calls_cost_and_the_box_the_rest() {
        let mut divider = RestDivider::default();
        let uses = [
            IntervalUse { calls: 1000, bytes: 0, runs: MS(500) },
            IntervalUse { calls: 0, bytes: 10_000_000, runs: MS(0) },
        ];
        let result = divider.divide(MS(700), &uses);
        assert_eq!(
            result,
            DividedRest { shares: vec![MS(35), Duration::from_micros(5400)], own: Duration::from_micros(159_600) }
        );
        // Where there is less, they share it by the same weights, and the box has nothing.
        let result = divider.divide(Duration::from_micros(504_040), &uses);
        assert_eq!(
            result,
            DividedRest { shares: vec![Duration::from_micros(3500), Duration::from_micros(540)], own: MS(0) }
        );
        assert_eq!(divider.divide(MS(5), &[]), DividedRest { shares: Vec::new(), own: MS(5) });
    }

    #[test]
    fn a_run_that_began_in_the_interval_before_is_not_counted_twice() {
        let mut divider = RestDivider::default();
        assert_eq!(divider.divide(MS(900), &[]).own, MS(900), "the run has not ended");
        let run = IntervalUse { calls: 0, bytes: 0, runs: MS(1000) };
        assert_eq!(divider.divide(MS(200), &[run]).own, MS(0));
        assert_eq!(divider.divide(MS(1000), &[]).own, MS(200), "800 ms were ahead");
    }

    proptest! {
        #[test]
        fn all_parts_together_are_the_time_of_the_service(
            intervals in prop::collection::vec((0_u64..1 << 40, prop::collection::vec((0_u64..1 << 20, 0_u64..1 << 40, 0_u64..1 << 38), 0..6)), 1..20),
        ) {
            let mut divider = RestDivider::default();
            let (mut service, mut counted) = (Duration::ZERO, Duration::ZERO);
            for (nanos, uses) in intervals {
                let uses: Vec<_> = uses.into_iter().map(|(calls, bytes, runs)| IntervalUse { calls, bytes, runs: Duration::from_nanos(runs) }).collect();
                let result = divider.divide(Duration::from_nanos(nanos), &uses);
                service += Duration::from_nanos(nanos);
                counted += result.own + result.shares.iter().sum::<Duration>() + uses.iter().map(|used| used.runs).sum::<Duration>();
            }
            prop_assert_eq!(counted, service + divider.ahead);
        }
    }
}
