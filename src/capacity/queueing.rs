//! The waiting time of calls before a number of cores, and the share of the cores that may be used so that 99 of 100
//! calls stay within their objective.
//!
//! There are two queues on the same cores, as the daemon has them: short runs, and long ones, whose threads have a
//! lower priority. Each is slower by what else is on the cores: long runs have what short ones and the work besides runs
//! (receiving, decoding, answering) leave, and short ones have their weight of a core on which a long run or other work
//! is.
//!
//! Within a queue, the models take turns by the core time that they have used (start-time fair queueing), and no run is
//! interrupted. So a unit waits for the run that is on the core, and for the earlier units of its own model, which have
//! the core time that other models leave, or at least an equal part. The second wait is that of an M/G/c queue by the
//! approximation of Lee and Longton: the wait of M/M/c (Erlang's formula C) times (1 + cv²)/2, here with units of equal
//! length. Its tail is taken as exponential.

/// The largest share of the cores that is ever planned with. Beyond it a small burst doubles the waits.
pub const CEILING_MAX: f64 = 0.9;

/// The least share: a box that cannot meet an objective at this load does not meet it at all.
pub const CEILING_MIN: f64 = 0.2;

/// The objective of work without one of its own: so many times its own time without waiting, and a constant for the
/// noise of a machine, in seconds.
pub const OBJECTIVE_FACTOR: f64 = 4.0;
pub const OBJECTIVE_CONSTANT_S: f64 = 0.02;

/// The part of a core that a thread of nice 0 has beside one of nice 5: their weights in `sched_prio_to_weight` of
/// the kernel (kernel/sched/core.c) are 1024 and 335.
const FOREGROUND_PART: f64 = 1024.0 / (1024.0 + 335.0);

/// The part of a core that a run has beside other work of its priority.
const EQUAL_PART: f64 = 0.5;

/// The share of each core's time that the runs of each of the two queues take, and the work besides runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loads {
    pub short: f64,
    pub long: f64,
    pub other: f64,
}

impl Loads {
    /// The factor by which a run takes longer on the clock than alone on its core.
    pub fn slowdown(self, is_background: bool) -> f64 {
        if is_background {
            1.0 / (1.0 - self.short - self.other).max(0.01)
        } else {
            // The part of the time in which a long run would be on the core.
            let beside = (self.long / (1.0 - self.short).max(0.01)).min(1.0);
            let other = self.other.min(1.0);
            1.0 / (1.0 - beside * (1.0 - FOREGROUND_PART) - other * (1.0 - EQUAL_PART)).max(0.01)
        }
    }
}

/// Work that shares the cores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueClass {
    /// The share of its runs in all core time, 0 to 1; what those of all classes leave is work besides runs.
    pub share: f64,
    /// The time of the runs of one unit, in seconds.
    pub run_s: f64,
    /// The time of one unit without waiting, in seconds.
    pub service_s: f64,
    /// The time within which 99 of 100 units must be answered, in seconds.
    pub objective_s: f64,
    /// Its runs are long, and have a lower priority.
    pub is_background: bool,
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

/// The wait in seconds that 99 of 100 calls do not exceed; infinite for a queue that grows without end.
fn wait_p99(servers: u32, load: f64, residual_s: f64) -> f64 {
    if load >= 1.0 {
        return f64::INFINITY;
    }
    let waits = wait_probability(servers, load);
    let mean_of_waiting = residual_s / (f64::from(servers) * (1.0 - load));
    mean_of_waiting * (waits / 0.01).ln().max(0.0)
}

