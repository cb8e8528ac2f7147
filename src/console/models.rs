//! `GET /models`: every model and version with its state and its statistics, in one answer.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use ledge_base::names::ModelName;
use ledge_identity::access::CallerAccess;
use ledge_models::repository::{LoadedModel, ModelIndexEntry, ModelState};
use ledge_part::reply::json;
use serde::Serialize;

use crate::state::ConsoleHttpState;

#[derive(Serialize)]
struct ModelsDocument {
    models: Vec<ModelRow>,
}

/// One version, or a model that has none. Figures are those since the start of the daemon; `None` for a version that is
/// not loaded.
#[derive(Serialize)]
struct ModelRow {
    name: ModelName,
    version: Option<String>,
    state: ModelState,
    /// The reason why it does not answer, or a note on one that does.
    reason: Option<String>,
    /// The kind of its pipeline.
    pipeline: Option<&'static str>,
    runtime: Option<&'static str>,
    /// Calls that ended, and those of them that failed.
    calls: Option<u64>,
    failed: Option<u64>,
    /// The mean time from the arrival of a call to its answer, in seconds.
    mean_s: Option<f64>,
    /// Memory of its process in bytes; `None` where it shares one.
    memory_bytes: Option<u64>,
}

impl ModelRow {
    fn new(row: ModelIndexEntry, live: Option<&LoadedModel>) -> Self {
        let (state, reason) = (ModelState::from(&row.state), row.reason());
        let counters = live.map(|live| live.statistics.snapshot());
        let answered = counters.as_ref().map(|counters| counters.success).filter(|success| success.count > 0);
        Self {
            name: row.model,
            version: row.version.map(|version| version.to_string()),
            state,
            reason,
            pipeline: live.and_then(|live| Some(live.pipeline.as_ref()?.kind().name)),
            runtime: live.map(|live| live.runtime().as_str()),
            calls: counters.as_ref().map(|counters| counters.success.count + counters.fail.count),
            failed: counters.as_ref().map(|counters| counters.fail.count),
            mean_s: answered.map(|success| mean_of(success.time, success.count)),
            memory_bytes: live.and_then(LoadedModel::memory_bytes),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
fn mean_of(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() / count as f64
}

/// `GET /models`.
pub async fn models(State(console): State<ConsoleHttpState>, Extension(access): Extension<CallerAccess>) -> Response {
    let repository = console.serving.repository();
    let live = repository.all_live();
    let rows = repository.index().into_iter().filter(|row| access.has_model(&row.model));
    let models = rows.map(|row| {
        let live = live.iter().find(|live| live.name == row.model && Some(live.version) == row.version);
        ModelRow::new(row, live.map(|live| &**live))
    });
    json(&ModelsDocument { models: models.collect() })
}
