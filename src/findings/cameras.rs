//! The checks of cameras with facts of the daemon: their state, and the models that they need, which find objects, or
//! faces to blur.

use std::collections::BTreeMap;

use ledge_base::names::ModelName;
use ledge_cameras::config::CameraConfig;
use ledge_cameras::doctor::finding;
use ledge_cameras::health::CameraState;
use ledge_engine::pipeline::KINDS;
use ledge_engine::pipeline::annotation::blurs_faces;
use ledge_engine::pipeline::detection::Detection;
use serde::Deserialize;
use serde_json::Value;

use crate::config::Config;
use ledge_part::check::{Finding, FindingStatus};

/// The answer of the daemon at `/cameras`, as far as it matters here.
#[derive(Debug, Deserialize)]
struct CamerasAnswer {
    cameras: Vec<WatchedCamera>,
}

#[derive(Debug, Deserialize)]
struct WatchedCamera {
    name: String,
    state: CameraState,
    reason: Option<String>,
    url: Option<String>,
}

/// The use of a model by cameras.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CameraModelUse {
    Objects,
    Faces,
}

/// Asks the daemon for the models of cameras, and reports those that are not loaded or do not find objects. Nothing is
/// known of them without a daemon.
pub fn checks(config: &Config, ask_daemon: &dyn Fn(&str) -> Option<Value>) -> Vec<Finding> {
    let mut models: BTreeMap<(&ModelName, CameraModelUse), Vec<&str>> = BTreeMap::new();
    for camera in config.camera.iter() {
        for used in uses(camera) {
            let model = match used {
                CameraModelUse::Objects => &camera.model,
                CameraModelUse::Faces => &config.vision.face,
            };
            models.entry((model, used)).or_default().push(camera.name.as_str());
        }
    }
    if models.is_empty() || ask_daemon("/v2").is_none() {
        return Vec::new();
    }

    let check = |((model, used), cameras): (&(&ModelName, CameraModelUse), &Vec<&str>)| {
        let fault = match ask_daemon(&format!("/v2/models/{model}")) {
            None => "is not loaded",
            Some(metadata) if !finds_objects(&metadata) => "does not find objects",
            Some(_) => return None,
        };
        let cameras = cameras.join(", ");
        Some(match used {
            CameraModelUse::Objects => Finding::fail(
                "cameras",
                format!("the model {model} of {cameras} {fault}"),
                "put a detector into repository.path, or set `model` of the cameras to one",
            ),
            CameraModelUse::Faces => Finding::fail(
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

/// Adds the state of the cameras, from the daemon, to `checks`. Each of these examined only one picture, which does not
/// show that a camera is frozen, or that its model does not answer.
pub fn add_states(checks: &mut Vec<Finding>, ask_daemon: &dyn Fn(&str) -> Option<Value>) {
    let Some(Ok(CamerasAnswer { cameras })) = ask_daemon("/cameras").map(serde_json::from_value) else { return };
    for WatchedCamera { name, state, reason, url } in cameras {
        // That a camera gives no picture now is better known from having asked it.
        if state == CameraState::Away && url.is_some() {
            continue;
        }
        let found = finding(&name, url.is_some(), state, &reason.unwrap_or_default());
        let Some(found) = found.filter(|found| found.status != FindingStatus::Ok) else { continue };
        match checks.iter_mut().find(|check| check.name == found.name) {
            Some(asked) if asked.status == FindingStatus::Ok => *asked = found,
            // It says in other words that its pictures cannot be used.
            Some(asked) if asked.status == FindingStatus::Fail => {}
            _ => checks.push(found),
        }
    }
}

fn uses(camera: &CameraConfig) -> impl Iterator<Item = CameraModelUse> {
    // Pictures that come with calls come with the model's answer.
    let objects = camera.url.is_some().then_some(CameraModelUse::Objects);
    let faces = (camera.publish_pictures && blurs_faces(&camera.blur)).then_some(CameraModelUse::Faces);
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
    fn the_state_that_the_daemon_knows_is_added_to_what_one_picture_shows() {
        let states =
            [("yard", "frozen"), ("gate", "failing"), ("shed", "failing"), ("barn", "away"), ("roof", "online")];
        let of = |(name, state): &(&str, &str)| json!({"name": name, "state": state, "reason": "so it is", "url": "http://c/", "interval_ms": 1000});
        let mut cameras: Vec<_> = states.iter().map(of).collect();
        cameras.push(json!({"name": "till", "state": "away", "reason": "no call", "url": null}));
        let document = json!({ "cameras": cameras });
        let picture = |name: &str| Finding::ok(&format!("camera {name}"), "a picture");
        let mut checks = vec![
            picture("yard"),
            Finding::warn("camera gate", "plain text", "use https"),
            Finding::fail("camera shed", "cut off", "check it"),
            picture("barn"),
            picture("roof"),
        ];
        add_states(&mut checks, &|path| (path == "/cameras").then(|| document.clone()));
        let told: Vec<_> = checks.iter().map(|check| format!("{} {}", check.name, check.detail)).collect();
        assert_eq!(
            told,
            [
                "camera yard it is frozen: so it is",
                "camera gate plain text",
                "camera shed cut off",
                "camera barn a picture",
                "camera roof a picture",
                "camera gate it is failing: its pictures come and cannot be used: so it is",
                "camera till it gives no picture: no call",
            ]
        );
        let before = checks.clone();
        add_states(&mut checks, &|_| None);
        assert_eq!(checks, before, "without a daemon");
    }

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
