//! Messages for bindings.

use std::collections::BTreeSet;
use std::time::Instant;

use ledge_base::telemetry::messages::MqttMessageKind;
use ledge_part::api_error::ApiError;

use super::Dispatcher;
use crate::binding_message::{BindingDismissal, BindingMessage, BindingOutcome, is_judged_inline};
use crate::bindings::{Binding, MessageParts};
use crate::client::packet::{MqttMessage, Qos, ReasonCode, ReceivedMessage};
use crate::client::session::PendingDelivery;
use crate::held_bytes::HeldBytesGuard;
use crate::rate_limit::RateDecision;
use crate::request::principal;

impl Dispatcher {
    /// Handles a message for the bindings at these places.
    pub(super) fn binding_message(
        &mut self,
        received: ReceivedMessage,
        bindings: &BTreeSet<usize>,
        delivery: Option<PendingDelivery>,
        now: Instant,
    ) {
        let refusal = self.refusal(&received);
        let ReceivedMessage { message, duplicate, .. } = received;
        match BindingDismissal::of(&message, refusal.is_some()) {
            None => {}
            Some(BindingDismissal::Empty) => return self.settle(delivery, ReasonCode::SUCCESS),
            Some(BindingDismissal::Answer(why)) => return self.leave_unanswered(&message.topic, why, delivery, now),
        }

        let taking = bindings.iter().filter_map(|index| {
            let config = self.bindings.get(*index)?.binding.config();
            // Without an acknowledgement the broker would not have kept it until the model is loaded.
            let is_early = |model| self.model_wait.is_needed(model, config.version);
            if delivery.is_none() && !message.retain && config.model.as_ref().is_some_and(is_early) {
                return None;
            }
            Some((*index, config.topic.captures(&message.topic)?))
        });
        let matching: Vec<_> = taking.collect();
        if matching.is_empty() {
            return self.settle(delivery, ReasonCode::SUCCESS);
        }

        if let Some(delivery) = delivery {
            self.session.expect_settlements(delivery, matching.len());
        }
        // A message that is not read is judged by its topic here, and a large one by its content in its own task. All
        // others are judged before the rate limit, which one that is not meant does not use up.
        let payload = Some(&message.payload).filter(|payload| refusal.is_none() && is_judged_inline(payload));
        let device = self.topics.device.clone();
        let subject = MessageParts::new(payload, &device);
        for (index, captures) in matching {
            self.statistics.received(MqttMessageKind::Binding);
            let Some(binding) = self.bindings.get(index).map(|limited| limited.binding.clone()) else { continue };
            if binding.unmet(&subject, &captures).is_some() {
                self.statistics.skipped();
                self.settle(delivery, ReasonCode::SUCCESS);
                continue;
            }
            let for_binding = match &refusal {
                None => self
                    .counted(&message, delivery.is_some())
                    .and_then(|held| BindingMessage::new(&binding, &message, &captures, &device, now, held)),
                Some(refusal) => Err(refusal.clone()),
            };
            match for_binding {
                Ok(message) => {
                    let qos = if delivery.is_some() { binding.config().qos } else { Qos::AtMostOnce };
                    self.offer(index, BindingMessage { delivery, qos, duplicate, ..message }, now);
                }
                Err(failure) => {
                    self.statistics.answered(failure.status.as_u16());
                    self.log_binding_failure(&binding, &failure, now);
                    self.settle(delivery, ReasonCode::IMPLEMENTATION_SPECIFIC);
                }
            }
        }
    }

    /// Counts a message as memory of its device. One that the broker would not deliver again is counted beyond the
    /// limit rather than lost: [`DispatcherLimits::memory_bytes`](super::DispatcherLimits) bounds those.
    fn counted(&self, message: &MqttMessage, is_acknowledged: bool) -> Result<HeldBytesGuard, ApiError> {
        let account = self.serving.memory().account(principal(&message.topic));
        let bytes = message.payload.len();
        let memory = match account.take(bytes) {
            Err(_) if is_acknowledged => account.force_reserve(bytes),
            taken => taken?,
        };
        Ok(self.held.hold(bytes, Some(memory)))
    }

    /// Starts a message, or keeps it until the rate limit allows it.
    fn offer(&mut self, index: usize, mut message: BindingMessage, now: Instant) {
        let Some(rate) = self.bindings.get_mut(index).and_then(|limited| limited.rate.as_mut()) else {
            return self.start(message);
        };
        // Settle it now: acknowledgements keep their order, so all others would wait for it. A limit drops messages
        // anyway.
        if let Some(delivery) = message.delivery.take() {
            self.session.settle(delivery, ReasonCode::SUCCESS);
        }
        // Kept messages take at most half of the memory: calls need the rest.
        if self.held.get() > self.limits.memory_bytes / 2 {
            return self.statistics.replaced();
        }
        let source = message.source.clone();
        match rate.offer(&source, message, now) {
            RateDecision::Run(message) => self.start(message),
            RateDecision::Kept { replaced: None } => {}
            RateDecision::Kept { replaced: Some(_) } | RateDecision::Refused(_) => self.statistics.replaced(),
        }
    }

    fn start(&mut self, message: BindingMessage) {
        let (serving, device, pusher) = (self.serving.clone(), self.topics.device.clone(), self.pusher.clone());
        let model_wait = self.model_wait.clone();
        let mut end = self.begin(message.delivery, None);
        let binding = message.binding.clone();
        self.shutdown.spawn(async move {
            let outcome = message.run(&serving, &device, &pusher, &model_wait).await;
            let BindingOutcome { message, failure, unsettled, skipped, held } = outcome;
            if let Some(finished) = &mut end.finished {
                finished.pushed = message.is_none() && failure.is_none() && !unsettled && !skipped;
                finished.skipped = skipped;
                (finished.answer, finished.held) = (message, Some(held));
                if unsettled {
                    finished.delivery = None;
                }
                finished.failed = failure.map(|failure| (binding, failure));
            }
        });
    }

    /// Starts the kept messages that the rate limits allow now.
    pub fn start_due(&mut self, now: Instant) {
        let rates = self.bindings.iter_mut().filter_map(|limited| limited.rate.as_mut());
        let due: Vec<_> = rates.flat_map(|rate| rate.due(now)).collect();
        for message in due {
            self.start(message);
        }
    }

    /// The next time that [`Self::start_due`] has something to start.
    pub fn next_due(&self) -> Option<Instant> {
        self.bindings.iter().filter_map(|limited| limited.rate.as_ref()?.next_due()).min()
    }

    /// Logs that a message of a binding failed.
    pub(super) fn log_binding_failure(&mut self, binding: &Binding, failure: &ApiError, now: Instant) {
        // The kinds stay few: the configuration bounds the number of bindings.
        let index = self.bindings.iter().position(|limited| limited.binding.name() == binding.name());
        let kind =
            u32::try_from(index.unwrap_or_default()).unwrap_or_default() << 16 | u32::from(failure.status.as_u16());
        if let Some(suppressed) = self.log_limiter.take(("binding", kind), now) {
            let (name, status, reason) = (binding.name(), failure.status.as_u16(), &failure.message);
            tracing::warn!(
                name: "binding.failed",
                binding = name,
                status,
                reason,
                suppressed,
                "a binding has no result"
            );
        }
    }
}
