//! A model tried: loaded as the daemon would load it, run on its golden inputs, and measured. In the trial's own process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::child::{ChildError, step};
use super::{Order, TrialReport};
use crate::audit_event::AuditSink;
use crate::inference::Runtimes;
use crate::inference::backend::Port;
use crate::inference::cores::Topology;
use crate::inference::engine::Engine;
use crate::names::ModelName;
use crate::principal::Principal;
use crate::repository::profile::Profiles;
use crate::repository::{LoadedModel, ModelDefaults, Repository, tuning};
use crate::updates::package::DeclaredPort;
use crate::updates::state::{Cause, Reason};

/// How long runs are measured.
const MEASURED: Duration = Duration::from_secs(1);

/// What tells a model how to be loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelTrial {
    /// The folder with the runtimes' shared libraries.
    pub runtimes: PathBuf,
    /// How many cores it may use.
    pub threads: usize,
    /// Whether it is tried in every runtime.
    pub measure: bool,
}

/// Tries the model of the order.
pub async fn run(order: &Order, how: ModelTrial) -> Result<Result<TrialReport, Reason>, ChildError> {
    step("it was loaded")?;
    let started = Instant::now();
    let scratch = tempfile_like(order)?;
    let repository = repository(scratch.clone(), how);
    let name: ModelName = "candidate".parse().map_err(|_| ChildError::Order("no name".into()))?;
    let loaded = repository.load(&name, &Principal::Local).await;
    let outcome = match loaded {
        Err(error) => Err(refusal(&error.to_string())),
        Ok(()) => {
            let load_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            let live = repository.live(&name).map_err(|error| ChildError::Order(error.to_string()))?;
            match live.first() {
                Some(model) => measure(model, load_ms).await,
                None => Err(Reason::new(Cause::Load, "no version was loaded")),
            }
        }
    };
    repository.unload_all(&Principal::Local).await;
    Ok(outcome)
}

fn refusal(text: &str) -> Reason {
    let cause = if text.contains("golden input") { Cause::Golden } else { Cause::Load };
    Reason::new(cause, text)
}

async fn measure(model: &Arc<LoadedModel>, load_ms: u64) -> Result<TrialReport, Reason> {
    let load = tuning::closed_loop(model, 1, MEASURED).await.unwrap_or_default();
    let us = |share| u64::try_from(load.percentile(share).as_micros()).unwrap_or(u64::MAX);
    let total = model.config.golden.len() as u64;
    Ok(TrialReport {
        runtime: model.runtime().to_string(),
        load_ms,
        golden_right: total,
        golden_total: total,
        golden_fault: None,
        runs: load.latencies.len() as u64,
        p50_us: us(0.5),
        p95_us: us(0.95),
        peak_bytes: 0,
        inputs: declared(&model.signature.inputs),
        outputs: declared(&model.signature.outputs),
    })
}

fn declared(ports: &[Port]) -> Vec<DeclaredPort> {
    let port = |port: &Port| DeclaredPort {
        name: port.name.clone(),
        datatype: port.datatype.to_string(),
        shape: port.shape.clone(),
    };
    ports.iter().map(port).collect()
}

fn tempfile_like(order: &Order) -> Result<PathBuf, ChildError> {
    let scratch = std::env::temp_dir().join(format!("ledge-trial-{}", std::process::id()));
    let model = scratch.join("candidate");
    std::fs::create_dir_all(&model)?;
    for entry in std::fs::read_dir(&order.release)? {
        let entry = entry?;
        std::os::unix::fs::symlink(entry.path(), model.join(entry.file_name()))?;
    }
    std::os::unix::fs::symlink(&order.release, model.join("1"))?;
    Ok(scratch)
}

/// A repository with the runtimes of this box and nothing that was measured on it.
fn repository(path: PathBuf, how: ModelTrial) -> Repository {
    let runtimes = Runtimes::new(how.runtimes);
    let defaults = ModelDefaults {
        max_queue_size: 16,
        timeout: Duration::from_secs(3600),
        keep_alive: None,
        cache_dir: None,
        profiles: Profiles::none(runtimes.clone()),
        measure: how.measure,
    };
    let engine = Engine::new(runtimes, Topology::read().budget(how.threads), None);
    // Nobody reads the events of a trial.
    let (audit, _) = AuditSink::channel();
    Repository::new(path, engine, defaults, 1, audit)
}

#[expect(dead_code, reason = "rough")]
fn unused(_: &Path) {}
