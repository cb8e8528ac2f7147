//! The serving core in this process as a target: the cost of a request without HTTP. The model runs in a sandboxed
//! process, as in the server.

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::content::CallContent;
use ledge_isolation::ChildUsage;
use ledge_models::serving::request::{
    self, CallInputs, FeatureRequest, InferRequest, InferResponse, ResultForm, TensorPayload,
};
use ledge_models::serving::{Serving, ServingError};
use ledge_models::status;
use ledge_protocol::decode;
use tokio::runtime::Runtime;

use super::drive::{Caller, Target};
use super::figures::Outcome;
use super::inputs::Payload;
use super::process::{Usage, usage};
use super::random::Random;

/// A serving core, and its requests.
#[derive(Debug)]
pub struct InProcess<'a> {
    /// Drives the core's timers; the callers' threads do the rest.
    pub runtime: &'a Runtime,
    pub serving: &'a Serving,
    pub target: decode::ModelTarget,
    /// Sent in turn; with `unique` only the first, stamped each time.
    pub payloads: &'a [Payload],
    /// Set if no request is sent twice.
    pub unique: bool,
}

/// Runs one request on a serving core.
pub async fn ask(
    serving: &Serving,
    target: &decode::ModelTarget,
    payload: Payload,
) -> Result<InferResponse, ServingError> {
    let payload = match payload {
        Payload::Photo(photograph) => request::Payload::Content(CallContent::Photograph(photograph), ResultForm::Json),
        Payload::Tensors(tensors) => {
            let (inputs, features) = (CallInputs::Named(tensors), FeatureRequest::default());
            request::Payload::Tensors(TensorPayload { inputs, outputs: None, features })
        }
    };
    let request = InferRequest { payload, deadline: None, priority: None, account: MemoryAccount::unlimited() };
    let pinned = serving.pin(&target.model, target.version, &Principal::Local)?;
    serving.infer(pinned, request, &Principal::Local).await
}

impl Target for InProcess<'_> {
    fn name(&self) -> &'static str {
        "in-process"
    }

    fn usage(&self) -> Option<Usage> {
        let of_model = |child: ChildUsage| Usage { cpu: child.cpu, resident: child.resident_bytes };
        let of_models = self.serving.repository().engine().processes().into_iter().map(of_model);
        Some(of_models.chain(usage(std::process::id())).sum())
    }

    fn caller(&self) -> anyhow::Result<Box<dyn Caller + '_>> {
        Ok(Box::new(LocalCaller { core: self, random: Random::fresh() }))
    }
}

struct LocalCaller<'a> {
    core: &'a InProcess<'a>,
    random: Random,
}

impl Caller for LocalCaller<'_> {
    fn call(&mut self, number: usize) -> Outcome {
        let core = self.core;
        let payload = if core.unique {
            core.payloads.first().and_then(|payload| payload.stamped(&mut self.random).ok())
        } else {
            core.payloads.get(number % core.payloads.len().max(1)).cloned()
        };
        let Some(payload) = payload else {
            return Outcome::Failed {
                kind: "no request".to_owned(),
                message: "the request cannot be made unique".to_owned(),
            };
        };
        match core.runtime.handle().block_on(ask(core.serving, &core.target, payload)) {
            Ok(_) => Outcome::Ok,
            Err(error) => Outcome::Failed { kind: status::of_serving(&error).to_string(), message: error.to_string() },
        }
    }
}
