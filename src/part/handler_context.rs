//! The shared state of handlers.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use ledge_base::memory_budget::MemoryBudget;
use ledge_service::audit_event::AuditSink;
use ledge_service::shutdown::Shutdown;

use crate::api_error::ApiError;

/// The state that every handler may use. Clones share it.
#[derive(Debug, Clone)]
pub struct HandlerContext {
    inner: Arc<HandlerContextInner>,
}

#[derive(Debug)]
struct HandlerContextInner {
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

impl HandlerContext {
    /// Creates the context. `memory` is for the bodies of all requests and answers together.
    pub fn new(limits: BodyLimits, memory: MemoryBudget, audit: AuditSink, shutdown: Shutdown) -> Self {
        Self { inner: Arc::new(HandlerContextInner { limits, memory, audit, shutdown }) }
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

    pub fn shutdown(&self) -> &Shutdown {
        &self.inner.shutdown
    }

    /// Runs `work` to its end even when the caller hangs up meanwhile: a load that is interrupted half-way would leave
    /// its state behind.
    pub async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.inner.shutdown.spawn(async move {
            let _ = sender.send(work.await);
        });
        receiver.await.map_err(|_| {
            ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal error: the operation ended without a result; see the log of the box",
            )
        })
    }
}
