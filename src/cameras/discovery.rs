//! Entities in Home Assistant, of the cameras and of the box: one retained message each, on a topic below the discovery
//! prefix.
//!
//! Pure. The entities follow only from the configuration: those of a zone are for the labels that the configuration
//! names. <https://www.home-assistant.io/integrations/mqtt/#mqtt-discovery>

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ledge_base::names::DeviceName;
use serde_json::{Value, json};

use crate::config::{CameraConfig, CamerasConfig, WHOLE_PICTURE};
use crate::messages::CameraTopics;

/// The messages of this box for Home Assistant: the content of each topic.
pub type DiscoveryMessages = BTreeMap<String, Value>;

/// The names that entities are made of.
#[derive(Debug, Clone)]
pub struct DiscoverySite<'a> {
    /// The discovery prefix.
    pub prefix: &'a str,
    pub device: &'a DeviceName,
    /// The topic of all cameras of this box.
    pub cameras: &'a str,
    /// The topic that says whether this box is online.
    pub online: &'a str,
    /// The topic of what is unusual of the figures of this box; `None` where it is not published.
    pub unusual: Option<&'a str>,
    /// The version of Ledge.
    pub version: &'a str,
}

/// The entities of all cameras, and of the box.
pub fn announcements(config: &CamerasConfig, site: &DiscoverySite<'_>) -> DiscoveryMessages {
    let mut announcements = DiscoveryMessages::new();
    for camera in config.iter() {
        DiscoveryBuilder {
            site,
            camera,
            topics: CameraTopics::new(site.cameras, &camera.name),
            found: &mut announcements,
        }
        .announce();
    }
    announcements.extend(site.unusual.map(|topic| unusual(site, topic)));
    announcements
}

/// The entity that is on while a figure of the box is unusual, with the events as its attributes.
fn unusual(site: &DiscoverySite<'_>, topic: &str) -> (String, Value) {
    let DiscoverySite { prefix, device, online, version, .. } = site;
    let node = joined(["ledge", device.as_str()]);
    let entity = json!({
        "name": "Unusual",
        "unique_id": format!("{node}--unusual"),
        "device": {
            "identifiers": [node],
            "name": device.as_str(),
            "manufacturer": "Ledge",
            "model": "Inference appliance",
            "sw_version": version,
        },
        "origin": { "name": "Ledge", "sw_version": version },
        "availability_topic": online,
        "state_topic": topic,
        "value_template": "{{ 'ON' if value_json.events else 'OFF' }}",
        "json_attributes_topic": topic,
        "device_class": "problem",
        "entity_category": "diagnostic",
    });
    (format!("{prefix}/binary_sensor/{node}/unusual/config"), entity)
}

struct DiscoveryBuilder<'a> {
    site: &'a DiscoverySite<'a>,
    camera: &'a CameraConfig,
    topics: CameraTopics,
    found: &'a mut DiscoveryMessages,
}

