//! The sessions of this box with its broker: the plan that they share, and the life of those besides the main one.

use std::convert::Infallible;

use ledge_base::backoff::{Backoff, random};
use ledge_service::shutdown::Shutdown;

use super::client::connection::ConnectionError;
use super::client::packet::{MqttVersion, ReasonCode};
use super::connect::{self, ConnectError};
use super::dispatcher::Dispatcher;
use super::gateway::{FIRST_RECONNECT_PAUSE, SessionTask};
use super::plan::{SessionName, SubscriptionPlan};
use super::session_plans::{RefusedSessionEffect, SessionStop};

/// Connections in a row that the broker ended instead of accepting a session, after which it counts as refused: some
/// brokers give no reason.
const ENDED_CONNECTIONS_MAX: u32 = 3;

impl SessionTask {
    /// Runs a session besides the main one whenever the plan has it.
    pub async fn run_other(mut self, mut dispatcher: Dispatcher, shutdown: Shutdown) -> Result<(), Infallible> {
        let mut plans = self.plans.0.now.subscribe();
        loop {
            let plan = tokio::select! {
                // The sender lives while the plans do.
                plan = plans.wait_for(Option::is_some) => plan.ok().and_then(|plan| plan.clone()),
                () = shutdown.requested() => return Ok(()),
            };
            let Some(plan) = plan else { return Ok(()) };
            let end = SessionStop { shutdown: shutdown.clone(), plan: Some((plan.clone(), plans.clone())) };

            if plan.others().contains(&self.name) {
                self.gateway.statistics.expect_session(&self.client_id());
                dispatcher.set_plan(&plan);
                let features = self.gateway.serving.features().clone();
                tokio::select! {
                    () = features.opened() => self.serve(&mut dispatcher, &end).await,
                    () = end.requested() => {}
                }
                self.gateway.statistics.forget_session(&self.client_id());
            } else if self.plans.may_be_left(self.name) {
                self.discard(plan.rules.version, &end).await;
            }
            end.requested().await;
        }
    }

    /// Ends the session of an earlier plan at the broker, which would keep messages for it, in 3.1.1 for ever.
    async fn discard(&self, version: MqttVersion, end: &SessionStop) {
        let mut backoff = Backoff::new(FIRST_RECONNECT_PAUSE, self.gateway.config.reconnect_max());
        loop {
            let failed = tokio::select! {
                discarded = self.discard_once(version) => discarded.err(),
                () = end.requested() => return,
            };
            let is_refused = matches!(
                failed,
                Some(ConnectError::Connection(ConnectionError::Refused { .. }) | ConnectError::Password(_))
            );
            let Some(reason) = failed.filter(|_| !is_refused) else { return };
            tracing::debug!(client_id = self.client_id(), %reason, "an unused session cannot be ended yet");
            tokio::select! {
                () = tokio::time::sleep(backoff.pause(random())) => {}
                () = end.requested() => return,
            }
        }
    }

    async fn discard_once(&self, version: MqttVersion) -> Result<(), ConnectError> {
        let gateway = &self.gateway;
        let mut connect = connect::connect_packet(&gateway.config, &gateway.topics, self.name)?;
        (connect.clean_start, connect.session_expiry_s) = (true, 0);
        let connection = connect::open(&gateway.egress, &gateway.config, version.into(), connect).await?;
        Ok(connect::disconnect(connection.writer).await?)
    }

    /// The consequence of a failed connection, if the broker refuses another session. `ended` counts the connections
    /// that it closed without a reason.
    pub(super) fn refusal(
        &self,
        plan: &SubscriptionPlan,
        failed: &ConnectError,
        ended: &mut u32,
    ) -> Option<RefusedSessionEffect> {
        let ConnectError::Connection(failed) = failed else { return None };
        let is_refused = match failed {
            ConnectionError::Refused { reason, .. } => !is_temporary(*reason),
            ConnectionError::Ended | ConnectionError::EndedBeforeAccepted => {
                *ended += 1;
                *ended >= ENDED_CONNECTIONS_MAX
            }
            _ => false,
        };
        if !is_refused || self.name == SessionName::Main {
            return None;
        }

        let (client_id, reason) = (self.client_id(), failed.to_string());
        if self.name == SessionName::Rows(1) {
            tracing::warn!(
                client_id,
                reason,
                "the broker accepts no separate session for the bindings that only push rows: they share that of \
                 calls, and wait behind calls whose models are being loaded"
            );
            self.plans.0.splits_rows.send_replace(false);
            return Some(RefusedSessionEffect::SharesMain);
        }
        let separations: Vec<String> =
            plan.separations(self.name, &self.plans.0.bindings).iter().map(ToString::to_string).collect();
        Some(RefusedSessionEffect::Problem(format!(
            "{}, so without the subscription identifiers of MQTT 5 each needs a session of its own, and the broker accepts \
             no session {client_id:?}: {reason}. Allow the client id, or give them filters without common topics",
            separations.join("; "),
        )))
    }
}

/// Returns `true` for a refusal that says nothing about the client id.
fn is_temporary(reason: ReasonCode) -> bool {
    // Server unavailable, busy, shutting down, and too many connections at once.
    matches!(reason.0, 0x88 | 0x89 | 0x8B | 0x9F)
}
