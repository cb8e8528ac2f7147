//! Claims on whole series, with a virtual clock and noise from a fixed generator.

use crate::{
    Change, Direction, Limit, MonitorChange, MonitorSet, Pace, RowProfile, SampleError, SeriesDetector, SeriesState,
    StateError, UnusualKind,
};
use proptest::prelude::*;

const MINUTE: i64 = 60_000;
const DAY: usize = 1440;

/// Noise of about a normal distribution with the standard deviation 1 (xorshift, the sum of twelve).
struct Noise(u64);

impl Noise {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

fn detector() -> SeriesDetector {
    SeriesDetector::new(Pace::new(MINUTE, 1.0).unwrap())
}

/// Gives the samples of minutes to a detector, and returns what began: minute, kind, direction.
fn begun(
    detector: &mut SeriesDetector,
    samples: impl IntoIterator<Item = (usize, f64)>,
) -> Vec<(usize, UnusualKind, Direction)> {
    let mut found = Vec::new();
    for (minute, value) in samples {
        let verdict = detector.observe(minute as i64 * MINUTE, value).unwrap();
        assert!(verdict.score.is_finite() && verdict.band.low <= verdict.band.high);
        if let Some(Change::Began(event)) = verdict.change {
            found.push((minute, event.kind, event.direction));
        }
    }
    found
}

fn noisy(from: usize, to: usize, seed: u64) -> impl Iterator<Item = (usize, f64)> {
    let mut noise = Noise::new(seed);
    (from..to).map(move |minute| (minute, 100.0 + 2.0 * noise.normal()))
}

#[test]
fn a_series_is_learnt_first_and_says_how_much_is_missing() {
    let mut detector = detector();
    assert_eq!(detector.state(), SeriesState::Learning { needed: 720 });
    assert_eq!(begun(&mut detector, noisy(0, 719, 1).map(|(at, value)| (at, if at == 500 { 1e6 } else { value }))), []);
    assert_eq!(detector.state(), SeriesState::Learning { needed: 1 });
    begun(&mut detector, noisy(719, 720, 1));
    assert_eq!(detector.state(), SeriesState::Normal);
}

#[test]
fn noise_alone_gives_no_more_than_two_alarms_in_four_weeks() {
    for seed in 1..4 {
        let found = begun(&mut detector(), noisy(0, 28 * DAY, seed));
        assert!(found.len() <= 2, "seed {seed}: {found:?}");
    }
}

#[test]
fn a_spike_and_a_dip_are_found_at_once_and_end() {
    for (value, kind, direction) in
        [(130.0, UnusualKind::Spike, Direction::Up), (70.0, UnusualKind::Dip, Direction::Down)]
    {
        let mut detector = detector();
        let samples = noisy(0, 2000, 5).map(|(at, usual)| (at, if at == 1900 { value } else { usual }));
        assert_eq!(begun(&mut detector, samples), [(1900, kind, direction)]);
        assert_eq!(detector.state(), SeriesState::Normal);
    }
}

#[test]
fn a_level_that_stays_is_a_shift_and_later_the_new_normal() {
    let mut detector = detector();
    begun(&mut detector, noisy(0, 3000, 6));
    begun(&mut detector, noisy(3000, 3040, 7).map(|(at, value)| (at, value + 30.0)));
    let event = detector.event().unwrap();
    assert_eq!((event.kind, event.direction), (UnusualKind::LevelShift, Direction::Up));
    assert_eq!(begun(&mut detector, noisy(3040, 6000, 8).map(|(at, value)| (at, value + 30.0))), []);
    assert_eq!(detector.state(), SeriesState::Normal);
}

#[test]
fn a_spread_that_triples_is_found() {
    let mut detector = detector();
    begun(&mut detector, noisy(0, 3000, 6));
    let found = begun(&mut detector, noisy(3000, 3100, 7).map(|(at, value)| (at, 100.0 + 3.0 * (value - 100.0))));
    assert!(!found.is_empty());
}

#[test]
fn a_sensor_that_hangs_is_stuck_and_a_constant_series_is_not() {
    let mut moving = detector();
    begun(&mut moving, noisy(0, 2000, 9));
    let found = begun(&mut moving, (2000..2060).map(|at| (at, 100.0)));
    assert!(matches!(found[..], [(_, UnusualKind::Stuck, _)]), "{found:?}");
    assert_eq!(begun(&mut detector(), (0..7 * DAY).map(|at| (at, 5.0))), []);
}

#[test]
fn missing_samples_are_normal_and_a_silence_is_not() {
    let mut detector = detector();
    begun(&mut detector, noisy(0, 3000, 10).filter(|(at, _)| at % 7 != 0));
    assert_eq!(detector.state(), SeriesState::Normal);
    let began = (3000..3060).find_map(|minute| detector.observe_nothing(minute * MINUTE)).unwrap();
    assert!(matches!(began, Change::Began(event) if event.kind == UnusualKind::Silence));
    let verdict = detector.observe(3061 * MINUTE, 100.0).unwrap();
    assert!(matches!(verdict.change, Some(Change::Ended { is_new_normal: false, .. })), "{verdict:?}");
}

#[test]
fn what_is_no_number_or_no_later_leaves_the_state_as_it_is() {
    let mut detector = detector();
    begun(&mut detector, noisy(0, 900, 11));
    let before = detector.clone();
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX] {
        assert_eq!(detector.observe(900 * MINUTE, value), Err(SampleError::NotANumber));
    }
    assert_eq!(detector.observe(899 * MINUTE, 1.0), Err(SampleError::NotLater));
    assert_eq!(detector.observe(i64::MAX, 1.0), Err(SampleError::OutOfTime));
    assert_eq!(detector.observe_nothing(i64::MAX), None);
    assert_eq!(detector, before);
}

