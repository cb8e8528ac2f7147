//! Limits that a new version must keep while it sees requests. Pure: figures and limits in, a reason out.
//!
//! A limit is judged only when there are enough requests to judge by. Until then it passes, and the stage's
//! `min_requests` and `quiet` define what too few requests mean. Three requests decide nothing:
//!
//! * **Rates** (errors, agreement) need [`RATE_FLOOR`] requests, and then the limit must lie outside the rate's Wilson
//!   score interval (one-sided, 95 %): with `n` requests of which the share `p` counts, its bounds are
//!   `(p + z²/2n ± z·√(p(1-p)/n + z²/4n²)) / (1 + z²/n)` with `z` = 1.645. A rate that chance explains is no reason.
//! * **The 95th percentile** needs [`PERCENTILE_FLOOR`] requests on either side: five beyond the percentile. It is only
//!   a suspicion, because the requests of both versions may be of different moments. **The pace** decides: runs of both
//!   versions in pairs, on one input one right after the other, by their CPU time where the kernel gives it, else by
//!   the clock. The limit must lie outside the 95 % interval of the median ratio, which is that of the sign test:
//!   between the ratios at the places `n/2 ± z·√n/2` of `n` sorted ones, `z` = 1.645. A version that is slower by no
//!   more than [`LATENCY_NOISE_US`], or [`CPU_NOISE_US`] of CPU time, is not too slow: where a run takes microseconds,
//!   one time slice of another process is a ratio of a hundred.
//! * **Crashes** need [`CRASHES_FLOOR`] calls that ended the process of the new version, and none of the previous one.
//! * **Agreement that was signed**: the platform ran both versions on its own inputs. The version must agree here as
//!   often as there, within the Wilson intervals of both rates and [`AGREEMENT_MARGIN`], for the requests here are
//!   others.
//! * **Memory** is a ratio as well, of one instance of each in one runtime: the live version may have several, or none
//!   while no request comes. And [`MEMORY_NOISE_BYTES`] more is not too much: the first pages of a runtime count for a
//!   model of a few kilobytes.
//! * **Drift** is the population stability index `Σ (oᵢ - rᵢ) · ln(oᵢ / rᵢ)` over the classes, of the observed shares
//!   `o` against those of the signed reference `r`. Both are smoothed by Laplace's rule, one more answer for each of
//!   the `K` classes: `oᵢ = (nᵢ + 1) / (N + K)` and `rᵢ = (N·sᵢ + 1) / (N + K)`, so that a class without answers makes
//!   no infinity and equal shares make 0. By convention in credit scoring, an index below 0.1 means no change, from 0.1
//!   to 0.25 some change, and above 0.25 another population. `N` answers drawn from the reference itself have an index
//!   of about `(K - 1) / N`: judged from where that is half of the limit, and from [`DRIFT_FLOOR`] answers on.

use ledge_drift::statistics::{Z_95, number, population_stability_index, share, wilson};
use ledge_models::repository::observations::{ObservationSnapshot, VersionCounts};
use ledge_models::repository::pace::{PacePair, RunCost};

use super::package::{ExpectedAgreement, ReferenceClasses};
use super::plan::RolloutGate;
use super::state::{RollbackCause, RollbackReason};

/// Requests below which no rate is judged.
pub const RATE_FLOOR: u64 = 20;

/// Requests on each side below which no 95th percentile is judged.
pub const PERCENTILE_FLOOR: u64 = 100;

/// Answers below which no distribution is judged.
pub const DRIFT_FLOOR: u64 = 100;

/// Calls that ended the process of the new version from which it is at fault.
pub const CRASHES_FLOOR: u64 = 2;

/// Pairs of runs below which no pace is judged.
pub const PAIRS_FLOOR: usize = 12;

/// Difference in time that the machine causes by itself, in microseconds.
pub const LATENCY_NOISE_US: u64 = 1_000;

