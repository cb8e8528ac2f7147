//! The interface between the daemon and its parts, and the tools that parts answer HTTP requests with.
//!
//! A part is a subsystem of the daemon: the audit log, updates, MQTT. It contains everything that the daemon has to
//! know about it, so a new part is a crate of its own and one line in `src/config.rs`:
//! * its section of the configuration is a [`ConfigSection`](section::ConfigSection): its mistakes, its findings for
//!   `ledge doctor`, and how to open the part;
//! * [`ConfigSection::open`](section::ConfigSection::open) returns a [`Subsystem`]: routes, metrics, tasks, a heartbeat
//!   for the watchdog, a line for `systemctl status`, and the files that it encrypts.
//!
//! Files, in reading order:
//! * `section.rs` - `ConfigSection`, a section of the configuration, and `DoctorContext`, the input of `ledge doctor`
//! * `check.rs` - a finding of `ledge doctor`
//! * `findings.rs` - a search for findings, for the parts that tell people
//! * `finding_log.rs` - findings of a part that are recorded in the audit log
//! * `route.rs` - a route: permission, scope, audit, handler
//! * `handler_context.rs` - shared state of handlers: limits and memory of bodies, the audit sink, work that outlives
//!   its caller
//! * `api_error.rs` - the error answer of every handler
//! * `grpc.rs` - errors as a status of gRPC
//! * `reply.rs` - answers in JSON
//! * `body.rs` - request bodies under their limits, and compression
//! * `counted_body.rs` - bodies of answers, counted as memory until the caller has read them
//! * `metrics.rs` - samples and families of metrics
//! * `access.rs`, `egress.rs`, `egress/` - the access of callers and the connections that this box opens, as parts:
//!   their own crates are below this one
//!
//! Invariants:
//! * The crate knows no part.
//! * Figures are read from their owners at each scrape. Nothing is counted twice.
//!
//! # Where it is decided
//!
//! * The answer that an error becomes: `api_error.rs`; its status in gRPC: `GrpcCode::of` in `grpc.rs`
#![forbid(unsafe_code)]

pub mod access;
pub mod api_error;
pub mod body;
pub mod check;
pub mod counted_body;
mod egress;
pub mod finding_log;
pub mod findings;
pub mod grpc;
pub mod handler_context;
pub mod metrics;
pub mod reply;
pub mod route;
pub mod section;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use ledge_egress::Egress;
use ledge_identity::access::CallerAccess;
use ledge_identity::device::DeviceIdentity;
use ledge_identity::sealing::{Rekey, Sealer};
use ledge_service::audit_event::AuditSink;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use prometheus_client::encoding::DescriptorEncoder;

use handler_context::HandlerContext;
use route::BoundRoute;

/// A subsystem of the daemon. Every method except `name` has a default.
pub trait Subsystem: fmt::Debug + Send + Sync {
    /// The name in logs and for people, such as "audit log".
    fn name(&self) -> &'static str;

    /// The routes of the part. The HTTP server checks the permission of each, as its [`route::RouteRule`] says.
    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        Vec::new()
    }

    /// Writes the metrics that a caller with `access` may see. It may block for some milliseconds.
    fn metrics(&self, _encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        Ok(())
    }

    /// Waits until the part has shown that it still works. Systemd's watchdog is notified only when every part has, so
    /// a part that may wait for others longer than `WatchdogSec` keeps the default.
    fn heartbeat(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The reason why the part does not do its work now, for `systemctl status`; `None` while it does. A part that is
    /// only not ready yet during the start of the daemon has no problem.
    fn problem(&self, _is_starting: bool) -> Option<String> {
        None
    }

    /// The store of the files that the part encrypts, if it has one.
    fn encrypted_store(&self) -> Option<Arc<dyn Rekey>> {
        None
    }

    /// Starts the tasks of the part, which end with `environment.shutdown`.
    fn spawn(&self, _environment: &PartEnvironment) -> Result<(), String> {
        Ok(())
    }
}

/// The services that the daemon gives to each part.
#[derive(Debug, Clone)]
pub struct PartEnvironment {
    /// The state folder of this box.
    pub state: PathBuf,
    pub device: DeviceIdentity,
    pub sealer: Sealer,
    pub egress: Egress,
    pub audit: AuditSink,
    /// A part that must be ready before the daemon is takes a latch of it.
    pub readiness: Arc<Readiness>,
    pub shutdown: Shutdown,
}
