//! Findings about cameras that depend on other sections: the broker, and the permitted content.

use ledge_base::toml_check::ValueProblem;
use ledge_cameras::config::CameraConfig;
use ledge_egress::EgressContent;
use ledge_part::section::ConfigSection;

use super::Config;

impl Config {
    /// The mistakes in the settings of what cameras publish.
    pub(super) fn camera_problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        if self.mqtt.broker.is_none() {
            let needs_broker = |key: String, what: &str| {
                ValueProblem::new(key, format!("needs a broker, which gets {what}: set mqtt.broker"))
            };
            problems.extend(self.picture_keys().map(|key| needs_broker(key, "the pictures")));
            if self.home_assistant.enable {
                problems.push(needs_broker("home_assistant.enable".to_owned(), "the entities"));
            }
        }

        for broker in self.mqtt.destinations() {
            // A broker that is not allowed at all is reported by its own key.
            let Ok(grant) = self.egress.grant(&broker.at) else { continue };
            if grant.permits(EgressContent::Picture) {
                continue;
            }
            let at = &broker.at;
            let problem = format!(
                "has no effect, because the entry of {at} in egress.allow does not let pictures out: add \"{}\" to its \
                 `send`, or set publish_pictures = false",
                EgressContent::Picture
            );
            let denied = |key: String| ValueProblem::new(key, &problem);
            problems.extend(self.picture_keys().map(denied));
        }
        problems
    }

    /// The cameras of which Home Assistant learns no count: its entities follow from the labels of the configuration.
    pub(super) fn camera_warnings(&self) -> Vec<ValueProblem> {
        if !self.home_assistant.enable {
            return Vec::new();
        }
        let has_labels = |camera: &CameraConfig| {
            !camera.labels.is_empty() || camera.zones.iter().any(|zone| !zone.labels.is_empty())
        };
        let without = self.camera.iter().enumerate().filter(|(_, camera)| !has_labels(camera));
        let warning = |(index, camera): (usize, &CameraConfig)| {
            let problem = format!(
                "names no label, and neither do the zones of {}, so Home Assistant gets no count of it: name the labels \
                 that are to be entities",
                camera.name
            );
            ValueProblem::new(format!("camera[{index}].labels"), problem)
        };
        without.map(warning).collect()
    }

    /// The keys that turn published pictures on.
    fn picture_keys(&self) -> impl Iterator<Item = String> {
        let publishing = self.camera.iter().enumerate().filter(|(_, camera)| camera.publish_pictures);
        publishing.map(|(index, _)| format!("camera[{index}].publish_pictures"))
    }
}