/// Memory of a process in bytes that fluctuates by some 20 MB.
fn memory(to: usize) -> impl Iterator<Item = (usize, f64)> {
    let (mut noise, mut slow) = (Noise::new(12), 0.0);
    (0..to).map(move |minute| {
        slow = 0.97 * slow + 2.5e6 * noise.normal();
        (minute, 8e8 + slow + 2e6 * noise.normal())
    })
}

#[test]
fn a_leak_of_a_megabyte_a_minute_is_found_named_and_has_a_time_to_its_limit() {
    let mut detector = detector();
    let leaking = memory(5 * DAY).map(|(at, value)| (at, value + 1e6 * at.saturating_sub(3 * DAY) as f64));
    let found = begun(&mut detector, leaking.take(3 * DAY + 600));
    assert!(found.iter().all(|(at, kind, _)| *at >= 3 * DAY || *kind != UnusualKind::Trend), "{found:?}");
    let event = detector.event().unwrap();
    assert_eq!((event.kind, event.direction), (UnusualKind::Trend, Direction::Up));

    let trend = detector.trend().unwrap();
    assert!((5e7..7e7).contains(&trend.per_hour), "{trend:?}");
    let time = detector.time_to_limit(8e8 + 1.2e9).unwrap();
    assert!((9.0..11.0).contains(&time.hours), "{time:?}");
    assert!(time.earliest_hours <= time.hours && time.latest_hours.is_some_and(|latest| latest >= time.hours));
    assert_eq!(detector.time_to_limit(0.0), None);
}

#[test]
fn a_sawtooth_a_warm_cache_and_a_random_walk_are_no_trend() {
    let is_trend =
        |found: &[(usize, UnusualKind, Direction)]| found.iter().any(|(_, kind, _)| *kind == UnusualKind::Trend);
    for hours in [2, 6, 24] {
        let teeth = memory(10 * DAY).map(|(at, value)| (at, value + 3e6 * (at % (hours * 60)) as f64));
        assert!(!is_trend(&begun(&mut detector(), teeth)), "a sawtooth of {hours} h");
    }
    let warm = memory(5 * DAY).map(|(at, value)| {
        let warming = at.saturating_sub(2 * DAY) as f64;
        (at, value + 6e7 * (1.0 - (-warming / 120.0).exp()))
    });
    assert!(!is_trend(&begun(&mut detector(), warm)));

    let mut walks = 0;
    for seed in 1..=10 {
        let (mut noise, mut value) = (Noise::new(seed * 77), 1000.0);
        let walk = (0..14 * DAY).map(|at| {
            value += noise.normal();
            (at, value)
        });
        walks += begun(&mut detector(), walk).iter().filter(|(_, kind, _)| *kind == UnusualKind::Trend).count();
    }
    assert!(walks <= 10, "{walks} trends in twenty weeks");
}

