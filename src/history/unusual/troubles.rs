//! The box's own troubles on a virtual clock, from readings every five seconds through the recorder to what its owner
//! sees: a leak, a disk that fills, cores that others take or that are throttled, and a model that fails.

use std::collections::HashMap;
use std::f64::consts::PI;
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;
use ledge_models::serving::usage::{CallUsage, UsageInterval, UsageKey};

use super::*;
use crate::figures::FigureHistory;
use crate::readings::{test_reading_of, whole};
use crate::recorder::HistoryRecorder;
use crate::store::HistoryStore;

/// A Thursday.
const BEGIN_MS: u64 = 1_767_225_600_000;
const TICK: Duration = Duration::from_secs(5);
const TICKS_A_MINUTE: u64 = 12;
const DAY: u64 = 1440;
const MB: f64 = 1e6;
const CORES: f64 = 4.0;
const SEEDS: [u64; 2] = [1, 2];

/// The state of the box and its shop at one moment. A trouble changes it.
#[derive(Debug, Clone, Copy)]
struct Moment {
    calls_per_s: f64,
    failing_share: f64,
    answer_s: f64,
    other_cores: f64,
    ledge_bytes: f64,
    disk_free_bytes: f64,
}

/// Changes a moment, so many minutes after its begin.
type Trouble = fn(f64, &mut Moment);

/// Repeatable noise.
#[derive(Debug, Clone)]
struct Noise {
    state: u64,
    /// Wanders slowly around 0, as memory and the load of other programs do.
    wander: f64,
}

impl Noise {
    fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), wander: 0.0 }
    }

    /// From 0 to 1.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.state >> 32).unwrap()) / f64::from(u32::MAX)
    }

    /// Around 0, with a deviation of 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    fn wander(&mut self) -> f64 {
        self.wander = 0.99 * self.wander + 0.14 * self.normal();
        self.wander
    }
}

/// A box with a shop's days, and noise.
#[derive(Debug)]
struct ShopBox {
    folder: tempfile::TempDir,
    watch: UnusualWatch,
    recorder: HistoryRecorder,
    figures: FigureHistory,
    store: HistoryStore,
    start: Instant,
    ticks: u64,
    used: CallUsage,
    noise: Noise,
    records: Vec<AuditEvent>,
}

