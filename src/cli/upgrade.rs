//! `ledge upgrade`: installs the package that the platform ordered. `ledge-upgrade.service` runs it as root.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Args;
use ledge_base::{clock, durable};
use ledge_egress::DaemonConnection;
use ledge_identity::device;
use ledge_service::audit_event::AuditSink;
use ledge_updates::config::RepositoryAddress;
use ledge_updates::plan::RolloutAllowance;
use ledge_updates::platform::Platform;
use ledge_updates::rollout::check;
use ledge_updates::rollout::decide;
use ledge_updates::rollout::poller;
use ledge_updates::sha256::sha256_hex;
use ledge_updates::source::RepositorySource;
use ledge_updates::upgrade::courier::{MIRROR_FOLDER, ORDER_FILE};
use ledge_updates::upgrade::order::{OrderedPackage, UpgradeOrder};
use ledge_updates::upgrade::package::{InstalledPackage, PACKAGE_FILE, PackageFormat};
use ledge_updates::upgrade::record::{
    ServiceFigures, StoredPackage, UpgradeJob, UpgradeOutcome, UpgradePhase, UpgradeRecord, replace_readable,
};
use ledge_updates::upgrade::steps::{self, PACKAGES_FOLDER, UpgradeMachine};
use rustix::fs::OFlags;

use super::server::own_daemon;
use super::{Exit, GlobalArgs, Output, block_on};
use crate::config::Config;

/// The program of the package.
const PROGRAM: &str = "/usr/bin/ledge";

/// The service.
const SERVICE: &str = "ledge.service";

/// The root metadata that root's service trusts first. Without it, nothing is ever installed.
pub const ROOT_FILE: &str = "root.json";

/// The program that was installed before an upgrade, kept until it is over.
const KEPT_PROGRAM: &str = "ledge";

/// The longest wait for another run of the package manager.
const LOCK_TIMEOUT: Duration = Duration::from_mins(5);

/// The longest answer of the daemon.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The arguments of `ledge upgrade`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UpgradeArgs {
    /// Only show the state of the last upgrade.
    #[arg(long)]
    pub status: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge upgrade --status
  systemctl start ledge-upgrade        look now whether the platform ordered a package";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &UpgradeArgs, out: &mut Output) -> anyhow::Result<Exit> {
    // Never from the configuration, of which the daemon's user may write a part.
    let own = globals.root.as_deref().map_or_else(Config::packaged, Config::with_root).upgrades.path;
    if args.status {
        return status(&own, out);
    }
    ensure!(
        rustix::process::geteuid().is_root(),
        "only root installs packages: ledge-upgrade.service runs this command"
    );
    let root_file = own.join(ROOT_FILE);
    if !root_file.is_file() {
        writeln!(out, "upgrades by the platform are off: there is no {}", root_file.display())?;
        return Ok(Exit::Success);
    }
    let config = globals.load_config()?;
    let mut machine = SystemMachine { installed: installed_package()?, config: config.clone(), folder: own.clone() };
    write_package(&own, &machine.installed)?;
    if UpgradeRecord::load(&own)?.phase == UpgradePhase::Idle {
        match order(&config, &own, &root_file, &mut machine)? {
            Ok(job) => {
                writeln!(
                    out,
                    "installing {} {} of rollout {}",
                    machine.installed.name, job.package.version, job.rollout
                )?;
                steps::begin(&own, &mut machine, job)?;
            }
            Err(nothing) => {
                writeln!(out, "{nothing}")?;
                return Ok(Exit::Success);
            }
        }
    }
    let record = steps::run(&own, &mut machine)?;
    write_package(&own, &installed_package()?)?;
    tell(&record, out)
}

fn status(folder: &Path, out: &mut Output) -> anyhow::Result<Exit> {
    let record = UpgradeRecord::load(folder).with_context(|| folder.display().to_string())?;
    match &record.phase {
        UpgradePhase::Idle => tell(&record, out),
        UpgradePhase::Installing { job, .. }
        | UpgradePhase::Watching { job, .. }
        | UpgradePhase::Returning { job, .. } => {
            writeln!(out, "version {} of rollout {} is on trial", job.package.version, job.rollout)?;
            Ok(Exit::Success)
        }
    }
}