/// A day with a hill, and the noise that calls have.
fn daily(from: usize, to: usize) -> impl Iterator<Item = (usize, f64)> {
    let mut noise = Noise::new(13);
    (from..to).map(move |minute| {
        let hill = ((minute % DAY) as f64 / DAY as f64 * std::f64::consts::TAU).sin();
        (minute, 500.0 + 200.0 * hill + 8.0 * noise.normal())
    })
}

#[test]
fn a_value_that_is_usual_by_day_is_unusual_by_night() {
    let mut detector = detector();
    let found = begun(&mut detector, daily(0, 10 * DAY));
    assert!(detector.seasons().0);
    assert!(found.len() <= 2, "{found:?}");
    // At three quarters of the day 300 is usual.
    begun(&mut detector, daily(10 * DAY, 10 * DAY + 1080));
    let found = begun(&mut detector, (10 * DAY + 1080..10 * DAY + 1085).map(|at| (at, 690.0 + (at % 3) as f64)));
    assert_eq!(found.len(), 1);
}

#[test]
fn a_forecast_holds_nine_of_ten_values_in_its_band() {
    let mut detector = detector();
    let all: Vec<(usize, f64)> = daily(0, 20 * DAY).collect();
    let (mut inside, mut count) = (0, 0);
    for (at, value) in all.iter().take(19 * DAY).copied() {
        detector.observe(at as i64 * MINUTE, value).unwrap();
        if at > 10 * DAY && at % 777 == 0 {
            for (point, (_, actual)) in detector.forecast(60, 0.9).unwrap().iter().zip(&all[at + 1..]) {
                count += 1;
                inside += u32::from((point.low..=point.high).contains(actual));
            }
        }
    }
    let share = f64::from(inside) / f64::from(count);
    assert!((0.85..=0.98).contains(&share), "{share}");
}

#[test]
fn what_a_person_calls_normal_is_not_reported_again() {
    let spikes = |at: usize, value: f64| (at, if at % 2000 == 1999 { 125.0 } else { value });
    let mut untaught = detector();
    assert_eq!(begun(&mut untaught, noisy(0, 2000, 14).map(|(at, value)| spikes(at, value))).len(), 1);
    let mut taught = untaught.clone();
    let ended = taught.teach_normal();
    assert!(matches!(ended, Some(Change::Ended { is_new_normal: true, .. })), "{ended:?}");
    let later = || noisy(2000, 4100, 15).map(|(at, value)| spikes(at, value));
    assert_eq!(begun(&mut taught, later()), []);
    assert_eq!(begun(&mut untaught, later()).len(), 1);
}

#[test]
fn the_rate_of_alarms_of_a_series_of_faults_falls() {
    let mut noise = Noise::new(16);
    let mut rare = move |at: usize| {
        if noise.uniform() < 0.004 { 100.0 + 40.0 / noise.uniform().max(0.02) } else { 100.0 + at as f64 % 3.0 }
    };
    let found = begun(&mut detector(), (0..28 * DAY).map(|at| (at, rare(at))));
    let first_week = found.iter().filter(|(at, ..)| *at < 7 * DAY).count();
    let last_week = found.iter().filter(|(at, ..)| *at >= 21 * DAY).count();
    assert!(last_week <= 7 && last_week < first_week, "{first_week}, then {last_week} of {}", found.len());
}

#[test]
fn a_state_is_small_and_decodes_to_itself() {
    let mut detector = detector();
    begun(&mut detector, daily(0, 15 * DAY));
    let bytes = detector.encode();
    assert!(bytes.len() <= 6000, "{}", bytes.len());
    let mut read = SeriesDetector::decode(&bytes).unwrap();
    assert_eq!(read, detector);
    let later: Vec<_> = daily(15 * DAY, 16 * DAY).collect();
    assert_eq!(begun(&mut read, later.clone()), begun(&mut detector, later));
    assert_eq!(read, detector);

    let mut newer = bytes.clone();
    newer[0] = 3;
    assert_eq!(SeriesDetector::decode(&newer), Err(StateError::Format(3)));
    assert_eq!(SeriesDetector::decode(&[]), Err(StateError::Size));
    for length in 0..bytes.len() {
        assert!(SeriesDetector::decode(&bytes[..length]).is_err());
    }
}

