//! The metrics of capacity.

use std::fmt::Error;

use ledge_part::metrics::{family, label};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::report::ResourceReport;

/// Writes the used share of each resource.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, resources: &[ResourceReport]) -> Result<(), Error> {
    let ratios = resources.iter().map(|of| (label("resource", of.resource.as_str()), ConstGauge::new(of.used_ratio)));
    let help = "Used share of what may be used of a resource, over five minutes; at 1 no more work fits";
    family(encoder, "capacity_used_ratio", help, ratios)
}
