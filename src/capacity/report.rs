//! The answer of `GET /capacity`: what is used, what else fits, and what runs out first, as figures and in words.

use std::time::Instant;

use ledge_base::clock;
use serde::{Deserialize, Serialize};

use crate::costs::{self, CALL_PRIOR_S};
use crate::headroom::{self, Base, Headroom, Resource, Supply, Used, Work};
use crate::history::{History, Interval, NOW};
use crate::queueing::{self, Loads};
use crate::reading::CAMERAS;
use crate::sizing::Reference;

/// The units of a kind from which on its cost counts as measured.
const UNITS_MIN: f64 = 30.0;

/// The same for work whose unit takes this long or longer, in seconds.
const FEW_UNITS_MIN: f64 = 5.0;
const LONG_UNIT_S: f64 = 0.1;

/// The prior of the time of a document besides its runs, in seconds: the process that draws its pages.
const DOCUMENT_PRIOR_S: f64 = 0.03;

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapacityReport {
    /// The times between which it was measured; `null` in the first seconds after a start.
    pub from: Option<String>,
    pub to: Option<String>,
    /// The factor by which the work of the last five minutes can grow, all kinds alike; `null` without work.
    pub growth: Option<f64>,
    /// What runs out first when it grows so.
    pub first: Option<Resource>,
    pub resources: Vec<ResourceReport>,
    pub work: Vec<WorkReport>,
    /// The same for people: a line for each of `work`, in its order, and then those about all of it.
    pub words: Vec<String>,
}

/// One resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceReport {
    pub resource: Resource,
    /// In its unit: cores, threads, instances or bytes.
    pub used: f64,
    pub most: f64,
    /// 1 where no more fits.
    pub used_ratio: f64,
}

/// How a cost is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// From the work of this box.
    Measured,
    /// Too little work was seen: the figures of the reference processor, see `ledge sizing`.
    Reference,
    NotKnown,
}

/// A kind of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkReport {
    /// `calls`, `documents` or `cameras`.
    pub kind: WorkKind,
    /// The model; `null` for cameras.
    pub model: Option<String>,
    pub source: Source,
    /// Units a second in the last five minutes; for cameras their number.
    pub now: f64,
    /// More of them that fit next to all other work; `null` where the cost is not known.
    pub headroom: Option<f64>,
    pub first: Option<Resource>,
    /// CPU time of a unit, in seconds; of a camera in a second.
    pub cpu_s: Option<f64>,
    /// The time that 99 of 100 units must be answered within, in seconds.
    pub objective_s: Option<f64>,
}

/// What a unit of work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    Calls,
    Documents,
    Cameras,
}

/// A model, as far as its capacity depends on it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    pub name: String,
    /// The name of its kind in the history.
    pub kind: String,
    pub is_document: bool,
    /// The most runs at a time; infinite where only the cores limit them.
    pub at_a_time: f64,
    /// Its runs are long, and give way to those of other models.
    pub is_background: bool,
    /// The objective of its owner, in seconds.
    pub objective_s: Option<f64>,
}

/// The cameras of the box together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CameraFacts {
    pub count: f64,
    /// Pictures since the start, and those of them that a model was asked about.
    pub pictures: f64,
    pub looked: f64,
    /// The kind of the model of most of them.
    pub model: Option<String>,
}

/// The facts that a report is made of besides the history.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub models: Vec<ModelFacts>,
    pub cameras: CameraFacts,
    /// Cores that this service may use, and those of the budget of models.
    pub cores: f64,
    pub model_cores: f64,
    pub control_threads: f64,
    /// Memory and disk.
    pub spaces: Vec<Used>,
}

/// A kind of work with its cost, before its headroom is known.
struct Costed<'f> {
    model: &'f ModelFacts,
    work: Option<Work>,
    source: Source,
}

