//! Signed updates: what is trusted first, whether the repository answers, and whether the clock can be right.

use std::time::Duration;

use ledge_base::clock;
use ledge_egress::Egress;
use ledge_part::check::Check;
use ledge_part::section::Site;
use ledge_service::audit_event::AuditSink;
use ledge_service::off_thread::block_on;
use serde_json::Value;

use crate::config::UpdatesConfig;
use crate::source::Source;

/// How long the repository may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Larger than any metadata that names the others.
const MAX_BYTES: u64 = 64 << 10;

/// Whether updates can work; nothing where no platform looks after this box.
pub fn checks(config: &UpdatesConfig, site: &Site<'_>) -> Vec<Check> {
    if config.repository.is_none() {
        return Vec::new();
    }
    vec![root(config), repository(config, site), time_of_day(clock::unix_millis(), clock::built_ms())]
}

/// The root metadata that this box trusts first.
fn root(config: &UpdatesConfig) -> Check {
    let (name, file) = ("updates root", config.root_file.display());
    let advice = "put your platform's root.json there (updates.root_file), readable for the user of the service";
    let text = match std::fs::read(&config.root_file) {
        Ok(text) => text,
        Err(error) => return Check::fail(name, format!("{file}: {error}"), advice),
    };
    let root: Value = serde_json::from_slice(&text).unwrap_or_default();
    let signed = |key: &str| root.pointer(&format!("/signed/{key}"));
    match (signed("_type").and_then(Value::as_str), signed("version").and_then(Value::as_u64)) {
        (Some("root"), Some(version)) => Check::ok(name, format!("{file}: version {version}")),
        _ => Check::fail(name, format!("{file}: is no root metadata of TUF"), advice),
    }
}

/// Whether the repository answers. What it says is judged by the server alone.
fn repository(config: &UpdatesConfig, site: &Site<'_>) -> Check {
    let name = "updates";
    let advice = "models that run go on without it; look at the network, updates.proxy, updates.tls and egress";
    let address = config.repository.as_ref().map(ToString::to_string).unwrap_or_default();
    let audit = AuditSink::to_nowhere();
    let Some(source) = Source::configured(config, &Egress::new(site.egress, audit)) else {
        return Check::fail(name, format!("{address}: there is no way to it"), advice);
    };
    let asked = block_on(async { tokio::time::timeout(LIMIT, source.metadata("timestamp.json", MAX_BYTES)).await });
    match asked {
        Ok(Ok(Ok(Some(_)))) => Check::ok(name, format!("{address} answers")),
        Ok(Ok(Ok(None))) => {
            let advice = "is updates.repository the folder that has metadata/ and targets/, and was it published?";
            Check::fail(name, format!("{address} has no metadata/timestamp.json"), advice)
        }
        Ok(Ok(Err(error))) => Check::fail(name, format!("{address}: {error}"), advice),
        Ok(Err(_)) => Check::fail(name, format!("{address} does not answer within {} s", LIMIT.as_secs()), advice),
        Err(error) => Check::fail(name, error.to_string(), advice),
    }
}

/// Whether the clock can be right: it cannot be before this program was built.
fn time_of_day(now_ms: u64, built_ms: u64) -> Check {
    let (name, now) = ("clock", clock::rfc3339(now_ms));
    if now_ms < built_ms {
        let detail = format!("it is {now} here, before this version of Ledge was built ({})", clock::rfc3339(built_ms));
        let advice = "set the clock, or have it set (systemd-timesyncd, chrony): until then waves and windows open late, \
                      and metadata that has expired may count as valid";
        return Check::warn(name, detail, advice);
    }
    Check::ok(name, now)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ledge_egress::EgressConfig;
    use ledge_identity::device::DeviceConfig;
    use ledge_identity::sealing::EncryptionConfig;
    use ledge_part::check::Status;
    use ledge_part::section::Section;

    use super::*;

    fn look(config: &UpdatesConfig, folder: &Path) -> Vec<Check> {
        let (device, encryption, egress) =
            (DeviceConfig::default(), EncryptionConfig::default(), EgressConfig::default());
        let site =
            Site { state: folder, device: &device, encryption: &encryption, egress: &egress, ask_daemon: &|_| None };
        checks(config, &site)
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the files")]
    fn a_box_whose_root_or_repository_is_missing_is_told_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = UpdatesConfig::default();
        config.resolve(folder.path());
        let look = |config: &UpdatesConfig| look(config, folder.path());
        assert_eq!(look(&config), []);
        config.repository = format!("file://{}", folder.path().display()).parse().ok();
        let statuses = |config: &UpdatesConfig| look(config).iter().map(|check| check.status).collect::<Vec<_>>();
        assert_eq!(statuses(&config), [Status::Fail, Status::Fail, Status::Ok]);
        std::fs::write(folder.path().join("root.json"), r#"{"signed": {"_type": "targets", "version": 1}}"#).unwrap();
        assert!(look(&config)[0].detail.contains("is no root metadata"));
        std::fs::write(folder.path().join("root.json"), r#"{"signed": {"_type": "root", "version": 1}}"#).unwrap();
        std::fs::create_dir(folder.path().join("metadata")).unwrap();
        std::fs::write(folder.path().join("metadata/timestamp.json"), "{}").unwrap();
        assert_eq!(statuses(&config), [Status::Ok; 3]);
    }

    #[test]
    fn a_clock_before_the_build_is_wrong() {
        assert_eq!(time_of_day(5, 6).status, Status::Warn);
        assert_eq!(time_of_day(6, 6).status, Status::Ok);
    }
}
