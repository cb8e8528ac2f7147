//! Limits that a new version must keep while it sees requests. Pure: figures and limits in, a reason out.
//!
//! A limit is judged only when there are enough requests to judge by. Until then it passes, and the stage's
//! `min_requests` and `quiet` define what too few requests mean. Three requests decide nothing:
//!
//! * **Rates** (errors, agreement) need [`RATE_FLOOR`] requests, and then the limit must lie outside the rate's Wilson
//!   score interval (one-sided, 95 %): with `n` requests of which the share `p` counts, its bounds are
//!   `(p + z²/2n ± z·√(p(1-p)/n + z²/4n²)) / (1 + z²/n)` with `z` = 1.645. A rate that chance explains is no reason.
//! * **The 95th percentile** needs [`PERCENTILE_FLOOR`] requests on either side: five beyond the percentile. A version
//!   that is slower by no more than [`LATENCY_NOISE_US`] is not too slow: where a run takes microseconds, one time
//!   slice of another process is a ratio of a hundred.
//! * **Memory** is a ratio as well, of one instance of each: the live version may have several, or none while no
//!   request comes. And [`MEMORY_NOISE_BYTES`] more is not too much: the first pages of a runtime count for a model of a few
//!   kilobytes.
//! * **Drift** is the population stability index `Σ (oᵢ - rᵢ) · ln(oᵢ / rᵢ)` over the classes, of the observed shares
//!   `o` against those of the signed reference `r`. Both are smoothed by Laplace's rule, one more answer for each of
//!   the `K` classes: `oᵢ = (nᵢ + 1) / (N + K)` and `rᵢ = (N·sᵢ + 1) / (N + K)`, so that a class without answers makes
//!   no infinity and equal shares make 0. By convention in credit scoring, an index below 0.1 means no change, from 0.1
//!   to 0.25 some change, and above 0.25 another population. `N` answers drawn from the reference itself have an index
//!   of about `(K - 1) / N`: judged from where that is half of the limit, and from [`DRIFT_FLOOR`] answers on.

use ledge_models::repository::observations::{ObservationSnapshot, VersionCounts};

use super::package::Reference;
use super::plan::Gate;
use super::state::{Cause, Reason};

/// Requests below which no rate is judged.
pub const RATE_FLOOR: u64 = 20;

/// Requests on each side below which no 95th percentile is judged.
pub const PERCENTILE_FLOOR: u64 = 100;

/// Answers below which no distribution is judged.
pub const DRIFT_FLOOR: u64 = 100;

/// Difference in time that the machine causes by itself, in microseconds.
pub const LATENCY_NOISE_US: u64 = 1_000;

/// Difference in memory that a runtime causes by itself, in bytes.
pub const MEMORY_NOISE_BYTES: u64 = 32 << 20;

/// The 95th percentile of the normal distribution.
const Z_95: f64 = 1.645;

/// Judges `observed` by the limits of `gate`, where the previous version was asked again for each request that the new
/// one failed. `reference` is the expected distribution of the classes.
pub fn judge(gate: &Gate, observed: &ObservationSnapshot, reference: Option<&Reference>) -> Result<(), Reason> {
    judge_with(gate, observed, reference, 0.0)
}

/// Judges a soak, in which the previous version is not asked. The new one may fail the share of its requests that the
/// previous version failed earlier in the trial, and `error_rate_max` more.
pub fn judge_soak(gate: &Gate, observed: &ObservationSnapshot, reference: Option<&Reference>) -> Result<(), Reason> {
    let VersionCounts { errors, requests, .. } = observed.incumbent;
    let failed_before = if requests < RATE_FLOOR { 0.0 } else { share(errors, requests) };
    judge_with(gate, observed, reference, failed_before)
}

fn judge_with(
    gate: &Gate,
    observed: &ObservationSnapshot,
    reference: Option<&Reference>,
    failed_before: f64,
) -> Result<(), Reason> {
    errors(gate, &observed.candidate, failed_before)?;
    agreement(gate, observed)?;
    latency(gate, &observed.candidate, &observed.incumbent)?;
    drift(gate, &observed.classes, reference)
}

