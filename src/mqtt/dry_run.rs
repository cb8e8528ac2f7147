//! Handles one message as the daemon does, but without a broker and without pushing into the feature store.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ledge_base::names::{DeviceName, ModelName};
use ledge_base::principal::Principal;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_part::api_error::ApiError;

use super::binding_message::{BindingDismissal, BindingMessage, DryRunRows};
use super::bindings::{Binding, BindingConfig, Bindings, MessageParts};
use super::client::packet::{MessageProperties, MqttMessage, PacketId, Qos, ReceivedMessage};
use super::held_bytes::HeldBytes;
use super::request::{CallMessage, too_large};
use super::topics::{DeviceTopics, InferRoute, InvalidRoute, TopicFilter, TopicName};

/// A box without a broker.
#[derive(Debug)]
pub struct DryRun<'a> {
    /// The topics of the box.
    pub topics: &'a DeviceTopics,
    pub bindings: &'a Bindings,
    pub authenticator: &'a Authenticator,
    /// The serving core. The models that the message is for are loaded into it.
    pub serving: &'a Serving,
    /// The largest payload that is accepted, in bytes.
    pub max_payload: usize,
    /// The response topics that are allowed besides the result topics; any topic when this is empty.
    pub response_topics: &'a [TopicFilter],
}

/// The result of one recipient of the message.
#[derive(Debug)]
pub struct DryRunResult {
    pub recipient: DryRunRecipient,
    /// The caller, for a call.
    pub principal: Option<Principal>,
    /// The model that it is for; `None` when the topic names none.
    pub model: Option<ModelName>,
    /// The rows that a binding would push into the feature store, or that the store refuses.
    pub rows: Option<DryRunRows>,
    /// The reason why the model is not loaded; the daemon would have logged it.
    pub not_loaded: Option<String>,
    /// The reason why the model is not called here, although the daemon would call it.
    pub not_asked: Option<String>,
    pub message: Option<MqttMessage>,
    /// The reason why there is no result.
    pub problem: Option<String>,
    /// The condition of the binding that excludes the message.
    pub unmet: Option<String>,
}

/// A recipient of a message.
#[derive(Debug)]
pub enum DryRunRecipient {
    /// It is an inference call to this box, or to its group.
    Call {
        /// The box or group that is called; `None` when the topic names no model.
        owner: Option<DeviceName>,
    },
    Binding {
        binding: Arc<Binding>,
        /// The parts of the topic that its wildcards match.
        captures: Vec<String>,
    },
}

impl DryRun<'_> {
    /// Handles a message to `topic` that is published with QoS 1. An empty result: it has no recipient.
    pub async fn run(&self, topic: TopicName, payload: Bytes, properties: MessageProperties) -> Vec<DryRunResult> {
        let message = MqttMessage { topic, payload, qos: Qos::AtLeastOnce, retain: false, properties };
        let received = ReceivedMessage {
            message,
            packet_id: Some(PacketId::MIN),
            duplicate: false,
            oversized: None,
            subscription_ids: Vec::new(),
        };
        match self.topics.route(&received.message.topic) {
            Some(route) => vec![self.call(route, received).await],
            None => self.binding_message(received).await,
        }
    }

    /// Loads a model, as the daemon did at its start. Returns the reason when it cannot be loaded.
    async fn load(&self, model: Option<&ModelName>) -> Option<String> {
        let (repository, model) = (self.serving.repository(), model?);
        // Several bindings may be for one model.
        if repository.pin(model, None).is_ok() {
            return None;
        }
        repository.load(model, &Principal::Local).await.err().map(|error| error.to_string())
    }

    /// The reason why the model of a binding is not called: some of its inputs are made of features, and only the
    /// daemon has their values.
    fn not_asked(&self, binding: &BindingConfig) -> Option<String> {
        let model = self.serving.repository().pin(binding.model.as_ref()?, binding.version).ok()?;
        let inputs = model.config.feature_inputs().map(|port| ("input", &port.name));
        // The message that is one value has no other column; rows may have them all.
        let columns = model.pipeline.as_ref().filter(|_| binding.value.is_some());
        let columns = columns.into_iter().flat_map(|pipeline| pipeline.feature_columns());
        let columns = columns.map(|column| ("column", &column.name));
        let (kind, name) = inputs.chain(columns).find(|(_, name)| !binding.gives(name))?;
        let reason = format!("its {kind} {name:?} is made of features, and only the daemon has their values");
        (!self.serving.features().is_open()).then_some(reason)
    }

    async fn call(&self, route: Result<InferRoute, InvalidRoute>, received: ReceivedMessage) -> DryRunResult {
        let (owner, model) = match &route {
            Ok(route) => (Some(route.owner.clone()), Some(route.model.clone())),
            Err(_) => (None, None),
        };
        let not_loaded = self.load(model.as_ref()).await;
        let refusal = too_large(&received, self.max_payload);
        let request = CallMessage::read(route, received, Instant::now(), refusal)
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
        DryRunResult {
            recipient: DryRunRecipient::Call { owner },
            principal,
            model,
            rows: None,
            not_loaded,
            not_asked: None,
            message,
            problem,
            unmet: None,
        }
    }

    async fn binding_message(&self, received: ReceivedMessage) -> Vec<DryRunResult> {
        let refusal = too_large(&received, self.max_payload);
        let message = received.message;
        let problem = |failure: &ApiError| format!("{} (status {})", failure.message, failure.status.as_u16());
        let mut results = Vec::new();
        let read = Some(&message.payload).filter(|_| refusal.is_none());
        let subject = MessageParts::new(read, &self.topics.device);

        for (binding, captures) in self.bindings.matching(&message.topic) {
            let config = binding.config();
            let mut result = DryRunResult {
                recipient: DryRunRecipient::Binding {
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
                unmet: None,
            };
            let unmet = binding.unmet(&subject, &captures);
            let held = HeldBytes::default().hold(0, None);
            let for_binding =
                BindingMessage::new(binding, &message, &captures, &self.topics.device, Instant::now(), held);
            match (BindingDismissal::of(&message, refusal.is_some()), &refusal, for_binding) {
                (Some(dismissal), ..) => result.problem = Some(dismissal.to_string()),
                (None, ..) if unmet.is_some() => result.unmet = unmet,
                (None, Some(failure), _) => result.problem = Some(problem(failure)),
                (None, None, Err(failure)) => result.problem = Some(problem(&failure)),
                (None, None, Ok(message)) => {
                    result.not_loaded = self.load(config.model.as_ref()).await;
                    let message = BindingMessage { qos: config.qos, ..message };
                    result.not_asked = self.not_asked(config);
                    if result.not_asked.is_some() {
                        let (rows, failure) = message.dry_run_push(self.serving, &self.topics.device).await;
                        (result.rows, result.problem) = (rows, failure.as_ref().map(problem));
                    } else {
                        let (rows, outcome) = message.dry_run(self.serving, &self.topics.device).await;
                        (result.rows, result.message, result.problem) =
                            (rows, outcome.message, outcome.failure.as_ref().map(problem));
                    }
                }
            }

            results.push(result);
        }
        results
    }
}
