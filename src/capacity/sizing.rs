//! The box that a load needs, before there is one: by the figures of a reference processor.

use std::collections::BTreeMap;

use ledge_models::scheduling::scheduler::FOREGROUND_RUN_MAX;
use serde::Serialize;

use crate::costs::CALL_PRIOR_S;
use crate::headroom::{self, Base, Resource, Supply, Used, Work};
use crate::queueing;

/// The processor of the figures.
pub const REFERENCE_PROCESSOR: &str = "Intel Xeon (x86-64 with AVX-512 VNNI), two cores, December 2026";

/// The models that cameras ask by default and that reads documents, and a picture of a camera that shows nothing new.
const CAMERA_MODEL: &str = "coco_detector";
const DOCUMENT_MODEL: &str = "document_reader";
const UNCHANGED: &str = "picture_unchanged";

/// The service without any model.
const EMPTY: &str = "empty";

/// Memory assumed for the operating system, in bytes.
pub const SYSTEM_BYTES: f64 = 600e6;

/// Sizes of boxes that are on sale: cores, and memory in GB.
const BOXES: [(f64, f64); 6] = [(2.0, 4.0), (4.0, 8.0), (8.0, 16.0), (16.0, 32.0), (32.0, 64.0), (64.0, 128.0)];

/// The cost of a unit of work on the reference processor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReferenceCost {
    pub cpu_s: f64,
    /// Time of one run of the model by itself, as `ledge sizing --here` measures it; `None` for other work and chains.
    pub run_s: Option<f64>,
    pub memory_bytes: f64,
}

/// The figures of the reference processor.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference(BTreeMap<String, ReferenceCost>);

impl Reference {
    /// Those of `reference.tsv`.
    pub fn shipped() -> Self {
        let row = |line: &str| {
            let mut cells = line.split('\t');
            let (work, cpu_ms, run_ms, memory_mb) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
            let cost = ReferenceCost {
                cpu_s: cpu_ms.parse::<f64>().ok()? / 1e3,
                run_s: run_ms.parse::<f64>().ok().map(|ms| ms / 1e3),
                memory_bytes: memory_mb.parse::<f64>().ok()? * 1e6,
            };
            Some((work.to_owned(), cost))
        };
        Self(include_str!("sizing/reference.tsv").lines().filter_map(row).collect())
    }

    /// The cost of a call of a model.
    pub fn model(&self, name: &str) -> Option<ReferenceCost> {
        self.0.get(name).copied().filter(|_| ![UNCHANGED, EMPTY].contains(&name))
    }

    /// The names of the models.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str).filter(|name| ![UNCHANGED, EMPTY].contains(name))
    }

    /// The models that `ledge sizing --here` can measure, each with the time of a run in seconds.
    pub fn runs(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().filter_map(|(name, cost)| Some((name.as_str(), cost.run_s?)))
    }

    fn of(&self, work: &'static str) -> ReferenceCost {
        self.0.get(work).copied().unwrap_or(ReferenceCost { cpu_s: 0.0, run_s: None, memory_bytes: 0.0 })
    }
}

/// A load to size a box for.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    pub cameras: f64,
    /// Pictures a second of each, and the share of them that the model is asked about.
    pub pictures_per_s: f64,
    pub look_share: f64,
    pub pages_per_day: f64,
    /// The pages of the busiest hour, as a multiple of the mean hour of a day.
    pub peak: f64,
    /// Calls a second by model.
    pub calls: Vec<(String, f64)>,
    /// The CPU time of a unit here, as a multiple of that on the reference processor.
    pub slowness: f64,
}

/// The box that a load needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sizing {
    /// Cores that are busy in the busiest hour.
    pub busy_cores: f64,
    /// The least number of cores; `None` where no box has enough.
    pub cores: Option<f64>,
    pub memory_bytes: f64,
    /// What runs out first on a box of that many cores.
    pub first: Option<Resource>,
    /// A size that is on sale: cores, and memory in GB.
    pub sold: Option<(f64, f64)>,
}

