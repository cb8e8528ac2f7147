//! MQTT as a part of the daemon.

use std::fmt;

use ledge_base::telemetry::messages::MqttStatistics;
use ledge_identity::access::CallerAccess;
use ledge_part::Subsystem;
use prometheus_client::encoding::DescriptorEncoder;

use crate::metrics;

/// The connection to the broker, for the other parts.
#[derive(Debug)]
pub struct MqttPart {
    /// `None` where no broker is configured.
    pub statistics: Option<MqttStatistics>,
}

impl Subsystem for MqttPart {
    fn name(&self) -> &'static str {
        "mqtt"
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        let Some(statistics) = &self.statistics else { return Ok(()) };
        metrics::encode(encoder, &statistics.snapshot())
    }

    fn problem(&self, is_starting: bool) -> Option<String> {
        let statistics = self.statistics.as_ref().filter(|_| !is_starting)?;
        if !statistics.snapshot().connected {
            return Some("no connection to the broker".to_owned());
        }
        let refused = statistics.refused_sessions();
        (!refused.is_empty()).then(|| refused.join("; "))
    }
}
