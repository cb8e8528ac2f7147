//! Liveness and readiness, in the Open Inference Protocol's form and in gRPC's.

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use ledge_part::api_error::{ApiError, StatusCode};

use super::call::{self, SMALL_MESSAGE_BYTES_MAX, UnaryCall, decoded, framed, lasting_response, one_message, unary};
use super::messages::health::health_check_response::ServingStatus;
use super::messages::health::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};
use super::messages::{ServerLiveRequest, ServerLiveResponse, ServerReadyRequest, ServerReadyResponse};
use super::methods::GrpcMethodsState;

/// The services with a health status; the first is the whole server.
const SERVICES: [&str; 2] = ["", "inference.GRPCInferenceService"];

/// The time between two looks at the readiness for a watch.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// `ServerLive`.
pub async fn server_live(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |_: UnaryCall, _: ServerLiveRequest| async { Ok(ServerLiveResponse { live: true }) };
    unary(methods, request, answer).await
}

/// `ServerReady`: as `GET /v2/health/ready`.
pub async fn server_ready(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, _: ServerReadyRequest| async move {
        Ok(ServerReadyResponse { ready: call.methods.is_ready() })
    };
    unary(methods, request, answer).await
}

/// `Health.Check`.
pub async fn check(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, request: HealthCheckRequest| async move {
        if SERVICES.contains(&request.service.as_str()) {
            return Ok(status(&call.methods));
        }
        let message = "no such service: leave the name empty, or ask for inference.GRPCInferenceService";
        Err(ApiError::new(StatusCode::NOT_FOUND, message))
    };
    unary(methods, request, answer).await
}

/// `Health.List`.
pub async fn list(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, _: HealthListRequest| async move {
        let statuses: HashMap<_, _> = SERVICES.iter().map(|name| ((*name).to_owned(), status(&call.methods))).collect();
        Ok(HealthListResponse { statuses })
    };
    unary(methods, request, answer).await
}

/// `Health.Watch`: the status, and each change of it until the caller goes or the box stops.
pub async fn watch(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let account = methods.context().memory().account(ledge_base::principal::Principal::Others);
    let message = one_message(methods.context(), request, SMALL_MESSAGE_BYTES_MAX, &account).await;
    let request: HealthCheckRequest = match message.and_then(decoded) {
        Ok(request) => request,
        Err(error) => return error.into_response(),
    };
    let is_known = SERVICES.contains(&request.service.as_str());
    let state = Some((methods, None::<i32>));
    lasting_response(stream::unfold(state, move |state| async move {
        let (methods, told) = state?;
        loop {
            let unknown = HealthCheckResponse { status: ServingStatus::ServiceUnknown.into() };
            let now = if is_known { status(&methods) } else { unknown };
            if told != Some(now.status) {
                return Some((Ok(framed(&now)), Some((methods, Some(now.status)))));
            }
            tokio::select! {
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
                () = methods.shutdown().requested() => {
                    let message = "the box stops or restarts";
                    let error = ApiError::later(StatusCode::SERVICE_UNAVAILABLE, message, call::RESTART_TIME);
                    return Some((Err(error), None));
                }
            }
        }
    }))
}

fn status(methods: &GrpcMethodsState) -> HealthCheckResponse {
    let status = if methods.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status.into() }
}
