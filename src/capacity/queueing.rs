//! The waiting time of calls before a number of cores, and the share of the cores that may be used so that 99 of 100
//! calls stay within their objective.
//!
//! The wait is that of an M/G/c queue by the approximation of Lee and Longton: the wait of M/M/c (Erlang's formula C)
//! times (1 + cv²)/2, here with the mixed second moment of all work that shares the cores. Its tail is taken as
//! exponential.

/// The largest share of the cores that is ever planned with. Beyond it a small burst doubles the waits.
pub const CEILING_MAX: f64 = 0.9;

/// The least share: a box that cannot meet an objective at this load does not meet it at all.
pub const CEILING_MIN: f64 = 0.2;

/// The objective of work without one of its own: so many times its own time without waiting, and a constant for the
/// noise of a machine, in seconds.
pub const OBJECTIVE_FACTOR: f64 = 4.0;
pub const OBJECTIVE_CONSTANT_S: f64 = 0.02;

/// Work that shares the cores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueClass {
    /// Its share of the core time, 0 to 1; those of all classes add up to 1.
    pub share: f64,
    /// The time of one unit on a core without waiting, in seconds.
    pub service_s: f64,
    /// The time within which 99 of 100 units must be answered, in seconds.
    pub objective_s: f64,
}

/// The objective of work that has none of its own, in seconds.
pub fn default_objective(service_s: f64) -> f64 {
    OBJECTIVE_FACTOR * service_s + OBJECTIVE_CONSTANT_S
}

/// The probability that a call waits (Erlang C) when `servers` are busy for the share `load` of their time.
fn wait_probability(servers: u32, load: f64) -> f64 {
    let offered = f64::from(servers) * load;
    // Erlang's formula B, by its recursion.
    let blocked = (1..=servers).fold(1.0, |blocked, n| offered * blocked / (f64::from(n) + offered * blocked));
    blocked / (1.0 - load * (1.0 - blocked))
}

/// The wait in seconds that 99 of 100 calls do not exceed. `residual_s` is the mean of what is left of a unit in
/// service: the second moment of the service time divided by twice its mean.
fn wait_p99(servers: u32, load: f64, residual_s: f64) -> f64 {
    let waits = wait_probability(servers, load);
    let mean_of_waiting = residual_s / (f64::from(servers) * (1.0 - load));
    mean_of_waiting * (waits / 0.01).ln().max(0.0)
}

/// The share of `cores` that these classes may use together so that each meets its objective: from [`CEILING_MIN`] to
/// [`CEILING_MAX`].
pub fn ceiling(cores: f64, classes: &[QueueClass]) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cores are few and positive")]
    let servers = cores.clamp(1.0, 1024.0) as u32;
    // Of a random moment, the unit in service is of a class with the probability of its share of the time.
    let residual = classes.iter().map(|class| class.share * class.service_s).sum::<f64>() / 2.0;
    let is_met = |load: f64| {
        let wait = wait_p99(servers, load, residual);
        classes.iter().all(|class| class.service_s + wait <= class.objective_s)
    };
    let (mut low, mut high) = (CEILING_MIN, CEILING_MAX);
    if is_met(high) {
        return high;
    }
    for _ in 0..30 {
        let middle = f64::midpoint(low, high);
        if is_met(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn class(share: f64, service_s: f64) -> QueueClass {
        QueueClass { share, service_s, objective_s: default_objective(service_s) }
    }

    #[test]
    fn the_probability_of_waiting_is_that_of_tables_of_erlang_c() {
        // Two servers with 1.6 erlangs, and one, which waits for its own load.
        assert!((wait_probability(2, 0.8) - 0.7111).abs() < 1e-4);
        assert!((wait_probability(1, 0.5) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn brief_calls_may_use_more_than_long_ones_and_a_tight_objective_less() {
        assert!((ceiling(2.0, &[class(1.0, 0.000_05)]) - CEILING_MAX).abs() < 1e-9);
        let photographs = ceiling(2.0, &[class(1.0, 0.01)]);
        assert!(photographs > 0.7 && photographs <= CEILING_MAX, "{photographs}");
        let tight = QueueClass { objective_s: 0.012, ..class(1.0, 0.01) };
        assert!(ceiling(2.0, &[tight]) < 0.6);
        assert!((ceiling(2.0, &[QueueClass { objective_s: 0.001, ..tight }]) - CEILING_MIN).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn more_cores_never_allow_a_smaller_share(
            cores in 1_u32..64, service in 1e-5_f64..5.0, factor in 1.01_f64..20.0,
        ) {
            let classes = [QueueClass { share: 1.0, service_s: service, objective_s: service * factor }];
            let (few, more) = (ceiling(f64::from(cores), &classes), ceiling(f64::from(cores + 1), &classes));
            prop_assert!(more >= few - 1e-6, "{few} {more}");
            prop_assert!((CEILING_MIN..=CEILING_MAX).contains(&few));
        }
    }
}