fn tell(record: &UpgradeRecord, out: &mut Output) -> anyhow::Result<Exit> {
    match &record.last {
        None => writeln!(out, "no package was installed by the platform yet")?,
        Some(UpgradeOutcome { rollout, release, fault: None }) => {
            writeln!(out, "release {release} of rollout {rollout} was installed")?;
        }
        Some(UpgradeOutcome { rollout, release, fault: Some((fault, detail)) }) => {
            writeln!(out, "release {release} of rollout {rollout} was taken back ({}): {detail}", fault.name())?;
        }
    }
    Ok(Exit::Success)
}

/// The package of this program.
fn installed_package() -> anyhow::Result<InstalledPackage> {
    if let Some(owner) = answer("dpkg-query", &["--search", PROGRAM]) {
        let name = owner.split(':').next().unwrap_or_default().to_owned();
        let found = answer("dpkg-query", &["--show", "--showformat=${Version} ${Architecture}", &name]);
        let found = found.context("dpkg-query does not show the installed package")?;
        let (version, architecture) = found.split_once(' ').context("dpkg-query shows another form")?;
        return package(&name, version, architecture, PackageFormat::Deb);
    }
    let found =
        answer("rpm", &["--query", "--file", PROGRAM, "--queryformat", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH}"]);
    let found = found.with_context(|| format!("{PROGRAM} is of no package of dpkg or rpm"))?;
    let mut words = found.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some(name), Some(version), Some(architecture)) => package(name, version, architecture, PackageFormat::Rpm),
        _ => anyhow::bail!("rpm shows another form"),
    }
}

fn package(name: &str, version: &str, architecture: &str, format: PackageFormat) -> anyhow::Result<InstalledPackage> {
    let (version, architecture) = (version.to_owned(), architecture.to_owned());
    Ok(InstalledPackage { name: name.parse()?, version, format, architecture })
}

/// Lets the daemon know the installed package.
fn write_package(folder: &Path, installed: &InstalledPackage) -> anyhow::Result<()> {
    Ok(replace_readable(&folder.join(PACKAGE_FILE), &serde_json::to_vec(installed)?)?)
}

/// The standard output of a program that succeeds.
fn answer(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The upgrade that the platform orders, verified from the signed metadata; the words of `Err` say why there is none.
fn order(
    config: &Config,
    own: &Path,
    root_file: &Path,
    machine: &mut SystemMachine,
) -> anyhow::Result<Result<UpgradeJob, String>> {
    let mirror = config.updates.path.join(MIRROR_FOLDER);
    if !mirror.join(ORDER_FILE).is_file() {
        return Ok(Err("the daemon has copied no order of the platform yet".to_owned()));
    }
    let device = device::load(&config.state.path, &config.device)?.context("this box has no name yet")?;
    let source = RepositorySource::new(&RepositoryAddress::Folder(mirror.clone()), None);
    let (audit, _queue) = AuditSink::channel();
    let platform = Platform::new(own.to_owned(), root_file.to_owned(), audit, source.clone());
    let installed = machine.installed.clone();
    let found = block_on(async {
        let now_ms = clock::unix_millis();
        let manifest = check::check(&platform, &source, &poller::fleet(&device), None, now_ms).await?.manifest;
        let desired = decide::desired_states(&manifest, &device, now_ms.max(clock::FLOOR.now_millis()));
        let mut trust = platform.trust().await?;
        anyhow::Ok(UpgradeOrder::find(&mut trust, &source, &desired, &installed).await?)
    })??;
    let Some(order) = found else { return Ok(Err("the platform orders no package".to_owned())) };

    let record = UpgradeRecord::load(own)?;
    let (release, version) = (order.package.release, &order.package.version);
    let refusal = if record.release == Some(release) || *version == installed.version {
        Some(format!("version {version} is installed"))
    } else if record.refused.contains(&release) {
        Some(format!("release {release} was taken back here and is not tried again"))
    } else if order.allow < RolloutAllowance::Everything {
        Some(format!("release {release} must not be installed now"))
    } else if !machine.is_newer(version) {
        Some(format!("refused: version {version} is older than the installed {}", installed.version))
    } else {
        None
    };
    if let Some(refusal) = refusal {
        return Ok(Err(refusal));
    }
    let previous = order.previous.context("no signed release has the installed package, so there is no way back")?;
    let before =
        machine.service().map_err(|reason| anyhow::anyhow!("the service is not ready before the upgrade: {reason}"))?;
    let targets = mirror.join("targets");
    Ok(Ok(UpgradeJob {
        rollout: order.plan.rollout,
        release,
        package: store(own, &targets, &order.package)?,
        previous: store(own, &targets, &previous)?,
        previous_release: Some(previous.release),
        soak_s: order.plan.soak.min_s,
        memory_ratio_max: order.plan.gate.memory_ratio_max,
        before,
    }))
}

/// Copies a package into root's folder, and verifies the copy: the file of the daemon may change at any time.
fn store(own: &Path, targets: &Path, package: &OrderedPackage) -> anyhow::Result<StoredPackage> {
    let folder = own.join(PACKAGES_FOLDER);
    durable::create_folder(&folder)?;
    let extension = Path::new(&package.target.path).extension().and_then(|extension| extension.to_str());
    let name = format!("{}.{}", package.target.sha256, extension.unwrap_or("deb"));
    let stored = StoredPackage { file: name.clone(), version: package.version.clone() };
    let source = targets.join(&package.target.location);
    let shown = source.display().to_string();
    // Opening a pipe would wait for its writer, and a device would never end.
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits())?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&source).with_context(|| shown.clone())?;
    ensure!(
        file.metadata()?.is_file() && file.metadata()?.len() == package.target.length,
        "{shown}: it has another length"
    );
    let mut content = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, package.target.length), &mut content)?;
    ensure!(sha256_hex(&content) == package.target.sha256, "{shown}: it is not the package that was signed");
    durable::replace(&folder.join(name), &content)?;
    Ok(stored)
}

