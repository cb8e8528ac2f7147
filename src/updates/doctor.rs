//! The findings about signed updates: the root file, the repository and the clock; the first two also for catalogues.

use std::path::Path;
use std::time::Duration;

use ledge_base::clock;
use ledge_egress::{Egress, HttpClient};
use ledge_part::check::Check;
use ledge_part::section::DoctorContext;
use ledge_service::audit_event::AuditSink;
use ledge_service::off_thread::block_on;
use serde_json::Value;

use crate::config::{RepositoryAddress, UpdatesConfig};
use crate::source::{self, Source};

/// The time that the repository has to answer.
const REPOSITORY_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer that is read, in bytes: larger than any timestamp metadata.
const METADATA_BYTES_MAX: u64 = 64 << 10;

/// A repository, and the keys of the configuration that name it.
pub struct CheckedRepository<'a> {
    /// The section, which is also the name of the findings.
    pub section: &'static str,
    /// The key of the address.
    pub address_key: &'static str,
    /// The one whose root metadata it is.
    pub owner: &'static str,
    pub root_file: &'a Path,
    pub address: &'a RepositoryAddress,
}

/// Checks that updates can work; no findings without `updates.repository`.
pub fn checks(config: &UpdatesConfig, context: &DoctorContext<'_>) -> Vec<Check> {
    let Some(address) = &config.repository else { return Vec::new() };
    let checked = CheckedRepository {
        section: "updates",
        address_key: "repository",
        owner: "your platform",
        root_file: &config.root_file,
        address,
    };
    let client = |egress: &_| source::client(address, egress, config.proxy.clone(), || config.tls.settings());
    let mut checks = vec![root(&checked)];
    checks.extend(context.may_connect.then(|| repository(&checked, context, client)));
    checks.push(time_of_day(clock::unix_millis(), clock::built_ms()));
    checks
}

/// Checks the root metadata that this box trusts first.
pub fn root(checked: &CheckedRepository<'_>) -> Check {
    let CheckedRepository { section, owner, root_file, .. } = checked;
    let (name, file) = (format!("{section} root"), root_file.display());
    let advice =
        format!("copy root.json of {owner} to this file ({section}.root_file), readable for the user of the service");
    let text = match std::fs::read(root_file) {
        Ok(text) => text,
        Err(error) => return Check::fail(&name, format!("{file}: {error}"), advice),
    };
    let root: Value = serde_json::from_slice(&text).unwrap_or_default();
    let signed = |key: &str| root.pointer(&format!("/signed/{key}"));
    match (signed("_type").and_then(Value::as_str), signed("version").and_then(Value::as_u64)) {
        (Some("root"), Some(version)) => Check::ok(&name, format!("{file}: version {version}")),
        _ => Check::fail(&name, format!("{file} is not TUF root metadata"), advice),
    }
}

/// Checks that the repository answers. Only what uses it verifies its metadata.
pub fn repository(
    checked: &CheckedRepository<'_>,
    context: &DoctorContext<'_>,
    client: impl FnOnce(&Egress) -> Option<HttpClient>,
) -> Check {
    let CheckedRepository { section, address_key, address, .. } = checked;
    let name = *section;
    let advice =
        format!("check the network, {section}.proxy, {section}.tls and [egress]; loaded models keep running meanwhile");
    let source = Source::new(address, client(&Egress::new(context.egress, AuditSink::to_nowhere())));
    let asked = block_on(async {
        tokio::time::timeout(REPOSITORY_REPLY_TIMEOUT, source.metadata("timestamp.json", METADATA_BYTES_MAX)).await
    });
    match asked {
        Ok(Ok(Ok(Some(_)))) => Check::ok(name, format!("{address} answers")),
        Ok(Ok(Ok(None))) => {
            let advice =
                format!("set {section}.{address_key} to the published folder that contains metadata/ and targets/");
            Check::fail(name, format!("{address} has no metadata/timestamp.json"), advice)
        }
        Ok(Ok(Err(error))) => Check::fail(name, format!("{address}: {error}"), advice),
        Ok(Err(_)) => Check::fail(
            name,
            format!("{address} does not answer within {} s", REPOSITORY_REPLY_TIMEOUT.as_secs()),
            advice,
        ),
        Err(error) => Check::fail(name, error.to_string(), advice),
    }
}

/// Checks the clock, which cannot be earlier than the build of this program.
fn time_of_day(now_ms: u64, built_ms: u64) -> Check {
    let (name, now) = ("clock", clock::rfc3339(now_ms));
    if now_ms < built_ms {
        let detail = format!("{now}, which is before this version of Ledge was built ({})", clock::rfc3339(built_ms));
        let advice = "set the clock, or run a time service (systemd-timesyncd, chrony): until then waves and windows \
                      open late, and expired metadata may be accepted";
        return Check::warn(name, detail, advice);
    }
    Check::ok(name, now)
}

#[cfg(test)]
mod tests {
    use ledge_part::check::Status;
    use ledge_part::section::{Section, findings_alone};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the files")]
    fn a_missing_root_file_or_repository_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = UpdatesConfig::default();
        config.resolve(folder.path());
        let look = |config: &UpdatesConfig| findings_alone(config, folder.path());
        assert_eq!(look(&config), []);
        config.repository = format!("file://{}", folder.path().display()).parse().ok();
        let statuses = |config: &UpdatesConfig| look(config).iter().map(|check| check.status).collect::<Vec<_>>();
        assert_eq!(statuses(&config), [Status::Fail, Status::Fail, Status::Ok]);
        std::fs::write(folder.path().join("root.json"), r#"{"signed": {"_type": "targets", "version": 1}}"#).unwrap();
        assert!(look(&config)[0].detail.contains("is not TUF root metadata"));
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
