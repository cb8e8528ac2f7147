//! Alerts as a part of the daemon: their section of the configuration, routes, metrics and tasks.

use std::fmt;
use std::path::Path;

use ledge_base::toml_check::ValueProblem;
use ledge_egress::ConfiguredDestination;
use ledge_identity::access::CallerAccess;
use ledge_part::check::Finding;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::section::{ConfigSection, DoctorContext};
use ledge_part::{PartEnvironment, Subsystem};
use prometheus_client::encoding::DescriptorEncoder;

use crate::alerts::Alerts;
use crate::config::{ALERTS_MAX, AlertConfig, AlertsConfig};
use crate::http::ROUTES;
use crate::{doctor, metrics};

impl ConfigSection for AlertsConfig {
    fn resolve(&mut self, root: &Path) {
        let files = self.0.iter_mut().flat_map(|alert| [&mut alert.token_file, &mut alert.ca_file]);
        files.flatten().for_each(|file| file.resolve(root));
    }

    fn problems(&self) -> Vec<ValueProblem> {
        ValueProblem::of_entries(
            &self.0,
            "alerts",
            ALERTS_MAX,
            |alert| &alert.name,
            |alert| alert.problems().into_iter().chain(alert.check_problems()).collect(),
        )
    }

    fn destinations(&self) -> Vec<ConfiguredDestination> {
        let of_alert =
            |(index, alert): (usize, &AlertConfig)| Some(alert.destination()?.in_section(&format!("[{index}]")));
        self.0.iter().enumerate().filter_map(of_alert).collect()
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::checks(self, context)
    }
}

impl Subsystem for Alerts {
    fn name(&self) -> &'static str {
        "alerts"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, self)
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        metrics::encode(encoder, &self.0.receivers)
    }

    fn problem(&self, _is_starting: bool) -> Option<String> {
        let failing = self.0.receivers.iter().filter(|receiver| receiver.status().error.is_some());
        let failing: Vec<_> = failing.map(|receiver| format!("{} {}", receiver.alert, receiver.way.name())).collect();
        (!failing.is_empty()).then(|| format!("alerts that cannot be sent: {}", failing.join(", ")))
    }

    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        if self.0.receivers.is_empty() {
            return Ok(());
        }
        let PartEnvironment { readiness, shutdown, .. } = environment;
        for receiver in &self.0.receivers {
            let (alerts, receiver, stop) = (self.clone(), receiver.clone(), shutdown.clone());
            shutdown.spawn(async move {
                tokio::select! {
                    () = receiver.run(&alerts.0.device, &alerts.0.keeper) => {}
                    () = stop.requested() => {}
                }
            });
        }
        let (alerts, readiness, stop) = (self.clone(), readiness.clone(), shutdown.clone());
        shutdown.spawn(async move {
            tokio::select! {
                () = alerts.look(readiness) => {}
                () = stop.requested() => {}
            }
        });
        Ok(())
    }
}