/// This machine.
struct SystemMachine {
    installed: InstalledPackage,
    config: Config,
    /// The folder of root's service.
    folder: PathBuf,
}

impl SystemMachine {
    /// True if a version is higher than the installed one, by the rules of the package manager.
    fn is_newer(&self, version: &str) -> bool {
        let installed = self.installed.version.as_str();
        match self.installed.format {
            PackageFormat::Deb => answer("dpkg", &["--compare-versions", version, "gt", installed]).is_some(),
            PackageFormat::Rpm => {
                let compare = format!("%{{lua:print(rpm.vercmp('{version}', '{installed}'))}}");
                let is_plain =
                    |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+~^_".contains(&byte));
                is_plain(version) && is_plain(installed) && answer("rpm", &["--eval", &compare]).as_deref() == Some("1")
            }
        }
    }

    /// Runs the package manager, and waits while another one runs. Returns what it says about its work.
    fn manage(arguments: &[&str]) -> Result<String, String> {
        let [program, arguments @ ..] = arguments else { return Err("no program".to_owned()) };
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            let ran = Command::new(program)
                .args(arguments)
                .env("DEBIAN_FRONTEND", "noninteractive")
                .env("LC_ALL", "C")
                .output();
            let output = ran.map_err(|error| format!("{program}: {error}"))?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() {
                return Ok(said);
            }
            let is_locked = said.contains("lock") && said.contains("another process");
            if !is_locked || Instant::now() >= deadline {
                let last: Vec<_> = said.lines().rev().take(3).collect();
                return Err(format!("{program}: {}", last.into_iter().rev().collect::<Vec<_>>().join("; ")));
            }
            std::thread::sleep(steps::LOOK_INTERVAL);
        }
    }

    fn shown(property: &str) -> Option<u64> {
        answer("systemctl", &["show", SERVICE, "--property", property, "--value"])?.parse().ok()
    }

    /// The memory of the service's processes, in bytes: without the cache of files, which depends on what was read before.
    fn memory() -> Option<u64> {
        let group = answer("systemctl", &["show", SERVICE, "--property", "ControlGroup", "--value"])?;
        let is_of_service = |process: &Path| {
            let groups = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
            groups.lines().any(|line| line.ends_with(&group))
        };
        let of_process = |process: PathBuf| {
            // One that has just ended has none.
            let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
            let is_own = |line: &&str| line.starts_with("RssAnon:") || line.starts_with("RssShmem:");
            let kib = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
            status.lines().filter(is_own).filter_map(kib).sum::<u64>() << 10
        };
        let processes = std::fs::read_dir("/proc").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        Some(processes.filter(|process| is_of_service(process)).map(of_process).sum())
    }

    /// The models of the daemon that are ready.
    fn ready_models(&self) -> anyhow::Result<std::collections::BTreeSet<String>> {
        let url = own_daemon(&self.config.http.listen)?;
        let asked = async {
            let mut connection = DaemonConnection::open(&url.as_str().into()).await?;
            let ready = connection.get("/v2/health/ready").await?;
            ensure!(ready.status == 200, "it is not ready (status {})", ready.status);
            let index = connection.post("/v2/repository/index", &[], Bytes::from_static(b"{}")).await?;
            let models: Vec<serde_json::Value> = serde_json::from_slice(&index.body)?;
            let is_ready =
                |model: &&serde_json::Value| model.get("state").and_then(|state| state.as_str()) == Some("READY");
            let name = |model: &serde_json::Value| model.get("name").and_then(|name| name.as_str()).map(str::to_owned);
            Ok(models.iter().filter(is_ready).filter_map(name).collect())
        };
        block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, asked).await.context("it does not answer")? })?
    }
}

