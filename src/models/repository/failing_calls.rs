//! The findings about models with failing calls.

use std::time::Instant;

use ledge_part::check::Finding;

use super::Repository;
use super::statistics::FailureCounts;

/// The least failures that are reported, and the share of the calls in percent.
const REPORTED_FAILURES_MIN: u64 = 3;
const REPORTED_PERCENT_MIN: u64 = 1;

/// The share in percent from which it is a failure of the box, and no warning.
const FAILURE_PERCENT_MIN: u64 = 50;

/// The most characters of a reason that are shown.
const REASON_CHARS_MAX: usize = 300;

impl Repository {
    /// The models that failed calls of the last minutes by their own error.
    pub fn failing_calls(&self) -> Vec<Finding> {
        let now = Instant::now();
        let failing = self.all_live().into_iter().filter_map(|model| {
            let (counts, reason) =
                model.statistics.failing_calls.failing(now).filter(|(counts, _)| is_reported(*counts))?;
            let FailureCounts { failed, answered } = counts;
            let (version, calls) = (model.version, failed + answered);
            let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
            let name = format!("failing {}", model.name);
            let detail = format!("version {version}: {failed} of {calls} calls of the last minutes failed: {reason}");
            let advice = "call it with inputs that it answered before, or go back to the version before";
            Some(if percent(counts) >= FAILURE_PERCENT_MIN {
                Finding::fail(&name, detail, advice)
            } else {
                Finding::warn(&name, detail, advice)
            })
        });
        failing.collect()
    }
}

fn percent(FailureCounts { failed, answered }: FailureCounts) -> u64 {
    failed.saturating_mul(100) / failed.saturating_add(answered).max(1)
}

fn is_reported(counts: FailureCounts) -> bool {
    counts.failed >= REPORTED_FAILURES_MIN && percent(counts) >= REPORTED_PERCENT_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_failure_and_a_rare_one_are_not_reported() {
        for (failed, answered, reported) in [(1, 0, false), (3, 0, true), (3, 297, true), (3, 298, false)] {
            assert_eq!(is_reported(FailureCounts { failed, answered }), reported, "{failed} of {answered}");
        }
    }
}
