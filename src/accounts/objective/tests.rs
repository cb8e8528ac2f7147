//! Alerts under a virtual clock, compared with the formula.

use proptest::prelude::*;

use super::*;

const START_MS: u64 = 1_800_000_000_000 / HOUR_MS * HOUR_MS;

fn indicator(text: &str) -> Indicator {
    let config: ObjectiveConfig = toml::from_str(&format!("name = 'o'\n{text}")).unwrap();
    let [indicator] = Indicator::of(&config).try_into().unwrap();
    indicator
}

/// Counts one call a second for some minutes, from a minute on; one of `every` is bad. Returns the minutes in which an
/// alert began or ended, with its factor.
fn run(indicator: &mut Indicator, from_minute: &mut u64, minutes: u64, bad_a_minute: u64) -> Vec<(u64, Option<f64>)> {
    let mut changes = Vec::new();
    let factor = |indicator: &Indicator| indicator.alert().map(|rule| rule.factor);
    let mut before = factor(indicator);
    for _ in 0..minutes {
        indicator.count(START_MS + *from_minute * MINUTE_MS, 60 - bad_a_minute, bad_a_minute);
        let now = factor(indicator);
        if now != before {
            changes.push((*from_minute, now));
            before = now;
        }
        *from_minute += 1;
    }
    changes
}

#[test]
fn a_fast_burn_alerts_when_both_windows_exceed_the_factor_and_ends_five_minutes_after_its_cause() {
    let mut it = indicator("availability = 99.9");
    let mut at = 0;
    assert_eq!(run(&mut it, &mut at, 120, 0), []);
    // All calls fail. One hour burns faster than 14.4 when more than 1.44 % of 3600 calls are bad, so in the first
    // minute (60 of 3600 are 1.67 %).
    assert_eq!(run(&mut it, &mut at, 10, 60), [(120, Some(14.4))]);
    // The window of five minutes is free of bad calls in the fifth minute after. The rule of 6 h and 30 min goes on:
    // 600 of 21,600 calls are 2.8 %, until its window of 30 minutes is free, and that of 3 d until 6 h are.
    assert_eq!(run(&mut it, &mut at, 600, 0), [(134, Some(6.0)), (159, Some(1.0)), (489, None)]);
}

#[test]
fn a_slow_burn_is_a_warning_after_hours_and_never_a_failure() {
    let mut it = indicator("availability = 99");
    let mut at = 0;
    // 1.67 % bad is a burn rate of 1.67: below 6 in every window, above 1 in those of days. The alert waits for 100
    // calls, which are there in the second minute, and for three bad ones: the third minute.
    assert_eq!(run(&mut it, &mut at, 24 * 60, 1), [(2, Some(1.0))]);
    assert_eq!(it.alert().unwrap().status, FindingStatus::Warn);
    assert!((it.burn_rate(BurnWindow::Hours(72)) - 100.0 / 60.0).abs() < 1e-9);
    assert!((it.budget_left() - (1.0 - 100.0 / 60.0)).abs() < 1e-9);
}

#[test]
fn few_calls_and_single_failures_at_night_are_no_alert() {
    let mut it = indicator("availability = 99.9");
    for hour in 0..48 {
        // Three calls an hour; one of the night fails.
        it.count(START_MS + hour * HOUR_MS, 3, u64::from(hour == 3));
        assert!(it.alert().is_none(), "hour {hour}");
    }
    let mut it = indicator("availability = 99.9\nmin_calls = 1");
    it.count(START_MS, 5, 2);
    assert!(it.alert().is_none(), "two bad calls");
    it.count(START_MS, 0, 1);
    assert_eq!(it.alert().map(|rule| rule.factor), Some(14.4));
}

#[test]
fn a_latency_objective_lets_one_of_a_hundred_calls_be_slow() {
    let mut it = indicator("p99_ms = 20");
    it.count(START_MS, 990, 10);
    assert!((it.burn_rate(BurnWindow::Minutes(5)) - 1.0).abs() < 1e-9 && it.budget_left().abs() < 1e-9);
    assert_eq!(it.alert(), None, "exactly the objective");
    it.count(START_MS, 0, 1);
    assert_eq!(it.alert().map(|rule| rule.factor), Some(1.0));
}

#[test]
fn counts_survive_a_restart_unless_they_are_of_other_calls() {
    let mut it = indicator("p99_ms = 20\nmodel = 'wine'");
    let mut at = 0;
    run(&mut it, &mut at, 30 * 24 * 60, 1);
    let stored = [it.stored()];
    let restored = |text: &str| {
        let mut other = indicator(text);
        other.restore(&stored);
        other.all()
    };
    assert_eq!(restored("p99_ms = 20\nmodel = 'wine'"), it.all());
    assert_eq!(restored("p99_ms = 20\nmodel = 'wine'\ndays = 90"), it.all());
    assert_eq!(restored("p99_ms = 21\nmodel = 'wine'").total(), 0);
    assert_eq!(restored("p99_ms = 20").total(), 0);
    assert!(postcard::to_stdvec(&stored).unwrap().len() < 16_000);
}

#[test]
fn thirty_days_are_forgotten_hour_by_hour() {
    let mut it = indicator("availability = 99.9");
    it.count(START_MS, 0, 500);
    let day = 24 * HOUR_MS;
    it.count(START_MS + 30 * day - HOUR_MS, 1, 0);
    assert_eq!(it.all().bad, 500);
    it.count(START_MS + 30 * day, 1, 0);
    assert_eq!(it.all().bad, 0);
}

proptest! {
    /// The rules, computed from a list of all minutes.
    #[test]
    fn an_alert_fires_exactly_as_the_formula_says(
        phases in prop::collection::vec((1_usize..400, 0_u64..60, 0_u64..=60), 1..12),
    ) {
        let mut it = indicator("availability = 99.5");
        let mut all: Vec<(u64, u64)> = Vec::new();
        for (minutes, good, bad) in phases {
            for _ in 0..minutes {
                let minute = all.len() as u64;
                all.push((good, bad));
                it.count(START_MS + minute * MINUTE_MS, good, bad);
            }
            let sum = |minutes: usize| {
                all.iter().rev().take(minutes).fold((0, 0), |(total, failed), (good, bad)| (total + good + bad, failed + bad))
            };
            // Hours are whole ones of the clock, and the unfinished one.
            let hours = |hours: usize| sum((hours - 1) * 60 + (all.len() - 1) % 60 + 1);
            #[expect(clippy::cast_precision_loss, reason = "few calls")]
            let burns = |(total, bad): (u64, u64), factor: f64| bad > 0 && bad as f64 / total as f64 / 0.005 > factor;
            let fires = |long: (u64, u64), short: (u64, u64), factor: f64| {
                long.0 >= 100 && long.1 >= 3 && burns(long, factor) && burns(short, factor)
            };
            let expected = if fires(sum(60), sum(5), 14.4) {
                Some(14.4)
            } else if fires(sum(360), sum(30), 6.0) {
                Some(6.0)
            } else if fires(hours(72), sum(360), 1.0) {
                Some(1.0)
            } else {
                None
            };
            prop_assert_eq!(it.alert().map(|rule| rule.factor), expected);
        }
    }
}