/// Makes the report at `now`.
pub fn report(history: &History, facts: &Facts, reference: &Reference, now: Instant) -> CapacityReport {
    let (all, recent) = (history.sum(now, None), history.sum(now, Some(NOW)));
    let Some((all, recent)) = all.zip(recent) else { return nothing_measured(facts) };
    let Present { supply, base, costed, cameras, current } = present(history, facts, reference, &all, &recent);

    let mut work: Vec<WorkReport> =
        costed.iter().map(|of| work_report(&supply, &base, &current, of, &recent)).collect();
    if let Some(camera) = cameras {
        let Headroom { amount, first } = headroom::headroom(&supply, &base, &current, &camera.whole);
        work.push(WorkReport {
            kind: WorkKind::Cameras,
            model: None,
            source: Source::Measured,
            now: facts.cameras.count,
            headroom: Some(amount),
            first: Some(first),
            cpu_s: Some(camera.whole.run_s + camera.whole.other_s),
            objective_s: Some(camera.whole.objective_s),
        });
    }
    let resources: Vec<Used> =
        headroom::used(&supply, &base, &current).into_iter().chain(facts.spaces.iter().copied()).collect();
    let growth = headroom::growth(&supply, &base, &current);
    // A space that is full ends all growth, whatever time is left.
    let full = facts.spaces.iter().find(|space| space.ratio() >= 1.0).map(|space| space.resource);
    let growth = growth.map(|of| full.map_or(of, |first| Headroom { amount: of.amount.min(1.0), first }));
    if let Some(full) = full {
        for of in &mut work {
            (of.headroom, of.first) = (of.headroom.map(|_| 0.0), Some(full));
        }
    }
    let start_ms = all.end_ms.saturating_sub(milliseconds(all.seconds));
    let mut report = CapacityReport {
        from: Some(clock::rfc3339(start_ms)),
        to: Some(clock::rfc3339(all.end_ms)),
        growth: growth.map(|of| of.amount),
        first: growth.map(|of| of.first),
        resources: resources.iter().map(ResourceReport::from).collect(),
        work,
        words: Vec::new(),
    };
    report.words = words(&report);
    report
}

/// The share of each resource that is used, for metrics.
pub fn used(history: &History, facts: &Facts, reference: &Reference, now: Instant) -> Vec<ResourceReport> {
    let Some((all, recent)) = history.sum(now, None).zip(history.sum(now, Some(NOW))) else {
        return nothing_measured(facts).resources;
    };
    let Present { supply, base, current, .. } = present(history, facts, reference, &all, &recent);
    let used = headroom::used(&supply, &base, &current);
    used.iter().chain(&facts.spaces).map(ResourceReport::from).collect()
}

/// The box as it works now.
struct Present<'f> {
    supply: Supply,
    base: Base,
    costed: Vec<Costed<'f>>,
    cameras: Option<CameraWork>,
    /// All work. The runs of cameras are among the calls of their models; here is what cameras cost besides.
    current: Vec<Work>,
}

fn present<'f>(
    history: &History,
    facts: &'f Facts,
    reference: &Reference,
    all: &Interval,
    recent: &Interval,
) -> Present<'f> {
    let (supply, base, costed) = model(history, facts, reference, all, recent);
    let pictures_per_s = recent.counts.kinds.get(CAMERAS).map_or(0.0, |count| count.units) / recent.seconds;
    let cameras = camera_work(facts, &costed, all, pictures_per_s);
    let mut current: Vec<Work> = costed.iter().filter_map(|of| of.work).collect();
    current.extend(cameras.map(|camera| Work { rate: facts.cameras.count, ..camera.besides }));
    Present { supply, base, costed, cameras, current }
}

fn nothing_measured(facts: &Facts) -> CapacityReport {
    CapacityReport {
        from: None,
        to: None,
        growth: None,
        first: None,
        resources: facts.spaces.iter().map(ResourceReport::from).collect(),
        work: Vec::new(),
        words: vec!["Nothing is measured yet: ask again after some work, ten seconds later or more.".to_owned()],
    }
}

