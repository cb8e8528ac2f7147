//! The loads: a fixed number of callers, or arrivals that do not wait for answers.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::random::Random;

/// A load to measure under.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Closed loop: the number of callers. Each sends its next request after the answer.
    Concurrency(usize),
    /// Open loop: requests a second, sent without waiting for answers.
    Rate(f64),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Concurrency(callers) => write!(f, "concurrency {callers}"),
            Self::Rate(rate) => write!(f, "rate {rate}/s"),
        }
    }
}

/// The times between arrivals of an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// Exponential intervals, as of independent callers.
    Poisson,
    Constant,
}

/// The send times of the requests of an open loop, counted from its start: ascending and before `duration`.
pub fn schedule(rate: f64, duration: Duration, arrivals: Arrivals, random: &mut Random) -> Vec<Duration> {
    let end = duration.as_secs_f64();
    let mut offsets = Vec::new();
    let mut at = match arrivals {
        Arrivals::Poisson => exponential(rate, random),
        Arrivals::Constant => 0.0,
    };
    while at < end {
        offsets.push(Duration::from_secs_f64(at));
        at = match arrivals {
            Arrivals::Poisson => at + exponential(rate, random),
            #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
            Arrivals::Constant => offsets.len() as f64 / rate,
        };
    }
    offsets
}

/// Seconds between two arrivals of a Poisson process.
fn exponential(rate: f64, random: &mut Random) -> f64 {
    // 1 - unit is never 0, which would have an infinite logarithm.
    -(1.0 - random.unit()).ln() / rate
}

/// `1,2,4`: numbers of callers.
pub fn parse_concurrency(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(callers @ 1..=1024) => Ok(callers),
        _ => Err("expected 1 to 1024 callers".to_owned()),
    }
}

/// `100,200`: requests a second.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.01..=1e6).contains(&rate) => Ok(rate),
        _ => Err("expected 0.01 to 1000000 requests a second".to_owned()),
    }
}

/// A time: `5` or `0.5` (seconds), `500ms`, `5s`, `2m`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0)];
    let (number, unit) =
        units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds))).unwrap_or((text, 1.0));
    match number.trim().parse::<f64>() {
        Ok(number) if (0.0..=86_400.0).contains(&(number * unit)) => Ok(Duration::from_secs_f64(number * unit)),
        _ => Err("expected a time such as 5 (seconds), 0.5, 500ms or 2m, at most a day".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn constant_arrivals_are_evenly_spaced() {
        let offsets = schedule(4.0, Duration::from_secs(1), Arrivals::Constant, &mut Random::seeded(1));
        assert_eq!(offsets, [0, 250, 500, 750].map(Duration::from_millis));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_an_exponential() {
        let offsets = schedule(1000.0, Duration::from_secs(100), Arrivals::Poisson, &mut Random::seeded(7));
        // 100,000 expected, with a standard deviation of 316.
        assert!((98_000..=102_000).contains(&offsets.len()), "{}", offsets.len());
        let gaps: Vec<f64> = offsets.windows(2).map(|pair| pair[1].as_secs_f64() - pair[0].as_secs_f64()).collect();
        let count = f64::from(u32::try_from(gaps.len()).unwrap());
        let mean = gaps.iter().sum::<f64>() / count;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count).sqrt();
        assert!((0.97..1.03).contains(&(deviation / mean)), "an exponential deviates by its mean: {deviation} {mean}");
    }

    #[test]
    fn times_have_units() {
        let times = ["5", "0.5", "500ms", "2m", "3s"].map(|text| parse_time(text).unwrap().as_millis());
        assert_eq!(times, [5000, 500, 500, 120_000, 3000]);
        for wrong in ["", "-1", "x", "5h", "nan", "inf", "1e300"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "-1", "nan", "inf", "x"] {
            assert!(parse_rate(wrong).is_err() && parse_concurrency(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn arrivals_ascend_and_end_before_the_duration(
            rate in 0.01_f64..10_000.0, millis in 0_u64..1000, constant: bool, seed: u64,
        ) {
            let duration = Duration::from_millis(millis);
            let arrivals = if constant { Arrivals::Constant } else { Arrivals::Poisson };
            let offsets = schedule(rate, duration, arrivals, &mut Random::seeded(seed));
            prop_assert!(offsets.is_sorted());
            prop_assert!(offsets.iter().all(|offset| *offset <= duration));
        }
    }
}
