//! The findings about this box that `ledge doctor` and the daemon share.
//!
//! Files of `findings/`:
//! * `machine.rs` - the CPU, the limits on this process, memory and disk
//! * `access.rs` - a way in for at least one caller, and the store of API keys
//! * `retention.rs` - data that `[retention]` should have removed
//! * `cameras.rs` - the states of cameras, and the models that they need
//!
//! The findings of a part are in its own crate.

mod access;
mod cameras;
mod machine;
mod retention;

use std::path::Path;

use ledge_base::clock;
use ledge_listener::doctor;
use ledge_part::check::Finding;
use ledge_part::section::DoctorContext;
use serde_json::Value;

use crate::config::Config;

pub use machine::FULL_DISK_BYTES;

/// The process that looks for findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingsRunner {
    /// A command, next to the daemon or without one.
    Command,
    /// The daemon itself. It opens no connections for findings: a caller who only reads must not make a box send, and
    /// the daemon's own connections report their errors.
    Daemon,
}

/// The findings about the machine, access and every section. `ask_daemon` returns the answer of the daemon to a GET of
/// a path.
pub fn findings(config: &Config, seeker: FindingsRunner, ask_daemon: &dyn Fn(&str) -> Option<Value>) -> Vec<Finding> {
    let site = DoctorContext {
        state: &config.state.path,
        device: &config.device,
        encryption: &config.encryption,
        egress: &config.egress,
        may_connect: seeker == FindingsRunner::Command,
        ask_daemon,
    };
    let mut checks = machine::checks(config, Path::new("/"));
    checks.push(access::check(config));
    if seeker == FindingsRunner::Command {
        // It lists the folders of inboxes, which may be on a share that hangs: not from within the daemon.
        checks.extend(retention::check(config, clock::unix_millis()));
    }
    checks.extend(config.sections().iter().flat_map(|(_, section)| section.doctor(&site)));
    if !config.http.serves_tls() {
        checks.extend(doctor::tls("grpc tls", &config.tls_source()));
    }
    checks.extend(cameras::checks(config, ask_daemon));
    if seeker == FindingsRunner::Command {
        // The daemon adds the states of its cameras itself.
        cameras::add_states(&mut checks, ask_daemon);
    }
    checks
}
