//! The CPU time of a unit of work, fitted to measured intervals.
//!
//! The time of runs is counted by the models themselves. What else the service used in an interval - receiving calls,
//! decoding them, writing answers, handing runs over - belongs to all kinds of work together. It is divided among them
//! by least squares: each interval is an equation `rest = idle * seconds + wake * wake-ups + sum(cost of a kind * its
//! units)`. Costs are never negative, and a kind that was always seen together with others keeps near its prior.

/// The prior of the time of a call besides its run, in seconds: a small call over HTTP.
pub const CALL_PRIOR_S: f64 = 0.000_1;

/// The prior of one wake-up of the thread that serves callers, in seconds.
const WAKE_PRIOR_S: f64 = 0.000_01;

/// The most that a wake-up costs, as a multiple of its prior. Where all calls come together, no interval tells wake-ups
/// from calls, and decoding a photograph would count as waking up.
const WAKE_FACTOR_MAX: f64 = 5.0;

/// The prior of the work of an idle service, in cores.
const IDLE_PRIOR: f64 = 0.002;

/// The weight of a prior: an equation with this share of the mean of all.
const PRIOR_WEIGHT: f64 = 0.05;

/// The most rounds of coordinate descent. It ends when no cost changes by more than this share of its prior.
const ROUNDS: usize = 200;
const SETTLED: f64 = 1e-9;

/// One interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CostRow {
    pub seconds: f64,
    pub wakes: f64,
    /// The units of each kind, in the order of the priors.
    pub units: Vec<f64>,
    /// The time that is divided, in seconds.
    pub rest_s: f64,
}

/// The fitted costs, in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Costs {
    /// For each second, without any work: cores.
    pub idle: f64,
    pub wake_s: f64,
    /// Of a unit of each kind.
    pub unit_s: Vec<f64>,
}

/// Fits the costs. `priors` has the cost of a unit of each kind that is assumed before anything was measured.
pub fn fit(rows: &[CostRow], priors: &[f64]) -> Costs {
    let priors: Vec<f64> = [IDLE_PRIOR, WAKE_PRIOR_S].iter().chain(priors).map(|prior| prior.max(1e-9)).collect();
    // Each column is in units of its prior, so that one weight fits all.
    let column = |row: &CostRow, index: usize| {
        let amount = match index {
            0 => row.seconds,
            1 => row.wakes,
            _ => row.units.get(index - 2).copied().unwrap_or(0.0),
        };
        amount * priors.get(index).copied().unwrap_or(0.0)
    };
    let mut factors = vec![1.0_f64; priors.len()];
    let energy: Vec<f64> = (0..priors.len()).map(|i| rows.iter().map(|row| column(row, i).powi(2)).sum()).collect();
    let weight = PRIOR_WEIGHT.powi(2) * energy.iter().sum::<f64>().max(1e-18);
    let mut rests: Vec<f64> =
        rows.iter().map(|row| row.rest_s - (0..priors.len()).map(|i| column(row, i)).sum::<f64>()).collect();
    for _ in 0..ROUNDS {
        let mut largest_change = 0.0_f64;
        for (index, (factor, energy)) in factors.iter_mut().zip(&energy).enumerate() {
            let gradient: f64 = rows.iter().zip(&rests).map(|(row, rest)| column(row, index) * rest).sum();
            // The penalty is relative to the energy of the column: a kind that is often seen forgets its prior.
            let penalty = weight.min(0.01 * energy.max(1e-18));
            let most = if index == 1 { WAKE_FACTOR_MAX } else { f64::INFINITY };
            let better = (*factor + (gradient + penalty * (1.0 - *factor)) / (energy + penalty)).clamp(0.0, most);
            let change = better - *factor;
            *factor = better;
            largest_change = largest_change.max(change.abs());
            rests.iter_mut().zip(rows).for_each(|(rest, row)| *rest -= column(row, index) * change);
        }
        if largest_change < SETTLED {
            break;
        }
    }
    let mut costs = factors.iter().zip(&priors).map(|(factor, prior)| factor * prior);
    let idle = costs.next().unwrap_or(0.0);
    let wake_s = costs.next().unwrap_or(0.0);
    Costs { idle, wake_s, unit_s: costs.collect() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(wakes: f64, units: &[f64], costs: &[f64]) -> CostRow {
        let work: f64 = units.iter().zip(costs).map(|(units, cost)| units * cost).sum();
        CostRow { seconds: 60.0, wakes, units: units.to_vec(), rest_s: 60.0 * 0.004 + wakes * 5e-6 + work }
    }

    #[test]
    fn costs_of_kinds_that_come_and_go_are_found() {
        let costs = [80e-6, 700e-6, 0.03];
        let rows: Vec<_> = (0..40_u32)
            .map(|n| {
                let (a, b, c) = (f64::from(n % 7) * 900.0, f64::from(n % 5) * 100.0, f64::from(n % 3) * 4.0);
                row(f64::from(n % 11) * 500.0, &[a, b, c], &costs)
            })
            .collect();
        let found = fit(&rows, &[CALL_PRIOR_S, CALL_PRIOR_S, 0.02]);
        for (found, cost) in found.unit_s.iter().zip(costs) {
            assert!((found / cost - 1.0).abs() < 0.1, "{found} for {cost}");
        }
    }

    #[test]
    fn one_kind_at_one_rate_explains_all_of_the_time() {
        let rows = vec![row(0.0, &[6000.0], &[120e-6]); 5];
        let found = fit(&rows, &[CALL_PRIOR_S]);
        let explained = 60.0 * found.idle + 6000.0 * found.unit_s[0];
        assert!((explained / rows[0].rest_s - 1.0).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn without_intervals_the_priors_stay() {
        assert_eq!(fit(&[], &[0.5]), Costs { idle: IDLE_PRIOR, wake_s: WAKE_PRIOR_S, unit_s: vec![0.5] });
    }

    proptest! {
        #[test]
        fn costs_are_finite_and_never_negative(
            rows in proptest::collection::vec((0.0_f64..100.0, 0.0_f64..1e5, 0.0_f64..1e6, 0.0_f64..1e3, -1.0_f64..200.0), 0..30),
        ) {
            let rows: Vec<_> = rows
                .into_iter()
                .map(|(seconds, wakes, a, b, rest_s)| CostRow { seconds, wakes, units: vec![a, b], rest_s })
                .collect();
            let Costs { idle, wake_s, unit_s } = fit(&rows, &[CALL_PRIOR_S, 0.02]);
            for cost in unit_s.into_iter().chain([idle, wake_s]) {
                prop_assert!(cost.is_finite() && cost >= 0.0);
            }
        }
    }
}
