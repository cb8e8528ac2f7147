//! The book under a virtual clock.

use std::collections::HashMap;

use ledge_base::clock::parse_micros;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_models::serving::usage::{CallUsage, UsageKey};

use super::*;

fn at(text: &str) -> u64 {
    u64::try_from(parse_micros(text).unwrap() / 1000).unwrap()
}

fn book(budgets: &str, begin: &str, now: Instant) -> Book {
    #[derive(serde::Deserialize)]
    struct File {
        #[serde(default)]
        budget: BudgetsConfig,
    }
    let budgets = toml::from_str::<File>(budgets).unwrap().budget;
    let config = BookConfig::new(AccountsConfig::default(), budgets);
    let (zone, energy) = (TimeZone::named("Asia/Dubai").unwrap(), EnergyMeter::open(8_000_000));
    Book::new((config, &ObjectivesConfig::default(), &[]), zone, MonthLedger::default(), energy, (at(begin), now))
}

/// An interval with these calls of one caller, each of a millisecond in a run.
fn interval(caller: &str, calls: u64, service_ms: u64) -> UsageInterval {
    let key = UsageKey { principal: Principal::Key(caller.into()), model: ModelName::constant("wine") };
    let used = CallUsage { calls, cpu: Duration::from_millis(calls), bytes_in: calls * 100, ..CallUsage::default() };
    let used = if calls > 0 { HashMap::from([(key, used)]) } else { HashMap::new() };
    let (elapsed, service_cpu) = (Duration::from_secs(5), Some(Duration::from_millis(service_ms)));
    UsageInterval { end_ms: 0, elapsed, used, service_cpu }
}

#[test]
fn all_rows_and_the_box_itself_have_the_cpu_time_of_the_service() {
    let now = Instant::now();
    let mut book = book("", "2026-12-02T10:00:00Z", now);
    for number in 1..=100 {
        let later = now + number * Duration::from_secs(5);
        let calls = u64::from(number % 7);
        book.add(
            &interval(if number % 2 == 0 { "a" } else { "b" }, calls, 20),
            at("2026-12-02T10:00:00Z") + u64::from(number) * 5000,
            later,
        );
    }
    let ledger = &book.open.ledger;
    assert_eq!(ledger.sum(|_| true).cpu_ns + ledger.own.cpu_ns, 100 * 20_000_000);
    let energy = ledger.sum(|_| true).energy_uj + ledger.own.energy_uj;
    assert!(energy > 0 && ledger.estimated_uj <= energy);
    assert!(ledger.own.cpu_ns > 0 && ledger.sum(|key| &*key.caller == "key:a").calls > 0);
}

#[test]
fn a_month_ends_at_midnight_of_its_place_and_is_written() {
    let now = Instant::now();
    let mut book = book("", "2026-12-31T19:59:50Z", now);
    book.begin_write(now);
    let second = Duration::from_secs(1);
    assert!(!book.add(&interval("a", 3, 9), at("2026-12-31T19:59:55Z"), now + 5 * second).has_month_ended);
    assert!(book.add(&interval("a", 4, 9), at("2026-12-31T20:00:00Z"), now + 10 * second).has_month_ended);
    assert!(book.is_due(now + 10 * second));
    let [ended] = book.take_ended().try_into().unwrap();
    assert_eq!((ended.month.to_string(), ended.ledger.sum(|_| true).calls), ("2026-12".to_owned(), 3));
    assert_eq!((book.open.month.to_string(), book.open.ledger.sum(|_| true).calls), ("2027-01".to_owned(), 4));
}

