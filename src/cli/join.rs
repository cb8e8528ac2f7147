//! `ledge join`: makes this box a member of a platform.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use ledge_base::names::DeviceName;
use ledge_base::secret::SecretFile;
use ledge_base::toml_check::BadConfiguration;
use ledge_base::{clock, durable};
use ledge_egress::{CertificateFingerprint, Host, HostPort, ip_filter};
use ledge_identity::sealing::{MASTER_KEY_BYTES, Sealer};
use ledge_membership::folder::{Membership, MembershipFolder, Standing};
use ledge_membership::join::{MEMBERSHIP_CREDENTIAL, PreparedMembership};
use ledge_membership::join_file::{Invitation, JoinFile};
use ledge_updates::config::RepositoryAddress;
use ledge_updates::configuration;
use ledge_updates::trust::TrustedMetadata;
use zeroize::Zeroizing;

use super::upgrade::ROOT_FILE;
use super::{Exit, GlobalArgs, Output, config};
use crate::config::Config;

/// The drop-in that opens the unit of the service to the platform.
const DROP_IN: &str = "/etc/systemd/system/ledge.service.d/membership.conf";

/// The folder of encrypted credentials.
pub(super) const CREDENTIALS: &str = "/etc/credstore.encrypted";

/// The pause between two looks at the membership.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The arguments of `ledge join`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct JoinArgs {
    /// The join file, as `ledge-platform box add` makes it.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The name of this box, for a join file for several boxes.
    #[arg(long, value_name = "NAME")]
    pub name: Option<DeviceName>,
    /// The SHA-256 fingerprint that the platform shows. Without it, you are asked to compare.
    #[arg(long, value_name = "SHA256")]
    pub fingerprint: Option<String>,
    /// Leave the platform that this box is a member of.
    #[arg(long)]
    pub replace: bool,
    /// The longest wait for the platform's answer, in seconds; 0 does not wait. The server asks on meanwhile.
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    pub wait: u64,
}

const EXAMPLES: &str = "\
Examples:
  sudo ledge join /media/stick/shop-7.join
  sudo ledge join --fingerprint 5ac1… --wait 0 shop-7.join
  sudo ledge join --name shop-7 shops.join";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &JoinArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let now_ms = clock::FLOOR.now_millis();
    let content = SecretFile::Path(args.file.clone()).read()?;
    let file = JoinFile::open(&content, now_ms).with_context(|| args.file.display().to_string())?;
    let device = name(&file.invitation, args.name.as_ref())?;
    show(&file, &device, out)?;
    confirm(&file.fingerprint, args.fingerprint.as_deref())?;

    let config = globals.load_config()?;
    let unit = ServiceUnit::of(globals, &config, &file);
    let key = unit.as_ref().map(|unit| membership_key(&unit.credential)).transpose()?.flatten();
    let prepared =
        PreparedMembership::write(&config.membership, &file, &device, args.replace, key, configuration::is_settable)?;
    // The folder is not in its place yet, so a mistake changes nothing.
    let checked = check(globals, prepared.folder(), &file.invitation, &device);
    let joined = match checked {
        Ok(joined) => joined,
        Err(error) => {
            prepared.discard()?;
            return Err(error);
        }
    };
    prepared.commit()?;
    writeln!(out, "the settings are in {}", config.membership.path.display())?;
    match unit {
        Some(unit) => unit.apply(&joined, file.invitation.packages.then_some(file.invitation.root.as_str()), out)?,
        None => writeln!(out, "start the server again: it asks the platform for a certificate")?,
    }
    if args.wait == 0 {
        return Ok(Exit::Success);
    }
    wait(&globals.load_config()?, Duration::from_secs(args.wait), out)
}

/// The name of this box: that of the join file, or the given one for a file for several boxes.
fn name(invitation: &Invitation, given: Option<&DeviceName>) -> anyhow::Result<DeviceName> {
    match (&invitation.device, given) {
        (Some(device), None) => Ok(device.clone()),
        (Some(device), Some(given)) if device == given => Ok(device.clone()),
        (Some(device), Some(given)) => bail!("the join file is for {device}, and not for {given}"),
        (None, Some(given)) => Ok(given.clone()),
        (None, None) => bail!("the join file is for several boxes: say the name of this one with --name"),
    }
}

