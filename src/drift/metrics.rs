//! The metrics of drift.

use std::fmt::Error;

use ledge_part::metrics::{MetricLabels, family, gauge_value};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::http::VersionDocument;

/// Writes the metrics of watched versions.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, versions: &[VersionDocument]) -> Result<(), Error> {
    let labels = |document: &VersionDocument| -> MetricLabels {
        vec![("model", document.model.clone()), ("version", document.version.to_string())]
    };
    let fixed = || versions.iter().filter(|document| document.fixed_ms.is_some());
    let index = fixed().map(|document| {
        let most = document.columns.iter().map(|column| column.index).fold(0.0, f64::max);
        (labels(document), ConstGauge::new(most))
    });
    let help = "The largest population stability index of the columns of the version, in its last window";
    family(encoder, "model_drift_index", help, index)?;
    let drifting = fixed().map(|document| {
        let count = document.columns.iter().filter(|column| column.drifting).count();
        (labels(document), ConstGauge::new(gauge_value(count)))
    });
    family(encoder, "model_drift_columns", "Columns of the version with a drift that lasts", drifting)?;
    let calls = versions.iter().map(|document| (labels(document), ConstGauge::new(gauge_value(document.window_calls))));
    family(encoder, "model_drift_window_calls", "Calls of the present window that were counted", calls)
}
