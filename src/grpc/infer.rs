//! `ModelInfer` and `ModelStreamInfer`.

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _};
use ledge_base::names::ModelVersion;
use ledge_models::serving::request::{InferRequest, Payload};
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_part::counted_body;
use ledge_protocol::call::log_answered;
use ledge_service::shutdown::Shutdown;

use super::call::{self, CallHead, lasting_response, one_answer, one_message};
use super::message_reader::GrpcMessageReader;
use super::methods::{AdmittedCaller, GrpcMethodsState};
use super::request::DecodedInferCall;
use super::response::{GrpcAnswerForm, ReservedAnswer, stream_error};
use super::streams::ConnectionStreams;

/// The most calls of one stream at a time. Their answers keep their order.
const CALLS_OF_STREAM_MAX: usize = 8;

/// The header with the outcome of the response cache, as over HTTP/1.1.
const CACHE_HEADER: &str = "x-ledge-cache";

/// `ModelInfer`.
pub async fn model_infer(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answered = async {
        let caller = AdmittedCaller::of(&request)?;
        let head = CallHead::read(&request, methods.context())?;
        let max_bytes = methods.context().limits().max_bytes;
        let message = one_message(methods.context(), request, max_bytes, &head.account).await?;
        answer(&methods, message, &head, &caller, &mut None, |_| GrpcAnswerForm::Unary).await
    };
    match answered.await {
        Ok(ReservedAnswer { message, memory, cache }) => {
            let response = one_answer(message);
            let mut response =
                if memory.bytes() > 0 { counted_body::keep_until_sent(response, memory) } else { response };
            if let Some(outcome) = cache {
                response.headers_mut().insert(CACHE_HEADER, HeaderValue::from_static(outcome.as_str()));
            }
            response
        }
        Err(error) => error.into_response(),
    }
}

/// `ModelStreamInfer`: calls as they arrive, answered in their order.
pub async fn model_stream_infer(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let open = || {
        let caller = AdmittedCaller::of(&request)?;
        Ok::<_, ApiError>((caller, CallHead::read(&request, methods.context())?))
    };
    let (caller, head) = match open() {
        Ok(opened) => opened,
        Err(error) => return error.into_response(),
    };
    let (parts, body) = request.into_parts();
    let streams = parts.extensions.get::<ConnectionStreams>().cloned();
    let max_bytes = methods.context().limits().max_bytes;
    let reader = GrpcMessageReader::new(&parts.headers, body, max_bytes, head.account.clone());
    let calls = messages(reader, methods.shutdown().clone()).map(move |message| {
        let (methods, caller, streams) = (methods.clone(), caller.clone(), streams.clone());
        let head = CallHead { arrived: std::time::Instant::now(), ..head.clone() };
        async move {
            let _call = streams.map(|streams| streams.call());
            let mut id = None;
            let form = |marks_final| GrpcAnswerForm::OfStream { marks_final };
            match answer(&methods, message?, &head, &caller, &mut id, form).await {
                Ok(ReservedAnswer { message, memory, .. }) => Ok(memory.attach(message)),
                Err(error) => Ok(stream_error(&error, id)),
            }
        }
    });
    lasting_response(calls.buffered(CALLS_OF_STREAM_MAX))
}

/// The messages of a stream until its end, an error that ends it, or the shutdown.
fn messages(reader: GrpcMessageReader, shutdown: Shutdown) -> impl Stream<Item = Result<Bytes, ApiError>> {
    stream::unfold(Some((reader, shutdown)), |state| async {
        let (mut reader, shutdown) = state?;
        let next = tokio::select! {
            next = reader.next() => next,
            () = shutdown.requested() => {
                let message = "the box stops or restarts: open another stream";
                Err(ApiError::later(StatusCode::SERVICE_UNAVAILABLE, message, call::RESTART_TIME))
            }
        };
        match next.transpose()? {
            Ok(message) => Some((Ok(message), Some((reader, shutdown)))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

/// Answers one call, and logs its caller, model and result. Its id is left in `id`.
async fn answer(
    methods: &GrpcMethodsState,
    message: Bytes,
    head: &CallHead,
    caller: &AdmittedCaller,
    id: &mut Option<String>,
    form: impl FnOnce(bool) -> GrpcAnswerForm,
) -> Result<ReservedAnswer, ApiError> {
    let DecodedInferCall { target, mut request, marks_final, .. } =
        DecodedInferCall::decode(message, head.arrived, &head.account).await?;
    id.clone_from(&request.id);
    let answered = async {
        methods.check_model(caller, &target.model)?;
        let serving = methods.serving();
        let pinned = serving.pin(&target.model, target.version, &caller.principal)?;
        request.tensors.features.views = caller.access.feature_views().clone();
        let call = InferRequest {
            payload: Payload::Tensors(request.tensors),
            deadline: [head.deadline, request.deadline].into_iter().flatten().min(),
            priority: request.priority,
            account: head.account.clone(),
        };
        let response = serving.infer(pinned, call, &caller.principal).await?;
        let version = response.version;
        Ok((ReservedAnswer::write(response, request.id, form(marks_final))?, version))
    };
    let answered: Result<(ReservedAnswer, ModelVersion), ApiError> = answered.await;
    let version = answered.as_ref().map(|(_, version)| *version);
    log_answered(&target.model, head.arrived, id.as_deref(), &caller.principal, version);
    answered.map(|(answer, _)| answer)
}