fn show(file: &JoinFile, device: &DeviceName, out: &mut Output) -> anyhow::Result<()> {
    let Invitation { platform, updates, broker, audit, fleet, settings, expires, packages, .. } = &file.invitation;
    let line = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let fleet = fleet.as_ref().map(ToString::to_string);
    writeln!(out, "platform     {platform}")?;
    writeln!(out, "fingerprint  {}", file.fingerprint)?;
    writeln!(out, "this box     {device}")?;
    writeln!(out, "updates      {}", line(updates))?;
    writeln!(out, "broker       {}", line(broker))?;
    writeln!(out, "audit log    {}", line(audit))?;
    writeln!(out, "fleet        {}", fleet.unwrap_or_else(|| "default".to_owned()))?;
    writeln!(out, "settings     {}", if settings.is_some() { "yes" } else { "none" })?;
    writeln!(out, "upgrades     {}", if *packages { "the platform upgrades Ledge itself" } else { "none" })?;
    writeln!(out, "good until   {expires}")?;
    Ok(())
}

/// Returns when a person, or the caller of this command, has compared the fingerprint.
fn confirm(fingerprint: &str, expected: Option<&str>) -> anyhow::Result<()> {
    if let Some(expected) = expected {
        let expected: CertificateFingerprint = expected.trim().trim_start_matches("sha256:").parse()?;
        ensure!(
            expected.to_string() == fingerprint,
            "the fingerprint of the join file is another one, so it is of another platform"
        );
        return Ok(());
    }
    ensure!(
        std::io::stdin().is_terminal(),
        "compare the fingerprint with the one that the platform shows, then pass it with --fingerprint"
    );
    let mut stderr = std::io::stderr();
    write!(stderr, "Does the platform show the same fingerprint? Type yes to join: ")?;
    stderr.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    ensure!(answer.trim().eq_ignore_ascii_case("yes"), "not confirmed: nothing was changed");
    Ok(())
}

/// The configuration with the new membership, in which nothing of this box contradicts it.
fn check(globals: &GlobalArgs, folder: &Path, invitation: &Invitation, device: &DeviceName) -> anyhow::Result<Config> {
    let mut sources = globals.sources();
    sources.set.push(format!("membership.path={}", toml::Value::from(folder.display().to_string())));
    let config = sources.load().map_err(BadConfiguration)?.config;
    let own = |key: &str, is_same: bool| {
        ensure!(is_same, "{key} is set on this box to something else than in the join file: remove that setting first");
        Ok(())
    };
    own("device.id", config.device.id.as_ref() == Some(device))?;
    if let Some(updates) = &invitation.updates {
        let ordered: RepositoryAddress = updates.parse().context("the join file names no repository of updates")?;
        own("updates.repository", config.updates.repository == Some(ordered))?;
    }
    Ok(config)
}

/// The service of an installed package.
struct ServiceUnit {
    /// The folder of the membership.
    membership: PathBuf,
    /// The file of its encrypted key: another one for each join file, since the present membership needs its own until
    /// another is in effect.
    credential: String,
}

impl ServiceUnit {
    /// `None` for another configuration than that of the package, and without systemd.
    fn of(globals: &GlobalArgs, config: &Config, file: &JoinFile) -> Option<Self> {
        let is_packaged = globals.root.is_none() && globals.config.is_none();
        let has_systemd = Path::new("/run/systemd/system").is_dir();
        let is_root = rustix::process::geteuid().is_root();
        (is_packaged && has_systemd && is_root).then(|| Self {
            membership: config.membership.path.clone(),
            credential: format!("{CREDENTIALS}/{MEMBERSHIP_CREDENTIAL}-{}", file.sha256.get(..16).unwrap_or_default()),
        })
    }

