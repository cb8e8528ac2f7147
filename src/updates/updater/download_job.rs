//! The job of a download: reads the signed description of a release, fetches its files, and makes its folder.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;

use super::Updater;
use crate::artifact::{Artifact, FileName, TargetPath};
use crate::download::{self, FetchFailure};
use crate::package::Package;
use crate::platform::Platform;
use crate::sha256::sha256_hex;
use crate::state::{RollbackCause, RollbackReason, SubjectState};
use crate::trust::{TrustError, TrustedMetadata, TufTarget};
use crate::updater::job_outcome::UpdateJobOutcome;
use crate::{preflight, source::RepositorySource, state::InstalledRelease};

/// Name of the disk space for releases in the audit log.
const AUDIT_SPACE_NAME: &str = "updates";

/// A release: its description and every file of it.
struct ReleaseFiles {
    digest: String,
    package: Package,
    files: Vec<(FileName, TufTarget)>,
}

/// Starts the job, in two halves: first the description, which gives the release its digest, then the files.
pub(super) fn start(
    updater: &mut Updater,
    subject: &Artifact,
    state: &SubjectState,
) -> Option<BoxFuture<'static, UpdateJobOutcome>> {
    let trial = state.trial.as_ref()?;
    let (path, known) = (trial.plan.target.clone(), trial.release.clone());
    let (platform, store) = (updater.parts.platform.clone(), updater.store.clone());
    let limits = updater.parts.limits.clone();
    let (settings, audit) = (updater.parts.preflight.clone(), updater.parts.audit.clone());

    let trial_runtime = updater.trial_runtime(subject);
    let (fetched, wanted, described) = (trial_runtime.fetched(), trial_runtime.wanted(), trial.package.is_some());

    let subject = subject.clone();
    Some(Box::pin(async move {
        let source = platform.source();
        let release = match resolve(&platform, &source, &path).await {
            Ok(release) => release,
            Err(done) => return done,
        };

        if !described || known.digest != release.digest {
            if let Err(reason) = preflight::check_requirements(&release.package, &settings) {
                return UpdateJobOutcome::Failed(reason);
            }
            return UpdateJobOutcome::Described { digest: release.digest, package: Box::new(release.package) };
        }

        let blobs: BTreeSet<String> = release.files.iter().map(|(_, target)| target.sha256.clone()).collect();
        *wanted.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = blobs;
        for (_, target) in &release.files {
            let progress = |bytes| {
                fetched.fetch_add(bytes, Ordering::Relaxed);
                ControlFlow::Continue(())
            };
            if let Err(FetchFailure { error, wasted }) =
                download::fetch(&store, &source, target, &limits, progress).await
            {
                if error.is_disk_full() {
                    audit.record_space(AUDIT_SPACE_NAME, false);
                }
                let reason = RollbackReason::new(error.cause(), format!("{}: {error}", target.path));
                return UpdateJobOutcome::Deferred { reason, after: error.retry_after(), wasted };
            }
        }

        let files: Vec<_> = release.files.iter().map(|(name, target)| (name.clone(), target.sha256.clone())).collect();
        let installed = InstalledRelease { version: path.version, digest: release.digest };
        match store.assemble(&subject, &installed, &files) {
            Ok(_) => {
                audit.record_space(AUDIT_SPACE_NAME, true);
                UpdateJobOutcome::Passed
            }
            Err(error) => {
                if error.is_disk_full() {
                    audit.record_space(AUDIT_SPACE_NAME, false);
                }
                UpdateJobOutcome::Deferred {
                    reason: RollbackReason::new(RollbackCause::Disk, error.to_string()),
                    after: None,
                    wasted: 0,
                }
            }
        }
    }))
}

/// Reads the description of a release and finds its files.
async fn resolve(
    platform: &Platform,
    source: &RepositorySource,
    path: &TargetPath,
) -> Result<ReleaseFiles, UpdateJobOutcome> {
    let mut trust = platform.trust().await.map_err(|error| signature(path, &error))?;
    let first = target(&mut trust, source, path).await?;
    let package = Package::from_custom(first.custom.as_ref()).map_err(|error| {
        UpdateJobOutcome::Failed(RollbackReason::new(RollbackCause::Signature, format!("{path}: {error}")))
    })?;
    let mut files = vec![(path.file.clone(), first.clone())];
    for name in &package.files {
        if *name == path.file {
            continue;
        }
        files.push((name.clone(), target(&mut trust, source, &path.sibling(name)).await?));
    }
    let digest = release_digest(&first, &files);
    Ok(ReleaseFiles { digest, package, files })
}

async fn target(
    trust: &mut TrustedMetadata,
    source: &RepositorySource,
    path: &TargetPath,
) -> Result<TufTarget, UpdateJobOutcome> {
    trust.resolve(source, &path.to_string()).await.map_err(|error| signature(path, &error))
}

fn signature(path: &TargetPath, error: &TrustError) -> UpdateJobOutcome {
    let reason = RollbackReason::new(RollbackCause::Signature, format!("{path}: {error}"));
    if error.is_final() {
        UpdateJobOutcome::Failed(reason)
    } else {
        UpdateJobOutcome::Deferred { reason, after: error.retry_after(), wasted: 0 }
    }
}

/// Computes the digest of a release: SHA-256 over the signed name and hash of every file, and the description.
fn release_digest(first: &TufTarget, files: &[(FileName, TufTarget)]) -> String {
    let mut lines: Vec<String> = files.iter().map(|(name, target)| format!("{} {name}\n", target.sha256)).collect();
    lines.sort_unstable();
    let custom = first.custom.as_ref().map(ToString::to_string).unwrap_or_default();
    sha256_hex((lines.concat() + &custom).as_bytes())
}
