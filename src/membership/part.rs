//! The membership as a part of the daemon: its section of the configuration, and its task.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ledge_audit::key::AuditKey;
use ledge_identity::access::CallerAccess;
use ledge_identity::sealing::Sealer;
use ledge_part::check::Finding;
use ledge_part::findings::FindingsSource;
use ledge_part::metrics::{gauge_value, single};
use ledge_part::section::{ConfigSection, DoctorContext};
use ledge_part::{PartEnvironment, Subsystem};
use ledge_service::hint::HintSignal;
use ledge_service::shutdown::Shutdown;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::config::MembershipConfig;
use crate::doctor;
use crate::folder::{MembershipFolder, MembershipStatus};
use crate::member::{AuditKeyReader, Member};
use crate::question::QuestionKind;
use crate::responder::{Refusals, Responder};

impl ConfigSection for MembershipConfig {
    fn resolve(&mut self, root: &Path) {
        self.make_absolute(root);
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::checks(self, context.egress)
    }
}

/// The membership, where there is one.
pub struct MembershipPart {
    /// `None` if the key of its private keys cannot be read. The rest of the daemon does not need it.
    folder: Option<MembershipFolder>,
    audit_log: PathBuf,
    status: Arc<Mutex<MembershipStatus>>,
    allowed: Vec<QuestionKind>,
    findings: FindingsSource,
    hints: HintSignal,
}

impl MembershipPart {
    /// The part of a box whose audit log is in `audit_log`; `None` on a box that joined no platform. It answers questions
    /// with `findings`, and looks for them upon `hints`.
    pub fn open(
        config: &MembershipConfig,
        audit_log: &Path,
        findings: FindingsSource,
        hints: HintSignal,
    ) -> Option<Self> {
        if !MembershipFolder::new(&config.path, Sealer::none()).exists() {
            return None;
        }
        let (folder, status) = match config.folder() {
            Ok(folder) => {
                let status = folder.status().unwrap_or_default();
                (Some(folder), status)
            }
            Err(error) => {
                let said = format!("the key of the membership cannot be read, so nothing is renewed: {error}");
                tracing::error!("membership: {said}");
                (None, MembershipStatus { said, is_problem: true, ..MembershipStatus::default() })
            }
        };
        let (audit_log, allowed) = (audit_log.to_owned(), config.questions.clone());
        Some(Self { folder, audit_log, status: Arc::new(Mutex::new(status)), allowed, findings, hints })
    }
}

impl fmt::Debug for MembershipPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembershipPart").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Subsystem for MembershipPart {
    fn name(&self) -> &'static str {
        "membership"
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        let Some(facts) = self.folder.as_ref().and_then(MembershipFolder::certificate_facts) else { return Ok(()) };
        let ends = ConstGauge::new(gauge_value(facts.not_after_ms / 1000));
        let help = "The end of the certificate by which the platform knows this box, in seconds since the Unix epoch";
        single(encoder, "membership_certificate_expiry_timestamp_seconds", help, &ends)
    }

    fn problem(&self, _is_starting: bool) -> Option<String> {
        let last = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_problem.then(|| last.said.clone())
    }

    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let PartEnvironment { device, sealer, egress, audit, shutdown, .. } = environment;
        let (audit_log, device, sealer) = (self.audit_log.clone(), device.id.clone(), sealer.clone());
        let key: AuditKeyReader =
            Arc::new(move || AuditKey::verifier_key_in(&audit_log, &device, &sealer).ok().flatten());
        let status = self.status.clone();
        let member = Member::new(folder.clone(), egress.clone(), audit.clone(), key, status);
        // Without an allowed question, none is even looked for.
        if !self.allowed.is_empty() {
            let responder = Responder {
                folder,
                egress: egress.clone(),
                audit: audit.clone(),
                findings: self.findings.clone(),
                hints: self.hints.clone(),
                allowed: self.allowed.clone(),
                refusals: Refusals::default(),
            };
            spawn_until_stop(shutdown, responder.run());
        }
        spawn_until_stop(shutdown, member.run());
        Ok(())
    }
}

fn spawn_until_stop(shutdown: &Shutdown, task: impl Future<Output = ()> + Send + 'static) {
    let stop = shutdown.clone();
    shutdown.spawn(async move {
        tokio::select! {
            () = task => {}
            () = stop.requested() => {}
        }
    });
}