/// The load on a box of a given size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// The factor by which the whole load can grow on it; below 1 it does not fit. `None` without load.
    pub growth: Option<f64>,
    pub first: Option<Resource>,
    /// The used share of the memory.
    pub memory_ratio: f64,
}

/// The load on a box with so many cores and bytes of memory. The error names a model without figures.
pub fn fit(load: &Load, reference: &Reference, cores: f64, memory_bytes: f64) -> Result<Fit, String> {
    let (work, needed_bytes) = work_of(load, reference)?;
    let grown = headroom::growth(&supply(cores), &Base::default(), &work);
    let memory_ratio = needed_bytes / memory_bytes.max(1.0);
    let first = if memory_ratio > 1.0 { Some(Resource::Memory) } else { grown.map(|of| of.first) };
    Ok(Fit { growth: grown.map(|of| of.amount), first, memory_ratio })
}

fn supply(cores: f64) -> Supply {
    Supply { cores, model_cores: cores, control_threads: 1.0 }
}

/// The box for a load. The error names a model without figures.
pub fn size(load: &Load, reference: &Reference) -> Result<Sizing, String> {
    let (work, memory_bytes) = work_of(load, reference)?;
    let fits = |cores: f64| headroom::used(&supply(cores), &Base::default(), &work);
    let fullest = |used: Vec<Used>| used.into_iter().max_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    let is_enough = |cores: &f64| fullest(fits(*cores)).is_none_or(|used| used.ratio() <= 1.0);
    let cores = (1..=256_u32).map(f64::from).find(is_enough);
    let sold =
        cores.and_then(|cores| BOXES.into_iter().find(|(of, memory)| *of >= cores && *memory * 1e9 >= memory_bytes));
    let busy_cores = work.iter().map(|of| of.rate * (of.run_s + of.other_s)).sum();
    let first = fullest(fits(cores.unwrap_or(256.0))).map(|used| used.resource);
    Ok(Sizing { busy_cores, cores, memory_bytes, first, sold })
}

fn work_of(load: &Load, reference: &Reference) -> Result<(Vec<Work>, f64), String> {
    let mut loads: Vec<(&str, f64)> = load.calls.iter().map(|(model, rate)| (model.as_str(), *rate)).collect();
    let pictures = load.cameras * load.pictures_per_s;
    loads.push((CAMERA_MODEL, pictures * load.look_share));
    loads.push((DOCUMENT_MODEL, load.pages_per_day / 86_400.0 * load.peak));
    let (mut work, mut memory) = (Vec::new(), BTreeMap::new());
    for (model, rate) in loads.into_iter().filter(|(_, rate)| *rate > 0.0) {
        let Some(cost) = reference.model(model) else {
            let known = reference.models().collect::<Vec<_>>().join(", ");
            return Err(format!("there are no figures of {model}: known are {known}"));
        };
        memory.insert(model, cost.memory_bytes);
        work.push(unit(rate, cost.cpu_s * load.slowness));
    }
    let unchanged = reference.of(UNCHANGED);
    if pictures > 0.0 {
        work.push(unit(pictures, unchanged.cpu_s * load.slowness));
    }
    let bytes = SYSTEM_BYTES
        + reference.of(EMPTY).memory_bytes
        + memory.values().sum::<f64>()
        + load.cameras * unchanged.memory_bytes;
    Ok((work, bytes))
}

