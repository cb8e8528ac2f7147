//! `ledge config`

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use clap::{Args, Subcommand};
use ledge_base::toml_check::ConfigMistake;
use ledge_egress::ip_filter::{self, IpFilterRule};
use ledge_inbox::config::InboxConfig;

use super::{BadConfiguration, Exit, GlobalArgs, Output};
use crate::config::{Config, ConfigCheckResult};

/// The arguments of `ledge config`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// The verbs below `ledge config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print "ok", or list the mistakes with file and line, and exit with 78. Nothing is started.
    ///
    /// A valid setting without effect, such as a user in access.users who does not exist or a model that is not there
    /// yet, is a warning on standard error. The check includes the feature views, which are each *.toml in the folder
    /// features.views, with the data that the store has for them. It compares each of mqtt.bindings with its feature
    /// views and its model.
    Check {
        /// Write JSON instead of text: {"ok": false, "mistakes": [...], "warnings": [...]}.
        #[arg(long)]
        json: bool,
    },
    /// Write the openings of the systemd unit for this configuration: a drop-in with IPAddressAllow= and ReadWritePaths=
    /// lines.
    ///
    /// By default the unit admits only this machine. The drop-in adds the destinations of [[egress.allow]] with the
    /// current addresses of their names, the name servers if there are names, and the networks of --clients, from which
    /// other machines may connect to the addresses of http.listen. systemd filters by address, not by port: the
    /// allow-list still decides what is sent where. The folders of [[inbox]] and [jobs] become writable for the service. Write the
    /// drop-in again when the configuration or an address changes.
    SystemdDropIn {
        /// A network from which other machines may connect, such as 192.168.1.0/24 or 2001:db8::/32; any is every
        /// address. Can be repeated. Required when http.listen has an address that other machines can reach.
        #[arg(long, value_name = "NETWORK")]
        clients: Vec<ClientNetwork>,
    },
    /// Show every setting in effect, and the source of each one that is not a default.
    Show {
        /// Write JSON instead of TOML.
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "\
Examples:
  ledge config check --config new.toml      before it replaces /etc/ledge/ledge.toml
  ledge config show --root .ledge
  ledge config systemd-drop-in > /etc/systemd/system/ledge.service.d/network.conf";

/// The argument of --clients, as `IPAddressAllow=` takes it: `ADDRESS`, `ADDRESS/BITS`, or `any`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientNetwork(String);

impl FromStr for ClientNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let width = address.parse().map(|address: IpAddr| if address.is_ipv4() { 32 } else { 128 });
        let is_valid = match (width, bits) {
            (Ok(_), None) => true,
            (Ok(width), Some(bits)) => bits.parse().is_ok_and(|bits: u8| bits <= width),
            (Err(_), _) => text == "any",
        };
        if is_valid {
            return Ok(Self(text.to_owned()));
        }
        Err("expected ADDRESS/BITS, such as 192.168.1.0/24, or an address, or any".to_owned())
    }
}

impl From<IpAddr> for ClientNetwork {
    fn from(address: IpAddr) -> Self {
        Self(address.to_string())
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &ConfigArgs, out: &mut Output) -> anyhow::Result<Exit> {
    match &args.command {
        ConfigCommand::Check { json } => check(globals, *json, out),
        ConfigCommand::SystemdDropIn { clients } => {
            let resolver = std::fs::read_to_string(ip_filter::RESOLV_CONF).unwrap_or_default();
            write!(out, "{}", drop_in(&globals.load_config()?, clients, &resolver)?)?;
            Ok(Exit::Success)
        }
        ConfigCommand::Show { json } => show(globals, *json, out),
    }
}

fn check(globals: &GlobalArgs, json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let ConfigCheckResult { mistakes, warnings } = globals.sources().check();
    if json {
        let listed = |mistakes: &[ConfigMistake]| mistakes.iter().map(to_json).collect::<Vec<_>>();
        let report = serde_json::json!({
            "ok": mistakes.is_empty(),
            "mistakes": listed(&mistakes),
            "warnings": listed(&warnings),
        });
        writeln!(out, "{report:#}")?;
        return Ok(if mistakes.is_empty() { Exit::Success } else { Exit::Configuration });
    }

    for warning in warnings {
        // Scripts expect only "ok" on standard output.
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
    if !mistakes.is_empty() {
        return Err(BadConfiguration(mistakes).into());
    }
    writeln!(out, "ok")?;
    Ok(Exit::Success)
}

fn to_json(mistake: &ConfigMistake) -> serde_json::Value {
    let ConfigMistake { source, line, column, key, message } = mistake;
    serde_json::json!({ "source": source, "line": line, "column": column, "key": key, "message": message })
}

fn show(globals: &GlobalArgs, json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let loaded = globals.load()?;
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&loaded.config)?)?;
    } else {
        write!(out, "{}", loaded.to_toml()?)?;
    }
    Ok(Exit::Success)
}

