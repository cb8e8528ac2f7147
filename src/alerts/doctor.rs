//! The findings about alerts: receivers that do not take messages.

use ledge_base::secret::SecretError;
use ledge_part::check::Finding;
use ledge_part::section::DoctorContext;
use serde_json::Value;

use crate::config::{AlertConfig, AlertsConfig};

/// Checks the secret of each alert, and asks the daemon how its messages went.
pub fn checks(config: &AlertsConfig, context: &DoctorContext<'_>) -> Vec<Finding> {
    if config.is_empty() {
        return Vec::new();
    }
    let status = (context.ask_daemon)("/alerts").unwrap_or_default();
    let receivers = status.get("alerts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    config.iter().map(|alert| check(alert, receivers)).collect()
}

fn check(alert: &AlertConfig, receivers: &[Value]) -> Finding {
    let name = alert.check_name();
    let secret = alert.token_file.as_ref().map(|file| file.read().map(drop));
    // A command that is not root's has no credentials; the service has.
    if let Some(Err(error)) = secret.filter(|read| !matches!(read, Err(SecretError::NoCredentials { .. }))) {
        let advice = "correct it: until then the webhook gets no message";
        return Finding::fail(&name, error.to_string(), advice);
    }
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let own = || receivers.iter().filter(|receiver| text(receiver, "name") == alert.name.as_str());
    let failing: Vec<_> = own()
        .filter(|receiver| receiver.get("error").is_some_and(Value::is_string))
        .map(|receiver| format!("{}: {}", text(receiver, "to"), text(receiver, "error")))
        .collect();
    if !failing.is_empty() {
        let advice = format!(
            "check the receiver, the network, url, token_file and [egress]; then try it: POST /alerts/{}/test",
            alert.name
        );
        return Finding::fail(&name, failing.join("\n"), advice);
    }
    let sent: u64 = own().filter_map(|receiver| receiver.get("sent")?.as_u64()).sum();
    let to: Vec<_> = alert.url.iter().map(ToString::to_string).chain(alert.mqtt.then(|| "MQTT".to_owned())).collect();
    let sent = if receivers.is_empty() { String::new() } else { format!(": {sent} messages since the start") };
    Finding::ok(&name, format!("to {}{sent}", to.join(" and ")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ledge_egress::EgressConfig;
    use ledge_identity::device::DeviceConfig;
    use ledge_identity::sealing::EncryptionConfig;
    use ledge_part::check::FindingStatus;
    use serde_json::json;

    use super::*;

    fn look(text: &str, status: Option<&Value>) -> Vec<(FindingStatus, String)> {
        let config: AlertConfig = toml::from_str(text).unwrap();
        let (device, encryption, egress) =
            (DeviceConfig::default(), EncryptionConfig::default(), EgressConfig::default());
        let found = checks(
            &AlertsConfig(vec![config]),
            &DoctorContext {
                state: Path::new("."),
                device: &device,
                encryption: &encryption,
                egress: &egress,
                may_connect: false,
                ask_daemon: &|_| status.cloned(),
            },
        );
        found.into_iter().map(|check| (check.status, check.detail)).collect()
    }

    #[test]
    fn a_receiver_that_refuses_is_a_failure_and_its_path_is_not_told() {
        let text = "name = 'shop'\nurl = 'https://hooks.example/secret'";
        assert_eq!(look(text, None), [(FindingStatus::Ok, "to https://hooks.example:443/<hidden>".to_owned())]);
        let receiver =
            |error: Value| json!({"alerts": [{"name": "shop", "to": "https://h/", "sent": 2, "error": error}]});
        let [(status, detail)] = look(text, Some(&receiver(Value::Null))).try_into().unwrap();
        assert!(status == FindingStatus::Ok && detail.ends_with(": 2 messages since the start"), "{detail}");
        let refused = look(text, Some(&receiver(json!("status 403"))));
        assert_eq!(refused, [(FindingStatus::Fail, "https://h/: status 403".to_owned())]);
        assert_eq!(look("name = 'other'\nmqtt = true", Some(&receiver(json!("x"))))[0].0, FindingStatus::Ok);
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_a_failure() {
        let found = look("name = 'shop'\nurl = 'https://h/x'\ntoken_file = '/nowhere'", None);
        assert!(found[0].0 == FindingStatus::Fail && found[0].1.contains("/nowhere"), "{found:?}");
    }
}
