//! `ledge join`: makes this box a member of a platform.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::net::TcpListener;
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
use ledge_listener::address::ListenAddress;
use ledge_membership::folder::{Membership, MembershipFolder, Standing};
use ledge_membership::join::{MEMBERSHIP_CREDENTIAL, PreparedMembership};
use ledge_membership::join_file::{Invitation, JoinFile};
use ledge_updates::config::RepositoryAddress;
use ledge_updates::configuration;
use ledge_updates::trust::TrustedMetadata;
use zeroize::Zeroizing;

use super::config::ClientNetwork;
use super::upgrade::ROOT_FILE;
use super::{Exit, GlobalArgs, Output, config};
use crate::config::{Config, LoadedConfig, PlatformMetrics};

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
    /// The join file, as `ledge-platform box add` makes it, or the folder with it.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The name of this box, for a join file for several boxes.
    #[arg(long, value_name = "NAME")]
    pub name: Option<DeviceName>,
    /// The SHA-256 fingerprint that the platform shows. Without it, and without `membership.fingerprint`, you are asked to
    /// compare.
    #[arg(long, value_name = "SHA256")]
    pub fingerprint: Option<String>,
    /// A network from which the platform's Prometheus connects, such as 192.168.1.0/24; any is every address. Can be
    /// repeated. Without it, and where the platform has an address and no name, only the platform itself can connect.
    #[arg(long, value_name = "NETWORK")]
    pub clients: Vec<ClientNetwork>,
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
    let path = join_file(&args.file)?;
    let content = SecretFile::Path(path.clone()).read()?;
    let file = JoinFile::open(&content, now_ms).with_context(|| path.display().to_string())?;
    let device = name(&file.invitation, args.name.as_ref())?;
    show(&file, &device, out)?;
    let config = globals.load_config()?;
    let given =
        args.fingerprint.as_deref().map(|text| text.trim().trim_start_matches("sha256:").parse()).transpose()?;
    confirm(&file.fingerprint, given.or(config.membership.fingerprint))?;

    let unit = ServiceUnit::of(globals, &config)?;
    let (prepared, joined, openings) = match prepare(globals, args, &file, &device, &config, unit.as_ref()) {
        Ok(prepared) => prepared,
        Err(error) => {
            // Nobody knows its key.
            if let Some(unit) = unit {
                let _ = std::fs::remove_file(&unit.credential);
            }
            return Err(error);
        }
    };
    prepared.commit()?;
    for replaced in joined.replaced_settings() {
        writeln!(out, "note: {replaced}")?;
    }
    writeln!(out, "the settings are in {}", config.membership.path.display())?;
    if let Some((metrics, problem)) = joined.metrics.as_ref().and_then(|metrics| Some((metrics, metrics.problem()?))) {
        writeln!(out, "{problem}: {}", metrics.remedy())?;
    }
    match unit {
        Some(unit) => {
            let upgrades = file.invitation.packages.then_some(file.invitation.root.as_str());
            unit.apply(&joined.config, openings, upgrades, out)?;
        }
        None => writeln!(out, "start the server again: it asks the platform for a certificate")?,
    }
    if args.wait == 0 {
        return Ok(Exit::Success);
    }
    wait(&globals.load_config()?, Duration::from_secs(args.wait), out)
}

/// The membership, which is not in effect yet, with the configuration that it makes and the openings of the unit.
fn prepare(
    globals: &GlobalArgs,
    args: &JoinArgs,
    file: &JoinFile,
    device: &DeviceName,
    config: &Config,
    unit: Option<&ServiceUnit>,
) -> anyhow::Result<(PreparedMembership, LoadedConfig, String)> {
    let key = unit.map(|unit| membership_key(&unit.credential)).transpose()?.flatten();
    let prepared =
        PreparedMembership::write(&config.membership, file, device, args.replace, key, configuration::is_settable)?;
    // The folder is not in its place yet, so a mistake changes nothing.
    let checked = check(globals, prepared.folder(), &file.invitation, device).and_then(|joined| {
        check_port(config, &joined)?;
        let openings = unit.map(|_| openings(&joined.config, scraper_host(&file.invitation), &args.clients));
        Ok((joined, openings.transpose()?.unwrap_or_default()))
    });
    match checked {
        Ok((joined, openings)) => Ok((prepared, joined, openings)),
        Err(error) => {
            prepared.discard()?;
            Err(error)
        }
    }
}

