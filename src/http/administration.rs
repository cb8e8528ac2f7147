//! Requests that change this box, or take data out of it: they are answered once the audit log has them for good.
//!
//! Inference, pushes of features and whatever only looks are not among them: those go on whatever the audit log does.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ledge_audit::status::AuditState;
use ledge_part::body;
use ledge_part::failure::Failure;
use ledge_service::audit_event::sink::Mark;
use ledge_service::audit_event::{AuditEvent, AuditSink};

use super::App;

/// How long an answer waits for its audit records. A disk that takes longer is as good as none.
const LIMIT: Duration = Duration::from_secs(30);

/// What stands before such a route.
#[derive(Debug, Clone)]
pub struct Audited {
    pub app: App,
    /// As what the request itself is recorded, where what it leads to is not.
    pub recorded_as: Option<&'static str>,
}

/// Refuses a request that the audit log could not tell of, and holds back the answer to another until it is told of.
///
/// An unload or a rollback is refused as well: what could be done unseen while the log is broken would be worth breaking
/// the log for. Whoever has to act at once stops the service.
pub async fn audited(State(Audited { app, recorded_as }): State<Audited>, request: Request, next: Next) -> Response {
    if let Some(refusal) = refusal(app.audit()) {
        let (parts, body) = request.into_parts();
        body::turn_down(&parts.headers, body, app.web().limits()).await;
        return refusal.into_response();
    }
    let mark = app.serving().audit().mark();
    if let (Some(what), Some(principal)) = (recorded_as, request.extensions().get()) {
        app.serving().audit().record(principal, AuditEvent::MaintenanceRequested { what: what.into() });
    }
    let response = next.run(request).await;
    match recorded(app.serving().audit(), mark, LIMIT).await {
        // Why it was not done is the more useful answer.
        Err(failure) if response.status().is_success() => failure.into_response(),
        _ => response,
    }
}

/// Why nothing is administered now, if so.
fn refusal(audit: &AuditState) -> Option<Failure> {
    let reason = audit.status().error?;
    let message = format!(
        "not done, because the audit log could not tell of it: {reason}. Put that right (`ledge doctor` says how it \
         stands) and ask again; inference goes on"
    );
    Some(Failure::new(StatusCode::SERVICE_UNAVAILABLE, message))
}

/// Waits until all that was recorded since `mark` is on the disk.
async fn recorded(audit: &AuditSink, mark: Mark, limit: Duration) -> Result<(), Failure> {
    let why = match tokio::time::timeout(limit, audit.durable_since(mark)).await {
        Ok(true) => return Ok(()),
        Ok(false) => "the audit log cannot be written".to_owned(),
        Err(_) => format!("the disk of the audit log has not taken it within {} s", limit.as_secs()),
    };
    let message = format!("it was done, but {why}: GET /audit/status says how the log does");
    Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_cannot_be_written_refuses_and_one_with_a_past_does_not() {
        let audit = AuditState::default();
        assert!(refusal(&audit).is_none());
        audit.update(|status| status.alarm = Some("the log before was cut".into()));
        assert!(refusal(&audit).is_none(), "that log is closed, and this one is good");
        audit.update(|status| status.error = Some("no room in /audit".into()));
        let told = format!("{:?}", refusal(&audit).unwrap());
        assert!(told.contains("no room in /audit") && told.contains("inference goes on"), "{told}");
    }

    #[tokio::test]
    async fn an_answer_waits_for_its_record_and_says_when_there_is_none() {
        let (sink, mut queue) = AuditSink::channel();
        let waiting = recorded(&sink, sink.mark(), LIMIT);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        for told in queue.take().flushes {
            told.send(()).unwrap();
        }
        assert!(waiting.await.is_ok());

        let (waited, ()) = tokio::join!(recorded(&sink, sink.mark(), LIMIT), async { drop(queue.take().flushes) });
        assert!(format!("{:?}", waited.unwrap_err()).contains("it was done, but the audit log cannot be written"));
        let late = recorded(&sink, sink.mark(), Duration::ZERO).await.unwrap_err();
        assert!(format!("{late:?}").contains("within 0 s"));
    }
}