/// The addresses of http.listen and grpc.listen that other machines can reach.
pub(super) fn open_listeners(config: &Config) -> Vec<String> {
    config
        .http
        .listen
        .iter()
        .chain(&config.grpc.listen)
        .filter(|address| address.is_exposed())
        .map(ToString::to_string)
        .collect()
}

/// The drop-in for a configuration; `resolver` is the text of [`ip_filter::RESOLV_CONF`].
pub(super) fn drop_in(config: &Config, clients: &[ClientNetwork], resolver: &str) -> anyhow::Result<String> {
    let mut problems = Vec::new();
    let open = open_listeners(config);
    match (open.is_empty(), clients.is_empty()) {
        (false, true) => problems.push(format!(
            "http.listen has {}, but the unit blocks every client there: name the networks of clients, with \
             --clients 192.168.1.0/24 or --clients any",
            open.join(", ")
        )),
        (true, false) => {
            problems
                .push("--clients has no effect: http.listen has no address that other machines can reach".to_owned());
        }
        _ => {}
    }
    let passed = ip_filter::rules(&config.egress, &config.behind_proxies(), resolver).unwrap_or_else(|names| {
        problems
            .extend(names.into_iter().map(|name| format!("{name}, so its entry in egress.allow cannot be converted")));
        Vec::new()
    });
    anyhow::ensure!(problems.is_empty(), "cannot write a drop-in for this configuration:\n  {}", problems.join("\n  "));

    let mut lines = vec![
        "# Written by `ledge config systemd-drop-in`. Write it again when the configuration or an address changes."
            .to_owned(),
        "[Service]".to_owned(),
    ];
    if !open.is_empty() {
        lines.push(format!("# Clients of {}", open.join(", ")));
        lines.extend(clients.iter().map(|network| format!("IPAddressAllow={network}")));
    }
    for IpFilterRule { what, addresses } in &passed {
        lines.push(format!("# {what}"));
        lines.extend(addresses.iter().map(|address| format!("IPAddressAllow={address}")));
    }
    if open.is_empty() && passed.is_empty() {
        lines.push("# The configuration needs no address beyond this machine.".to_owned());
    }
    lines.extend(inbox_lines(config)?);
    Ok(lines.join("\n") + "\n")
}

/// The folders of homes, which the unit hides.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// The folders of which each unit has its own.
const PRIVATE_FOLDERS: [&str; 2] = ["/tmp", "/var/tmp"];

