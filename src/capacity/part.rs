//! Capacity as a part of the daemon.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ledge_base::clock;
use ledge_base::telemetry::process;
use ledge_engine::pipeline::content::PipelineInput;
use ledge_identity::access::CallerAccess;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::{PartEnvironment, Subsystem};
use ledge_service::off_thread::blocking;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::time::MissedTickBehavior;

use crate::history::{History, INTERVAL, INTERVAL_MIN};
use crate::http::ROUTES;
use crate::metrics;
use crate::reading::{CameraReading, CapacitySources, control_usage, of_model};
use crate::report::{self, CameraFacts, CapacityReport, Facts, ModelFacts};
use crate::sizing::Reference;
use crate::whole;

/// The capacity of this box. Clones share it.
#[derive(Debug, Clone)]
pub struct Capacity(Arc<CapacityState>);

#[derive(Debug)]
struct CapacityState {
    sources: CapacitySources,
    history: Mutex<History>,
    reference: Reference,
}

impl Capacity {
    pub fn new(sources: CapacitySources) -> Self {
        Self(Arc::new(CapacityState { sources, history: Mutex::default(), reference: Reference::shipped() }))
    }

    /// The report now. It also takes a reading, so that two calls ten seconds apart measure what was between them.
    pub async fn report(&self) -> CapacityReport {
        self.read().await;
        let state = self.0.clone();
        blocking(move || {
            let facts = state.facts();
            report::report(&state.history(), &facts, &state.reference, Instant::now())
        })
        .await
    }

    async fn read(&self) {
        let is_due = |state: &CapacityState| state.history().age(Instant::now()).is_none_or(|age| age >= INTERVAL_MIN);
        if !is_due(&self.0) {
            return;
        }
        let (state, control) = (self.0.clone(), control_usage());
        blocking(move || {
            let counts = state.sources.counts(control);
            state.history().take(Instant::now(), clock::unix_millis(), counts);
        })
        .await;
    }
}

impl CapacityState {
    fn history(&self) -> MutexGuard<'_, History> {
        // A panic under this lock would leave fewer intervals.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn facts(&self) -> Facts {
        let repository = self.sources.serving.repository();
        let cores = repository.engine().cores().len();
        let mut models: BTreeMap<String, ModelFacts> = BTreeMap::new();
        for model in repository.all_live() {
            let most = model.scale().max;
            let is_limited = !model.is_chain() && most < cores;
            let facts = ModelFacts {
                name: model.name.to_string(),
                kind: of_model(&model.name),
                is_document: model.input() == Some(PipelineInput::Document),
                at_a_time: if is_limited { whole(most as u64) } else { f64::INFINITY },
                is_background: model.instance_usage().is_background,
                objective_s: (self.sources.objective)(&model.name).map(|time| time.as_secs_f64()),
            };
            models.insert(facts.name.clone(), facts);
        }
        let cameras = (self.sources.cameras)();
        let sum = |figure: fn(&CameraReading) -> u64| whole(cameras.iter().map(figure).sum());
        Facts {
            models: models.into_values().collect(),
            cameras: CameraFacts {
                count: whole(cameras.len() as u64),
                pictures: sum(|of| of.pictures),
                looked: sum(|of| of.looked),
                model: cameras.first().map(|of| of_model(&of.model)),
            },
            cores: whole(process::usable_cores() as u64),
            model_cores: whole(cores as u64),
            control_threads: whole(self.sources.control_threads as u64),
            spaces: self.sources.spaces(),
        }
    }
}

impl Subsystem for Capacity {
    fn name(&self) -> &'static str {
        "capacity"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, self)
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        let facts = self.0.facts();
        let used = report::used(&self.0.history(), &facts, &self.0.reference, Instant::now());
        metrics::encode(encoder, &used)
    }

    /// Starts the task that reads the counters once a minute.
    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        let (capacity, shutdown) = (self.clone(), environment.shutdown.clone());
        environment.shutdown.spawn(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                tokio::select! {
                    _ = ticks.tick() => capacity.read().await,
                    () = shutdown.requested() => return,
                }
            }
        });
        Ok(())
    }
}
