//! Requests that change this box, or take data out of it: they are answered after their durable audit record.
//!
//! Inference, pushes of features and requests that only read are not among them: they continue when the audit log
//! fails.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ledge_audit::status::AuditState;
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_service::audit_event::sink::AuditMark;
use ledge_service::audit_event::{AuditEvent, AuditSink};

use super::App;

/// The time that an answer waits for its audit records. A disk that takes longer counts as failed.
const DURABLE_RECORD_TIMEOUT: Duration = Duration::from_secs(30);

/// The state of the middleware for one audited route.
#[derive(Debug, Clone)]
pub struct AuditedRoute {
    pub app: App,
    /// The name in the audit record of the request itself, for routes that do not record their effects.
    pub recorded_as: Option<&'static str>,
}

/// Refuses a request that the audit log cannot record, and delays the answer to others until their records are durable.
///
/// An unload or a rollback is refused as well: if operations were possible without a record, an attacker would have a
/// reason to break the log. An administrator who must act at once stops the service.
pub async fn audited(
    State(AuditedRoute { app, recorded_as }): State<AuditedRoute>,
    request: Request,
    next: Next,
) -> Response {
    if let Some(refusal) = audit_log_error(app.audit()) {
        let (parts, body) = request.into_parts();
        body::discard_unless_expected(&parts.headers, body, app.context().limits()).await;
        return refusal.into_response();
    }
    let mark = app.serving().audit().mark();
    if let (Some(what), Some(principal)) = (recorded_as, request.extensions().get()) {
        app.serving().audit().record(principal, AuditEvent::MaintenanceRequested { what: what.into() });
    }
    let response = next.run(request).await;
    match wait_until_durable(app.serving().audit(), mark, DURABLE_RECORD_TIMEOUT).await {
        // The reason why it was not done is the more useful answer.
        Err(failure) if response.status().is_success() => failure.into_response(),
        _ => response,
    }
}

/// The error while the audit log cannot be written.
fn audit_log_error(audit: &AuditState) -> Option<ApiError> {
    let reason = audit.status().error?;
    let message = format!(
        "refused, because the audit log cannot be written: {reason}. Correct this (see `ledge doctor`) and try again; \
         inference continues"
    );
    Some(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
}

/// Waits until all that was recorded since `mark` is on the disk.
async fn wait_until_durable(audit: &AuditSink, mark: AuditMark, limit: Duration) -> Result<(), ApiError> {
    let why = match tokio::time::timeout(limit, audit.durable_since(mark)).await {
        Ok(true) => return Ok(()),
        Ok(false) => "the audit log cannot be written".to_owned(),
        Err(_) => format!("the audit log did not write it to the disk within {} s", limit.as_secs()),
    };
    let message = format!("done, but not recorded, because {why}: see GET /audit/status");
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_cannot_be_written_refuses_and_one_with_an_alarm_does_not() {
        let audit = AuditState::default();
        assert!(audit_log_error(&audit).is_none());
        audit.update(|status| status.alarm = Some("the log before was cut".into()));
        assert!(audit_log_error(&audit).is_none(), "that log is closed, and this one is good");
        audit.update(|status| status.error = Some("no room in /audit".into()));
        let told = format!("{:?}", audit_log_error(&audit).unwrap());
        assert!(told.contains("/audit") && told.contains("503"), "{told}");
    }

    #[tokio::test]
    async fn an_answer_waits_for_its_record_and_says_when_there_is_none() {
        let (sink, mut queue) = AuditSink::channel();
        let waiting = wait_until_durable(&sink, sink.mark(), DURABLE_RECORD_TIMEOUT);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        for told in queue.take().flushes {
            told.send(()).unwrap();
        }
        assert!(waiting.await.is_ok());

        let (waited, ()) = tokio::join!(wait_until_durable(&sink, sink.mark(), DURABLE_RECORD_TIMEOUT), async {
            drop(queue.take().flushes);
        });
        assert!(
            format!("{:?}", waited.unwrap_err())
                .contains("done, but not recorded, because the audit log cannot be written")
        );
        let late = wait_until_durable(&sink, sink.mark(), Duration::ZERO).await.unwrap_err();
        assert!(format!("{late:?}").contains("within 0 s"));
    }
}
