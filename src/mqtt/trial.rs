//! What this box does with one message, found out by doing it: all but the broker and the feature store, which nothing is
//! pushed into, is as in the daemon.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ledge_base::names::{DeviceName, ModelName};
use ledge_base::principal::Principal;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;

use super::answer::Failure;
use super::bindings::{Binding, BindingConfig, Bindings};
use super::bound::{BoundMessage, Dismissal, TriedRows};
use super::client::packet::{Message, PacketId, Properties, Qos, Received};
use super::held::HeldBytes;
use super::request::{Request, too_large};
use super::topics::{DeviceTopics, InferRoute, InvalidRoute, TopicFilter, TopicName};

/// A box without a broker.
#[derive(Debug)]
pub struct Trial<'a> {
    /// The topics of the box.
    pub topics: &'a DeviceTopics,
    pub bindings: &'a Bindings,
    pub authenticator: &'a Authenticator,
    /// What answers. The models that the message is for are loaded.
    pub serving: &'a Serving,
    /// The largest payload that is taken, in bytes.
    pub max_payload: usize,
    /// Where answers may go beside the topics for results; anywhere without any.
    pub response_topics: &'a [TopicFilter],
}

/// Who took the message, and what came of it.
#[derive(Debug)]
pub struct Handled {
    pub taker: Taker,
    /// Who asked, where somebody did.
    pub principal: Option<Principal>,
    /// The model that it is for; `None` when the topic names none.
    pub model: Option<ModelName>,
    /// The rows that a binding would push into the feature store, or that the store refuses.
    pub rows: Option<TriedRows>,
    /// Why the model is not loaded; the daemon would have logged it.
    pub not_loaded: Option<String>,
    /// Why the model is not asked here, although the daemon would ask it.
    pub not_asked: Option<String>,
    pub message: Option<Message>,
    /// Why there is no result.
    pub problem: Option<String>,
}

/// Who takes a message.
#[derive(Debug)]
pub enum Taker {
    /// It is an inference call to this box, or to its group.
    Call {
        /// Who is called; `None` when the topic is none for calls.
        owner: Option<DeviceName>,
    },
    Binding {
        binding: Arc<Binding>,
        /// What the wildcards of its topic stand for.
        captures: Vec<String>,
    },
}

impl Trial<'_> {
    /// Does what the daemon does with a message to `topic` that is published with QoS 1. Empty: nothing takes it.
    pub async fn run(&self, topic: TopicName, payload: Bytes, properties: Properties) -> Vec<Handled> {
        let message = Message { topic, payload, qos: Qos::AtLeastOnce, retain: false, properties };
        let received = Received { message, packet_id: Some(PacketId::MIN), duplicate: false, oversized: None };
        match self.topics.route(&received.message.topic) {
            Some(route) => vec![self.call(route, received).await],
            None => self.bound(received).await,
        }
    }

    /// Loads a model, as the daemon did at its start. Gives the reason when it cannot be.
    async fn load(&self, model: Option<&ModelName>) -> Option<String> {
        let (repository, model) = (self.serving.repository(), model?);
        // Several bindings may be for one model.
        if repository.pin(model, None).is_ok() {
            return None;
        }
        repository.load(model, &Principal::Local).await.err().map(|error| error.to_string())
    }

    /// Why the model of a binding is not asked: some of its inputs are made of features, whose values the daemon has.
    fn not_asked(&self, binding: &BindingConfig) -> Option<String> {
        let model = self.serving.repository().pin(binding.model.as_ref()?, binding.version).ok()?;
        let looked_up = model.config.feature_inputs().find(|port| !binding.inputs.contains_key(&port.name))?;
        let reason = format!("its input {:?} is made of features, whose values the daemon alone has", looked_up.name);
        (!self.serving.features().is_open()).then_some(reason)
    }

    async fn call(&self, route: Result<InferRoute, InvalidRoute>, received: Received) -> Handled {
        let (owner, model) = match &route {
            Ok(route) => (Some(route.owner.clone()), Some(route.model.clone())),
            Err(_) => (None, None),
        };
        let not_loaded = self.load(model.as_ref()).await;
        let refusal = too_large(&received, self.max_payload);
        let request = Request::read(route, received, Instant::now(), refusal)
            .map(|request| request.admitted(self.authenticator, self.serving.audit(), Instant::now()))
            .and_then(|request| request.unless_misdirected(self.response_topics, self.bindings.iter()));
        let principal = request.as_ref().ok().map(|request| request.principal().clone());
        let (message, problem) = match request {
            Ok(request) => {
                let (answer, status) = request.run(self.serving, &self.topics.device).await;
                (Some(answer), (status >= 400).then(|| format!("the answer is an error, with status {status}")))
            }
            Err(why) => (None, Some(format!("it is not answered: {why}"))),
        };
        Handled {
            taker: Taker::Call { owner },
            principal,
            model,
            rows: None,
            not_loaded,
            not_asked: None,
            message,
            problem,
        }
    }

    async fn bound(&self, received: Received) -> Vec<Handled> {
        let refusal = too_large(&received, self.max_payload);
        let message = received.message;
        let told = |failure: &Failure| format!("{} (status {})", failure.message, failure.status);
        let mut handled = Vec::new();
        for (binding, captures) in self.bindings.matching(&message.topic) {
            let config = binding.config();
            let mut row = Handled {
                taker: Taker::Binding {
                    binding: binding.clone(),
                    captures: captures.iter().map(|&capture| capture.to_owned()).collect(),
                },
                principal: None,
                model: config.model.clone(),
                rows: None,
                not_loaded: None,
                not_asked: None,
                message: None,
                problem: None,
            };
            let held = HeldBytes::default().hold(0);
            let bound = BoundMessage::new(binding, &message, &captures, &self.topics.device, Instant::now(), held);
            match (Dismissal::of(&message, refusal.is_some()), &refusal, bound) {
                (Some(dismissal), ..) => row.problem = Some(dismissal.to_string()),
                (None, Some(failure), _) => row.problem = Some(told(failure)),
                (None, None, Err(failure)) => row.problem = Some(told(&failure)),
                (None, None, Ok(bound)) => {
                    row.not_loaded = self.load(config.model.as_ref()).await;
                    let bound = BoundMessage { qos: config.qos, ..bound };
                    row.not_asked = self.not_asked(config);
                    if row.not_asked.is_some() {
                        let (rows, failure) = bound.try_out_push(self.serving, &self.topics.device).await;
                        (row.rows, row.problem) = (rows, failure.as_ref().map(told));
                    } else {
                        let (rows, outcome) = bound.try_out(self.serving, &self.topics.device).await;
                        (row.rows, row.message, row.problem) =
                            (rows, outcome.message, outcome.failure.as_ref().map(told));
                    }
                }
            }
            handled.push(row);
        }
        handled
    }
}
