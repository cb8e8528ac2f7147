//! The sections `[[camera]]` and `[home_assistant]` of the configuration.

use std::collections::BTreeSet;
use std::time::Duration;

use ledge_base::names::{CameraName, ModelName, ZoneName};
use ledge_base::secret::SecretFile;
use ledge_base::toml_check::{ValueProblem, empty_if_none, in_range, none_if_empty};
use ledge_egress::{
    CertificateFingerprint, CertificatePin, ConfiguredDestination, HttpClientSettings, TlsClientSettings,
};
use ledge_models::scheduling::terms::Priority;
use serde::{Deserialize, Serialize};

use crate::address::SnapshotUrl;
use crate::change::ComparisonMask;
use crate::presence::PresenceRules;
use crate::zones::{Polygon, UnitFraction};

/// The most cameras, more than a box has time for.
pub const CAMERAS_MAX: usize = 256;

/// The most zones of a camera.
const ZONES_MAX: usize = 32;

/// The most labels in one list.
const LABELS_MAX: usize = 100;

/// The longest label, in bytes. A label is in topics and in texts for people.
pub const LABEL_BYTES_MAX: usize = 100;

/// The name of the zone that is the whole picture, in topics and messages.
pub const WHOLE_PICTURE: &str = "everywhere";

/// All cameras.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CamerasConfig(pub Vec<CameraConfig>);

/// One camera.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CameraConfig {
    /// Its name in topics, metrics and logs.
    pub name: CameraName,
    /// The address of its picture. `None`: its pictures come with calls or bindings that name the camera.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub url: Option<SnapshotUrl>,
    /// The time from one picture to the next, in milliseconds.
    #[serde(default = "interval_ms", deserialize_with = "in_range::<100, 3_600_000, _, _>")]
    pub interval_ms: u64,
    /// The model, which finds objects.
    #[serde(default = "model")]
    pub model: ModelName,
    /// The priority of its calls.
    #[serde(default = "batch")]
    pub priority: CameraPriority,
    /// The user at the camera; empty: no user.
    #[serde(default)]
    pub user: String,
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub password_file: Option<SecretFile>,
    /// The CAs that may have signed the camera's certificate; `None` is those that the system trusts.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub ca_file: Option<SecretFile>,
    /// A PEM file with the one certificate that the camera may present.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub pinned_file: Option<SecretFile>,
    /// The SHA-256 of that certificate, in place of the file.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub pinned_sha256: Option<CertificateFingerprint>,
    /// The labels that count; all of the model's when it is empty.
    #[serde(default)]
    pub labels: Vec<String>,
    /// The least score that counts.
    #[serde(default = "zero")]
    pub min_score: UnitFraction,
    /// The share of the small grey picture that must have changed for the model to be asked; 0 asks about each picture.
    #[serde(default = "change_threshold")]
    pub change_threshold: UnitFraction,
    /// The pictures in a row after which something is there.
    #[serde(default = "appear_after", deserialize_with = "in_range::<1, 100, _, _>")]
    pub appear_after: u32,
    /// The time in milliseconds after which something that was not seen again is gone.
    #[serde(default = "hold_ms", deserialize_with = "in_range::<0, 3_600_000, _, _>")]
    pub hold_ms: u64,
    /// The time in milliseconds after which a camera counts as frozen, if all its pictures have the same bytes; 0 for a
    /// camera that always serves the same picture.
    #[serde(default = "frozen_after_ms", deserialize_with = "in_range::<0, 86_400_000, _, _>")]
    pub frozen_after_ms: u64,
    /// Publishes annotated pictures over MQTT.
    #[serde(default)]
    pub publish_pictures: bool,
    /// The least time between two published pictures, in milliseconds.
    #[serde(default = "picture_interval_ms", deserialize_with = "in_range::<0, 3_600_000, _, _>")]
    pub picture_interval_ms: u64,
    /// The labels that are blurred in published pictures; see [`ledge_engine::pipeline::annotation::blurred_places`].
    #[serde(default = "blur")]
    pub blur: Vec<String>,
    /// The parts of the picture that are neither compared nor counted.
    #[serde(default)]
    pub mask: Vec<Polygon>,
    #[serde(default)]
    pub zones: Vec<ZoneConfig>,
}

/// A part of the picture with its own counts of objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneConfig {
    pub name: ZoneName,
    /// Its corners, as shares of the picture's width and height.
    pub points: Polygon,
    /// The labels that count in it; those of the camera when it is empty.
    #[serde(default)]
    pub labels: Vec<String>,
}

/// A priority as the configuration has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CameraPriority {
    Interactive,
    Batch,
}

impl From<CameraPriority> for Priority {
    fn from(word: CameraPriority) -> Self {
        match word {
            CameraPriority::Interactive => Self::Interactive,
            CameraPriority::Batch => Self::Batch,
        }
    }
}

/// The entities in Home Assistant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HomeAssistantConfig {
    /// Announces the cameras to Home Assistant over MQTT.
    pub enable: bool,
    /// The discovery prefix that is set in Home Assistant.
    pub prefix: String,
}

