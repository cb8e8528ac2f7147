//! The plans of sessions.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledge_base::names::DeviceName;
use ledge_service::shutdown::Shutdown;
use tokio::sync::watch;

use super::bindings::Bindings;
use super::client::packet::{ConnAck, MqttVersion};
use super::plan::{SessionName, SubscriptionPlan, SubscriptionPlanRules};
use super::topics::{DeviceTopics, TopicFilter};

#[derive(Debug)]
pub(super) struct SubscriptionPlansState {
    pub(super) topics: DeviceTopics,
    pub(super) bindings: Bindings,
    pub(super) heard: Vec<TopicFilter>,
    pub(super) former: FormerBindings,
    /// False once the broker has refused a session for rows.
    pub(super) splits_rows: watch::Sender<bool>,
    /// `None` until the main session is connected, and has none of the subscriptions of the others.
    pub(super) now: watch::Sender<Option<Arc<SubscriptionPlan>>>,
    /// The sessions whose subscriptions the broker has answered.
    pub(super) subscribed: Mutex<BTreeSet<SessionName>>,
}

/// The plan that is in force now; `None` before the first.
pub(super) type CurrentPlan = watch::Receiver<Option<Arc<SubscriptionPlan>>>;

/// The plan of now. Clones share it.
#[derive(Debug, Clone)]
pub struct SubscriptionPlans(pub(super) Arc<SubscriptionPlansState>);

impl SubscriptionPlans {
    pub fn new(topics: DeviceTopics, bindings: Bindings, heard: Vec<TopicFilter>, former: FormerBindings) -> Self {
        Self(Arc::new(SubscriptionPlansState {
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
    pub fn plan(&self, version: MqttVersion, broker: &ConnAck) -> Arc<SubscriptionPlan> {
        Arc::new(self.with(SubscriptionPlanRules::of(version, broker, *self.0.splits_rows.borrow())))
    }

    pub(super) fn with(&self, rules: SubscriptionPlanRules) -> SubscriptionPlan {
        let FormerBindings { bindings, group } = &self.0.former;
        let former = bindings.iter().map(|binding| binding.subscription(group.as_ref()));
        SubscriptionPlan::new(&self.0.topics, &self.0.bindings, &self.0.heard, rules).without(former)
    }

    /// The sessions besides the main one that this box may need, or may have needed before this start.
    pub fn others(&self) -> BTreeSet<SessionName> {
        self.with_each([(true, true), (true, false), (false, true), (false, false)])
    }

    /// Returns `true` for a session that an earlier start may have left at the broker, one without a refusal.
    pub(super) fn may_be_left(&self, name: SessionName) -> bool {
        self.with_each([(true, true), (false, true)]).contains(&name)
    }

    pub(super) fn with_each<const N: usize>(&self, all: [(bool, bool); N]) -> BTreeSet<SessionName> {
        let rules =
            all.map(|(has_ids, splits_rows)| SubscriptionPlanRules { version: MqttVersion::V5, has_ids, splits_rows });
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
            tracing::debug!(name: "mqtt.subscribed", sessions = 1 + others.len(), "subscribed");
        }
    }

    pub(super) fn subscribed(&self) -> MutexGuard<'_, BTreeSet<SessionName>> {
        // Nothing panics under this lock.
        self.0.subscribed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a session: that of the daemon or, but for the main session, of its plan.
#[derive(Debug, Clone)]
pub struct SessionStop {
    pub(super) shutdown: Shutdown,
    pub(super) plan: Option<(Arc<SubscriptionPlan>, CurrentPlan)>,
}

impl SessionStop {
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

/// The consequence of a refused session.
#[derive(Debug)]
pub enum RefusedSessionEffect {
    /// The main session gets its subscriptions.
    SharesMain,
    /// Its bindings get no messages, for this reason.
    Problem(String),
}

/// The bindings of the last start, of which the broker may still have subscriptions.
#[derive(Debug, Clone, Default)]
pub struct FormerBindings {
    pub bindings: Bindings,
    pub group: Option<DeviceName>,
}
