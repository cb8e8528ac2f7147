//! The metrics of budgets and objectives.

use std::fmt::Error;

use ledge_part::metrics::{MetricLabels, family, label};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::book::Book;
use crate::objective::{Indicator, TOLD};

/// Writes them.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, book: &Book) -> Result<(), Error> {
    let used = book
        .budgets()
        .into_iter()
        .map(|(budget, used)| (label("budget", budget.name.as_str()), ConstGauge::new(used.share())));
    family(encoder, "budget_used_ratio", "Use of each budget in this month; 1 is the whole budget", used)?;
    let left = book.indicators.iter().map(|it| (labels(it), ConstGauge::new(it.budget_left())));
    family(encoder, "objective_budget_left_ratio", "Error budget that is left; below 0 it is overdrawn", left)?;
    let rates = book.indicators.iter().flat_map(|it| {
        TOLD.map(|(name, window)| {
            let labels = labels(it).into_iter().chain([("window", name.to_owned())]).collect();
            (labels, ConstGauge::new(it.burn_rate(window)))
        })
    });
    let help = "Speed at which the error budget burns; 1 uses it up exactly in its days";
    family(encoder, "objective_burn_rate_ratio", help, rates)
}

fn labels(it: &Indicator) -> MetricLabels {
    vec![("objective", it.config.name.to_string()), ("kind", it.kind.as_str().to_owned())]
}
