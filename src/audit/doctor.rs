//! The findings about the audit log: its folder and free space, its key, and its copy.

use std::time::Duration;

use ledge_base::secret::SecretError;
use ledge_egress::{Egress, EgressPurpose, HttpClient, HttpClientSettings};
use ledge_identity::device;
use ledge_identity::sealing::{MasterKeyError, Sealer};
use ledge_part::check::{Finding, size};
use ledge_part::section::DoctorContext;
use ledge_service::audit_event::AuditSink;
use ledge_service::off_thread::block_on;
use rustix::fs::Access;
use serde_json::Value;

use crate::config::{AuditConfig, AuditSyncAddress};
use crate::key::AuditKey;

/// The time that the server of the copy has to answer.
const COPY_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer that is read, in bytes: larger than any checkpoint.
const COPY_REPLY_BYTES_MAX: usize = 64 << 10;

/// Checks that the audit log can be written, signed and copied.
pub fn checks(config: &AuditConfig, context: &DoctorContext<'_>) -> Vec<Finding> {
    let mut checks = vec![log(config, context), key(config, context)];
    checks.extend(context.encryption.exposed().map(|file| {
        let advice =
            "chmod 600, and chown it to the user of the service: this key decrypts all encrypted files of this box";
        Finding::warn("encryption", format!("users other than its owner can read {file}"), advice)
    }));
    checks.extend(sync(config, context));
    checks
}

/// Checks the folder of the log, and its status where the daemon runs.
fn log(config: &AuditConfig, context: &DoctorContext<'_>) -> Finding {
    let (name, folder) = ("audit log", config.path.as_path());
    // Before the first start there is no folder: its nearest parent is checked then.
    let place = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    if let Err(error) = rustix::fs::access(place, Access::WRITE_OK | Access::EXEC_OK) {
        let advice =
            "make it writable for the user of the service: without an audit log, administrative requests are refused";
        return Finding::fail(name, format!("{}: {error}", place.display()), advice);
    }
    let free = rustix::fs::statvfs(place).map_or(u64::MAX, |found| found.f_bavail.saturating_mul(found.f_frsize));
    let detail = format!(
        "{}; {} free, of which {} are kept free; the log may use {}",
        folder.display(),
        size(free),
        size(config.min_free_mb << 20),
        size(config.quota_mb << 20)
    );

    let status = (context.ask_daemon)("/audit/status").unwrap_or_default();
    let reported = |key: &str| status.get(key).and_then(Value::as_str);
    if let Some(error) = reported("error") {
        let advice = "correct this: until then administrative requests are refused, and records are lost";
        return Finding::fail(name, format!("{detail}\n{error}"), advice);
    }
    if free < config.min_free_mb << 20 {
        return Finding::fail(name, detail, "free disk space: inferences are not recorded below audit.min_free_mb");
    }
    if let Some(alarm) = reported("alarm") {
        let advice = "keep the previous log, it is evidence: `ledge audit verify` reports what is wrong with it";
        return Finding::warn(name, format!("{detail}\n{alarm}"), advice);
    }
    Finding::ok(name, detail)
}

/// Checks the key that signs the log.
fn key(config: &AuditConfig, context: &DoctorContext<'_>) -> Finding {
    let name = "audit key";
    let device = device::load(context.state, context.device).ok().flatten();
    let sealer = match Sealer::load(context.encryption) {
        Ok(sealer) => sealer,
        Err(error @ MasterKeyError::Secret(SecretError::NoCredentials { .. })) => {
            let advice = "only the service has this credential: run this as root while the service runs";
            return Finding::warn("encryption", error.to_string(), advice);
        }
        Err(error) => {
            return Finding::fail(
                "encryption",
                error.to_string(),
                "correct it: the daemon does not start without the key",
            );
        }
    };
    match device.map_or(Ok(None), |device| AuditKey::verifier_key_in(&config.path, &device.id, &sealer)) {
        Ok(None) => Finding::ok(name, "none yet: the first start creates it"),
        Ok(Some(verifier_key)) => Finding::ok(name, format!("the log is verified with {verifier_key}")),
        Err(error) => {
            let advice = "make its file readable for the user of the service only";
            Finding::fail(name, error.to_string(), advice)
        }
    }
}

