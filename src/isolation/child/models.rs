//! The models of a child, each behind a lock of its own: the daemon runs an instance once at a time.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ledge_base::telemetry::process;
use ledge_engine::Runtimes;
use ledge_engine::backend::{Backend, LoadError, RunPlace};

use crate::wire::{LoadOrder, LoadedFacts, ModelId};

/// The models of this process.
pub struct Models {
    runtimes: Runtimes,
    loaded: Mutex<HashMap<ModelId, Model>>,
}

/// One model; clones share it.
pub type Model = Arc<Mutex<Box<dyn Backend>>>;

impl Models {
    pub fn new(runtimes: Runtimes) -> Self {
        Self { runtimes, loaded: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModelId, Model>> {
        // Nothing panics under this lock.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of this number.
    pub fn get(&self, model: ModelId) -> Option<Model> {
        self.lock().get(&model).cloned()
    }

    /// Removes a model; it is torn down when its run has ended.
    pub fn remove(&self, model: ModelId) {
        let removed = self.lock().remove(&model);
        drop(removed);
    }

    /// Loads a model, and runs its warm-up.
    pub fn load(&self, order: &LoadOrder) -> Result<LoadedFacts, LoadError> {
        let before = process::resident_bytes();
        let load = || self.runtimes.load(order.runtime, &order.files, &order.options);
        let mut backend = catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
            let reason = format!("panicked: {}", panic_message(&*panic));
            Err(LoadError::Refused { runtime: order.runtime, reason })
        })?;
        let outputs: Vec<usize> = (0..backend.signature().outputs.len()).collect();
        let place = RunPlace { core: 0, is_wide: true, deadline: Instant::now() };
        for (_, inputs) in order.warm_up.iter().flat_map(|warm_up| warm_up.runs()) {
            // Inputs that the first instance accepted are accepted by this one too.
            let _ = catch_unwind(AssertUnwindSafe(|| backend.run(&inputs, &outputs, place)));
        }
        repair(&mut *backend);
        let signature = backend.signature().clone();
        let bytes = process::resident_bytes().saturating_sub(before);
        self.lock().insert(order.model, Arc::new(Mutex::new(backend)));
        Ok(LoadedFacts { signature, bytes })
    }
}

/// Repairs `backend` after a failed run.
pub fn repair(backend: &mut dyn Backend) {
    if !backend.is_sound() {
        // A fault here occurs again in the next run, which reports it.
        let _ = catch_unwind(AssertUnwindSafe(|| backend.repair()));
    }
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
