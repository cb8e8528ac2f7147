//! What went out of this box, and what came from where it went.

use std::fmt::Error;

use ledge_egress::DestinationStatistics;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;

use super::{Labels, family};

/// Writes the metrics of every destination; there are none while none was allowed or used.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, destinations: &[DestinationStatistics]) -> Result<(), Error> {
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

fn labels(of: &DestinationStatistics) -> Labels {
    vec![("destination", of.destination.clone()), ("region", of.region.clone())]
}
