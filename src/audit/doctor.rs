//! The audit log: whether it can be written, how long there is room for it, and whether its copy can be made.

use std::time::Duration;

use ledge_base::secret::SecretError;
use ledge_egress::{Egress, HttpClient, HttpSettings, Purpose};
use ledge_identity::device;
use ledge_identity::sealing::{MasterKeyError, Sealer};
use ledge_part::check::{Check, size};
use ledge_part::section::Site;
use ledge_service::audit_event::AuditSink;
use ledge_service::off_thread::block_on;
use rustix::fs::Access;
use serde_json::Value;

use crate::config::{AuditConfig, SyncAddress};
use crate::key::AuditKey;

/// How long the server of the copy may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Larger than any checkpoint.
const LONGEST: usize = 64 << 10;

/// Whether the audit log can do its work.
pub fn checks(config: &AuditConfig, site: &Site<'_>) -> Vec<Check> {
    let mut checks = vec![log(config, site), key(config, site)];
    checks.extend(site.encryption.exposed().map(|file| {
        let advice = "chmod 600, and chown it to the user of the service: it opens whatever is sealed here";
        Check::warn("encryption", format!("others than its owner may read {file}"), advice)
    }));
    checks.extend(sync(config, site));
    checks
}

/// The folder of the log, and how it does where its daemon runs.
fn log(config: &AuditConfig, site: &Site<'_>) -> Check {
    let (name, folder) = ("audit log", config.path.as_path());
    // Before the first start there is no folder: then it is its parent that counts.
    let place = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    if let Err(error) = rustix::fs::access(place, Access::WRITE_OK | Access::EXEC_OK) {
        let advice = "make it writable for the user of the service: without a log nothing is administered";
        return Check::fail(name, format!("{}: {error}", place.display()), advice);
    }
    let free = rustix::fs::statvfs(place).map_or(u64::MAX, |found| found.f_bavail.saturating_mul(found.f_frsize));
    let detail = format!(
        "{}; {} free, {} of them stay free; it may take {}",
        folder.display(),
        size(free),
        size(config.min_free_mb << 20),
        size(config.quota_mb << 20)
    );
    let status = (site.ask_daemon)("/audit/status").unwrap_or_default();
    let told = |key: &str| status.get(key).and_then(Value::as_str);
    if let Some(error) = told("error") {
        let advice = "put that right: until then administrative requests are refused, and records are lost";
        return Check::fail(name, format!("{detail}\n{error}"), advice);
    }
    if free < config.min_free_mb << 20 {
        return Check::fail(name, detail, "make room: inference is not recorded (audit.min_free_mb)");
    }
    if let Some(alarm) = told("alarm") {
        let advice = "keep the log before this one, it is evidence: `ledge audit verify` says what is wrong with it";
        return Check::warn(name, format!("{detail}\n{alarm}"), advice);
    }
    Check::ok(name, detail)
}

/// The key that signs the log.
fn key(config: &AuditConfig, site: &Site<'_>) -> Check {
    let name = "audit key";
    let device = device::load(site.state, site.device).ok().flatten();
    let sealer = match Sealer::load(site.encryption) {
        Ok(sealer) => sealer,
        Err(error @ MasterKeyError::Secret(SecretError::NoCredentials { .. })) => {
            let advice = "the service alone knows it: run this as root while the service runs";
            return Check::warn("encryption", error.to_string(), advice);
        }
        Err(error) => return Check::fail("encryption", error.to_string(), "the daemon does not start without it"),
    };
    match device.map_or(Ok(None), |device| AuditKey::verifier_key_in(&config.path, &device.id, &sealer)) {
        Ok(None) => Check::ok(name, "none yet: the first start makes it"),
        Ok(Some(verifier_key)) => Check::ok(name, format!("others check the log with {verifier_key}")),
        Err(error) => {
            let advice = "it belongs to the user of the service, and nobody else may read it";
            Check::fail(name, error.to_string(), advice)
        }
    }
}

/// Whether the server of the copy answers; `None` where the log stays here.
fn sync(config: &AuditConfig, site: &Site<'_>) -> Option<Check> {
    let (name, sync) = ("audit copy", &config.sync);
    let url = sync.url.as_ref()?;
    let SyncAddress::Web(address) = url else {
        return Some(Check::ok(name, format!("{url}: what the bucket answers is in `GET /audit/status`")));
    };
    let advice = "nothing is lost while it is away; look at the network, audit.sync.proxy, audit.sync.tls and egress";
    let tls = address.tls.then(|| sync.tls.settings());
    let settings = HttpSettings { at: address.at.clone(), tls, proxy: sync.proxy.clone() };
    let egress = Egress::new(site.egress, AuditSink::to_nowhere());
    let client = HttpClient::for_audit(egress, settings, Purpose::Audit);
    let asked = block_on(async { tokio::time::timeout(LIMIT, client.get(&address.path, LONGEST)).await });
    Some(match asked {
        // Whether there is a list of files, or one may see it, is not of interest.
        Ok(Ok(Ok(answer))) if answer.status < 500 && answer.status != 401 => {
            Check::ok(name, format!("{url} answers (status {})", answer.status))
        }
        Ok(Ok(Ok(answer))) => Check::fail(name, format!("{url} answers with status {}", answer.status), advice),
        Ok(Ok(Err(error))) => Check::fail(name, format!("{url}: {error}"), advice),
        Ok(Err(_)) => Check::fail(name, format!("{url} does not answer within {} s", LIMIT.as_secs()), advice),
        Err(error) => Check::fail(name, error.to_string(), advice),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ledge_base::durable;
    use ledge_egress::EgressConfig;
    use ledge_identity::device::DeviceConfig;
    use ledge_identity::sealing::EncryptionConfig;
    use ledge_part::check::Status;
    use ledge_part::section::Section;

    use super::*;

    fn config(folder: &Path) -> AuditConfig {
        let mut config = AuditConfig::default();
        config.resolve(folder);
        config
    }

    fn statuses(folder: &Path, change: impl Fn(&mut AuditConfig)) -> Vec<Status> {
        let mut config = config(folder);
        change(&mut config);
        let (device, encryption, egress) =
            (DeviceConfig::default(), EncryptionConfig::default(), EgressConfig::default());
        let site =
            Site { state: folder, device: &device, encryption: &encryption, egress: &egress, ask_daemon: &|_| None };
        checks(&config, &site).iter().map(|check| check.status).collect()
    }

    #[test]
    fn a_log_without_room_and_a_damaged_key_and_a_server_that_is_away_are_told() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(statuses(folder.path(), |_| ()), [Status::Ok; 2]);
        let full = |config: &mut AuditConfig| config.min_free_mb = 1 << 40;
        assert_eq!(statuses(folder.path(), full), [Status::Fail, Status::Ok]);
        // Port 1 is nobody's.
        let away = |config: &mut AuditConfig| config.sync.url = "http://127.0.0.1:1/audit".parse().ok();
        assert_eq!(statuses(folder.path(), away), [Status::Ok, Status::Ok, Status::Fail]);
        let config = config(folder.path());
        device::load_or_create(folder.path(), &DeviceConfig::default()).unwrap();
        durable::create_folder(&config.path).unwrap();
        durable::replace(&config.path.join("key"), b"nonsense").unwrap();
        assert_eq!(statuses(folder.path(), |_| ()), [Status::Ok, Status::Fail]);
    }
}