#[test]
fn a_clock_that_is_set_wrong_for_minutes_makes_no_month_and_counts_nothing_twice() {
    let (now, begin) = (Instant::now(), at("2026-12-02T10:00:00Z"));
    let mut book = book("", "2026-12-02T10:00:00Z", now);
    for number in 1_u64..=360 {
        let system = match number {
            100..200 => at("2040-01-01T00:00:00Z") + number * 5000,
            250..300 => at("2026-09-01T00:00:00Z") + number * 5000,
            _ => begin + number * 5000,
        };
        let change = book.add(&interval("a", 2, 5), system, now + Duration::from_secs(number * 5));
        assert!(!change.has_month_ended, "{number}");
    }
    assert_eq!((book.open.month.to_string(), book.open.ledger.sum(|_| true).calls), ("2026-12".to_owned(), 720));
    assert!(book.take_ended().is_empty());
}

#[test]
fn a_clock_that_stays_wrong_is_followed_and_a_month_that_comes_again_goes_on() {
    let (now, begin) = (Instant::now(), at("2026-12-02T10:00:00Z"));
    let mut book = book("", "2026-12-02T10:00:00Z", now);
    let january = at("2027-01-05T00:00:00Z");
    for number in 1_u64..=600 {
        let system = if (100..350).contains(&number) { january } else { begin };
        book.add(&interval("a", 1, 5), system + number * 5000, now + Duration::from_secs(number * 5));
    }
    let ended = book.take_ended();
    let calls = |ledger: &MonthLedger| ledger.sum(|_| true).calls;
    assert_eq!(ended.iter().map(|ended| ended.month.to_string()).collect::<Vec<_>>(), ["2027-01"]);
    assert_eq!(book.open.month.to_string(), "2026-12");
    assert_eq!(calls(&book.open.ledger) + calls(&ended[0].ledger), 600);
}

#[test]
fn a_budget_is_told_once_at_each_step_and_refuses_until_the_month_ends() {
    let now = Instant::now();
    let text = "[[budget]]\nname = 'shop'\ncaller = 'key:a'\ncalls_per_month = 10\nover = 'refuse'";
    let mut book = book(text, "2026-12-31T19:50:00Z", now);
    let mut at_ms = at("2026-12-31T19:50:00Z");
    let mut add = |book: &mut Book, caller: &str, calls, seconds: u64| {
        at_ms += seconds * 1000;
        let later = now + Duration::from_millis(at_ms - at("2026-12-31T19:50:00Z"));
        book.add(&interval(caller, calls, 5), at_ms, later)
    };
    assert!(add(&mut book, "b", 50, 5).reached.is_empty());
    assert_eq!(add(&mut book, "a", 8, 5).reached, [("shop".to_owned(), BudgetStep::Warning, true)]);
    assert!(add(&mut book, "a", 1, 5).reached.is_empty());
    let spent = add(&mut book, "a", 1, 5);
    assert_eq!(spent.reached, [("shop".to_owned(), BudgetStep::Whole, true)]);
    let [budget] = spent.spent.unwrap().try_into().unwrap();
    assert_eq!((&*budget.name, budget.until_ms), ("shop", at("2026-12-31T20:00:00Z")));
    assert!(add(&mut book, "a", 1, 5).spent.is_none(), "as before");
    let new_month = add(&mut book, "b", 1, 600);
    assert_eq!(new_month.spent, Some(Vec::new()));
}

#[test]
fn a_busy_box_writes_each_minute_and_an_idle_one_each_hour() {
    let now = Instant::now();
    let mut book = book("", "2026-12-02T10:00:00Z", now);
    let (begin, minute) = (at("2026-12-02T10:00:00Z"), Duration::from_mins(1));
    assert!(book.is_due(now), "at the start");
    book.begin_write(now);
    book.add(&interval("a", 0, 5), begin + 5000, now + minute);
    assert!(!book.is_due(now + minute) && book.is_due(now + 60 * minute));
    book.add(&interval("a", 1, 5), begin + 10_000, now + minute);
    assert!(!book.is_due(now + minute / 2) && book.is_due(now + minute));
    book.begin_write(now + minute);
    assert!(!book.is_due(now + 100 * minute), "nothing has changed");
    book.write_failed();
    assert!(book.is_due(now + 2 * minute));
}
