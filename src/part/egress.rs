//! The connections that this box opens, as a part of the daemon.

mod doctor;

use std::fmt::{self, Error};

use ledge_base::toml_check::ValueProblem;
use ledge_egress::{DestinationStatistics, Egress, EgressConfig, EgressCounts};
use ledge_identity::access::CallerAccess;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;

use crate::Subsystem;
use crate::check::Finding;
use crate::metrics::{MetricLabels, family};
use crate::section::{ConfigSection, DoctorContext};

impl ConfigSection for EgressConfig {
    fn problems(&self) -> Vec<ValueProblem> {
        self.problems()
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        let counts = EgressCounts::read(context.state).ok().flatten().map(|counts| counts.destinations);
        vec![doctor::check(self, &counts.unwrap_or_default())]
    }
}

impl Subsystem for Egress {
    fn name(&self) -> &'static str {
        "egress"
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        encode(encoder, &self.statistics())
    }
}

/// Writes the metrics of every destination that is allowed or was used.
fn encode(encoder: &mut DescriptorEncoder<'_>, destinations: &[DestinationStatistics]) -> Result<(), Error> {
    let bytes = destinations.iter().flat_map(|of| {
        of.sent.iter().map(|(content, bytes)| {
            let mut labels = labels(of);
            labels.push(("content", content.name().to_owned()));
            (labels, ConstCounter::new(*bytes))
        })
    });
    family(
        encoder,
        "egress_bytes",
        "Bytes sent over connections that this box opened, before encryption, by what they were",
        bytes,
    )?;
    let mut counter = |name, help, figure: fn(&DestinationStatistics) -> u64| {
        let samples = destinations.iter().map(|of| (labels(of), ConstCounter::new(figure(of))));
        family(encoder, name, help, samples)
    };
    counter("egress_received_bytes", "Bytes received over connections that this box opened", |of| of.received)?;
    counter("egress_connections", "Connections that this box opened", |of| of.connections)?;
    counter("egress_failures", "Connections that this box could not open", |of| of.failures)
}

fn labels(of: &DestinationStatistics) -> MetricLabels {
    vec![("destination", of.destination.clone()), ("region", of.region.clone())]
}
