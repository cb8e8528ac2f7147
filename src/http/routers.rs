//! The routers of the listeners, and the answers to routes that do not exist.

use axum::Router;
use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use ledge_base::principal::Principal;
use ledge_identity::authentication::Peer;
use ledge_part::api_error::ApiError;
use ledge_part::counted_body;
use ledge_part::route::{ErrorForm, LocalPlain, RouteRule};
use tower_service::Service as _;

use crate::app::App;
use crate::reply::{AnalysisErrorResponse, VisionErrorResponse};
use crate::{document_intelligence, host_networks, routes, vision};

/// The routers of the listeners.
#[derive(Debug, Clone, Default)]
pub struct Routers {
    all: Router,
    /// The routes that are served without encryption in a local network.
    local_plain: Router,
    /// The routes that are served without encryption to this machine.
    local_plain_on_this_host: Router,
    /// The methods of gRPC.
    grpc: Router,
}

#[cfg(test)]
impl From<Router> for Routers {
    fn from(all: Router) -> Self {
        Self { all, ..Self::default() }
    }
}

impl Routers {
    pub fn new(app: &App) -> Self {
        let is_grpc = |rule: &RouteRule| rule.form == ErrorForm::Grpc;
        Self {
            all: router(app, |rule| !is_grpc(rule)),
            local_plain: router(app, |rule| rule.local_plain >= LocalPlain::Networks),
            local_plain_on_this_host: router(app, |rule| rule.local_plain >= LocalPlain::ThisHost),
            grpc: routes::router(app, is_grpc),
        }
    }

    /// The methods of gRPC behind their guards, with errors as an [`ApiError`].
    pub fn grpc(&self) -> Router {
        self.grpc.clone()
    }

    /// The JSON that this box answers to a GET of `path` by the user of this process; `None` where it is an error. For
    /// the daemon itself, which sends its parts the requests that a command would send.
    pub async fn ask(&self, path: &str) -> Option<serde_json::Value> {
        let mut request = Request::get(path).body(Body::empty()).ok()?;
        request.extensions_mut().insert(Peer::User(rustix::process::geteuid().as_raw()));
        let Ok(answer) = self.all.clone().call(request).await;
        if answer.status() != StatusCode::OK {
            return None;
        }
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        serde_json::from_slice(&body).ok()
    }

    /// The routes for the other end of a connection.
    pub(crate) fn of(self, peer: &Peer) -> Router {
        match peer {
            Peer::Unencrypted { ip } if host_networks::is_on_this_host(*ip) => self.local_plain_on_this_host,
            Peer::Unencrypted { .. } => self.local_plain,
            Peer::Address { .. } | Peer::User(_) => self.all,
        }
    }
}

/// A router of some routes. The existence of a route is not a secret: `GET /openapi.json` is public.
fn router(app: &App, is_served: impl Fn(&RouteRule) -> bool) -> Router {
    // Counted for no caller: the large answers that are counted here are the same for all callers.
    let account = app.context().memory().account(Principal::Others);
    routes::router(app, is_served)
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(map_response(move |answer| std::future::ready(counted_body::count(answer, &account))))
}

async fn unknown_route(OriginalUri(uri): OriginalUri) -> Response {
    let message = format!("no route {}; GET /openapi.json lists the routes", uri.path());
    error_at(uri.path(), StatusCode::NOT_FOUND, message)
}

async fn method_not_allowed(request: Request) -> Response {
    let path = request.uri().path();
    let message = format!("the method {} is not allowed for {path}", request.method());
    error_at(path, StatusCode::METHOD_NOT_ALLOWED, message)
}

/// An error answer in the form of the routes near `path`.
fn error_at(path: &str, status: StatusCode, message: String) -> Response {
    let failure = ApiError::new(status, message);
    if vision::is_below(path) {
        VisionErrorResponse::from(failure).into_response()
    } else if document_intelligence::is_below(path) {
        AnalysisErrorResponse::from(failure).into_response()
    } else {
        failure.into_response()
    }
}