/// Judges the memory of one instance of each version by `gate`, in bytes. A 0 means unknown.
pub fn judge_memory(gate: &Gate, candidate: u64, incumbent: u64) -> Result<(), Reason> {
    let Some(limit) = gate.memory_ratio_max.filter(|_| candidate > 0 && incumbent > 0) else { return Ok(()) };
    let ratio = number(candidate) / number(incumbent);
    if ratio <= limit || candidate.saturating_sub(incumbent) <= MEMORY_NOISE_BYTES {
        return Ok(());
    }
    let (candidate, incumbent) = (number(candidate) / MIB_BYTES, number(incumbent) / MIB_BYTES);
    let detail = format!(
        "takes {candidate:.1} MiB, {ratio:.2} times the {incumbent:.1} MiB before; at most {limit} \
         (memory_ratio_max)"
    );
    Err(Reason::new(Cause::Memory, detail))
}

const MIB_BYTES: f64 = 1_048_576.0;

fn errors(gate: &Gate, candidate: &VersionCounts, failed_before: f64) -> Result<(), Reason> {
    let (failed, requests) = (candidate.errors, candidate.requests);
    let Some(limit) = gate.error_rate_max.filter(|_| requests >= RATE_FLOOR) else { return Ok(()) };
    if wilson(failed, requests).0 <= limit + failed_before {
        return Ok(());
    }
    let (rate, limit) = (percent(share(failed, requests)), percent(limit));
    let more = if failed_before > 0.0 {
        format!(" besides the {} that the previous version failed", percent(failed_before))
    } else {
        String::new()
    };
    let detail = format!("{failed} of {requests} requests failed ({rate}), at most {limit} may{more}");
    Err(Reason::new(Cause::Errors, detail))
}

fn agreement(gate: &Gate, observed: &ObservationSnapshot) -> Result<(), Reason> {
    let compared = observed.agreed.saturating_add(observed.disagreed);
    let Some(limit) = gate.agreement_min.filter(|_| compared >= RATE_FLOOR) else { return Ok(()) };
    if wilson(observed.agreed, compared).1 >= limit {
        return Ok(());
    }
    let (agreed, rate, limit) = (observed.agreed, percent(share(observed.agreed, compared)), percent(limit));
    let detail =
        format!("{agreed} of {compared} answers agreed with the previous version ({rate}), at least {limit} must");
    Err(Reason::new(Cause::Agreement, detail))
}

fn latency(gate: &Gate, candidate: &VersionCounts, incumbent: &VersionCounts) -> Result<(), Reason> {
    let enough = candidate.requests.min(incumbent.requests) >= PERCENTILE_FLOOR;
    let Some(limit) = gate.p95_ratio_max.filter(|_| enough) else { return Ok(()) };
    let (Some(new), Some(old)) = (candidate.p95_us, incumbent.p95_us) else { return Ok(()) };
    judge_latency(limit, "95 % of requests", new, old)
}

/// Judges the times of both versions, in microseconds, by the limit `p95_ratio_max`. `share` names the measured share
/// of requests in the message.
pub fn judge_latency(limit: f64, share: &str, candidate: u64, incumbent: u64) -> Result<(), Reason> {
    // Below a microsecond there is no ratio.
    let ratio = number(candidate) / number(incumbent.max(1));
    if ratio <= limit || candidate.saturating_sub(incumbent) <= LATENCY_NOISE_US {
        return Ok(());
    }
    let (new, old) = (number(candidate) / 1e3, number(incumbent) / 1e3);
    let detail = format!(
        "{share} took up to {new:.2} ms, {ratio:.2} times the {old:.2} ms before; at most {limit} (p95_ratio_max)"
    );
    Err(Reason::new(Cause::Latency, detail))
}

fn drift(gate: &Gate, classes: &[u64], reference: Option<&Reference>) -> Result<(), Reason> {
    let (Some(limit), Some(reference)) = (gate.psi_max, reference) else { return Ok(()) };
    let answers: u64 = classes.iter().sum();
    let kinds = classes.len().max(reference.classes.len());
    let chance = number(kinds.saturating_sub(1) as u64) / number(answers.max(1));
    if answers < DRIFT_FLOOR || chance > limit / 2.0 {
        return Ok(());
    }
    let index = population_stability_index(classes, &reference.classes);
    if index <= limit {
        return Ok(());
    }
    let detail = format!(
        "the classes of {answers} answers drifted by {index:.3} (population stability index) from the signed reference; \
         at most {limit}"
    );
    Err(Reason::new(Cause::Drift, detail))
}