fn row(noise: &mut Noise) -> Vec<Option<f64>> {
    let common = noise.normal();
    let mut value = |weight: f64| Some(10.0 + weight * common + 0.3 * noise.normal());
    vec![value(2.0), value(2.0), value(-1.0), value(0.0)]
}

fn learnt_profile(noise: &mut Noise) -> RowProfile {
    let mut profile = RowProfile::new(4, 1e-4).unwrap();
    let unusual = (0..5000).filter(|_| profile.observe(&row(noise)).unwrap().score >= 1.0).count();
    assert!(unusual <= 3, "{unusual}");
    profile
}

#[test]
fn a_feature_out_of_its_band_is_unusual_and_explains_it() {
    let mut noise = Noise::new(17);
    let mut profile = learnt_profile(&mut noise);
    let mut bad = row(&mut noise);
    bad[3] = Some(16.0);
    let verdict = profile.observe(&bad).unwrap();
    assert!(verdict.is_unusual && verdict.score >= 1.0);
    assert_eq!(verdict.explanations[0].feature, 3);
    assert!(verdict.explanations[0].band.high < 16.0);
}

#[test]
fn features_that_are_usual_alone_and_not_together_are_unusual() {
    let mut noise = Noise::new(18);
    let mut profile = learnt_profile(&mut noise);
    // The first two move together: one high and the other low does not occur.
    let verdict = profile.observe(&[Some(13.0), Some(7.0), Some(10.0), Some(10.0)]).unwrap();
    assert!(verdict.score >= 1.0, "{verdict:?}");
    let mut named: Vec<_> = verdict.explanations.iter().take(2).map(|one| one.feature).collect();
    named.sort_unstable();
    assert_eq!(named, [0, 1]);
    // Missing features are no fault.
    assert!(profile.observe(&[Some(13.0), None, None, Some(10.0)]).unwrap().score < 1.0);
}

#[test]
fn a_row_that_a_person_calls_normal_is_normal() {
    let mut noise = Noise::new(19);
    let mut profile = learnt_profile(&mut noise);
    let odd = [Some(10.0), Some(10.0), Some(10.0), Some(16.0)];
    assert!(profile.observe(&odd).unwrap().score >= 1.0);
    assert!(profile.teach_normal());
    assert!(profile.observe(&odd).unwrap().score < 1.0);
    assert_eq!(RowProfile::decode(&profile.encode()), Ok(profile));
}

#[test]
fn a_set_reports_a_disk_that_fills_and_when_in_words() {
    let mut set = MonitorSet::default();
    let pace = Pace::new(MINUTE, 1.0).unwrap();
    set.watch("disk_free", pace, Some(Limit { value: 0.0, within_hours: 72.0 })).unwrap();
    set.watch("temperature", pace, None).unwrap();
    let mut noise = Noise::new(20);
    let mut texts = Vec::new();
    for minute in 0..5 * DAY {
        let free = 1e11 + 2e8 * noise.normal() - 2.5e7 * minute.saturating_sub(3 * DAY) as f64;
        let samples = [("disk_free", free), ("temperature", 45.0 + noise.normal()), ("unknown", 1.0)];
        texts.extend(set.observe(minute as i64 * MINUTE, &samples));
    }
    let near = texts.iter().find(|event| matches!(event.change, MonitorChange::LimitNear { .. })).unwrap();
    assert!(near.name == "disk_free" && near.at_ms > 3 * DAY as i64 * MINUTE, "{near:?}");
    assert!(near.text.starts_with("disk_free reaches 0 in 2.") && near.text.contains("between"), "{}", near.text);
    let of_temperature = texts.iter().filter(|event| event.name == "temperature").count();
    assert!(of_temperature <= 2, "one alarm that began and ended: {texts:?}");
    let state = set.states().find(|state| state.name == "disk_free").unwrap();
    assert!(state.time_to_limit.is_some());

    let mut restored = MonitorSet::default();
    for bytes in set.encode() {
        restored.restore(&bytes).unwrap();
    }
    assert_eq!(restored, set);
}