/// The lines that open the folders of inboxes and jobs. The service starts without a folder that is not there, such as that of a
/// share that cannot be mounted.
fn inbox_lines(config: &Config) -> anyhow::Result<Vec<String>> {
    let of_inboxes = config.inbox.iter().flat_map(InboxConfig::written_folders);
    let folders: BTreeSet<_> = of_inboxes.chain(config.jobs.folders.iter().map(PathBuf::as_path)).collect();
    let is_in = |folder: &Path, parents: &[&str]| parents.iter().any(|parent| folder.starts_with(parent));
    let mut lines = Vec::new();
    if !folders.is_empty() {
        lines.push("# Folders of [[inbox]] and [jobs]".to_owned());
    }
    if folders.iter().any(|folder| is_in(folder, &HOMES)) {
        lines.push("ProtectHome=tmpfs".to_owned());
    }
    for folder in folders {
        let shown = folder.display();
        anyhow::ensure!(
            !is_in(folder, &PRIVATE_FOLDERS),
            "{shown}: the service has a {} of its own, so nobody else could put a file there: watch another folder",
            if is_in(folder, &["/var/tmp"]) { "/var/tmp" } else { "/tmp" }
        );
        let text = folder.to_str().filter(|text| !text.contains(|c: char| c.is_control() || "\"\\:".contains(c)));
        let text = text.with_context(|| format!("{shown}: a unit cannot name this folder"))?;
        let key = if is_in(folder, &HOMES) { "BindPaths" } else { "ReadWritePaths" };
        let text = text.replace('%', "%%");
        lines.push(format!("{key}=\"-{text}\""));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::toml_check;

    fn config(text: &str) -> Config {
        toml_check::parse("f", text).unwrap()
    }

    fn networks(texts: &[&str]) -> Vec<ClientNetwork> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_network_is_an_address_with_or_without_bits_or_any() {
        for good in ["any", "192.168.1.0/24", "192.168.1.7", "2001:db8::/32", "::/0", "10.0.0.0/32"] {
            assert!(good.parse::<ClientNetwork>().is_ok(), "{good}");
        }
        for bad in
            ["", "all", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "any/8", "10.0.0.1\nIPAddressAllow=any"]
        {
            assert!(bad.parse::<ClientNetwork>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_configuration_that_stays_on_this_machine_needs_no_line() {
        let text = drop_in(&config(""), &[], "nameserver 192.0.2.53").unwrap();
        assert!(
            text.contains("[Service]\n# The configuration needs no address") && !text.contains("IPAddressAllow="),
            "{text}"
        );
        assert!(
            drop_in(&config(""), &networks(&["any"]), "").unwrap_err().to_string().contains("--clients has no effect")
        );
    }

    #[test]
    fn a_host_behind_a_proxy_needs_no_address_unless_something_connects_to_it_directly() {
        let updates = "[updates]\nrepository = 'https://gone.invalid:443/r'\nproxy = '192.0.2.3:3128'\n";
        let allow = "[[egress.allow]]\nhost = 'gone.invalid:443'\nregion = 'eu'\n[[egress.allow]]\nhost = '192.0.2.3:3128'\n\
                     region = 'eu'\n";
        let text = drop_in(&config(&format!("{updates}{allow}")), &[], "").unwrap();
        let lines =
            "# gone.invalid:443, in eu: through 192.0.2.3:3128\n# 192.0.2.3:3128, in eu\nIPAddressAllow=192.0.2.3\n";
        assert!(text.ends_with(lines), "{text}");
        let direct = "[audit.syslog]\nto = 'gone.invalid:443'\n";
        let refused = drop_in(&config(&format!("{updates}{direct}{allow}")), &[], "").unwrap_err().to_string();
        assert!(refused.contains("gone.invalid has no address"), "{refused}");
    }

    #[test]
    fn only_clients_and_destinations_are_admitted() {
        let config = config(
            "[http]\nlisten = ['127.0.0.1:1', '0.0.0.0:8443']\n[[egress.allow]]\nhost = '192.0.2.4:8883'\nregion = 'eu'",
        );
        let text = drop_in(&config, &networks(&["192.168.1.0/24", "2001:db8::/32"]), "").unwrap();
        let (_, lines) = text.split_once("[Service]\n").unwrap();
        assert_eq!(
            lines,
            "# Clients of 0.0.0.0:8443\nIPAddressAllow=192.168.1.0/24\nIPAddressAllow=2001:db8::/32\n\
             # 192.0.2.4:8883, in eu\nIPAddressAllow=192.0.2.4\n"
        );
        let refused = drop_in(&config, &[], "").unwrap_err().to_string();
        assert!(refused.contains("http.listen has 0.0.0.0:8443"), "{refused}");
    }
}
