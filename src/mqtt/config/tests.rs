use super::*;

fn address(text: &str) -> BrokerAddress {
    text.parse().unwrap()
}

#[test]
fn a_broker_has_the_registered_port_unless_it_names_another() {
    let broker = |host, port, tls| BrokerAddress { at: HostPort::new(host, port).unwrap(), tls };
    let plain = broker("broker.lan", 1883, false);
    assert_eq!([address("mqtt://broker.lan"), address("mqtt://broker.lan:1883")], [plain.clone(), plain]);
    assert_eq!(address("mqtts://10.0.0.1"), broker("10.0.0.1", 8883, true));
    assert_eq!(address("mqtts://[fd00::1]"), broker("fd00::1", 8883, true));
    assert_eq!(address("mqtts://[fd00::1]:1"), broker("fd00::1", 1, true));
    for text in ["mqtt://broker.lan:1883", "mqtts://[fd00::1]:8883", "mqtt://a_b-c:65535", "mqtts://localhost:1"] {
        assert_eq!(address(text).to_string(), text);
    }
}

#[test]
fn a_text_that_is_no_broker_is_refused() {
    for bad in [
        "",
        "broker",
        "broker:1883",
        "http://broker",
        "mqtt:broker",
        "mqtt://",
        "mqtt://:1883",
        "mqtt://a:",
        "mqtt://a:0",
        "mqtt://a:+1",
        "mqtt://a:65536",
        "mqtt://a/",
        "mqtt://a..b",
        "mqtt://a b",
        "mqtt://fd00::1",
        "mqtt://[fd00::1",
        "mqtt://[fd00::1]1",
        "mqtt://[a]",
        "mqtt://fd00::1]",
        // Hosts that the allow-list cannot name.
        "mqtt://broker.",
        "mqtt://127.1",
        "mqtt://a,b",
    ] {
        assert!(bad.parse::<BrokerAddress>().is_err(), "{bad}");
    }
}

#[test]
fn a_password_in_the_address_is_refused_and_not_repeated() {
    for scheme in ["mqtt://", "mqtts://", "tcp://", ""] {
        let error = format!("{scheme}till:hunter2@broker").parse::<BrokerAddress>().unwrap_err().to_string();
        assert!(!error.contains("hunter2") && error.contains("mqtt.password_file"), "{error}");
    }
}

#[test]
fn a_broker_on_another_machine_needs_tls_or_a_setting() {
    let problems = |broker: &str, allow_plaintext| {
        let config = MqttConfig { broker: broker.parse().ok(), allow_plaintext, ..MqttConfig::default() };
        let [destination] = config.destinations().try_into().unwrap();
        let refusal = destination.plaintext_refusal().map(|problem| ValueProblem::new(&destination.key, problem));
        refusal.into_iter().chain(config.problems()).collect::<Vec<_>>()
    };
    for fine in ["mqtt://localhost", "mqtt://127.0.0.1", "mqtt://[::1]", "mqtts://broker.lan"] {
        assert_eq!(problems(fine, false), [], "{fine}");
    }
    let found = problems("mqtt://broker.lan:1884", false);
    assert!(found.len() == 1 && found[0].key == "broker", "{found:?}");
    assert!(
        found[0].message.contains("mqtts://broker.lan:8883") && found[0].message.contains("allow_plaintext"),
        "{found:?}"
    );
    assert_eq!(problems("mqtt://broker.lan", true), []);
}

#[test]
fn settings_that_do_not_fit_together_are_named() {
    let file = || "x".parse().ok();
    let keys = |config: MqttConfig| config.problems().into_iter().map(|problem| problem.key).collect::<Vec<_>>();
    let config = |tls| MqttConfig { broker: Some(address("mqtts://b")), tls, ..MqttConfig::default() };
    assert_eq!(keys(MqttConfig { password_file: file(), ..MqttConfig::default() }), ["password_file"]);
    assert_eq!(keys(MqttConfig { user: "till".into(), ..MqttConfig::default() }), [""; 0]);
    assert_eq!(keys(MqttConfig { user: "a\0".into(), ..MqttConfig::default() }), ["user"]);
    assert_eq!(
        keys(config(TlsClientFiles { certificate_file: file(), ..TlsClientFiles::default() })),
        ["tls.certificate_file"]
    );
    assert_eq!(keys(config(TlsClientFiles { key_file: file(), ..TlsClientFiles::default() })), ["tls.key_file"]);
    let all = TlsClientFiles { ca_file: file(), certificate_file: file(), key_file: file() };
    assert_eq!(keys(config(all.clone())), [""; 0]);
    let plain = MqttConfig { broker: Some(address("mqtt://localhost")), tls: all, ..MqttConfig::default() };
    assert_eq!(keys(plain), ["tls.ca_file", "tls.certificate_file", "tls.key_file"]);
    assert_eq!(keys(MqttConfig { max_memory_bytes: 1 << 20, ..MqttConfig::default() }), ["max_memory_bytes"]);
}

#[test]
fn paths_are_resolved_and_credentials_are_not() {
    let mut config = MqttConfig {
        password_file: "secret/mqtt".parse().ok(),
        tls: TlsClientFiles { key_file: "credential:key".parse().ok(), ..TlsClientFiles::default() },
        ..MqttConfig::default()
    };
    config.resolve(Path::new("/srv"));
    assert_eq!(config.password_file, "/srv/secret/mqtt".parse().ok());
    assert_eq!(config.tls.key_file, "credential:key".parse().ok());
}
