//! Models in this process, for tests on emulated CPUs, where nothing can be sealed. Only in builds with the feature
//! `in-process`, and only where the environment asks for it.

use std::sync::LazyLock;

use ledge_base::telemetry::process;
use ledge_engine::backend::{Backend, LoadError, ModelFiles};

use super::instance::InstanceSpec;

/// The variable of the environment that asks for it.
pub const VARIABLE: &str = "LEDGE_TEST_IN_PROCESS";

/// True where the environment asks for models in this process.
pub fn is_asked_for() -> bool {
    static IS_ASKED_FOR: LazyLock<bool> = LazyLock::new(|| std::env::var_os(VARIABLE).is_some());
    *IS_ASKED_FOR
}

/// Loads an instance into this process, and runs its warm-up. Also returns its memory in bytes.
pub(super) fn load(spec: &InstanceSpec, files: &ModelFiles) -> Result<(Box<dyn Backend>, u64), LoadError> {
    let before = process::resident_bytes();
    let mut backend = spec.runtimes.load(spec.runtime, files, &spec.options)?;
    if let Some(warm_up) = spec.warm_up.get() {
        warm_up.run(&mut *backend);
    }
    let grown = process::resident_bytes().saturating_sub(before);
    Ok((backend, grown.max(files.bytes())))
}