#[test]
fn a_set_is_bounded_and_says_nothing_of_a_series_without_samples() {
    let mut set = MonitorSet::default();
    let pace = Pace::new(MINUTE, 1.0).unwrap();
    for at in 0..crate::SERIES_MAX {
        set.watch(&format!("series {at}"), pace, None).unwrap();
    }
    assert_eq!(set.watch("one more", pace, None), Err(crate::WatchError::Full));
    (1..crate::SERIES_MAX).for_each(|at| assert!(set.forget(&format!("series {at}"))));

    for (minute, value) in noisy(0, 1000, 21) {
        assert!(set.observe(minute as i64 * MINUTE, &[("series 0", value)]).is_empty());
    }
    assert!((1000..1020).all(|minute| set.observe(minute * MINUTE, &[]).is_empty()));
    assert!(!set.teach_normal("series 0") && !set.teach_normal("series 1"), "nothing was unusual");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any series, with any gaps: no panic, no NaN, a sound state that decodes to itself.
    #[test]
    fn any_series_leaves_a_sound_state(
        steps in prop::collection::vec((1_i64..400_000, prop_oneof![any::<f64>(), -1e3..1e3, Just(0.0), Just(1e16)]), 1..600),
        interval in 5_000_i64..3_600_000,
    ) {
        let mut detector = SeriesDetector::new(Pace::new(interval, 1.0).unwrap());
        let mut at = 0_i64;
        for (step, value) in steps {
            at += step * interval / 100_000 + 1;
            if let Ok(verdict) = detector.observe(at, value) {
                prop_assert!(verdict.score.is_finite() && verdict.expected.is_finite());
                prop_assert!(verdict.band.low <= verdict.band.high);
            }
        }
        prop_assert_eq!(SeriesDetector::decode(&detector.encode()), Ok(detector.clone()));
        if let Ok(points) = detector.forecast(20, 0.9) {
            prop_assert!(points.iter().all(|point| point.low <= point.value && point.value <= point.high));
        }
    }

    /// Any change of the bytes of a state gives an error, or a state that works.
    #[test]
    fn damaged_bytes_are_refused_or_sound(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut detector = detector();
        begun(&mut detector, noisy(0, 800, 22));
        let mut noise = Noise::new(23);
        let mut profile = RowProfile::new(4, 1e-4).unwrap();
        (0..100).for_each(|_| drop(profile.observe(&row(&mut noise))));
        for mut bytes in [detector.encode(), profile.encode()] {
            for (at, byte) in &changes {
                *at.get_mut(&mut bytes) = *byte;
            }
            crate::fuzz_anomaly_state(&bytes);
        }
    }
}

/// Failures a second of a shop whose calls fail with a probability.
fn failures(minutes: std::ops::Range<usize>, noise: &mut Noise, probability: f64) -> Vec<(usize, f64)> {
    let sample = |minute: usize| {
        let hour = (minute % DAY) as f64 / 60.0;
        let day = if (7.0..21.0).contains(&hour) { ((hour - 7.0) / 14.0 * std::f64::consts::PI).sin() } else { 0.0 };
        let calls = (6.0 * (0.08 + 0.92 * day) * 60.0) as usize;
        (minute, (0..calls).filter(|_| noise.uniform() < probability).count() as f64 / 60.0)
    };
    minutes.map(sample).collect()
}

#[test]
fn rare_failures_are_usual_and_many_are_found() {
    for seed in 1..4 {
        let mut noise = Noise::new(seed);
        let mut detector = SeriesDetector::new(Pace::new(MINUTE, 1.0 / 32.0).unwrap());
        let learnt = 14 * DAY + 600;
        let alarms = begun(&mut detector, failures(0..learnt, &mut noise, 0.000_5));
        assert!(alarms.len() <= 1, "seed {seed}: {alarms:?}");
        let found = begun(&mut detector, failures(learnt..learnt + 20, &mut noise, 0.3));
        assert!(found.first().is_some_and(|(_, _, direction)| *direction == Direction::Up), "seed {seed}: {found:?}");
        begun(&mut detector, failures(learnt + 20..learnt + 60, &mut noise, 0.3));
        begun(&mut detector, failures(learnt + 60..learnt + 100, &mut noise, 0.000_5));
        assert_eq!(detector.state(), SeriesState::Normal, "seed {seed}");
    }
}
