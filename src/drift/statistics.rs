//! The arithmetic of distributions, for the watch on models and for the gates of a rollout. Pure.

/// The 95th percentile of the normal distribution.
pub const Z_95: f64 = 1.645;

/// Returns the smoothed population stability index `Σ (oᵢ - rᵢ) · ln(oᵢ / rᵢ)` of `counts` against the shares
/// `reference`. Both are smoothed by Laplace's rule, one more answer for each of the `K` classes:
/// `oᵢ = (nᵢ + 1) / (N + K)` and `rᵢ = (N·sᵢ + 1) / (N + K)`, so that a class without answers makes no infinity and
/// equal shares make 0. A class that one of them lacks counts 0 there. Shares that do not sum to 1 are scaled; without
/// any, all are equal.
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

/// The index that chance alone makes of `window` answers against a reference of `reference` answers, both drawn from one
/// population of `classes` classes: `(K - 1) (1/N + 1/M)`.
pub fn index_of_chance(classes: usize, window: u64, reference: u64) -> f64 {
    number(classes.saturating_sub(1) as u64) * (1.0 / number(window.max(1)) + 1.0 / number(reference.max(1)))
}

/// An upper bound of the index that chance exceeds once in `1 / probability` cases. The index times `NM / (N + M)` has
/// about a chi-square distribution of `K - 1` degrees of freedom; its quantile is that of Wilson and Hilferty, with
/// the bound `√(-2 ln p)` of the normal quantile.
pub fn index_of_rare_chance(classes: usize, window: u64, reference: u64, probability: f64) -> f64 {
    let degrees = number(classes.saturating_sub(1).max(1) as u64);
    let z = (-2.0 * probability.clamp(1e-300, 1.0).ln()).sqrt();
    let spread = 2.0 / (9.0 * degrees);
    let quantile = degrees * (1.0 - spread + z * spread.sqrt()).powi(3);
    quantile * (1.0 / number(window.max(1)) + 1.0 / number(reference.max(1)))
}

/// Returns the bounds of the Wilson score interval of `count` in `all`, each one-sided at 95 %.
pub fn wilson(count: u64, all: u64) -> (f64, f64) {
    let (p, n) = (share(count, all), number(all.max(1)));
    let middle = p + Z_95 * Z_95 / (2.0 * n);
    let half = Z_95 * (p * (1.0 - p) / n + Z_95 * Z_95 / (4.0 * n * n)).sqrt();
    let whole = 1.0 + Z_95 * Z_95 / n;
    ((middle - half) / whole, (middle + half) / whole)
}

/// The share of `count` in `all`; 0 of none.
pub fn share(count: u64, all: u64) -> f64 {
    number(count) / number(all.max(1))
}

/// A count for a ratio.
#[expect(clippy::cast_precision_loss, reason = "figures for a ratio: far below 2^53")]
pub fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_index_is_that_of_the_formula() {
        // (31 + 1) / 102 etc. against (50 + 1) / 102, by hand.
        let index = population_stability_index(&[30, 70], &[0.5, 0.5]);
        let by_hand = (31.0 / 102.0 - 0.5) * (31.0_f64 / 51.0).ln() + (71.0 / 102.0 - 0.5) * (71.0_f64 / 51.0).ln();
        assert!((index - by_hand).abs() < 1e-12, "{index} {by_hand}");
        // From half and half to 30 and 70: by custom "something changed", and not "another population".
        assert!((0.1..0.25).contains(&index));
    }

    #[test]
    fn rare_chance_is_above_the_quantile_of_the_tables() {
        // The 99.9th percentile of chi-square with 10 degrees of freedom is 29.59.
        let bound = index_of_rare_chance(11, 200, 200, 0.001) * 100.0;
        assert!((29.59..40.0).contains(&bound), "{bound}");
        assert!((index_of_chance(11, 200, 200) - 0.1).abs() < 1e-12);
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
