//! The messages that bindings take.

use std::sync::Arc;
use std::time::Instant;

use ledge_base::telemetry::messages::MessageKind;

use super::Desk;
use crate::answer::Failure;
use crate::bindings::Binding;
use crate::bound::{BoundMessage, Dismissal, Outcome};
use crate::client::packet::{Qos, Reason, Received};
use crate::client::session::Delivery;
use crate::rate::{Newest, Offer};

/// How many topics the rate of one binding is kept for.
const MOST_TOPICS: usize = 4096;

/// A binding and what its rate limit keeps.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) binding: Arc<Binding>,
    rate: Option<Newest<BoundMessage>>,
}

impl Bound {
    pub(super) fn new(binding: &Arc<Binding>) -> Self {
        let rate = binding.interval().map(|interval| Newest::new(interval, MOST_TOPICS));
        Self { binding: binding.clone(), rate }
    }
}

impl Desk {
    /// Takes a message that is no call.
    pub(super) fn bound(&mut self, received: Received, delivery: Option<Delivery>, now: Instant) {
        let refusal = self.refusal(&received);
        let Received { message, duplicate, .. } = received;
        match Dismissal::of(&message, refusal.is_some()) {
            None => {}
            Some(Dismissal::Empty) => return self.settle(delivery, Reason::SUCCESS),
            Some(Dismissal::Answer(why)) => return self.ignore(&message.topic, why, delivery, now),
        }
        let captures = |bound: &Bound| bound.binding.config().topic.captures(&message.topic);
        let matching: Vec<_> =
            self.bindings.iter().enumerate().filter_map(|(index, bound)| Some((index, captures(bound)?))).collect();
        if matching.is_empty() {
            // A subscription of an earlier configuration that the broker still has.
            tracing::debug!(topic = %message.topic, "a message that no binding is for");
            return self.settle(delivery, Reason::SUCCESS);
        }
        if let Some(delivery) = delivery {
            self.session.expect(delivery, matching.len());
        }
        for (index, captures) in matching {
            self.statistics.received(MessageKind::Binding);
            let Some(binding) = self.bindings.get(index).map(|bound| bound.binding.clone()) else { continue };
            let held = self.held.hold(message.payload.len());
            let bound = match &refusal {
                None => BoundMessage::new(&binding, &message, &captures, &self.topics.device, now, held),
                Some(refusal) => Err(refusal.clone()),
            };
            match bound {
                Ok(bound) => {
                    let qos = if delivery.is_some() { binding.config().qos } else { Qos::AtMostOnce };
                    self.offer(index, BoundMessage { delivery, qos, duplicate, ..bound }, now);
                }
                Err(failure) => {
                    self.statistics.answered(failure.status);
                    self.complain(&binding, &failure, now);
                    self.settle(delivery, Reason::IMPLEMENTATION_SPECIFIC);
                }
            }
        }
    }

    /// Starts a message, or keeps it until its turn.
    fn offer(&mut self, index: usize, mut bound: BoundMessage, now: Instant) {
        let Some(rate) = self.bindings.get_mut(index).and_then(|bound| bound.rate.as_mut()) else {
            return self.start(bound);
        };
        // Settled before its turn comes: acknowledgements keep their order, so all others would wait for it. A limit drops
        // messages anyway.
        if let Some(delivery) = bound.delivery.take() {
            self.session.settle(delivery, Reason::SUCCESS);
        }
        // What limits keep takes no more than half of the memory: calls need the rest.
        if self.held.get() > self.limits.memory / 2 {
            return self.statistics.replaced();
        }
        let source = bound.source.clone();
        match rate.offer(&source, bound, now) {
            Offer::Run(bound) => self.start(bound),
            Offer::Kept { replaced: None } => {}
            Offer::Kept { replaced: Some(_) } | Offer::Refused(_) => self.statistics.replaced(),
        }
    }

    fn start(&mut self, bound: BoundMessage) {
        let (serving, device, pusher) = (self.serving.clone(), self.topics.device.clone(), self.pusher.clone());
        let mut end = self.begin(bound.delivery, None);
        let binding = bound.binding.clone();
        self.shutdown.spawn(async move {
            let Outcome { message, failure, unsettled, held } = bound.run(&serving, &device, &pusher).await;
            if let Some(finished) = &mut end.finished {
                finished.pushed = message.is_none() && failure.is_none() && !unsettled;
                (finished.answer, finished.held) = (message, Some(held));
                if unsettled {
                    finished.delivery = None;
                }
                finished.failed = failure.map(|failure| (binding, failure));
            }
        });
    }

    /// Starts what the rate limits let go now.
    pub fn start_due(&mut self, now: Instant) {
        let due: Vec<_> =
            self.bindings.iter_mut().filter_map(|bound| bound.rate.as_mut()).flat_map(|rate| rate.due(now)).collect();
        for bound in due {
            self.start(bound);
        }
    }

    /// When [`Self::start_due`] has something to start.
    pub fn next_due(&self) -> Option<Instant> {
        self.bindings.iter().filter_map(|bound| bound.rate.as_ref()?.next_due()).min()
    }

    /// Says that a message came to nothing.
    pub(super) fn complain(&mut self, binding: &Binding, failure: &Failure, now: Instant) {
        // Bindings are as many as the configuration has.
        let index = self.bindings.iter().position(|bound| bound.binding.name() == binding.name());
        let kind = u32::try_from(index.unwrap_or_default()).unwrap_or_default() << 16 | u32::from(failure.status);
        if let Some(suppressed) = self.complaints.take(("binding", kind), now) {
            let (name, status, reason) = (binding.name(), failure.status, &failure.message);
            tracing::warn!(binding = name, status, reason, suppressed, "a binding has no result");
        }
    }
}
