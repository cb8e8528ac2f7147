//! The sessions of this box with its broker: the plan that they share, and the life of those besides the main one.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledge_base::backoff::{Backoff, random};
use ledge_service::shutdown::Shutdown;
use tokio::sync::watch;

use super::bindings::Bindings;
use super::client::connection::ConnectionError;
use super::client::packet::{ConnAck, ReasonCode, Version};
use super::connect::{self, ConnectError};
use super::dispatcher::Dispatcher;
use super::gateway::{FIRST_RECONNECT_PAUSE, FormerBindings, SessionTask};
use super::plan::{PlanRules, SessionName, SubscriptionPlan};
use super::topics::{DeviceTopics, TopicFilter};

/// Connections in a row that the broker ended instead of accepting a session, after which it counts as refused: some brokers
/// give no reason.
const ENDED_CONNECTIONS_MAX: u32 = 3;

/// The plan of now. Clones share it.
#[derive(Debug, Clone)]
pub struct Plans(Arc<PlansState>);

#[derive(Debug)]
struct PlansState {
    topics: DeviceTopics,
    bindings: Bindings,
    heard: Vec<TopicFilter>,
    former: FormerBindings,
    /// False once the broker has refused a session for rows.
    splits_rows: watch::Sender<bool>,
    /// `None` until the main session is connected, and has none of the subscriptions of the others.
    now: watch::Sender<Option<Arc<SubscriptionPlan>>>,
    /// The sessions whose subscriptions the broker has answered.
    subscribed: Mutex<BTreeSet<SessionName>>,
}

impl Plans {
    pub fn new(topics: DeviceTopics, bindings: Bindings, heard: Vec<TopicFilter>, former: FormerBindings) -> Self {
        Self(Arc::new(PlansState {
            topics,
            bindings,
            heard,
            former,
            splits_rows: watch::Sender::new(true),
            now: watch::Sender::new(None),
            subscribed: Mutex::default(),
        }))
    }

    /// The plan for a broker that has accepted the main session.
    pub fn plan(&self, version: Version, broker: &ConnAck) -> Arc<SubscriptionPlan> {
        Arc::new(self.with(PlanRules::of(version, broker, *self.0.splits_rows.borrow())))
    }

    fn with(&self, rules: PlanRules) -> SubscriptionPlan {
        let FormerBindings { bindings, group } = &self.0.former;
        let former = bindings.iter().map(|binding| binding.subscription(group.as_ref()));
        SubscriptionPlan::new(&self.0.topics, &self.0.bindings, &self.0.heard, rules).without(former)
    }

    /// The sessions besides the main one that this box may need, or may have needed before this start.
    pub fn others(&self) -> BTreeSet<SessionName> {
        self.with_each([(true, true), (true, false), (false, true), (false, false)])
    }

    /// Returns `true` for a session that an earlier start may have left at the broker, one without a refusal.
    fn may_be_left(&self, name: SessionName) -> bool {
        self.with_each([(true, true), (false, true)]).contains(&name)
    }

    fn with_each<const N: usize>(&self, all: [(bool, bool); N]) -> BTreeSet<SessionName> {
        let rules = all.map(|(has_ids, splits_rows)| PlanRules { version: Version::V5, has_ids, splits_rows });
        let topics = DeviceTopics { group: self.0.former.group.clone(), ..self.0.topics.clone() };
        let former = |rules| SubscriptionPlan::new(&topics, &self.0.former.bindings, &self.0.heard, rules);
        let plans = rules.into_iter().flat_map(|rules| [self.with(rules), former(rules)]);
        plans.flat_map(|plan| plan.others()).collect()
    }

    /// Lets the other sessions follow this plan.
    pub fn announce(&self, plan: &Arc<SubscriptionPlan>) {
        self.0.now.send_if_modified(|now| {
            let is_new = now.as_ref() != Some(plan);
            if is_new {
                *now = Some(plan.clone());
            }
            is_new
        });
    }

    /// Changes when the broker refuses a session for rows.
    pub fn splits_rows(&self) -> watch::Receiver<bool> {
        self.0.splits_rows.subscribe()
    }

    /// Notes whether the broker has answered all subscriptions of a session.
    pub fn note_subscribed(&self, name: SessionName, is_subscribed: bool) {
        let mut subscribed = self.subscribed();
        if !is_subscribed {
            subscribed.remove(&name);
            return;
        }
        subscribed.insert(name);
        let plan = self.0.now.borrow().clone();
        let others = plan.map_or_else(BTreeSet::new, |plan| plan.others());
        if subscribed.contains(&SessionName::Main) && others.is_subset(&subscribed) {
            tracing::debug!(sessions = 1 + others.len(), "subscribed");
        }
    }

