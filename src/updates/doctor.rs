//! The findings about signed updates: the root file, the repository and the clock; the first two also for catalogues.

use std::path::Path;
use std::time::Duration;

use ledge_base::clock;
use ledge_egress::{Egress, HttpClient};
use ledge_part::check::Finding;
use ledge_part::section::DoctorContext;
use ledge_service::audit_event::AuditSink;
use ledge_service::off_thread::block_on;
use serde_json::Value;

use crate::config::{RepositoryAddress, UpdatesConfig};
use crate::source::{self, RepositorySource};
use crate::state::RollbackCause;
use crate::status_report::{ROLLED_BACK, RoleReport, SubjectReport, UpdatesReport};

/// The time that the repository has to answer.
const REPOSITORY_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer that is read, in bytes: larger than any timestamp metadata.
const METADATA_BYTES_MAX: u64 = 64 << 10;

/// The time before the expiry of trusted metadata from which it is reported: a platform renews it days before.
const METADATA_EXPIRY_WARNING_PERIOD: Duration = Duration::from_hours(12);

/// A repository, and the keys of the configuration that name it.
pub struct CheckedRepository<'a> {
    /// The section, which is also the name of the findings.
    pub section: &'static str,
    /// The key of the address.
    pub address_key: &'static str,
    /// The owner of the root metadata.
    pub owner: &'static str,
    pub root_file: &'a Path,
    pub address: &'a RepositoryAddress,
}

/// Checks that updates can work; no findings without `updates.repository`.
pub fn checks(config: &UpdatesConfig, context: &DoctorContext<'_>) -> Vec<Finding> {
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
    let report = (context.ask_daemon)("/updates").and_then(|report| serde_json::from_value(report).ok());
    if context.may_connect {
        checks.push(repository(&checked, context, client));
    } else {
        checks.extend(report.as_ref().map(last_check));
    }
    checks.extend(report.iter().filter_map(|report| expiry(report, clock::unix_millis())));
    checks.extend(report.iter().flat_map(rolled_back));
    checks.push(time_of_day(clock::unix_millis(), clock::built_ms()));
    checks
}

/// The finding about the daemon's last check of the platform.
fn last_check(report: &UpdatesReport) -> Finding {
    let UpdatesReport { repository, checked, error, .. } = report;
    match error {
        Some(error) => {
            let advice =
                "check the network, updates.proxy, updates.tls and [egress]; loaded models keep running meanwhile";
            Finding::fail("updates", format!("{repository}: {error}"), advice)
        }
        None => Finding::ok("updates", format!("{repository}: last checked {}", checked.as_deref().unwrap_or("never"))),
    }
}

/// The finding about trusted metadata that ends soon, which the platform should have renewed before.
fn expiry(report: &UpdatesReport, now_ms: u64) -> Option<Finding> {
    let ends = |(role, of): (&String, &RoleReport)| Some((clock::parse_micros(of.expires.as_deref()?)?, role.clone()));
    let (ends_us, role) = report.roles.iter().filter_map(ends).min()?;
    let left_ms = u64::try_from(ends_us / 1000).unwrap_or(0).saturating_sub(now_ms);
    if u128::from(left_ms) >= METADATA_EXPIRY_WARNING_PERIOD.as_millis() {
        return None;
    }
    let ends = clock::rfc3339(u64::try_from(ends_us / 1000).unwrap_or(0));
    let advice = "check that `ledge-platform refresh` runs on the platform, and `ledge-platform renew` for roles whose \
                  keys are offline; without it this box takes no update";
    let name = "updates metadata";
    let detail = |verb: &str| format!("the metadata of the role {role} {verb} at {ends}");
    Some(match left_ms {
        0 => Finding::fail(name, detail("expired"), advice),
        _ => Finding::warn(name, detail("expires"), advice),
    })
}

/// The findings about rollouts that this box took back by itself.
fn rolled_back(report: &UpdatesReport) -> Vec<Finding> {
    let check = |of: &SubjectReport| {
        let last = of.last.as_ref().filter(|last| last.result == ROLLED_BACK)?;
        let cause = last.cause.as_deref().unwrap_or_default();
        // Ordered here, or by the platform.
        if [RollbackCause::Operator, RollbackCause::Superseded, RollbackCause::Withdrawn]
            .iter()
            .any(|ordered| ordered.name() == cause)
        {
            return None;
        }
        let (version, rollout) = (last.version, &last.rollout);
        let why = last.detail.as_deref().filter(|detail| !detail.is_empty());
        let why = why.map(|detail| format!(": {detail}")).unwrap_or_default();
        let detail = format!("version {version} of the rollout {rollout} was taken back ({cause}{why})");
        let advice = "the version before runs; correct the release and roll it out again";
        Some(Finding::warn(&format!("update {}", of.subject), detail, advice))
    };
    report.subjects.iter().filter_map(check).collect()
}

