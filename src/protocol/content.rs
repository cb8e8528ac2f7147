//! The answer of a pipeline: labels of a photograph, vectors of texts. The same over HTTP and on the command line.

use std::collections::BTreeMap;

use ledge_engine::pipeline::KINDS;
use ledge_models::serving::request::{InferResponse, Timings};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::value::RawValue;

/// `{"model_name", "model_version", "runtime", "labels": [...], "time_ms":
/// {...}}`, with the member of the pipeline's kind in the place of `labels`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PipelineAnswer<'a> {
    model_name: &'a str,
    model_version: String,
    runtime: &'static str,
    #[serde(flatten)]
    #[schemars(skip)]
    result: BTreeMap<&'static str, &'a RawValue>,
    time_ms: TimeMs,
}

/// The form of a pipeline's answer, as JSON Schema, with the members of all kinds.
pub fn schema() -> Schema {
    let mut generator = SchemaGenerator::default();
    let members: Vec<_> = KINDS.iter().map(|kind| (kind.member, (kind.schema)(&mut generator))).collect();
    let mut schema = generator.into_root_schema_for::<PipelineAnswer<'static>>();
    if let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
        properties.extend(members.into_iter().map(|(member, schema)| (member.to_owned(), schema.to_value())));
    }
    schema
}

/// Time spent in each part, in milliseconds.
#[derive(Debug, Serialize, JsonSchema)]
struct TimeMs {
    decode: f64,
    queue: f64,
    compute: f64,
    /// Making the result of the model's outputs, where that takes time.
    #[serde(skip_serializing_if = "Option::is_none")]
    postprocess: Option<f64>,
    /// Of a chain: the time of each of its models, with making its inputs and reading its outputs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    stages: BTreeMap<&'static str, f64>,
}

impl From<&Timings> for TimeMs {
    fn from(timings: &Timings) -> Self {
        let ms = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let postprocess = (!timings.postprocess.is_zero()).then(|| ms(timings.postprocess));
        let stages = timings.stages.iter().map(|(stage, time)| (*stage, ms(*time))).collect();
        Self { decode: ms(timings.decode), queue: ms(timings.queue), compute: ms(timings.compute), postprocess, stages }
    }
}

impl<'a> PipelineAnswer<'a> {
    /// The answer in its written form.
    pub fn new(answer: &'a InferResponse) -> Self {
        Self {
            model_name: answer.model.as_str(),
            model_version: answer.version.to_string(),
            runtime: answer.runtime.as_str(),
            result: answer.result.iter().map(|result| (result.kind.member, &*result.json)).collect(),
            time_ms: (&answer.timings).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ledge_base::memory_budget::MemoryAccount;
    use ledge_base::names::ModelVersion;
    use ledge_engine::backend::Runtime;
    use ledge_models::serving::request::PipelineResult;

    use super::*;

    #[test]
    fn the_result_is_written_as_it_is_between_the_runtime_and_the_times() {
        let ms = Duration::from_millis;
        let json = RawValue::from_string(r#"[{"label":null,"score":0.1}]"#.to_owned()).unwrap();
        let kind = KINDS.iter().find(|kind| kind.member == "labels").unwrap();
        let answer = InferResponse {
            model: "m".parse().unwrap(),
            version: "2".parse::<ModelVersion>().unwrap(),
            runtime: Runtime::OpenVino,
            outputs: Vec::new(),
            timings: Timings { decode: ms(7), compute: Duration::from_micros(1500), ..Timings::default() },
            cache: None,
            features: Vec::new(),
            result: Some(PipelineResult { kind, json }),
            memory: MemoryAccount::unlimited().hold(),
        };

        let expected = concat!(
            r#"{"model_name":"m","model_version":"2","runtime":"openvino","labels":[{"label":null,"score":0.1}],"#,
            r#""time_ms":{"decode":7.0,"queue":0.0,"compute":1.5}}"#
        );
        assert_eq!(serde_json::to_string(&PipelineAnswer::new(&answer)).unwrap(), expected);
    }

    #[test]
    fn the_schema_has_the_member_of_each_kind() {
        let schema = schema().to_value();
        for kind in KINDS {
            assert!(schema["properties"][kind.member].is_object(), "{schema}");
        }
        assert!(schema["properties"].get("result").is_none(), "{schema}");
    }
}
