//! The report of a month as a part of the daemon: the logs of this box, by its configuration.

use std::sync::Arc;

use ledge_report::part::ReportPart;

use crate::config::Config;
use crate::monthly_report;

/// The report.
pub fn report(config: &Config) -> ReportPart {
    let config = config.clone();
    ReportPart::new(Arc::new(move |month| monthly_report::source(&config, month).map_err(|error| format!("{error:#}"))))
}