    fn subscribed(&self) -> MutexGuard<'_, BTreeSet<SessionName>> {
        // Nothing panics under this lock.
        self.0.subscribed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a session: that of the daemon or, but for the main session, of its plan.
#[derive(Debug, Clone)]
pub struct SessionEnd {
    shutdown: Shutdown,
    plan: Option<(Arc<SubscriptionPlan>, CurrentPlan)>,
}

/// The plan that is in force now; `None` before the first.
type CurrentPlan = watch::Receiver<Option<Arc<SubscriptionPlan>>>;

impl SessionEnd {
    /// The end of the daemon.
    pub fn of_daemon(shutdown: Shutdown) -> Self {
        Self { shutdown, plan: None }
    }

    /// Returns `true` if the session is to end.
    pub fn is_requested(&self) -> bool {
        let is_replaced = |(plan, now): &(Arc<SubscriptionPlan>, CurrentPlan)| now.borrow().as_ref() != Some(plan);
        self.shutdown.is_requested() || self.plan.as_ref().is_some_and(is_replaced)
    }

    /// Waits until the session is to end.
    pub async fn requested(&self) {
        let replaced = async {
            match self.plan.clone() {
                // The sender lives as long as the plans.
                Some((plan, mut now)) => drop(now.wait_for(|now| now.as_ref() != Some(&plan)).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shutdown.requested() => {}
            () = replaced => {}
        }
    }
}

impl SessionTask {
    /// Runs a session besides the main one whenever the plan has it.
    pub async fn run_other(mut self, mut dispatcher: Dispatcher, shutdown: Shutdown) -> Result<(), Infallible> {
        let mut plans = self.plans.0.now.subscribe();
        loop {
            let plan = tokio::select! {
                // The sender lives as long as the plans.
                plan = plans.wait_for(Option::is_some) => plan.ok().and_then(|plan| plan.clone()),
                () = shutdown.requested() => return Ok(()),
            };
            let Some(plan) = plan else { return Ok(()) };
            let end = SessionEnd { shutdown: shutdown.clone(), plan: Some((plan.clone(), plans.clone())) };

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
    async fn discard(&self, version: Version, end: &SessionEnd) {
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

    async fn discard_once(&self, version: Version) -> Result<(), ConnectError> {
        let gateway = &self.gateway;
        let mut connect = connect::connect_packet(&gateway.config, &gateway.topics, self.name)?;
        (connect.clean_start, connect.session_expiry_s) = (true, 0);
        let connection = connect::open(&gateway.egress, &gateway.config, version.into(), connect).await?;
        Ok(connect::disconnect(connection.writer).await?)
    }

    /// The consequence of a connection that was not opened, if the broker refuses a session of its own to this one. `ended`
    /// counts those that it closed without a reason.
    pub(super) fn refusal(
        &self,
        plan: &SubscriptionPlan,
        failed: &ConnectError,
        ended: &mut u32,
    ) -> Option<RefusedSession> {
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
                "the broker accepts no session of their own for the bindings that only push rows: they share that of \
                 calls, and wait behind calls whose models are being loaded"
            );
            self.plans.0.splits_rows.send_replace(false);
            return Some(RefusedSession::SharesMain);
        }
        let separations: Vec<String> =
            plan.separations(self.name, &self.plans.0.bindings).iter().map(ToString::to_string).collect();
        Some(RefusedSession::Problem(format!(
            "{}, so without the subscription identifiers of MQTT 5 each needs a session of its own, and the broker accepts \
             no session {client_id:?}: {reason}. Allow the client id, or give them filters without common topics",
            separations.join("; "),
        )))
    }
}

/// The consequence of a refused session.
#[derive(Debug)]
pub enum RefusedSession {
    /// The main session gets its subscriptions.
    SharesMain,
    /// Its bindings get no messages, for this reason.
    Problem(String),
}

/// Returns `true` for a refusal that says nothing about the client id.
fn is_temporary(reason: ReasonCode) -> bool {
    // Server unavailable, busy, shutting down, and too many connections at once.
    matches!(reason.0, 0x88 | 0x89 | 0x8B | 0x9F)
}
