//! The console as a part of the daemon, connected to the models, to the callers, and to the findings about this box.

use ledge_console::EgressSource;
use ledge_console::part::ConsolePart;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_part::PartEnvironment;
use ledge_part::findings::FindingsSource;
use serde_json::json;

use crate::config::Config;
use crate::egress_report::EgressReport;

/// The console; `None` where the configuration turns it off.
pub fn console(
    config: &Config,
    environment: &PartEnvironment,
    serving: &Serving,
    authenticator: &Authenticator,
    findings: FindingsSource,
) -> Option<ConsolePart> {
    let of = config.clone();
    let egress = EgressSource::new(move || json!(EgressReport::read(&of)));
    config.console.enabled.then(|| {
        let (device, access) = (environment.device.id.clone(), config.access.clone());
        let shutdown = environment.shutdown.clone();
        ConsolePart::new(
            (device, config.mqtt.broker.is_some()),
            serving.clone(),
            authenticator.clone(),
            access,
            findings,
            egress,
            shutdown,
        )
    })
}
