//! The order of the platform for this box: the package that a rollout brings, and the one to go back to.

use ledge_base::names::ModelVersion;

use super::package::{InstalledPackage, PackageFile, ReleasePackages};
use crate::artifact::TargetPath;
use crate::package::{Package, PackageError};
use crate::plan::{DesiredStates, RolloutAllowance, RolloutPlan};
use crate::source::RepositorySource;
use crate::trust::{TrustError, TrustedMetadata, TufTarget};

/// An order whose packages were signed by the role that must sign them.
#[derive(Debug, Clone, PartialEq)]
pub struct UpgradeOrder {
    pub plan: RolloutPlan,
    pub allow: RolloutAllowance,
    pub package: OrderedPackage,
    /// The package that is installed now, in an earlier release; `None` where no release has it.
    pub previous: Option<OrderedPackage>,
}

/// A signed package.
#[derive(Debug, Clone, PartialEq)]
pub struct OrderedPackage {
    pub release: ModelVersion,
    /// The version of the package.
    pub version: String,
    pub target: TufTarget,
}

/// The reason why there is no order although a rollout names one.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error("release {release} has no package of {name} for {architecture} ({format:?})", name = installed.name,
        architecture = installed.architecture, format = installed.format)]
    NoPackage { release: String, installed: InstalledPackage },
}

impl UpgradeOrder {
    /// Finds the order for this box; `None` where no rollout names one. Requires a refresh of `trust` before.
    pub async fn find(
        trust: &mut TrustedMetadata,
        source: &RepositorySource,
        desired: &DesiredStates,
        installed: &InstalledPackage,
    ) -> Result<Option<Self>, OrderError> {
        let state = desired.get(&installed.subject());
        let Some((plan, allow)) = state.and_then(|state| state.desired.clone()) else { return Ok(None) };
        let main = trust.resolve(source, &plan.target.to_string()).await?;
        let packages = release_packages(&main)?;
        let no_package = || OrderError::NoPackage { release: plan.target.to_string(), installed: installed.clone() };
        let file = packages.as_ref().and_then(|packages| packages.for_machine(installed)).ok_or_else(no_package)?;
        let package = ordered(trust, source, &plan.target, file).await?;
        let previous = previous(trust, source, installed).await?;
        Ok(Some(Self { plan, allow, package, previous }))
    }
}

fn release_packages(main: &TufTarget) -> Result<Option<ReleasePackages>, PackageError> {
    Ok(Package::from_custom(main.custom.as_ref())?.package)
}

async fn ordered(
    trust: &mut TrustedMetadata,
    source: &RepositorySource,
    main: &TargetPath,
    PackageFile { file, version, .. }: &PackageFile,
) -> Result<OrderedPackage, TrustError> {
    let target = trust.resolve(source, &main.sibling(file).to_string()).await?;
    Ok(OrderedPackage { release: main.version, version: version.clone(), target })
}

/// The installed package in a signed release.
async fn previous(
    trust: &mut TrustedMetadata,
    source: &RepositorySource,
    installed: &InstalledPackage,
) -> Result<Option<OrderedPackage>, TrustError> {
    for main in trust.packages(installed.name.as_str())? {
        // Only the first target of a release describes it.
        let (Ok(path), Ok(Some(packages))) = (main.path.parse::<TargetPath>(), release_packages(&main)) else {
            continue;
        };
        let file = packages.for_machine(installed).filter(|file| file.version == installed.version);
        if let Some(file) = file {
            return ordered(trust, source, &path, file).await.map(Some);
        }
    }
    Ok(None)
}