/// The supply, the base and the cost of each model.
fn model<'f>(
    history: &History,
    facts: &'f Facts,
    reference: &Reference,
    all: &Interval,
    recent: &Interval,
) -> (Supply, Base, Vec<Costed<'f>>) {
    let names: Vec<String> = facts.models.iter().map(|of| of.kind.clone()).chain([CAMERAS.to_owned()]).collect();
    let priors: Vec<f64> = facts
        .models
        .iter()
        .map(|of| if of.is_document { DOCUMENT_PRIOR_S } else { CALL_PRIOR_S })
        .chain([CALL_PRIOR_S])
        .collect();
    let rest = costs::fit(&history.equations(&names, |of| of.service_s - of.runs_s()), &priors);
    let control = costs::fit(&history.equations(&names, |of| of.control_s), &priors);

    let taken_cores = (recent.counts.others_s() / recent.seconds).clamp(0.0, facts.cores);
    let left = |cores: f64| (cores - taken_cores.min(cores * 0.95)).max(0.05);
    let supply = Supply {
        cores: left(facts.cores),
        model_cores: left(facts.model_cores),
        control_threads: facts.control_threads,
    };
    let base = Base {
        cores: rest.idle,
        control: control.idle,
        wakes: recent.counts.wakes / recent.seconds,
        wake_s: rest.wake_s,
    };
    let seen = |model: &ModelFacts| all.counts.kinds.get(&model.kind).copied().unwrap_or_default();
    let other_s = |index: usize| rest.unit_s.get(index).copied().unwrap_or(0.0);
    let share = |time_s: f64| time_s / all.seconds / supply.cores;
    let of_tier = |is_background: bool| {
        let own = facts.models.iter().filter(|model| model.is_background == is_background);
        share(own.map(|model| seen(model).run_s).sum())
    };
    let other: f64 = facts.models.iter().enumerate().map(|(index, model)| seen(model).units * other_s(index)).sum();
    let loads = Loads { short: of_tier(false), long: of_tier(true), other: share(other) };
    let costed = facts.models.iter().enumerate().map(|(index, model)| {
        let seen = seen(model);
        let rate = recent.counts.kinds.get(&model.kind).map_or(0.0, |count| count.units) / recent.seconds;
        let each = |sum: f64| if seen.units > 0.0 { sum / seen.units } else { 0.0 };
        let (run_s, clock_s) = (each(seen.run_s), each(seen.clock_s));
        let enough = if run_s >= LONG_UNIT_S { FEW_UNITS_MIN } else { UNITS_MIN };
        let (source, run_s, other_s, control_s) = if seen.units >= enough {
            (Source::Measured, run_s, other_s(index), control.unit_s.get(index).copied().unwrap_or(0.0))
        } else if let Some(unit) = reference.model(&model.name) {
            (Source::Reference, unit.cpu_s, 0.0, CALL_PRIOR_S)
        } else {
            return Costed { model, work: None, source: Source::NotKnown };
        };
        let ModelFacts { at_a_time, is_background, .. } = *model;
        // A call alone takes longer than its CPU time: cores are woken, and processes hand over to each other.
        let service_s = (run_s + other_s).max(clock_s / loads.slowdown(is_background));
        let objective_s = model.objective_s.unwrap_or_else(|| queueing::default_objective(service_s));
        let work = Work { rate, run_s, other_s, control_s, service_s, objective_s, at_a_time, is_background };
        Costed { model, work: Some(work), source }
    });
    (supply, base, costed.collect())
}

/// One camera more, and what one costs besides the calls of its model.
#[derive(Clone, Copy)]
struct CameraWork {
    whole: Work,
    besides: Work,
}

fn camera_work(facts: &Facts, costed: &[Costed<'_>], all: &Interval, pictures_per_s: f64) -> Option<CameraWork> {
    let CameraFacts { count, pictures, looked, model } = &facts.cameras;
    let seen = all.counts.kinds.get(CAMERAS).filter(|seen| seen.units >= UNITS_MIN)?;
    let work = costed.iter().find(|of| Some(&of.model.kind) == model.as_ref()).and_then(|of| of.work)?;
    let rate = pictures_per_s / count.max(1.0);
    let look = (looked / pictures.max(1.0)).min(1.0);
    let compare = seen.run_s / seen.units;
    let of = |look: f64| Work {
        rate: 0.0,
        run_s: rate * look * work.run_s,
        other_s: rate * (compare + CALL_PRIOR_S + look * work.other_s),
        control_s: rate * (CALL_PRIOR_S + look * work.control_s),
        service_s: work.service_s,
        objective_s: work.objective_s,
        at_a_time: f64::INFINITY,
        is_background: work.is_background,
    };
    (rate > 0.0).then(|| CameraWork { whole: of(look), besides: of(0.0) })
}

fn work_report(supply: &Supply, base: &Base, current: &[Work], of: &Costed<'_>, recent: &Interval) -> WorkReport {
    let headroom = of.work.map(|work| headroom::headroom(supply, base, current, &work));
    let now = recent.counts.kinds.get(&of.model.kind).map_or(0.0, |count| count.units) / recent.seconds;
    WorkReport {
        kind: if of.model.is_document { WorkKind::Documents } else { WorkKind::Calls },
        model: Some(of.model.name.clone()),
        source: of.source,
        now,
        headroom: headroom.map(|of| of.amount),
        first: headroom.map(|of| of.first),
        cpu_s: of.work.map(|work| work.run_s + work.other_s),
        objective_s: of.work.map(|work| work.objective_s),
    }
}

impl From<&Used> for ResourceReport {
    fn from(used: &Used) -> Self {
        Self { resource: used.resource, used: used.used, most: used.most, used_ratio: used.ratio() }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "hours at most, and not negative")]
fn milliseconds(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e3) as u64
}

/// A figure with two digits that matter, rounded down.
pub fn rounded(figure: f64) -> String {
    if figure < 10.0 {
        return format!("{}", (figure * 10.0).floor() / 10.0);
    }
    let step = 10_f64.powf(figure.log10().floor() - 1.0);
    format!("{:.0}", (figure / step).floor() * step)
}

