"""Checks entities with Home Assistant's own schemas and templates, and writes their number.

usage: home_assistant.py ENTITIES COUNTS     ENTITIES: a file with {topic: message}; COUNTS: the counts of a camera, in JSON
"""
import importlib
import json
import sys

from homeassistant.components.mqtt import discovery
from homeassistant.components.mqtt.const import CONF_ORIGIN, PAYLOAD_NONE
from homeassistant.helpers.template import TemplateEnvironment
from homeassistant.util import dt as dt_util

STATUS = {"camera": "yard", "state": "frozen", "since": "2026-01-01T09:12:05.500Z", "new_picture_at": "2026-01-01T09:10:05.125Z"}
UNUSUAL = {"series": "box", "column": "cores_busy", "kind": "level_shift", "direction": "up", "began": "2026-01-01T09:12:00Z"}


def main(entities, counts):
    with open(entities) as file:
        messages = json.load(file)
    counts = json.loads(counts)
    ids = set()
    for topic, message in messages.items():
        match = discovery.TOPIC_MATCHER.match(topic.removeprefix("homeassistant/"))
        assert match and match.group("component") in discovery.SUPPORTED_COMPONENTS, topic
        component, content = match.group("component"), json.loads(message)
        # As discovery does before a platform gets the message.
        discovery.MQTT_ORIGIN_INFO_SCHEMA(content.pop(CONF_ORIGIN))
        platform = importlib.import_module(f"homeassistant.components.mqtt.{component}")
        checked = platform.DISCOVERY_SCHEMA(content)
        assert set(content) <= set(checked), (topic, set(content) - set(checked))
        assert checked["unique_id"] not in ids, topic
        ids.add(checked["unique_id"])
        if content.get("state_topic", "").endswith("/status"):
            value = render(content["value_template"], STATUS)
            if "device_class" not in content:
                assert value == STATUS["state"], (topic, value)
            else:
                assert dt_util.parse_datetime(value, raise_on_error=True).tzinfo, (topic, value)
                assert render(content["value_template"], {**STATUS, "new_picture_at": None}) == PAYLOAD_NONE, topic
        elif content.get("state_topic", "").endswith("/unusual"):
            values = [render(content["value_template"], {"events": events}) for events in ([], [UNUSUAL])]
            assert values == ["OFF", "ON"], (topic, values)
        elif "value_template" in content:
            values = {render(content["value_template"], found) for found in (counts, {**counts, "zones": filled(counts, 1)},
                                                                              {**counts, "zones": filled(counts, None)})}
            assert values == ({"0", "1"} if component == "sensor" else {"ON", "OFF"}), (topic, values)
    print(len(ids), "entities")


def filled(counts, value):
    """The zones with another count of each label, or without their labels."""
    zones = counts["zones"].items()
    return {zone: {} if value is None else dict.fromkeys(labels, value) for zone, labels in zones}


def render(template, message):
    """The value of a template, in the environment of Home Assistant's templates."""
    environment = TemplateEnvironment(None, False, False, None)
    return environment.from_string(template).render(value_json=message).strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
