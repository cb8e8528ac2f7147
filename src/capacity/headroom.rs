//! The work that fits on a box until its first resource is used up.

use serde::{Deserialize, Serialize};

use crate::queueing::{self, QueueClass};

/// The largest growth that is reported: beyond it the measured load was too small to judge.
const GROWTH_MAX: f64 = 1000.0;

/// Runs that are shorter than this, in seconds, need no worker: `models/scheduling/inline.rs`.
const INLINE_RUN_S: f64 = 60e-6;

/// Something that work uses up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// The CPU time of all processes of the service, on the cores that it may use.
    Cores,
    /// The CPU time of runs, on the cores of `runtimes.threads`.
    ModelCores,
    /// The time of the threads that serve callers, `control.threads`.
    ControlThread,
    /// The instances that one model may have.
    Instances,
    Memory,
    /// `http.max_memory_bytes`.
    RequestMemory,
    Disk,
}

impl Resource {
    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::ModelCores => "model_cores",
            Self::ControlThread => "control_thread",
            Self::Instances => "instances",
            Self::Memory => "memory",
            Self::RequestMemory => "request_memory",
            Self::Disk => "disk",
        }
    }

    /// The name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cores => "the time of the cores",
            Self::ModelCores => "the cores for models (runtimes.threads)",
            Self::ControlThread => "the thread that serves callers (control.threads)",
            Self::Instances => "the instances of the model (instance_group)",
            Self::Memory => "memory",
            Self::RequestMemory => "the memory of requests (http.max_memory_bytes)",
            Self::Disk => "the disk",
        }
    }
}

/// What the box has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Supply {
    /// Cores that the service may use, without those that other programs keep busy.
    pub cores: f64,
    /// Cores that models run on, likewise.
    pub model_cores: f64,
    /// Threads that serve callers.
    pub control_threads: f64,
}

/// A kind of work, with what a unit of it costs, and its rate now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Units a second.
    pub rate: f64,
    /// CPU time of the runs of a unit, in seconds.
    pub run_s: f64,
    /// CPU time of a unit besides its runs, in seconds.
    pub other_s: f64,
    /// Time of the thread that serves callers, in seconds.
    pub control_s: f64,
    /// Time of a unit on its cores without waiting, in seconds.
    pub service_s: f64,
    pub objective_s: f64,
    /// The most units that run at a time; infinite where nothing limits it.
    pub at_a_time: f64,
    /// Its runs are long, and give way to those of other work.
    pub is_background: bool,
}

impl Work {
    /// The thread that serves callers runs it itself, and so it waits for no run of other work: the kernel shares the
    /// core between them.
    fn is_inline(&self) -> bool {
        self.run_s < INLINE_RUN_S
    }
}

/// Work that does not grow with the calls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Base {
    /// CPU time of the idle service, in cores.
    pub cores: f64,
    /// Time of the thread that serves callers.
    pub control: f64,
    /// Wake-ups of that thread a second now, and the CPU time of one. They vanish while it has no pause.
    pub wakes: f64,
    pub wake_s: f64,
}

/// A resource, how much of it is used now, and the most that may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Used {
    pub resource: Resource,
    pub used: f64,
    pub most: f64,
}

impl Used {
    /// 0 for an idle box, 1 where no more fits.
    pub fn ratio(&self) -> f64 {
        if self.most > 0.0 { (self.used / self.most).max(0.0) } else { 1.0 }
    }
}

/// The use of each resource by this work.
pub fn used(supply: &Supply, base: &Base, work: &[Work]) -> Vec<Used> {
    let sum = |cost: &dyn Fn(&Work) -> f64| work.iter().map(|work| work.rate * cost(work)).sum::<f64>();
    let (runs, others, control) = (sum(&|of| of.run_s), sum(&|of| of.other_s), sum(&|of| of.control_s));
    let control = control + base.control;
    // A thread with less and less pauses is woken less and less often.
    let awake = (control / supply.control_threads.max(1.0)).min(1.0);
    let wakes = base.wakes * base.wake_s * (1.0 - awake);
    let all = runs + others;
    let classes: Vec<QueueClass> = work
        .iter()
        .filter(|of| of.rate > 0.0 && all > 0.0)
        .map(|of| QueueClass {
            share: of.rate * of.run_s / all,
            run_s: of.run_s,
            service_s: of.service_s,
            objective_s: if of.is_inline() { f64::INFINITY } else { of.objective_s },
            is_background: of.is_background,
        })
        .collect();
    let share = |cores: f64| queueing::ceiling(cores, &classes);
    let mut list = vec![
        Used { resource: Resource::Cores, used: base.cores + wakes + all, most: supply.cores * share(supply.cores) },
        Used { resource: Resource::ModelCores, used: runs, most: supply.model_cores * share(supply.model_cores) },
        Used { resource: Resource::ControlThread, used: control, most: supply.control_threads * queueing::CEILING_MAX },
    ];
    let own = work.iter().filter(|of| of.at_a_time.is_finite());
    let instances = own.map(|of| Used {
        resource: Resource::Instances,
        used: of.rate * of.service_s,
        most: of.at_a_time * queueing::CEILING_MAX,
    });
    // The fullest one stands for all.
    list.extend(instances.max_by(|a, b| a.ratio().total_cmp(&b.ratio())));
    list
}

