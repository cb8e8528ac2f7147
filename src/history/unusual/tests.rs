//! A box on a virtual clock whose figures go wrong in the ways that an owner should hear of.

use std::time::Duration;

use super::*;

const BEGIN_MS: u64 = 1_767_225_600_000;
const DAY: u64 = 1440;
const MB: f64 = 1e6;

/// A watch with figures that have a day and noise.
struct TestWatch {
    folder: tempfile::TempDir,
    watch: UnusualWatch,
    minute: u64,
    noise: u64,
    records: Vec<AuditEvent>,
}

impl TestWatch {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let watch = UnusualWatch::open(&config(&folder));
        Self { folder, watch, minute: 0, noise: 1, records: Vec::new() }
    }

    /// A number from -1 to 1.
    fn random(&mut self) -> f64 {
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.noise >> 32).unwrap()) / f64::from(u32::MAX) * 2.0 - 1.0
    }

    /// One minute: the figures of a shop, changed by `change`.
    fn minute(&mut self, change: impl Fn(&mut BTreeMap<&'static str, f64>)) {
        self.minute += 1;
        let hour = f64::from(u32::try_from(self.minute % DAY).unwrap()) / 60.0;
        let busy = if (8.0..20.0).contains(&hour) { 1.0 } else { 0.1 };
        let mut figures = BTreeMap::from([
            ("calls_per_s", (5.0 * busy + 0.5 * self.random()).max(0.0)),
            ("failed_per_s", 0.0),
            ("p99_s", 0.02 + 0.004 * self.random()),
            ("cores_busy", 0.6 * busy + 0.25 + 0.05 * self.random()),
            ("ledge_cores", (0.6 * busy + 0.02 * self.random()).max(0.0)),
            ("ledge_memory_bytes", 300.0 * MB + 4.0 * MB * self.random()),
            ("memory_available_bytes", 5000.0 * MB + 40.0 * MB * self.random()),
            ("temperature_celsius", 50.0 + 6.0 * busy + self.random()),
            ("queue", 0.0),
            ("disk_free_bytes", 90_000.0 * MB + MB * self.random()),
        ]);
        change(&mut figures);
        let mut sample = FigureSample::default();
        for (column, value) in &figures {
            sample.set(column, crate::readings::single(*value));
        }
        let usage = ["calls_per_s", "failed_per_s", "p99_s"].map(|column| crate::readings::single(figures[column]));
        let [calls, failed, p99] = usage;
        let model = [calls, failed, 0.0, p99, p99, 0.0, 0.1, 10.0, 10.0];
        let used = vec![(SeriesName::Model("wine".into()), model)];
        let slot = EndedSlot { sample, elapsed: Duration::from_mins(1), used };
        self.records.extend(self.watch.take(BEGIN_MS + self.minute * 60_000, &slot));
    }

    fn minutes(&mut self, count: u64, change: impl Fn(u64, &mut BTreeMap<&'static str, f64>)) {
        for number in 0..count {
            self.minute(|figures| change(number, figures));
        }
    }

    fn usual(&mut self, minutes: u64) {
        self.minutes(minutes, |_, _| {});
    }

    /// The minutes until a finding about a series, at most `limit`.
    fn until_found(
        &mut self,
        name: &str,
        limit: u64,
        change: impl Fn(u64, &mut BTreeMap<&'static str, f64>),
    ) -> Option<u64> {
        (0..limit).find(|number| {
            self.minute(|figures| change(*number, figures));
            self.found().iter().any(|finding| finding.0 == format!("unusual {name}"))
        })
    }

    fn found(&self) -> Vec<(String, String)> {
        self.watch.findings().into_iter().map(|finding| (finding.name, finding.detail)).collect()
    }
}

fn config(folder: &tempfile::TempDir) -> HistoryConfig {
    HistoryConfig { path: folder.path().to_owned(), ..HistoryConfig::default() }
}

fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

#[test]
fn usual_weeks_have_at_most_the_alarms_that_the_owner_accepts() {
    let mut of = TestWatch::new();
    let mut alarms = 0;
    of.usual(7 * DAY);
    assert_eq!(of.found(), [], "while it learns");
    for _ in 0..7 * DAY {
        let before = of.found().len();
        of.usual(1);
        alarms += of.found().len().saturating_sub(before);
    }
    assert!(alarms <= 1, "{alarms}: {:?}", of.found());
}

#[test]
fn a_leak_a_disk_that_fills_a_neighbour_heat_and_failures_are_found_and_end() {
    type Change = fn(u64, &mut BTreeMap<&'static str, f64>);
    let faults: [(&str, u64, Change); 6] = [
        ("box ledge_memory_bytes", 180, |minute, figures| {
            *figures.get_mut("ledge_memory_bytes").unwrap() += MB * number(minute);
        }),
        ("box disk_free_bytes", 360, |minute, figures| {
            *figures.get_mut("disk_free_bytes").unwrap() -= 20.0 * MB * number(minute);
        }),
        ("box other_cores", 10, |_, figures| *figures.get_mut("cores_busy").unwrap() += 1.5),
        ("box temperature_celsius", 10, |_, figures| *figures.get_mut("temperature_celsius").unwrap() += 35.0),
        ("model:wine failed_per_s", 10, |_, figures| *figures.get_mut("failed_per_s").unwrap() += 3.0),
        ("model:wine p99_s", 10, |_, figures| *figures.get_mut("p99_s").unwrap() *= 10.0),
    ];
    let mut learnt = TestWatch::new();
    learnt.usual(7 * DAY + 600);
    learnt.watch.write().unwrap();
    for (name, limit, fault) in faults {
        let mut of = TestWatch::new();
        of.watch = UnusualWatch { file: None, ..UnusualWatch::open(&config(&learnt.folder)) };
        (of.minute, of.noise) = (learnt.minute, learnt.noise);
        assert_eq!(of.found(), [], "before {name}");
        let found = of.until_found(name, limit, fault);
        assert!(found.is_some(), "{name} is not found in {limit} minutes: {:?}", of.found());
        of.usual(DAY);
        assert_eq!(of.found(), [], "after {name}");
    }
}

#[test]
fn a_disk_that_fills_within_days_says_when() {
    let mut of = TestWatch::new();
    of.usual(2 * DAY);
    of.minutes(DAY, |minute, figures| *figures.get_mut("disk_free_bytes").unwrap() -= 20.0 * MB * number(minute));
    let (_, text) = of.found().into_iter().find(|(name, _)| name == "unusual box disk_free_bytes").unwrap();
    assert!(
        text.contains("reaches 0 in") && text.contains(" h (between ") || text.contains(" days (between "),
        "{text}"
    );
}

#[test]
fn a_restart_goes_on_and_damage_and_a_clock_that_goes_back_begin_anew() {
    let mut of = TestWatch::new();
    of.usual(2 * DAY);
    of.watch.write().unwrap();
    let states = |watch: &UnusualWatch| watch.set.states().map(|state| state.state).collect::<Vec<_>>();
    let again = UnusualWatch::open(&config(&of.folder));
    assert_eq!(states(&again), states(&of.watch));
    assert_eq!((again.last_ms, &again.models), (of.watch.last_ms, &of.watch.models));

    of.minute = 0;
    of.usual(1);
    assert!(states(&of.watch).iter().all(|state| matches!(state, SeriesState::Learning { .. })));

    let file = of.folder.path().join(FILE);
    let mut content = std::fs::read(&file).unwrap();
    *content.last_mut().unwrap() ^= 1;
    durable::replace(&file, &content).unwrap();
    assert!(UnusualWatch::open(&config(&of.folder)).set.is_empty());
    assert!(!file.exists() && of.folder.path().join("unusual.state.set-aside-1").exists());
}

#[test]
fn models_come_and_go_within_the_bound() {
    let mut of = TestWatch::new();
    of.usual(1);
    let used = |number: usize| (SeriesName::Model(format!("m{number}").into()), [1.0; USAGE_COLUMNS.len()]);
    for round in 0..3 {
        let used = (round * 40..round * 40 + 40).map(used).collect();
        let slot = EndedSlot { sample: FigureSample::default(), elapsed: Duration::from_mins(1), used };
        of.watch.take(BEGIN_MS + 60_000 + (u64::try_from(round).unwrap() + 1) * 20 * 86_400_000, &slot);
        assert!(of.watch.models.len() <= MODELS_MAX && of.watch.set.len() <= 11 + 3 * MODELS_MAX);
        assert!(of.watch.models.contains_key(&format!("m{}", round * 40)), "{round}");
    }
}

#[test]
fn nothing_is_watched_where_the_owner_accepts_no_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let mut watch = UnusualWatch::open(&HistoryConfig { unusual_alarms_per_week: 0, ..config(&folder) });
    let slot = EndedSlot { sample: FigureSample::default(), elapsed: Duration::from_mins(1), used: Vec::new() };
    watch.take(BEGIN_MS, &slot);
    watch.write().unwrap();
    assert!(watch.set.is_empty() && watch.findings().is_empty() && !folder.path().join(FILE).exists());
}

#[test]
fn an_event_is_recorded_kept_through_a_restart_and_ends_when_it_is_called_normal() {
    const NAME: &str = "model:wine p99_s";
    let mut of = TestWatch::new();
    assert_eq!(of.watch.call_normal(NAME), Err(CallNormalError::Unknown));
    of.usual(7 * DAY + 600);
    of.records.clear();
    let mut messages = of.watch.messages();
    assert!(messages.borrow_and_update().events.is_empty());
    let before = of.watch.document();
    assert!(before.series.iter().all(|series| series.state == "normal" && series.band.is_some()), "{before:?}");
    assert_eq!(of.watch.call_normal(NAME), Err(CallNormalError::NothingReported));
    let slow = |_, figures: &mut BTreeMap<&'static str, f64>| *figures.get_mut("p99_s").unwrap() *= 10.0;
    assert!(of.until_found(NAME, 10, slow).is_some());
    let began = |record: &AuditEvent| {
        matches!(record, AuditEvent::UnusualBegan { model: Some(model), figure, .. }
            if model.as_str() == "wine" && figure.as_str() == "p99_s")
    };
    assert_eq!(of.records.iter().filter(|record| began(record)).count(), 1, "{:?}", of.records);

    assert!(messages.has_changed().unwrap());
    let json: serde_json::Value = serde_json::from_slice(&messages.borrow_and_update().json()).unwrap();
    let is_it = |event: &serde_json::Value| event["series"] == "model:wine" && event["column"] == "p99_s";
    let told = json["events"].as_array().unwrap().iter().find(|event| is_it(event)).unwrap();
    assert!(told["direction"] == "up" && told.get("value").is_none(), "{json}");
    of.minutes(1, slow);
    assert!(!messages.has_changed().unwrap(), "nothing began or ended");

    // An event is written at once.
    of.watch = UnusualWatch::open(&config(&of.folder));
    messages = of.watch.messages();
    assert_eq!(messages.borrow_and_update().events.len(), 2, "that of the box and that of the model");
    let document = of.watch.document();
    let event = document.events.iter().find(|event| event.series == "model:wine").unwrap();
    assert!(event.ended.is_none() && event.text.contains("usual is"), "{event:?}");
    let state = |of: &TestWatch| {
        of.watch.document().series.into_iter().find(|one| one.series == "model:wine" && one.column == "p99_s")
    };
    assert_eq!(state(&of).unwrap().text.as_ref(), Some(&event.text));

    let record = of.watch.call_normal(NAME).unwrap();
    assert!(matches!(record, AuditEvent::UnusualCalledNormal { model: Some(_), .. }), "{record:?}");
    assert_eq!(state(&of).unwrap().state, "normal");
    assert!(messages.has_changed().unwrap() && messages.borrow().events.len() == 1);
    let ended = of.watch.document().events.into_iter().find(|event| event.series == "model:wine").unwrap();
    assert_eq!(ended.end.as_deref(), Some("called_normal"));

    // Calling it normal again, after its end, is no mistake.
    assert!(of.watch.call_normal(NAME).is_ok());
    assert_eq!(of.watch.call_normal("model:wine disk_free_bytes"), Err(CallNormalError::Unknown));
}

#[test]
fn a_clock_that_goes_back_ends_the_events_and_their_number_is_bounded() {
    let mut of = TestWatch::new();
    of.usual(7 * DAY + 600);
    let hot = |_, figures: &mut BTreeMap<&'static str, f64>| *figures.get_mut("temperature_celsius").unwrap() += 35.0;
    assert!(of.until_found("box temperature_celsius", 10, hot).is_some());
    (of.minute, of.records) = (0, Vec::new());
    of.usual(1);
    let is_forgotten =
        |record: &AuditEvent| matches!(record, AuditEvent::UnusualEnded { end, .. } if end.as_str() == "forgotten");
    assert!(!of.records.is_empty() && of.records.iter().all(is_forgotten), "{:?}", of.records);

    let mut events = ReportedEvents::default();
    let last = of.watch.events.all().next().unwrap().clone();
    for number in 0..=events::ENDED_MAX {
        let event = ReportedEvent { began_ms: u64::try_from(number).unwrap(), ended: None, ..last.clone() };
        let (name, kind) = (event.name.clone(), event.kind);
        events.begin(event);
        assert!(events.end(&name, kind, 1, UnusualEnd::Usual).is_some() && events.is_bounded());
    }
    assert_eq!(events.all().last().unwrap().began_ms, 1, "the oldest is forgotten");
}

#[test]
fn bands_of_the_last_day_are_kept_each_ten_minutes_with_their_gaps() {
    let mut shop = TestWatch::new();
    for _ in 0..2 * DAY {
        shop.minute(|_| {});
    }
    let bands = shop.watch.bands.of("box cores_busy").unwrap();
    assert_eq!((bands.low.len(), bands.interval_s), (144, 600));
    assert!(bands.low.iter().zip(&bands.high).all(|(low, high)| low < high));
    assert_eq!(shop.watch.bands.of("model:wine p99_s"), None, "only those of the box are drawn");

    shop.minute += 45;
    shop.minute(|_| {});
    let bands = shop.watch.bands.of("box cores_busy").unwrap();
    assert_eq!(bands.low.len(), 144);
    assert_eq!(
        bands.low.iter().rev().take(6).map(Option::is_some).collect::<Vec<_>>(),
        [true, false, false, false, true, true]
    );
    shop.minute += 2 * DAY;
    shop.minute(|_| {});
    assert_eq!(shop.watch.bands.of("box cores_busy").unwrap().low.len(), 1, "the day before is gone");
}