impl UpgradeMachine for SystemMachine {
    fn installed_version(&mut self) -> Option<String> {
        let name = self.installed.name.as_str();
        match self.installed.format {
            PackageFormat::Deb => {
                let shown = answer("dpkg-query", &["--show", "--showformat=${db:Status-Abbrev}|${Version}", name])?;
                shown.strip_prefix("ii |").map(str::to_owned)
            }
            PackageFormat::Rpm => answer("rpm", &["--query", "--queryformat", "%{VERSION}-%{RELEASE}", name]),
        }
    }

    fn finish_interrupted(&mut self) {
        if self.installed.format == PackageFormat::Deb
            && let Err(reason) = Self::manage(&["dpkg", "--configure", "--pending", "--force-confold"])
        {
            tracing::warn!(reason, "the package manager cannot finish what was interrupted");
        }
    }

    fn install(&mut self, package: &Path) -> Result<(), String> {
        let package = package.display().to_string();
        match self.installed.format {
            PackageFormat::Deb => {
                Self::manage(&["dpkg", "--install", "--force-confold", "--force-downgrade", &package]).map(drop)
            }
            PackageFormat::Rpm => {
                let said = Self::manage(&["rpm", "--upgrade", "--oldpackage", "--replacepkgs", &package])?;
                // rpm warns of a script that failed after the files were installed, and succeeds.
                let failed = said.lines().find(|line| line.contains("scriptlet failed"));
                failed.map_or(Ok(()), |line| Err(format!("rpm: {line}")))
            }
        }
    }

    fn service(&mut self) -> Result<ServiceFigures, String> {
        let state =
            Command::new("systemctl").args(["is-active", SERVICE]).output().map_err(|error| error.to_string())?;
        if !state.status.success() {
            return Err(format!("{SERVICE} is {}", String::from_utf8_lossy(&state.stdout).trim()));
        }
        let ready_models = self.ready_models().map_err(|error| format!("{error:#}"))?;
        Ok(ServiceFigures { memory: Self::memory().unwrap_or(0), ready_models })
    }

    fn restarts(&mut self) -> u64 {
        Self::shown("NRestarts").unwrap_or(0)
    }

    fn verify_audit_log(&mut self) -> Result<(), String> {
        let verified = Command::new(PROGRAM).args(["audit", "verify"]).output().map_err(|error| error.to_string())?;
        if verified.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&verified.stdout);
        Err(format!("ledge audit verify: {}", said.lines().last().unwrap_or("it failed")))
    }

    fn now_ms(&mut self) -> u64 {
        clock::unix_millis()
    }

    fn wait(&mut self, pause: Duration) {
        std::thread::sleep(pause);
    }

    fn keep_program(&mut self) -> io::Result<()> {
        let path = self.folder.join(KEPT_PROGRAM);
        if path.exists() {
            return Ok(());
        }
        let program = std::fs::read("/proc/self/exe")?;
        let scratch = self.folder.join(format!(".{KEPT_PROGRAM}"));
        durable::replace(&scratch, &program)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&scratch, mode)?;
        durable::rename(&scratch, &path)
    }

    fn forget_program(&mut self) {
        let _ = std::fs::remove_file(self.folder.join(KEPT_PROGRAM));
    }
}
