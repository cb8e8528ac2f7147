use ledge_base::clock;
use proptest::prelude::*;

use super::*;

fn window(timezone: &str, days: Option<&[&str]>, from: &str, to: &str) -> RolloutWindow {
    let days = days.map(|days| days.iter().map(|day| (*day).to_owned()).collect());
    RolloutWindow::new(&WindowForm { timezone: timezone.into(), days, from: from.into(), to: to.into() }).unwrap()
}

fn at(text: &str) -> u64 {
    u64::try_from(clock::parse_micros(text).unwrap() / 1000).unwrap()
}

/// Returns every opening between two moments, minute by minute.
fn openings(window: &RolloutWindow, from: &str, to: &str) -> Vec<(String, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for now in (at(from)..at(to)).step_by(60_000) {
        if let WindowOpening::Open { until_ms } = window.at(now).unwrap() {
            match found.last_mut() {
                Some((begin, minutes)) if *begin + *minutes * 60_000 == now => *minutes += 1,
                _ => found.push((now, 1)),
            }
            assert!(until_ms > now);
        }
    }
    found.into_iter().map(|(begin, minutes)| (clock::rfc3339(begin), minutes)).collect()
}

fn spring(from: &str, to: &str) -> Vec<(String, u64)> {
    openings(&window("Europe/Berlin", None, from, to), "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z")
}

fn autumn(from: &str, to: &str) -> Vec<(String, u64)> {
    openings(&window("Europe/Berlin", None, from, to), "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z")
}

fn once(begin: &str, minutes: u64) -> Vec<(String, u64)> {
    vec![(begin.to_owned(), minutes)]
}

#[test]
fn a_window_over_the_hour_that_is_skipped_is_not_lost() {
    assert_eq!(spring("01:30", "02:30"), once("2026-03-29T00:30:00Z", 60));
    assert_eq!(spring("02:15", "02:45"), once("2026-03-29T01:00:00Z", 45));
    assert_eq!(spring("02:30", "03:00"), once("2026-03-29T01:00:00Z", 30));
    assert_eq!(spring("02:30", "03:15"), once("2026-03-29T01:00:00Z", 15));
}

#[test]
fn a_long_window_ends_when_the_wall_says_so_in_either_night() {
    // 06:00 is 04:00 UTC in summer, and 05:00 UTC in winter.
    assert_eq!(spring("00:00", "06:00"), once("2026-03-28T23:00:00Z", 5 * 60));
    assert_eq!(autumn("00:00", "06:00"), once("2026-10-24T22:00:00Z", 7 * 60));
}

#[test]
fn a_window_over_the_hour_that_is_twice_is_not_doubled() {
    assert_eq!(autumn("01:30", "02:30"), once("2026-10-24T23:30:00Z", 60));
    assert_eq!(autumn("02:15", "02:45"), once("2026-10-25T00:15:00Z", 30));
    assert_eq!(autumn("02:30", "03:30"), once("2026-10-25T00:30:00Z", 120));
}

#[test]
fn a_window_past_midnight_is_of_the_day_it_begins_on() {
    // 20 November 2026 is a Friday; Dubai is four hours ahead of UTC.
    let window = window("Asia/Dubai", Some(&["fri"]), "22:00", "02:00");
    let week = openings(&window, "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z");
    assert_eq!(week, once("2026-11-20T18:00:00Z", 240));
}

#[test]
fn the_same_time_twice_is_a_whole_day() {
    let window = window("UTC", Some(&["sun"]), "00:00", "00:00");
    assert_eq!(openings(&window, "2026-11-16T00:00:00Z", "2026-11-24T00:00:00Z"), once("2026-11-22T00:00:00Z", 1440));
}

#[test]
fn a_closed_window_says_when_it_opens() {
    let window = window("UTC", Some(&["mon"]), "01:00", "05:00");
    let opens = |now: &str| match window.at(at(now)).unwrap() {
        WindowOpening::Closed { opens_ms } => clock::rfc3339(opens_ms.unwrap()),
        WindowOpening::Open { until_ms } => format!("open until {}", clock::rfc3339(until_ms)),
    };
    assert_eq!(opens("2026-11-23T00:59:59Z"), "2026-11-23T01:00:00Z");
    assert_eq!(opens("2026-11-23T01:00:00Z"), "open until 2026-11-23T05:00:00Z");
    assert_eq!(opens("2026-11-23T05:00:00Z"), "2026-11-30T01:00:00Z");
}

#[test]
fn an_unknown_time_zone_is_told_and_nothing_else_goes_wrong() {
    let error = window("Asia/Dubia", None, "01:00", "02:00").at(0).unwrap_err();
    assert!(error.to_string().contains("Asia/Dubia"), "{error}");
}

#[test]
fn every_mistake_of_a_window_is_told() {
    let form = WindowForm {
        timezone: "../etc".into(),
        days: Some(vec!["monday".into(), "tue".into()]),
        from: "1:00".into(),
        to: "24:00".into(),
    };
    let mistakes = RolloutWindow::new(&form).unwrap_err();
    assert_eq!(mistakes.len(), 4, "{mistakes:?}");
    assert!(RolloutWindow::new(&WindowForm { days: Some(vec![]), ..form }).is_err());
}

#[test]
fn clocks_at_the_ends_of_time_do_no_harm() {
    let window = window("Europe/Berlin", None, "01:00", "02:00");
    assert!(matches!(window.at(0).unwrap(), WindowOpening::Open { .. } | WindowOpening::Closed { opens_ms: Some(_) }));
    assert_eq!(window.at(u64::MAX).unwrap(), WindowOpening::Closed { opens_ms: None });
}

proptest! {
    #[test]
    fn a_window_opens_once_each_day_whatever_the_clock_does(
        zone in prop::sample::select(vec!["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Dubai"]),
        from in 0..96_u32, length in 1..32_u32, day in 20_500..20_900_i32,
    ) {
        let clock = |quarter: u32| format!("{:02}:{:02}", quarter / 4 % 24, quarter % 4 * 15);
        let window = window(zone, None, &clock(from), &clock(from + length));
        let timezone = TimeZone::named(zone).unwrap();
        let (begin, end) = window.on(&timezone, day).unwrap();
        let (next, _) = window.on(&timezone, day + 1).unwrap();
        prop_assert!(begin < end && end <= next, "{begin} {end} {next}");
        prop_assert_eq!(window.at(begin).unwrap(), WindowOpening::Open { until_ms: end });
        // At most an hour more or less than its nominal length.
        let minutes = (end - begin) / 60_000;
        prop_assert!(minutes.abs_diff(u64::from(length) * 15) <= 60, "{minutes}");
    }

    #[test]
    fn reading_a_window_never_panics(timezone in ".{0,20}", days in prop::option::of(prop::collection::vec(".{0,4}", 0..9)),
        from in ".{0,6}", to in ".{0,6}", now in any::<u64>()) {
        if let Ok(window) = RolloutWindow::new(&WindowForm { timezone, days, from, to }) {
            let _ = window.at(now);
        }
    }
}