    /// Opens the unit to the platform, and starts the service again. With root metadata in `upgrades`, root's service takes
    /// packages of that platform.
    fn apply(&self, config: &Config, upgrades: Option<&str>, out: &mut Output) -> anyhow::Result<()> {
        let has_credential = config.membership.key_file.is_some();
        write_drop_in(config, has_credential.then_some(self.credential.as_str()))?;
        if !has_credential {
            writeln!(
                out,
                "systemd-creds could not encrypt a key, so private keys are only protected by the permissions of {}",
                self.membership.display()
            )?;
        }
        let trusted = Config::packaged().upgrades.path.join(ROOT_FILE);
        match upgrades {
            Some(root) => {
                // The metadata of another platform would contradict it.
                if std::fs::read(&trusted).is_ok_and(|before| before != root.as_bytes()) {
                    TrustedMetadata::reset(&Config::packaged().upgrades.path)?;
                }
                durable::replace_in_new_folder(&trusted, root.as_bytes())
            }
            // The packages of another platform are not taken any more.
            None if trusted.exists() => std::fs::remove_file(&trusted),
            None => Ok(()),
        }
        .with_context(|| trusted.display().to_string())?;
        let first = ["--no-block", "start", "ledge-upgrade.path", "ledge-upgrade.service"];
        let commands: [&[&str]; 3] = [&["daemon-reload"], &["restart", "ledge.service"], &first];
        for arguments in commands.into_iter().take(if upgrades.is_some() { 3 } else { 2 }) {
            let ended = Command::new("systemctl").args(arguments).status().context("systemctl cannot be started")?;
            ensure!(ended.success(), "systemctl {} failed: see journalctl -u ledge", arguments.join(" "));
        }
        writeln!(out, "the service was started again with {DROP_IN}")?;
        Ok(())
    }
}

/// Writes the drop-in that opens the unit to the platform, and passes it the file of the membership's encrypted key.
pub(super) fn write_drop_in(config: &Config, credential: Option<&str>) -> anyhow::Result<()> {
    let mut text = openings(config)?;
    if let Some(credential) = credential {
        let _ = writeln!(text, "LoadCredentialEncrypted={MEMBERSHIP_CREDENTIAL}:{credential}");
    }
    durable::replace_in_new_folder(Path::new(DROP_IN), text.as_bytes()).with_context(|| DROP_IN.to_owned())
}

/// The openings of the unit. A name may get another address while nobody looks after the box, which would then be cut off from
/// its platform for good. So with names the filter is open, and the allow-list of the daemon alone decides.
fn openings(config: &Config) -> anyhow::Result<String> {
    let is_name = |at: &HostPort| matches!(at.host, Host::Name(_)) && !at.host.is_loopback();
    if config.egress.allow.iter().any(|entry| is_name(&entry.host)) {
        return Ok("# Written by `ledge join`: [[egress.allow]] has names, whose addresses may change.\n\
                   [Service]\nIPAddressAllow=any\n"
            .to_owned());
    }
    let resolver = std::fs::read_to_string(ip_filter::RESOLV_CONF).unwrap_or_default();
    config::drop_in(config, &[], &resolver)
}

/// A new key for the private keys, which systemd encrypts for this machine; `None` where it cannot.
pub(super) fn membership_key(credential: &str) -> anyhow::Result<Option<Sealer>> {
    let mut secret = Zeroizing::new([0; MASTER_KEY_BYTES]);
    getrandom::fill(secret.as_mut_slice()).context("the system returned no random numbers")?;
    let is_made = encrypt_credential(MEMBERSHIP_CREDENTIAL, credential, secret.as_slice())?;
    Ok(is_made.then(|| Sealer::with_keys(&[*secret])))
}

/// Lets systemd encrypt a secret for this machine, as the credential `name` in the file `credential`; `false` where it
/// cannot.
pub(super) fn encrypt_credential(name: &str, credential: &str, secret: &[u8]) -> anyhow::Result<bool> {
    std::fs::create_dir_all(CREDENTIALS).with_context(|| CREDENTIALS.to_owned())?;
    let made = Command::new("systemd-creds")
        .arg("encrypt")
        .arg(format!("--name={name}"))
        .args(["-", credential])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .and_then(|mut child| {
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(secret)?;
            }
            child.wait()
        });
    Ok(made.is_ok_and(|status| status.success()))
}

/// Waits until the platform has decided.
fn wait(config: &Config, longest: Duration, out: &mut Output) -> anyhow::Result<Exit> {
    let deadline = Instant::now() + longest;
    let folder: MembershipFolder = config.membership.folder()?;
    let mut said = String::new();
    loop {
        let status = folder.status().unwrap_or_default();
        if status.said != said && !status.said.is_empty() {
            writeln!(out, "{}", status.said)?;
            said.clone_from(&status.said);
        }
        match folder.membership()?.map(|Membership { standing, .. }| standing) {
            Some(Standing::Member { .. }) => return Ok(Exit::Success),
            Some(Standing::Refused { .. }) | None => return Ok(Exit::Failure),
            Some(Standing::Joining { .. }) if Instant::now() >= deadline => {
                writeln!(out, "no answer yet; the server asks on, and `ledge doctor` says how it went")?;
                return Ok(Exit::Failure);
            }
            Some(Standing::Joining { .. }) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}