impl ShopBox {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let watch = UnusualWatch::open(&HistoryConfig { path: folder.path().to_owned(), ..HistoryConfig::default() });
        let (start, used) = (Instant::now(), CallUsage::default());
        let recorder = HistoryRecorder::new(&test_reading_of(start, &used, [f64::NAN; 7]), BEGIN_MS);
        let (figures, store) = (FigureHistory::default(), HistoryStore::disabled());
        let (noise, records) = (Noise::new(seed), Vec::new());
        Self { folder, watch, recorder, figures, store, start, ticks: 0, used, noise, records }
    }

    /// A box that goes on from the written state of this one, and writes nothing.
    fn twin(&self) -> Self {
        let config = HistoryConfig { path: self.folder.path().to_owned(), ..HistoryConfig::default() };
        let watch = UnusualWatch { file: None, ..UnusualWatch::open(&config) };
        let (start, ticks, used) = (self.start, self.ticks, self.used.clone());
        let reading = test_reading_of(start + TICK * u32::try_from(ticks).unwrap(), &used, [f64::NAN; 7]);
        let recorder = HistoryRecorder::new(&reading, self.now_ms());
        Self { watch, recorder, start, ticks, used, noise: self.noise.clone(), ..Self::new(0) }
    }

    fn now_ms(&self) -> u64 {
        BEGIN_MS + self.ticks * 5000
    }

    /// The shop is busy by day, and less on two days of the week. Logs are rotated at midnight.
    fn honest(&mut self) -> Moment {
        let minute = whole(self.ticks / TICKS_A_MINUTE % DAY);
        let hour = minute / 60.0;
        let day = if (7.0..21.0).contains(&hour) { ((hour - 7.0) / 14.0 * PI).sin() } else { 0.0 };
        let week = if self.ticks / TICKS_A_MINUTE / DAY % 7 < 2 { 0.8 } else { 1.0 };
        let busy = 0.08 + 0.92 * day * week;
        let wander = self.noise.wander();
        Moment {
            calls_per_s: 6.0 * busy,
            failing_share: 0.000_5,
            answer_s: 0.018 * (1.0 + 0.3 * busy),
            other_cores: (0.25 + 0.05 * wander + 0.02 * self.noise.normal()).max(0.0),
            ledge_bytes: 300.0 * MB + 20.0 * MB * busy + 2.0 * MB * wander + 0.3 * MB * self.noise.normal(),
            disk_free_bytes: 90_000.0 * MB - 0.2 * MB * minute + MB * self.noise.normal(),
        }
    }

    /// The calls of five seconds.
    fn calls(&mut self, moment: &Moment) -> CallUsage {
        let expected = moment.calls_per_s * TICK.as_secs_f64();
        let count = (expected + expected.sqrt() * self.noise.normal()).round().max(0.0);
        let mut calls = CallUsage::default();
        for _ in (1..).take_while(|number| f64::from(*number) <= count) {
            calls.calls += 1;
            calls.cpu += Duration::from_secs_f64(0.05);
            if self.noise.uniform() < moment.failing_share {
                calls.failed += 1;
            } else {
                let time = moment.answer_s * (0.25 * self.noise.normal()).exp();
                calls.times.add(Duration::from_secs_f64(time));
            }
        }
        calls
    }

    fn tick(&mut self, change: impl FnOnce(&mut Moment)) {
        self.ticks += 1;
        let mut moment = self.honest();
        change(&mut moment);
        let calls = self.calls(&moment);
        self.used.merge(&calls);
        let Moment { other_cores, ledge_bytes, disk_free_bytes, .. } = moment;
        let own_cores = calls.cpu.as_secs_f64() / TICK.as_secs_f64();
        let cores_busy = (own_cores + other_cores).min(CORES);
        let available = 8000.0 * MB - ledge_bytes + 40.0 * MB * self.noise.normal();
        let temperature = 45.0 + 5.0 * cores_busy + 0.3 * self.noise.normal();
        let gauges = [cores_busy, f64::NAN, ledge_bytes, available, temperature, 0.0, disk_free_bytes];
        self.take(&calls, gauges);
    }

    /// Gives the figures of five seconds to the recorder, and the minute that ends with them to the watch.
    fn take(&mut self, calls: &CallUsage, gauges: [f64; 7]) {
        let at = self.start + TICK * u32::try_from(self.ticks).unwrap();
        let reading = test_reading_of(at, &self.used, gauges);
        let key = UsageKey { principal: Principal::Key("till".into()), model: "wine".parse().unwrap() };
        let used = if calls.calls == 0 { HashMap::new() } else { HashMap::from([(key, calls.clone())]) };
        let interval = UsageInterval { end_ms: self.now_ms(), elapsed: TICK, used, service_cpu: None };
        let minute = self.recorder.take(&reading, &interval, &self.figures, &mut self.store);
        if let Some(minute) = minute {
            self.records.extend(self.watch.take(interval.end_ms, &minute));
        }
    }

    fn minute(&mut self, change: impl Fn(&mut Moment)) {
        for _ in 0..TICKS_A_MINUTE {
            self.tick(&change);
        }
    }

    fn honest_minutes(&mut self, count: u64) {
        for _ in 0..count {
            self.minute(|_| {});
        }
    }

    /// The text of the finding on a series.
    fn finding(&self, name: &str) -> Option<String> {
        let finding = format!("unusual {name}");
        self.watch.findings().into_iter().find(|known| known.name == finding).map(|known| known.detail)
    }

    fn events(&self, name: &str) -> Vec<ReportedEvent> {
        self.watch.events.all().filter(|event| event.name == name).cloned().collect()
    }
}

/// A trouble as its owner sees it.
#[derive(Debug)]
struct Seen {
    /// Minutes from its begin to the first finding.
    delay: u64,
    /// The kind, then and when it ended.
    kinds: (&'static str, &'static str),
    direction: Direction,
    text: String,
    /// Minutes from the end of the trouble to that of its last event.
    end_delay: u64,
    /// Ends of the events that began in the trouble.
    ends: Vec<UnusualEnd>,
}

/// A box with a learnt week gets a trouble, which lasts for `lasts` minutes, and then has none.
fn sees(learnt: &ShopBox, name: &str, lasts: u64, trouble: Trouble) -> Seen {
    let mut of = learnt.twin();
    let begin_ms = of.now_ms();
    assert_eq!(of.watch.findings(), [], "before {name}");
    let mut first = None;
    for minute in 0..lasts {
        of.minute(|moment| trouble(whole(minute), moment));
        first = first.or_else(|| of.finding(name).map(|text| (minute + 1, text, of.events(name))));
    }
    let (delay, text, at_first) = first.unwrap_or_else(|| panic!("{name} is not found: {:?}", of.watch.findings()));
    let text = of.finding(name).unwrap_or(text);
    let end_delay = (1..=DAY).find(|_| {
        of.honest_minutes(1);
        of.finding(name).is_none()
    });
    let end_delay = end_delay.unwrap_or_else(|| panic!("{name} does not end: {:?}", of.watch.findings()));
    let events: Vec<_> =
        of.events(name).into_iter().filter(|event| event.ended.is_none_or(|(end_ms, _)| end_ms > begin_ms)).collect();
    let ended = |event: &ReportedEvent| event.ended.map(|(_, end)| end);
    let ends: Vec<_> = events.iter().filter_map(ended).collect();
    assert_eq!(ends.len(), events.len(), "{events:?}");
    records_name_begin_and_end(&of.records, name, events.len());
    // The end of a trouble may be an event of its own.
    let kinds = (at_first[0].kind_word(), events[events.len() - 1].kind_word());
    Seen { delay, kinds, direction: at_first[0].direction, text, end_delay, ends }
}