impl DiscoveryBuilder<'_> {
    fn announce(&mut self) {
        let camera = self.camera;
        let labels = camera.labels.as_slice();
        self.zone(WHOLE_PICTURE, None, labels);
        for zone in &camera.zones {
            self.zone(zone.name.as_str(), Some(zone.name.as_str()), camera.labels_of(zone));
        }

        let connected = json!({
            "name": "Connection",
            "state_topic": self.topics.state(),
            "payload_on": crate::messages::ONLINE,
            "payload_off": crate::messages::OFFLINE,
            "device_class": "connectivity",
        });
        self.diagnostic("binary_sensor", "connection", connected);
        // Home Assistant before 2024.10 knows no options of an enumeration over MQTT, so the state is a text.
        let state = json!({
            "name": "State",
            "state_topic": self.topics.status(),
            "value_template": "{{ value_json.state }}",
        });
        self.diagnostic("sensor", "state", state);
        // Home Assistant shows it as an age. Without a picture the template says None, which is an unknown time.
        let new_picture = json!({
            "name": "Last new picture",
            "state_topic": self.topics.status(),
            "value_template": "{{ value_json.new_picture_at }}",
            "device_class": "timestamp",
        });
        self.diagnostic("sensor", "new-picture", new_picture);
        if camera.publish_pictures {
            let picture = json!({
                "name": "Picture",
                "image_topic": self.topics.picture(),
                "content_type": "image/jpeg",
            });
            self.entity("image", &["picture"], picture);
        }
    }

    /// The entities of a zone, which has no title if it is the whole picture.
    fn zone(&mut self, zone: &str, title: Option<&str>, labels: &[String]) {
        for label in labels {
            let named = title.map_or_else(|| capitalized(label), |title| format!("{} {label}", capitalized(title)));
            let count = format!("value_json.zones[{}][{}] | default(0)", json!(zone), json!(label));
            let sensor = json!({
                "name": format!("{named} count"),
                "state_topic": self.topics.counts(),
                "value_template": format!("{{{{ {count} }}}}"),
                "state_class": "measurement",
            });
            self.entity("sensor", &["count", zone, label], sensor);
            let is_there = json!({
                "name": named,
                "state_topic": self.topics.counts(),
                "value_template": format!("{{{{ 'ON' if ({count}) > 0 else 'OFF' }}}}"),
                "device_class": "occupancy",
            });
            self.entity("binary_sensor", &["presence", zone, label], is_there);
        }
    }

    /// Adds an entity about the camera itself, which is available while the camera is not.
    fn diagnostic(&mut self, component: &str, part: &str, mut content: Value) {
        if let Some(content) = content.as_object_mut() {
            content.insert("entity_category".to_owned(), "diagnostic".into());
            content.insert("availability_topic".to_owned(), json!(self.site.online));
        }
        self.entity(component, &[part], content);
    }

    /// Adds an entity. `content` is the part of its message that other entities do not have.
    fn entity(&mut self, component: &str, parts: &[&str], content: Value) {
        let DiscoverySite { prefix, device, online, version, .. } = self.site;
        let node = joined(["ledge", device.as_str()]);
        let object = joined([self.camera.name.as_str()].into_iter().chain(parts.iter().copied()));
        let name = self.camera.name.as_str();
        let mut entity = json!({
            "unique_id": format!("{node}--{object}"),
            "device": {
                "identifiers": [joined(["ledge", device.as_str(), name])],
                "name": name,
                "manufacturer": "Ledge",
                "model": format!("Camera of {device}"),
                "sw_version": version,
            },
            "origin": { "name": "Ledge", "sw_version": version },
            "availability": [{ "topic": online }, { "topic": self.topics.state() }],
            "availability_mode": "all",
        });
        if let (Some(entity), Value::Object(content)) = (entity.as_object_mut(), content) {
            if content.contains_key("availability_topic") {
                entity.remove("availability");
                entity.remove("availability_mode");
            }
            entity.extend(content);
        }
        self.found.insert(format!("{prefix}/{component}/{node}/{object}/config"), entity);
    }
}

