//! The interface between the daemon and its parts, and the tools that parts answer HTTP requests with.
//!
//! A part is a subsystem of the daemon: the audit log, updates, MQTT. It brings everything that the daemon has to know
//! of it, so that a new one is a crate of its own and one line in `src/config.rs`:
//! * its section of the configuration is a [`Section`], which knows its mistakes, its findings for `ledge doctor`, and
//!   how to open the part;
//! * what [`Section::open`] returns is a [`Part`]: routes, metrics, tasks, a sign of life for the watchdog, a line for
//!   `systemctl status`, and the files that it encrypts.
//!
//! Files, in reading order:
//! * `section.rs` - `Section`, a section of the configuration, and `Site`, what `ledge doctor` knows of this box
//! * `check.rs` - a finding of `ledge doctor`
//! * `route.rs` - a route: permission, scope, audit, handler
//! * `web.rs` - what handlers share: limits and memory of bodies, the audit sink, work that outlives its caller
//! * `failure.rs` - the error answer of every handler
//! * `reply.rs` - answers in JSON
//! * `body.rs`, `held.rs` - bodies under their limits, and answers counted until the caller has read them
//! * `metrics.rs` - samples and families of metrics
//! * `access.rs`, `egress.rs`, `egress/` - the access of callers and the connections that this box opens, as parts: their
//!   own crates are below this one
//!
//! Invariants:
//! * The crate knows no part.
//! * Figures are read from their owners at each scrape. Nothing is counted twice.
#![forbid(unsafe_code)]

mod access;
pub mod body;
pub mod check;
mod egress;
pub mod failure;
pub mod held;
pub mod metrics;
pub mod reply;
pub mod route;
pub mod section;
pub mod web;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use ledge_egress::Egress;
use ledge_identity::access::Access;
use ledge_identity::device::DeviceIdentity;
use ledge_identity::sealing::{Rekey, Sealer};
use ledge_service::audit_event::AuditSink;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use prometheus_client::encoding::DescriptorEncoder;

use route::BoundRoute;
use web::Web;

/// A subsystem of the daemon. Every method but the name has a default: a part brings only what it has.
pub trait Part: fmt::Debug + Send + Sync {
    /// Its name in logs and for people, such as "audit log".
    fn name(&self) -> &'static str;

    /// Its routes. The HTTP server guards each of them as its table says.
    fn routes(&self, _web: &Web) -> Vec<BoundRoute> {
        Vec::new()
    }

    /// Writes its metrics, as far as a caller with `access` may see them. It may block for some milliseconds.
    fn metrics(&self, _encoder: &mut DescriptorEncoder<'_>, _access: &Access) -> fmt::Result {
        Ok(())
    }

    /// Waits until the part has shown that it still works. Systemd's watchdog hears nothing while one of the parts
    /// does not, so a part that waits for others longer than `WatchdogSec` has no sign of its own.
    fn sign_of_life(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Why the part does not do its work at present, for `systemctl status`; `None` while it does. During the start of the
    /// daemon a part that is only not ready yet has no trouble.
    fn trouble(&self, _is_starting: bool) -> Option<String> {
        None
    }

    /// The store whose files the part encrypts, if it has one.
    fn sealed_store(&self) -> Option<Arc<dyn Rekey>> {
        None
    }

    /// Starts its tasks, which end with `environment.shutdown`.
    fn spawn(&self, _environment: &Environment) -> Result<(), String> {
        Ok(())
    }
}

/// What the daemon gives to each part.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The folder for what this box must remember.
    pub state: PathBuf,
    pub device: DeviceIdentity,
    pub sealer: Sealer,
    pub egress: Egress,
    pub audit: AuditSink,
    /// A part that the daemon must wait for at its start takes a latch of it.
    pub readiness: Arc<Readiness>,
    pub shutdown: Shutdown,
}