/// Difference in CPU time that the machine causes by itself, in microseconds: caches that other work has filled, of a
/// process that runs seldom. On a machine with 15 times more work than cores it was 250.
pub const CPU_NOISE_US: u64 = 500;

/// The least share of the time of its quickest runs that is CPU time, where CPU time is that of the run.
const CPU_SHARE_MIN: f64 = 0.5;

/// The share of the requests on which versions may disagree here and did not where they were signed.
pub const AGREEMENT_MARGIN: f64 = 0.01;

/// The share of wrong answers that signed agreement must show.
const WRONG_ANSWERS_SHOWN: f64 = 0.05;

/// The most requests that a stage waits for to show it.
const AGREEMENT_REQUESTS_MAX: u64 = 100_000;

/// Difference in memory that a runtime causes by itself, in bytes.
pub const MEMORY_NOISE_BYTES: u64 = 32 << 20;

/// Judges `observed` by the limits of `gate`, where the previous version was asked again for each request that the new
/// one failed. `reference` is the expected distribution of the classes.
pub fn judge(
    gate: &RolloutGate,
    observed: &ObservationSnapshot,
    reference: Option<&ReferenceClasses>,
) -> Result<(), RollbackReason> {
    judge_with(gate, observed, reference, 0.0)
}

/// Judges a soak, in which the previous version is not asked. The new one may fail the share of its requests that the
/// previous version failed earlier in the trial, and `error_rate_max` more.
pub fn judge_soak(
    gate: &RolloutGate,
    observed: &ObservationSnapshot,
    reference: Option<&ReferenceClasses>,
) -> Result<(), RollbackReason> {
    let VersionCounts { errors, requests, .. } = observed.incumbent;
    let failed_before = if requests < RATE_FLOOR { 0.0 } else { share(errors, requests) };
    judge_with(gate, observed, reference, failed_before)
}

fn judge_with(
    gate: &RolloutGate,
    observed: &ObservationSnapshot,
    reference: Option<&ReferenceClasses>,
    failed_before: f64,
) -> Result<(), RollbackReason> {
    crashes(&observed.candidate, &observed.incumbent)?;
    errors(gate, &observed.candidate, failed_before)?;
    agreement(gate, observed)?;
    drift(gate, &observed.classes, reference)
}

/// Suspects a version by the times of its requests. They are of other moments than those of the previous version, so
/// only [`judge_pace`] decides whether it is too slow.
pub fn is_suspect(gate: &RolloutGate, observed: &ObservationSnapshot) -> bool {
    let (candidate, incumbent) = (&observed.candidate, &observed.incumbent);
    let enough = candidate.requests.min(incumbent.requests) >= PERCENTILE_FLOOR;
    let Some(limit) = gate.p95_ratio_max.filter(|_| enough) else { return false };
    let (Some(new), Some(old)) = (candidate.p95_us, incumbent.p95_us) else { return false };
    number(new) / number(old.max(1)) > limit && new.saturating_sub(old) > CPU_NOISE_US
}

/// The pace of a version against that of the previous one.
#[derive(Debug, Clone, PartialEq)]
pub enum PaceJudgement {
    WithinLimit,
    Slow(RollbackReason),
    /// The machine is too busy to decide, or the ratio is very close to the limit.
    Unclear,
}

