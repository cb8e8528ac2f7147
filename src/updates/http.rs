//! The routes of signed updates: their status, a check now, and the orders of the administrator.

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use ledge_base::principal::Principal;
use ledge_base::serde_messages::in_json;
use ledge_egress::{EgressPurpose, UNLISTED_DESTINATION};
use ledge_identity::access::CallerAccess;
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::handler_context::HandlerContext;
use ledge_part::reply::json;
use ledge_part::route::needs::{ADMINISTER, OPERATE, VIEW};
use ledge_part::route::{Route, RouteScope};
use ledge_service::audit_event::AuditEvent;
use serde::Deserialize;

use crate::Updates;
use crate::artifact::{Artifact, ArtifactKind};
use crate::config::RepositoryAddress;
use crate::handle::{AdministratorCommand, AdministratorCommandError, PollerCommandError};
use crate::status::UpdatesStatus;
use crate::status_report::UpdatesReport;

/// The routes of updates.
pub const ROUTES: &[Route<UpdatesHttpState>] = &[
    Route::get("/updates", VIEW, || get(status)).scope(RouteScope::Listed),
    Route::post("/updates/check", OPERATE, || post(check)).scope(RouteScope::Box).recorded_as("update_check"),
    Route::post("/updates/trust/reset", ADMINISTER, || post(reset_trust)).scope(RouteScope::Box).audited(),
    Route::post("/updates/{kind}/{name}/{order}", OPERATE, || post(order)).scope(RouteScope::Subject).audited(),
];

/// The state of the routes.
#[derive(Debug, Clone)]
pub struct UpdatesHttpState {
    /// `None` without `updates.repository`.
    pub updates: Option<Updates>,
    pub context: HandlerContext,
}

impl UpdatesHttpState {
    fn configured(&self) -> Result<&Updates, ApiError> {
        self.updates.as_ref().ok_or_else(|| {
            let message = "no updates are configured: set updates.repository";
            ApiError::new(StatusCode::CONFLICT, message)
        })
    }
}

/// `GET /updates`.
async fn status(
    State(served): State<UpdatesHttpState>,
    Extension(access): Extension<CallerAccess>,
) -> Result<Response, ApiError> {
    Ok(json(&UpdatesReport::from(&visible(served.configured()?.status(), &access))))
}

/// Limits the status to the models of a caller with limited access.
pub fn visible(mut status: UpdatesStatus, access: &CallerAccess) -> UpdatesStatus {
    if access.models().is_some() {
        let is_seen = |subject: &Artifact| subject.kind == ArtifactKind::Model && access.has_model(&subject.name);
        status.subjects.retain(|subject, _| is_seen(subject));
        status.check.waiting.retain(|subject, _| is_seen(subject));
    }
    status
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckBody {
    from: Option<String>,
}

/// `POST /updates/check`: checks the platform, or another repository once, and waits for the result.
async fn check(
    State(served): State<UpdatesHttpState>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, &served.context).await?;
    let updates = served.configured()?.clone();
    let from = source(&body.bytes)?;
    tracing::info!(%principal, from = from.as_ref().map(ToString::to_string), "a check for updates was requested");
    let checking = updates.clone();
    let checked = served.context.run_to_completion(async move { checking.check(from).await }).await?;
    if matches!(checked, Err(PollerCommandError::Unlisted { .. })) {
        let (destination, purpose) = (UNLISTED_DESTINATION.to_owned(), EgressPurpose::Updates.name().into());
        served.context.audit().record(&principal, AuditEvent::ConnectionRefused { destination, purpose });
    }
    checked?;
    Ok(report(&updates))
}

/// `POST /updates/trust/reset`: drops the trusted metadata of the platform.
async fn reset_trust(
    State(served): State<UpdatesHttpState>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), served.context.limits()).await;
    let updates = served.configured()?.clone();
    let resetting = updates.clone();
    served.context.run_to_completion(async move { resetting.reset_trust(principal).await }).await?.map_err(
        |refused| match refused {
            // This box failed, not the platform.
            PollerCommandError::Failed(reason) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, reason),
            other => other.into(),
        },
    )?;
    Ok(report(&updates))
}

/// `POST /updates/{kind}/{name}/{order}`.
async fn order(
    State(served): State<UpdatesHttpState>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
    Path((kind, name, order)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), served.context.limits()).await;
    let updates = served.configured()?.clone();
    let order = AdministratorCommand::named(&order).ok_or_else(|| {
        let known = AdministratorCommand::ALL.map(AdministratorCommand::name).join(", ");
        ApiError::new(StatusCode::NOT_FOUND, format!("unknown order {order:?}: expected one of {known}"))
    })?;
    let subject: Artifact = format!("{kind}/{name}")
        .parse()
        .map_err(|error| ApiError::new(StatusCode::NOT_FOUND, format!("no such subject of updates: {error}")))?;
    let ordered = updates.clone();
    served.context.run_to_completion(async move { ordered.order(&subject, order, principal).await }).await??;
    Ok(json(&UpdatesReport::from(&visible(updates.status(), &access))))
}

fn report(updates: &Updates) -> Response {
    json(&UpdatesReport::from(&updates.status()))
}

/// The repository in the body of a check.
fn source(body: &[u8]) -> Result<Option<RepositoryAddress>, ApiError> {
    if body.is_empty() {
        return Ok(None);
    }
    let wrong = |reason: String| ApiError::new(StatusCode::BAD_REQUEST, reason);
    let CheckBody { from } = serde_json::from_slice(body).map_err(|error| {
        wrong(format!("the body is not {{\"from\": \"file:///FOLDER\"}}: {}", in_json(&error.to_string())))
    })?;
    let Some(from) = from else { return Ok(None) };
    let address: RepositoryAddress = from.parse().map_err(|error| wrong(format!("from: {error}")))?;
    if address.is_exposed() {
        let reason = "from: is not encrypted: anybody on the network can see what this box runs; use https://";
        return Err(wrong(reason.to_owned()));
    }
    Ok(Some(address))
}

impl From<PollerCommandError> for ApiError {
    fn from(refused: PollerCommandError) -> Self {
        let status = match refused {
            PollerCommandError::Busy => StatusCode::TOO_MANY_REQUESTS,
            PollerCommandError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
            PollerCommandError::Unlisted { .. } => StatusCode::FORBIDDEN,
            PollerCommandError::Failed(_) => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, refused.to_string())
    }
}

impl From<AdministratorCommandError> for ApiError {
    fn from(error: AdministratorCommandError) -> Self {
        let status = match error {
            AdministratorCommandError::Unknown { .. } => StatusCode::NOT_FOUND,
            AdministratorCommandError::NoTrial { .. } | AdministratorCommandError::NothingToRollBack { .. } => {
                StatusCode::CONFLICT
            }
            AdministratorCommandError::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            AdministratorCommandError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_takes_a_repository_unless_it_is_unencrypted() {
        assert_eq!(source(b"").unwrap(), None);
        assert_eq!(source(b"{}").unwrap(), None);
        let usb = source(br#"{"from": "file:///media/usb"}"#).unwrap().unwrap();
        assert_eq!(usb.to_string(), "file:///media/usb");
        for bad in [&b"{"[..], b"[]", br#"{"form": "x"}"#, br#"{"from": "usb"}"#, br#"{"from": "http://far.example/"}"#]
        {
            assert!(source(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