impl Default for HomeAssistantConfig {
    fn default() -> Self {
        Self { enable: false, prefix: "homeassistant".to_owned() }
    }
}

impl HomeAssistantConfig {
    /// The topic on which Home Assistant says that it has started.
    pub fn status_topic(&self) -> String {
        format!("{}/status", self.prefix)
    }
}

fn interval_ms() -> u64 {
    1000
}

fn model() -> ModelName {
    ModelName::constant("coco_detector")
}

fn batch() -> CameraPriority {
    CameraPriority::Batch
}

fn zero() -> UnitFraction {
    UnitFraction::ZERO
}

fn change_threshold() -> UnitFraction {
    UnitFraction::THOUSANDTH
}

fn appear_after() -> u32 {
    2
}

fn hold_ms() -> u64 {
    5000
}

/// Two pictures of a live sensor never have the same bytes, but a camera may serve one for some time before it takes
/// the next one.
fn frozen_after_ms() -> u64 {
    120_000
}

fn picture_interval_ms() -> u64 {
    10_000
}

fn blur() -> Vec<String> {
    vec!["person".to_owned(), "face".to_owned()]
}

impl CameraConfig {
    /// [`Self::interval_ms`].
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// The rules of events.
    pub fn rules(&self) -> PresenceRules {
        PresenceRules { appear_after: self.appear_after, hold_ms: self.hold_ms }
    }

    /// The way to the camera; `None` without an address.
    pub fn connection(&self) -> Option<HttpClientSettings> {
        let url = self.url.as_ref()?;
        let pinned = self
            .pinned_sha256
            .map(CertificatePin::Sha256)
            .or_else(|| self.pinned_file.clone().map(CertificatePin::File));
        let tls = TlsClientSettings { ca: self.ca_file.clone(), pinned, ..TlsClientSettings::default() };
        Some(HttpClientSettings { at: url.at.clone(), tls: url.tls.then_some(tls), proxy: None })
    }

    /// The labels that the configuration names for a zone; empty if it counts all of the model.
    pub fn labels_of<'a>(&'a self, zone: &'a ZoneConfig) -> &'a [String] {
        if zone.labels.is_empty() { &self.labels } else { &zone.labels }
    }

    pub(crate) fn files(&mut self) -> impl Iterator<Item = &mut SecretFile> {
        [&mut self.password_file, &mut self.ca_file, &mut self.pinned_file].into_iter().flatten()
    }

    pub(crate) fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: &str| problems.push(ValueProblem::new(key, problem));
        let has_tls = self.url.as_ref().is_some_and(|url| url.tls);
        for (key, is_set) in [
            ("ca_file", self.ca_file.is_some()),
            ("pinned_file", self.pinned_file.is_some()),
            ("pinned_sha256", self.pinned_sha256.is_some()),
        ] {
            if is_set && !has_tls {
                wrong(key, "is for a camera at https://");
            }
        }
        if [self.ca_file.is_some(), self.pinned_file.is_some(), self.pinned_sha256.is_some()]
            .iter()
            .filter(|it| **it)
            .count()
            > 1
        {
            wrong(
                "ca_file",
                "and a pinned certificate are both set: set one of ca_file, pinned_file and pinned_sha256",
            );
        }
        if self.user.is_empty() != self.password_file.is_none() {
            wrong("user", "and password_file go together: set both, or neither");
        }
        if self.user.contains(char::is_control) || self.user.contains(':') {
            wrong("user", "has a colon or a control character, which no login over HTTP can have");
        }
        if self.url.is_none() && !self.user.is_empty() {
            wrong("user", "is for a camera with a url");
        }
        if ComparisonMask::new(&self.mask).hides_everything() {
            wrong("mask", "hides the whole picture");
        }

        if self.zones.len() > ZONES_MAX {
            wrong("zones", &format!("are more than {ZONES_MAX}"));
        }
        let mut names = BTreeSet::from([WHOLE_PICTURE]);
        for (index, zone) in self.zones.iter().enumerate() {
            let name = zone.name.as_str();
            if name == WHOLE_PICTURE {
                wrong(&format!("zones[{index}].name"), &format!("{name:?} is the whole picture: use another name"));
            } else if !names.insert(name) {
                wrong(&format!("zones[{index}].name"), &format!("{name} is the name of two zones"));
            }
            for (number, label) in zone.labels.iter().enumerate() {
                if !self.labels.is_empty() && !self.labels.contains(label) {
                    let key = format!("zones[{index}].labels[{number}]");
                    wrong(&key, &format!("{label:?} is not among the labels of the camera"));
                }
            }
        }

