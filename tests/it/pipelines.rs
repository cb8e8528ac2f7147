//! Each pipeline kind answers its golden call, which `tests/data/pipelines/` has in a file named after the kind.

use ledge::pipeline::KINDS;
use serde::Deserialize;
use serde_json::Value;

use crate::daemon::{TestRoot, data, model_folder};

/// The golden call of a kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GoldenCall {
    /// A model of `tests/models`, or one that ships.
    model: String,
    /// A file of that model, or else `content`.
    #[serde(default)]
    input: String,
    #[serde(default)]
    content: String,
    content_type: String,
    /// Its `model.toml`.
    config: String,
    /// The result in the answer, as JSON.
    result: String,
}

fn golden_call(kind: &str) -> GoldenCall {
    let text = String::from_utf8(data(&format!("pipelines/{kind}.toml"))).unwrap();
    toml::from_str(&text).unwrap()
}

#[test]
fn every_kind_of_pipeline_answers_its_golden_call() {
    let mut root = TestRoot::new();
    for kind in KINDS {
        let call = golden_call(kind.name);
        root = root.model_as(&call.model, kind.name).file(&format!("{}/model.toml", kind.name), &call.config);
    }
    let daemon = root.start();
    let client = &mut daemon.client();
    let described = client.get("/openapi.json").json();

    for kind in KINDS {
        let call = golden_call(kind.name);
        let input = match call.content.as_str() {
            "" => std::fs::read(model_folder(&call.model).join(&call.input)).unwrap(),
            content => content.as_bytes().to_owned(),
        };
        let answer =
            client.post(&format!("/v2/models/{}/infer", kind.name), &[("content-type", &call.content_type)], &input);
        assert_eq!(answer.status, 200, "{}: {answer:?} {:?}", kind.name, client.state(kind.name));

        let mut answer = answer.json().as_object().unwrap().clone();
        let result: Value = serde_json::from_str(&call.result).unwrap();
        assert_eq!(answer.remove(kind.member), Some(result), "{}", kind.name);
        let others: Vec<_> = answer.keys().collect();
        assert_eq!(others, ["model_name", "model_version", "runtime", "time_ms"], "{}", kind.name);

        let form = &described["components"]["schemas"]["PipelineAnswer"]["properties"][kind.member];
        assert!(form.is_object(), "openapi.json does not describe {:?} in PipelineAnswer", kind.member);
    }
}