/// Joins texts to one of `A-Z a-z 0-9 _ -`, the characters of an identifier of Home Assistant. Different texts make
/// different identifiers.
fn joined<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut joined = String::new();
    for text in texts {
        if !joined.is_empty() {
            joined.push_str("--");
        }
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || byte == b'_' {
                joined.push(char::from(byte));
            } else {
                // Writing into a String does not fail.
                let _ = write!(joined, "-{byte:02x}");
            }
        }
    }
    joined
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn announced(config: &str, unusual: Option<&str>) -> DiscoveryMessages {
        #[derive(serde::Deserialize)]
        struct DiscoveryFile {
            #[serde(default)]
            camera: CamerasConfig,
        }
        let config: DiscoveryFile = toml::from_str(config).unwrap();
        let device = "box.7".parse().unwrap();
        let site = DiscoverySite {
            prefix: "homeassistant",
            device: &device,
            cameras: "ledge/v1/box.7/cameras",
            online: "ledge/v1/box.7/online",
            unusual,
            version: "1",
        };
        announcements(&config.camera, &site)
    }

    const YARD: &str = "
        [[camera]]
        name = 'yard'
        labels = ['person', 'traffic light']
        publish_pictures = true
        [[camera.zones]]
        name = 'gate'
        points = [[0, 0], [1, 0], [1, 1]]
        labels = ['person']
    ";

    #[test]
    fn each_label_of_each_zone_has_a_count_and_a_presence() {
        let found = announced(YARD, None);
        let topics: Vec<&str> = found.keys().map(String::as_str).collect();
        let node = "ledge--box-2e7";
        let expected = [
            format!("homeassistant/binary_sensor/{node}/yard--connection/config"),
            format!("homeassistant/binary_sensor/{node}/yard--presence--everywhere--person/config"),
            format!("homeassistant/binary_sensor/{node}/yard--presence--everywhere--traffic-20light/config"),
            format!("homeassistant/binary_sensor/{node}/yard--presence--gate--person/config"),
            format!("homeassistant/image/{node}/yard--picture/config"),
            format!("homeassistant/sensor/{node}/yard--count--everywhere--person/config"),
            format!("homeassistant/sensor/{node}/yard--count--everywhere--traffic-20light/config"),
            format!("homeassistant/sensor/{node}/yard--count--gate--person/config"),
            format!("homeassistant/sensor/{node}/yard--new-2dpicture/config"),
            format!("homeassistant/sensor/{node}/yard--state/config"),
        ];
        assert_eq!(topics, expected);

        let count = &found[&expected[6]];
        assert_eq!(count["name"], "Traffic light count");
        assert_eq!(count["value_template"], r#"{{ value_json.zones["everywhere"]["traffic light"] | default(0) }}"#);
        assert_eq!(count["availability"][1]["topic"], "ledge/v1/box.7/cameras/yard/state");
        let connection = &found[&expected[0]];
        assert!(
            connection.get("availability").is_none() && connection["availability_topic"] == "ledge/v1/box.7/online"
        );
        assert_eq!(found[&expected[3]]["name"], "Gate person");
        // Both say why the others are unavailable, so they stay while the camera is not online.
        for (diagnostic, value) in [(&expected[8], "new_picture_at"), (&expected[9], "state")] {
            let entity = &found[diagnostic];
            assert_eq!(entity["state_topic"], "ledge/v1/box.7/cameras/yard/status");
            assert_eq!(entity["value_template"], format!("{{{{ value_json.{value} }}}}"));
            assert!(entity.get("availability").is_none() && entity["availability_topic"] == "ledge/v1/box.7/online");
        }
        let ids: BTreeSet<_> = found.values().map(|entity| entity["unique_id"].to_string()).collect();
        assert_eq!(ids.len(), found.len());
        let devices: BTreeSet<_> = found.values().map(|entity| entity["device"].to_string()).collect();
        assert_eq!(devices.len(), 1);
    }

    #[test]
    fn without_labels_there_are_the_diagnostics_alone() {
        assert_eq!(announced("[[camera]]\nname = 'yard'", None).len(), 3);
    }

    #[test]
    fn the_box_is_a_device_of_its_own_where_it_says_what_is_unusual() {
        let topic = "ledge/v1/box.7/unusual";
        let found = announced("", Some(topic));
        let (config, entity) = found.first_key_value().unwrap();
        assert_eq!((found.len(), config.as_str()), (1, "homeassistant/binary_sensor/ledge--box-2e7/unusual/config"));
        assert!(entity["state_topic"] == topic && entity["json_attributes_topic"] == topic);

        // No camera has the same device, nor one called `unusual` the same entity.
        let both = announced(&YARD.replace("'yard'", "'unusual'"), Some(topic));
        let devices: BTreeSet<_> = both.values().map(|entity| entity["device"]["identifiers"].to_string()).collect();
        let ids: BTreeSet<_> = both.values().map(|entity| entity["unique_id"].to_string()).collect();
        assert_eq!((devices.len(), ids.len()), (2, 11));
    }

    proptest! {
        #[test]
        fn different_texts_make_different_identifiers(
            one in prop::collection::vec("[a-b._ä-]{1,3}", 1..4),
            other in prop::collection::vec("[a-b._ä-]{1,3}", 1..4),
        ) {
            let id = |texts: &[String]| joined(texts.iter().map(String::as_str));
            prop_assert_eq!(id(&one) == id(&other), one == other);
            prop_assert!(id(&one).bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)));
        }
    }
}