/// Each event of a series has a record of its begin and one of its end.
fn records_name_begin_and_end(records: &[AuditEvent], name: &str, events: usize) {
    let (model, figure) = recorded_name(name).unwrap();
    let began = |record: &&AuditEvent| matches!(record, AuditEvent::UnusualBegan { model: of, figure: column, .. } if (of, column) == (&model, &figure));
    let ended = |record: &&AuditEvent| matches!(record, AuditEvent::UnusualEnded { model: of, figure: column, .. } if (of, column) == (&model, &figure));
    let (began, ended) = (records.iter().filter(began).count(), records.iter().filter(ended).count());
    assert_eq!((began, ended), (events, events), "{name}: {records:?}");
}

fn learnt(seed: u64) -> ShopBox {
    let mut of = ShopBox::new(seed);
    of.honest_minutes(7 * DAY + 600);
    assert_eq!(of.watch.findings(), [], "while it learns, seed {seed}");
    of.watch.write().unwrap();
    of
}

/// A trouble of a series, and what its owner must see of it.
struct Plan {
    name: &'static str,
    /// Minutes.
    lasts: u64,
    trouble: Trouble,
    delay_max: u64,
    /// The kinds of its event at the end.
    kinds: &'static [&'static str],
    direction: Direction,
    /// A part of the finding after all of its minutes.
    says: &'static str,
    ends: &'static [UnusualEnd],
}

const PLANS: [Plan; 5] = [
    Plan {
        name: "box ledge_memory_bytes",
        lasts: 600,
        trouble: |minutes, moment| moment.ledge_bytes += MB * minutes,
        delay_max: 180,
        kinds: &["trend"],
        direction: Direction::Up,
        says: "it has been rising for",
        ends: &[UnusualEnd::Usual],
    },
    Plan {
        name: "box disk_free_bytes",
        lasts: 600,
        trouble: |minutes, moment| moment.disk_free_bytes -= 12.5 * MB * minutes,
        delay_max: 360,
        kinds: &["trend", "limit"],
        direction: Direction::Down,
        says: "reaches 0 in ",
        ends: &[UnusualEnd::Usual, UnusualEnd::LimitFar],
    },
    Plan {
        name: "box other_cores",
        lasts: 60,
        trouble: |_, moment| moment.other_cores += 1.5,
        delay_max: 5,
        kinds: &["spike", "level_shift"],
        direction: Direction::Up,
        says: "box other_cores is ",
        ends: &[UnusualEnd::Usual],
    },
    Plan {
        name: "model:wine p99_s",
        lasts: 60,
        trouble: |_, moment| moment.answer_s *= 3.0,
        delay_max: 10,
        kinds: &["spike", "level_shift"],
        direction: Direction::Up,
        says: "model:wine p99_s is ",
        ends: &[UnusualEnd::Usual],
    },
    Plan {
        name: "model:wine failed_per_s",
        lasts: 60,
        trouble: |_, moment| moment.failing_share = 0.3,
        delay_max: 5,
        kinds: &["spike", "level_shift"],
        direction: Direction::Up,
        says: "model:wine failed_per_s is ",
        ends: &[UnusualEnd::Usual],
    },
];

#[test]
fn troubles_of_the_box_are_found_named_and_ended() {
    for seed in SEEDS {
        let learnt = learnt(seed);
        for plan in &PLANS {
            let seen = sees(&learnt, plan.name, plan.lasts, plan.trouble);
            println!("seed {seed}, {}: {seen:?}", plan.name);
            assert!(seen.delay <= plan.delay_max && seen.direction == plan.direction, "{seen:?}");
            assert!(plan.kinds.contains(&seen.kinds.1) && seen.text.contains(plan.says), "{seen:?}");
            assert!(seen.end_delay <= 30 && seen.ends.iter().all(|end| plan.ends.contains(end)), "{seen:?}");
        }
    }
}

#[test]
fn an_honest_second_week_has_at_most_the_alarm_that_the_owner_accepts() {
    for seed in SEEDS {
        let mut of = ShopBox::new(seed);
        of.honest_minutes(14 * DAY);
        // The box and its only model have the same calls.
        let alarm = |event: &ReportedEvent| {
            let column = event.name.split_once(' ').map_or("", |(_, column)| column);
            (column.to_owned(), event.began_ms, event.text.clone())
        };
        let mut alarms: Vec<_> = of.watch.events.all().map(alarm).collect();
        println!("seed {seed}: {alarms:?}");
        alarms.sort();
        alarms.dedup_by(|left, right| (&left.0, left.1) == (&right.0, right.1));
        assert!(alarms.len() <= 1, "seed {seed}: {alarms:?}");
    }
}