/// The join file itself, which may be given by its folder.
fn join_file(given: &Path) -> anyhow::Result<PathBuf> {
    if !given.is_dir() {
        return Ok(given.to_owned());
    }
    let entries = std::fs::read_dir(given).with_context(|| given.display().to_string())?;
    let paths: Vec<PathBuf> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    let mut files = paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "join"));
    match (files.next(), files.next()) {
        (Some(file), None) => Ok(file),
        (None, _) => bail!("there is no join file in {}", given.display()),
        (Some(_), Some(_)) => bail!("{} has several join files: say which is for this box", given.display()),
    }
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
    let Invitation { platform, updates, broker, audit, fleet, settings, expires, packages, metrics, .. } =
        &file.invitation;
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
    match metrics {
        Some(at) => {
            let port = at.port;
            writeln!(
                out,
                "metrics      port {port}, to the platform's Prometheus; other callers need a credential there"
            )?;
        }
        None => writeln!(out, "metrics      none")?,
    }
    writeln!(out, "upgrades     {}", if *packages { "the platform upgrades Ledge itself" } else { "none" })?;
    writeln!(out, "good until   {expires}")?;
    Ok(())
}

/// Returns when a person, or the caller of this command, has compared the fingerprint.
fn confirm(fingerprint: &str, expected: Option<CertificateFingerprint>) -> anyhow::Result<()> {
    if let Some(expected) = expected {
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
fn check(
    globals: &GlobalArgs,
    folder: &Path,
    invitation: &Invitation,
    device: &DeviceName,
) -> anyhow::Result<LoadedConfig> {
    let mut sources = globals.sources();
    sources.set.push(format!("membership.path={}", toml::Value::from(folder.display().to_string())));
    let loaded = sources.load().map_err(BadConfiguration)?;
    let config = &loaded.config;
    let own = |key: &str, is_same: bool| {
        ensure!(is_same, "{key} is set on this box to something else than in the join file: remove that setting first");
        Ok(())
    };
    own("device.id", config.device.id.as_ref() == Some(device))?;
    if let Some(updates) = &invitation.updates {
        let ordered: RepositoryAddress = updates.parse().context("the join file names no repository of updates")?;
        own("updates.repository", config.updates.repository.as_ref() == Some(&ordered))?;
    }
    Ok(loaded)
}

/// Refuses a port for metrics that another program has: the service could not start with it.
fn check_port(before: &Config, LoadedConfig { config, metrics, .. }: &LoadedConfig) -> anyhow::Result<()> {
    let Some(PlatformMetrics::Served { address }) = metrics else { return Ok(()) };
    let is_new = config.http.listen.contains(address) && !before.http.listen.contains(address);
    if let (true, ListenAddress::Tls(at)) = (is_new, address) {
        TcpListener::bind(at).with_context(|| {
            format!("{address}, where the platform's Prometheus reads metrics, cannot be opened: ask the platform for a join file with another port")
        })?;
    }
    Ok(())
}

/// The service of an installed package.
struct ServiceUnit {
    /// The folder of the membership.
    membership: PathBuf,
    /// The file of its encrypted key.
    credential: String,
}

impl ServiceUnit {
    /// `None` for another configuration than that of the package, and without systemd.
    fn of(globals: &GlobalArgs, config: &Config) -> anyhow::Result<Option<Self>> {
        let is_packaged = globals.root.is_none() && globals.config.is_none();
        let has_systemd = Path::new("/run/systemd/system").is_dir();
        let is_root = rustix::process::geteuid().is_root();
        if !is_packaged || !has_systemd || !is_root {
            return Ok(None);
        }
        Ok(Some(Self { membership: config.membership.path.clone(), credential: new_credential()? }))
    }

    /// Opens the unit to the platform by the drop-in `openings`, and starts the service again. With root metadata in `upgrades`,
    /// root's service takes packages of that platform.
    fn apply(&self, config: &Config, openings: String, upgrades: Option<&str>, out: &mut Output) -> anyhow::Result<()> {
        let has_credential = config.membership.key_file.is_some();
        write_drop_in(openings, has_credential.then_some(self.credential.as_str()))?;
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
pub(super) fn write_drop_in(openings: String, credential: Option<&str>) -> anyhow::Result<()> {
    let mut text = openings;
    if let Some(credential) = credential {
        let _ = writeln!(text, "LoadCredentialEncrypted={MEMBERSHIP_CREDENTIAL}:{credential}");
    }
    durable::replace_in_new_folder(Path::new(DROP_IN), text.as_bytes()).with_context(|| DROP_IN.to_owned())
}

/// The openings of the unit. A name may get another address while nobody looks after the box, which would then be cut off from
/// its platform for good. So with names the filter is open, and the allow-list of the daemon alone decides. Without names,
/// `clients` are the networks from which others connect, by default the host of the `scraper` alone.
pub(super) fn openings(config: &Config, scraper: Option<&Host>, clients: &[ClientNetwork]) -> anyhow::Result<String> {
    let is_name = |at: &HostPort| matches!(at.host, Host::Name(_)) && !at.host.is_loopback();
    if config.egress.allow.iter().any(|entry| is_name(&entry.host)) {
        return Ok("# Written by `ledge join`: [[egress.allow]] has names, whose addresses may change.\n\
                   [Service]\nIPAddressAllow=any\n"
            .to_owned());
    }
    let resolver = std::fs::read_to_string(ip_filter::RESOLV_CONF).unwrap_or_default();
    match scraper {
        Some(Host::Ip(platform)) if clients.is_empty() && !config::open_listeners(config).is_empty() => {
            config::drop_in(config, &[ClientNetwork::from(*platform)], &resolver)
        }
        _ => config::drop_in(config, clients, &resolver),
    }
}

/// The host of the platform, where its Prometheus reads the metrics of this box.
fn scraper_host(invitation: &Invitation) -> Option<&Host> {
    invitation.metrics.as_ref().map(|_| &invitation.join.at.host)
}

/// A file for the encrypted key of a membership. It is another one each time, since the present membership needs its own
/// until another is in effect.
pub(super) fn new_credential() -> anyhow::Result<String> {
    let number = getrandom::u64().context("the system returned no random numbers")?;
    Ok(format!("{CREDENTIALS}/{MEMBERSHIP_CREDENTIAL}-{number:016x}"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::toml_check;

    #[test]
    fn the_port_for_metrics_is_open_to_the_platform_or_to_the_given_networks() {
        let config = |host: &str| -> Config {
            let text = format!(
                "[http]\nlisten = ['https://0.0.0.0:9443']\n[[egress.allow]]\nhost = '{host}:443'\nregion = 'eu'"
            );
            toml_check::parse("f", &text).unwrap()
        };
        let (by_address, by_name) = (config("192.0.2.4"), config("platform.example"));
        let host = |text: &str| text.parse::<HostPort>().unwrap().host;
        let platform = host("192.0.2.4:443");
        let networks: Vec<ClientNetwork> = vec!["192.0.2.128/25".parse().unwrap()];

        let opened = openings(&by_address, Some(&platform), &[]).unwrap();
        assert!(opened.contains("# Clients of https://0.0.0.0:9443\nIPAddressAllow=192.0.2.4\n"), "{opened}");
        let opened = openings(&by_address, Some(&platform), &networks).unwrap();
        assert!(opened.contains("# Clients of https://0.0.0.0:9443\nIPAddressAllow=192.0.2.128/25\n"), "{opened}");
        assert!(openings(&by_name, Some(&host("platform.example:443")), &[]).unwrap().contains("IPAddressAllow=any"));
        let refused = openings(&by_address, None, &[]).unwrap_err().to_string();
        assert!(refused.contains("--clients"), "{refused}");
    }
}
