//! `/v1/embeddings` and `/v1/models`: the interface of OpenAI, for the models that embed texts.

pub mod config;

use std::collections::BTreeSet;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::content::{CallContent, PipelineInput};
use ledge_engine::pipeline::text_embedding;
use ledge_identity::access::CallerAccess;
use ledge_models::repository::LoadedModel;
use ledge_models::serving::request::{InferRequest, InferResponse, Payload, ResultForm};
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_part::body::{self, ReceivedBody};
use ledge_part::counted_body;
use ledge_part::reply::json;
use ledge_part::route::PathParts;
use ledge_protocol::call::log_answered;
use ledge_protocol::openai::{EmbeddingsRequest, ListedModel, ModelList};
use ledge_service::off_thread::off_thread;

use super::App;
use super::call_headers::CallHeaders;
use super::guard;
use super::models::target;
use super::reply::OpenAiErrorResponse;

/// The most bytes of JSON for a byte of an embedding: a float of four bytes has up to sixteen characters.
const JSON_BYTES_PER_BYTE: usize = 4;

/// `POST /v1/embeddings`.
pub async fn embeddings(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
    request: Request,
) -> Result<Response, OpenAiErrorResponse> {
    let (arrived, (parts, body)) = (Instant::now(), request.into_parts());
    let headers = match CallHeaders::read(&parts.headers, arrived) {
        Ok(headers) => headers,
        Err(failure) => {
            body::discard_unless_expected(&parts.headers, body, app.context().limits()).await;
            return Err(failure.into());
        }
    };
    let ReceivedBody { bytes, account } = body::read(&parts, body, app.context()).await?;
    // Reading copies the texts.
    let _copied = account.take(2 * bytes.len()).map_err(ApiError::from)?;
    let known = app.clone();
    let request = off_thread(&account, move || EmbeddingsRequest::decode(&bytes, &known.openai().aliases)).await?;
    guard::check_model(&app, &parts, &principal, &access, &request.model)?;

    let CallHeaders { priority, deadline } = headers;
    let call = InferRequest {
        payload: Payload::Content(CallContent::Texts(request.texts.clone()), ResultForm::Tensors),
        deadline,
        priority,
        account: account.clone(),
    };
    let answered = app.serving().pin_and_infer(&request.model, call, &principal).await.map_err(ApiError::from);
    let told = answered.as_ref().map(|(answer, _)| answer.version);
    log_answered(&request.model, arrived, None, &principal, told);
    let (InferResponse { outputs, memory: of_outputs, .. }, _) = answered?;

    let numbers: usize = outputs.iter().map(|(_, tensor)| tensor.data().len()).sum();
    let mut memory = account.take(JSON_BYTES_PER_BYTE * numbers).map_err(ApiError::from)?;
    let written = off_thread(&account, move || {
        let _of_outputs = of_outputs;
        let answer = request.answer(&outputs.iter().map(|(_, tensor)| tensor).collect::<Vec<_>>())?;
        memory.resize(answer.len()).map_err(ApiError::from)?;
        Ok::<_, ApiError>(memory.attach(answer.into()))
    });
    let answer = written.await?;
    Ok(body::compress_response(&parts.headers, counted_body::counted_json(answer), &account).await)
}

/// `GET /v1/models`: the models that embed texts.
pub async fn models(State(app): State<App>, Extension(access): Extension<CallerAccess>) -> Response {
    let all = app.serving().repository().all_live();
    let usable = all.iter().filter(|model| embeds(model) && access.has_model(&model.name));
    let names: BTreeSet<&ModelName> = usable.map(|model| &model.name).collect();
    let aliases = app.openai().aliases.iter().filter(|(_, model)| names.contains(model));
    let aliases = aliases.map(|(alias, _)| alias.as_str());
    json(&ModelList::new(names.iter().map(|name| name.as_str()).chain(aliases)))
}

/// `GET /v1/models/{model}`.
pub async fn model(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, OpenAiErrorResponse> {
    let asked = target(&path)?.model;
    let name = app.openai().aliases.get(asked.as_str()).unwrap_or(&asked);
    let model = app.serving().repository().pin(name, None).map_err(ApiError::from)?;
    if !embeds(&model) {
        let message =
            format!("model '{name}' embeds no texts: its model.toml has no {}", PipelineInput::Texts.sections());
        return Err(ApiError::new(StatusCode::NOT_FOUND, message).into());
    }
    Ok(json(&ListedModel::new(asked.as_str())))
}

fn embeds(model: &LoadedModel) -> bool {
    model.pipeline.as_ref().is_some_and(|pipeline| pipeline.kind().name == text_embedding::KIND.name)
}
