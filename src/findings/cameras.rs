//! The check of the models that cameras need: those that find objects, and the one that finds faces to blur.

use std::collections::BTreeMap;

use ledge_base::names::ModelName;
use ledge_cameras::config::CameraConfig;
use ledge_engine::pipeline::KINDS;
use ledge_engine::pipeline::annotation::blurs_faces;
use ledge_engine::pipeline::detection::Detection;
use serde_json::Value;

use crate::config::Config;
use ledge_part::check::Check;

/// The use of a model by cameras.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Objects,
    Faces,
}

/// Asks the daemon for the models of cameras, and reports those that are not loaded or do not find objects. Nothing is
/// known of them without a daemon.
pub fn checks(config: &Config, ask_daemon: &dyn Fn(&str) -> Option<Value>) -> Vec<Check> {
    let mut models: BTreeMap<(&ModelName, Use), Vec<&str>> = BTreeMap::new();
    for camera in config.camera.iter() {
        for used in uses(camera) {
            let model = match used {
                Use::Objects => &camera.model,
                Use::Faces => &config.vision.face,
            };
            models.entry((model, used)).or_default().push(camera.name.as_str());
        }
    }
    if models.is_empty() || ask_daemon("/v2").is_none() {
        return Vec::new();
    }

    let check = |((model, used), cameras): (&(&ModelName, Use), &Vec<&str>)| {
        let fault = match ask_daemon(&format!("/v2/models/{model}")) {
            None => "is not loaded",
            Some(metadata) if !finds_objects(&metadata) => "does not find objects",
            Some(_) => return None,
        };
        let cameras = cameras.join(", ");
        Some(match used {
            Use::Objects => Check::fail(
                "cameras",
                format!("the model {model} of {cameras} {fault}"),
                "put a detector into repository.path, or set `model` of the cameras to one",
            ),
            Use::Faces => Check::fail(
                "cameras",
                format!(
                    "no picture of {cameras} is published: the model {model}, which finds the faces to blur, {fault}"
                ),
                "put a detector of faces into repository.path, set vision.face to one, or take \"face\" out of `blur`",
            ),
        })
    };
    models.iter().filter_map(check).collect()
}

fn uses(camera: &CameraConfig) -> impl Iterator<Item = Use> {
    // Pictures that come with calls come with the model's answer.
    let objects = camera.url.is_some().then_some(Use::Objects);
    let faces = (camera.publish_pictures && blurs_faces(&camera.blur)).then_some(Use::Faces);
    objects.into_iter().chain(faces)
}

/// True if a model of this metadata answers with detections.
fn finds_objects(metadata: &Value) -> bool {
    let pipeline = metadata.pointer("/properties/pipeline").and_then(Value::as_str);
    KINDS.iter().any(|kind| Some(kind.name) == pipeline && kind.member == Detection::MEMBER)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_that_is_missing_or_finds_nothing_is_a_failure() {
        let config = toml::from_str(
            "[vision]\nface = 'faces'\n\
             [[camera]]\nname = 'yard'\nurl = 'http://127.0.0.1/'\nmodel = 'cows'\npublish_pictures = true\n\
             [[camera]]\nname = 'till'\nmodel = 'not_asked'\npublish_pictures = true\nblur = []\n",
        )
        .unwrap();
        let found = |cows: &'static str, faces: &'static str| {
            let ask = move |path: &str| {
                let pipeline = match path {
                    "/v2" => return Some(json!({"name": "ledge"})),
                    "/v2/models/cows" => cows,
                    "/v2/models/faces" => faces,
                    other => panic!("{other}"),
                };
                (!pipeline.is_empty()).then(|| json!({"properties": {"pipeline": pipeline}}))
            };
            checks(&config, &ask).into_iter().map(|check| check.detail).collect::<Vec<_>>()
        };
        assert_eq!(found("object_detection", "object_detection"), [""; 0]);
        assert_eq!(found("", "object_detection"), ["the model cows of yard is not loaded"]);
        assert_eq!(
            found("image_classification", ""),
            [
                "the model cows of yard does not find objects",
                "no picture of yard is published: the model faces, which finds the faces to blur, is not loaded"
            ]
        );
        assert_eq!(checks(&config, &|_| None), []);
    }
}
