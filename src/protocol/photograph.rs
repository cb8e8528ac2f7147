//! The answer to a photograph: labels and scores. The same over HTTP and on the command line.

use ledge_engine::pipeline::classification::Label;
use ledge_models::serving::Classified;
use ledge_models::serving::request::Timings;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

/// `{"model_name", "model_version", "runtime", "labels": [...], "time_ms": {...}}`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PhotographAnswer<'a> {
    model_name: &'a str,
    model_version: String,
    runtime: &'static str,
    labels: &'a [Label],
    time_ms: TimeMs,
}

/// The form of such an answer, as JSON Schema.
pub fn schema() -> Schema {
    schema_for!(PhotographAnswer<'static>)
}

/// Time spent in each part, in milliseconds.
#[derive(Debug, Serialize, JsonSchema)]
struct TimeMs {
    decode: f64,
    queue: f64,
    compute: f64,
}

impl From<Timings> for TimeMs {
    fn from(timings: Timings) -> Self {
        let ms = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        Self { decode: ms(timings.decode), queue: ms(timings.queue), compute: ms(timings.compute) }
    }
}

impl<'a> PhotographAnswer<'a> {
    /// The answer in its written form.
    pub fn new(answer: &'a Classified) -> Self {
        Self {
            model_name: answer.response.model.as_str(),
            model_version: answer.response.version.to_string(),
            runtime: answer.response.runtime.as_str(),
            labels: &answer.labels,
            time_ms: answer.response.timings.into(),
        }
    }
}
