//! A binding, and the limits of its messages.

use std::sync::Arc;

use crate::binding_message::BindingMessage;
use crate::bindings::Binding;
use crate::rate_limit::RateLimiter;

/// The most topics whose rate is tracked for one binding.
const RATE_LIMITED_TOPICS_MAX: usize = 4096;

/// A binding with its rate limit and the messages that the limit keeps.
#[derive(Debug)]
pub(super) struct LimitedBinding {
    pub(super) binding: Arc<Binding>,
    pub(super) rate: Option<RateLimiter<BindingMessage>>,
}

impl LimitedBinding {
    pub(super) fn new(binding: &Arc<Binding>) -> Self {
        let rate = binding.interval().map(|interval| RateLimiter::new(interval, RATE_LIMITED_TOPICS_MAX));
        Self { binding: binding.clone(), rate }
    }
}