/// Returns the smoothed population stability index of `counts` against the shares `reference`, as defined above. A
/// class that one of them lacks counts 0 there. Shares that do not sum to 1 are scaled; without any, all are equal.
pub fn population_stability_index(counts: &[u64], reference: &[f64]) -> f64 {
    let kinds = counts.len().max(reference.len());
    let answers = number(counts.iter().sum());
    let positive = |share: f64| if share.is_finite() { share.max(0.0) } else { 0.0 };
    let whole: f64 = reference.iter().copied().map(positive).sum();
    #[expect(clippy::cast_precision_loss, reason = "a number of classes")]
    let smoothed = |expected: f64| (expected + 1.0) / (answers + kinds as f64);
    let terms = (0..kinds).map(|class| {
        let counted = number(counts.get(class).copied().unwrap_or(0));
        let share = reference.get(class).copied().map_or(0.0, positive);
        #[expect(clippy::cast_precision_loss, reason = "a number of classes")]
        let share = if whole > 0.0 { share / whole } else { 1.0 / kinds as f64 };
        let (observed, expected) = (smoothed(counted), smoothed(answers * share));
        (observed - expected) * (observed / expected).ln()
    });
    terms.sum()
}

/// Returns the bounds of the Wilson score interval of `count` in `all`, each one-sided at 95 %.
fn wilson(count: u64, all: u64) -> (f64, f64) {
    let (p, n) = (share(count, all), number(all.max(1)));
    let middle = p + Z_95 * Z_95 / (2.0 * n);
    let half = Z_95 * (p * (1.0 - p) / n + Z_95 * Z_95 / (4.0 * n * n)).sqrt();
    let whole = 1.0 + Z_95 * Z_95 / n;
    ((middle - half) / whole, (middle + half) / whole)
}

fn share(count: u64, all: u64) -> f64 {
    number(count) / number(all.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "figures for a ratio: far below 2^53")]