/// Judges pairs of runs by the limit `p95_ratio_max`.
pub fn judge_pace(limit: f64, pairs: &[PacePair]) -> PaceJudgement {
    if pairs.len() < PAIRS_FLOOR {
        return PaceJudgement::Unclear;
    }
    let by_cpu = [|pair: &PacePair| pair.new, |pair: &PacePair| pair.live].iter().all(|side| knows_cpu(pairs, side));
    let time = |cost: RunCost| if by_cpu { cost.cpu } else { cost.wall }.as_secs_f64() * 1e6;
    let (noise_us, clock) = if by_cpu { (CPU_NOISE_US, " of CPU time") } else { (LATENCY_NOISE_US, "") };
    let sorted = |of: &dyn Fn(&PacePair) -> f64| {
        let mut all: Vec<f64> = pairs.iter().map(of).collect();
        all.sort_unstable_by(f64::total_cmp);
        all
    };

    // Below a microsecond there is no ratio.
    let ratios = sorted(&|pair| time(pair.new) / time(pair.live).max(1.0));
    let slower_us = sorted(&|pair| time(pair.new) - time(pair.live));
    let (low, middle, high) = median_within(&ratios);
    if high <= limit || median_within(&slower_us).1 <= number(noise_us) {
        return PaceJudgement::WithinLimit;
    }
    if low <= limit {
        return PaceJudgement::Unclear;
    }
    let [new, live] = [sorted(&|pair| time(pair.new)), sorted(&|pair| time(pair.live))].map(|of| median_within(&of).1);
    let detail = format!(
        "a run takes {:.2} ms{clock}, {middle:.2} times the {:.2} ms of the previous version at the same moments; at most \
         {limit} (p95_ratio_max)",
        new / 1e3,
        live / 1e3
    );
    PaceJudgement::Slow(RollbackReason::new(RollbackCause::Latency, detail))
}

/// True when the CPU time of these runs is the time that they took on an idle machine.
fn knows_cpu(pairs: &[PacePair], side: &dyn Fn(&PacePair) -> RunCost) -> bool {
    let share = |cost: RunCost| cost.cpu.as_secs_f64() / cost.wall.as_secs_f64().max(1e-9);
    let costs = || pairs.iter().map(side);
    costs().all(|cost| !cost.cpu.is_zero()) && costs().map(share).fold(0.0, f64::max) >= CPU_SHARE_MIN
}

/// The median of sorted numbers between the bounds of its interval, each one-sided at 95 %.
fn median_within(sorted: &[f64]) -> (f64, f64, f64) {
    let n = number(sorted.len() as u64);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the list")]
    let at = |place: f64| sorted.get((place.max(0.0) as usize).min(sorted.len().saturating_sub(1)));
    let at = |place: f64| at(place).copied().unwrap_or(0.0);
    let half = Z_95 * n.sqrt() / 2.0;
    (at((n / 2.0 - half).floor()), at((n / 2.0).floor()), at((n / 2.0 + half).ceil()))
}

/// Judges the agreement with the previous version by the one that was signed.
pub fn judge_expected(expected: &ExpectedAgreement, observed: &ObservationSnapshot) -> Result<(), RollbackReason> {
    let compared = observed.agreed.saturating_add(observed.disagreed);
    let floor = expected_floor(expected);
    if compared < RATE_FLOOR || wilson(observed.agreed, compared).1 >= floor {
        return Ok(());
    }
    let ExpectedAgreement { agreed: of, compared: all, .. } = expected;
    let detail = format!(
        "{} of {compared} answers agreed with the previous version ({}); {of} of {all} did where the release was signed, so \
         at least {} must",
        observed.agreed,
        percent(share(observed.agreed, compared)),
        percent(floor)
    );
    Err(RollbackReason::new(RollbackCause::Agreement, detail))
}

/// The least share of answers that must agree.
fn expected_floor(expected: &ExpectedAgreement) -> f64 {
    wilson(expected.agreed, expected.compared).0 - AGREEMENT_MARGIN
}

/// The number of compared answers after which a version with [`WRONG_ANSWERS_SHOWN`] more wrong answers is stopped, in
/// 95 of 100 cases; 0 where the signed figures are of too few inputs to show so few.
pub fn answers_needed(expected: &ExpectedAgreement) -> u64 {
    let (floor, faulty) = (expected_floor(expected), share(expected.agreed, expected.compared) - WRONG_ANSWERS_SHOWN);
    if faulty >= floor || floor <= 0.0 {
        return 0;
    }
    let faulty = faulty.max(0.0);
    // The share itself varies as much as its interval is wide: twice z, of the normal approximation.
    let needed = (2.0 * Z_95 / (floor - faulty)).powi(2) * (faulty * (1.0 - faulty));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    let needed = needed.ceil().min(number(AGREEMENT_REQUESTS_MAX)) as u64;
    needed.max(RATE_FLOOR)
}

