//! Signed updates as a thing to look after: how they do, a look at the platform now, orders of the administrator.

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use ledge_base::principal::Principal;
use ledge_base::serde_messages::in_json;
use ledge_egress::{Purpose, UNLISTED_DESTINATION};
use ledge_identity::access::Access;
use ledge_part::body;
use ledge_part::failure::Failure;
use ledge_part::reply::json;
use ledge_part::route::needs::{ADMINISTER, OPERATE, VIEW};
use ledge_part::route::{Route, Scope};
use ledge_part::web::Web;
use ledge_service::audit_event::AuditEvent;
use serde::Deserialize;

use crate::Updates;
use crate::config::RepositoryAddress;
use crate::handle::{CheckRefused, OrderError, UpdateOrder};
use crate::status::UpdatesStatus;
use crate::status_report::UpdatesReport;
use crate::subject::{Kind, Subject};

/// The routes of updates.
pub const ROUTES: &[Route<ServedUpdates>] = &[
    Route::get("/updates", VIEW, || get(status)).about(Scope::Listed),
    Route::post("/updates/check", OPERATE, || post(check)).about(Scope::Box).recorded_as("update_check"),
    Route::post("/updates/trust/reset", ADMINISTER, || post(reset_trust)).about(Scope::Box).audited(),
    Route::post("/updates/{kind}/{name}/{order}", OPERATE, || post(order)).about(Scope::Subject).audited(),
];

/// Updates as their routes see them.
#[derive(Debug, Clone)]
pub struct ServedUpdates {
    /// `None` where no platform looks after this box.
    pub updates: Option<Updates>,
    pub web: Web,
}

impl ServedUpdates {
    fn configured(&self) -> Result<&Updates, Failure> {
        self.updates.as_ref().ok_or_else(|| {
            let message =
                "no platform looks after this box: signed updates begin with updates.repository in the configuration";
            Failure::new(StatusCode::CONFLICT, message)
        })
    }
}

/// `GET /updates`.
async fn status(
    State(served): State<ServedUpdates>,
    Extension(access): Extension<Access>,
) -> Result<Response, Failure> {
    Ok(json(&UpdatesReport::from(&visible(served.configured()?.status(), &access))))
}

/// What somebody may see of the updates: what is for the models that it is for.
pub fn visible(mut status: UpdatesStatus, access: &Access) -> UpdatesStatus {
    if access.models().is_some() {
        let is_seen = |subject: &Subject| subject.kind == Kind::Model && access.has_model(&subject.name);
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

/// `POST /updates/check`: asks the platform, or another repository once, and waits for what comes of it.
async fn check(
    State(served): State<ServedUpdates>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, &served.web).await?;
    let updates = served.configured()?.clone();
    let from = source(&body.bytes)?;
    tracing::info!(%principal, from = from.as_ref().map(ToString::to_string), "asked to look for updates");
    let checking = updates.clone();
    let checked = served.web.to_the_end(async move { checking.check(from).await }).await?;
    if matches!(checked, Err(CheckRefused::Unlisted { .. })) {
        let (destination, purpose) = (UNLISTED_DESTINATION.to_owned(), Purpose::Updates.name().into());
        served.web.audit().record(&principal, AuditEvent::ConnectionRefused { destination, purpose });
    }
    checked?;
    Ok(report(&updates))
}

/// `POST /updates/trust/reset`: forgets what is trusted of the platform.
async fn reset_trust(
    State(served): State<ServedUpdates>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, Failure> {
    body::discard(request.into_body(), served.web.limits()).await;
    let updates = served.configured()?.clone();
    let resetting = updates.clone();
    served.web.to_the_end(async move { resetting.reset_trust(principal).await }).await?.map_err(
        |refused| match refused {
            // It is this box that failed, and not the platform.
            CheckRefused::Failed(reason) => Failure::new(StatusCode::INTERNAL_SERVER_ERROR, reason),
            other => other.into(),
        },
    )?;
    Ok(report(&updates))
}

/// `POST /updates/{kind}/{name}/{order}`.
async fn order(
    State(served): State<ServedUpdates>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<Access>,
    Path((kind, name, order)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    body::discard(request.into_body(), served.web.limits()).await;
    let updates = served.configured()?.clone();
    let order = UpdateOrder::named(&order).ok_or_else(|| {
        let known = UpdateOrder::ALL.map(UpdateOrder::name).join(", ");
        Failure::new(StatusCode::NOT_FOUND, format!("no order {order:?}: there are {known}"))
    })?;
    let subject: Subject = format!("{kind}/{name}")
        .parse()
        .map_err(|error| Failure::new(StatusCode::NOT_FOUND, format!("nothing is updated by that name: {error}")))?;
    let ordered = updates.clone();
    served.web.to_the_end(async move { ordered.order(&subject, order, principal).await }).await??;
    Ok(json(&UpdatesReport::from(&visible(updates.status(), &access))))
}

fn report(updates: &Updates) -> Response {
    json(&UpdatesReport::from(&updates.status()))
}

/// Where to look, by the body of a check.
fn source(body: &[u8]) -> Result<Option<RepositoryAddress>, Failure> {
    if body.is_empty() {
        return Ok(None);
    }
    let wrong = |reason: String| Failure::new(StatusCode::BAD_REQUEST, reason);
    let CheckBody { from } = serde_json::from_slice(body).map_err(|error| {
        wrong(format!("the body is not of the form {{\"from\": \"file:///FOLDER\"}}: {}", in_json(&error.to_string())))
    })?;
    let Some(from) = from else { return Ok(None) };
    let address: RepositoryAddress = from.parse().map_err(|error| wrong(format!("from: {error}")))?;
    if address.is_exposed() {
        let reason = "from: is not encrypted, and so tells everybody on the way what this box runs: use https://";
        return Err(wrong(reason.to_owned()));
    }
    Ok(Some(address))
}

impl From<CheckRefused> for Failure {
    fn from(refused: CheckRefused) -> Self {
        let status = match refused {
            CheckRefused::Busy => StatusCode::TOO_MANY_REQUESTS,
            CheckRefused::Stopped => StatusCode::SERVICE_UNAVAILABLE,
            CheckRefused::Unlisted { .. } => StatusCode::FORBIDDEN,
            CheckRefused::Failed(_) => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, refused.to_string())
    }
}

impl From<OrderError> for Failure {
    fn from(error: OrderError) -> Self {
        let status = match error {
            OrderError::Unknown { .. } => StatusCode::NOT_FOUND,
            OrderError::NoTrial { .. } | OrderError::NothingToRollBack { .. } => StatusCode::CONFLICT,
            OrderError::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            OrderError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_looks_where_it_is_told_and_nowhere_unsafe() {
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
