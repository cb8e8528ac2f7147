//! A document with a text layer as the answer to a call: a PDF that shows the same pages, in which the words can be
//! searched and copied.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::ModelVersion;
use ledge_base::principal::Principal;
use ledge_documents::DocumentError;
use ledge_engine::pipeline::content::{CallContent, PipelineInput};
use ledge_engine::pipeline::document_reading::{self, SearchableError};
use ledge_engine::pipeline::file_format::UnexpectedFile;
use ledge_models::serving::Serving;
use ledge_models::serving::request::{CacheOutcome, InferRequest, Payload, ResultForm};
use ledge_part::api_error::{ApiError, StatusCode};

use super::call::{InferenceCall, log_answered};
use super::decode::ModelTarget;

/// The time within which a PDF must be made, for a caller without a deadline. Most take some 10 ms a page.
const PDF_TIMEOUT: Duration = Duration::from_mins(2);

/// A document with a text layer.
#[derive(Debug, Clone)]
pub struct SearchableDocument {
    /// The PDF.
    pub body: Bytes,
    /// As in [`super::call::CallAnswer`].
    pub cache: Option<CacheOutcome>,
}

/// Answers a call with the document that was sent, with a text layer.
pub async fn answer(
    serving: &Serving,
    call: InferenceCall,
    principal: &Principal,
) -> Result<SearchableDocument, ApiError> {
    let (model, arrived) = (call.target.model.clone(), call.arrived);
    let answered = read_and_write(serving, call, principal).await;
    let told = answered.as_ref().map(|(_, version)| *version);
    log_answered(&model, arrived, None, principal, told);
    answered.map(|(document, _)| document)
}

async fn read_and_write(
    serving: &Serving,
    call: InferenceCall,
    principal: &Principal,
) -> Result<(SearchableDocument, ModelVersion), ApiError> {
    let InferenceCall { target: ModelTarget { model, version }, body: file, account, deadline, priority, .. } = call;
    let pinned = serving.pin(&model, version, principal)?;
    if pinned.model.input() != Some(PipelineInput::Document) {
        let message = format!("model '{model}' reads no documents: leave out the header accept, for JSON");
        return Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, message));
    }
    let refused = |error: UnexpectedFile| ApiError::new(StatusCode::BAD_REQUEST, error.to_string());
    UnexpectedFile::unless_document(&file).map_err(refused)?;
    let payload = Payload::Content(CallContent::Document(file.clone()), ResultForm::Json);
    let request = InferRequest { payload, deadline, priority, account: account.clone() };
    let answer = serving.infer(pinned, request, principal).await?;
    let read = answer.result.as_ref().map_or("", |result| result.json.get());
    let body = searchable_pdf(file, read, account, deadline).await?;
    Ok((SearchableDocument { body, cache: answer.cache }, answer.version))
}

/// The PDF of a file that the reader of documents answered with this JSON.
pub async fn searchable_pdf(
    file: Bytes,
    answer: &str,
    account: MemoryAccount,
    deadline: Option<Instant>,
) -> Result<Bytes, ApiError> {
    let deadline = deadline.unwrap_or_else(|| Instant::now() + PDF_TIMEOUT);
    document_reading::searchable_pdf(file, answer, account, deadline).await.map_err(|error| {
        let message = error.to_string();
        match error {
            SearchableError::Document(DocumentError::NoRoom(error)) => error.into(),
            SearchableError::Document(DocumentError::Deadline) => ApiError::new(StatusCode::GATEWAY_TIMEOUT, message),
            SearchableError::Document(DocumentError::Process { .. }) => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
            }
            SearchableError::Document(_) | SearchableError::Unread => ApiError::new(StatusCode::BAD_REQUEST, message),
        }
    })
}