fn crashes(candidate: &VersionCounts, incumbent: &VersionCounts) -> Result<(), RollbackReason> {
    if candidate.crashes < CRASHES_FLOOR || incumbent.crashes > 0 {
        return Ok(());
    }
    let VersionCounts { crashes, requests, .. } = candidate;
    let detail = format!("{crashes} of {requests} requests ended its process, and none that of the previous version");
    Err(RollbackReason::new(RollbackCause::Crash, detail))
}

/// Judges the memory of one instance of each version by `gate`, in bytes. A 0 means unknown.
pub fn judge_memory(gate: &RolloutGate, candidate: u64, incumbent: u64) -> Result<(), RollbackReason> {
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
    Err(RollbackReason::new(RollbackCause::Memory, detail))
}

const MIB_BYTES: f64 = 1_048_576.0;

fn errors(gate: &RolloutGate, candidate: &VersionCounts, failed_before: f64) -> Result<(), RollbackReason> {
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
    let not_finite = match candidate.non_finite {
        0 => String::new(),
        count => format!(", {count} of them by values that are not finite"),
    };
    let detail = format!("{failed} of {requests} requests failed ({rate}){not_finite}, at most {limit} may{more}");
    Err(RollbackReason::new(RollbackCause::Errors, detail))
}

fn agreement(gate: &RolloutGate, observed: &ObservationSnapshot) -> Result<(), RollbackReason> {
    let compared = observed.agreed.saturating_add(observed.disagreed);
    let Some(limit) = gate.agreement_min.filter(|_| compared >= RATE_FLOOR) else { return Ok(()) };
    if wilson(observed.agreed, compared).1 >= limit {
        return Ok(());
    }
    let (agreed, rate, limit) = (observed.agreed, percent(share(observed.agreed, compared)), percent(limit));
    let detail =
        format!("{agreed} of {compared} answers agreed with the previous version ({rate}), at least {limit} must");
    Err(RollbackReason::new(RollbackCause::Agreement, detail))
}

