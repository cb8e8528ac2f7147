//! One document for the model that reads documents, for interfaces whose callers wait elsewhere for its answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::content::CallContent;
use ledge_models::repository::LoadedModel;
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::Serving;
use ledge_models::serving::request::{InferRequest, Payload, ResultForm};
use ledge_part::api_error::{ApiError, StatusCode};
use serde_json::value::RawValue;

use super::call::log_answered;

/// The longest time that a document waits for a place in the queue of the model.
const QUEUE_WAIT_MAX: Duration = Duration::from_mins(5);

/// A document, and the terms of its reading.
#[derive(Debug)]
pub struct DocumentCall<'a> {
    pub model: &'a ModelName,
    pub document: &'a Bytes,
    pub account: &'a MemoryAccount,
    pub priority: Option<Priority>,
    /// After this the caller no longer needs the answer; `None` is the model's default.
    pub deadline: Option<Instant>,
    pub principal: &'a Principal,
}

/// The answer to a document.
#[derive(Debug)]
pub struct DocumentAnswer {
    /// The document as JSON.
    pub document: Box<RawValue>,
    /// The version that answered.
    pub model: Arc<LoadedModel>,
}

/// Reads a document. A call that finds no place in the queue waits for one.
pub async fn read_document(serving: &Serving, call: DocumentCall<'_>) -> Result<DocumentAnswer, ApiError> {
    let DocumentCall { model, document, account, priority, deadline, principal } = call;
    let arrived = Instant::now();
    let until = deadline.unwrap_or_else(|| arrived + QUEUE_WAIT_MAX);
    let answered = loop {
        let request = InferRequest {
            payload: Payload::Content(CallContent::Document(document.clone()), ResultForm::Json),
            deadline,
            priority,
            account: account.clone(),
        };
        let answered = serving.pin_and_infer(model, request, principal).await.map_err(ApiError::from);
        match answered {
            Err(ApiError { retry_after_s: Some(seconds), .. }) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
            answered => break answered,
        }
    };
    let told = answered.as_ref().map(|(answer, _)| answer.version);
    log_answered(model, arrived, None, principal, told);
    let (answer, loaded) = answered?;
    let result = answer.result.ok_or_else(|| {
        let message = format!("the model '{model}' reads no documents: name one that does");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    })?;
    Ok(DocumentAnswer { document: result.json, model: loaded })
}
