//! `GET /findings`: the findings about this box, each with its remedy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use ledge_base::clock;
use ledge_part::api_error::ApiError;
use ledge_part::check::FindingStatus;
use ledge_part::findings::FindingsSource;
use ledge_part::reply::json_bytes;
use ledge_service::off_thread::blocking;
use ledge_service::shutdown::Shutdown;
use serde_json::json;
use tokio::sync::Mutex;

/// The time for which findings are kept: looking for them takes milliseconds of a core.
const KEPT_FOR: Duration = Duration::from_mins(1);

/// The time after which a caller that came during the shutdown may try again.
const SHUTDOWN_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The findings of the last minute. Clones share them.
#[derive(Debug, Clone)]
pub struct ConsoleFindings {
    source: FindingsSource,
    kept: Arc<Mutex<Option<CachedFindings>>>,
}

#[derive(Debug)]
struct CachedFindings {
    at: Instant,
    document: Bytes,
}

impl ConsoleFindings {
    pub fn new(source: FindingsSource) -> Self {
        Self { source, kept: Arc::default() }
    }

    /// The document of findings that are not older than [`KEPT_FOR`] at `now`. One search serves all that wait for it.
    async fn document(&self, now: Instant) -> Bytes {
        let mut kept = self.kept.lock().await;
        if let Some(CachedFindings { at, document }) = &*kept
            && now.saturating_duration_since(*at) < KEPT_FOR
        {
            return document.clone();
        }
        let source = self.source.clone();
        let checks = blocking(move || source.search()).await;
        let worst = checks.iter().map(|check| check.status).max().unwrap_or(FindingStatus::Ok);
        let document = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "at": clock::rfc3339(clock::unix_millis()),
            "status": worst,
            "checks": checks,
        });
        let document = Bytes::from(document.to_string());
        *kept = Some(CachedFindings { at: Instant::now(), document: document.clone() });
        document
    }
}

/// The answer to `GET /findings`.
pub async fn answer(findings: &ConsoleFindings, shutdown: &Shutdown) -> Result<Response, ApiError> {
    tokio::select! {
        document = findings.document(Instant::now()) => Ok(json_bytes(document)),
        () = shutdown.requested() => {
            let message = "the service is stopping";
            Err(ApiError::later(StatusCode::SERVICE_UNAVAILABLE, message, SHUTDOWN_RETRY_AFTER))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ledge_part::check::Finding;

    use super::*;

    #[tokio::test]
    async fn one_search_serves_everybody_for_a_minute() {
        let searches = Arc::new(AtomicUsize::new(0));
        let counted = searches.clone();
        let findings = ConsoleFindings::new(FindingsSource::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            vec![Finding::ok("cpu", "x"), Finding::warn("disk", "full", "free some")]
        }));
        let now = Instant::now();
        let (one, other) = tokio::join!(findings.document(now), findings.document(now));
        assert_eq!((one.clone(), searches.load(Ordering::Relaxed)), (other, 1));
        let document: serde_json::Value = serde_json::from_slice(&one).unwrap();
        assert_eq!(
            (document["status"].as_str(), document["checks"][1]["advice"].as_str()),
            (Some("warn"), Some("free some"))
        );
        findings.document(Instant::now() + KEPT_FOR).await;
        assert_eq!(searches.load(Ordering::Relaxed), 2);
    }
}