        let lists = self.zones.iter().enumerate().map(|(index, zone)| (format!("zones[{index}].labels"), &zone.labels));
        for (key, labels) in lists.chain([("labels".to_owned(), &self.labels), ("blur".to_owned(), &self.blur)]) {
            if labels.len() > LABELS_MAX {
                wrong(&key, &format!("has more than {LABELS_MAX} labels"));
            }
            for (index, label) in labels.iter().enumerate() {
                let key = format!("{key}[{index}]");
                if label.is_empty() || label.len() > LABEL_BYTES_MAX || label.contains(char::is_control) {
                    wrong(&key, &format!("is empty, longer than {LABEL_BYTES_MAX} bytes or has a control character"));
                } else if labels.iter().take(index).any(|earlier| earlier == label) {
                    wrong(&key, &format!("{label:?} is named twice"));
                }
            }
        }
        problems
    }

    pub(crate) fn destination(&self) -> Option<ConfiguredDestination> {
        let url = self.url.as_ref()?;
        Some(ConfiguredDestination {
            key: "url".into(),
            at: url.at.clone(),
            proxy: None,
            is_encrypted: url.tls,
            // Most cameras have no encryption. `ledge doctor` reports a password in plain text.
            plaintext_problem: None,
        })
    }
}

impl CamerasConfig {
    pub fn iter(&self) -> impl Iterator<Item = &CameraConfig> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use ledge_base::toml_check;
    use ledge_part::section::ConfigSection;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    struct CamerasFile {
        camera: CamerasConfig,
        home_assistant: HomeAssistantConfig,
    }

    fn read(text: &str) -> CamerasFile {
        toml_check::parse("f", text).unwrap()
    }

    #[track_caller]
    fn problems(text: &str, expected: &[(&str, &str)]) {
        let found = read(text).camera.problems();
        let found: Vec<_> = found.iter().map(|problem| (problem.key.as_str(), problem.message.as_str())).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((key, message), (expected_key, part)) in found.iter().zip(expected) {
            assert!(key == expected_key && message.contains(part), "{found:?}");
        }
    }

    #[test]
    fn a_camera_needs_only_its_name() {
        let CamerasConfig(cameras) = read("[[camera]]\nname = 'yard'").camera;
        let camera = &cameras[0];
        assert_eq!((camera.model.as_str(), camera.interval_ms, camera.hold_ms), ("coco_detector", 1000, 5000));
        assert_eq!(
            (camera.min_score.get(), camera.blur.as_slice()),
            (0.0, ["person".to_owned(), "face".to_owned()].as_slice())
        );
        assert!((camera.change_threshold.get() - 0.001).abs() < f64::EPSILON && !camera.publish_pictures);
        assert!(camera.connection().is_none() && camera.problems().is_empty());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = "[[camera]]\nname = 'yard'\nurl = 'https://10.0.0.7/a?b=c'\npinned_sha256 = 'AA'"
            .replace("AA", &"0a".repeat(32))
            + "\nmask = [[[0, 0], [0.5, 0], [0, 0.25]]]\n[[camera.zones]]\nname = 'gate'\npoints = [[0, 0], [1, 0], [1, 1]]\nlabels = ['car']";
        let file = read(&text);
        assert_eq!(file.camera.problems(), []);
        assert_eq!(read(&toml::to_string(&file).unwrap()), file);
        let settings = file.camera.0[0].connection().unwrap();
        assert!(matches!(settings.tls.unwrap().pinned, Some(CertificatePin::Sha256(_))));
    }

    #[test]
    fn mistakes_between_keys_are_reported_by_their_keys() {
        problems(
            "[[camera]]\nname = 'a'\nurl = 'http://c/'\nca_file = 'ca.pem'\nuser = 'x'\n[[camera]]\nname = 'a'\nlabels = ['cow', 'cow', '']",
            &[
                ("[0].ca_file", "https://"),
                ("[0].user", "go together"),
                ("[1].name", "two cameras"),
                ("[1].labels[1]", "twice"),
                ("[1].labels[2]", "empty"),
            ],
        );
        let zone = "[[camera.zones]]\nname = 'NAME'\npoints = [[0, 0], [1, 0], [1, 1]]\nlabels = ['car']\n";
        let zones = ["gate", "gate", "everywhere"].map(|name| zone.replace("NAME", name)).concat();
        problems(
            &format!(
                "[[camera]]\nname = 'a'\nlabels = ['car', 'cow']\nmask = [[[0, 0], [1, 0], [1, 1], [0, 1]]]\n{zones}"
            ),
            &[
                ("[0].mask", "whole picture"),
                ("[0].zones[1].name", "two zones"),
                ("[0].zones[2].name", "whole picture"),
            ],
        );
    }

    #[test]
    fn the_address_of_each_camera_is_a_destination() {
        let config = read("[[camera]]\nname = 'a'\n[[camera]]\nname = 'b'\nurl = 'http://cam.lan:81/x'").camera;
        let found = config.destinations();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].key.as_str(), found[0].at.to_string().as_str()), ("[1].url", "cam.lan:81"));
    }

    #[test]
    fn a_prefix_is_levels_of_a_topic() {
        let config = |prefix: &str| HomeAssistantConfig { enable: true, prefix: prefix.to_owned() };
        assert!(["homeassistant", "a/b-c_d"].iter().all(|prefix| config(prefix).problems().is_empty()));
        assert!(["", "a/", "a b", "#", "ä"].iter().all(|prefix| config(prefix).problems().len() == 1));
    }
}