fn words(report: &CapacityReport) -> Vec<String> {
    let mut lines = Vec::new();
    for of in &report.work {
        let model = of.model.as_deref().unwrap_or_default();
        let Some(headroom) = of.headroom else {
            lines.push(format!("{model}: not known, too few calls were seen since the start"));
            continue;
        };
        let what = match of.kind {
            WorkKind::Cameras => format!("{} more cameras like these", rounded(headroom)),
            WorkKind::Documents => format!("{} more documents an hour of {model}", rounded(headroom * 3600.0)),
            WorkKind::Calls => format!("{} more calls a second of {model}", rounded(headroom)),
        };
        let first = of.first.map_or("", Resource::title);
        let how = if of.source == Source::Reference { " (by the figures of the reference processor)" } else { "" };
        lines.push(format!("Room for {what}; then {first} ends it{how}"));
    }
    if let (Some(growth), Some(first)) = (report.growth, report.first) {
        let title = first.title();
        lines.push(if growth >= 1.0 {
            format!(
                "All work of the last five minutes together can grow {} times; {title} runs out first",
                rounded(growth)
            )
        } else {
            format!(
                "The work of the last five minutes is too much: {:.0} % of it fits; {title} has run out",
                growth * 100.0
            )
        });
    }
    let used = |of: &ResourceReport| format!("{} {:.0} %", of.resource.as_str(), of.used_ratio * 100.0);
    lines.push(format!("Used of what may be: {}", report.resources.iter().map(used).collect::<Vec<_>>().join(", ")));
    if let (Some(from), Some(to)) = (&report.from, &report.to) {
        lines.push(format!("Measured from {from} to {to}. Each line is for that work alone, next to the work of now."));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::history::{Counts, INTERVAL, WorkCount};

    /// A box that answered `rate` calls a second of a model for ten minutes: 10 ms of a run each, 0.5 ms besides.
    fn box_of(rate: f64, cores: f64) -> (History, Facts, Instant) {
        let (mut history, start) = (History::default(), Instant::now());
        for minute in 0..=10_u32 {
            let units = rate * 60.0 * f64::from(minute);
            let kinds =
                [("model/m".to_owned(), WorkCount { units, run_s: units * 0.01, clock_s: units * 0.011 })].into();
            let (service_s, control_s) = (units * 0.0105, units * 0.0004);
            let counts =
                Counts { service_s, control_s, wakes: units * 2.0, busy_s: service_s, kinds, ..Counts::default() };
            history.take(start + minute * INTERVAL, u64::from(minute) * 60_000, counts);
        }
        let model = ModelFacts {
            name: "m".to_owned(),
            kind: "model/m".to_owned(),
            is_document: false,
            at_a_time: f64::INFINITY,
            is_background: false,
            objective_s: None,
        };
        let facts = Facts {
            models: vec![model],
            cameras: CameraFacts::default(),
            cores,
            model_cores: cores,
            control_threads: 1.0,
            spaces: Vec::new(),
        };
        (history, facts, start + 10 * INTERVAL + Duration::from_secs(1))
    }

    #[test]
    fn the_room_and_the_load_together_are_what_the_cores_give() {
        let (history, facts, now) = box_of(20.0, 2.0);
        let report = report(&history, &facts, &Reference::shipped(), now);
        let work = &report.work[0];
        let whole = work.now + work.headroom.unwrap();
        assert!((19.0..21.0).contains(&work.now) && (145.0..175.0).contains(&whole), "{report:?}");
        assert!((whole / (work.now * report.growth.unwrap()) - 1.0).abs() < 0.05, "{report:?}");
        assert_eq!((work.source, report.first), (Source::Measured, Some(Resource::Cores)));
    }

    #[test]
    fn a_model_without_calls_is_not_known_unless_it_is_shipped() {
        let (history, mut facts, now) = box_of(20.0, 2.0);
        let unseen =
            |name: &str| ModelFacts { name: name.to_owned(), kind: format!("model/{name}"), ..facts.models[0].clone() };
        facts.models = vec![unseen("my_own"), unseen("coco_detector")];
        let report = report(&history, &facts, &Reference::shipped(), now);
        assert_eq!(report.work.iter().map(|of| of.source).collect::<Vec<_>>(), [Source::NotKnown, Source::Reference]);
        assert_eq!((report.work[0].headroom, report.growth), (None, None));
        assert!(report.words[0].contains("not known"), "{:?}", report.words);
    }

    #[test]
    fn a_full_disk_leaves_no_room() {
        let (history, mut facts, now) = box_of(20.0, 2.0);
        facts.spaces = vec![Used { resource: Resource::Disk, used: 10.0, most: 10.0 }];
        let report = report(&history, &facts, &Reference::shipped(), now);
        assert_eq!((report.work[0].headroom, report.first), (Some(0.0), Some(Resource::Disk)));
    }

    #[test]
    fn figures_are_rounded_down() {
        assert_eq!([0.0, 3.27, 9.99, 42.9, 987.0].map(rounded), ["0", "3.2", "9.9", "42", "980"]);
    }
}
