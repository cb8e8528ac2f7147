//! What handlers share.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use ledge_base::memory_budget::MemoryBudget;
use ledge_service::audit_event::AuditSink;
use ledge_service::shutdown::Shutdown;

use crate::failure::Failure;

/// What every handler may use. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Web {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limits: BodyLimits,
    memory: MemoryBudget,
    audit: AuditSink,
    shutdown: Shutdown,
}

/// The limits of one body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// `http.max_body_bytes`: of the bytes on the wire, and of the unpacked ones.
    pub max_bytes: usize,
    /// `http.body_timeout_ms`.
    pub timeout: Duration,
}

impl Web {
    /// `memory` is for the bodies of all requests and answers together.
    pub fn new(limits: BodyLimits, memory: MemoryBudget, audit: AuditSink, shutdown: Shutdown) -> Self {
        Self { inner: Arc::new(Inner { limits, memory, audit, shutdown }) }
    }

    pub fn limits(&self) -> &BodyLimits {
        &self.inner.limits
    }

    pub fn memory(&self) -> &MemoryBudget {
        &self.inner.memory
    }

    pub fn audit(&self) -> &AuditSink {
        &self.inner.audit
    }

    /// Runs `work` to its end even when the caller hangs up meanwhile: a load that is cut off half-way would leave its
    /// state behind.
    pub async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.inner.shutdown.spawn(async move {
            let _ = sender.send(work.await);
        });
        receiver.await.map_err(|_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the work ended without a result"))
    }
}