/// The wait in seconds that 99 of 100 units of a class do not exceed, while the classes use this share of the cores.
fn class_wait_p99(servers: u32, load: f64, of: usize, classes: &[QueueClass]) -> f64 {
    let Some(own) = classes.get(of) else { return 0.0 };
    let tier = |class: &&QueueClass| class.is_background == own.is_background;
    let other = || classes.iter().enumerate().filter(|(at, _)| *at != of).map(|(_, class)| class).filter(tier);
    let shares: f64 = other().map(|class| class.share).sum();
    let times: f64 = other().map(|class| class.share * class.run_s).sum();

    // Of a random moment, the run on a core is of a class with the probability of its share of the time, and any part of
    // it may be left.
    let left_s = if shares > 0.0 { times / shares / f64::from(servers) } else { 0.0 };
    let blocking = wait_probability(servers, (load * (shares + own.share)).min(1.0)).min(load * shares);
    let blocked_s = left_s * (1.0 - 0.01 / blocking.max(0.01));

    let equal_part = 1.0 / f64::from(u32::try_from(other().count()).unwrap_or(u32::MAX).saturating_add(1));
    let part = (1.0 - load * shares).max(equal_part);
    blocked_s + wait_p99(servers, load * own.share / part, own.run_s / 2.0 / part)
}

/// The share of `cores` that these classes may use together so that each meets its objective: from [`CEILING_MIN`] to
/// [`CEILING_MAX`].
pub fn ceiling(cores: f64, classes: &[QueueClass]) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cores are few and positive")]
    let servers = cores.clamp(1.0, 1024.0) as u32;
    let share = |is_background: bool| -> f64 {
        classes.iter().filter(|class| class.is_background == is_background).map(|class| class.share).sum()
    };
    let (short, long) = (share(false), share(true));
    let is_met = |load: f64| {
        let loads = Loads { short: load * short, long: load * long, other: load * (1.0 - short - long).max(0.0) };
        classes.iter().enumerate().all(|(of, class)| {
            let factor = loads.slowdown(class.is_background);
            let wait = factor * class_wait_p99(servers, load * factor, of, classes);
            class.service_s * factor + wait <= class.objective_s
        })
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
        let objective_s = default_objective(service_s);
        QueueClass { share, run_s: service_s, service_s, objective_s, is_background: service_s > 0.01 }
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

    #[test]
    fn short_calls_do_not_wait_for_long_ones_and_are_a_little_slower_beside_them() {
        let (short, long) = (class(0.3, 0.003), class(0.7, 0.4));
        let together = ceiling(1.0, &[short, long]);
        assert!(together > 0.35, "{together}");
        let one_queue = ceiling(1.0, &[short, QueueClass { is_background: false, ..long }]);
        assert!(one_queue < 0.3, "{one_queue}");
        let alone = QueueClass { share: 1.0, objective_s: 0.008, ..short };
        let beside = [QueueClass { share: 0.3, ..alone }, QueueClass { objective_s: f64::INFINITY, ..long }];
        assert!(ceiling(1.0, &beside) * 0.3 < ceiling(1.0, &[alone]));
    }

    #[test]
    fn a_brief_call_waits_for_one_photograph_and_not_for_all() {
        // Of `benches/capacity.py`, "shop", where wine_mlp had 99 of 100 answers within 10 ms beside photographs that kept
        // the core busy.
        let (wine, photograph) = (class(0.1, 0.000_1), QueueClass { run_s: 0.0074, ..class(0.5, 0.0085) });
        let classes = [wine, photograph];
        let load = ceiling(1.0, &classes);
        assert!((0.7..0.9).contains(&load), "{load}");
        let wait = class_wait_p99(1, load, 0, &classes);
        assert!((0.006..0.012).contains(&wait), "{wait}");
        assert!(class_wait_p99(1, load, 1, &classes) > wait);
        assert!(ceiling(1.0, &[QueueClass { share: 0.85, ..photograph }]) < load, "other work is not in the queue");
    }

    proptest! {
        #[test]
        fn more_cores_never_allow_a_smaller_share(
            cores in 1_u32..64, service in 1e-5_f64..5.0, factor in 1.01_f64..20.0,
        ) {
            let class = QueueClass { objective_s: service * factor, ..class(1.0, service) };
            let classes = [class];
            let (few, more) = (ceiling(f64::from(cores), &classes), ceiling(f64::from(cores + 1), &classes));
            prop_assert!(more >= few - 1e-6, "{few} {more}");
            prop_assert!((CEILING_MIN..=CEILING_MAX).contains(&few));
        }
    }
}