/// Checks the root metadata that this box trusts first.
pub fn root(checked: &CheckedRepository<'_>) -> Finding {
    let CheckedRepository { section, owner, root_file, .. } = checked;
    let (name, file) = (format!("{section} root"), root_file.display());
    let advice =
        format!("copy root.json of {owner} to this file ({section}.root_file), readable for the user of the service");
    let text = match std::fs::read(root_file) {
        Ok(text) => text,
        Err(error) => return Finding::fail(&name, format!("{file}: {error}"), advice),
    };
    let root: Value = serde_json::from_slice(&text).unwrap_or_default();
    let signed = |key: &str| root.pointer(&format!("/signed/{key}"));
    match (signed("_type").and_then(Value::as_str), signed("version").and_then(Value::as_u64)) {
        (Some("root"), Some(version)) => Finding::ok(&name, format!("{file}: version {version}")),
        _ => Finding::fail(&name, format!("{file} is not TUF root metadata"), advice),
    }
}

/// Checks that the repository answers. Its metadata is verified only when it is used.
pub fn repository(
    checked: &CheckedRepository<'_>,
    context: &DoctorContext<'_>,
    client: impl FnOnce(&Egress) -> Option<HttpClient>,
) -> Finding {
    let CheckedRepository { section, address_key, address, .. } = checked;
    let name = *section;
    let advice =
        format!("check the network, {section}.proxy, {section}.tls and [egress]; loaded models keep running meanwhile");
    let source = RepositorySource::new(address, client(&Egress::new(context.egress, AuditSink::to_nowhere())));
    let asked = block_on(async {
        tokio::time::timeout(REPOSITORY_REPLY_TIMEOUT, source.metadata("timestamp.json", METADATA_BYTES_MAX)).await
    });
    match asked {
        Ok(Ok(Ok(Some(_)))) => Finding::ok(name, format!("{address} answers")),
        Ok(Ok(Ok(None))) => {
            let advice =
                format!("set {section}.{address_key} to the published folder that contains metadata/ and targets/");
            Finding::fail(name, format!("{address} has no metadata/timestamp.json"), advice)
        }
        Ok(Ok(Err(error))) => Finding::fail(name, format!("{address}: {error}"), advice),
        Ok(Err(_)) => Finding::fail(
            name,
            format!("{address} does not answer within {} s", REPOSITORY_REPLY_TIMEOUT.as_secs()),
            advice,
        ),
        Err(error) => Finding::fail(name, error.to_string(), advice),
    }
}

/// Checks the clock, which cannot be earlier than the build of this program.
fn time_of_day(now_ms: u64, built_ms: u64) -> Finding {
    let (name, now) = ("clock", clock::rfc3339(now_ms));
    if now_ms < built_ms {
        let detail = format!("{now}, which is before this version of Ledge was built ({})", clock::rfc3339(built_ms));
        let advice = "set the clock, or run a time service (systemd-timesyncd, chrony): until then waves and windows \
                      open late, and expired metadata may be accepted";
        return Finding::warn(name, detail, advice);
    }
    Finding::ok(name, now)
}

#[cfg(test)]
mod tests {
    use ledge_part::check::FindingStatus;
    use ledge_part::section::{ConfigSection, findings_alone};

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
        assert_eq!(statuses(&config), [FindingStatus::Fail, FindingStatus::Fail, FindingStatus::Ok]);
        std::fs::write(folder.path().join("root.json"), r#"{"signed": {"_type": "targets", "version": 1}}"#).unwrap();
        assert!(look(&config)[0].detail.contains("is not TUF root metadata"));
        std::fs::write(folder.path().join("root.json"), r#"{"signed": {"_type": "root", "version": 1}}"#).unwrap();
        std::fs::create_dir(folder.path().join("metadata")).unwrap();
        std::fs::write(folder.path().join("metadata/timestamp.json"), "{}").unwrap();
        assert_eq!(statuses(&config), [FindingStatus::Ok; 3]);
    }

    #[test]
    fn what_the_daemon_knows_of_updates_is_reported() {
        // It was last checked with an error, one rollout was rolled back, and a role ends at this time.
        let report = UpdatesReport::from(&crate::status_example::status());
        assert_eq!((last_check(&report).status, last_check(&report).name.as_str()), (FindingStatus::Fail, "updates"));
        let [taken_back] = rolled_back(&report).try_into().unwrap();
        assert_eq!((taken_back.name.as_str(), taken_back.status), ("update models/m", FindingStatus::Warn));
        assert_eq!(taken_back.detail, "version 4 of the rollout r-2 was taken back (golden: 7 of 10)");

        let ends_ms = u64::try_from(clock::parse_micros("2026-11-20T01:00:00Z").unwrap() / 1000).unwrap();
        let half_a_day_ms = 43_200_000;
        let status = |now_ms| expiry(&report, now_ms).map(|check| check.status);
        assert_eq!(status(ends_ms - half_a_day_ms), None);
        assert_eq!(status(ends_ms - half_a_day_ms + 1), Some(FindingStatus::Warn));
        assert_eq!(status(ends_ms), Some(FindingStatus::Fail));
    }

    #[test]
    fn a_rollout_that_was_taken_back_on_order_is_no_finding() {
        let mut report = UpdatesReport::from(&crate::status_example::status());
        for cause in ["operator", "superseded", "withdrawn"] {
            report
                .subjects
                .iter_mut()
                .filter_map(|of| of.last.as_mut())
                .for_each(|last| last.cause = Some(cause.into()));
            assert_eq!(rolled_back(&report), [], "{cause}");
        }
    }

    #[test]
    fn a_clock_before_the_build_is_wrong() {
        assert_eq!(time_of_day(5, 6).status, FindingStatus::Warn);
        assert_eq!(time_of_day(6, 6).status, FindingStatus::Ok);
    }
}