/// Checks that the server of the copy answers; `None` where no copy is configured.
fn sync(config: &AuditConfig, context: &DoctorContext<'_>) -> Option<Finding> {
    let (name, sync) = ("audit copy", &config.sync);
    let url = sync.url.as_ref()?;
    let advice = "check the network, audit.sync.proxy, audit.sync.tls and [egress]; no record is lost meanwhile";
    if !context.may_connect {
        // The daemon knows how its last upload went.
        let status = (context.ask_daemon)("/audit/status").unwrap_or_default();
        let error = status.pointer("/sync/error").and_then(Value::as_str);
        return Some(match error {
            Some(error) => Finding::fail(name, format!("{url}: {error}"), advice),
            None => Finding::ok(name, url.to_string()),
        });
    }
    let AuditSyncAddress::Web(address) = url else {
        return Some(Finding::ok(
            name,
            format!("{url}: GET /audit/status has the result of the last upload to the bucket"),
        ));
    };
    let tls = address.tls.then(|| sync.tls.settings());
    let settings = HttpClientSettings { at: address.at.clone(), tls, proxy: sync.proxy.clone() };
    let egress = Egress::new(context.egress, AuditSink::to_nowhere());
    let client = HttpClient::for_audit(egress, settings, EgressPurpose::Audit);
    let reply = block_on(async {
        tokio::time::timeout(COPY_REPLY_TIMEOUT, client.get(&address.path, COPY_REPLY_BYTES_MAX)).await
    });
    Some(match reply {
        // Any answer will do, also one that refuses a list of files.
        Ok(Ok(Ok(answer))) if answer.status < 500 && answer.status != 401 => {
            Finding::ok(name, format!("{url} answers (status {})", answer.status))
        }
        Ok(Ok(Ok(answer))) => Finding::fail(name, format!("{url} answers with status {}", answer.status), advice),
        Ok(Ok(Err(error))) => Finding::fail(name, format!("{url}: {error}"), advice),
        Ok(Err(_)) => {
            Finding::fail(name, format!("{url} does not answer within {} s", COPY_REPLY_TIMEOUT.as_secs()), advice)
        }
        Err(error) => Finding::fail(name, error.to_string(), advice),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ledge_base::durable;
    use ledge_identity::device::DeviceConfig;
    use ledge_part::check::FindingStatus;
    use ledge_part::section::{ConfigSection, findings_alone};

    use super::*;

    fn config(folder: &Path) -> AuditConfig {
        let mut config = AuditConfig::default();
        config.resolve(folder);
        config
    }

    fn statuses(folder: &Path, change: impl Fn(&mut AuditConfig)) -> Vec<FindingStatus> {
        let mut config = config(folder);
        change(&mut config);
        findings_alone(&config, folder).iter().map(|check| check.status).collect()
    }

    #[test]
    fn a_full_disk_a_damaged_key_and_an_unreachable_server_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(statuses(folder.path(), |_| ()), [FindingStatus::Ok; 2]);
        let full = |config: &mut AuditConfig| config.min_free_mb = 1 << 40;
        assert_eq!(statuses(folder.path(), full), [FindingStatus::Fail, FindingStatus::Ok]);
        // Nothing listens on port 1.
        let away = |config: &mut AuditConfig| config.sync.url = "http://127.0.0.1:1/audit".parse().ok();
        assert_eq!(statuses(folder.path(), away), [FindingStatus::Ok, FindingStatus::Ok, FindingStatus::Fail]);
        let config = config(folder.path());
        device::load_or_create(folder.path(), &DeviceConfig::default()).unwrap();
        durable::create_folder(&config.path).unwrap();
        durable::replace(&config.path.join("key"), b"nonsense").unwrap();
        assert_eq!(statuses(folder.path(), |_| ()), [FindingStatus::Ok, FindingStatus::Fail]);
    }
}