/// The headroom, and the resource that ends it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Headroom {
    /// More units a second of one kind; or, for the whole mix, the factor by which it can grow.
    pub amount: f64,
    pub first: Resource,
}

/// The units a second of `more` that fit next to all other work as it is now. `more.rate` is not counted.
pub fn headroom(supply: &Supply, base: &Base, work: &[Work], more: &Work) -> Headroom {
    let cost = (more.run_s + more.other_s).max(more.control_s).max(1e-9);
    let at = |rate: f64| {
        let added = [work, &[Work { rate, ..*more }]].concat();
        fullest(&used(supply, base, &added))
    };
    search(supply.cores.max(1.0) / cost, at)
}

/// The factor by which all work can grow together: 1 is no growth, less is too much already.
pub fn growth(supply: &Supply, base: &Base, work: &[Work]) -> Option<Headroom> {
    if work.iter().all(|of| of.rate <= 0.0) {
        return None;
    }
    let at = |factor: f64| {
        let grown: Vec<Work> = work.iter().map(|of| Work { rate: of.rate * factor, ..*of }).collect();
        fullest(&used(supply, &Base { wakes: base.wakes * factor, ..*base }, &grown))
    };
    Some(search(GROWTH_MAX, at))
}

/// The fullest resource, and how full it is.
fn fullest(used: &[Used]) -> (f64, Resource) {
    let first = used.iter().map(|of| (of.ratio(), of.resource)).max_by(|a, b| a.0.total_cmp(&b.0));
    first.unwrap_or((0.0, Resource::Cores))
}

/// The largest amount up to `most` at which nothing is fuller than 1.
fn search(most: f64, at: impl Fn(f64) -> (f64, Resource)) -> Headroom {
    let (mut low, mut high) = (0.0, most);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if at(middle).0 <= 1.0 { low = middle } else { high = middle }
    }
    Headroom { amount: low, first: at(high).1 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUPPLY: Supply = Supply { cores: 2.0, model_cores: 2.0, control_threads: 1.0 };

    fn work(rate: f64, run_s: f64, other_s: f64) -> Work {
        let service_s = run_s + other_s;
        Work {
            rate,
            run_s,
            other_s,
            control_s: other_s,
            service_s,
            objective_s: queueing::default_objective(service_s),
            at_a_time: f64::INFINITY,
            is_background: run_s > 0.01,
        }
    }

    #[test]
    fn tiny_calls_end_with_the_thread_that_serves_them_and_photographs_with_the_cores() {
        let tiny = headroom(&SUPPLY, &Base::default(), &[], &work(0.0, 5e-6, 45e-6));
        assert_eq!(tiny.first, Resource::ControlThread);
        assert!((tiny.amount - 0.9 / 45e-6).abs() < 1.0, "{tiny:?}");
        let photographs = headroom(&SUPPLY, &Base::default(), &[], &work(0.0, 0.0098, 0.0002));
        assert_eq!(photographs.first, Resource::Cores);
        assert!((140.0..181.0).contains(&photographs.amount), "{photographs:?}");
    }

    #[test]
    fn one_instance_ends_before_two_cores() {
        let one = Work { at_a_time: 1.0, ..work(0.0, 0.01, 0.0) };
        assert_eq!(headroom(&SUPPLY, &Base::default(), &[], &one).first, Resource::Instances);
    }

    #[test]
    fn a_mix_grows_as_its_parts_allow() {
        let mix = [work(10.0, 0.01, 0.001), work(100.0, 5e-6, 50e-6)];
        let grown = growth(&SUPPLY, &Base::default(), &mix).unwrap();
        let all = used(&SUPPLY, &Base::default(), &mix.map(|of| Work { rate: of.rate * grown.amount, ..of }));
        assert!((fullest(&all).0 - 1.0).abs() < 1e-3, "{all:?}");
        assert_eq!(growth(&SUPPLY, &Base::default(), &[work(0.0, 1.0, 1.0)]), None);
    }

    proptest! {
        #[test]
        fn headroom_is_never_negative_and_more_cores_or_less_load_never_give_less(
            cores in 1_u32..32, busy in 0.0_f64..3.0, rate in 0.0_f64..500.0, less in 0.0_f64..1.0,
            run_s in 1e-6_f64..0.5, other_s in 1e-6_f64..0.05,
        ) {
            let supply = |cores: u32| {
                let cores = (f64::from(cores) - busy).max(0.1);
                Supply { cores, model_cores: cores, control_threads: 1.0 }
            };
            let base = Base { cores: 0.01, control: 0.001, wakes: 100.0, wake_s: 1e-5 };
            let more = work(0.0, run_s, other_s);
            let of = |cores, rate| headroom(&supply(cores), &base, &[work(rate, run_s, other_s)], &more).amount;
            let now = of(cores, rate);
            prop_assert!(now >= 0.0 && now.is_finite());
            prop_assert!(of(cores + 1, rate) >= now - 1e-6 * now - 1e-9);
            prop_assert!(of(cores, rate * less) >= now - 1e-6 * now - 1e-9);
        }
    }
}