fn number(count: u64) -> f64 {
    count as f64
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all() -> Gate {
        Gate {
            golden_min: None,
            agreement_min: Some(0.95),
            p95_ratio_max: Some(1.25),
            error_rate_max: Some(0.01),
            memory_ratio_max: Some(1.5),
            psi_max: Some(0.25),
        }
    }

    fn side(requests: u64, errors: u64, p95_us: u64) -> VersionCounts {
        VersionCounts { requests, errors, p95_us: Some(p95_us) }
    }

    fn observed(candidate: VersionCounts) -> ObservationSnapshot {
        ObservationSnapshot { candidate, incumbent: side(1_000, 0, 1_000), ..ObservationSnapshot::default() }
    }

    fn thirds() -> Reference {
        Reference { output: "OUT".to_owned(), classes: vec![1.0 / 3.0; 3] }
    }

    #[track_caller]
    fn stops(observed: &ObservationSnapshot, cause: Cause, words: &str) {
        let reason = judge(&all(), observed, Some(&thirds())).unwrap_err();
        assert!(reason.cause == cause && reason.detail.contains(words), "{reason}");
    }

    #[test]
    fn three_requests_decide_nothing() {
        let worst = ObservationSnapshot {
            disagreed: 3,
            classes: vec![3],
            ..observed(VersionCounts { requests: 3, errors: 3, p95_us: Some(1_000_000) })
        };
        assert_eq!(judge(&all(), &worst, Some(&thirds())), Ok(()));
        assert_eq!(judge(&all(), &ObservationSnapshot::default(), None), Ok(()));
    }

    #[test]
    fn a_version_as_good_as_the_one_before_passes_every_gate() {
        let good = ObservationSnapshot {
            agreed: 990,
            disagreed: 10,
            classes: vec![330, 340, 330],
            ..observed(side(1_000, 2, 1_200))
        };
        assert_eq!(judge(&all(), &good, Some(&thirds())), Ok(()));
    }

    #[test]
    fn each_gate_stops_with_its_figures() {
        stops(
            &observed(side(100, 10, 1_000)),
            Cause::Errors,
            "10 of 100 requests failed (10.00 %), at most 1.00 % may",
        );
        let differs = ObservationSnapshot { agreed: 80, disagreed: 20, ..observed(side(100, 0, 1_000)) };
        stops(
            &differs,
            Cause::Agreement,
            "80 of 100 answers agreed with the previous version (80.00 %), at least 95.00 %",
        );
        let words = "95 % of requests took up to 3.00 ms, 3.00 times the 1.00 ms before; at most 1.25";
        stops(&observed(side(100, 0, 3_000)), Cause::Latency, words);
        let drifted = ObservationSnapshot { classes: vec![800, 100, 100], ..observed(side(1_000, 0, 1_000)) };
        stops(&drifted, Cause::Drift, "the classes of 1000 answers drifted by 0.9");
        let reason = judge_memory(&all(), 300 << 20, 100 << 20).unwrap_err();
        assert_eq!(reason.cause, Cause::Memory);
        assert!(reason.detail.contains("takes 300.0 MiB, 3.00 times the 100.0 MiB before; at most 1.5"), "{reason}");
    }

    #[test]
    fn in_a_soak_the_new_version_may_fail_what_the_one_before_failed() {
        let both_fail = ObservationSnapshot { incumbent: side(1_000, 100, 1_000), ..observed(side(1_000, 100, 1_000)) };
        assert_eq!(judge_soak(&all(), &both_fail, None), Ok(()));
        let worse = ObservationSnapshot { candidate: side(1_000, 200, 1_000), ..both_fail.clone() };
        let reason = judge_soak(&all(), &worse, None).unwrap_err();
        assert!(
            reason.detail.contains("at most 1.00 % may besides the 10.00 % that the previous version failed"),
            "{reason}"
        );
        // A request that the previous version failed as well is not counted, and excuses nothing.
        assert_eq!(judge(&all(), &both_fail, None).unwrap_err().cause, Cause::Errors);
        // A few requests make no rate.
        let few = ObservationSnapshot { incumbent: side(RATE_FLOOR - 1, RATE_FLOOR - 1, 1_000), ..both_fail };
        assert_eq!(judge_soak(&all(), &few, None).unwrap_err().cause, Cause::Errors);
    }

    #[test]
    fn a_limit_that_is_left_out_stops_nothing() {
        let worst =
            ObservationSnapshot { disagreed: 1_000, classes: vec![1_000], ..observed(side(1_000, 1_000, 1_000_000)) };
        assert_eq!(judge(&Gate::OPEN, &worst, Some(&thirds())), Ok(()));
        assert_eq!(judge_memory(&Gate::OPEN, u64::MAX, 1), Ok(()));
        // And drift needs a signed reference.
        let only_drift = Gate { psi_max: Some(0.1), ..Gate::OPEN };
        assert_eq!(judge(&only_drift, &worst, None), Ok(()));
    }

    #[test]
    fn a_rate_that_chance_explains_passes_and_the_same_rate_of_many_does_not() {
        // 2 % at a limit of 1 %.
        assert_eq!(judge(&all(), &observed(side(50, 1, 1_000)), None), Ok(()));
        assert!(judge(&all(), &observed(side(5_000, 100, 1_000)), None).is_err());
        // At a limit of none at all, the twentieth request is the first that can fail it.
        let none = Gate { error_rate_max: Some(0.0), ..Gate::OPEN };
        assert_eq!(judge(&none, &observed(side(RATE_FLOOR - 1, 1, 1)), None), Ok(()));
        assert!(judge(&none, &observed(side(RATE_FLOOR, 1, 1)), None).is_err());
    }

    #[test]
    fn percentiles_are_compared_when_both_sides_have_them() {
        let few = ObservationSnapshot { incumbent: side(99, 0, 1_000), ..observed(side(1_000, 0, 9_000)) };
        assert_eq!(judge(&all(), &few, None), Ok(()));
        let unknown = ObservationSnapshot {
            incumbent: VersionCounts { p95_us: None, ..side(1_000, 0, 0) },
            ..observed(side(1_000, 0, 9_000))
        };
        assert_eq!(judge(&all(), &unknown, None), Ok(()));
    }

    #[test]
    fn a_rollout_that_names_no_gate_is_judged_all_the_same() {
        let default = Gate::default();
        let slow = judge(&default, &observed(side(100, 0, 68_000_000)), None).unwrap_err();
        assert_eq!(slow.cause, Cause::Latency, "{slow}");
        assert_eq!(judge(&default, &observed(side(100, 50, 1_000)), None).unwrap_err().cause, Cause::Errors);
        assert_eq!(judge_memory(&default, 300 << 20, 100 << 20).unwrap_err().cause, Cause::Memory);
        // One failure in the first twenty requests is chance, and another answer may be the better one.
        assert_eq!(
            judge(&default, &ObservationSnapshot { disagreed: 100, ..observed(side(20, 1, 1_000)) }, None),
            Ok(())
        );
    }

    #[test]
    fn what_the_machine_does_by_itself_stops_nobody() {
        let strict = Gate { p95_ratio_max: Some(1.25), memory_ratio_max: Some(1.5), ..Gate::OPEN };
        let quick = |new_us| ObservationSnapshot { incumbent: side(1_000, 0, 10), ..observed(side(1_000, 0, new_us)) };
        assert_eq!(judge(&strict, &quick(10 + LATENCY_NOISE_US), None), Ok(()));
        assert!(judge(&strict, &quick(11 + LATENCY_NOISE_US), None).is_err());
        assert_eq!(judge_memory(&strict, 4_096 + MEMORY_NOISE_BYTES, 4_096), Ok(()));
        assert!(judge_memory(&strict, 4_097 + MEMORY_NOISE_BYTES, 4_096).is_err());
    }

    #[test]
    fn nothing_is_said_about_memory_that_is_not_known() {
        assert_eq!(judge_memory(&all(), 0, 1 << 20), Ok(()));
        assert_eq!(judge_memory(&all(), 1 << 40, 0), Ok(()));
        assert_eq!(judge_memory(&all(), 150, 100), Ok(()));
    }

    #[test]
    fn drift_of_many_classes_waits_until_chance_alone_would_pass() {
        let one_of_a_thousand = |answers| {
            let mut classes = vec![0; 1_000];
            classes[0] = answers;
            ObservationSnapshot { classes, ..observed(side(answers, 0, 1_000)) }
        };
        let reference = Reference { output: "OUT".to_owned(), classes: vec![0.001; 1_000] };
        let psi = Gate { psi_max: Some(0.25), ..Gate::OPEN };
        assert_eq!(judge(&psi, &one_of_a_thousand(7_000), Some(&reference)), Ok(()));
        assert!(judge(&psi, &one_of_a_thousand(8_000), Some(&reference)).is_err());
    }

    #[test]
    fn the_index_is_that_of_the_formula() {
        // (31 + 1) / 102 etc. against (50 + 1) / 102, by hand.
        let index = population_stability_index(&[30, 70], &[0.5, 0.5]);
        let by_hand = (31.0 / 102.0 - 0.5) * (31.0_f64 / 51.0).ln() + (71.0 / 102.0 - 0.5) * (71.0_f64 / 51.0).ln();
        assert!((index - by_hand).abs() < 1e-12, "{index} {by_hand}");
        // From half and half to 30 and 70: by custom "something changed", and not "another population".
        assert!((0.1..0.25).contains(&index));
    }

    proptest! {
        #[test]
        fn the_index_is_finite_and_never_negative(
            counts in proptest::collection::vec(0_u64..1 << 40, 0..20),
            shares in proptest::collection::vec(prop_oneof![8 => 0.0..1.0_f64, 1 => Just(f64::NAN), 1 => -1.0..0.0_f64], 0..20),
        ) {
            let index = population_stability_index(&counts, &shares);
            prop_assert!(index.is_finite() && index >= -1e-9, "{index}");
        }

        #[test]
        fn equal_shares_have_no_drift(counts in proptest::collection::vec(1_u64..1_000_000, 1..20)) {
            let all = number(counts.iter().sum());
            let shares: Vec<f64> = counts.iter().map(|&count| number(count) / all).collect();
            prop_assert!(population_stability_index(&counts, &shares).abs() < 1e-9);
        }

        #[test]
        fn a_share_lies_in_its_own_interval(all in 1_u64..1_000_000, part in 0.0..=1.0_f64) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count")]
            let count = (number(all) * part) as u64;
            let (low, high) = wilson(count, all);
            prop_assert!(low <= share(count, all) + 1e-12 && share(count, all) <= high + 1e-12);
            prop_assert!(low > -1e-12 && high < 1.0 + 1e-12);
        }
    }
}