/// Work of so many units a second. A unit takes the thread that serves callers no longer than a small call does.
fn unit(rate: f64, cpu_s: f64) -> Work {
    let control_s = cpu_s.min(2.0 * CALL_PRIOR_S);
    Work {
        rate,
        run_s: cpu_s - control_s,
        other_s: control_s,
        control_s,
        service_s: cpu_s,
        objective_s: queueing::default_objective(cpu_s),
        at_a_time: f64::INFINITY,
        is_background: cpu_s > FOREGROUND_RUN_MAX.as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load() -> Load {
        Load {
            cameras: 0.0,
            pictures_per_s: 1.0,
            look_share: 0.2,
            pages_per_day: 0.0,
            peak: 3.0,
            calls: Vec::new(),
            slowness: 1.0,
        }
    }

    #[test]
    fn every_row_of_the_reference_is_read() {
        let rows = include_str!("sizing/reference.tsv").lines().filter(|line| !line.starts_with('#'));
        assert_eq!(Reference::shipped().0.len(), rows.count());
        for work in [CAMERA_MODEL, DOCUMENT_MODEL, UNCHANGED] {
            assert!(Reference::shipped().of(work).cpu_s > 0.0, "{work}");
        }
    }

    #[test]
    fn twelve_cameras_and_three_hundred_documents_a_day_need_a_small_box() {
        let sizing = size(&Load { cameras: 12.0, pages_per_day: 300.0, ..load() }, &Reference::shipped()).unwrap();
        let of = |work| Reference::shipped().of(work).cpu_s;
        let busy = 12.0 * of(UNCHANGED) + 2.4 * of(CAMERA_MODEL) + 300.0 * 3.0 / 86_400.0 * of(DOCUMENT_MODEL);
        assert!((sizing.busy_cores - busy).abs() < 1e-9, "{sizing:?}");
        assert_eq!((sizing.cores, sizing.sold), (Some(1.0), Some((2.0, 4.0))));
    }

    #[test]
    fn a_load_that_needs_a_number_of_cores_fits_on_that_many_and_not_on_half_of_them() {
        let load = Load { calls: vec![("coco_detector".to_owned(), 150.0)], ..load() };
        let needed = size(&load, &Reference::shipped()).unwrap();
        let growth = |cores| fit(&load, &Reference::shipped(), cores, 8e9).unwrap().growth.unwrap();
        let cores = needed.cores.unwrap();
        assert!(growth(cores) >= 1.0 && growth(cores / 2.0) < 1.0, "{needed:?}");
        let small = fit(&load, &Reference::shipped(), cores, needed.memory_bytes / 2.0).unwrap();
        assert_eq!(small.first, Some(Resource::Memory));
    }

    #[test]
    fn a_slower_processor_needs_more_cores() {
        let of = |slowness| {
            let calls = vec![("coco_detector".to_owned(), 50.0)];
            size(&Load { calls, slowness, ..load() }, &Reference::shipped()).unwrap().cores.unwrap()
        };
        assert!(of(4.0) > of(1.0));
    }

    #[test]
    fn calls_beyond_the_thread_that_serves_them_fit_on_no_number_of_cores() {
        let calls = vec![("wine_mlp".to_owned(), 50_000.0)];
        let sizing = size(&Load { calls, ..load() }, &Reference::shipped()).unwrap();
        assert_eq!((sizing.cores, sizing.sold, sizing.first), (None, None, Some(Resource::ControlThread)));
        let unknown = Load { calls: vec![("mine".to_owned(), 1.0)], ..load() };
        assert!(size(&unknown, &Reference::shipped()).unwrap_err().contains("mine"));
    }

    proptest! {
        #[test]
        fn more_work_never_needs_less(cameras in 0.0_f64..200.0, pages in 0.0_f64..1e5, more in 1.0_f64..3.0) {
            let of = |factor: f64| {
                let load = Load { cameras: cameras * factor, pages_per_day: pages * factor, ..load() };
                size(&load, &Reference::shipped()).unwrap()
            };
            let (less, more) = (of(1.0), of(more));
            prop_assert!(more.memory_bytes >= less.memory_bytes);
            prop_assert!(more.cores.unwrap_or(1e9) >= less.cores.unwrap_or(1e9));
        }
    }
}
