//! The audit log as a thing to look at: how it does, and its files, as C2SP tlog-tiles has them.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::App;
use super::reply::json;
use crate::audit::status::{AuditStatus, CopyStatus, SyncStatus};
use crate::clock;

/// `GET /audit/status`.
pub async fn status(State(app): State<App>) -> Response {
    let status = app.audit().status();
    let head = app.audit().heads().borrow().as_ref().map(|head| head.checkpoint.note.clone());
    json(&StatusDocument::new(&status, head.as_deref()))
}

#[derive(Serialize)]
struct StatusDocument<'a> {
    origin: &'a str,
    verifier_key: &'a str,
    size: u64,
    first: u64,
    bytes: u64,
    quota: u64,
    error: Option<&'a str>,
    alarm: Option<&'a str>,
    lost: Lost,
    checkpoint: Option<String>,
    sync: Option<SyncDocument<'a>>,
    copies: Vec<CopyDocument<'a>>,
}

#[derive(Serialize)]
struct Lost {
    calls: u64,
    events: u64,
}

#[derive(Serialize)]
struct SyncDocument<'a> {
    url: &'a str,
    size: u64,
    /// In RFC 3339, as all moments here.
    at: Option<String>,
    waiting_since: Option<String>,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct CopyDocument<'a> {
    name: &'static str,
    to: &'a str,
    sent: u64,
    lost: u64,
    error: Option<&'a str>,
}

impl<'a> StatusDocument<'a> {
    fn new(status: &'a AuditStatus, checkpoint: Option<&[u8]>) -> Self {
        let AuditStatus { origin, verifier_key, size, first, bytes, quota, error, alarm, lost, sync, copies } = status;
        Self {
            origin,
            verifier_key,
            size: *size,
            first: *first,
            bytes: *bytes,
            quota: *quota,
            error: error.as_deref(),
            alarm: alarm.as_deref(),
            lost: Lost { calls: lost.0, events: lost.1 },
            checkpoint: checkpoint.map(|note| String::from_utf8_lossy(note).into_owned()),
            sync: sync.as_ref().map(Into::into),
            copies: copies.iter().map(Into::into).collect(),
        }
    }
}

impl<'a> From<&'a SyncStatus> for SyncDocument<'a> {
    fn from(SyncStatus { url, size, at_ms, waiting_since_ms, error }: &'a SyncStatus) -> Self {
        let (at, waiting_since) = (at_ms.map(clock::rfc3339), waiting_since_ms.map(clock::rfc3339));
        Self { url, size: *size, at, waiting_since, error: error.as_deref() }
    }
}

impl<'a> From<&'a CopyStatus> for CopyDocument<'a> {
    fn from(CopyStatus { name, to, sent, lost, error }: &'a CopyStatus) -> Self {
        Self { name, to, sent: *sent, lost: *lost, error: error.as_deref() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_has_everything_that_is_known() {
        let status = AuditStatus {
            origin: "ledge.audit/box-1/2".into(),
            verifier_key: "ledge.audit/box-1+00+AA".into(),
            size: 10,
            first: 3,
            bytes: 4000,
            quota: 9000,
            error: Some("no room".into()),
            alarm: Some("cut".into()),
            lost: (5, 1),
            sync: Some(SyncStatus {
                url: "https://a/".into(),
                size: 7,
                at_ms: Some(1_767_225_600_000),
                waiting_since_ms: None,
                error: Some("away".into()),
            }),
            copies: vec![CopyStatus { name: "syslog", to: "s:6514".into(), sent: 9, lost: 2, error: None }],
        };
        let document = serde_json::to_value(StatusDocument::new(&status, Some(b"note\n"))).unwrap();
        let expected = json!({
            "origin": "ledge.audit/box-1/2", "verifier_key": "ledge.audit/box-1+00+AA", "size": 10, "first": 3,
            "bytes": 4000, "quota": 9000, "error": "no room", "alarm": "cut", "lost": {"calls": 5, "events": 1},
            "checkpoint": "note\n",
            "sync": {
                "url": "https://a/", "size": 7, "at": "2026-01-01T00:00:00Z", "waiting_since": null, "error": "away",
            },
            "copies": [{"name": "syslog", "to": "s:6514", "sent": 9, "lost": 2, "error": null}],
        });
        assert_eq!(document, expected);
    }
}