fn drift(gate: &RolloutGate, classes: &[u64], reference: Option<&ReferenceClasses>) -> Result<(), RollbackReason> {
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
    Err(RollbackReason::new(RollbackCause::Drift, detail))
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> RolloutGate {
        RolloutGate {
            golden_min: None,
            agreement_min: Some(0.95),
            p95_ratio_max: Some(1.25),
            error_rate_max: Some(0.01),
            memory_ratio_max: Some(1.5),
            psi_max: Some(0.25),
        }
    }

    fn side(requests: u64, errors: u64, p95_us: u64) -> VersionCounts {
        VersionCounts { requests, errors, p95_us: Some(p95_us), ..VersionCounts::default() }
    }

    fn observed(candidate: VersionCounts) -> ObservationSnapshot {
        ObservationSnapshot { candidate, incumbent: side(1_000, 0, 1_000), ..ObservationSnapshot::default() }
    }

    fn thirds() -> ReferenceClasses {
        ReferenceClasses { output: "OUT".to_owned(), classes: vec![1.0 / 3.0; 3] }
    }

    #[track_caller]
    fn stops(observed: &ObservationSnapshot, cause: RollbackCause, words: &str) {
        let reason = judge(&all(), observed, Some(&thirds())).unwrap_err();
        assert!(reason.cause == cause && reason.detail.contains(words), "{reason}");
    }

    #[test]
    fn three_requests_decide_nothing() {
        let worst = ObservationSnapshot { disagreed: 3, classes: vec![3], ..observed(side(3, 3, 1_000_000)) };
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
            RollbackCause::Errors,
            "10 of 100 requests failed (10.00 %), at most 1.00 % may",
        );
        let differs = ObservationSnapshot { agreed: 80, disagreed: 20, ..observed(side(100, 0, 1_000)) };
        stops(
            &differs,
            RollbackCause::Agreement,
            "80 of 100 answers agreed with the previous version (80.00 %), at least 95.00 %",
        );
        let crashed = VersionCounts { crashes: 2, ..side(1_000, 2, 1_000) };
        stops(
            &observed(crashed),
            RollbackCause::Crash,
            "2 of 1000 requests ended its process, and none that of the previous",
        );
        let drifted = ObservationSnapshot { classes: vec![800, 100, 100], ..observed(side(1_000, 0, 1_000)) };
        stops(&drifted, RollbackCause::Drift, "the classes of 1000 answers drifted by 0.9");
        let reason = judge_memory(&all(), 300 << 20, 100 << 20).unwrap_err();
        assert_eq!(reason.cause, RollbackCause::Memory);
        assert!(reason.detail.contains("takes 300.0 MiB, 3.00 times the 100.0 MiB before; at most 1.5"), "{reason}");
    }

    /// Pairs of runs that take this many milliseconds of CPU time, on a machine that delays each run by its entry of
    /// `waits`.
    fn pairs(new_ms: f64, live_ms: f64, cpu: bool, waits: impl Fn(usize) -> f64) -> Vec<PacePair> {
        let ms = |ms: f64| std::time::Duration::from_secs_f64(ms / 1e3);
        let cost = |time: f64, turn: usize| RunCost {
            wall: ms(time + waits(turn)),
            cpu: if cpu { ms(time) } else { std::time::Duration::ZERO },
        };
        (0..40).map(|turn| PacePair { new: cost(new_ms, 2 * turn), live: cost(live_ms, 2 * turn + 1) }).collect()
    }

    fn slow(pace: &PaceJudgement) -> Option<&str> {
        match pace {
            PaceJudgement::Slow(reason) => Some(&reason.detail),
            PaceJudgement::WithinLimit | PaceJudgement::Unclear => None,
        }
    }

    #[test]
    fn the_pace_is_judged_by_cpu_time_whatever_the_machine_does() {
        // Runs that wait for their core for up to six times their duration; one in five does not wait.
        let busy = |turn: usize| [0.0, 60.0, 9.0, 31.0, 4.0][turn % 5];
        assert_eq!(judge_pace(1.5, &pairs(10.0, 10.0, true, busy)), PaceJudgement::WithinLimit);
        let pace = judge_pace(1.5, &pairs(20.0, 10.0, true, busy));
        let words = "a run takes 20.00 ms of CPU time, 2.00 times the 10.00 ms of the previous version at the same moments; \
                     at most 1.5 (p95_ratio_max)";
        assert_eq!(slow(&pace), Some(words), "{pace:?}");
        assert_eq!(judge_pace(1.5, &pairs(20.0, 10.0, true, busy)[..PAIRS_FLOOR - 1]), PaceJudgement::Unclear);
    }

    #[test]
    fn without_cpu_time_a_busy_machine_cannot_tell_and_an_idle_one_can() {
        let idle = |_| 0.0;
        assert_eq!(judge_pace(1.5, &pairs(10.0, 10.0, false, idle)), PaceJudgement::WithinLimit);
        assert!(slow(&judge_pace(1.5, &pairs(20.0, 10.0, false, idle))).is_some());
        let busy = |turn: usize| [0.0, 90.0, 9.0, 31.0, 4.0, 70.0, 2.0][turn % 7];
        assert_eq!(judge_pace(1.5, &pairs(14.0, 10.0, false, busy)), PaceJudgement::Unclear);
        // CPU time of a thread that only waits for the runtime's own threads is not that of the run.
        let mut waiting = pairs(20.0, 10.0, true, idle);
        for pair in &mut waiting {
            (pair.new.cpu, pair.live.cpu) = (pair.new.cpu / 50, pair.live.cpu / 50);
        }
        assert!(slow(&judge_pace(1.5, &waiting)).is_some_and(|words| !words.contains("CPU")));
    }

    #[test]
    fn a_difference_of_microseconds_is_not_slow() {
        let idle = |_| 0.0;
        assert_eq!(judge_pace(1.5, &pairs(0.25, 0.06, true, idle)), PaceJudgement::WithinLimit);
        assert!(slow(&judge_pace(1.5, &pairs(1.2, 0.6, true, idle))).is_some());
        assert_eq!(judge_pace(1.5, &pairs(1.0, 0.1, false, idle)), PaceJudgement::WithinLimit);
    }

    #[test]
    fn times_of_requests_are_a_suspicion_and_nothing_else() {
        let slower = observed(side(100, 0, 3_000));
        assert_eq!(judge(&all(), &slower, None), Ok(()));
        assert!(is_suspect(&all(), &slower) && !is_suspect(&RolloutGate::OPEN, &slower));
        assert!(!is_suspect(&all(), &observed(side(PERCENTILE_FLOOR - 1, 0, 3_000))));
        assert!(!is_suspect(&all(), &observed(side(100, 0, 1_100))));
    }

    #[test]
    fn a_version_must_agree_as_often_as_where_it_was_signed() {
        let expected = |agreed, compared| ExpectedAgreement { version: "1".parse().unwrap(), agreed, compared };
        let seen = |agreed, disagreed| ObservationSnapshot { agreed, disagreed, ..ObservationSnapshot::default() };
        // An honest retraining, and one that is negated for a fifth of the requests.
        let honest = expected(194, 200);
        assert_eq!(judge_expected(&honest, &seen(965, 35)), Ok(()));
        let reason = judge_expected(&honest, &seen(780, 220)).unwrap_err();
        assert_eq!(reason.cause, RollbackCause::Agreement);
        let words = "780 of 1000 answers agreed with the previous version (78.00 %); 194 of 200 did where the release was \
                     signed, so at least 93.";
        assert!(reason.detail.starts_with(words), "{reason}");
        assert_eq!(judge_expected(&honest, &seen(0, RATE_FLOOR - 1)), Ok(()));
        // A version that never agrees with the previous one may go on so.
        assert_eq!(judge_expected(&expected(0, 200), &seen(0, 1_000)), Ok(()));
    }

    #[test]
    fn a_stage_lasts_until_five_more_wrong_answers_in_a_hundred_show() {
        let expected = |agreed, compared| ExpectedAgreement { version: "1".parse().unwrap(), agreed, compared };
        let seen = |agreed, disagreed| ObservationSnapshot { agreed, disagreed, ..ObservationSnapshot::default() };
        let needed = answers_needed(&expected(500, 500));
        assert!((300..800).contains(&needed), "{needed}");
        // Even when chance shows only as few as in one of twenty cases.
        let wrong = number(needed) * 0.05 - Z_95 * (number(needed) * 0.05 * 0.95).sqrt();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let wrong = wrong.ceil() as u64;
        judge_expected(&expected(500, 500), &seen(needed - wrong, wrong)).unwrap_err();
        // Ten golden inputs show nothing so small.
        assert_eq!(answers_needed(&expected(10, 10)), 0);
        assert_eq!(answers_needed(&expected(0, 0)), 0);
    }

    #[test]
    fn crashes_that_the_previous_version_had_as_well_stop_nothing() {
        let crashes = |candidate, incumbent| ObservationSnapshot {
            candidate: VersionCounts { crashes: candidate, ..side(1_000, 0, 1_000) },
            incumbent: VersionCounts { crashes: incumbent, ..side(1_000, 0, 1_000) },
            ..ObservationSnapshot::default()
        };
        assert_eq!(judge(&all(), &crashes(1, 0), None), Ok(()));
        assert_eq!(judge(&all(), &crashes(5, 1), None), Ok(()));
        assert_eq!(judge(&RolloutGate::OPEN, &crashes(2, 0), None).unwrap_err().cause, RollbackCause::Crash);
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
        assert_eq!(judge(&all(), &both_fail, None).unwrap_err().cause, RollbackCause::Errors);
        // A few requests make no rate.
        let few = ObservationSnapshot { incumbent: side(RATE_FLOOR - 1, RATE_FLOOR - 1, 1_000), ..both_fail };
        assert_eq!(judge_soak(&all(), &few, None).unwrap_err().cause, RollbackCause::Errors);
    }

    #[test]
    fn a_limit_that_is_left_out_stops_nothing() {
        let worst =
            ObservationSnapshot { disagreed: 1_000, classes: vec![1_000], ..observed(side(1_000, 1_000, 1_000_000)) };
        assert_eq!(judge(&RolloutGate::OPEN, &worst, Some(&thirds())), Ok(()));
        assert_eq!(judge_memory(&RolloutGate::OPEN, u64::MAX, 1), Ok(()));
        // And drift needs a signed reference.
        let only_drift = RolloutGate { psi_max: Some(0.1), ..RolloutGate::OPEN };
        assert_eq!(judge(&only_drift, &worst, None), Ok(()));
    }

    #[test]
    fn a_rate_that_chance_explains_passes_and_the_same_rate_of_many_does_not() {
        // 2 % at a limit of 1 %.
        assert_eq!(judge(&all(), &observed(side(50, 1, 1_000)), None), Ok(()));
        assert!(judge(&all(), &observed(side(5_000, 100, 1_000)), None).is_err());
        // At a limit of none at all, the twentieth request is the first that can fail it.
        let none = RolloutGate { error_rate_max: Some(0.0), ..RolloutGate::OPEN };
        assert_eq!(judge(&none, &observed(side(RATE_FLOOR - 1, 1, 1)), None), Ok(()));
        assert!(judge(&none, &observed(side(RATE_FLOOR, 1, 1)), None).is_err());
    }

    #[test]
    fn percentiles_are_compared_when_both_sides_have_them() {
        let few = ObservationSnapshot { incumbent: side(99, 0, 1_000), ..observed(side(1_000, 0, 9_000)) };
        assert!(!is_suspect(&all(), &few));
        let unknown = ObservationSnapshot {
            incumbent: VersionCounts { p95_us: None, ..side(1_000, 0, 0) },
            ..observed(side(1_000, 0, 9_000))
        };
        assert!(!is_suspect(&all(), &unknown));
    }

    #[test]
    fn a_rollout_that_names_no_gate_is_judged_all_the_same() {
        let default = RolloutGate::default();
        assert!(is_suspect(&default, &observed(side(100, 0, 68_000_000))));
        assert_eq!(judge(&default, &observed(side(100, 50, 1_000)), None).unwrap_err().cause, RollbackCause::Errors);
        assert_eq!(judge_memory(&default, 300 << 20, 100 << 20).unwrap_err().cause, RollbackCause::Memory);
        // One failure in the first twenty requests is chance, and another answer may be the better one.
        assert_eq!(
            judge(&default, &ObservationSnapshot { disagreed: 100, ..observed(side(20, 1, 1_000)) }, None),
            Ok(())
        );
    }

    #[test]
    fn what_the_machine_does_by_itself_stops_nobody() {
        let strict = RolloutGate { p95_ratio_max: Some(1.25), memory_ratio_max: Some(1.5), ..RolloutGate::OPEN };
        let quick = |new_us| ObservationSnapshot { incumbent: side(1_000, 0, 10), ..observed(side(1_000, 0, new_us)) };
        assert!(!is_suspect(&strict, &quick(10 + CPU_NOISE_US)));
        assert!(is_suspect(&strict, &quick(11 + CPU_NOISE_US)));
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
        let reference = ReferenceClasses { output: "OUT".to_owned(), classes: vec![0.001; 1_000] };
        let psi = RolloutGate { psi_max: Some(0.25), ..RolloutGate::OPEN };
        assert_eq!(judge(&psi, &one_of_a_thousand(7_000), Some(&reference)), Ok(()));
        assert!(judge(&psi, &one_of_a_thousand(8_000), Some(&reference)).is_err());
    }
}
